"""Metrics: functions of a workload card and the traces of a job, each giving a figure, or none with the reason.

Where several ranks have traces, a figure is the mean over ranks unless it says otherwise.  On a GPU the intervals are
those of kernels; for a card whose devices are CPUs, those of ``aten`` operators and of gloo's own ranges.

Overlap has two denominators in circulation: ``compute_comm_overlap`` is the share of communication that is hidden,
``step_overlap`` the share of the span in which both run.  Kernels of collectives wait for peers while they run, so
that no figure here is time on the wire; ``least_communication_share`` holds the least time of a collective over ranks
against the mean.

Source: "CCL-Bench 1.0: A Trace-Based Benchmark for LLM Infrastructure", arXiv 2605.06544, 2026.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadTraceError, BadValueError, unknown_name
from wavetank.insight.metrics.cards import Card
from wavetank.insight.metrics.what_if import makespan_ns
from wavetank.insight.traces.measures import Rank, TooLittleError, TraceSource
from wavetank.platforms import catalog
from wavetank.workloads.intervals import Intervals, common, union, without
from wavetank.workloads.kineto import CALL, COPY, MARK, KernelDetail, KinetoTrace, read_kernel_details

_HOST_COMMUNICATION = re.compile(r"(gloo|nccl|mpi|ucc):", re.IGNORECASE)
_HOST_COMPUTATION = re.compile(r"aten::")
_EXPERTS = re.compile(r"moe|expert|grouped_?gemm|topk_?gating|token_?permute", re.IGNORECASE)
_PREFILL, _DECODE = re.compile(r"prefill", re.IGNORECASE), re.compile(r"decode", re.IGNORECASE)
_DEVICES = MappingProxyType({"nvidia_a100": "A100-SXM-80GB", "nvidia_h100": "H100-SXM"})
_BF16 = ("bf16", "bfloat16", "fp16", "float16")


class Figure(NamedTuple):
    """What a metric says of a run.

    Parameters
    ----------
    value : float or None
        None where it cannot be said.
    unit : str
    reason : str
        Why it cannot be said, or what has to be known about the value.
    """

    value: float | None
    unit: str
    reason: str = ""


class HostRank(Rank):
    """The intervals of a process that computes on its host, of its operators and of ranges of collectives.

    Parameters
    ----------
    trace : KinetoTrace

    Raises
    ------
    TooLittleError
        If it has none.
    """

    def __init__(self, trace: KinetoTrace) -> None:
        talks = np.array([bool(_HOST_COMMUNICATION.match(each)) for each in trace.names], bool)
        computes = np.array([bool(_HOST_COMPUTATION.match(each)) for each in trace.names], bool)
        self.trace, self.starts, self.ends = trace, trace.start_ns, trace.end_ns
        self.talks = talks[trace.name] & np.isin(trace.kind, (CALL, MARK))
        self.kernel = self.device = self.talks | (computes[trace.name] & (trace.kind == CALL))
        if not self.device.any():
            raise TooLittleError("The trace has no operator of the host.", where=str(trace.path))
        self.begin_ns, self.end_ns = int(self.starts[self.device].min()), int(self.ends[self.device].max())


class Job:
    """A card with the traces of its ranks.

    Parameters
    ----------
    card : Card
    source : TraceSource
    """

    def __init__(self, card: Card, source: TraceSource) -> None:
        self.card, self.source = card, source

    @functools.cached_property
    def ranks(self) -> dict[int, Rank]:
        """The intervals of each rank that has any.

        Raises
        ------
        TooLittleError
            If none has.
        """
        kind = self.card.workload.hardware.xpu_spec.type
        found, problem = {}, None
        for number, trace in sorted(self.source.traces.items()):
            try:
                found[number] = HostRank(trace) if (kind or "").upper() == "CPU" else self.source.rank(number)
            except TooLittleError as error:
                problem = problem or error
        if problem and not found:
            raise problem
        return found

    def mean(self, of: Callable[[Rank], float]) -> float:
        """Return the mean over ranks.

        Parameters
        ----------
        of : callable
            Gives the figure of one; ranks for which it raises TooLittleError do not count, unless all do.
        """
        values, problem = [], None
        for rank in self.ranks.values():
            try:
                values.append(of(rank))
            except TooLittleError as error:
                problem = error
        if problem and not values:
            raise problem
        return math.fsum(values) / len(values)


Metric = Callable[[Card, TraceSource], Figure]
_METRICS: dict[str, Metric] = {}


def _metric(unit: str, *needs: str) -> Callable[[Callable[[Job], float | Figure]], Metric]:
    def declared(of: Callable[[Job], float | Figure]) -> Metric:
        @functools.wraps(of)
        def metric(card: Card, source: TraceSource) -> Figure:
            missing = [path for path in needs if card.field(path) in (None, ())]
            if missing:
                return Figure(None, unit, f"the card does not say {', '.join(missing)}")
            try:
                found = of(Job(card, source))
            except TooLittleError as error:
                return Figure(None, unit, error.problem)
            figure = found if isinstance(found, Figure) else Figure(float(found), unit)
            if figure.value is not None and not math.isfinite(figure.value):
                return Figure(None, unit, "the figure is not finite")
            return figure

        _METRICS[of.__name__] = metric
        return metric

    return declared


_STEPS = "steps are not marked: the iterations of the card, divided by the longest gaps"


@_metric("s")
def avg_step_time(job: Job) -> Figure:
    """Mean distance of the starts of marked steps; without marks the card's iterations, divided by the longest gaps."""
    found, flagged = [], False
    for number, trace in sorted(job.source.traces.items()):
        starts = [begin for _, begin, _ in trace.steps]
        if len(starts) < 2 and number in job.ranks:
            starts, flagged = _starts_by_gaps(job, job.ranks[number]), True
        if len(starts) > 1:
            found.append((starts[-1] - starts[0]) / (len(starts) - 1) / 1e9)
    if not found:
        raise TooLittleError("The trace has fewer than two marked steps, and the card no iterations.")
    return Figure(math.fsum(found) / len(found), "s", _STEPS if flagged else "")


