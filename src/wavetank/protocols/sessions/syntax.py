"""What a session protocol file says, as data: modules, protocols, messages, choices, mixes, loops, calls.

Nothing is judged here; every piece keeps the place it was written at, so that a verdict can point to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wavetank.errors import BadFileError


class Place(NamedTuple):
    """Line and column in a file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A refinement or the value of a recursion variable.

    Parameters
    ----------
    kind : str
        ``int``, ``bool``, ``string``, ``name``, ``not``, ``neg``, ``len`` or a binary operator such as ``<=``.
    value : int, bool or str
        Of a literal or a name.
    parts : tuple of Expression
    """

    kind: str
    place: Place
    value: int | bool | str = ""
    parts: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Payload:
    """One value of a message: its type, with a name and a refinement where there are such."""

    type: str
    place: Place
    name: str = ""
    refinement: Expression | None = None
    # The role of a delegated session (`Protocol@Role`); empty for plain data.
    delegated: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """``label(payload) from sender to receiver, ...;`` and its variants ``connect`` and ``wrap``.

    ``how`` is ``from`` for a plain message, otherwise the word that sets it apart.
    """

    label: str
    payload: tuple[Payload, ...]
    sender: str
    receivers: tuple[str, ...]
    place: Place
    annotation: str = ""
    how: str = "from"


@dataclass(frozen=True, slots=True)
class Choice:
    """``choice at role { .. } or { .. }``."""

    role: str
    branches: tuple[tuple[Statement, ...], ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Mix:
    """``mix { left } or interrupt by arbiter { right }``: the mixed choice."""

    left: tuple[Statement, ...]
    right: tuple[Statement, ...]
    arbiter: str
    place: Place
    name: str = ""


@dataclass(frozen=True, slots=True)
class RecursionVariable:
    """``name<roles>: type = start`` of a loop."""

    name: str
    roles: tuple[str, ...]
    payload: Payload
    start: Expression
    place: Place


@dataclass(frozen=True, slots=True)
class Loop:
    """``rec name [variables] { .. }``."""

    name: str
    variables: tuple[RecursionVariable, ...]
    body: tuple[Statement, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Continue:
    """``continue name [values];``."""

    name: str
    values: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Do:
    """``do protocol(roles);``, or ``caller calls protocol(roles);`` when ``caller`` is not empty."""

    protocol: str
    roles: tuple[str, ...]
    place: Place
    caller: str = ""
    arguments: bool = False


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A construct that is read but has no meaning here; ``why`` says so to the user."""

    word: str
    why: str
    place: Place


Statement = Message | Choice | Mix | Loop | Continue | Do | Unsupported


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol declaration.

    Parameters
    ----------
    kind : str
        ``global``, ``nested`` or ``local``.
    roles, new_roles : tuple of str
        The roles it is called with, and those that a nested protocol brings in.
    auxiliary, explicit, parametric : bool
        Marked ``aux``; marked ``explicit``; has type or signature parameters.
    """

    name: str
    kind: str
    roles: tuple[str, ...]
    new_roles: tuple[str, ...]
    nested: tuple[Protocol, ...]
    body: tuple[Statement, ...]
    place: Place
    auxiliary: bool = False
    explicit: bool = False
    parametric: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    """A whole file."""

    path: str
    pragmas: tuple[str, ...]
    nested: tuple[Protocol, ...]
    protocols: tuple[Protocol, ...]
    name: str = ""
    imports: tuple[str, ...] = ()
    # Declared message signatures (`sig`) and payload types (`type`, `data`).
    declared: tuple[str, ...] = field(default=())

    @property
    def has_nested(self) -> bool:
        """Return whether the file turns nested protocols on."""
        return "NestedProtocols" in self.pragmas

    @property
    def has_refinements(self) -> bool:
        """Return whether the file turns refinement types on."""
        return "RefinementTypes" in self.pragmas


class IllFormedError(BadFileError):
    """A protocol that can be read but breaks a rule.

    Parameters
    ----------
    rule : str
        Short name of the rule, such as ``distinct labels``.
    """

    def __init__(self, problem: str, *, rule: str = "", **parts: object) -> None:
        super().__init__(problem, **parts)  # type: ignore[arg-type]
        self.rule = rule

    def __reduce__(self) -> tuple[object, ...]:
        parts = {name: getattr(self, name) for name in ("given", "allowed", "nearest", "where", "hint")}
        return (_rebuild, (self.problem, self.rule, parts))


def _rebuild(problem: str, rule: str, parts: dict[str, object]) -> IllFormedError:
    return IllFormedError(problem, rule=rule, **parts)


def where(path: str, place: Place) -> str:
    """Return a place as every message shows it.

    Examples
    --------
    >>> where("race.nuscr", Place(3, 7))
    'race.nuscr, line 3, column 7'
    """
    return f"{path}, line {place.line}, column {place.column}"
