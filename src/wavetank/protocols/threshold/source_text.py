"""The text of a model file as tokens that know their line and column, and the errors that point at them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from wavetank.errors import BadFileError, nearest_of

T = TypeVar("T")


class Tokens:
    """A cursor over the tokens of a text.

    Parameters
    ----------
    text : str
    where : str
        Name of the file, for messages.
    pattern : re.Pattern
        Matches one token, or blanks and comments in the group ``skip``; the groups ``name`` and ``number`` are those
        kinds of token.
    unclosed : mapping of str to str
        Token that opens a comment and its end: met as a token, the comment never ends.
    """

    END = "end of file"

    def __init__(self, text: str, where: str, pattern: re.Pattern[str], unclosed: dict[str, str]) -> None:
        self.where = where
        self._text = text
        self.words: list[str] = []
        self._starts: list[int] = []
        self._lines: list[int] | None = None
        self.at = 0
        position = 0
        words, starts = self.words, self._starts
        for found in pattern.finditer(text):
            start = found.start()
            if start != position:
                self._stray(position)
            position = found.end()
            if found.lastgroup != "skip":
                words.append(found.group())
                starts.append(start)
        if position != len(text):
            self._stray(position)
        for opening, closing in unclosed.items():
            if opening in words:
                self.fail(
                    "A comment does not end.",
                    given=opening,
                    allowed=f"{closing} at its end",
                    at=words.index(opening),
                )
        words.append(self.END)
        starts.append(len(text))

    def _stray(self, position: int) -> NoReturn:
        self.words.append(self._text[position])
        self._starts.append(position)
        self.fail(
            "There is a character that means nothing here.",
            given=repr(self._text[position]),
            at=len(self.words) - 1,
        )

    @property
    def word(self) -> str:
        """The token under the cursor."""
        return self.words[self.at]

    def after(self, steps: int = 1) -> str:
        """Return the token that many steps ahead."""
        return self.words[min(self.at + steps, len(self.words) - 1)]

    def place(self, at: int | None = None) -> str:
        """Return file, line and column of a token, by default of the one under the cursor."""
        line, column = self.line_and_column(at)
        return f"{self.where}, line {line}, column {column}"

    def line_and_column(self, at: int | None = None) -> tuple[int, int]:
        """Return line and column of a token, both from 1."""
        start = self._starts[self.at if at is None else at]
        if self._lines is None:
            self._lines = [-1, *(found.start() for found in re.finditer("\n", self._text))]
        line = bisect.bisect_left(self._lines, start)
        return line, start - self._lines[line - 1]

    def next(self) -> str:
        """Return the token under the cursor and step over it."""
        word = self.words[self.at]
        if self.at < len(self.words) - 1:
            self.at += 1
        return word

    def take(self, word: str) -> bool:
        """Step over the token if it is ``word``."""
        if self.words[self.at] != word:
            return False
        self.at += 1
        return True

    def expect(self, *words: str) -> str:
        """Step over one of ``words``, or fail saying that they were expected."""
        if self.words[self.at] not in words:
            self.expected(*words)
        return self.next()

    def listed(self, read: Callable[[], T]) -> list[T]:
        """Read one item or several, with commas between them."""
        found = [read()]
        while self.take(","):
            found.append(read())
        return found

    def end_item(self, separator: str, end: str) -> None:
        """Step over what ends an item of a list; before the list's end it may be missing."""
        if not self.take(separator) and self.word != end:
            self.expected(separator, end)

    def name(self, what: str) -> str:
        """Step over a name."""
        word = self.words[self.at]
        if not (word[0].isalpha() or word[0] == "_") or word == self.END:
            self.expected(what)
        self.at += 1
        return word

    def number(self, what: str) -> int:
        """Step over a natural number."""
        word = self.words[self.at]
        if not word.isdigit():
            self.expected(what)
        if len(word) > 18:
            self.fail("The number is too large.", given=word, allowed="at most 18 digits")
        self.at += 1
        return int(word)

    def expected(self, *what: str) -> NoReturn:
        """Fail because something else should be under the cursor."""
        self.fail(
            f"Expected {' or '.join(what)}.",
            given=self.word,
            allowed=what,
            nearest=nearest_of(self.word, [item for item in what if " " not in item]),
        )

    def fail(
        self,
        problem: str,
        *,
        given: str = "",
        allowed: str | Iterable[str] | None = None,
        nearest: str | None = None,
        at: int | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise the error that points at a token, by default at the one under the cursor."""
        raise BadFileError(
            problem, given=given or self.word, allowed=allowed, nearest=nearest, where=self.place(at), hint=hint
        )
