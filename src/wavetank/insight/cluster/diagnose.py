"""``wavetank diagnose`` for metrics of Prometheus: which nodes are far from their peers, silent, or were restarted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, by_severity, read
from wavetank.insight.cluster.node_history import NodeHistory, TooLittleError
from wavetank.insight.cluster.node_page import history_page
from wavetank.settings import check_ranges, setting
from wavetank.workloads.prometheus import looks_like_range

LABELS = ("odd-node", "odd-metric", "silent-node", "counters-reset")
_REPORT = "From Detection to Recovery, arXiv 2605.09370"
_FACTS = (("nodes", ""), ("metrics", ""), ("times", ""), ("span_s", "s"), ("step_s", "s"), ("missing_share", ""))


@dataclass(frozen=True, kw_only=True)
class PrometheusDiagnosis:
    """Compares nodes with each other in the answer to a range query, saved as JSON."""

    far: float = setting(5.0, says="Decayed distance from peers from which a metric is odd, in standard deviations",
                         low=1, high=10)  # fmt: skip
    lasts_s: float = setting(90.0, unit="s", says="Time for which it must be so", low=0, high=1e6)
    silent_s: float = setting(120.0, unit="s", says="Silence of a node from which it is reported", low=1, high=1e7)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin an answer of Prometheus.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_range(head)

    def source(self, path: Path) -> NodeHistory:
        """Return the metrics, read anew.

        Parameters
        ----------
        path : Path
        """
        return NodeHistory(path)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadTraceError
            If the file cannot be read.
        """
        source = self.source(path)
        facts, too_little, findings = [], list[str](), list[Finding]()
        for name, unit in _FACTS:
            try:
                facts.append(read(source, name, unit))
            except TooLittleError as error:
                too_little.append(error.problem)
        try:
            for node in source.nodes:
                findings += [*self._odd(source, node), *self._silent(source, node), *_reset(source, node)]
        except TooLittleError as error:
            too_little.append(error.problem)
        diagnosis = Diagnosis(subject=path.name, kind="prometheus", facts=tuple(facts), findings=by_severity(findings),
                              too_little=tuple(dict.fromkeys(too_little)))  # fmt: skip
        return history_page(diagnosis, source)

    def _odd(self, source: NodeHistory, node: str) -> Sequence[Finding]:
        rule: dict[str, Any] = {"node": node, "far": self.far, "lasts_s": self.lasts_s}
        odd = read(source, "odd_metrics", **rule)
        if not odd.value:
            return ()
        evidence: list[Evidence] = [odd, read(source, "oddest_metric", **rule)]
        evidence += [
            read(source, name, unit, **rule)
            for name, unit in (("largest_distance", ""), ("odd_s", "s"), ("odd_after_s", "s"), ("value_then", ""),
                               ("peers_then", ""))
        ]  # fmt: skip
        several = int(odd.value) > 1
        return (
            Finding(
                label="odd-node" if several else "odd-metric", where=node,
                severity="critical" if several else "warning",
                confidence=float(source.quantity("odd_confidence", **rule)),
                says="{where} is far from its peers on {odd_metrics} of its metrics, first after {odd_after_s} and for "
                "{odd_s} in all. The oddest is {oddest_metric}: {value_then} where the median of the nodes is "
                "{peers_then}, a decayed distance of {largest_distance} standard deviations.",
                evidence=(*evidence, read(source, "odd_confidence", **rule)),
                advice="Take the node out if it is named again after a restart; look for XIDs and errors of links "
                "around this time.",
                sources=(_REPORT,),
            ),
        )  # fmt: skip

    def _silent(self, source: NodeHistory, node: str) -> Sequence[Finding]:
        longest = read(source, "longest_silence_s", "s", node=node)
        if float(longest.value) < self.silent_s:
            return ()
        share = read(source, "silent_share", node=node)
        return (
            Finding(
                label="silent-node", where=node, severity="warning", confidence=1.0,
                says="{where} reported nothing for {longest_silence_s} while most others did, and for {silent_share} "
                "of the span in all.",
                evidence=(longest, share), advice="See whether the node or its exporter is down.", sources=(_REPORT,),
            ),
        )  # fmt: skip


def _reset(source: NodeHistory, node: str) -> Sequence[Finding]:
    fell = read(source, "counter_resets", node=node)
    # Where most restart together that says nothing of one.
    if not fell.value or 2 * int(source.quantity("nodes_with_resets")) > len(source.nodes):
        return ()
    return (
        Finding(
            label="counters-reset", where=node, severity="note", confidence=1.0,
            says="Counters of {where} fell at {counter_resets} times: the node or an exporter was started again.",
            evidence=(fell,), sources=(_REPORT,),
        ),
    )  # fmt: skip

