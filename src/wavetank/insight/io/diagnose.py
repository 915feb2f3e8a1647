"""I/O diagnosis as IOAgent does it: fragments of a log, cited knowledge, a merge tree, statements that recompute.

A log is cut into small fragments by module; each is judged by itself with passages from a knowledge base, and the
verdicts are merged pair by pair, so that no step sees more than two summaries.  Rules judge by what an issue would
save of the I/O time, not by counts of requests.  A language model may be plugged in: what it says of a fragment is kept
where every figure recomputes from the log, and dropped elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, Severity, by_severity, read, unsupported
from wavetank.errors import BadValueError
from wavetank.insight.io.fragments import Fragment, fragments, judged, one_issue
from wavetank.insight.io.labels import KINDS, kind
from wavetank.insight.io.measures import IoFacts, TooLittleError
from wavetank.insight.io.merge import Issue, Summary, merge, tree
from wavetank.insight.io.page import io_page
from wavetank.insight.io.quantities import DarshanSource
from wavetank.insight.io.retrieval import retrieve, words
from wavetank.live.language_model import LanguageModel, NoAnswerError, opened
from wavetank.settings import check_ranges, setting
from wavetank.workloads.darshan import DarshanLog, looks_like_darshan

_FACTS = (
    ("processes", ""), ("run_time_s", "s"), ("modules", ""), ("incomplete", ""), ("passed_over", ""), ("files", ""),
    ("left_out", ""), ("io_time_s", "s"), ("io_share", ""),
)  # fmt: skip
_CRITICAL = 0.3
_CLAIMS = 20
_IOAGENT = "IOAgent, arXiv 2602.22017"
_TINY = (
    "{tiny_share} of {requests} {op}s of {module} move a few bytes, {mean_bytes} on average; this costs little here."
)
_QUESTION = """Below are facts of one part of a log of a parallel program's I/O, each with its name in braces.
Answer with a JSON list of objects with the keys label (one of: {codes}), says and evidence.
says is one sentence in which every figure is the name of a fact in braces and no digit stands; evidence lists the
names that it uses.  Answer [] where the facts show nothing.

Part: {module}, {about}
{facts}

