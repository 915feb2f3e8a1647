"""``wavetank diagnose`` for tables of kernels: what binds each, how sure that is, and which kernels it resembles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, by_severity, read
from wavetank.insight.kernels.kernel_similarity import KernelSimilarity
from wavetank.insight.kernels.matches import LEAST_RUNS
from wavetank.insight.kernels.page import kernels_page
from wavetank.insight.kernels.source import KernelSource
from wavetank.settings import check_ranges, setting
from wavetank.workloads.topdown import looks_like_kernels

LABELS = {
    "retiring": "retiring", "frontend": "frontend-bound", "bad speculation": "bad-speculation", "core": "core-bound",
    "memory": "memory-bound",
}  # fmt: skip
_SAYS = {
    "memory": "Memory takes {bound_share} of the slots of {where}, most of it {level} ({level_share})",
    "core": "Execution units take {bound_share} of the slots of {where}",
    "frontend": "{where} waits for instructions in {bound_share} of its slots",
    "bad speculation": "{bound_share} of the slots of {where} go into work that is thrown away",
    "retiring": "{where} retires instructions in {bound_share} of its slots, more than anything else takes",
}
_ADVICE = {
    "memory": "Move fewer bytes: fuse loops over the same arrays, block for the cache that binds, smaller types.",
    "core": "Break chains of dependent operations, vectorise, avoid divisions.",
    "frontend": "Smaller loop bodies, fewer calls, profile-guided layout of the code.",
    "bad speculation": "Make branches that follow data into arithmetic or masks.",
    "retiring": "Fewer instructions: vectorise, hoist what does not change.",
}
_SURE = "; so it is in {holds_share} of the draws of its runs."
_CLEAR = " It resembles {nearest} most, clearly: similarity {similarity} ({similarity_low} to {similarity_high})."
_AMBIGUOUS = (
    " It resembles {nearest} most, similarity {similarity} ({similarity_low} to {similarity_high}), but {set_size} "
    "kernels may be its nearest: {set}."
)
_YASIN = "Yasin, A Top-Down method for performance analysis, ISPASS 2014"
_PAPER = "On Similarity of Computational Kernels in our Codes and Proxies, arXiv 2605.06968"


@dataclass(frozen=True, kw_only=True)
class TopDownDiagnosis:
    """Judges a table of top-down shares, one row a kernel and run."""

    suite: str = setting("", says="Table of the benchmark suite to compare with; empty: the table's other kernels")
    compiler: str = setting("", says="Rows of this compiler alone")
    opt: str = setting("", says="Rows of this optimisation alone")
    variant: str = setting("", says="Rows of this variant alone")
    tuning: str = setting("", says="Rows of this tuning alone")
    problem_size: str = setting("", says="Rows of this problem size alone")
    grave: float = setting(0.5, says="Share of slots lost to one resource from which it is a warning", low=0, high=1)
    threshold: float = setting(0.9, says="Similarity below which a kernel has no counterpart", low=0, high=1)
    rounds: int = setting(200, unit="rounds", says="Of bootstraps over runs", low=10, high=10_000)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a table of top-down shares.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_kernels(head)

    def source(self, path: Path) -> KernelSource:
        """Return the table, read anew.

        Parameters
        ----------
        path : Path
        """
        return KernelSource(
            path, KernelSimilarity().compare, suite=Path(self.suite).expanduser() if self.suite else None,
            wanted=(self.compiler, self.opt, self.variant, self.tuning, self.problem_size),
            threshold=self.threshold, rounds=self.rounds,
        )  # fmt: skip

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what binds each kernel of a table.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError
            If the table cannot be read or lacks a column.
        BadTraceError
            If a value makes no sense.
        """
        source = self.source(path)
        facts = [read(source, name) for name in ("rows", "gaps", "settings", "setting", "kernels", "memory_kernels")]
        known = {source.profiles.names[at] for at in source.known}
        too_little = [
            f"kernel {name}: {runs} runs with all shares, {LEAST_RUNS} are needed."
            if runs < LEAST_RUNS
            else f"kernel {name}: its shares are zero."
            for name, runs in zip(source.profiles.names, source.runs.tolist(), strict=True)
            if name not in known
        ]
        findings: list[Finding] = []
        timed = bool((source.profiles.time_s[source.known] > 0).any())
        comparable = bool(known) and (not source.alone or len(known) > 1) and bool(source.suite.names)
        if known and not comparable:
            too_little.append("There is no other kernel to compare with: name a table of a suite (suite).")
        if timed and comparable:
            facts.append(read(source, "covered_share"))
        for at in source.known:
            findings += self._of_kernel(source, source.profiles.names[at], comparable)
        time = {
            name: -t for name, t in zip(source.profiles.names, source.profiles.time_s.tolist(), strict=True) if t > 0
        }
        findings.sort(key=lambda each: time.get(each.where.removeprefix("kernel "), 0.0))
        diagnosis = Diagnosis(
            subject=path.name,
            kind="topdown",
            facts=tuple(facts),
            findings=by_severity(findings),
            too_little=tuple(too_little),
        )
        return kernels_page(diagnosis, source)

    def _of_kernel(self, source: KernelSource, name: str, comparable: bool) -> list[Finding]:
        resource = str(source.quantity("binding", kernel=name))
        names = ["binding", "bound_share", "holds_share", "margin", "runs"]
        says = _SAYS[resource] + _SURE
        if resource == "memory":
            names += ["level", "level_share"]
        if comparable:
            names += ["nearest", "similarity", "similarity_low", "similarity_high", "set_size", "set"]
            says += _CLEAR if source.quantity("set_size", kernel=name) == 1 else _AMBIGUOUS
        if source.profiles.time_s[source.profiles.names.index(name)] > 0:
            names.append("time_share")
        evidence = {each: read(source, each, kernel=name) for each in names}
        grave = resource != "retiring" and _value(evidence["bound_share"]) >= self.grave
        found = [
            Finding(
                label=LABELS[resource],
                where=f"kernel {name}",
                severity="warning" if grave else "note",
                confidence=_value(evidence["holds_share"]),
                says=says,
                evidence=tuple(evidence.values()),
                advice=_ADVICE[resource],
                sources=(_YASIN, _PAPER),
            )
        ]
        if comparable and _value(evidence["similarity_high"]) < self.threshold:
            found.append(
                Finding(
                    label="no-counterpart",
                    where=f"kernel {name}",
                    severity="note",
                    confidence=1.0,
                    says="No kernel resembles {where}: the nearest, {nearest}, has a similarity of {similarity} "
                    "({similarity_low} to {similarity_high}).",
                    evidence=tuple(evidence[each] for each in ("nearest", "similarity", "similarity_low",
                                                               "similarity_high")),
                    advice="Benchmarks of this table say little about this kernel: measure the kernel itself.",
                    sources=(_PAPER,),
                )
            )  # fmt: skip
        return found


def _value(evidence: Evidence) -> float:
    return float(evidence.value)
