"""Quantities of profiler traces, each a definition over intervals of one process's kernels, copies and host calls.

Overlap has two meanings in circulation, and both are here: the share of communication during which the device also
computes, and the share of the whole span.  Communication kernels wait for peers while they run, so that their time is
no time on the wire; with the traces of several ranks the least time of each collective stands beside the mean.

Source: CCL-Bench, arXiv 2605.06544, for the definitions of shares; HolisticTraceAnalysis for the kinds of idle time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.findings import Value
from wavetank.errors import BadTraceError, WavetankError, unknown_name
from wavetank.files import head_of
from wavetank.workloads.intervals import Intervals, common, union, without
from wavetank.workloads.kineto import COPY, FILL, KERNEL, RUNTIME, KinetoTrace, looks_like_kineto, read_kineto

SHORT_NS = 10_000
"""A kernel that is shorter costs about as much to start as to run."""


class TooLittleError(WavetankError):
    """The trace does not hold what a quantity is made of."""


class Rank:
    """The device intervals of one process's trace.

    Parameters
    ----------
    trace : KinetoTrace
    begin_ns, end_ns : int, optional
        Only what happens in this part of the trace.
    """

    def __init__(self, trace: KinetoTrace, begin_ns: int | None = None, end_ns: int | None = None) -> None:
        self.trace = trace
        device = np.isin(trace.kind, (KERNEL, COPY, FILL))
        self.starts, self.ends = trace.start_ns, trace.end_ns
        if begin_ns is not None and end_ns is not None:
            device &= (trace.start_ns < end_ns) & (trace.end_ns > begin_ns)
            self.starts = np.maximum(trace.start_ns, begin_ns)
            self.ends = np.maximum(np.minimum(trace.end_ns, end_ns), self.starts)
        if not device.any():
            raise TooLittleError("The trace has no kernel or copy of a device.", where=str(trace.path))
        self.device = device
        self.kernel = device & (trace.kind == KERNEL)
        self.talks = self.kernel & trace.communicates
        self.begin_ns = int(self.starts[device].min()) if begin_ns is None else begin_ns
        self.end_ns = int(self.ends[device].max()) if end_ns is None else end_ns

    def _union(self, which: NDArray[np.bool_]) -> Intervals:
        return union(self.starts[which], self.ends[which])

    @functools.cached_property
    def busy(self) -> Intervals:
        """When any kernel, copy or memset runs."""
        return self._union(self.device)

    @functools.cached_property
    def kernels(self) -> Intervals:
        """When any kernel runs."""
        return self._union(self.kernel)

    @functools.cached_property
    def communication(self) -> Intervals:
        """When a kernel of a collective or message runs."""
        return self._union(self.talks)

    @functools.cached_property
    def computation(self) -> Intervals:
        """When any other kernel runs."""
        return self._union(self.kernel & ~self.talks)

    @functools.cached_property
    def copies(self) -> Intervals:
        """When a copy or memset runs."""
        return self._union(self.device & ~self.kernel)

    @property
    def span(self) -> int:
        """From the first start to the last end, in nanoseconds."""
        return self.end_ns - self.begin_ns

    def idle_share(self) -> float:
        """(Span - length of the union of kernels, copies and memsets) / span from the first to the last of them."""
        return (self.span - self.busy.length) / _some(self.span, "kernel or copy that takes time", self.trace)

    def communication_share(self) -> float:
        """Union of communication kernels / union of all kernels."""
        return self.communication.length / _some(self.kernels.length, "kernel", self.trace)

    def hidden_communication_share(self) -> float:
        """Length of (union of communication kernels and union of other kernels at once) / communication's length."""
        talked = _some(self.communication.length, "communication kernel", self.trace)
        return common(self.communication, self.computation).length / talked

    def hidden_by_any_share(self) -> float:
        """Length of (union of communication kernels and union of all other device events at once) / communication's."""
        talked = _some(self.communication.length, "communication kernel", self.trace)
        return common(self.communication, self._union(self.device & ~self.talks)).length / talked

    def exposed_communication_share(self) -> float:
        """Length of communication kernels' union without that of other kernels / span."""
        alone = without(self.communication, self.computation).length
        return alone / _some(self.span, "kernel or copy that takes time", self.trace)

    def exposed_copy_share(self) -> float:
        """Length of copies' and memsets' union without that of kernels / span."""
        alone = without(self.copies, self.kernels).length
        return alone / _some(self.span, "kernel or copy that takes time", self.trace)

    def short_kernel_share(self) -> float:
        """Kernels of less than 10 us / kernels."""
        took = self.trace.end_ns[self.kernel] - self.trace.start_ns[self.kernel]
        return float((took < SHORT_NS).sum()) / _some(took.size, "kernel", self.trace)

    def host_bound_share(self) -> float:
        """Of idle time: from a gap's start to when the call ended that started what ends the gap / length of gaps."""
        gaps = without(union([self.begin_ns], [self.end_ns]), self.busy)
        at, calls = np.flatnonzero(self.device), np.flatnonzero(self.trace.kind == RUNTIME)
        calls = calls[self.trace.correlation[calls] >= 0]
        if not gaps.starts.size or not calls.size:
            raise TooLittleError("The trace has no gap or no call of the runtime.", where=str(self.trace.path))
        # What ends a gap is the first device event that starts at its end.
        at = at[np.argsort(self.starts[at], kind="stable")]
        after = at[np.minimum(np.searchsorted(self.starts[at], gaps.ends), at.size - 1)]
        ended = self.starts[after] == gaps.ends
        order = np.argsort(self.trace.correlation[calls], kind="stable")
        known = self.trace.correlation[calls][order]
        place = np.minimum(np.searchsorted(known, self.trace.correlation[after]), known.size - 1)
        found = ended & (known[place] == self.trace.correlation[after])
        if not found.any():
            raise TooLittleError("No device event names the call that started it.", where=str(self.trace.path))
        called = self.trace.end_ns[calls][order][place]
        late = np.clip(np.minimum(called, gaps.ends) - gaps.starts, 0, None)[found]
        return float(late.sum()) / float((gaps.ends - gaps.starts)[found].sum())

    def largest_kernel(self) -> str:
        """Name of the kernel with the largest sum of durations, communication left out."""
        return self.trace.names[self._largest()[0]]

    def largest_kernel_share(self) -> float:
        """Sum of that kernel's durations / sum of all kernels' durations, communication left out."""
        return self._largest()[1]

    def _largest(self) -> tuple[int, float]:
        which = self.kernel & ~self.talks
        took = (self.ends - self.starts)[which].astype(np.float64)
        total = np.bincount(self.trace.name[which], took, len(self.trace.names))
        _some(float(total.sum()), "kernel that computes", self.trace)
        return int(total.argmax()), float(total.max() / total.sum())


