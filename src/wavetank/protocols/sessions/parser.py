"""Reads session protocol files: nuScr and Scribble text, extended by ``mix { .. } or interrupt by q { .. }``.

A lexer of one regular expression and a parser by recursive descent; both know line and column of everything.  The words
``mix``, ``interrupt``, ``connect``, ``explicit``, ... are words of the language only where a statement can begin with
them, so that files which use them as labels or roles read as before.

Source: grammars of nuScr (github.com/nuscr/nuscr) and Scribble (scribble.github.io); the extension follows L. Bocchi,
R. Hu, A. L. Voinea, S. Thompson, "Mixed Choice in Asynchronous Multiparty Session Types", arXiv 2602.23927, 2026.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import NamedTuple, NoReturn

from wavetank.errors import BadFileError, nearest_of
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

PRAGMAS = (
    "NestedProtocols",
    "ShowPragmas",
    "PrintUsage",
    "RefinementTypes",
    "SenderValidateRefinements",
    "ReceiverValidateRefinements",
    "ValidateRefinementSatisfiability",
    "ValidateRefinementProgress",
)
LARGEST_FILE_BYTES = 4 * 2**20
DEEPEST_NESTING = 120

_KEYWORDS = frozenset(
    [
        "protocol",
        "global",
        "nested",
        "aux",
        "role",
        "from",
        "to",
        "choice",
        "at",
        "or",
        "rec",
        "continue",
        "do",
        "calls",
        "new",
        "len",
        "not",
        "true",
        "false",
    ]
)
_STATEMENTS = ("choice", "rec", "continue", "do", "mix", "connect", "disconnect", "wrap", "interruptible", "par")
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f]+)|(?P<newline>\n)|(?P<line>//[^\n]*|\(\*\)[^\n]*)|(?P<pragma>\(\*\#)|(?P<endpragma>\#\*\))"
    r"|(?P<block>/\*)|(?P<mlblock>\(\*)|(?P<string>\"[^\"\n]*\")|(?P<name>[A-Za-z0-9_][A-Za-z0-9_']*)"
    r"|(?P<mark>&&|\|\||<>|<=|>=|[,;:.=+\-<>(){}\[\]@])"
)
_ML_MARK = re.compile(r"\(\*\)|\*\)|\(\*")

_NO_CONNECTIONS = (
    "explicit connections are not projected: here every role is connected to every other from the start; leave out "
    "connect, disconnect and wrap, and write a connecting message as a plain one (`from` .. `to`)"
)


class _Token(NamedTuple):
    kind: str
    text: str
    place: Place


def read_protocols(path: str | Path) -> Module:
    """Read a protocol file (``.gz`` is decompressed).

    Raises
    ------
    BadFileError
        When the file is missing, too large, not text, or breaks the grammar: with line and column.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"The file cannot be read: {error}.", where=str(path)) from error
    if len(content) > LARGEST_FILE_BYTES:
        raise BadFileError(
            "The file is too large for a protocol.", allowed=f"{LARGEST_FILE_BYTES} bytes or less", where=str(path)
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = len(content[content.rfind(b"\n", 0, error.start) + 1 : error.start].decode("utf-8-sig")) + 1
        raise BadFileError(
            "The file is not UTF-8 text.", given=error.reason, where=f"{path}, line {line}, column {column}"
        ) from error
    return parse_protocols(text, path=path.name)


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

    Examples
    --------
    >>> module = parse_protocols("global protocol P(role A, role B) { hi(int) from A to B; }")
    >>> module.protocols[0].roles
    ('A', 'B')
    """
    return _Parser(text, path).module()


def _tokens(text: str, path: str) -> list[_Token]:
    found: list[_Token] = []
    at, line, line_start = 0, 1, 0
    end = len(text)
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            place = Place(line, at - line_start + 1)
            raise BadFileError("This character begins nothing.", given=text[at], where=where(path, place))
        kind, stop = match.lastgroup or "", match.end()
        if kind == "space":
            at = stop
            continue
        if kind == "newline":
            line += 1
            line_start = at = stop
            continue
        place = Place(line, at - line_start + 1)
        if kind == "block":
            stop = text.find("*/", at + 2) + 2
            if stop < 2:
                raise BadFileError("The comment that begins here never ends.", where=where(path, place), hint="*/")
        elif kind == "mlblock":
            stop = _end_of_ml_comment(text, at, path, place)
        elif kind != "line":
            found.append(_Token(kind, match.group(), place))
            at = stop
            continue
        newlines = text.count("\n", at, stop)
        if newlines:
            line += newlines
            line_start = text.rfind("\n", at, stop) + 1
        at = stop
    found.append(_Token("end", "", Place(line, end - line_start + 1)))
    return found


def _end_of_ml_comment(text: str, at: int, path: str, place: Place) -> int:
    depth, position = 1, at + 2
    while depth:
        mark = _ML_MARK.search(text, position)
        if mark is None:
            raise BadFileError("The comment that begins here never ends.", where=where(path, place), hint="*)")
        depth += {"(*)": 0, "*)": -1, "(*": 1}[mark.group()]
        position = mark.end()
    return position


class _Parser:
    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.tokens = _tokens(text, path)
        self.at = 0
        self.depth = 0

    # Tokens

    def peek(self, ahead: int = 0) -> _Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def is_mark(self, text: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return token.kind in ("mark", "pragma", "endpragma") and token.text == text

    def is_word(self, text: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return token.kind == "name" and token.text == text

    def try_mark(self, text: str) -> bool:
        found = self.is_mark(text)
        self.at += found
        return found

    def try_word(self, text: str) -> bool:
        found = self.is_word(text)
        self.at += found
        return found

    def fail(
        self, problem: str, allowed: str | tuple[str, ...], token: _Token | None = None, hint: str = ""
    ) -> NoReturn:
        token = token or self.peek()
        words = (allowed,) if isinstance(allowed, str) else allowed
        raise BadFileError(
            problem,
            given=token.text or "the end of the file",
            allowed=words,
            nearest=nearest_of(token.text, words) if token.kind == "name" else None,
            where=where(self.path, token.place),
            hint=hint or None,
        )

    def mark(self, text: str, after: str) -> _Token:
        if not self.is_mark(text):
            self.fail(f"Something else is written where {after} goes on.", text)
        return self.take()

    def word(self, text: str, after: str) -> _Token:
        if not self.is_word(text):
            self.fail(f"Something else is written where {after} goes on.", text)
        return self.take()

    def name(self, what: str) -> str:
        token = self.peek()
        if token.kind != "name":
            self.fail(f"The name of a {what} is missing.", f"a {what}")
        if token.text in _KEYWORDS:
            self.fail(f"This word of the language cannot name a {what}.", f"a {what}")
        return self.take().text

    def string(self, after: str) -> str:
        if self.peek().kind != "string":
            self.fail(f"Something else is written where {after} goes on.", '"text"')
        return self.take().text[1:-1]

    def names(self, what: str) -> tuple[str, ...]:
        found = [self.name(what)]
        while self.try_mark(","):
            found.append(self.name(what))
        return tuple(found)

    def dotted(self, what: str) -> str:
        parts = [self.name(what)]
        while self.try_mark("."):
            parts.append(self.name(what))
        return ".".join(parts)

    # The file

    def module(self) -> Module:
        pragmas = self.pragmas()
        name, imports, declared = "", [], []
        if self.is_word("module"):
            self.take()
            name = self.dotted("module")
            self.mark(";", "the module's name")
        while True:
            if self.is_word("import"):
                self.take()
                imports.append(self.dotted("module"))
                if self.try_word("as"):
                    self.name("module")
                self.mark(";", "an import")
            elif self.peek().text in ("type", "data", "sig") and self.is_mark("<", 1):
                declared.append(self.declaration())
            else:
                break
        nested: list[Protocol] = []
        protocols: list[Protocol] = []
        while self.peek().kind != "end":
            protocol = self.protocol()
            if protocol.kind == "nested":
                if protocols:
                    raise BadFileError(
                        "Nested protocols stand before the global ones.",
                        given=protocol.name,
                        where=where(self.path, protocol.place),
                        hint="move it up",
                    )
                nested.append(protocol)
            else:
                protocols.append(protocol)
        return Module(self.path, pragmas, tuple(nested), tuple(protocols), name, tuple(imports), tuple(declared))

    def pragmas(self) -> tuple[str, ...]:
        found: list[str] = []
        if not self.try_mark("(*#"):
            return ()
        while not self.try_mark("#*)"):
            token = self.peek()
            if token.text not in PRAGMAS:
                self.fail("There is no such pragma.", PRAGMAS)
            found.append(self.take().text)
            if self.try_mark(":"):
                self.name("pragma's value")
            if not self.try_mark(",") and not self.is_mark("#*)"):
                self.fail("Something else is written where the pragmas go on.", (",", "#*)"))
        return tuple(found)

    def declaration(self) -> str:
        self.take()
        self.mark("<", "a declaration")
        self.dotted("language")
        self.mark(">", "a declaration")
        self.string("a declaration")
        self.word("from", "a declaration")
        self.string("a declaration")
        self.word("as", "a declaration")
        name = self.name("type")
        self.mark(";", "a declaration")
        return name

    def protocol(self) -> Protocol:
        place = self.peek().place
        auxiliary = explicit = False
        kind = ""
        while not kind:
            token = self.peek()
            if token.text == "aux" and token.kind == "name":
                auxiliary = True
            elif token.text == "explicit" and token.kind == "name":
                explicit = True
            elif token.text in ("global", "nested", "local", "protocol") and token.kind == "name":
                kind = "global" if token.text == "protocol" else token.text
                if token.text == "protocol":
                    break
            else:
                self.fail(
                    "A protocol was expected.",
                    ("protocol", "global protocol", "nested protocol", "aux global protocol"),
                    hint="global protocol NAME(role A, role B) { .. }",
                )
            self.take()
        if not self.try_word("protocol") and kind != "global":
            self.fail("Something else is written where a declaration goes on.", "protocol")
        name = self.dotted("protocol")
        if kind == "local":
            self.word("at", "a local protocol")
            self.name("role")
        parametric = self.parameters()
        self.mark("(", "a protocol's name")
        roles = self.role_declarations()
        new_roles: tuple[str, ...] = ()
        if self.try_mark(";"):
            if kind != "nested":
                self.fail("Only a nested protocol brings in new roles.", ")", self.tokens[self.at - 1])
            self.word("new", "the roles")
            new_roles = self.role_declarations()
        self.mark(")", "the roles")
        if self.try_word("instantiates"):
            parametric = True
            self.dotted("protocol")
            self.parameters()
            self.role_arguments()
            self.mark(";", "an instance")
            return Protocol(name, kind, roles, new_roles, (), (), place, auxiliary, explicit, parametric)
        if self.try_mark("@"):
            self.string("an annotation")
        opening = self.mark("{", "a protocol")
        nested = []
        while self.is_word("nested"):
            nested.append(self.protocol())
        body = self.statements(opening)
        return Protocol(name, kind, roles, new_roles, tuple(nested), body, place, auxiliary, explicit, parametric)

    def parameters(self) -> bool:
        if not self.try_mark("<"):
            return False
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                self.fail("The parameters never end.", ">")
            depth += {"<": 1, ">": -1}.get(token.text, 0)
        return True

    def role_declarations(self) -> tuple[str, ...]:
        found = []
        while True:
            self.word("role", "the list of roles")
            found.append(self.name("role"))
            if not self.try_mark(","):
                return tuple(found)

    def block(self, after: str) -> tuple[Statement, ...]:
        return self.statements(self.mark("{", after))

    def statements(self, opening: _Token) -> tuple[Statement, ...]:
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise BadFileError(
                "The blocks are nested too deeply.",
                allowed=f"{DEEPEST_NESTING} or less",
                where=where(self.path, opening.place),
                hint="name a part as a protocol of its own and call it with `do`",
            )
        found: list[Statement] = []
        while not self.try_mark("}"):
            token = self.peek()
            if token.kind == "end":
                raise BadFileError(
                    "The block that begins here never ends.", where=where(self.path, opening.place), hint="}"
                )
            if token.text == "nested" and self.is_word("protocol", 1):
                raise BadFileError(
                    "Nested protocols stand at the start of a block.",
                    where=where(self.path, token.place),
                    hint="move it before the first interaction",
                )
            found.append(self.statement())
        self.depth -= 1
        return tuple(found)

    # Statements

    def statement(self) -> Statement:
        token = self.peek()
        place = token.place
        after = self.peek(1)
        if token.kind == "mark" and token.text == "(":
            return self.message("", place)
        if token.kind != "name":
            self.fail("A statement was expected.", ("label(type) from A to B;", *_STATEMENTS, "}"))
        if token.text == "choice":
            return self.choice()
        if token.text == "rec":
            return self.loop()
        if token.text == "continue":
            self.take()
            name = self.name("recursion")
            values: tuple[Expression, ...] = ()
            if self.try_mark("["):
                values = self.expressions("]")
            self.mark(";", "continue")
            return Continue(name, values, place)
        if token.text == "do":
            self.take()
            return self.call(place, "")
        if after.text == "calls" and after.kind == "name":
            caller = self.name("role")
            self.take()
            return self.call(place, caller)
        if token.text == "mix" and (self.is_mark("{", 1) or (after.kind == "name" and self.is_mark("{", 2))):
            return self.mix()
        special = self.connection() if after.kind in ("name", "mark") else None
        if special is not None:
            return special
        if token.text in _KEYWORDS:
            self.fail("A statement cannot begin with this word.", ("label(type) from A to B;", *_STATEMENTS))
        return self.message(self.take().text, place)

    def message(self, label: str, place: Place) -> Statement:
        payload: list[Payload] = []
        if self.try_mark("("):
            while not self.try_mark(")"):
                payload.append(self.payload())
                if not self.try_mark(",") and not self.is_mark(")"):
                    self.fail("Something else is written where a payload goes on.", (",", ")"))
        if self.is_word("connect"):
            self.take()
            sender = self.name("role")
            self.word("to", "a connection")
            receiver = self.name("role")
            self.mark(";", "a connection")
            return Unsupported(f"connect {sender} to {receiver}", _NO_CONNECTIONS, place)
        if not self.is_word("from"):
            self.fail(
                "Something else is written where a statement goes on.",
                "from",
                hint=f"{label or 'label'}(type) from A to B;",
            )
        self.take()
        sender = self.name("role")
        self.word("to", "a message")
        receivers = self.names("role")
        self.mark(";", "a message")
        annotation = self.string("an annotation") if self.try_mark("@") else ""
        return Message(label, tuple(payload), sender, receivers, place, annotation)

    def payload(self) -> Payload:
        place = self.peek().place
        name = self.dotted("type")
        if self.try_mark("@"):
            return Payload(name, place, delegated=self.name("role"))
        if self.try_mark("<"):
            # A parametrised type such as list<int> is opaque, as every type is.
            self.dotted("type")
            self.mark(">", "a type")
        if not self.try_mark(":"):
            return Payload(name, place)
        kind = self.dotted("type")
        refinement = None
        if self.try_mark("{"):
            refinement = self.expression()
            self.mark("}", "a refinement")
        return Payload(kind, place, name, refinement)

    def choice(self) -> Choice:
        place = self.take().place
        self.word("at", "choice")
        role = self.name("role")
        branches = [self.block("choice")]
        while self.is_word("or"):
            self.take()
            branches.append(self.block("or"))
        return Choice(role, tuple(branches), place)

    def mix(self) -> Mix:
        place = self.take().place
        name = "" if self.is_mark("{") else self.name("mix")
        left = self.block("mix")
        self.word("or", "mix")
        self.word("interrupt", "mix")
        self.word("by", "mix")
        arbiter = self.name("role")
        right = self.block("mix")
        if self.is_word("or"):
            self.fail("A mix has two sides.", "}", hint="put the third one into a mix of its own, inside a side")
        return Mix(left, right, arbiter, place, name)

    def loop(self) -> Loop:
        place = self.take().place
        name = self.name("recursion")
        variables: list[RecursionVariable] = []
        if self.try_mark("["):
            while not self.try_mark("]"):
                variables.append(self.variable())
                if not self.try_mark(",") and not self.is_mark("]"):
                    self.fail("Something else is written where the variables go on.", (",", "]"))
        return Loop(name, tuple(variables), self.block("rec"), place)

    def variable(self) -> RecursionVariable:
        place = self.peek().place
        name = self.name("variable")
        self.mark("<", "a variable")
        roles = self.names("role")
        self.mark(">", "a variable")
        self.mark(":", "a variable")
        bracket = self.try_mark("(")
        payload = self.payload()
        if bracket:
            self.mark(")", "a variable's type")
        self.mark("=", "a variable")
        return RecursionVariable(name, roles, payload, self.expression(), place)

    def call(self, place: Place, caller: str) -> Do:
        if self.peek(1).kind == "mark" and self.is_mark(":", 1):
            # A scope's name, `do scope: P(A, B);`: it only names the call.
            self.name("scope")
            self.take()
        protocol = self.dotted("protocol")
        arguments = self.parameters()
        roles = self.role_arguments()
        self.mark(";", "a call")
        if self.try_mark("@"):
            self.string("an annotation")
        return Do(protocol, roles, place, caller, arguments)

    def role_arguments(self) -> tuple[str, ...]:
        if not self.try_mark("("):
            return ()
        roles = self.names("role")
        self.mark(")", "the roles")
        return roles

    def connection(self) -> Statement | None:
        """Read what Scribble has beyond nuScr, or nothing when the statement is a message."""
        token, after = self.peek(), self.peek(1)
        plain = after.kind == "name" and after.text not in ("from", "connect")
        if token.text in ("connect", "wrap", "disconnect") and plain:
            self.take()
            one = self.name("role")
            joint = "and" if token.text == "disconnect" else "to"
            self.word(joint, token.text)
            other = self.name("role")
            self.mark(";", token.text)
            return Unsupported(f"{token.text} {one} {joint} {other}", _NO_CONNECTIONS, token.place)
        if token.text == "interruptible" and (plain or self.is_mark("{", 1)):
            self.take()
            if not self.is_mark("{"):
                self.name("scope")
            self.block("interruptible")
            self.word("with", "interruptible")
            opening = self.mark("{", "interruptible")
            while not self.try_mark("}"):
                if self.take().kind == "end":
                    raise BadFileError("The block that begins here never ends.", where=where(self.path, opening.place))
            return Unsupported(
                "interruptible",
                "interruptible blocks are not projected: write `mix { .. } or interrupt by ROLE { .. }`, which says "
                "what follows an interrupt",
                token.place,
            )
        if token.text == "par" and self.is_mark("{", 1):
            self.take()
            self.block("par")
            while self.try_word("and"):
                self.block("and")
            return Unsupported(
                "par", "parallel blocks are not projected: write the order, or two protocols", token.place
            )
        return None

    # Expressions: `not` and `-` bind loosest, then && ||, then comparisons, then + -.

    def expressions(self, close: str) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while not self.try_mark(close):
            found.append(self.expression())
            if not self.try_mark(",") and not self.is_mark(close):
                self.fail("Something else is written where the values go on.", (",", close))
        return tuple(found)

    def expression(self) -> Expression:
        place = self.peek().place
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise BadFileError("The expression is nested too deeply.", where=where(self.path, place))
        if self.try_word("not"):
            found = Expression("not", place, parts=(self.expression(),))
        elif self.try_mark("-"):
            found = Expression("neg", place, parts=(self.expression(),))
        else:
            found = self.binary(0)
        self.depth -= 1
        return found

    def binary(self, level: int) -> Expression:
        marks = (("&&", "||"), ("=", "<>", "<", ">", "<=", ">="), ("+", "-"))
        if level == len(marks):
            return self.atom()
        found = self.binary(level + 1)
        while any(self.is_mark(mark) for mark in marks[level]):
            token = self.take()
            found = Expression(token.text, token.place, parts=(found, self.binary(level + 1)))
        return found

    def atom(self) -> Expression:
        token = self.peek()
        if token.kind == "string":
            return Expression("string", token.place, self.take().text[1:-1])
        if self.try_mark("("):
            found = self.expression()
            self.mark(")", "an expression")
            return found
        if self.is_word("not") or self.is_mark("-"):
            # Inside an operation, where nuScr asks for brackets, they bind tightest.
            kind = "not" if self.take().text == "not" else "neg"
            return Expression(kind, token.place, parts=(self.atom(),))
        if token.kind != "name":
            self.fail("A value was expected.", ("a number", "a name", "true", "false", "len(..)"))
        if token.text.isdigit():
            return Expression("int", token.place, int(self.take().text))
        if token.text in ("true", "false"):
            return Expression("bool", token.place, self.take().text == "true")
        if token.text == "len":
            self.take()
            self.mark("(", "len")
            inner = self.expression()
            self.mark(")", "len")
            return Expression("len", token.place, parts=(inner,))
        return Expression("name", token.place, self.name("variable"))