def _starts_by_gaps(job: Job, rank: Rank) -> list[int]:
    iterations = job.card.workload.model.iteration
    busy = rank.busy
    if iterations is None or iterations < 2 or busy.starts.size < iterations:
        return []
    gaps = busy.starts[1:] - busy.ends[:-1]
    after = np.sort(np.argsort(-gaps, kind="stable")[: iterations - 1]) + 1
    return [int(busy.starts[0]), *busy.starts[after].tolist()]


@_metric("", "workload.data.batch_size", "workload.data.seq_len", "workload.hardware.xpu_spec.total_count",
         "workload.model.model_arch.num_params", "workload.model.phase")  # fmt: skip
def mfu(job: Job) -> Figure:
    """(6 N tokens + attention) / (step time x peak x devices); N without embeddings, attention 12 l h d s a token."""
    model, data = job.card.workload.model, job.card.workload.data
    devices, sizes = job.card.workload.hardware.xpu_spec, model.model_arch
    if model.phase != "training":
        return Figure(None, "", "the formula is that of training")
    if model.moe and sizes.num_params_active is None:
        return Figure(None, "", "the card does not say workload.model.model_arch.num_params_active")
    peak = _peak_flops(job.card)
    if peak is None:
        return Figure(None, "", "the peak of the device is not known: the card does not say "
                      "workload.hardware.xpu_spec.peak_tflops")  # fmt: skip
    active = (sizes.num_params_active or sizes.num_params or 0) - (sizes.num_params_embedding or 0)
    if active <= 0:
        return Figure(None, "", "the card has no parameters beside embeddings")
    step = avg_step_time(job.card, job.source)
    if not step.value:
        return Figure(None, "", step.reason or "steps take no time")
    per_token, attention = 6.0 * active, ""
    if sizes.num_layers and sizes.num_heads and sizes.head_dim:
        per_token += 12.0 * sizes.num_layers * sizes.num_heads * sizes.head_dim * (data.seq_len or 0)
    else:
        attention = "without attention: the card does not say its sizes"
    tokens = float(data.batch_size or 0) * float(data.seq_len or 0)
    value = per_token * tokens / (step.value * peak * float(devices.total_count or 1))
    return Figure(value, "", "; ".join(filter(None, (step.reason, attention))))


