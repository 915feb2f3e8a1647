"""Reads session protocol files: nuScr and Scribble text, extended by ``mix { .. } or interrupt by q { .. }``.

The grammar is ``nuscr.lark``, whose rules build the syntax; the tokens are made here, faster than lark would.  Words
such as ``mix``, ``interrupt``, ``connect`` and ``explicit`` are words of the language only where a statement can begin
with them, so that files which use them as labels or roles read as before.

Source: grammars of nuScr (github.com/nuscr/nuscr) and Scribble (scribble.github.io); the extension follows L. Bocchi,
R. Hu, A. L. Voinea, S. Thompson, "Mixed Choice in Asynchronous Multiparty Session Types", arXiv 2602.23927, 2026.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from wavetank.errors import BadFileError, missing_extra, nearest_of
from wavetank.files import read_text
from wavetank.protocols.sessions.syntax import (
    Choice,
    Continue,
    Do,
    Expression,
    Loop,
    Message,
    Mix,
    Module,
    Payload,
    Place,
    Protocol,
    RecursionVariable,
    Statement,
    Unsupported,
    where,
)

if TYPE_CHECKING:
    from lark import Lark

LARGEST_FILE_BYTES = 4 * 2**20
DEEPEST_NESTING = 120

# Words that name nothing.
_RESERVED = frozenset((
    "protocol", "global", "nested", "aux", "role", "from", "to", "choice", "at", "or", "rec", "continue", "do", "calls",
    "new", "len", "not", "true", "false",
))  # fmt: skip
_TOKEN = re.compile(
    r"[ \t\r\f]*(?:(?P<name>[A-Za-z0-9_][A-Za-z0-9_']*)|(?P<line>\n[ \t\r\f\n]*|//[^\n]*|\(\*\)[^\n]*)|(?P<block>/\*)"
    r"|(?P<mark>\(\*\#|\#\*\)|&&|\|\||<>|<=|>=|\((?!\*)|[,;:.=+\-<>){}\[\]@])|(?P<ml>\(\*)|(?P<text>\"[^\"\n]*\")"
    r"|(?P<end>\Z)|(?P<stray>.))"
)
_ML_MARK = re.compile(r"\(\*\)|\*\)|\(\*")
_COMMENTS = {"block": "*/", "ml": "*)"}
_HINTS = {
    "from": "label(type) from A to B;",
    "protocol": "global protocol NAME(role A, role B) { .. }",
    "new": "new role C",
}
_UNSUPPORTED = {
    "connect": "explicit connections are not projected: here every role is connected to every other from the start; "
    "leave out connect, disconnect and wrap, and write a connecting message as a plain one (`from` .. `to`)",
    "interruptible": "interruptible blocks are not projected: write `mix { .. } or interrupt by ROLE { .. }`, which "
    "says what follows an interrupt",
    "par": "parallel blocks are not projected: write the order, or two protocols",
}


# An expression and how deep it is.
_Deep = tuple[Expression, int]


class _RefusedError(Exception):
    """What the grammar allows and the language does not, with its place and the parts of the message."""

    def __init__(self, problem: str, place: Place, **parts: Any) -> None:
        super().__init__(problem)
        self.place = place
        self.parts = parts


def read_protocols(path: str | Path) -> Module:
    """Read a protocol file, plain or gzipped.

    Raises
    ------
    BadFileError
        When the file is missing, too large, not text, or breaks the grammar: with line and column.
    MissingExtraError
        Without lark.
    """
    path = Path(path)
    return parse_protocols(read_text(path, largest_bytes=LARGEST_FILE_BYTES), path=path.name)


def parse_protocols(text: str, *, path: str = "protocol") -> Module:
    """Parse the text of a protocol file.

    Parameters
    ----------
    text : str
    path : str
        Name shown in messages.

    Raises
    ------
    BadFileError
    MissingExtraError
        Without lark.

    Examples
    --------
    >>> module = parse_protocols("global protocol P(role A, role B) { hi(int) from A to B; }")
    >>> module.protocols[0].roles
    ('A', 'B')
    """
    try:
        return replace(_parsed(text), path=path)
    except _RefusedError as error:
        raise BadFileError(str(error), where=where(path, error.place), **error.parts) from None


class _Token(NamedTuple):
    type: str
    text: str
    place: Place


class _Spread:
    """Hands the parts of a rule to its meaning one by one."""

    def __init__(self, meanings: object) -> None:
        self.meanings = meanings

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        meaning = getattr(self.meanings, name)
        return lambda parts: meaning(*parts)


@functools.cache
def _grammar() -> tuple[Lark, dict[int, dict[str, str]]]:
    """Return the parser, and the terminals of each of its states by word, mark, ``name`` or ``"`` (for a text)."""
    try:
        from lark import Lark
    except ImportError:
        raise missing_extra("lark", "protocols", needed_for="Reading session protocols") from None
    text = importlib.resources.files(__package__).joinpath("nuscr.lark").read_text(encoding="utf-8")
    lark = Lark(text, parser="lalr", lexer="basic", transformer=_Spread(_Meanings()))
    spelt = {each.name: each.pattern.value for each in lark.terminals}
    states = lark.parse_interactive().parser_state.parse_conf.states
    return lark, {
        state: {spelt.get(each) or _spelling(each): each for each in names if each.isupper()}
        for state, names in states.items()
    }


