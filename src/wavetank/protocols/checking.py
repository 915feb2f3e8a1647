"""What ``wavetank check`` asks of a checker and what it is told.

A checker takes one kind of file (a threshold automaton, a history, a session protocol, a protocol instance to explore)
and answers with verdicts.  "Undecided" is an answer: a budget that runs out ends a check, it never ends in a crash, and
what was decided before stays.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from wavetank.errors import BadFileError, nearest_of, unknown_name

Outcome = Literal["holds", "violated", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a check of one file may use.

    Parameters
    ----------
    seconds : float
        Wall time; the checker looks at the clock often enough to keep it within about a second.
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
        One of :data:`KINDS`.
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


class Checker(Protocol):
    """A frozen dataclass whose fields are its settings (``wavetank check FILE --set NAME=VALUE``)."""

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read a file and answer.

        Raises
        ------
        BadFileError
            With line and column, for a file that cannot be read.
        """


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Parameters
    ----------
    says : str
        What it is, in a few words.
    endings : tuple of str
        Ends of file names that tell it, without ``.gz``.
    object : str
        Home of its checker, ``module:name``.
    """

    says: str
    endings: tuple[str, ...]
    object: str

    def load(self) -> type[Checker]:
        """Import and return the checker's class."""
        module, _, name = self.object.partition(":")
        found: type[Checker] = getattr(importlib.import_module(module), name)
        return found


KINDS = {
    "threshold": Kind(
        "a threshold automaton: is it safe for every number of processes?",
        (".ta", ".eta", ".tla"),
        "wavetank.protocols.threshold.check:ThresholdCheck",
    ),
    "history": Kind(
        "a recorded history: which consistency models allow it?",
        (".log", ".edn", ".txt", ".jsonl"),
        "wavetank.protocols.consistency.check:HistoryCheck",
    ),
    "session": Kind(
        "a session protocol: does every role always get on?",
        (".nuscr", ".scr"),
        "wavetank.protocols.sessions.check:SessionCheck",
    ),
    "instance": Kind(
        "a small instance of a protocol: every interleaving",
        (".toml",),
        "wavetank.protocols.explore.check:InstanceCheck",
    ),
}


def kind_of(path: Path, given: str = "") -> str:
    """Return the kind of a file: the one given, or the one its name tells.

    Raises
    ------
    UnknownNameError, BadFileError
    """
    if given:
        if given not in KINDS:
            raise unknown_name("kind of file", given, KINDS)
        return given
    from wavetank.protocols.history import file_of

    if file_of(path) != path:
        return "history"
    name = path.name.lower().removesuffix(".gz")
    for kind, facts in KINDS.items():
        if name.endswith(facts.endings):
            return kind
    endings = [ending for facts in KINDS.values() for ending in facts.endings]
    raise BadFileError(
        "The file's name does not tell what it is.",
        given=path.name,
        allowed=[*endings, "each also with .gz"],
        nearest=nearest_of(path.suffix, endings),
        hint=f"wavetank check --kind {next(iter(KINDS))} {path.name}",
    )
