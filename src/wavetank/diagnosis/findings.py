"""What ``wavetank diagnose`` asks of an analyser, what an analyser answers, and how every answer is verified.

A finding states figures, and each of them is a quantity of the source by name and arguments: a reader who doubts a
figure, the verifier first, reads the source again and computes it anew.  A sentence of a finding has no digits of its
own, for figures come into it from the evidence alone; this holds for sentences of rules and of language models alike.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from wavetank import units
from wavetank.errors import BadValueError, WavetankError

Severity = Literal["note", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "critical")

Value = float | int | str
_TOLERANCE = 1e-12


class Source(Protocol):
    """A file, or the files of a folder, of which quantities can be read."""

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity by its name; raises WavetankError where the source does not have it."""

    def how(self, name: str) -> str:
        """Return how the quantity is read from the source, as a phrase."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure of a finding.

    Parameters
    ----------
    name : str
        The quantity of the source; a sentence names it in braces.
    value : float, int or str
    unit : str
        Empty for shares and counts.
    of : mapping of str to value
        Arguments of the quantity: a rank, a stream, a step.
    how : str
        How it is read from the source.
    as_name : str
        What sentences call it where one quantity is evidence twice; by default ``name``.
    """

    name: str
    value: Value
    unit: str = ""
    of: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""
    as_name: str = ""

    @property
    def key(self) -> str:
        """What a sentence calls it."""
        return self.as_name or self.name

    @property
    def shown(self) -> str:
        """The value as a reader sees it: shares, whose names end in ``_share``, as per cent."""
        if isinstance(self.value, str):
            return self.value
        if self.name.endswith("_share"):
            return f"{units.show(100 * self.value)} %"
        return units.show(self.value, self.unit)


def read(source: Source, name: str, unit: str = "", *, as_name: str = "", **of: Any) -> Evidence:
    """Return a quantity of a source as evidence.

    Parameters
    ----------
    source : Source
    name : str
    unit : str
        Of the value.
    as_name : str
        What sentences call it.
    **of : value
        Arguments of the quantity.
    """
    value = source.quantity(name, **of)
    return Evidence(name=name, value=value, unit=unit, of=of, how=source.how(name), as_name=as_name)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong, or worth knowing.

    Parameters
    ----------
    label : str
        One of the labels of its kind.
    where : str
        What it is about: a rank, a stream, a host.
    severity : str
        One of :data:`SEVERITIES`.
    confidence : float
        From 0 to 1: the share of what was looked at in which it holds.
    says : str
        A sentence in which figures are names of evidence in braces; it has no digits of its own.
    evidence : tuple of Evidence
        At least one.
    advice : str
        What to try; the same rules.
    sources : tuple of str
        Where the rule or the advice comes from.
    """

    label: str
    where: str
    severity: Severity
    confidence: float
    says: str
    evidence: tuple[Evidence, ...]
    advice: str = ""
    sources: tuple[str, ...] = ()

    def sentence(self, template: str) -> str:
        """Return a sentence with the figures of the evidence.

        Parameters
        ----------
        template : str
            ``says`` or ``advice``.
        """
        text = template.format(**{each.key: each.shown for each in self.evidence}, where=self.where)
        return text[:1].upper() + text[1:]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All that was found in one source.

    Parameters
    ----------
    subject : str
        Name of what was diagnosed.
    kind : str
        Name of its entry in a ``diagnose`` table of the catalogs.
    facts : tuple of Evidence
        What a reader should know of the source, each a quantity of it.
    findings : tuple of Finding
        The gravest first.
    too_little : tuple of str
        What could not be said, and why.
    page : str
        A self-contained HTML page; empty where there is none.
    """

    subject: str
    kind: str
    facts: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()
    too_little: tuple[str, ...] = ()
    page: str = ""


def by_severity(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings, the gravest and surest first; those alike keep their order.

    Parameters
    ----------
    findings : sequence of Finding
    """
    return tuple(sorted(findings, key=lambda each: (-SEVERITIES.index(each.severity), -each.confidence)))


def unsupported(diagnosis: Diagnosis, source: Source) -> list[str]:
    """Return what a diagnosis states and its source does not support; empty where every statement recomputes.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : Source
        The same files, read anew.
    """
    wrong = [problem for fact in diagnosis.facts for problem in _recomputed(fact, source, "facts")]
    for finding in diagnosis.findings:
        place = f"{finding.label}, {finding.where}"
        if not finding.evidence:
            wrong.append(f"{place}: there is no evidence.")
        if not 0 <= finding.confidence <= 1 or finding.severity not in SEVERITIES:
            wrong.append(f"{place}: severity or confidence is none.")
        for evidence in finding.evidence:
            wrong += _recomputed(evidence, source, place)
        for template in (finding.says, finding.advice):
            wrong += _spoken(template, finding, place)
    return wrong


def verify(diagnosis: Diagnosis, source: Source) -> None:
    """Refuse a diagnosis with a statement that its source does not support.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : Source
        The same files, read anew.

    Raises
    ------
    BadValueError
        With all such statements.
    """
    wrong = unsupported(diagnosis, source)
    if wrong:
        raise BadValueError("The diagnosis states what its source does not support.", given=" ".join(wrong))


def _recomputed(evidence: Evidence, source: Source, place: str) -> list[str]:
    try:
        value = source.quantity(evidence.name, **evidence.of)
    except (WavetankError, TypeError) as error:
        return [f"{place}: {evidence.name} cannot be read: {error}"]
    same = (
        value == evidence.value
        if isinstance(value, str) or isinstance(evidence.value, str)
        else math.isfinite(value) and math.isclose(value, evidence.value, rel_tol=_TOLERANCE, abs_tol=0.0)
    )
    return [] if same else [f"{place}: {evidence.name} is {value}, not {evidence.value}."]


def _spoken(template: str, finding: Finding, place: str) -> list[str]:
    """Return what is wrong with a sentence: digits of its own, or figures that no evidence has."""
    known = {each.key for each in finding.evidence} | {"where"}
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return [f"{place}: the sentence cannot be read: {error}"]
    wrong = []
    for said, name, form, conversion in parts:
        if any(letter.isdigit() for letter in said):
            wrong.append(f"{place}: a figure stands in the sentence without evidence: {said.strip()!r}")
        if name is not None and (name not in known or form or conversion):
            wrong.append(f"{place}: the sentence names {name!r}, which is no evidence.")
    return wrong


class Analyser(Protocol):
    """What a ``diagnose`` entry of a catalog names: a frozen dataclass of settings with these methods."""

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether a file, or the first file of a folder, is of this kind, by its first bytes."""

    def source(self, path: Path) -> Source:
        """Return the source, read anew."""

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file or a folder."""