def _spelling(terminal: str) -> str:
    if terminal.lstrip("_").startswith("A_"):
        return '"' if terminal.endswith("TEXT") else "name"
    return terminal.lower()


def _parsed(text: str) -> Module:
    lark, terminals = _grammar()
    from lark import UnexpectedToken

    parser = lark.parse_interactive()
    state = parser.parser_state
    found: Any = None
    opened: list[_Token] = []
    for kind, word, place in _tokens(text):
        here = terminals[state.position]
        name = here.get('"' if kind == "text" else word)
        if not name and kind == "name" and word not in _RESERVED:
            name = here.get("name")
        token = _Token(name or ("ANY" if word else "$END"), word, place)
        try:
            found = state.feed_token(token, not word)
        except UnexpectedToken:
            accepted = parser.accepts()
            here = {each: name for each, name in terminals[state.position].items() if name in accepted}
            raise _refused(token, here, opened) from None
        # Among parameters and in what follows `with`, brackets stand for themselves.
        if name and kind == "mark":
            if word in "{(":
                opened.append(token)
            elif word in ")}":
                opened.pop()
            if len(opened) > DEEPEST_NESTING:
                raise _RefusedError(
                    "The brackets are nested too deeply.",
                    place,
                    allowed=f"{DEEPEST_NESTING} or less",
                    hint="name a part as a protocol of its own and call it with `do`",
                )
    return cast(Module, found)


def _tokens(text: str) -> Iterator[tuple[str, str, Place]]:
    """Yield kind, text and place of each token, the last one empty."""
    stop, line, line_start = 0, 1, 0
    kind = ""
    while kind != "end":
        match = cast(re.Match[str], _TOKEN.match(text, stop))
        kind = cast(str, match.lastgroup)
        at, stop = match.span(kind)
        if kind in ("name", "mark", "text", "end"):
            yield kind, text[at:stop], Place(line, at - line_start + 1)
            continue
        if kind == "stray":
            raise _RefusedError("This character begins nothing.", Place(line, at - line_start + 1), given=text[at])
        if kind in _COMMENTS:
            stop = text.find("*/", stop) + 2 if kind == "block" else _end_of_ml_comment(text, stop)
            if stop < at + 2:
                place = Place(line, at - line_start + 1)
                raise _RefusedError("The comment that begins here never ends.", place, hint=_COMMENTS[kind])
        newlines = text.count("\n", at, stop)
        if newlines:
            line += newlines
            line_start = text.rfind("\n", at, stop) + 1


def _end_of_ml_comment(text: str, at: int) -> int:
    depth = 1
    for mark in _ML_MARK.finditer(text, at):
        depth += {"(*)": 0, "*)": -1, "(*": 1}[mark.group()]
        if not depth:
            return mark.end()
    return 0


