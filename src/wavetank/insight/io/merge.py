"""Diagnoses of parts of a log, and how they become one: pair by pair, level by level.

A merge sees two summaries only.  Issues are united; one that several modules show keeps the evidence of all, and a
module that was asked and does not show it is kept as well.  On sets of issues the merge is associative and commutative,
so that the shape of the tree decides nothing where nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from wavetank.diagnosis.findings import Evidence

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Issue:
    """What one or more modules say of one issue.

    Parameters
    ----------
    code : str
        One of ``labels.CODES``.
    shown_by : tuple of str
        Modules that show it, sorted.
    not_shown_by : tuple of str
        Modules that were asked and do not.
    evidence : tuple of Evidence
    says : str
        Sentence with names of evidence in braces.
    advice : str
    citations : tuple of str
    """

    code: str
    shown_by: tuple[str, ...] = ()
    not_shown_by: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    says: str = ""
    advice: str = ""
    citations: tuple[str, ...] = ()


Summary = tuple[Issue, ...]
"""Issues, one a code, sorted by code."""


def merge(first: Summary, second: Summary) -> Summary:
    """Return two summaries as one.

    Parameters
    ----------
    first, second : tuple of Issue
    """
    found = {each.code: each for each in first}
    for each in second:
        held = found.get(each.code)
        found[each.code] = each if held is None else _both(held, each)
    return tuple(found[code] for code in sorted(found))


def _both(first: Issue, second: Issue) -> Issue:
    lead = first if first.shown_by or not second.shown_by else second
    # The same figure under one name once; a second figure of one name would have no name in a sentence.
    evidence = {each.key: each for each in (*second.evidence, *first.evidence, *lead.evidence)}
    return replace(
        lead,
        shown_by=tuple(sorted({*first.shown_by, *second.shown_by})),
        not_shown_by=tuple(sorted({*first.not_shown_by, *second.not_shown_by})),
        evidence=tuple(evidence[key] for key in sorted(evidence)),
        citations=tuple(dict.fromkeys((*lead.citations, *first.citations, *second.citations))),
    )


def tree(parts: Sequence[T], join: Callable[[T, T], T]) -> T:
    """Return parts joined pair by pair, level by level: as many levels as the logarithm of their number, rounded up.

    Parameters
    ----------
    parts : sequence
        At least one.
    join : callable
        Of two neighbours.
    """
    level = list(parts)
    while len(level) > 1:
        pairs = [join(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]
