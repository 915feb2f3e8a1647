"""Reads ``.ta`` and ``.eta`` files: the language of ByMC with the liberties that published models take.

Source: the grammar of ByMC (Konnov et al., github.com/konnov/bymc, ``doc/ta-format.md``) and the documentation of TACO.

Differs from the source:

1. Sections may come in any order that declares names before they are used; counts in parentheses are not compared.
2. ``:=`` and ``==`` both assign; ``reset(x)`` sets to zero; the last ``;`` of a list may be missing.
3. Macros are expanded while reading, so that what is written back holds none.
4. Division is that of integers, rounded down, and only parameters can be divided.
5. An update wins over an ``unchanged`` that contradicts it, and numbers of rules may repeat: published files do both.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from wavetank.errors import nearest_of
from wavetank.files import read_text
from wavetank.protocols.threshold.automaton import Rule, ThresholdAutomaton
from wavetank.protocols.threshold.expressions import FALSE, TRUE, Formula, Linear
from wavetank.protocols.threshold.formula_reader import FormulaReader, Notation
from wavetank.protocols.threshold.source_text import Tokens

LARGEST_FILE_BYTES = 64 * 2**20
_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n\f]+|/\*(?s:.*?)\*/|//[^\n]*)"
    r"|[A-Za-z_][A-Za-z0-9_]*|\d+|/\*|\[\]|<>|->|==|:=|!=|=!|<=|>=|&&|\|\||[-+*/()\[\]{};:,<>!'=]"
)
NOTATION = Notation(
    binary={"->": "->", "||": "||", "&&": "&&", "+": "+", "-": "-", "*": "*", "/": "/"},
    relations={"==": "==", "!=": "!=", "=!": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="},
    prefix={"!": "not", "[]": "always", "<>": "eventually"},
    truths={"true": TRUE, "false": FALSE},
)
_HEADS = ("skel", "ta", "TA", "thresholdAutomaton", "threshAuto")
_SECTIONS = (
    "local", "shared", "parameters", "define", "assumptions", "assume", "locations", "inits", "rules",
    "specifications", "spec",
)  # fmt: skip
_RESERVED = frozenset((*_SECTIONS, *_HEADS, "when", "do", "true", "false", "unchanged", "reset"))


def read_automaton(path: Path) -> ThresholdAutomaton:
    """Read a file; its language follows from the end of its name (``.ta``, ``.eta``, ``.tla``, each also with ``.gz``).

    Raises
    ------
    BadFileError
        With file, line, column and what was expected.
    """
    text = read_text(path, largest_bytes=LARGEST_FILE_BYTES)
    if path.name.removesuffix(".gz").endswith(".tla"):
        from wavetank.protocols.threshold.tla import parse_tla

        return parse_tla(text, str(path))
    return parse_automaton(text, str(path))


def parse_automaton(text: str, where: str = "text") -> ThresholdAutomaton:
    """Read the text of a ``.ta`` or ``.eta`` file.

    Parameters
    ----------
    text : str
    where : str
        Name of the file, for messages.

    Raises
    ------
    BadFileError
    """
    return _Reading(Tokens(text, where, _TOKEN, {"/*": "*/"})).automaton()


class _Reading:
    """One pass over a file."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.locals: list[str] = []
        self.counters: dict[str, None] = {}
        self.parameters: dict[str, None] = {}
        self.macros: dict[str, Linear] = {}
        self.locations: dict[str, tuple[int, ...]] = {}
        self.assumptions: list[Formula] = []
        self.initial: list[Formula] = []
        self.rules: list[Rule] = []
        self.specifications: list[tuple[str, Formula]] = []
        # What a name stands for, by the place where it stands.
        self.linear: dict[str, Linear] = {}
        self.scope: tuple[Collection[str], ...] = ()
        self.place = ""
        self.reader = FormulaReader(tokens, NOTATION, self.meaning, self.parameters.__contains__)

    def automaton(self) -> ThresholdAutomaton:
        tokens = self.tokens
        tokens.expect(*_HEADS)
        name = tokens.name("the automaton's name")
        tokens.expect("{")
        seen: dict[str, int] = {}
        while not tokens.take("}"):
            section = tokens.expect(*_SECTIONS, "}")
            kind = {"assume": "assumptions", "spec": "specifications"}.get(section, section)
            if kind in seen and kind not in ("local", "shared", "parameters", "define"):
                tokens.fail(f"The section {section!r} comes twice.", at=tokens.at - 1)
            seen[kind] = tokens.at
            getattr(self, f"read_{kind}")()
        tokens.expect(Tokens.END)
        for needed in ("locations", "rules"):
            if needed not in seen:
                tokens.fail(f"The automaton has no section {needed!r}.", given="the end of the automaton")
        return ThresholdAutomaton(
            name,
            tuple(self.parameters),
            tuple(self.counters),
            tuple(self.locations),
            tuple(self.assumptions),
            tuple(self.initial),
            tuple(self.rules),
            tuple(self.specifications),
            tuple(self.locals),
            tuple(self.locations.values()) if any(self.locations.values()) else (),
        )

    def meaning(self, tokens: Tokens) -> Linear:
        """Return what the name under the cursor stands for, where the section allows it."""
        word = tokens.words[tokens.at]
        if not any(word in names for names in self.scope):
            self.unknown(word)
        tokens.at += 1
        return self.linear[word]

    def unknown(self, word: str) -> NoReturn:
        allowed = sorted({name for names in self.scope for name in names})
        if word in self.linear or word in self.locations:
            kind = next(
                kind
                for kind, names in (
                    ("a parameter", self.parameters), ("a counter", self.counters), ("a macro", self.macros),
                    ("a location", self.locations),
                )
                if word in names
            )  # fmt: skip
            self.tokens.fail(f"{word!r} is {kind}, which {self.place} cannot use.", allowed=allowed[:24])
        self.tokens.fail(
            f"{word!r} is not declared.",
            allowed=allowed if len(allowed) <= 24 else [*allowed[:24], f"... ({len(allowed)} in all)"],
            nearest=nearest_of(word, allowed),
        )

    def declare(self, what: str) -> str:
        tokens = self.tokens
        word = tokens.name(what)
        if word in _RESERVED:
            tokens.fail(f"{word!r} is a word of the language, not {what}.", at=tokens.at - 1, given=word)
        if word in self.linear or word in self.locals:
            tokens.fail(f"{word!r} is declared twice.", at=tokens.at - 1, given=word)
        return word

    def names(self, what: str) -> list[str]:
        def read() -> str:
            word = self.declare(what)
            self.linear[word] = Linear.name(word)
            return word

        listed = self.tokens.listed(read)
        self.tokens.expect(";")
        return listed

    def read_local(self) -> None:
        # Locals name what a location's values mean; they may repeat a counter's name without harm.
        self.locals += self.tokens.listed(lambda: self.tokens.name("a local variable"))
        self.tokens.expect(";")

    def read_shared(self) -> None:
        self.counters.update(dict.fromkeys(self.names("a shared counter")))

    def read_parameters(self) -> None:
        self.parameters.update(dict.fromkeys(self.names("a parameter")))

    def read_define(self) -> None:
        name = self.declare("a macro")
        self.tokens.expect("==")
        self.scope, self.place = (self.parameters, self.counters, self.macros), "a macro"
        self.macros[name] = self.linear[name] = self.reader.linear()
        self.tokens.expect(";")

    def open_list(self) -> None:
        tokens = self.tokens
        if tokens.take("("):
            tokens.number("a count")
            tokens.expect(")")
        tokens.expect("{")

    def formulas(self) -> list[Formula]:
        tokens = self.tokens
        self.open_list()
        listed = []
        while not tokens.take("}"):
            listed.append(self.reader.condition("Temporal operators belong into specifications."))
            tokens.end_item(";", "}")
        return listed

    def read_assumptions(self) -> None:
        self.scope, self.place = (self.parameters, self.macros), "an assumption"
        at = self.tokens.at
        self.assumptions = self.formulas()
        self.no_counters_in_macros(at)

    def no_counters_in_macros(self, at: int) -> None:
        wrong = [name for name, value in self.macros.items() if set(value.names()) & set(self.counters)]
        used = set(wrong) & set(self.tokens.words[at : self.tokens.at])
        if used:
            name = min(used)
            where = self.tokens.words.index(name, at)
            self.tokens.fail(f"The macro {name!r} holds counters, which an assumption cannot use.", at=where)

    def read_locations(self) -> None:
        tokens = self.tokens
        self.open_list()
        while not tokens.take("}"):
            at = tokens.at
            name = self.declare("a location")
            tokens.expect(":")
            tokens.expect("[")
            values: list[int] = []
            while not tokens.take("]"):
                sign = -1 if tokens.take("-") else 1
                values.append(sign * tokens.number("a value of a local variable"))
                tokens.end_item(";", "]")
            tokens.expect(";")
            if self.locals and len(values) != len(self.locals):
                tokens.fail(
                    f"The location {name!r} gives {len(values)} values for {len(self.locals)} local variables.",
                    given=f"{len(values)} values",
                    allowed=f"{len(self.locals)}: {', '.join(self.locals)}",
                    at=at,
                )
            self.locations[name] = tuple(values)
            self.linear[name] = Linear.name(name)
        if not self.locations:
            tokens.fail("The automaton has no locations.", at=tokens.at - 1)

    def read_inits(self) -> None:
        self.scope = (self.locations, self.counters, self.parameters, self.macros)
        self.place = "an initial condition"
        self.initial = self.formulas()

    def read_rules(self) -> None:
        tokens = self.tokens
        self.open_list()
        counters = self.counters
        while not tokens.take("}"):
            at = tokens.at
            number = tokens.word
            tokens.number("the number of a rule")
            tokens.expect(":")
            source = self.location()
            tokens.expect("->")
            target = self.location()
            tokens.expect("when")
            if tokens.word != "(":
                tokens.expected("(")
            self.scope, self.place = (counters, self.parameters, self.macros), "a guard"
            guard = self.reader.condition("Temporal operators belong into specifications.", at=at)
            tokens.expect("do")
            updates = self.updates()
            tokens.take(";")
            self.rules.append(Rule(number, source, target, guard, updates, tokens.line_and_column(at)[0]))

    def location(self) -> str:
        word = self.tokens.name("a location")
        if word not in self.locations:
            self.tokens.at -= 1
            self.scope, self.place = (self.locations,), "a rule as its end"
            self.unknown(word)
        return word

    def counter(self, what: str) -> str:
        word = self.tokens.name(what)
        if word not in self.counters:
            self.tokens.at -= 1
            self.scope, self.place = (self.counters,), "an update"
            self.unknown(word)
        return word

    def updates(self) -> tuple[tuple[str, Linear], ...]:
        tokens = self.tokens
        tokens.expect("{")
        found: dict[str, Linear] = {}
        words = tokens.words
        while not tokens.take("}"):
            at = tokens.at
            word = words[at]
            if word in ("unchanged", "reset") and words[at + 1] == "(":
                tokens.at += 2
                for name in tokens.listed(lambda: self.counter("a counter")):
                    if word == "reset":
                        self.assign(found, name, Linear(), at)
                tokens.expect(")")
            else:
                name = self.counter("a counter")
                tokens.expect("'")
                tokens.expect("==", ":=")
                if words[tokens.at] == name and words[tokens.at + 1] == ";":
                    # By far the most frequent update of translated models: none.
                    tokens.at += 1
                    self.assign(found, name, self.linear[name], at)
                else:
                    self.scope, self.place = (self.counters, self.parameters, self.macros), "an update"
                    self.assign(found, name, self.reader.linear(), at)
            tokens.end_item(";", "}")
        return tuple((name, value) for name, value in found.items() if value != self.linear[name])

    def assign(self, found: dict[str, Linear], name: str, value: Linear, at: int) -> None:
        if found.setdefault(name, value) != value:
            self.tokens.fail(f"The counter {name!r} gets two values.", given=name, at=at)

    def read_specifications(self) -> None:
        tokens = self.tokens
        self.open_list()
        self.scope = (self.locations, self.counters, self.parameters, self.macros)
        self.place = "a specification"
        names: set[str] = set()
        while not tokens.take("}"):
            if tokens.take(";"):
                continue
            name = tokens.name("the name of a specification")
            if name in names:
                tokens.fail(f"Two specifications are named {name!r}.", at=tokens.at - 1, given=name)
            names.add(name)
            tokens.expect(":")
            self.specifications.append((name, self.reader.formula()))
            tokens.end_item(";", "}")