def _refused(token: _Token, accepted: dict[str, str], opened: list[_Token]) -> _RefusedError:
    """Return what is wrong with a token where these are accepted: word or mark to terminal."""
    if not token.text and "}" in accepted:
        opening = next(each for each in reversed(opened) if each.text == "{")
        return _RefusedError("The block that begins here never ends.", opening.place, hint="}")
    kinds = [accepted.pop(each).strip("_").replace("_", " ").lower() for each in ("name", '"') if each in accepted]
    ends = ["the end of the file"] if accepted.pop("$end", None) else []
    words = sorted(accepted)
    allowed = [*kinds, *words, *ends]
    shown = [*kinds, *(f"`{each}`" for each in words), *ends]
    problem = f"Expected {' or '.join(shown)}." if len(shown) < 5 else "Something else is expected here."
    if kinds and token.text in _RESERVED:
        problem = f"{problem[:-1]}; `{token.text}` is a word of the language."
    return _RefusedError(
        problem,
        token.place,
        given=token.text or "the end of the file",
        allowed=allowed,
        nearest=nearest_of(token.text, words),
        hint=next((_HINTS[each] for each in words if each in _HINTS), None),
    )


def _text(token: _Token | None) -> str:
    return token.text if token else ""


def _refuse_nested(items: Iterable[Any], problem: str, hint: str) -> None:
    for late in filter(_is_nested, items):
        raise _RefusedError(problem, late.place, given=late.name, hint=hint)


def _is_nested(item: Any) -> bool:
    return isinstance(item, Protocol) and item.kind == "nested"


def _deeper(kind: str, mark: _Token, *parts: _Deep) -> _Deep:
    depth = 1 + max(each for _, each in parts)
    if depth > DEEPEST_NESTING:
        raise _RefusedError("The expression is nested too deeply.", mark.place, allowed=f"{DEEPEST_NESTING} or less")
    return Expression(kind, mark.place, parts=tuple(part for part, _ in parts)), depth


