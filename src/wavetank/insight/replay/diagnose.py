"""``wavetank diagnose`` for Chakra traces: what keeps them from being replayed, else what their replay waits for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, by_severity, read
from wavetank.insight.replay.checks import LABELS as PROBLEMS
from wavetank.insight.replay.checks import Problem
from wavetank.insight.replay.measures import ChakraSource, NoReplayError
from wavetank.insight.replay.page import replay_page
from wavetank.insight.replay.reading import looks_like_chakra
from wavetank.settings import check_ranges, setting

LABELS = (*PROBLEMS, "communication-bound", "host-bound", "one-operation", "late-rank")
_CHAKRA = "MLCommons Chakra, arXiv 2605.11333"
_MOST_OF_A_LABEL = 3
_FACTS = (
    ("makespan_s", "s"), ("path_nodes", ""), ("path_computation_share", ""), ("path_communication_share", ""),
    ("path_host_share", ""), ("path_link_wait_share", ""),
)  # fmt: skip
_ADVICE = {
    "duplicate-node": "Give each node an identity of its own; two merged traces often share theirs.",
    "dangling-dependency": "Keep the node that is waited for, or drop the dependency: a converter lost one of the two.",
    "cycle": "A call around a call is no dependency: the converter took nesting for order.",
    "bad-node": "Convert the host trace first, with the profile of the same step, or mend the node.",
    "mismatched-collective": "Look at what this rank does right before: a branch that the others do not take, another "
    "shape of its data, an exception that was caught.",
    "unmatched-message": "Look for the side that is missing: another tag, another peer, a trace that was cut off.",
    "deadlock": "Let all ranks call the collectives of their groups in one order.",
}


@dataclass(frozen=True, kw_only=True)
class ChakraDiagnosis:
    """Judges Chakra traces, one file or a folder with one file a rank.

    What has a recorded duration keeps it; collectives and messages without one take what ``alpha_s`` and
    ``bytes_per_s`` say, computation without one what ``flops_per_s`` says.
    """

    communication: float = setting(
        0.2, says="Share of communication on the critical path from which it is reported", low=0, high=1
    )
    host: float = setting(0.5, says="Share of the host on the critical path, likewise", low=0, high=1)
    one_operation: float = setting(0.3, says="Share of one name on the critical path, likewise", low=0, high=1)
    waiting: float = setting(0.05, says="Share of the replay that a rank waits for another, likewise", low=0, high=1)
    alpha_s: float = setting(1e-6, unit="s", says="What a message takes before its first byte", low=0, high=1)
    bytes_per_s: float = setting(100e9, unit="bytes/s", says="Between two ranks", low=1, high=1e15)
    flops_per_s: float = setting(1e14, unit="flop/s", says="Of a rank", low=1, high=1e21)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a Chakra trace.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_chakra(path, head)

    def source(self, path: Path) -> ChakraSource:
        """Return the traces, read anew.

        Parameters
        ----------
        path : Path
        """
        return ChakraSource(path, alpha_s=self.alpha_s, bytes_per_s=self.bytes_per_s, flops_per_s=self.flops_per_s)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file or a folder.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError, BadTraceError
            If a file cannot be read, or ranks are missing.
        """
        source = self.source(path)
        facts = [read(source, name) for name in ("ranks", "form", "all_nodes", "collectives")]
        findings: list[Finding] = []
        too_little: list[str] = []
        if source.traces[0].form == "nodes":
            too_little.append("host traces hold calls without durations; convert them with the profile of their step")
        elif source.problems:
            findings = _broken(source)
            facts.append(read(source, "problems"))
            too_little.append("what the replay waits for: it cannot be run before this is mended")
        else:
            try:
                facts += [read(source, name, unit) for name, unit in _FACTS]
                findings = self._judged(source)
            except NoReplayError as error:
                too_little.append(f"{error.problem} {error.given or ''}".strip())
            facts += _had(source, "unrecorded_share")
        diagnosis = Diagnosis(
            subject=path.name, kind="chakra", facts=tuple(facts), findings=by_severity(findings),
            too_little=tuple(too_little),
        )  # fmt: skip
        return replay_page(diagnosis, source)

    def _judged(self, source: ChakraSource) -> list[Finding]:
        found: list[Finding] = []
        path = "the critical path"
        talk, work, host = (read(source, f"path_{kind}_share") for kind in ("communication", "computation", "host"))
        if float(talk.value) >= self.communication and float(talk.value) > 0:
            found.append(
                Finding(
                    label="communication-bound", where=path, severity="warning", confidence=1.0,
                    says="Communication is {path_communication_share} of {where}, computation "
                    "{path_computation_share}.",
                    evidence=(talk, work, *_had(source, "unrecorded_share")),
                    advice="More bandwidth helps by at most this share; hide it behind computation, or send less.",
                    sources=(_CHAKRA,),
                )
            )  # fmt: skip
        if float(host.value) >= self.host and float(work.value) > 0:
            found.append(
                Finding(
                    label="host-bound", where=path, severity="warning", confidence=1.0,
                    says="The host is {path_host_share} of {where}, devices {path_computation_share}.",
                    evidence=(host, work),
                    advice="Start fewer kernels, capture the step as a graph, remove synchronisation.",
                    sources=(_CHAKRA,),
                )
            )  # fmt: skip
        name, share = read(source, "largest_node"), read(source, "largest_node_share")
        if float(share.value) >= self.one_operation and source.path_of.operations.size > 1:
            found.append(
                Finding(
                    label="one-operation", where=path, severity="note", confidence=1.0,
                    says="One operation takes {largest_node_share} of {where}: {largest_node}.",
                    evidence=(share, name), advice="A faster form of it is worth more than anything else.",
                    sources=(_CHAKRA,),
                )
            )  # fmt: skip
        return found + self._late(source)

    def _late(self, source: ChakraSource) -> list[Finding]:
        try:
            last, often = read(source, "last_rank"), read(source, "last_share")
        except NoReplayError:
            return []
        others = [rank for rank in range(len(source.traces)) if rank != last.value]
        waited = max((read(source, "waiting_share", rank=rank) for rank in others), key=lambda each: float(each.value))
        if float(waited.value) < self.waiting:
            return []
        return [
            Finding(
                label="late-rank", where=f"rank {last.value}", severity="warning", confidence=float(often.value),
                says="{where} comes last to {last_share} of the collectives; another rank waits {waiting_share} of "
                "the replay.",
                evidence=(last, often, waited),
                advice="See what this rank does before: more tokens, a slower device, another job on its host.",
                sources=(_CHAKRA,),
            )
        ]  # fmt: skip