def _peak_flops(card: Card) -> float | None:
    devices = card.workload.hardware.xpu_spec
    if devices.peak_tflops is not None:
        return devices.peak_tflops * 1e12
    name = _DEVICES.get((devices.model or "").lower())
    if name is None or (card.workload.model.precision or "").lower() not in _BF16:
        return None
    return catalog.device(name).bf16_flops_per_s


@_metric("")
def communication_fraction(job: Job) -> float:
    """Union of communication kernels / union of all kernels; they wait for peers, so that this is no time on a wire."""
    return job.mean(lambda rank: rank.communication_share())


@_metric("")
def compute_comm_overlap(job: Job) -> float:
    """Union of communication during which other kernels run / union of communication."""
    return job.mean(lambda rank: rank.hidden_communication_share())


@_metric("")
def step_overlap(job: Job) -> float:
    """Time in which communication and other kernels run at once / span."""
    return job.mean(lambda rank: common(rank.communication, rank.computation).length / _some(rank.span, "span"))


@_metric("")
def exposed_communication(job: Job) -> float:
    """Union of communication during which no other kernel runs / span."""
    return job.mean(lambda rank: rank.exposed_communication_share())


@_metric("")
def idle_fraction(job: Job) -> float:
    """Span without kernel, copy or memset / span."""
    return job.mean(lambda rank: rank.idle_share())


@_metric("")
def compute_fraction(job: Job) -> float:
    """Union of kernels other than communication / span."""
    return job.mean(lambda rank: rank.computation.length / _some(rank.span, "span"))


@_metric("s")
def total_communication_time(job: Job) -> float:
    """Length of the union of communication kernels."""
    return job.mean(lambda rank: rank.communication.length / 1e9)


@_metric("")
def dominant_kernel_concentration(job: Job) -> float:
    """Largest sum of durations of one kernel's name / that of all, communication left out."""
    return job.mean(lambda rank: rank.largest_kernel_share())


@_metric("", "workload.model.moe")
def moe_fraction(job: Job) -> float | Figure:
    """Union of kernels of experts and their gates, by name / union of all kernels."""
    if not job.card.workload.model.moe:
        return Figure(None, "", "the model has no experts")

    def share(rank: Rank) -> float:
        named = np.array([bool(_EXPERTS.search(each)) for each in rank.trace.names], bool)
        which = rank.kernel & named[rank.trace.name]
        return union(rank.starts[which], rank.ends[which]).length / _some(rank.kernels.length, "kernel")

    return job.mean(share)


@_metric("GB/s")
def average_memory_bandwidth(job: Job) -> float:
    """Bytes of copies whose size is known / sum of their durations."""

    def rate(rank: Rank) -> float:
        which = rank.device & (rank.trace.kind == COPY) & (rank.trace.bytes_moved >= 0)
        took = int((rank.ends - rank.starts)[which].sum())
        return float(rank.trace.bytes_moved[which].sum()) / _some(took, "copy with a size and a duration")

    return job.mean(rate)


@_metric("")
def memory_transfer_overhead(job: Job) -> float:
    """Union of copies and memsets during which no kernel runs / span."""
    return job.mean(lambda rank: without(rank.copies, rank.kernels).length / _some(rank.span, "span"))


@_metric("GB/s")
def bus_bandwidth(job: Job) -> Figure:
    """Bytes that collectives of known size carry over the slowest link of a ring / sum of their kernels' durations."""
    carried, took_ns = _carried(job)
    return Figure(carried / took_ns, "GB/s", _WAITS)


@_metric("", "workload.hardware.network_topo.bandwidth_gbps", "workload.hardware.xpu_spec.total_count",
         "workload.hardware.xpu_spec.count_per_node")  # fmt: skip
