"""Studies whose answer is time: systems run interleaved in one process, and ratios are those of one round.

A :class:`TimingStudy` names its cases, returns the call to time and checks its result.  Its class attributes say the
rest: which ``clock`` measures, which ratios between times are recorded (a :class:`Gain` among the metrics), and which
shares of a hardware limit (:data:`SHARE_OF_COPY` and :data:`SHARE_OF_PEAK` among the metrics, or its own).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.errors import BadValueError, GaveUpError, WavetankError
from wavetank.machine.clocks import WallClock
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Measurements, Metric, Study, Trial

# By system, case, or share of a limit.
Seconds = Mapping[str, float]
Limits = Mapping[str, Callable[[], float]]
Figures = Measurements | Mapping[str, float]
_MEANS: Mapping[str, Callable[[Iterable[float]], float]] = {"geometric": statistics.geometric_mean, "least": min}


@dataclass(frozen=True)
class Gain(Metric):
    """A metric that is a ratio of times of the same round: the least time of the rivals / the system's.

    Where ``better`` is ``"lower"``, it is the system's time / the least time of the rivals.  Without a time of any
    rival there is no ratio.

    Parameters
    ----------
    over : tuple of str
        The rivals; of those without a time in a case the others are taken.
    only : tuple of str
        The systems that have the ratio; empty for all.
    but : tuple of str
        Systems that do not have it.
    by_case : bool
        Whether it is recorded for every case.
    mean : str
        What is recorded for a whole round besides: the ``"geometric"`` mean over cases or the ``"least"``; empty for
        nothing.
    cases : tuple of str
        The cases of the mean, which is recorded when the system has the ratio for all of them; empty for all cases
        of the round.
    at : mapping of str to str
        The coordinates at which the mean is recorded.
    """

    better: str = "higher"
    kind: str = "measured"
    over: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    by_case: bool = True
    mean: str = ""
    cases: tuple[str, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean not in ("", *_MEANS) or not self.better or not self.over or not (self.by_case or self.mean):
            raise BadValueError(f"The gain {self.name!r} is ill defined.", given=self.mean, allowed=_MEANS)
        for key in ("over", "only", "but", "cases"):
            if isinstance(getattr(self, key), str):
                # A lone name is a sequence of letters, too.
                raise BadValueError(
                    f"The gain {self.name!r} is ill defined: {key} must be a tuple.", given=getattr(self, key)
                )

    def ratio(self, name: str, times: Seconds) -> float | None:
        """Return the ratio of a system in one case, from the seconds of all; None where it has none."""
        rivals = [times[rival] for rival in self.over if rival in times]
        if name in self.but or (self.only and name not in self.only) or name not in times or not rivals:
            return None
        return times[name] / min(rivals) if self.better == "lower" else min(rivals) / times[name]

    def mean_ratio(self, name: str, times: Mapping[str, Seconds]) -> float | None:
        """Return the mean of a system's ratios over the cases, from the seconds of all by case; None without."""
        ratios = {}
        for case in times[name]:
            found = self.ratio(name, {each: by_case[case] for each, by_case in times.items() if case in by_case})
            if found is not None:
                ratios[case] = found
        wanted = self.cases or tuple(ratios)
        if not self.mean or not wanted or not set(wanted) <= set(ratios):
            return None
        return _MEANS[self.mean](ratios[case] for case in wanted)


