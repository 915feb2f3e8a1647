"""``wavetank diagnose`` for traces of PyTorch's profiler: rules over quantities, with the parts that confirm each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, Severity, by_severity, read
from wavetank.insight.traces.measures import TooLittleError, TraceSource
from wavetank.insight.traces.page import trace_page
from wavetank.settings import check_ranges, setting
from wavetank.workloads.kineto import looks_like_kineto

LABELS = (
    "idle-device", "host-bound", "exposed-communication", "late-rank", "exposed-copies", "short-kernels", "one-kernel",
)  # fmt: skip
_CCL_BENCH = "CCL-Bench 1.0, arXiv 2605.06544"
_FACTS = (
    ("span_s", "s"), ("steps", ""), ("step_s", "s"), ("kernels", ""), ("idle_share", ""), ("communication_share", ""),
    ("hidden_communication_share", ""),
)  # fmt: skip


@dataclass(frozen=True)
class _Rule:
    """A share of a rank that is too large from a setting on."""

    label: str
    share: str
    setting: str
    severity: Severity
    says: str
    advice: str
    beside: tuple[str, ...] = ()


_RULES = (
    _Rule("idle-device", "idle_share", "idle", "warning",
          "No kernel and no copy runs on {where} for {idle_share} of the span; it is so in {holds_share} of its parts.",
          "Look for what the host does meanwhile: loading data, synchronising, starting many kernels."),
    _Rule("host-bound", "host_bound_share", "host_bound", "warning",
          "In {host_bound_share} of the idle time of {where} the call that starts the next kernel was not over yet: "
          "the device waits for the host.",
          "Capture the step as a graph (CUDA graphs, torch.compile), fuse small kernels, remove synchronisation.",
          ("idle_share", "short_kernel_share")),
    _Rule("exposed-communication", "exposed_communication_share", "exposed", "warning",
          "{where} communicates without computing for {exposed_communication_share} of the span; "
          "{communication_share} of the time of kernels is communication, of which computing hides "
          "{hidden_communication_share}. Kernels of communication also wait for peers.",
          "Overlap gradients with the backward pass, use larger buckets, or another split between devices; first see "
          "whether a late rank is what is waited for.",
          ("communication_share", "hidden_communication_share")),
    _Rule("exposed-copies", "exposed_copy_share", "copies", "note",
          "Copies and memsets run on {where} without any kernel for {exposed_copy_share} of the span.",
          "Pin the host's memory, copy on another stream, keep data on the device."),
    _Rule("short-kernels", "short_kernel_share", "short", "note",
          "{short_kernel_share} of the kernels of {where} are shorter than what starting one takes.",
          "Fuse kernels, or capture the step as a graph."),
    _Rule("one-kernel", "largest_kernel_share", "one_kernel", "note",
          "One kernel takes {largest_kernel_share} of the computing time of {where}: {largest_kernel}.",
          "A faster form of this kernel is worth more than anything else.",
          ("largest_kernel",)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KinetoDiagnosis:
    """Judges the traces of PyTorch's profiler, one file or a folder with one file a rank."""

    idle: float = setting(0.2, says="Share of the span without device work from which it is reported", low=0, high=1)
    host_bound: float = setting(0.5, says="Share of idle time that waits for the host, likewise", low=0, high=1)
    exposed: float = setting(0.1, says="Share of the span with communication alone, likewise", low=0, high=1)
    copies: float = setting(0.05, says="Share of the span with copies alone, likewise", low=0, high=1)
    short: float = setting(0.5, says="Share of kernels below 10 us, likewise", low=0, high=1)
    one_kernel: float = setting(0.3, says="Share of computing time of one kernel, likewise", low=0, high=1)
    waiting: float = setting(0.05, says="Share of the span that ranks wait for another, likewise", low=0, high=1)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a trace of the profiler.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_kineto(head)

    def source(self, path: Path) -> TraceSource:
        """Return the traces, read anew.

        Parameters
        ----------
        path : Path
        """
        return TraceSource(path)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file or a folder.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadTraceError
            If a file cannot be read.
        """
        source = self.source(path)
        facts, too_little = [read(source, "ranks")], list[str]()
        findings: list[Finding] = []
        if len(source.traces) > 1:
            facts += self._missing(source, too_little)
        if source.other_files:
            facts += [read(source, "other_files")]
        for rank in sorted(source.traces):
            facts += [read(source, "events", rank=rank)]
            if source.quantity("left_out", rank=rank):
                facts += [read(source, "left_out", rank=rank)]
            try:
                source.rank(rank)
            except TooLittleError as error:
                too_little.append(f"rank {rank}: {error.problem}")
                continue
            for name, unit in _FACTS:
                facts += _had(source, too_little, name, unit, rank)
            for rule in _RULES:
                findings += self._judged(source, rule, rank)
        if len(source.traces) > 1:
            findings += self._late(source, too_little)
        found = by_severity(findings)
        diagnosis = Diagnosis(
            subject=path.name,
            kind="kineto",
            facts=tuple(facts),
            findings=found,
            too_little=tuple(dict.fromkeys(too_little)),
        )
        return trace_page(diagnosis, source)

    def _judged(self, source: TraceSource, rule: _Rule, rank: int) -> Sequence[Finding]:
        least = getattr(self, rule.setting)
        try:
            main = read(source, rule.share, rank=rank)
            if isinstance(main.value, str) or not main.value > 0 or main.value < least:
                return ()
            beside = [read(source, name, rank=rank) for name in rule.beside]
        except TooLittleError:
            return ()
        # What waits for the host is only worth saying where there is much waiting.
        if rule.label == "host-bound" and float(source.quantity("idle_share", rank=rank)) < self.idle:
            return ()
        held = read(source, "holds_share", rank=rank, share=rule.share, least=least)
        return (
            Finding(
                label=rule.label, where=f"rank {rank}", severity=rule.severity, confidence=float(held.value),
                says=rule.says, evidence=(main, *beside, held), advice=rule.advice, sources=(_CCL_BENCH,),
            ),
        )  # fmt: skip

    def _missing(self, source: TraceSource, too_little: list[str]) -> list[Evidence]:
        """Ranks that nobody has a trace of may be those that the others wait for."""
        try:
            missing = read(source, "missing_ranks")
        except TooLittleError as error:
            too_little.append(error.problem)
            return []
        if not missing.value:
            return []
        too_little.append("which rank is late: some ranks of the job have no trace, and may be later than those here")
        return [missing]

    def _late(self, source: TraceSource, too_little: list[str]) -> Sequence[Finding]:
        try:
            last, often = read(source, "last_rank"), read(source, "last_share")
            others = [rank for rank in sorted(source.traces) if rank != last.value]
            waited = max(
                (read(source, "waiting_share", rank=rank) for rank in others), key=lambda each: float(each.value)
            )
        except TooLittleError as error:
            too_little.append(f"which rank is late: {error.problem}")
            return ()
        if float(waited.value) < self.waiting:
            return ()
        return (
            Finding(
                label="late-rank", where=f"rank {last.value}", severity="warning", confidence=float(often.value),
                says="{where} comes last to {last_share} of the collectives that all ranks ran; another rank waits for "
                "the last one for {waiting_share} of the span.",
                evidence=(last, often, waited),
                advice="See what this rank does before: more tokens, a slower device, another job on its host.",
                sources=(_CCL_BENCH,),
            ),
        )  # fmt: skip


def _had(source: TraceSource, too_little: list[str], name: str, unit: str, rank: int) -> list[Evidence]:
    try:
        return [read(source, name, unit, rank=rank)]
    except TooLittleError as error:
        too_little.append(f"rank {rank}: {error.problem}")
        return []
