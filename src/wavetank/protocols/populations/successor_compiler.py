"""Compiles linear bounded automata to population protocols whose agents know their neighbours (PP[<,+1]).

One agent is one cell of the tape.  Every agent begins as a head, believes to be both ends of the tape and learns
better; a head that learns something about the ends, or meets another head and survives, starts the computation over
from a clean tape.  Both happen finitely often, so in the end one head runs alone over a tape whose ends are known.

The paper proves that protocols with the successor predicate decide NSPACE(n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wavetank.errors import BadValueError, nearest_of
from wavetank.protocols.populations.interface import FAR_AFTER, FAR_BEFORE, JUST_AFTER, JUST_BEFORE, PopulationProtocol
from wavetank.protocols.populations.syntactic_monoid import Automaton

if TYPE_CHECKING:
    from wavetank.protocols.populations.languages import Language

ACCEPT, REJECT = "accept", "reject"
CELLS = ("inside", "first", "last", "only")
_REWIND, _WIPE, _RETURN = "rewind", "wipe", "return"
_RESERVED = (_REWIND, _WIPE, _RETURN)
_MIRRORED = {FAR_BEFORE: FAR_AFTER, FAR_AFTER: FAR_BEFORE, JUST_BEFORE: JUST_AFTER, JUST_AFTER: JUST_BEFORE}
_TOWARDS = {1: JUST_BEFORE, -1: JUST_AFTER}


@dataclass(frozen=True)
class LinearBoundedAutomaton:
    """A deterministic Turing machine that stays within its input.

    Attributes
    ----------
    letters : tuple of str
    start : str
        State in which the head stands on the first cell.
    steps : mapping
        (state, symbol, cell) to (state, symbol written, move); ``cell`` is one of :data:`CELLS`, move is -1, 0 or 1.
        The states ``accept`` and ``reject`` end the computation; a missing step rejects.
    """

    letters: tuple[str, ...]
    start: str
    steps: Mapping[tuple[str, str, str], tuple[str, str, int]]

    def __post_init__(self) -> None:
        for (state, symbol, cell), (target, _, move) in self.steps.items():
            where = f"step ({state}, {symbol}, {cell})"
            if cell not in CELLS:
                raise BadValueError(
                    "There is no such kind of cell.", given=cell, allowed=CELLS, nearest=nearest_of(cell, CELLS),
                    where=where,
                )  # fmt: skip
            if {state, target} & set(_RESERVED):
                raise BadValueError("The compiler uses this state itself.", given=f"{state}, {target}", where=where)
            leaves = (move == 1 and cell in ("last", "only")) or (move == -1 and cell in ("first", "only"))
            if move not in (-1, 0, 1) or (leaves and target not in (ACCEPT, REJECT)):
                raise BadValueError(
                    "The head may not leave the tape.", given=f"move {move} on cell {cell}", allowed="-1, 0, 1",
                    where=where,
                )  # fmt: skip

    @classmethod
    def from_automaton(cls, automaton: Automaton) -> LinearBoundedAutomaton:
        """Read a regular language from left to right."""
        steps: dict[tuple[str, str, str], tuple[str, str, int]] = {}
        for state, row in enumerate(automaton.moves):
            for letter, target in zip(automaton.letters, row, strict=True):
                end = ACCEPT if target in automaton.accepting else REJECT
                for cell in CELLS:
                    going_on = cell in ("inside", "first")
                    steps[f"q{state}", letter, cell] = (f"q{target}", letter, 1) if going_on else (end, letter, 0)
        return cls(automaton.letters, "q0", steps)

    @classmethod
    def nested(
        cls, letters: Sequence[str], pairs: Sequence[tuple[str, str]], *, odd: bool = False
    ) -> LinearBoundedAutomaton:
        """Match the first letter with the last, the second with the last but one, and so on.

        Parameters
        ----------
        letters : sequence of str
        pairs : sequence of (str, str)
            Which last letter goes with which first letter; the first letters differ.
        odd : bool
            Whether a letter in the middle may stay alone.

        Examples
        --------
        ``nested("ab", [("a", "b")])`` is a^n b^n with n >= 1, ``nested("ab", [("a", "a"), ("b", "b")], odd=True)`` the
        palindromes.
        """
        mark = "x" if "x" not in letters else "mark"
        middle = ACCEPT if odd else REJECT
        steps: dict[tuple[str, str, str], tuple[str, str, int]] = {}
        for cell in CELLS:
            steps["find", mark, cell] = (ACCEPT, mark, 0)
            for opening, closing in pairs:
                out, back = f"right {opening}", f"match {opening}"
                ends_here = cell in ("last", "only")
                steps["find", opening, cell] = (middle, mark, 0) if ends_here else (out, mark, 1)
                for letter in letters:
                    matched = ("left", mark, -1) if letter == closing and cell != "first" else (REJECT, letter, 0)
                    steps[out, letter, cell] = matched if ends_here else (out, letter, 1)
                    steps[back, letter, cell] = matched
                steps[back, mark, cell] = (middle, mark, 0)
                if cell in ("inside", "last"):
                    steps[out, mark, cell] = (back, mark, -1)
            for letter in letters:
                if cell in ("inside", "last"):
                    steps["left", letter, cell] = ("left", letter, -1)
            if cell in ("inside", "first"):
                steps["left", mark, cell] = ("find", mark, 1)
        steps = {key: step for key, step in steps.items() if key[2] != "only" or step[2] == 0}
        return cls(tuple(letters), "find", steps)

    @property
    def writes(self) -> bool:
        """Return whether some step changes a symbol."""
        return any(symbol != written for (_, symbol, _), (_, written, _) in self.steps.items())

    def step(self, state: str, symbol: str, cell: str) -> tuple[str, str, int]:
        """Return the next state, the symbol written and the move."""
        return self.steps.get((state, symbol, cell), (REJECT, symbol, 0))

    def accepts(self, word: Sequence[str], most_steps: int = 1_000_000) -> bool:
        """Run the automaton on a word of at least one letter.

        Raises
        ------
        BadValueError
            If it has not stopped after ``most_steps``.
        """
        tape, place, state = list(word), 0, self.start
        for _ in range(most_steps):
            state, tape[place], move = self.step(state, tape[place], _kind(place > 0, place < len(tape) - 1))
            if state in (ACCEPT, REJECT):
                return state == ACCEPT
            place += move
        raise BadValueError("The automaton does not stop.", given=f"more than {most_steps} steps", where="".join(word))


class _Cell(NamedTuple):
    letter: str
    has_left: bool
    has_right: bool
    symbol: str
    head: str
    answer: int


@dataclass(frozen=True, kw_only=True)
class SuccessorCompiler:
    """Compiles linear bounded automata, and with them all regular languages."""

    def compile(self, automaton: LinearBoundedAutomaton, name: str) -> PopulationProtocol:
        """Return a protocol that decides the automaton's language on words of at least one letter.

        Raises
        ------
        BadValueError
            If the automaton does not stop on a single cell, or the protocol would have too many states.
        """
        rules = _Cells(automaton)
        return PopulationProtocol.from_function(
            name,
            initial={
                letter: rules.settled(_Cell(letter, False, False, letter, _REWIND, 0)) for letter in automaton.letters
            },
            output=lambda cell: cell.answer,
            meet=rules.meet,
            ordered=True,
            label=rules.label,
        ).lumped()

    def protocol(self, language: Language) -> PopulationProtocol | None:
        """Return the compiled protocol of a language, None for one that is given by its counts alone."""
        if language.automaton is not None:
            return self.compile(LinearBoundedAutomaton.from_automaton(language.automaton), language.name)
        return None if language.bounded is None else self.compile(language.bounded, language.name)


class _Cells:
    def __init__(self, automaton: LinearBoundedAutomaton) -> None:
        self.automaton = automaton

    def label(self, cell: _Cell) -> str:
        ends = ("" if cell.has_left else "|") + cell.letter + ("" if cell.has_right else "|")
        return f"{ends} {cell.symbol} {cell.head or '-'} says {cell.answer}"

    def meet(self, first: _Cell, second: _Cell, relation: int) -> tuple[_Cell, _Cell, str] | None:
        if relation in (JUST_AFTER, FAR_AFTER) and not first.has_left:
            return self.settled(first._replace(head=_REWIND, has_left=True)), second, "learn"
        if relation in (JUST_BEFORE, FAR_BEFORE) and not first.has_right:
            return self.settled(first._replace(head=_REWIND, has_right=True)), second, "learn"
        if first.head and second.head:
            return self.settled(first._replace(head=_REWIND)), second._replace(head=""), "merge"
        if not first.head and second.head:
            # The same meeting seen by the one with the head.
            mirrored = self._with_head(second, first, _MIRRORED[relation])
            return None if mirrored is None else (mirrored[1], mirrored[0], mirrored[2])
        return self._with_head(first, second, relation) if first.head else None

    def _with_head(self, own: _Cell, other: _Cell, relation: int) -> tuple[_Cell, _Cell, str] | None:
        if own.head in (ACCEPT, REJECT):
            return own, other._replace(answer=own.answer), "answer"
        target, written, move = self._next(own)
        if relation != _TOWARDS[move]:
            return None
        return own._replace(symbol=written, head=""), self.settled(other._replace(head=target)), "hop"

    def _next(self, cell: _Cell) -> tuple[str, str, int]:
        if cell.head in (_REWIND, _RETURN):
            return cell.head, cell.symbol, -1
        if cell.head == _WIPE:
            return _WIPE, cell.letter, 1
        return self.automaton.step(cell.head, cell.symbol, _kind(cell.has_left, cell.has_right))

    def settled(self, cell: _Cell) -> _Cell:
        """Do all that needs no move: turn round at the ends, write, stop."""
        seen = set()
        while cell not in seen:
            seen.add(cell)
            if cell.head == _REWIND and not cell.has_left:
                cell = cell._replace(head=_WIPE if self.automaton.writes else self.automaton.start)
            elif cell.head == _WIPE and not cell.has_right:
                cell = cell._replace(head=_RETURN, symbol=cell.letter)
            elif cell.head == _RETURN and not cell.has_left:
                cell = cell._replace(head=self.automaton.start)
            elif cell.head in (ACCEPT, REJECT):
                return cell._replace(answer=int(cell.head == ACCEPT))
            elif cell.head in _RESERVED:
                return cell
            else:
                target, written, move = self._next(cell)
                if move and target not in (ACCEPT, REJECT):
                    return cell
                cell = cell._replace(head=target, symbol=written)
        raise BadValueError("The automaton does not stop on one cell.", given=cell.head, where=self.label(cell))


def _kind(has_left: bool, has_right: bool) -> str:
    if has_left:
        return "inside" if has_right else "last"
    return "first" if has_right else "only"