class _Meanings:
    """What the rules of the grammar mean, by their names; ``None`` stands for a part left out."""

    def several(self, *items: Any) -> tuple[Any, ...]:
        return items

    headers = items = protocols = modifiers = new_roles = variables = values = payloads = several

    def names(self, *names: _Token) -> tuple[str, ...]:
        return tuple(name.text for name in names)

    pragmas = roles = names

    def dotted(self, *names: _Token) -> _Token:
        return names[0]._replace(text=".".join(name.text for name in names)) if len(names) > 1 else names[0]

    def start(self, pragmas: Any, name: Any, headers: Any, protocols: Any) -> Module:
        nested = tuple(itertools.takewhile(_is_nested, protocols))
        others = protocols[len(nested) :]
        _refuse_nested(others, "Nested protocols stand before the global ones.", "move it up")
        imports, declared = (tuple(name for kind, name in headers if kind == each) for each in ("import", "declared"))
        return Module("", pragmas or (), nested, others, _text(name), imports, declared)

    def importing(self, name: _Token) -> tuple[str, str]:
        return "import", name.text

    def declaration(self, language: _Token, name: _Token) -> tuple[str, str]:
        return "declared", name.text

    def protocol(self, modifiers: Any, found: Protocol) -> Protocol:
        if not modifiers:
            return found
        words = [each.text for each in modifiers]
        return replace(found, place=modifiers[0].place, auxiliary="aux" in words, explicit="explicit" in words)

    def declared(self, word: _Token, name: _Token, parameters: Any, roles: Any, new: Any, inside: Any) -> Protocol:
        if new and word.text != "nested":
            raise _RefusedError("Only a nested protocol brings in new roles.", new[0].place, given=";", allowed=")")
        kind = "global" if word.text == "protocol" else word.text
        parametric = bool(parameters or not inside)
        nested, statements = inside or ((), ())
        new_roles = new[1] if new else ()
        return Protocol(name.text, kind, roles, new_roles, nested, statements, word.place, parametric=parametric)

    nested = declared

    def parameters(self, *_: Any) -> bool:
        return True

    def instance(self, *_: Any) -> None:
        return None

    def body(self, items: tuple[Any, ...]) -> tuple[tuple[Protocol, ...], tuple[Statement, ...]]:
        nested = tuple(itertools.takewhile(_is_nested, items))
        return nested, self.block(items[len(nested) :])

    def block(self, items: tuple[Any, ...]) -> tuple[Statement, ...]:
        _refuse_nested(items, "Nested protocols stand at the start of a block.", "move it before the first interaction")
        return items

    def message(self, label: Any, payloads: Any, sender: _Token, receivers: Any, annotation: Any) -> Message:
        opening, *inside = payloads or (label,)
        place = (label or opening).place
        return Message(_text(label), tuple(inside), sender.text, receivers, place, _text(annotation).strip('"'))

    def unlabelled(self) -> None:
        return None

    def payload(self, name: _Token, opaque: Any, kind: _Token | None, refinement: _Deep | None) -> Payload:
        if kind is None:
            return Payload(name.text, name.place)
        return Payload(kind.text, name.place, name.text, refinement[0] if refinement else None)

    def delegation(self, name: _Token, role: _Token) -> Payload:
        return Payload(name.text, name.place, delegated=role.text)

    def connecting(self, label: Any, payloads: Any, sender: _Token, receiver: _Token) -> Unsupported:
        place = (label or payloads[0]).place
        return Unsupported(f"connect {sender.text} to {receiver.text}", _UNSUPPORTED["connect"], place)

    def connection(self, word: _Token, one: _Token, joint: _Token, other: _Token) -> Unsupported:
        return Unsupported(f"{word.text} {one.text} {joint.text} {other.text}", _UNSUPPORTED["connect"], word.place)

    def par(self, word: _Token, *_: Any) -> Unsupported:
        return Unsupported(word.text, _UNSUPPORTED[word.text], word.place)

    interruptible = par

    def choice(self, word: _Token, role: _Token, *branches: Any) -> Choice:
        return Choice(role.text, branches, word.place)

    def mix(self, word: _Token, name: _Token | None, left: Any, arbiter: _Token, right: Any) -> Mix:
        return Mix(left, right, arbiter.text, word.place, _text(name))

    def third(self, word: _Token, block: Any) -> NoReturn:
        raise _RefusedError(
            "A mix has two sides.",
            word.place,
            given="or",
            allowed="}",
            hint="put the third one into a mix of its own, inside a side",
        )

    def loop(self, word: _Token, name: _Token, variables: Any, body: Any) -> Loop:
        return Loop(name.text, variables or (), body, word.place)

    def variable(self, name: _Token, roles: Any, payload: Payload, start: _Deep) -> RecursionVariable:
        return RecursionVariable(name.text, roles, payload, start[0], name.place)

    def recur(self, word: _Token, name: _Token, values: Any) -> Continue:
        return Continue(name.text, tuple(value for value, _ in values or ()), word.place)

    def call(self, word: _Token, scope: Any, protocol: _Token, parameters: Any, roles: Any) -> Do:
        caller = "" if word.text == "do" else word.text
        return Do(protocol.text, roles or (), word.place, caller, bool(parameters))

    def prefixed(self, word: _Token, inner: _Deep) -> _Deep:
        return _deeper("neg" if word.text == "-" else word.text, word, inner)

    def binary(self, left: _Deep, mark: _Token, right: _Deep) -> _Deep:
        return _deeper(mark.text, mark, left, right)

    def string(self, token: _Token) -> _Deep:
        return Expression("string", token.place, token.text[1:-1]), 1

    def truth(self, token: _Token) -> _Deep:
        return Expression("bool", token.place, token.text == "true"), 1

    def value(self, token: _Token) -> _Deep:
        if not token.text.isdigit():
            return Expression("name", token.place, token.text), 1
        if len(token.text) > 18:
            raise _RefusedError("The number is too large.", token.place, given=token.text, allowed="at most 18 digits")
        return Expression("int", token.place, int(token.text)), 1
