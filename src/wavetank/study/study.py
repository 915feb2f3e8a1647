"""Studies: one question put to several systems on the same workload and platform.

A study is a frozen dataclass.  Its docstring says how it is set up, its fields are the settings (they become ``--set``
keys), its class attributes name the baseline, the metrics and the charts worth looking at, and ``measure(system,
seed)`` answers for one system and one seed.  Its question and its systems stand in the catalog.
:mod:`wavetank.study.timing` has the studies whose answer is time: their systems run interleaved in one process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from wavetank.errors import BadValueError, WavetankError
from wavetank.settings import check_parameters
from wavetank.study.records import KINDS, Record


@dataclass(frozen=True)
class Metric:
    """A figure that a study reports.

    Parameters
    ----------
    name : str
        With its unit as suffix, as in ``ttft_p99_s``.
    unit : str
        Empty for a pure number.
    better : str
        ``"lower"``, ``"higher"`` or ``""`` for a figure that only explains.
    kind : str
        ``simulated``, ``measured``, ``counted`` or ``modelled``.
    of : str
        The definition: formula, what is in and out, how ties are broken.
    table : bool
        Whether the summary table shows it; charts use the others.
    words : str
        What sentences call it, as in "8 % less WORDS than"; by default the name without its unit: "time" of ``time_s``.
    """

    name: str
    unit: str = ""
    better: str = ""
    kind: str = "simulated"
    of: str = ""
    table: bool = True
    words: str = ""

    def __post_init__(self) -> None:
        if not self.words:
            plain = re.sub(r"_per_s$", " per second", self.name)
            plain = plain.removesuffix(f"_{self.unit}") if self.unit else plain
            object.__setattr__(self, "words", plain.replace("_", " "))
        if self.kind not in KINDS or self.better not in ("lower", "higher", ""):
            raise BadValueError(f"The metric {self.name!r} is ill defined.", given=(self.kind, self.better))


@dataclass(frozen=True)
class Chart:
    """A picture worth looking at, drawn from records alone.

    Parameters
    ----------
    kind : str
        ``bars`` (metric by system, or by ``by`` and system), ``pareto`` (``x`` against ``y``), ``sweep`` (``y`` along
        the coordinate ``by``), ``distribution`` (a metric recorded at coordinate ``quantile``), ``timeline`` (a metric
        along coordinate ``by``, usually ``time_s``), ``scatter`` (a metric against coordinate ``by`` of the same unit,
        with the diagonal on which they agree).
    title : str
    x, y : str
        Metric names; all but ``pareto`` use ``y`` alone.
    by : str
        Coordinate of ``at`` that runs along the x axis.
    log : str
        Which axes are logarithmic: ``""``, ``"x"``, ``"y"`` or ``"xy"``.
    says : str
        What to look for: the text alternative begins with it.
    """

    kind: str
    title: str
    y: str
    x: str = ""
    by: str = ""
    log: str = ""
    says: str = ""


class Measurements:
    """What one trial found, before it is stamped with study, system, seed and units."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self.rows: list[tuple[str, float, dict[str, float | str]]] = []
        for metric, value in (values or {}).items():
            self.put(metric, value)

    def put(self, metric: str, value: float, **at: float | str) -> None:
        """Add one figure, at the given coordinates."""
        self.rows.append((metric, float(value), at))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The unit of execution and of resumption."""

    systems: tuple[str, ...]
    seed: int
    # Of a timing study; empty for all cases.
    case: str = ""

    @property
    def key(self) -> str:
        """Return the name under which the trial is recorded."""
        return f"{'+'.join(self.systems)}#{self.seed}" + (f"/{self.case}" if self.case else "")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Base of all studies: settings are fields, everything else is a class attribute."""

    name: ClassVar[str]
    baseline: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    charts: ClassVar[tuple[Chart, ...]] = ()
    default_seeds: ClassVar[int] = 6
    # The metric that decides which system is better, and at most three that say at what cost.
    primary: ClassVar[str] = ""
    secondary: ClassVar[tuple[str, ...]] = ()
    # Metrics that a system with any figure above zero is wrong by, so that it cannot be the answer.
    must_be_zero: ClassVar[tuple[str, ...]] = ()
    # The coordinate that splits the summary table into cases ("keys" in a sorting study); empty for one case.
    cases_by: ClassVar[str] = ""
    # Whether figures that are not measured are the same in every run by their nature, so that one run is enough.
    exact: ClassVar[bool] = False
    # Whether trials must not share the machine: they run one after the other, in this process.
    in_process: ClassVar[bool] = False
    # Whether another system comes first under each seed: the machine may be another one after some minutes of load.
    takes_turns: ClassVar[bool] = False
    # Whether each of several seeds has a process of its own: what a process happens to get is no property of a system.
    process_per_seed: ClassVar[bool] = False
    # Whether it starts its systems by their names, so that only those of the catalog can take part.
    by_name: ClassVar[bool] = False

    def measure(self, system: Any, seed: int) -> Measurements | Mapping[str, float]:
        """Return the figures of one system under one seed; all systems see the same workload for equal seeds."""
        raise WavetankError(f"The study {self.name!r} does not say how to measure.")

    @property
    def rounds_per_replicate(self) -> int:
        """How many consecutive seeds of the records belong to one replicate: the rounds of one process, or 1."""
        return 1

    def decisive(self) -> tuple[str, ...]:
        """Return the primary metric, by which systems are ranked, and those that say at what cost."""
        return (self.primary, *self.secondary)

    def check(self) -> None:
        """Raise a WavetankError when the settings cannot be run; called once before any trial."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the report must know about these settings."""
        return ()

    def opening(self) -> tuple[str, ...]:
        """Return what a user must know before any figure is shown: what was read and what is assumed."""
        return ()

    @classmethod
    def kept(cls, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Return settings given in Python as they can be written into a study file.

        Parameters
        ----------
        settings : mapping
        folder : Path
            Where files are written that hold what was given in memory.
        """
        return dict(settings)

    def data(self) -> Mapping[str, str]:
        """Return name and checksum of every data set or file the settings read."""
        return {}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return the trials in the order in which they are worth running: every system once before the next seed."""
        return [
            Trial(systems=(system,), seed=seed)
            for turn, seed in enumerate(seeds)
            for system in turned(systems, turn if self.takes_turns else 0)
        ]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run one trial.

        Parameters
        ----------
        trial : Trial
        built : mapping
            The trial's systems by name.
        """
        (name,) = trial.systems
        found = self.measure(built[name], trial.seed)
        return self.stamp(name, trial.seed, found if isinstance(found, Measurements) else Measurements(found))

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return the figures that need several trials, from the records of all that are finished; by default none."""
        return []

    def stamp(self, system: str, seed: int, found: Measurements) -> list[Record]:
        """Turn measurements into records with the unit and kind of their metric."""
        metrics = {metric.name: metric for metric in self.metrics}
        records = []
        for name, value, at in found.rows:
            metric = metrics.get(name)
            if metric is None:
                raise WavetankError(f"The study {self.name!r} measured {name!r}, which is not among its metrics.")
            records.append(Record(self.name, system, seed, name, value, metric.unit, metric.kind, at))
        return records


def turned(systems: Sequence[str], turn: int) -> tuple[str, ...]:
    """Return the systems in their order, beginning with another one each turn.

    Parameters
    ----------
    systems : sequence of str
    turn : int
        0 begins with the first.
    """
    first = turn % max(len(systems), 1)
    return (*systems[first:], *systems[:first])


def settings_of(study: Study) -> dict[str, Any]:
    """Return the study's settings as plain values."""
    return {item.name: getattr(study, item.name) for item in dataclasses.fields(study)}


def build_study(kind: type[Study], given: Mapping[str, Any]) -> Study:
    """Build a study from settings given as text (``--set``), TOML values or Python values.

    Parameters
    ----------
    kind : type of Study
    given : mapping
        Values by setting; settings that are not given keep their defaults.

    Raises
    ------
    BadValueError
        If a setting does not exist or its value is not allowed.
    """
    return kind(**check_parameters(kind, given, where=f"study {kind.name}", what="setting"))
