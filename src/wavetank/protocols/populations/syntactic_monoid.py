"""The syntactic monoid of a regular language, and whether the language is unambiguous star-free.

Two words are equal in the monoid if no context separates them; it is computed as the set of transformations that
words induce on the minimal automaton.  A language is star-free exactly if its monoid has no group in it.  It is
unambiguous star-free, which is two-variable first-order logic, exactly if its monoid is in DA: (xy)^k x (xy)^k = (xy)^k
for all x, y and the idempotent power k.

Source: P. Tesson, D. Therien, "Diamonds are forever: the variety DA", Semigroups, Algorithms, Automata and Languages,
2002.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra

# The table of products is dense: 4 bytes per pair, and as much again for each step of the tests.
_MOST_ELEMENTS = 8_000


@dataclass(frozen=True)
class Automaton:
    """A complete deterministic finite automaton; state 0 is the start.

    Attributes
    ----------
    letters : tuple of str
    moves : tuple of tuple of int
        ``moves[state][letter]``.
    accepting : frozenset of int
    """

    letters: tuple[str, ...]
    moves: tuple[tuple[int, ...], ...]
    accepting: frozenset[int]

    @classmethod
    def from_regex(cls, pattern: str, letters: Sequence[str]) -> Automaton:
        """Build the minimal automaton of a regular expression.

        Parameters
        ----------
        pattern : str
            With ``*``, ``+``, ``?``, ``|``, ``&`` (intersection) and parentheses, over single-letter symbols; ``()``
            is the empty word.
        letters : sequence of str

        Raises
        ------
        BadValueError
            If the expression cannot be read or uses other letters.
        MissingExtraError
            Without automata-lib.
        """
        try:
            from automata.fa.dfa import DFA
            from automata.fa.nfa import NFA
        except ImportError:
            raise missing_extra("automata-lib", "protocols", needed_for="Reading regular expressions") from None
        try:
            found = DFA.from_nfa(NFA.from_regex(pattern, input_symbols=set(letters)), minify=False)
        except Exception as error:  # automata-lib raises its own kinds and, for some inputs, plain ones
            raise BadValueError(
                f"The regular expression cannot be read: {error}", given=pattern, allowed=f"letters {' '.join(letters)}"
            ) from None
        return cls.explored(
            tuple(letters),
            found.initial_state,
            lambda state, letter: None if state is None else found.transitions[state].get(letter),
            lambda state: state in found.final_states,
        )

    @classmethod
    def explored(
        cls,
        letters: tuple[str, ...],
        start: Hashable,
        move: Callable[[Any, str], Hashable],
        accepts: Callable[[Any], bool],
    ) -> Automaton:
        """Build the minimal automaton of the states that ``move`` reaches from ``start``."""
        index: dict[Hashable, int] = {start: 0}
        order, moves = [start], []
        for state in order:
            row = []
            for letter in letters:
                target = move(state, letter)
                if target not in index:
                    index[target] = len(order)
                    order.append(target)
                row.append(index[target])
            moves.append(tuple(row))
        accepting = frozenset(number for number, state in enumerate(order) if accepts(state))
        return cls(letters, tuple(moves), accepting).minimal()

    def minimal(self) -> Automaton:
        """Return the minimal automaton, its states in breadth-first order (equal languages give equal automata)."""
        classes = [int(state in self.accepting) for state in range(len(self.moves))]
        while True:
            signature = [(classes[state], *(classes[target] for target in row)) for state, row in enumerate(self.moves)]
            numbers: dict[tuple[int, ...], int] = {}
            refined = [numbers.setdefault(each, len(numbers)) for each in signature]
            if len(numbers) == len(set(classes)):
                break
            classes = refined
        order: list[int] = [0]
        seen = {classes[0]: 0}
        for state in order:
            for target in self.moves[state]:
                if classes[target] not in seen:
                    seen[classes[target]] = len(order)
                    order.append(target)
        moves = tuple(tuple(seen[classes[target]] for target in self.moves[state]) for state in order)
        accepting = frozenset(number for number, state in enumerate(order) if state in self.accepting)
        return Automaton(self.letters, moves, accepting)

    def accepts(self, word: Iterable[str]) -> bool:
        """Return whether the word is in the language."""
        index = {letter: number for number, letter in enumerate(self.letters)}
        state = 0
        for letter in word:
            if letter not in index:
                raise BadValueError("The automaton does not know this letter.", given=letter, allowed=self.letters)
            state = self.moves[state][index[letter]]
        return state in self.accepting


@dataclass(frozen=True, eq=False)
class SyntacticMonoid:
    """The transition monoid of a minimal automaton; element 0 is the identity.

    Attributes
    ----------
    letters : tuple of str
    product : int32 array (elements, elements)
        ``product[x, y]`` is x followed by y.
    generators : tuple of int
        The element of each letter.
    accepting : frozenset of int
        Elements whose words are in the language.
    """

    letters: tuple[str, ...]
    product: NDArray[np.int32]
    generators: tuple[int, ...]
    accepting: frozenset[int]

    @classmethod
    def of(cls, automaton: Automaton, most: int = _MOST_ELEMENTS) -> SyntacticMonoid:
        """Compute it by closing the letters' transformations under composition.

        Raises
        ------
        BadValueError
            If it has more than ``most`` elements.
        """
        automaton = automaton.minimal()
        states = range(len(automaton.moves))
        letters = [tuple(row[number] for row in automaton.moves) for number in range(len(automaton.letters))]
        identity = tuple(states)
        index: dict[tuple[int, ...], int] = {identity: 0}
        order = [identity]
        # Element times letter, and each element as an earlier one times a letter.
        times: list[list[int]] = []
        built = [(0, 0)]
        for number, element in enumerate(order):
            times.append([])
            for place, letter in enumerate(letters):
                found = tuple(letter[target] for target in element)
                if found not in index:
                    if len(order) == most:
                        raise BadValueError("The syntactic monoid is too large.", given=f"more than {most} elements")
                    index[found] = len(order)
                    order.append(found)
                    built.append((number, place))
                times[-1].append(index[found])
        by_letter = np.array(times, np.int32)
        # Rows are second factors while it is filled.
        product = np.empty((len(order), len(order)), np.int32)
        product[0] = np.arange(len(order))
        for number, (earlier, place) in enumerate(built[1:], 1):
            product[number] = by_letter[product[earlier], place]
        product = np.ascontiguousarray(product.T)
        accepting = frozenset(number for number, element in enumerate(order) if element[0] in automaton.accepting)
        return cls(automaton.letters, product, tuple(index[letter] for letter in letters), accepting)

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.product)

    @cached_property
    def idempotent_powers(self) -> NDArray[np.int32]:
        """The idempotent power of every element, int32 array (elements,)."""
        everyone = np.arange(len(self), dtype=np.int32)
        power = everyone
        done = self.product[power, power] == power
        while not done.all():
            # x^k to x^(k+1), for those that are not idempotent yet.
            power = np.where(done, power, self.product[power, everyone])
            done = self.product[power, power] == power
        return power

    @property
    def is_aperiodic(self) -> bool:
        """Whether the language is star-free: x^k x = x^k for the idempotent power k of every x."""
        power = self.idempotent_powers
        return bool((self.product[power, np.arange(len(self))] == power).all())

    @property
    def is_in_DA(self) -> bool:  # noqa: N802 - the variety's name
        """Whether the language is unambiguous star-free."""
        x = np.arange(len(self))[:, None]
        e = self.idempotent_powers[self.product]
        return bool((self.product[self.product[e, np.broadcast_to(x, e.shape)], e] == e).all())

    @property
    def is_commutative(self) -> bool:
        """Whether the language depends on the number of each letter alone."""
        return bool((self.product == self.product.T).all())


def random_star_free(letters: Sequence[str], rng: np.random.Generator, *, states: int, most_elements: int) -> Automaton:
    """Draw a star-free language: a random automaton, drawn again until its monoid is aperiodic and small.

    Parameters
    ----------
    letters : sequence of str
    rng : numpy.random.Generator
    states : int
        Of the automaton before it is minimised.
    most_elements : int
        Bound on the size of the syntactic monoid; languages with a monoid of one element are drawn again, too.

    Raises
    ------
    BadValueError
        For fewer than two states or elements, or no letter: then there is nothing to draw.
    """
    if min(states, most_elements) < 2 or not letters:
        raise BadValueError(
            "There is no such language to draw.",
            given=f"{states} states, {most_elements} elements, {len(letters)} letters",
            allowed="2 or more states and elements, 1 or more letters",
        )
    while True:
        moves = tuple(tuple(int(target) for target in row) for row in rng.integers(0, states, (states, len(letters))))
        accepting = frozenset(int(state) for state in np.flatnonzero(rng.random(states) < 0.5))
        automaton = Automaton(tuple(letters), moves, accepting).minimal()
        try:
            monoid = SyntacticMonoid.of(automaton, most_elements)
        except BadValueError:
            continue
        if len(monoid) > 1 and monoid.is_aperiodic:
            return automaton