def _broken(source: ChakraSource) -> list[Finding]:
    """The first problems of each label."""
    found: list[Finding] = []
    shown: dict[str, int] = {}
    for number, problem in enumerate(source.problems):
        shown[problem.label] = shown.get(problem.label, 0) + 1
        if shown[problem.label] > _MOST_OF_A_LABEL:
            continue
        evidence = [
            read(source, "problem", number=number), read(source, "problem_node", number=number),
            read(source, "culprits", number=number), read(source, "problems_alike", label=problem.label),
        ]  # fmt: skip
        if problem.call >= 0:
            evidence.append(read(source, "call", number=number))
        found.append(
            Finding(
                label=problem.label, where=_where(problem), severity="critical", confidence=1.0, says="{problem}",
                evidence=tuple(evidence), advice=_ADVICE[problem.label], sources=(_CHAKRA,),
            )
        )  # fmt: skip
    return found


def _where(problem: Problem) -> str:
    ranks = ", ".join(map(str, problem.ranks[:4])) + (", ..." if len(problem.ranks) > 4 else "")
    return f"rank{'s' * (len(problem.ranks) > 1)} {ranks}" if ranks else "the job"


def _had(source: ChakraSource, name: str) -> list[Evidence]:
    try:
        return [read(source, name)]
    except NoReplayError:
        return []
