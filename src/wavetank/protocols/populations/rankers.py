"""Rankers: positions of a word named by "the next a to the right" and "the next a to the left".

A ranker is a walk of such moves from an end of the word; it is defined on a word if every move finds its letter.
Boolean combinations of "this ranker is defined" are exactly the unambiguous star-free languages.  A formula becomes an
automaton by remembering, for every state of the walk, where a two-way run that enters the prefix from the right comes
out again.

Sources: P. Weis, N. Immerman, "Structure Theorem and Strict Alternation Hierarchy for FO2 on Words", LMCS 5(3), 2009;
T. Schwentick, D. Therien, H. Vollmer, "Partially-Ordered Two-Way Automata: A New Characterization of DA", DLT 2001;
J. Shepherdson, "The Reduction of Two-Way Automata to One-Way Automata", IBM J. Res. Dev. 3(2), 1959.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.populations.syntactic_monoid import Automaton

_MOVE = re.compile(r"\s*([XY])_?([^\W_])")
# Ends of a walk over a prefix: it left on the right looking for a letter, or it is settled.
_DEFINED, _UNDEFINED = -1, -2


class Formula(ABC):
    """A ranker, or a Boolean combination of them."""

    @abstractmethod
    def holds(self, word: Sequence[str]) -> bool:
        """Return whether the formula is true of the word; a ranker is where it is defined."""

    @abstractmethod
    def automaton(self, letters: Sequence[str]) -> Automaton:
        """Return the minimal automaton of the words of which the formula is true."""

    def __and__(self, other: Formula) -> Formula:
        """Return the conjunction."""
        return Combination("and", (self, other))

    def __or__(self, other: Formula) -> Formula:
        """Return the disjunction."""
        return Combination("or", (self, other))

    def __invert__(self) -> Formula:
        """Return the negation."""
        return Combination("not", (self,))


@dataclass(frozen=True)
class Ranker(Formula):
    """A walk: ``X_a`` goes to the next a on the right, ``Y_a`` to the next a on the left.

    The first move starts outside the word, before it for X and after it for Y.

    Attributes
    ----------
    moves : tuple of (str, str)
        ``("X" or "Y", letter)``, at least one.

    Examples
    --------
    >>> Ranker.read("X_a Y_b").position("bbab")
    1
    """

    moves: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, text: str) -> Ranker:
        """Read ``"X_a Y_b"``.

        Raises
        ------
        BadValueError
            With the column at which the text stops being a ranker.
        """
        moves, place = [], 0
        while place < len(text.rstrip()):
            found = _MOVE.match(text, place)
            if found is None:
                raise BadValueError(
                    "This is not a ranker.",
                    given=text,
                    allowed="moves such as X_a (next a to the right) and Y_b (next b to the left)",
                    where=f"column {place + 1}",
                )
            moves.append((found[1], found[2]))
            place = found.end()
        if not moves:
            raise BadValueError("A ranker needs at least one move.", given=text or "nothing", allowed="X_a, Y_b, ...")
        return cls(tuple(moves))

    def __str__(self) -> str:
        """Return the ranker as :meth:`read` reads it."""
        return " ".join(f"{way}_{letter}" for way, letter in self.moves)

    def position(self, word: Sequence[str]) -> int | None:
        """Return where the walk ends, counted from 0; None where it is undefined."""
        place = -1 if self.moves[0][0] == "X" else len(word)
        for way, letter in self.moves:
            ahead = range(place + 1, len(word)) if way == "X" else range(place - 1, -1, -1)
            reached = next((spot for spot in ahead if word[spot] == letter), None)
            if reached is None:
                return None
            place = reached
        return place

    def holds(self, word: Sequence[str]) -> bool:
        """See Formula."""
        return self.position(word) is not None

    def automaton(self, letters: Sequence[str]) -> Automaton:
        """See Formula; a prefix is remembered by how the walk leaves it: from its start, and entered from the right."""
        steps = self.moves

        def arrive(step: int, letter: str, crossing: tuple[int, ...]) -> int:
            """Return how the walk leaves prefix + letter from the letter, with moves from ``step`` on to make."""
            while True:
                if step == len(steps):
                    return _DEFINED
                if steps[step][0] == "X":
                    return step
                # Goes left into the prefix; if it comes out again, it passes the letter looking for its move.
                left = crossing[step]
                if left < 0 or steps[left][1] != letter:
                    return left
                step = left + 1

        def extend(state: tuple[int, tuple[int, ...]], letter: str) -> tuple[int, tuple[int, ...]]:
            start, crossing = state
            if start >= 0 and steps[start][1] == letter:
                start = arrive(start + 1, letter, crossing)
            entered = []
            for step, (_, wanted) in enumerate(steps):
                if steps[step][0] == "X":
                    # Nothing comes in from the right looking to the right.
                    entered.append(_UNDEFINED)
                elif wanted == letter:
                    entered.append(arrive(step + 1, letter, crossing))
                else:
                    left = crossing[step]
                    returns = left >= 0 and steps[left][1] == letter
                    entered.append(arrive(left + 1, letter, crossing) if returns else left)
            return start, tuple(entered)

        def accepts(state: Any) -> bool:
            start, crossing = state
            # A walk that starts with Y starts after the word, and one that leaves on the right for good is undefined.
            return bool((start if steps[0][0] == "X" else crossing[0]) == _DEFINED)

        empty = (0 if steps[0][0] == "X" else _UNDEFINED, tuple(_UNDEFINED for _ in steps))
        return Automaton.explored(tuple(letters), empty, extend, accepts)


@dataclass(frozen=True)
class Combination(Formula):
    """A Boolean combination of rankers.

    Attributes
    ----------
    operator : str
        ``"and"``, ``"or"`` or ``"not"``.
    parts : tuple of Ranker or Combination
    """

    operator: str
    parts: tuple[Formula, ...]

    def __post_init__(self) -> None:
        allowed = {"and": 2, "or": 2, "not": 1}
        if len(self.parts) != allowed.get(self.operator):
            raise BadValueError(
                "This is not a Boolean combination.",
                given=f"{self.operator} of {len(self.parts)}",
                allowed="and, or (of two), not (of one)",
            )

    def __str__(self) -> str:
        """Return the formula with every part in parentheses."""
        texts = [f"({part})" for part in self.parts]
        return f"not {texts[0]}" if self.operator == "not" else f" {self.operator} ".join(texts)

    def _combine(self, truths: list[bool]) -> bool:
        return not truths[0] if self.operator == "not" else all(truths) if self.operator == "and" else any(truths)

    def holds(self, word: Sequence[str]) -> bool:
        """See Formula."""
        return self._combine([part.holds(word) for part in self.parts])

    def automaton(self, letters: Sequence[str]) -> Automaton:
        """See Formula."""
        automata = [part.automaton(letters) for part in self.parts]

        def accepts(states: tuple[int, ...]) -> bool:
            return self._combine([state in each.accepting for state, each in zip(states, automata, strict=True)])

        def move(states: tuple[int, ...], letter: str) -> tuple[int, ...]:
            number = automata[0].letters.index(letter)
            return tuple(each.moves[state][number] for state, each in zip(states, automata, strict=True))

        return Automaton.explored(tuple(letters), (0,) * len(automata), move, accepts)


def rankers(letters: Sequence[str], longest: int) -> list[Ranker]:
    """Return all rankers of at most ``longest`` moves, the short ones first."""
    moves = [(way, letter) for way in "XY" for letter in letters]
    return [Ranker(each) for length in range(1, longest + 1) for each in itertools.product(moves, repeat=length)]
