"""Forecasters of other projects, in an environment of their own: MSTL and AutoETS of statsforecast, and Prophet.

A process answers for many histories at once, for to start one and to import these libraries takes seconds.  They get
the logarithm where the series allows it, as all others do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavetank.diagnosis.outside import ask
from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.series import forecaster_process
from wavetank.insight.series.interface import Floats
from wavetank.settings import check_ranges, setting
from wavetank.workloads.series import Regular

_LARGEST_LOG = math.log(1e300)


@dataclass(frozen=True, kw_only=True)
class OutsideForecaster:
    """A model that is fitted in a process of another environment."""

    model: str = setting("mstl", says="Which of them", choices=tuple(forecaster_process.MODELS))
    limit_s: float = setting(3600.0, unit="s", says="Time after which a process is ended", low=1.0, high=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def forecasts(
        self, histories: Sequence[Regular], steps: int, outside: str
    ) -> tuple[Sequence[Floats], Sequence[float]]:
        """Return what comes after each history, and how many seconds each forecast took, learning included.

        Parameters
        ----------
        histories : sequence of Regular
        steps : int
            At least one.
        outside : str
            Python of the environment.

        Raises
        ------
        BadValueError
            For a history without any value.
        WavetankError
            If the process fails, takes too long, or answers with something else than finite numbers.
        """
        question, logs = [], []
        for each in histories:
            if not each.seen:
                raise BadValueError("A series without any value says nothing of what comes.", given=each.name)
            log = bool((each.value[~each.missing] > 0).all())
            with np.errstate(invalid="ignore", divide="ignore"):
                values = np.log(each.value) if log else each.value
            logs.append(log)
            question.append(
                {
                    "values": [None if gone else float(x) for x, gone in zip(values, each.missing, strict=True)],
                    "start_ns": each.start_ns, "step_ns": each.step_ns,
                }
            )  # fmt: skip
        said = ask(
            [outside, "-P", str(Path(forecaster_process.__file__))],
            {"model": self.model, "steps": steps, "histories": question}, name=self.model, timeout_s=self.limit_s,
        )  # fmt: skip
        try:
            found = np.array(said["forecasts"], np.float64).reshape(len(histories), steps)
            took = [float(each) for each in said["seconds"]]
        except (KeyError, TypeError, ValueError) as error:
            raise WavetankError(f"{self.model} answered with something else.", given=str(said)[:200]) from error
        if not np.isfinite(found).all() or len(took) != len(histories):
            raise WavetankError(f"{self.model} answered with something that is no number.", given=str(said)[:200])
        back = [np.exp(np.clip(x, -_LARGEST_LOG, _LARGEST_LOG)) if log else x
                for x, log in zip(found, logs, strict=True)]  # fmt: skip
        return back, took
