"""Every error a user can meet, with what was given, what is allowed, the nearest match, where, and what to do next.

One root, :class:`WavetankError`; its leaves only fix the exit code and the opening words.  Code that can name the
culprit raises one of these; anything else that escapes is a defect of Wavetank.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# A longer one would push the rest of the message off the screen.
_SHOWN_CHARACTERS = 300


class WavetankError(Exception):
    """Something the user can put right.

    Parameters
    ----------
    problem : str
        One sentence: what is wrong.
    given : object, optional
        The offending value, shown with ``repr`` unless it is a string.
    allowed : str or iterable of str, optional
        What would have been accepted.
    nearest : str, optional
        The closest allowed name.
    where : str, optional
        Study, file and line, column or key.
    hint : str, optional
        The next step, often a command.
    """

    exit_code = 3

    def __init__(
        self,
        problem: str,
        *,
        given: object = None,
        allowed: str | Iterable[str] | None = None,
        nearest: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.given = given
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else tuple(allowed)
        self.nearest = nearest
        self.where = where
        self.hint = hint
        super().__init__(problem)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders on their way from a trial to the terminal.
        return (_rebuild, (type(self), self.problem, self.given, self.allowed, self.nearest, self.where, self.hint))

    def lines(self) -> list[tuple[str, str]]:
        """Return the parts as (label, text) pairs in reading order; the first label is empty."""
        parts = [("", self.problem)]
        if self.given is not None:
            given = self.given if isinstance(self.given, str) else repr(self.given)
            if len(given) > _SHOWN_CHARACTERS:
                given = f"{given[:_SHOWN_CHARACTERS]}... ({len(given):,} characters in all)"
            parts.append(("given", given))
        if self.allowed:
            text = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
            parts.append(("allowed", text))
        if self.nearest:
            parts.append(("nearest", self.nearest))
        if self.where:
            parts.append(("where", self.where))
        if self.hint:
            parts.append(("next", self.hint))
        return parts

    def __str__(self) -> str:
        first, *rest = self.lines()
        return "\n".join([first[1], *(f"  {label}: {text}" for label, text in rest)])


def _rebuild(
    kind: type[WavetankError],
    problem: str,
    given: object,
    allowed: str | tuple[str, ...] | None,
    nearest: str | None,
    where: str | None,
    hint: str | None,
) -> WavetankError:
    return kind(problem, given=given, allowed=allowed, nearest=nearest, where=where, hint=hint)


class UnknownNameError(WavetankError):
    """A study, system, setting, data set, device or unit that does not exist."""


class BadValueError(WavetankError):
    """A parameter or setting outside what is allowed."""


class BadFileError(WavetankError):
    """A file that is missing, unreadable, of the wrong format or damaged."""


class BadTraceError(BadFileError):
    """A workload whose content makes no sense: negative tokens, unsorted arrivals, no rows."""


class MissingExtraError(WavetankError):
    """An optional library that is not installed."""


class DataUnavailableError(WavetankError):
    """A data set that is neither on this machine nor to be had from its public address."""


class GaveUpError(WavetankError):
    """A system that ended without an answer: it has no time, and the others still have theirs."""


class RunFolderError(WavetankError):
    """A run folder that cannot be written, read or resumed."""


class NothingHereYetError(WavetankError):
    """A verb or area that holds nothing in this version."""


def nearest_of(name: str, names: Iterable[str]) -> str | None:
    """Return the closest of ``names`` to ``name``, or None when none is close."""
    by_folded = {candidate.lower(): candidate for candidate in names}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.5)
    return by_folded[found[0]] if found else None


def unknown_name(
    what: str, name: str, names: Iterable[str], *, where: str | None = None, hint: str | None = None
) -> UnknownNameError:
    """Build the error for a name that is not among ``names``.

    Examples
    --------
    >>> print(unknown_name("study", "llm-rooting", ["llm-routing", "sort-integers"]))
    There is no study named 'llm-rooting'.
      allowed: llm-routing, sort-integers
      nearest: llm-routing
    """
    listed = sorted(names)
    return UnknownNameError(
        f"There is no {what} named {name!r}.",
        allowed=listed if len(listed) <= 24 else [*listed[:24], f"... ({len(listed)} in all)"],
        nearest=nearest_of(name, listed),
        where=where,
        hint=hint,
    )


def missing_extra(library: str, extra: str, *, needed_for: str, where: str | None = None) -> MissingExtraError:
    """Build the error for an optional library that is not installed.

    Parameters
    ----------
    library : str
        As the user knows it.
    extra : str
        The extra of this package that installs it.
    needed_for : str
        What cannot be done without it; the sentence begins with it.
    where : str, optional
        As for :class:`WavetankError`.
    """
    from wavetank.extras import install_command

    return MissingExtraError(
        f"{needed_for} needs the library {library!r}, which is not installed.",
        where=where, hint=install_command(extra),
    )  # fmt: skip