SHARE_OF_COPY = Metric(
    "share_of_copy", "", "higher", "measured",
    "(least bytes that the task must move / time) / (bytes that a plain copy moves / its time), same round",
)  # fmt: skip
SHARE_OF_PEAK = Metric(
    "share_of_peak", "", "higher", "measured",
    "(operations the task needs / time) / (rate of a float32 BLAS product), same round",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One input of a timing study.

    Parameters
    ----------
    name : str
        Value of the coordinate ``cases_by``.
    data : object
        What systems are given.
    bytes_moved, flops : float
        The least traffic and arithmetic of the task, for the shares of the hardware limits; NaN when meaningless.
    """

    name: str
    data: Any
    bytes_moved: float = math.nan
    flops: float = math.nan


@dataclass(frozen=True)
class Repeated:
    """A call that does a system's work several times, one after the other: the mean counts as its time."""

    call: Callable[[], object]
    times: int

    def __call__(self) -> object:
        """Do all of it and return the last result."""
        return self.call()


def in_a_row(call: Callable[[], object], times: int) -> Callable[[], object]:
    """Return the function that makes a call so often and returns the last result.

    Parameters
    ----------
    call : callable
        Takes nothing.
    times : int
        1 or more.
    """

    def calls() -> object:
        for _ in range(times - 1):
            call()
        return call()

    return calls


@dataclass(frozen=True, kw_only=True)
class TimingStudy(Study):
    """A study whose answer is time: systems run A B A B ... in one process, after a warm-up.

    Every case is a trial of its own, so that it is shown, and safe from Ctrl-C, as soon as it is done.
    Freed memory stays with the process while it runs, so that systems are not timed on finding fresh pages.  Every
    round gives one ``time_s`` per system and case, its ``time_ratio`` to the baseline's time of the same round, and
    the gains and shares of limits among the metrics.  The number of the round takes the place of the seed, so that
    figures of one round are paired; each seed is a process of its own, and rounds of one process count as one figure.

    ``time_ratio`` and ``time_s`` come first among the metrics of every timing study, without being named there.
    """

    in_process: ClassVar[bool] = True
    process_per_seed: ClassVar[bool] = True
    cases_by: ClassVar[str] = "case"
    primary: ClassVar[str] = "time_s"
    default_seeds: ClassVar[int] = 3
    rest_s: ClassVar[float] = 0.0
    """Seconds between two systems: threads of a BLAS keep a core busy for a while after their last call."""
    from_own_state: ClassVar[bool] = False
    """Whether a system is called once untimed just before it is timed.  Where a call takes a millisecond or two, caches
    and threads as its neighbour in the round left them decide otherwise which of two equal systems is faster."""
    clock: ClassVar[type[WallClock]] = WallClock
    """What measures: :class:`WallClock`, :class:`CpuClock`, or ``wavetank.machine.cuda.DeviceClock``."""

    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        baseline = getattr(cls, "baseline", "its baseline")
        of = f"{cls.clock.measures} of one call (the mean, where calls are repeated), inputs and outputs in memory"
        cls.metrics = (
            Gain("time_ratio", better="lower", of=f"time / time of {baseline} in the same round", over=(baseline,)),
            Metric("time_s", "s", "lower", "measured", of),
            *(each for each in getattr(cls, "metrics", ()) if each.name not in ("time_ratio", "time_s")),
        )

    @property
    def rounds_per_replicate(self) -> int:
        """The rounds of one process, which share its memory pages and its neighbours."""
        return self.rounds

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

    def cases_of(self, trial: Trial) -> Iterable[Case]:
        """Yield the inputs of a trial: one, or all where it names none."""
        return (self.case(trial.case, trial.seed),) if trial.case else self.cases(trial.seed)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the call to time, or a :class:`Repeated`; what it prepares before returning is not timed."""
        raise WavetankError(f"The study {self.name!r} does not say what to time.")

    def verify(self, case: Case, system: str, result: object) -> None:
        """Raise when the warm-up's result is wrong: a fast wrong answer takes no part.

        A :class:`~wavetank.errors.GaveUpError` leaves the system out of this case alone, and its row says so if the
        study has the metric ``gave_up``.
        """

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return what the case is held against, timed once before the rounds and after the systems of each.

        Parameters
        ----------
        case : Case
        clock : WallClock
            The study's.

        Returns
        -------
        mapping of str to callable
            Share, the name of a metric, to the call that returns the seconds in which the hardware's limit allows the
            case to be done; that over the system's time is recorded.  By default ``share_of_copy`` for a case with
            ``bytes_moved`` and ``share_of_peak`` for one with ``flops``.
        """
        found: dict[str, Callable[[], float]] = {}
        if not math.isnan(case.bytes_moved):
            copy = _copy(case.bytes_moved)
            found["share_of_copy"] = lambda: clock.seconds(copy)
        if not math.isnan(case.flops):
            product = _product()
            found["share_of_peak"] = lambda: case.flops * clock.seconds(product) / _PRODUCT_FLOPS
        return found

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> Figures:
        """Return the figures of a system and of its result in the warm-up, recorded once, with the first round."""
        return {}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> Figures:
        """Return further figures of a system in one case and round.

        Figures without coordinates are recorded at the case's.

        Parameters
        ----------
        case : Case
        name : str
            The system.
        times : mapping of str to float
            Seconds of every system that has ended.
        limits : mapping of str to float
            What :meth:`limits` gave in the same round, in seconds.
        """
        return {}

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> Figures:
        """Return further figures of a system that need all cases of one round: system to case to seconds."""
        return {}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial per seed and case: all systems of a case belong into one process."""
        return [Trial(systems=tuple(systems), seed=seed, case=name) for seed in seeds for name in self.case_names(seed)]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Time all systems on the trial's case, or on all cases."""
        with _kept_memory():
            records = [record for case in self.cases_of(trial) for record in self._time(case, trial.seed, built)]
        # Figures of the whole round come when all its cases are done.
        return records if trial.case else [*records, *self.conclude(records)]

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return the figures of whole rounds, once all cases of a round are recorded."""
        times: dict[int, dict[str, dict[str, float]]] = {}
        known = {(record.system, record.seed, record.metric) for record in records if self.cases_by not in record.at}
        for record in records:
            if record.metric == "time_s":
                by_case = times.setdefault(record.seed, {}).setdefault(record.system, {})
                by_case[str(record.at[self.cases_by])] = record.value
        concluded: list[Record] = []
        for number, by_system in times.items():
            wanted = set(self.case_names(number // self.rounds))
            if any(set(by_case) != wanted for by_case in by_system.values()):
                continue
            for name in by_system:
                found = self.figures_of_round(name, by_system)
                found.rows = [row for row in found.rows if (name, number, row[0]) not in known]
                concluded += self.stamp(name, number, found)
        return concluded

    def figures_of_case(self, case: Case, name: str, times: Seconds, limits: Seconds) -> Measurements:
        """Return all figures of a system in one case and round, from what :meth:`case_figures` is given."""
        found = Measurements({"time_s": times[name], **{each: least / times[name] for each, least in limits.items()}})
        for gain in self.metrics:
            if isinstance(gain, Gain) and gain.by_case and (ratio := gain.ratio(name, times)) is not None:
                found.put(gain.name, ratio)
        found.rows += _measurements(self.case_figures(case, name, times, limits)).rows
        return self._at_case(case, found)

    def figures_of_round(self, name: str, times: Mapping[str, Seconds]) -> Measurements:
        """Return all figures of a system in a whole round, from what :meth:`round_figures` is given."""
        found = Measurements()
        for gain in self.metrics:
            if isinstance(gain, Gain) and (mean := gain.mean_ratio(name, times)) is not None:
                found.put(gain.name, mean, **gain.at)
        found.rows += _measurements(self.round_figures(name, times)).rows
        return found

    def _at_case(self, case: Case, found: Measurements) -> Measurements:
        found.rows = [(metric, value, at or {self.cases_by: case.name}) for metric, value, at in found.rows]
        return found

    def _time(self, case: Case, seed: int, built: Mapping[str, Any]) -> list[Record]:
        records: list[Record] = []
        clock = self.clock.of(self)
        # First, or these take the memory that the warm-up leaves behind, and round 0 has to look for fresh pages.
        limits = self.limits(case, clock)
        calls = {name: self.prepared_call(system, case) for name, system in built.items()}
        marks = any(metric.name == "gave_up" for metric in self.metrics)
        for name, system in built.items():
            found = Measurements({"gave_up": 0} if marks else {})
            try:
                result = calls[name]()
                self.verify(case, name, result)
                found.rows += _measurements(self.result_figures(case, name, system, result)).rows
                del result
            except GaveUpError:
                del calls[name]
                found = Measurements({"gave_up": 1} if marks else {})
            records += self.stamp(name, seed * self.rounds, self._at_case(case, found))
        for limit in limits.values():
            limit()
        for number in range(self.rounds):
            times = {}
            for name in in_turns(list(calls), number):
                time.sleep(self.rest_s)
                call = calls[name]
                if self.from_own_state:
                    call()
                times[name] = clock.seconds(call) / (call.times if isinstance(call, Repeated) else 1)
            least = {share: limit() for share, limit in limits.items()}
            for name in times:
                records += self.stamp(name, seed * self.rounds + number, self.figures_of_case(case, name, times, least))
        return records


def _measurements(figures: Figures) -> Measurements:
    return figures if isinstance(figures, Measurements) else Measurements(figures)


@contextlib.contextmanager
def _kept_memory() -> Iterator[None]:
    """Let freed memory stay with the process, as far as the C library has a switch for it.

    Otherwise every large result is fresh memory, and what is timed is how long the system takes to find and clear its
    pages: on a virtual machine up to several times the work itself, and never the same twice.
    """
    mmap_max, trim_threshold, default_mmaps, default_trim = -4, -1, 65536, 128 * 1024
    try:
        library = ctypes.CDLL(None)
        set_option = library.mallopt
    except (OSError, TypeError, AttributeError):
        yield
        return
    set_option(mmap_max, 0)
    set_option(trim_threshold, (1 << 31) - 1)
    try:
        yield
    finally:
        set_option(mmap_max, default_mmaps)
        set_option(trim_threshold, default_trim)
        library.malloc_trim(0)


_PRODUCT_SIDE = 1536
_PRODUCT_FLOPS = 2.0 * _PRODUCT_SIDE**3


def _copy(bytes_moved: float) -> Callable[[], object]:
    """Return a plain copy that moves as many bytes (read plus written) as the task must at least."""
    import numpy as np

    size = max(1, int(bytes_moved) // 2)
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return lambda: np.copyto(target, source)


def _product() -> Callable[[], object]:
    """Return a float32 matrix product, the usual stand-in for the peak arithmetic rate."""
    import numpy as np

    matrix = np.ones((_PRODUCT_SIDE, _PRODUCT_SIDE), np.float32)
    return lambda: matrix @ matrix


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """Return the order in which systems are timed in a round.

    Every second round goes backwards, and every pair of rounds starts with another system: none is always first, and
    none always finds in the caches what the same other one has left there.

    Examples
    --------
    >>> [in_turns(["a", "b", "c"], number) for number in range(3)]
    [['a', 'b', 'c'], ['c', 'b', 'a'], ['b', 'c', 'a']]
    """
    # No system is left where all gave up.
    start = number // 2 % max(len(names), 1)
    order = [*names[start:], *names[:start]]
    return order[::-1] if number % 2 else order
