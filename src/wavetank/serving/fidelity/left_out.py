"""Which runs a system may look at while it predicts which: one left out, none left out, a way of sharing left out.

Leaving one run out says little where a folder holds several runs of one configuration: those that remain are almost the
run that is judged.  So all runs with a degree of tensor parallelism are left out together, one degree after the other,
and all runs on several devices together, which asks what runs on one device say of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar


class Shared(Protocol):
    """What is asked of a run here."""

    @property
    def tensor_parallel(self) -> int:
        """Devices that share every layer."""
        ...

    @property
    def devices(self) -> int:
        """Devices of all engines together."""
        ...


Run = TypeVar("Run", bound=Shared)
LEFT_OUT, SEEN, SEVERAL = "all runs", "all runs, seen by the fit", "from one device to several"


def cases(runs: Sequence[Run]) -> Mapping[str, Sequence[tuple[Run, tuple[Run, ...]]]]:
    """Return, by case, the runs that are judged, each with the runs that may be looked at.

    Parameters
    ----------
    runs : sequence of runs

    Returns
    -------
    mapping of str to sequence of (run, runs)
        ``"all runs"``: each with the others.  ``"all runs, seen by the fit"``: each with all, itself among them.
        ``"tensor parallel 2 left out"``: those of that degree, with those of other degrees; absent where all have one.
        ``"from one device to several"``: those on several devices with those on one; absent without either.
    """
    found = {
        LEFT_OUT: [(run, tuple(other for other in runs if other is not run)) for run in runs],
        SEEN: [(run, tuple(runs)) for run in runs],
    }
    degrees = sorted({run.tensor_parallel for run in runs})
    for degree in degrees if len(degrees) > 1 else []:
        rest = tuple(run for run in runs if run.tensor_parallel != degree)
        found[f"tensor parallel {degree} left out"] = [(run, rest) for run in runs if run.tensor_parallel == degree]
    alone = tuple(run for run in runs if run.devices == 1)
    several = [(run, alone) for run in runs if run.devices > 1]
    return found | ({SEVERAL: several} if alone and several else {})
