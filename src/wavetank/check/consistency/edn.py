"""A reader of EDN, Clojure's data notation: as much of it as recorded histories use, and nothing that runs code.

One regular expression cuts the text into tokens and an explicit stack builds the forms, so that no input, however deep,
can exhaust the interpreter's own stack.

Source: R. Hickey, "extensible data notation", github.com/edn-format/edn.

Differs from the source:
1. Keywords and symbols are :class:`Word`, a string without the colon; characters are strings of length one.
2. A tag before a form is read and left out; the form stays.
3. Sets are read as :class:`Set`, tuples in the order of the text, for their elements may be maps.
4. Forms nest at most 64 deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from wavetank.errors import BadFileError

DEEPEST = 64

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|;[^\n]*)
      | :(?P<keyword>[^\s,()\[\]{}";\\]+)
      | (?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[NM]?(?![^\s,()\[\]{}";]))
      | (?P<open>[(\[{]|\#\{)
      | (?P<close>[)\]}])
      | "(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"
      | \\(?P<character>newline|space|tab|return|u[0-9a-fA-F]{4}|.)
      | \#\#(?P<special>-?Inf|NaN)
      | (?P<discard>\#_)
      | \#(?P<tag>[A-Za-z][^\s,()\[\]{}";\\]*)
      | (?P<symbol>[^\s,()\[\]{}";\\\#:][^\s,()\[\]{}";\\]*)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_NAMED = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}
_CONSTANTS = {"nil": None, "true": True, "false": False}


class Word(str):
    """A keyword or symbol: equal to the string of its name."""

    __slots__ = ()


class Set(tuple[Any, ...]):
    """A set in the order of the text."""

    __slots__ = ()


class Map(dict[Any, Any]):
    """A map that knows where in the text it began."""

    __slots__ = ("at",)

    at: int


class Source(NamedTuple):
    """A text, and the file that it is from."""

    text: str
    where: str

    def place(self, at: int) -> str:
        """Return line and column, from 1, of a position in the text."""
        return f"line {self.text.count(chr(10), 0, at) + 1}, column {at - self.text.rfind(chr(10), 0, at)}"

    def fail(self, problem: str, at: int, **facts: Any) -> NoReturn:
        """Raise the error about a position in the text."""
        raise BadFileError(problem, **{"where": f"{self.where}, {self.place(at)}", **facts})


def forms_of(text: str, where: str, *, spread: bool = False) -> Iterator[Any]:
    """Read the forms of a text one after another, so that what was read need not be held.

    Parameters
    ----------
    text : str
    where : str
        The file, for messages.
    spread : bool
        If the first form is a vector or list, yield its elements in its place.

    Yields
    ------
    object
        Maps as :class:`Map`; sets as :class:`Set`; vectors and lists as tuples; keywords and symbols as
        :class:`Word`; strings, int, float, bool and None as themselves.

    Raises
    ------
    BadFileError
        With line and column.
    """

    fail = Source(text, where).fail
    # One frame per form under way: its opening, where it began, its elements, and how many of them to discard.
    stack: list[tuple[str, int, list[Any], int]] = []
    here: list[Any] = []
    discards = 0
    # Whether elements of the form that is open now are yielded: of the first one of all, if that is asked for.
    is_spread, is_first, has_ended = False, True, False
    at, match = 0, _TOKEN.match
    end = len(text)
    while at < end:
        token = match(text, at)
        if token is None:
            fail("This is no EDN.", at, given=text[at : at + 20])
        start, at = at, token.end()
        kind = token.lastgroup
        if kind == "space" or kind == "tag":
            continue
        if has_ended and not stack and kind != "discard" and not discards:
            fail("Something follows the form that holds all others.", start, given=text[start : start + 20])
        value: Any
        if kind == "number":
            value = _number(token["number"])
            if value is None:
                fail("A number is too long.", start)
        elif kind == "string":
            value = token["string"]
            if "\\" in value:
                value = _unescaped(value)
                if value is None:
                    fail("A string has an escape that EDN does not know.", start)
        elif kind == "open":
            if len(stack) == DEEPEST:
                fail("Forms are nested too deeply.", start, allowed=f"up to {DEEPEST} levels")
            if spread and is_first and not stack and not discards and token["open"] in ("(", "["):
                is_spread = True
            stack.append((token["open"], start, here, discards))
            here, discards = [], 0
            continue
        elif kind == "close":
            if not stack or _CLOSES[stack[-1][0]] != token["close"]:
                wanted = _CLOSES[stack[-1][0]] if stack else "the end or a new form"
                fail("A bracket closes nothing.", start, given=token["close"], allowed=wanted)
            if discards:
                fail("Nothing follows the discard mark #_.", start)
            opening, began, outer, discards = stack.pop()
            value = here
            here = outer
            if is_spread and not stack:
                # All of it was yielded.
                is_spread, is_first, has_ended = False, False, True
                continue
            if opening == "{":
                if len(value) % 2:
                    fail("A map has a key without a value.", began)
                value = _map(value, began)
                if value is None:
                    fail("A map has a key that cannot be a key.", began)
            else:
                value = Set(value) if opening == "#{" else tuple(value)
        elif kind == "discard":
            discards += 1
            continue
        else:
            value = _atom(token)
        if discards:
            discards -= 1
        elif len(stack) == is_spread:
            is_first = False
            yield value
        else:
            here.append(value)
    if stack:
        opening, began, _, _ = stack[-1]
        fail("A bracket is never closed.", began, given=opening, allowed=_CLOSES[opening])


def _atom(token: re.Match[str]) -> str | float | bool | None:
    """Return what a keyword, symbol, character or special number stands for."""
    kind, text = token.lastgroup, token[token.lastgroup or 0]
    if kind == "keyword":
        return Word(text)
    if kind == "special":
        return float(text.lower())
    if kind == "symbol":
        return _CONSTANTS[text] if text in _CONSTANTS else Word(text)
    return _NAMED.get(text) or (chr(int(text[1:], 16)) if len(text) == 5 else text)


def _number(text: str) -> int | float | None:
    text = text.rstrip("NM")
    if len(text) > 4000:
        return None
    return float(text) if "." in text or "e" in text or "E" in text else int(text)


def _unescaped(text: str) -> str | None:
    parts = re.split(r"\\(u[0-9a-fA-F]{4}|.)", text, flags=re.DOTALL)
    for number in range(1, len(parts), 2):
        escape = parts[number]
        if len(escape) == 5:
            parts[number] = chr(int(escape[1:], 16))
        elif escape in _ESCAPES:
            parts[number] = _ESCAPES[escape]
        else:
            return None
    return "".join(parts)


def _map(flat: list[Any], began: int) -> Map | None:
    try:
        found = Map(zip(flat[::2], flat[1::2], strict=True))
    except TypeError:
        return None
    found.at = began
    return found
