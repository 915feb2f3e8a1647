"""Unambiguous star-free languages as a tree of questions "which is the first (last) of these letters between here and
there?".

What is still open of a word is a function of the part that has not been looked at.  A letter at its left end either can
be undone by what follows, or it changes the function for good.  For a language in DA, which letters change it for good
does not depend on how far the reading has come, so the next change is the first occurrence of a set of letters, and
the part before it uses fewer letters.  The same holds from the right.  When no letter changes the function for good
from either side, it is constant.  Following these rules splits a word into positions that are found one after another.

Source: P. Tesson, D. Therien, "Diamonds are forever: the variety DA", 2002; V. Diekert, P. Gastin, M. Kufleitner, "A
Survey on Small Fragments of First-Order Logic over Finite Words", Int. J. Found. Comput. Sci. 19(3), 2008.

Differs from the source:

1. Falls are falls of the residual function, not of the monoid's R- and L-classes: fewer questions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wavetank.errors import BadValueError
from wavetank.protocols.populations.syntactic_monoid import SyntacticMonoid

START, END = -1, -2
"""The ends of the word as bounds of an interval; other bounds are levels of found positions, counted from 0."""


class Question(NamedTuple):
    """Which is the first (``way`` "X") or last ("Y") of ``letters`` strictly between two bounds?

    ``low`` and ``high`` are :data:`START`, :data:`END` or the level of a position found before.
    """

    letters: tuple[str, ...]
    way: str
    low: int
    high: int


@dataclass
class Found:
    """A position that has been found, and what is asked next.

    Attributes
    ----------
    number : int
        Index in the tree's list; 0 is the root, which is no position.
    parent : int
        The position found before; -1 for the root.
    level : int
        How many were found before; -1 for the root.
    letter : str
    rank : int
        Which of the parent's questions it answers.
    order : tuple of int
        Levels of all positions found so far, from left to right.
    questions : list of Question
        Asked one after another until one finds a letter.
    children : dict
        (question, letter) to the index of the position found.
    verdict : bool
        Whether the word is in the language if no question finds a letter.
    """

    number: int
    parent: int
    level: int
    letter: str
    rank: int
    order: tuple[int, ...]
    questions: list[Question] = field(default_factory=list)
    children: dict[tuple[int, str], int] = field(default_factory=dict)
    verdict: bool = False


class _Frame(NamedTuple):
    """An interval that is being looked at: the letters that may occur in it and the function of its value."""

    letters: tuple[int, ...]
    function: tuple[int, ...]
    low: int
    high: int


class _Then(NamedTuple):
    """What is looked at once the part beside a found letter is settled, its result being the number of a function."""

    letters: tuple[int, ...]
    low: int
    high: int


class DecisionTree:
    """The tree of a language whose syntactic monoid is in DA.

    Parameters
    ----------
    monoid : SyntacticMonoid
    left_first : bool
        Whether letters that make the left side fall are asked for before those of the right side; trees differ in
        size, not in what they decide.
    most : int
        Positions in the tree, at most.

    Raises
    ------
    BadValueError
        If the monoid is not in DA, or the tree grows beyond ``most`` positions.
    """

    def __init__(self, monoid: SyntacticMonoid, *, left_first: bool = True, most: int = 2000) -> None:
        if not monoid.is_in_DA:
            raise BadValueError(
                "The language is not unambiguous star-free.",
                given="a syntactic monoid outside DA" if monoid.is_aperiodic else "a syntactic monoid with a group",
                hint="Protocols with the predicate +1 decide it: see SuccessorCompiler.",
            )
        self.monoid = monoid
        self.letters = monoid.letters
        self._left_first = left_first
        self._most = most
        self.found: list[Found] = []
        self._functions: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._submonoids: dict[tuple[int, ...], tuple[int, ...]] = {}
        letters = tuple(range(len(self.letters)))
        start = _Frame(letters, tuple(int(each in monoid.accepting) for each in self._elements(letters)), START, END)
        self._grow(start, (), Found(0, -1, -1, "", 0, ()))
        self._prune()

    def _grow(self, frame: _Frame, then: tuple[_Then, ...], node: Found) -> None:
        if len(self.found) == self._most:
            raise BadValueError("The tree of questions is too large.", given=f"more than {self._most} positions")
        self.found.append(node)
        while True:
            # Settle all that needs no question.
            while len(set(frame.function)) == 1:
                (result,) = set(frame.function)
                if not then:
                    node.verdict = bool(result)
                    return
                frame = _Frame(then[-1].letters, self._functions[result], then[-1].low, then[-1].high)
                then = then[:-1]
            way, letters = self._falling(frame)
            rest = tuple(letter for letter in frame.letters if letter not in letters)
            rank, level = len(node.questions), node.level + 1
            node.questions.append(
                Question(tuple(self.letters[letter] for letter in letters), way, frame.low, frame.high)
            )
            spot = 0 if frame.low == START else node.order.index(frame.low) + 1
            for letter in letters:
                function = tuple(self._residual(frame, way, each, letter) for each in self._elements(rest))
                if way == "X":
                    part = _Frame(rest, function, frame.low, level)
                    later = _Then(frame.letters, level, frame.high)
                else:
                    part = _Frame(rest, function, level, frame.high)
                    later = _Then(frame.letters, frame.low, level)
                child = Found(
                    len(self.found), node.number, level, self.letters[letter], rank,
                    (*node.order[:spot], level, *node.order[spot:]),
                )  # fmt: skip
                node.children[rank, self.letters[letter]] = child.number
                self._grow(part, (*then, later), child)
            values = dict(zip(self._elements(frame.letters), frame.function, strict=True))
            frame = _Frame(rest, tuple(values[each] for each in self._elements(rest)), frame.low, frame.high)

    def _elements(self, letters: tuple[int, ...]) -> tuple[int, ...]:
        if letters not in self._submonoids:
            self._submonoids[letters] = _submonoid(self.monoid, letters)
        return self._submonoids[letters]

    def _residual(self, frame: _Frame, way: str, value: int, letter: int) -> int:
        """Return the number of the function that is left of an interval once its outer part and a letter are known."""
        product, element = self.monoid.product, self.monoid.generators[letter]
        everyone = list(self._elements(frame.letters))
        values = dict(zip(everyone, frame.function, strict=True))
        if way == "X":
            reached = product[product[value, element], everyone]
        else:
            reached = product[everyone, product[element, value]]
        function = tuple(values[int(each)] for each in reached)
        if function not in self._numbers:
            self._numbers[function] = len(self._functions)
            self._functions.append(function)
        return self._numbers[function]

    def _falling(self, frame: _Frame) -> tuple[str, tuple[int, ...]]:
        """Return the side on which letters change the function for good, and those letters."""
        for way in ("X", "Y") if self._left_first else ("Y", "X"):
            letters = tuple(letter for letter in frame.letters if not self._returns(frame, way, letter))
            if letters:
                return way, letters
        raise BadValueError("The syntactic monoid is not in DA.", given=f"{len(self.monoid)} elements")

    def _returns(self, frame: _Frame, way: str, letter: int) -> bool:
        """Return whether some continuation undoes the letter."""
        product, everyone = self.monoid.product, list(self._elements(frame.letters))
        values = dict(zip(everyone, frame.function, strict=True))
        for undo in everyone:
            if way == "X":
                reached = product[product[self.monoid.generators[letter], undo], everyone]
            else:
                reached = product[everyone, product[undo, self.monoid.generators[letter]]]
            if all(values[int(each)] == value for each, value in zip(reached, frame.function, strict=True)):
                return True
        return False

    def _prune(self) -> None:
        """Cut questions whose answers do not matter, and number what is left anew."""
        verdicts: dict[int, set[bool]] = {}
        for node in reversed(self.found):
            verdicts[node.number] = {node.verdict}.union(*(verdicts[child] for child in node.children.values()))
        kept: list[Found] = []

        def keep(node: Found, parent: int) -> int:
            number = len(kept)
            copy = Found(number, parent, node.level, node.letter, node.rank, node.order, verdict=node.verdict)
            kept.append(copy)
            if len(verdicts[node.number]) > 1:
                last = max(
                    (rank for (rank, _), child in node.children.items() if verdicts[child] != {node.verdict}),
                    default=-1,
                )
                # Questions after the last one that can change the verdict are not asked.
                copy.questions = node.questions[: last + 1]
                for (rank, letter), child in node.children.items():
                    if rank <= last:
                        copy.children[rank, letter] = keep(self.found[child], number)
            return number

        keep(self.found[0], -1)
        self.found = kept


def _submonoid(monoid: SyntacticMonoid, letters: tuple[int, ...]) -> tuple[int, ...]:
    elements = [0]
    for element in elements:
        for letter in letters:
            grown = int(monoid.product[element, monoid.generators[letter]])
            if grown not in elements:
                elements.append(grown)
    return tuple(elements)