SHARES = (
    "idle_share", "communication_share", "hidden_communication_share", "hidden_by_any_share",
    "exposed_communication_share", "exposed_copy_share", "short_kernel_share", "host_bound_share",
    "largest_kernel_share",
)  # fmt: skip
"""The quantities of a rank that are shares of something."""


def _some(amount: float, what: str, trace: KinetoTrace) -> float:
    if not amount:
        raise TooLittleError(f"The trace has no {what}.", where=str(trace.path))
    return amount


class TraceSource:
    """The traces of one job, one file a rank, as quantities by name.

    Parameters
    ----------
    path : Path
        A file, or a folder with the files of several ranks.

    Raises
    ------
    BadTraceError
        If a file cannot be read, or two files of a folder are of the same rank.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces: dict[int, KinetoTrace] = {}
        files = files_of(path)
        if path.is_dir():
            # Jobs keep settings and figures beside their traces.
            files = [each for each in files if looks_like_kineto(head_of(each))]
        self.other_files = len(files_of(path)) - len(files)
        for number, file in enumerate(files):
            trace = read_kineto(file)
            rank = trace.rank if trace.rank is not None else number
            if rank in self.traces:
                raise BadTraceError(
                    "Two files are of the same rank.", given=f"rank {rank}", where=f"{self.traces[rank].path}, {file}",
                    hint="keep one run in one folder",
                )  # fmt: skip
            self.traces[rank] = trace
        if not self.traces:
            raise BadTraceError(
                "The folder has no trace.", given=str(path), allowed="files that end in .json or .json.gz"
            )
        self._ranks: dict[int, Rank] = {}

    def rank(self, rank: int) -> Rank:
        """Return the intervals of a rank, whole.

        Parameters
        ----------
        rank : int

        Raises
        ------
        TooLittleError
            If it has no device event.
        """
        if rank not in self._ranks:
            self._ranks[rank] = Rank(self._trace(rank))
        return self._ranks[rank]

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity by its name.

        Parameters
        ----------
        name : str
            One of :data:`QUANTITIES`.
        **of : value
            Its arguments: ``rank`` for all but those of several ranks.

        Raises
        ------
        TooLittleError
            If the trace does not hold what it is made of.
        UnknownNameError
            If there is no such quantity.
        """
        if name not in QUANTITIES:
            raise unknown_name("quantity", name, QUANTITIES, hint="see wavetank.insight.traces.measures")
        return QUANTITIES[name](self, **of)

    def how(self, name: str) -> str:
        """Return how a quantity is read from the trace.

        Parameters
        ----------
        name : str
        """
        return (QUANTITIES[name].__doc__ or "").strip().rstrip(".")

    def parts(self, rank: int) -> list[tuple[int, int]]:
        """Return the parts by which a finding is confirmed: the marked steps, or eighths of the span.

        Parameters
        ----------
        rank : int
        """
        whole = self.rank(rank)
        steps = [(begin, end) for _, begin, end in self._trace(rank).steps if end > begin]
        steps = [each for each in steps if whole.begin_ns < each[1] and each[0] < whole.end_ns]
        if len(steps) > 1:
            return steps
        edges = np.linspace(whole.begin_ns, whole.end_ns, 9).astype(np.int64).tolist()
        return [(a, b) for a, b in itertools.pairwise(edges) if b > a]

    def _trace(self, rank: int) -> KinetoTrace:
        try:
            return self.traces[rank]
        except (KeyError, TypeError) as error:
            raise BadTraceError(
                "There is no trace of this rank.", given=rank, allowed=map(str, sorted(self.traces))
            ) from error