def bus_bandwidth_utilisation(job: Job) -> Figure:
    """Bus bandwidth / the card's: within a node where the job is on one, else between nodes."""
    hardware = job.card.workload.hardware
    rates, devices = hardware.network_topo.bandwidth_gbps, hardware.xpu_spec
    inside = (devices.total_count or 0) <= (devices.count_per_node or 0)
    if inside and len(rates) < 2:
        return Figure(None, "", "the card does not say the bandwidth within a node")
    carried, took_ns = _carried(job)
    return Figure(carried / took_ns * 8.0 / _some(rates[1 if inside else 0], "bandwidth above zero"), "", _WAITS)


_WAITS = "kernels wait for peers while they run: the wire is at least as fast"
# By what a ring of p ranks multiplies the bytes of a collective on each of its links.
_BUS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "allreduce": lambda p: 2.0 * (p - 1) / p, "allgather": lambda p: (p - 1) / p,
        "reducescatter": lambda p: (p - 1) / p, "alltoall": lambda p: (p - 1) / p, "broadcast": lambda p: 1.0,
        "reduce": lambda p: 1.0,
    }
)  # fmt: skip
_BUS_NAME = re.compile(r"_|-|base$|v$|coalesced|into_tensor|tensor|out$|single$")


def _carried(job: Job) -> tuple[float, float]:
    """Return bytes on the bus and nanoseconds of the collectives of all ranks whose sizes are known."""
    carried = took_ns = 0.0
    for trace in job.source.traces.values():
        for each in _details(trace):
            factor = _BUS.get(_BUS_NAME.sub("", each.collective.lower().strip("_"))) if each.collective else None
            if factor is not None and each.n_bytes is not None and each.ranks is not None:
                carried += each.n_bytes * factor(each.ranks)
                took_ns += each.took_ns
    _some(took_ns, "collective whose type, bytes and group are known")
    return carried, took_ns


def _details(trace: KinetoTrace) -> Sequence[KernelDetail]:
    """Return the details of a trace's kernels, of which none are kept beside its times: the file is read again."""
    try:
        return read_kernel_details(trace.path)
    except BadTraceError as error:
        raise TooLittleError(
            "The file of the trace is no longer there to be read again.", where=str(trace.path)
        ) from error


@_metric("")
def mean_sm_coverage(job: Job) -> float:
    """Threads of a launch over those that the device can hold, at most 1: mean over computing kernels, by duration."""
    covered = took_ns = 0.0
    for trace in job.source.traces.values():
        known = trace.facts.get("deviceProperties")
        device = known[0] if isinstance(known, list) and known and isinstance(known[0], dict) else {}
        room, warp = device.get("maxThreadsPerMultiprocessor"), device.get("warpSize", 32)
        if type(room) is not int or type(warp) is not int or room < 1 or warp < 1:
            continue
        talks = {trace.names[at] for at in np.unique(trace.name[trace.communicates])}
        for each in _details(trace):
            if each.warps_per_unit is not None and each.collective is None and each.name not in talks:
                covered += each.took_ns * min(1.0, each.warps_per_unit * warp / room)
                took_ns += each.took_ns
    return covered / _some(took_ns, "kernel with the size of its launch on a known device")


@_metric("")
def load_imbalance_ratio(job: Job) -> float:
    """Largest computing time of a rank / mean over ranks."""
    lengths = [rank.computation.length for rank in job.ranks.values()]
    if len(lengths) < 2:
        raise TooLittleError("One rank cannot be held against others.")
    return max(lengths) / _some(sum(lengths) / len(lengths), "kernel that computes")


@_metric("")
def straggler(job: Job) -> float:
    """Sum over collectives of the longest computing time of a rank since the last one / sum of the means over ranks."""
    rows = []
    for rank in _alike(job):
        begins = np.sort(rank.starts[rank.talks])
        rows.append(np.diff(_computed_until(rank.computation, begins), prepend=0))
    before = np.array(rows, np.float64)
    return float(before.max(axis=0).sum()) / _some(float(before.mean(axis=0).sum()), "computation before a collective")


@_metric("")
def least_communication_share(job: Job) -> float:
    """Sum over collectives of the least time of any rank / mean over ranks of the sums of their times."""
    rows = []
    for rank in _alike(job):
        at = np.flatnonzero(rank.talks)
        at = at[np.argsort(rank.starts[at], kind="stable")]
        rows.append((rank.ends - rank.starts)[at].astype(np.float64))
    took = np.array(rows)
    return float(took.min(axis=0).sum()) / _some(float(took.sum(axis=1).mean()), "communication that takes time")