What is known:
{passages}
"""


@dataclass(frozen=True, kw_only=True)
class IoAgent:
    """Diagnoses logs of Darshan."""

    least: float = setting(0.05, says="Share of the I/O time that an issue must cost to be reported", low=0.0, high=1.0)
    little: float = setting(
        0.05, says="Share of the run that I/O takes, below which issues are notes only", low=0.0, high=1.0
    )
    skew: float = setting(
        0.3, says="Share by which the slowest rank exceeds the mean, from which a note says so", low=0.0, high=1.0
    )
    passages: int = setting(3, says="Passages of the knowledge base with each issue", low=0, high=20)
    model: str = setting("", says="Language model, http://HOST:PORT/v1#MODEL or recorded:FILE; none by default")
    question: str = setting("", says="A question: facts and findings that answer it come alone")
    thresholds: tuple[float, ...] = setting(
        (), says="By kind, in the order of labels.KINDS, in place of least", low=0.0, high=1.0
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.thresholds) not in (0, len(KINDS)):
            raise BadValueError("Every kind of issue has a threshold.", given=self.thresholds,
                                allowed=f"none, or one for each of {', '.join(KINDS)}", where="thresholds")  # fmt: skip

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a log.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_darshan(head)

    def source(self, path: Path) -> DarshanSource:
        """Return the logs, read anew.

        Parameters
        ----------
        path : Path
        """
        return DarshanSource(path)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a log, or in each log of a folder.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadTraceError
            If a file cannot be read.
        """
        source = self.source(path)
        found = self.diagnosed(source, path.name)
        if self.question:
            found = answered(found, self.question)
        return io_page(found, source)

    def diagnosed(self, source: DarshanSource, subject: str) -> Diagnosis:
        """Return what is found in a source.

        Parameters
        ----------
        source : DarshanSource
        subject : str
        """
        facts, findings, too_little = list[Evidence](), list[Finding](), list[str]()
        model = opened(self.model) if self.model else None
        for name, log in source.facts.items():
            several = name if len(source.facts) > 1 else ""
            where = name if several else "the job"
            of = {"log": several} if several else {}
            for fact, unit in _FACTS:
                try:
                    facts.append(read(source, fact, unit, **of))
                except TooLittleError as error:
                    too_little.append(f"{where}: {error.problem}")
            for module in log.log.incomplete:
                too_little.append(
                    f"{where}: the data of module {module} are incomplete, the recorder ran out of memory; what is "
                    "found holds for the files that were recorded"
                )
            if not log.families:
                continue
            summary, problem = self.summary(source, several, model)
            if problem:
                too_little.append(f"{where}: the language model was left out: {problem}")
            worth = float(read(source, "io_share", **of).value) >= self.little if log.log.run_time_s > 0 else True
            findings += [self._finding(each, where, log, worth) for each in summary if each.shown_by]
            findings += self._notes(source, where, log, several, {kind(each.code) for each in summary})
        return Diagnosis(
            subject=subject, kind="darshan", facts=tuple(facts), findings=by_severity(findings),
            too_little=tuple(dict.fromkeys(too_little)),
        )  # fmt: skip

    def summary(self, source: DarshanSource, log: str = "", model: LanguageModel | None = None) -> tuple[Summary, str]:
        """Return the merged verdicts on the fragments of a log, and why a language model was left out, or nothing.

        Parameters
        ----------
        source : DarshanSource
        log : str
        model : LanguageModel, optional
        """
        least = self._least()
        parts, problem = list[Summary](), ""
        for each in fragments(source, log):
            said = judged(source, each, least, log, self.passages)
            if model is not None and not problem:
                try:
                    said = _with_model(said, model, source, each, log, self.passages)
                except NoAnswerError as error:
                    problem = error.problem
            parts.append(said)
        return self.joined(parts), problem

    def joined(self, parts: Sequence[Summary]) -> Summary:
        """Return verdicts on fragments as one, pair by pair.

        Parameters
        ----------
        parts : sequence of Summary
        """
        return tree(parts, merge) if parts else ()

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return the kinds of issues that are reported for a log as more than notes.

        Parameters
        ----------
        log : DarshanLog
        """
        found = self.diagnosed(DarshanSource.of(log), "log")
        return frozenset(kind(each.label) for each in found.findings if each.severity != "note")

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> IoAgent:
        """Return itself: its threshold is the share of time that an issue must cost, and needs no data.

        Parameters
        ----------
        logs : sequence of DarshanLog
        kinds : sequence of frozenset of str
            What is true of each.
        """
        return self

    def _least(self) -> dict[str, float]:
        if not self.thresholds:
            return dict.fromkeys(KINDS, self.least)
        return dict(zip(KINDS, self.thresholds, strict=True))

    def _finding(self, issue: Issue, where: str, facts: IoFacts, worth: bool) -> Finding:
        saves = next(float(each.value) for each in issue.evidence if each.name == "saves_share")
        severity: Severity = "critical" if saves >= _CRITICAL else "warning"
        if not worth or saves < self._least()[kind(issue.code)]:
            severity = "note"
        against = [each for each in issue.not_shown_by if each not in issue.shown_by]
        says = issue.says + (f" Seen in {', '.join(issue.shown_by)}, not in {', '.join(against)}." if against else "")
        return Finding(
            label=issue.code, where=where, severity=severity, confidence=saves, says=says, evidence=issue.evidence,
            advice=issue.advice, sources=(*issue.citations, _IOAGENT),
        )  # fmt: skip

    def _notes(
        self, source: DarshanSource, where: str, facts: IoFacts, log: str, found: Iterable[str]
    ) -> list[Finding]:
        of = {"log": log} if log else {}
        notes = []
        if "RLIM" not in found and facts.log.processes > 1:
            names = ("unequal_time_share", "equal_bytes_share", "explained_share", "unequal_files")
            try:
                evidence = tuple(read(source, name, **of) for name in names)
            except TooLittleError:
                evidence = ()
            if evidence and float(evidence[0].value) >= self.skew:
                notes.append(Finding(
                    label="RLIM", where=where, severity="note", confidence=float(evidence[2].value), evidence=evidence,
                    says="The slowest rank takes longer than the mean ({unequal_time_share} of its time is more) for "
                    "{unequal_files}, but bytes are equal to {equal_bytes_share}: the file system, other jobs or the "
                    "choice of aggregators rather than the program.",
                    advice="Compare with another run before anything is changed.", sources=(_IOAGENT,),
                ))  # fmt: skip
        for module, spoken, fewest in (("H5D", "data sets of HDF", 1), ("POSIX", "POSIX", 100)):
            if module not in facts.log.modules or "SML" in found:
                continue
            for op, mark in (("write", "W"), ("read", "R")):
                of_op = {"module": module, "op": op, **of}
                try:
                    evidence = tuple(
                        read(source, name, unit, **of_op)
                        for name, unit in (("tiny_share", ""), ("requests", ""), ("mean_bytes", "B"))
                    )
                except TooLittleError:
                    continue
                if float(evidence[0].value) < 0.5 or float(evidence[1].value) < fewest:
                    continue
                notes.append(Finding(
                    label=f"SML-{mark}", where=f"{where}, {module}", severity="note", evidence=evidence,
                    confidence=float(evidence[0].value), sources=(_IOAGENT,),
                    says=_TINY.replace("{op}", op).replace("{module}", spoken),
                ))  # fmt: skip
        return notes


def _with_model(
    said: Summary, model: LanguageModel, source: DarshanSource, fragment: Fragment, log: str, passages: int
) -> Summary:
    """Return the verdict on a fragment with what a language model says of it, as far as that is supported.

    Raises
    ------
    NoAnswerError
        If there is no answer.
    """
    known = [each.cited for code in fragment.codes for each in retrieve(fragment.text, kind(code), passages)]
    answer = model.ask(_QUESTION.format(
        codes=", ".join(fragment.codes), module=fragment.module, about=fragment.about, facts=fragment.text,
        passages="\n".join(f"- {each}" for each in dict.fromkeys(known)) or "- nothing",
    ))  # fmt: skip
    found = {each.code: each for each in said}
    for claim in _claims(answer):
        issue = supported(claim, source, fragment, log, passages)
        if issue is None:
            continue
        held = found.get(issue.code)
        if held is not None:
            both = {each.key: each for each in (*held.evidence, *issue.evidence)}
            issue = replace(held, says=issue.says, evidence=tuple(both.values()))
        found[issue.code] = issue
    return tuple(found[code] for code in sorted(found))


def _claims(answer: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON list in a text; none where it is no such list."""
    begin, end = answer.find("["), answer.rfind("]")
    try:
        found = json.loads(answer[begin : end + 1]) if 0 <= begin < end else []
    except (ValueError, RecursionError):
        return []
    return [each for each in found[:_CLAIMS] if isinstance(each, dict)] if isinstance(found, list) else []