def files_of(path: Path) -> Sequence[Path]:
    """Return the traces of a folder in the order of their names, or the file itself.

    Parameters
    ----------
    path : Path
    """
    if not path.is_dir():
        return (path,)
    return sorted(each for each in path.iterdir() if each.name.endswith((".json", ".json.gz")) and each.is_file())


def _of_rank(name: str) -> Callable[..., Value]:
    method = getattr(Rank, name)

    def quantity(source: TraceSource, rank: int) -> Value:
        found: Value = method(source.rank(rank))
        return found

    quantity.__doc__ = method.__doc__
    return quantity


def _ranks(source: TraceSource) -> int:
    """Files of ranks that were read."""
    return len(source.traces)


def _missing_ranks(source: TraceSource) -> int:
    """Ranks of the job, by the sizes that the files name, without a file."""
    worlds = {trace.world for trace in source.traces.values() if trace.world is not None}
    if len(worlds) > 1:
        raise TooLittleError("The files are of jobs of different sizes.", where=str(source.path))
    return max(0, max(worlds, default=0) - len(source.traces))


def _other_files(source: TraceSource) -> int:
    """Files of the folder that end in .json and are no traces."""
    return source.other_files


def _events(source: TraceSource, rank: int) -> int:
    """Complete events (ph X) of the file that could be used."""
    return int(source._trace(rank).start_ns.size)