def _alike(job: Job) -> list[Rank]:
    """Return the ranks, where all called the same collectives in one order."""
    ranks = list(job.ranks.values())
    if len(ranks) < 2 or len(ranks) < len(job.source.traces):
        raise TooLittleError("One rank cannot be held against others.")
    called = []
    for rank in ranks:
        at = np.flatnonzero(rank.talks)
        at = at[np.argsort(rank.starts[at], kind="stable")]
        called.append([rank.trace.names[each] for each in rank.trace.name[at]])
    if not called[0] or any(each != called[0] for each in called[1:]):
        raise TooLittleError("The ranks did not call the same collectives in one order.")
    return ranks


def _computed_until(computation: Intervals, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of intervals before each of some times."""
    lengths = np.concatenate(([0], np.cumsum(computation.ends - computation.starts)))
    at = np.searchsorted(computation.starts, times, "right")
    whole: NDArray[np.int64] = lengths[at]
    last = np.maximum(at - 1, 0)
    if computation.ends.size:
        whole = whole - np.where(at > 0, np.maximum(computation.ends[last] - times, 0), 0)
    return whole


@_metric("s", "workload.model.phase")
def ttft(job: Job) -> float | Figure:
    """Mean length of the marks of a serving job whose name has prefill in it."""
    return _marked(job, _PREFILL)


@_metric("s", "workload.model.phase")
def tpot(job: Job) -> float | Figure:
    """Mean length of the marks of a serving job whose name has decode in it."""
    return _marked(job, _DECODE)


def _marked(job: Job, word: re.Pattern[str]) -> float | Figure:
    if job.card.workload.model.phase == "training":
        return Figure(None, "s", "a training job answers nobody")
    lengths: list[int] = []
    for trace in job.source.traces.values():
        named = np.array([bool(word.search(each)) for each in trace.names], bool)
        which = named[trace.name] & (trace.kind == MARK) if trace.names else np.zeros(0, bool)
        lengths += (trace.end_ns - trace.start_ns)[which].tolist()
    return math.fsum(lengths) / _some(len(lengths), f"mark of {word.pattern}") / 1e9


@_metric("")
def scale_up_bw_utility(job: Job) -> float:
    """1 - span of the device's time replayed with communication in half the time / span replayed as it was."""

    def gained(rank: Rank) -> float:
        which = rank.device
        given = (rank.starts[which], rank.ends[which], rank.trace.stream[which], rank.talks[which])
        try:
            before = makespan_ns(*given, faster=1.0)
        except BadValueError as error:
            raise TooLittleError(error.problem, where=str(rank.trace.path)) from error
        return 1.0 - makespan_ns(*given, faster=2.0) / _some(before, "kernel that takes time")

    return job.mean(gained)


METRICS: Mapping[str, Metric] = MappingProxyType(_METRICS)
"""All metrics by name; the docstring of each is its definition."""


def figures(card: Card, source: TraceSource, names: Iterable[str] = ()) -> dict[str, Figure]:
    """Return what metrics say of a run.

    Parameters
    ----------
    card : Card
    source : TraceSource
    names : iterable of str
        Of :data:`METRICS`; all when left out.

    Raises
    ------
    UnknownNameError
        If there is no such metric.
    """
    found = {}
    for name in names or METRICS:
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS, hint="see wavetank.insight.metrics.definitions.METRICS")
        found[name] = METRICS[name](card, source)
    return found


def report(card: Card, source: TraceSource) -> dict[str, object]:
    """Return all figures as plain values, with a checksum: the same card and traces give the same one.

    Parameters
    ----------
    card : Card
    source : TraceSource
    """
    found = {name: list(each) for name, each in figures(card, source).items()}
    text = json.dumps([card.written(), sorted(found.items())], sort_keys=True)
    return {"figures": found, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _some(amount: float, what: str) -> float:
    if not amount:
        raise TooLittleError(f"The trace has no {what}.")
    return amount
