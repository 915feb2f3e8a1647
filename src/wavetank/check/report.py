"""What ``wavetank check`` asks of a checker, and what a checker answers.

A checker takes one kind of file (a threshold automaton, a history, a session protocol, a protocol instance to explore)
and answers with verdicts.  "Undecided" is an answer: a budget that runs out ends a check, it never ends in a crash, and
what was decided before stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["holds", "violated", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a check of one file may use.

    Parameters
    ----------
    seconds : float
        Wall time without what compiling takes; the checker looks at the clock often enough to keep it to a second.
    memory_bytes : int
        By how much the process may grow while checking.
    """

    seconds: float = 60.0
    memory_bytes: int = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One question put to the file, and its answer.

    Parameters
    ----------
    name : str
        The property, model or condition.
    outcome : str
        ``holds``, ``violated`` or ``undecided``.
    says : str
        One line: what was found, or why nothing was.
    by : str
        The method that decided.
    seconds : float
        Wall time it took; NaN when it was not timed on its own.
    evidence : str
        Text of several lines shown below a verdict that is not ``holds``: a counterexample, a witness, the budget.
    anomalies : sequence of mapping
        The same for programs, where a checker names what it found: plain data with ``name``, ``says`` and more.
    """

    name: str
    outcome: Outcome
    says: str = ""
    by: str = ""
    seconds: float = math.nan
    evidence: str = ""
    anomalies: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All that was found in one file.

    Parameters
    ----------
    subject : str
        Name of what was checked, as the file gives it.
    kind : str
        Name of its entry in a ``check`` table of the catalogs.
    facts : sequence of (str, str)
        What a reader should know about the file: sizes, parameters, what was left out.
    verdicts : sequence of Verdict
    page : str
        A self-contained HTML page that shows the verdicts' evidence as a picture; empty when there is none.
    """

    subject: str
    kind: str
    facts: Sequence[tuple[str, str]] = ()
    verdicts: Sequence[Verdict] = ()
    page: str = ""