def _left_out(source: TraceSource, rank: int) -> int:
    """Complete events of the file that could not be used."""
    return sum(source._trace(rank).left_out.values())


def _kernels(source: TraceSource, rank: int) -> int:
    """Events of category kernel."""
    return int(source.rank(rank).kernel.sum())


def _span(source: TraceSource, rank: int) -> float:
    """From the first start to the last end of a kernel, copy or memset."""
    return source.rank(rank).span / 1e9


def _steps(source: TraceSource, rank: int) -> int:
    """Annotations ProfilerStep#N of the host, each number once."""
    return len(source._trace(rank).steps)


def _step_time(source: TraceSource, rank: int) -> float:
    """(start of the last marked step - start of the first) / (steps - 1)."""
    steps = source._trace(rank).steps
    if len(steps) < 2:
        raise TooLittleError("The trace has fewer than two marked steps.", where=str(source._trace(rank).path))
    return (steps[-1][1] - steps[0][1]) / (len(steps) - 1) / 1e9


def _holds(source: TraceSource, rank: int, share: str, least: float) -> float:
    """Parts (marked steps, or eighths of the span) in which the share is at least that / parts that have it."""
    if share not in SHARES:
        raise unknown_name("share", share, SHARES)
    found = []
    for begin, end in source.parts(rank):
        try:
            found.append(getattr(Rank(source._trace(rank), begin, end), share)() >= least)
        except TooLittleError:
            continue
    return sum(found) / len(found) if found else 0.0


def _matched(source: TraceSource) -> NDArray[np.float64]:
    """Return the durations of communication kernels, a row a rank, a column for what all ranks ran in one order."""
    rows, called = [], []
    for rank in sorted(source.traces):
        of = source.rank(rank)
        at = np.flatnonzero(of.talks)
        at = at[np.argsort(of.starts[at], kind="stable")]
        rows.append((of.ends - of.starts)[at].astype(np.float64))
        called.append([of.trace.names[each] for each in of.trace.name[at]])
    if len(rows) < 2:
        raise TooLittleError("One rank cannot be held against others.", where=str(source.path))
    if not called[0] or any(each != called[0] for each in called[1:]):
        raise TooLittleError("The ranks did not run the same collectives in one order.", where=str(source.path))
    return np.array(rows)


def _waiting(source: TraceSource, rank: int) -> float:
    """Sum over collectives of (this rank's time - the least of all ranks) / span; ranks run the same collectives."""
    durations = _matched(source)
    row = sorted(source.traces).index(rank)
    return float((durations[row] - durations.min(axis=0)).sum()) / source.rank(rank).span


def _least_communication(source: TraceSource) -> float:
    """Sum over collectives of the least time of any rank / the mean over ranks of the sum of their times."""
    durations = _matched(source)
    return float(durations.min(axis=0).sum() / durations.sum(axis=1).mean())


def _last_rank(source: TraceSource) -> int:
    """Rank whose communication kernels are the shortest of all most often: the others wait for it."""
    durations = _matched(source)
    return sorted(source.traces)[int(np.bincount(durations.argmin(axis=0), minlength=durations.shape[0]).argmax())]


def _last_share(source: TraceSource) -> float:
    """Collectives in which that rank's kernel is the shortest / collectives."""
    durations = _matched(source)
    return float(np.bincount(durations.argmin(axis=0)).max() / durations.shape[1])


QUANTITIES: Mapping[str, Callable[..., Value]] = {
    "ranks": _ranks, "missing_ranks": _missing_ranks, "other_files": _other_files,
    "events": _events, "left_out": _left_out, "kernels": _kernels, "span_s": _span, "steps": _steps,
    "step_s": _step_time, "holds_share": _holds, "waiting_share": _waiting, "last_rank": _last_rank,
    "last_share": _last_share, "least_communication_share": _least_communication,
    "largest_kernel": _of_rank("largest_kernel"),
    **{name: _of_rank(name) for name in SHARES},
}  # fmt: skip
"""What can be asked of a source, by name; the text below each function is how it is read."""
