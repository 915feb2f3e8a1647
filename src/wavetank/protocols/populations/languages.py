"""Languages to be decided, and what protocol each way of building protocols has for them.

Regular languages are given by an expression, others by a linear bounded automaton.  A language also makes words to try
a protocol on: one that belongs to it, the same with one letter changed, and a random one.

The classes are those of "Population Protocols over Ordered Agents", arXiv 2605.09937.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import PopulationProtocol
from wavetank.protocols.populations.successor_compiler import LinearBoundedAutomaton
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid


@dataclass(frozen=True)
class Language:
    """A set of words of at least one letter.

    Attributes
    ----------
    name : str
    letters : tuple of str
    automaton : Automaton or None
        For a regular language.
    bounded : LinearBoundedAutomaton or None
        For a language that is not regular.
    kind : str
        ``"halves"`` for a^n b^n, ``"majority"`` for more a than b, ``"palindromes"``; empty for a regular language.
    """

    name: str
    letters: tuple[str, ...]
    automaton: Automaton | None = None
    bounded: LinearBoundedAutomaton | None = field(default=None, compare=False)
    kind: str = ""

    @classmethod
    def regular(cls, name: str, pattern: str, letters: Sequence[str] = ("a", "b")) -> Language:
        """Build a language from a regular expression (see :meth:`Automaton.from_regex`)."""
        return cls(name, tuple(letters), Automaton.from_regex(pattern, letters))

    @cached_property
    def monoid(self) -> SyntacticMonoid | None:
        """The syntactic monoid of a regular language, None for another."""
        return None if self.automaton is None else SyntacticMonoid.of(self.automaton)

    def contains(self, word: Sequence[str]) -> bool:
        """Return whether the word belongs to the language."""
        if self.automaton is not None:
            return self.automaton.accepts(word)
        if self.kind == "majority":
            return list(word).count("a") > list(word).count("b")
        if self.bounded is None:
            raise BadValueError("The language has no definition.", given=self.name, where="Language")
        return self.bounded.accepts(word)

    def word_in(self, n: int, rng: np.random.Generator) -> tuple[str, ...] | None:
        """Draw a word of n letters from the language (uniformly for a regular one), None when there is none."""
        if self.automaton is not None:
            return _word_of(self.automaton, n, rng)
        if self.kind == "halves":
            return None if n % 2 else ("a",) * (n // 2) + ("b",) * (n // 2)
        half = tuple(str(letter) for letter in rng.choice(self.letters, n // 2))
        if self.kind == "majority":
            more = n // 2 + 1
            return tuple(str(letter) for letter in rng.permutation(["a"] * more + ["b"] * (n - more)))
        middle = tuple(str(letter) for letter in rng.choice(self.letters, n % 2))
        return half + middle + half[::-1]

    def words(self, n: int, rng: np.random.Generator) -> list[tuple[str, ...]]:
        """Draw words of n letters: a random one and, where there is one, a member with and without a letter changed."""
        found = [tuple(str(letter) for letter in rng.choice(self.letters, n))]
        member = self.word_in(n, rng)
        if member is not None:
            place = int(rng.integers(n))
            others = [letter for letter in self.letters if letter != member[place]] or list(self.letters)
            changed = (*member[:place], str(rng.choice(others)), *member[place + 1 :])
            found += [member, changed]
        return found


@dataclass(frozen=True, kw_only=True)
class SequentialReader:
    """One reader with the minimal automaton: what the answer is, and what it costs when nobody has to meet."""

    def protocol(self, language: Language) -> PopulationProtocol | None:
        """Return None: it is no population."""
        return None

    def read(self, language: Language, word: Sequence[str]) -> tuple[bool, int]:
        """Return the verdict and the letters read."""
        return language.contains(word), len(word)


def known_languages() -> tuple[Language, ...]:
    """Return the languages of the study: inside the class, outside it but regular, and beyond."""
    letters = ("a", "b")
    nested = LinearBoundedAutomaton.nested
    return (
        Language.regular("first letter a", "a(a|b)*"),
        Language.regular("some a", "(a|b)*a(a|b)*"),
        Language.regular("a*b*", "a*b*"),
        Language.regular("a then later b", "(a|b)*a(a|b)*b(a|b)*"),
        Language.regular("at least three a", "b*ab*ab*a(a|b)*"),
        Language.regular("even number of a", "b*(ab*ab*)*"),
        Language.regular("(ab)*", "(ab)*"),
        Language.regular("some aa", "(a|b)*aa(a|b)*"),
        Language("more a than b", letters, kind="majority"),
        Language("a^n b^n", letters, bounded=nested(letters, [("a", "b")]), kind="halves"),
        Language(
            "palindromes", letters, bounded=nested(letters, [("a", "a"), ("b", "b")], odd=True), kind="palindromes"
        ),
    )


def _word_of(automaton: Automaton, n: int, rng: np.random.Generator) -> tuple[str, ...] | None:
    """Draw an accepted word of n letters, uniformly: by how many ways lead on from each state."""
    ways = [[int(state in automaton.accepting) for state in range(len(automaton.moves))]]
    for _ in range(n):
        ways.append([sum(ways[-1][target] for target in row) for row in automaton.moves])
    if not ways[n][0]:
        return None
    state, word = 0, []
    for left in range(n, 0, -1):
        row = automaton.moves[state]
        # Whole numbers can be huge: shares of them are drawn as floats.
        shares = np.array([ways[left - 1][target] / ways[left][state] for target in row])
        number = int(rng.choice(len(row), p=shares / shares.sum()))
        word.append(automaton.letters[number])
        state = row[number]
    return tuple(word)