def supported(
    claim: dict[str, Any], source: DarshanSource, fragment: Fragment, log: str, passages: int
) -> Issue | None:
    """Return what a language model says as an issue; None where the log does not support it.

    Parameters
    ----------
    claim : dict
        With label, says and evidence.
    source : DarshanSource
    fragment : Fragment
        What the model was shown: its facts alone are evidence.
    log : str
    passages : int
    """
    label, says, names = claim.get("label"), claim.get("says"), claim.get("evidence")
    if label not in fragment.codes or not isinstance(says, str) or not isinstance(names, list) or not says.strip():
        return None
    issue = one_issue(source, fragment, label, log, passages)
    if issue is None:
        return None
    facts = {each.key: each for each in fragment.facts}
    if not names or any(not isinstance(name, str) or name not in facts for name in names):
        return None
    shares = tuple(each for each in issue.evidence if each.name in ("saves_share", "family_saves_share", "family"))
    evidence = tuple(facts[name] for name in dict.fromkeys(names))
    finding = Finding(
        label=label, where="the job", severity="note", confidence=0.0, says=says[:1000], evidence=evidence,
    )  # fmt: skip
    if unsupported(Diagnosis(subject="", kind="", findings=(finding,)), source):
        return None
    return replace(issue, says=finding.says, evidence=(*evidence, *shares))


def answered(diagnosis: Diagnosis, question: str) -> Diagnosis:
    """Return what of a diagnosis answers a question: stored facts and findings alone, nothing new.

    Parameters
    ----------
    diagnosis : Diagnosis
    question : str
    """
    asked = set(words(question))

    def shared(*texts: str) -> int:
        return len(asked & {word for text in texts for word in words(text.replace("_", " "))})

    facts = [(shared(each.name, each.how), each) for each in diagnosis.facts]
    findings = [
        (shared(each.says, each.advice, KINDS[kind(each.label)], *each.sources), each) for each in diagnosis.findings
    ]
    best = max((score for score, _ in (*facts, *findings)), default=0)
    if not best:
        return replace(
            diagnosis, facts=(), findings=(),
            too_little=(f"no fact or finding has to do with the question {question!r}", *diagnosis.too_little),
        )  # fmt: skip
    return replace(
        diagnosis,
        facts=tuple(each for score, each in facts if score == best),
        findings=tuple(each for score, each in findings if 2 * score >= best and score),
    )
