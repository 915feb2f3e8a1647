"""Studies: one question put to several systems on the same workload and platform.

A study is a frozen dataclass.  Its docstring is the question, its fields are the settings (they become ``--set`` keys),
its class attributes name the systems, the baseline, the metrics and the charts worth looking at, and
``measure(system, seed)`` answers for one system and one seed.  :class:`TimingStudy` is the same for questions whose
answer is wall time: its contenders run interleaved in one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError, GaveUpError, WavetankError
from wavetank.records import KINDS, Record
from wavetank.settings import check_parameters, setting


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
    """

    name: str
    unit: str = ""
    better: str = ""
    kind: str = "simulated"
    of: str = ""
    table: bool = True

    def __post_init__(self) -> None:
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
    systems: ClassVar[tuple[str, ...]]
    baseline: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    charts: ClassVar[tuple[Chart, ...]] = ()
    default_seeds: ClassVar[int] = 5
    # The coordinate that splits the summary table into cases ("keys" in a sorting study); empty for one case.
    cases_by: ClassVar[str] = ""
    # Trials of a timing study must not share the machine, so they never leave this process.
    in_process: ClassVar[bool] = False

    def measure(self, system: Any, seed: int) -> Measurements | Mapping[str, float]:
        """Return the figures of one system under one seed; all systems see the same workload for equal seeds."""
        raise WavetankError(f"The study {self.name!r} does not say how to measure.")

    def check(self) -> None:
        """Raise a WavetankError when the settings cannot be run; called once before any trial."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the report must know about these settings."""
        return ()

    def data(self) -> Mapping[str, str]:
        """Return name and checksum of every data set or file the settings read."""
        return {}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return the trials in the order in which they are worth running: every system once before the next seed."""
        return [Trial(systems=(system,), seed=seed) for seed in seeds for system in systems]

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


@dataclass(frozen=True)
class Case:
    """One input of a timing study.

    Parameters
    ----------
    name : str
        Value of the coordinate ``cases_by``.
    data : object
        What contenders are given.
    bytes_moved, flops : float
        The least traffic and arithmetic of the task, for the shares of the hardware limits; NaN when meaningless.
    """

    name: str
    data: Any
    bytes_moved: float = math.nan
    flops: float = math.nan


@dataclass(frozen=True, kw_only=True)
class TimingStudy(Study):
    """A study whose answer is wall time: contenders run A B A B ... in one process, after a warm-up.

    Every case is a trial of its own, so that it is shown, and safe from Ctrl-C, as soon as it is done.
    Freed memory stays with the process while it runs, so that contenders are not timed on finding fresh pages.  Every
    round gives one ``time_s`` a contender and case, its ``time_ratio`` to the baseline's time of the same round,
    and the shares of the copy bandwidth and of the peak arithmetic rate, both measured in the same round.  The number
    of the round takes the place of the seed, so that figures of one round are paired.
    """

    in_process: ClassVar[bool] = True
    cases_by: ClassVar[str] = "case"
    default_seeds: ClassVar[int] = 1
    rest_s: ClassVar[float] = 0.0
    """Seconds between two contenders: threads of a BLAS keep a core busy for a while after their last call."""
    timing_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_ratio", "", "lower", "measured", "time of the contender / time of the baseline in the same round"),
        Metric("time_s", "s", "lower", "measured", "wall time of one call, inputs and outputs in memory"),
        Metric(
            "share_of_copy",
            "",
            "higher",
            "measured",
            "(least bytes the task must move / time) / (bytes a plain copy moves / its time), same round",
        ),
        Metric(
            "share_of_peak",
            "",
            "higher",
            "measured",
            "(operations the task needs / time) / (rate of a float32 BLAS product), same round",
        ),
    )

    rounds: int = setting(5, says="interleaved rounds after the warm-up", low=1, high=1000)

    def cases(self, seed: int) -> Iterable[Case]:
        """Yield the inputs, one at a time so that only one is in memory.

        A study says what its inputs are with this alone or, where making one takes long, with :meth:`case_names` and
        :meth:`case`.
        """
        for name in self.case_names(seed):
            yield self.case(name, seed)

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the names of the inputs, in the order in which they are worth running."""
        self._check_cases()
        return [case.name for case in self.cases(seed)]

    def case(self, name: str, seed: int) -> Case:
        """Return the input of that name."""
        self._check_cases()
        for case in self.cases(seed):
            if case.name == name:
                return case
        raise WavetankError(f"The study {self.name!r} has no case {name!r}.", allowed=self.case_names(seed))

    def _check_cases(self) -> None:
        if type(self).cases is TimingStudy.cases:
            raise WavetankError(f"The study {self.name!r} names no cases.")

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the call to time; what it prepares before returning is not timed."""
        raise WavetankError(f"The study {self.name!r} does not say what to time.")

    def verify(self, case: Case, system: str, result: object) -> None:
        """Raise when the warm-up's result is wrong: a fast wrong answer is not a contender.

        A :class:`~wavetank.errors.GaveUpError` leaves the contender out of this case alone, and its row says so if the
        study has the metric ``gave_up``.
        """

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> Mapping[str, Measurements]:
        """Return the figures that need all contenders or all cases of one round.

        Called with a single case when that is done, for figures at the case's coordinate, and with all of them when
        the last one is, for figures of the whole round.

        Parameters
        ----------
        times : dict
            Contender to case to seconds.
        copies : dict
            Case to the seconds of a plain copy of the same traffic; NaN without ``bytes_moved``.
        """
        return {}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial a seed and case: all contenders of a case belong into one process."""
        return [Trial(systems=tuple(systems), seed=seed, case=name) for seed in seeds for name in self.case_names(seed)]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Time all contenders on the trial's case, or on all cases."""
        with _kept_memory():
            return self._rounds(trial, built)

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return the figures of whole rounds, once all cases of a round are recorded."""
        times: dict[int, dict[str, dict[str, float]]] = {}
        copies: dict[int, dict[str, float]] = {}
        known = {(record.system, record.seed, record.metric) for record in records if self.cases_by not in record.at}
        took = {
            (record.system, record.seed, str(record.at[self.cases_by])): record.value
            for record in records
            if record.metric == "time_s" and self.cases_by in record.at
        }
        for (system, number, case), seconds in took.items():
            times.setdefault(number, {}).setdefault(system, {})[case] = seconds
            copies.setdefault(number, {}).setdefault(case, math.nan)
        for record in records:
            if record.metric == "share_of_copy" and self.cases_by in record.at:
                case = str(record.at[self.cases_by])
                copies[record.seed][case] = record.value * took[record.system, record.seed, case]
        concluded: list[Record] = []
        for number, by_system in times.items():
            wanted = set(self.case_names(number // self.rounds))
            if any(set(by_case) != wanted for by_case in by_system.values()):
                continue
            for name, found in self.derive(by_system, copies[number]).items():
                found.rows = [
                    (metric, value, at)
                    for metric, value, at in found.rows
                    if self.cases_by not in at and (name, number, metric) not in known
                ]
                concluded += self.stamp(name, number, found)
        return concluded

    def _gave_up(
        self, trial: Trial, case: Case, built: Mapping[str, Any], calls: Mapping[str, Callable[[], object]]
    ) -> list[Record]:
        """Return for each contender, in the first round, whether it ended without an answer."""
        if all(metric.name != "gave_up" for metric in self.metrics):
            return []
        records: list[Record] = []
        for name in built:
            found = Measurements()
            found.put("gave_up", name not in calls, **{self.cases_by: case.name})
            records += self.stamp(name, trial.seed * self.rounds, found)
        return records

    def _rounds(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        records: list[Record] = []
        times: list[dict[str, dict[str, float]]] = [{name: {} for name in built} for _ in range(self.rounds)]
        copies: list[dict[str, float]] = [{} for _ in range(self.rounds)]
        for case in (self.case(trial.case, trial.seed),) if trial.case else self.cases(trial.seed):
            # First, or these take the memory that the warm-up leaves behind, and round 0 has to look for fresh pages.
            copy, product = _Copy(case.bytes_moved), _Product(case.flops)
            calls = {name: self.contender(system, case) for name, system in built.items()}
            for name, call in list(calls.items()):
                try:
                    self.verify(case, name, call())
                except GaveUpError:
                    del calls[name]
            records += self._gave_up(trial, case, built, calls)
            copy.seconds()
            product.flops_per_s()
            for number in range(self.rounds):
                for name in in_turns(list(calls), number):
                    time.sleep(self.rest_s)
                    times[number][name][case.name] = _timed(calls[name])
                copies[number][case.name] = copy.seconds()
                peak = product.flops_per_s()
                for name in calls:
                    took = times[number][name][case.name]
                    base = times[number].get(self.baseline, {}).get(case.name, math.nan)
                    found = Measurements({"time_s": took, "time_ratio": took / base})
                    if not math.isnan(case.bytes_moved):
                        found.put("share_of_copy", copies[number][case.name] / took)
                    if not math.isnan(case.flops):
                        found.put("share_of_peak", case.flops / took / peak)
                    found.rows = [(metric, value, {self.cases_by: case.name}) for metric, value, _ in found.rows]
                    records += self.stamp(name, trial.seed * self.rounds + number, found)
        for number in range(self.rounds):
            for name, found in self.derive(times[number], copies[number]).items():
                if trial.case:
                    # Figures of the whole round come when all its cases are done.
                    found.rows = [row for row in found.rows if self.cases_by in row[2]]
                records += self.stamp(name, trial.seed * self.rounds + number, found)
        return records


@contextlib.contextmanager
def _kept_memory() -> Iterator[None]:
    """Let freed memory stay with the process, as far as the C library can be told.

    Otherwise every large result is fresh memory, and what is timed is how long the system takes to find and clear its
    pages: on a virtual machine up to several times the work itself, and never the same twice.
    """
    mmap_max, trim_threshold, default_mmaps, default_trim = -4, -1, 65536, 128 * 1024
    try:
        library = ctypes.CDLL(None)
        tell = library.mallopt
    except (OSError, TypeError, AttributeError):
        yield
        return
    tell(mmap_max, 0)
    tell(trim_threshold, (1 << 31) - 1)
    try:
        yield
    finally:
        tell(mmap_max, default_mmaps)
        tell(trim_threshold, default_trim)
        library.malloc_trim(0)


class _Copy:
    """A plain copy that moves as many bytes (read plus written) as the task must at least."""

    def __init__(self, bytes_moved: float) -> None:
        import numpy as np

        size = 0 if math.isnan(bytes_moved) else max(1, int(bytes_moved) // 2)
        self._source = np.ones(size, np.uint8)
        self._target = np.zeros(size, np.uint8)

    def seconds(self) -> float:
        import numpy as np

        return _timed(lambda: np.copyto(self._target, self._source)) if self._source.size else math.nan


class _Product:
    """A float32 matrix product, the usual stand-in for the peak arithmetic rate."""

    SIDE = 1536

    def __init__(self, flops: float) -> None:
        import numpy as np

        self._matrix = None if math.isnan(flops) else np.ones((self.SIDE, self.SIDE), np.float32)

    def flops_per_s(self) -> float:
        matrix = self._matrix
        return math.nan if matrix is None else 2.0 * self.SIDE**3 / _timed(lambda: matrix @ matrix)


def _timed(call: Callable[[], object]) -> float:
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        kept = call()
        took = time.perf_counter() - start
        del kept
        return took
    finally:
        if enabled:
            gc.enable()


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """Return the order in which contenders are timed in a round.

    Every second round goes backwards, and every pair of rounds starts with another contender: none is always first, and
    none always finds in the caches what the same other one has left there.

    Examples
    --------
    >>> [in_turns(["a", "b", "c"], number) for number in range(3)]
    [['a', 'b', 'c'], ['c', 'b', 'a'], ['b', 'c', 'a']]
    """
    start = number // 2 % len(names)
    order = [*names[start:], *names[:start]]
    return order[::-1] if number % 2 else order


def settings_of(study: Study) -> dict[str, Any]:
    """Return the study's settings as plain values."""
    return {item.name: getattr(study, item.name) for item in dataclasses.fields(study)}


def build_study(kind: type[Study], given: Mapping[str, Any]) -> Study:
    """Build a study from settings given as text (``--set``), TOML values or Python values.

    Raises
    ------
    BadValueError
        If a setting does not exist or its value is not allowed.
    """
    return kind(**check_parameters(kind, given, where=f"study {kind.name}", what="setting"))
