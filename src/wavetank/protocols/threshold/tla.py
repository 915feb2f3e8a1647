"""Reads threshold automata written in TLA+: the subset in which every step moves one process.

The set ``Processes`` and the map ``ProcessesLocations`` stand for the processes, ``NbOfCorrProc`` for how many there
are; every operator with one parameter named in ``Next`` is a rule; definitions with temporal operators are
specifications and may count processes with ``Cardinality``.

Source: the TLA+ fragment of TACO (arXiv 2605.06118; documentation of the tool), Lamport, "Specifying Systems".

Differs from the source:

1. Only rules named in ``Next`` are rules, as TLA+ has it.
2. A rule must say what becomes of every variable, as TLC demands.
3. Boolean definitions without temporal operators are abbreviations, not specifications.
"""

from __future__ import annotations

import dataclasses
import re
from typing import NoReturn

from wavetank.errors import nearest_of
from wavetank.protocols.threshold.automaton import Rule, ThresholdAutomaton
from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    And,
    Comparison,
    Constant,
    Formula,
    Linear,
    Or,
    conjunction,
    conjuncts,
    is_temporal,
)
from wavetank.protocols.threshold.formula_reader import FormulaReader, Notation, Operand
from wavetank.protocols.threshold.source_text import Tokens

_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n\f]+|\(\*(?s:.*?)\*\)|\\\*[^\n]*|-{4,}|={4,})"
    r'|"[^"\n]*"|[A-Za-z_][A-Za-z0-9_]*|\d+|\(\*'
    r"|\\/|/\\|\\[A-Za-z]+|\[\]|<>|<<|>>|->|=>|==|=<|<=|>=|/=|[-+*/()\[\]{}:,.<>!'=~#]"
)
NOTATION = Notation(
    binary={
        "=>": "->", "\\/": "||", "\\lor": "||", "/\\": "&&", "\\land": "&&", "+": "+", "-": "-", "*": "*", "/": "/",
        "\\div": "/",
    },
    relations={
        "=": "==", "/=": "!=", "#": "!=", "\\neq": "!=", "<": "<", "<=": "<=", "=<": "<=", "\\leq": "<=", ">": ">",
        ">=": ">=", "\\geq": ">=",
    },
    prefix={"~": "not", "\\lnot": "not", "\\neg": "not", "[]": "always", "<>": "eventually"},
    truths={"TRUE": TRUE, "FALSE": FALSE},
    bullets=("/\\", "\\/"),
)  # fmt: skip
_PROCESSES, _PLACES, _HOW_MANY = "Processes", "ProcessesLocations", "NbOfCorrProc"
_SECTIONS = ("EXTENDS", "CONSTANT", "CONSTANTS", "ASSUME", "VARIABLE", "VARIABLES", "MODULE")
_AND = "/\\"


def parse_tla(text: str, where: str = "text") -> ThresholdAutomaton:
    """Read the text of a ``.tla`` file.

    Parameters
    ----------
    text : str
    where : str
        Name of the file, for messages.

    Raises
    ------
    BadFileError
        With file, line, column and what was expected.
    """
    return _Reading(Tokens(text, where, _TOKEN, {"(*": "*)"})).automaton()


class _Reading:
    """One pass over a module."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.module = "module"
        self.constants: dict[str, None] = {}
        self.variables: dict[str, None] = {}
        self.locations: dict[str, None] = {}
        self.assumptions: list[Formula] = []
        self.initial: list[Formula] = []
        self.starts: list[str] | None = None
        self.rules: dict[str, Rule] = {}
        self.in_next: dict[str, int] = {}
        self.definitions: dict[str, Operand] = {}
        self.specifications: list[tuple[str, Formula]] = []
        self.reader = FormulaReader(tokens, NOTATION, self.meaning, self.constants.__contains__)

    def automaton(self) -> ThresholdAutomaton:
        tokens = self.tokens
        while tokens.word != Tokens.END:
            word = tokens.word
            if word in _SECTIONS:
                tokens.next()
                self.section(word)
            elif tokens.after() == "==":
                tokens.name("a definition")
                tokens.next()
                self.definition(word)
            elif tokens.after() == "(" and tokens.after(3) == ")" and tokens.after(4) == "==":
                self.rule()
            else:
                tokens.expected(*_SECTIONS, "a definition such as Init == ...")
        self.complete()
        how_many, assumptions = self.number_of_processes()
        rules = [
            dataclasses.replace(
                rule,
                guard=_replaced(rule.guard, how_many),
                updates=tuple((each, _value(value, how_many)) for each, value in rule.updates),
            )
            for rule in (self.rules[name] for name in self.in_next)
        ]
        starts = self.starts or []
        started = Comparison(Linear.of(dict.fromkeys(starts, 1)), "==", how_many)
        elsewhere = [Comparison(Linear.name(name), "==", Linear()) for name in self.locations if name not in starts]
        return ThresholdAutomaton(
            self.module,
            tuple(name for name in self.constants if name not in (_PROCESSES, _HOW_MANY)),
            tuple(name for name in self.variables if name != _PLACES),
            tuple(self.locations),
            assumptions,
            (started, *elsewhere, *(_replaced(item, how_many) for item in self.initial)),
            tuple(rules),
            tuple((name, _replaced(formula, how_many)) for name, formula in self.specifications),
        )

    def complete(self) -> None:
        tokens = self.tokens
        for name, there in (
            (f"the constant {_PROCESSES}", _PROCESSES in self.constants),
            (f"the constant {_HOW_MANY}", _HOW_MANY in self.constants),
            (f"the variable {_PLACES}", _PLACES in self.variables),
            ("the definition TypeOk with the locations", bool(self.locations)),
            (f"the definition Init with a condition on {_PLACES}", self.starts is not None),
            ("the definition Next", bool(self.in_next)),
        ):
            if not there:
                tokens.fail(f"The module lacks {name}.", given="the end of the module")
        for name, at in self.in_next.items():
            if name not in self.rules:
                tokens.fail(
                    f"Next names the rule {name!r}, which is not defined.",
                    given=name,
                    allowed=list(self.rules)[:24],
                    nearest=nearest_of(name, self.rules),
                    at=at,
                )

    def number_of_processes(self) -> tuple[Linear, tuple[Formula, ...]]:
        """Return how many processes there are, and the assumptions that are left."""
        rest: list[Formula] = []
        found: Linear | None = None
        for formula in self.assumptions:
            for part in conjuncts(formula):
                if found is None and isinstance(part, Comparison) and part.relation == "==":
                    factors, others = (part.left - part.right).split(_HOW_MANY.__eq__)
                    if abs(factors.get(_HOW_MANY, 0)) == 1:
                        found = others.times(-factors[_HOW_MANY])
                        continue
                rest.append(part)
        if found is None:
            self.tokens.fail(f"No assumption says what {_HOW_MANY} is.", allowed=f"ASSUME {_HOW_MANY} = N - F, say")
        return found, tuple(_replaced(part, found) for part in rest)

    def section(self, word: str) -> None:
        tokens = self.tokens
        if word == "MODULE":
            self.module = tokens.name("the module's name")
        elif word == "ASSUME":
            self.assumptions.append(self.reader.condition("An assumption holds no temporal operators."))
        else:
            names = self.names(once=word != "EXTENDS")
            if word.startswith("CONSTANT"):
                self.constants.update(dict.fromkeys(names))
            elif word.startswith("VARIABLE"):
                self.variables.update(dict.fromkeys(names))

    def names(self, *, once: bool) -> list[str]:
        listed: list[str] = []

        def read() -> None:
            name = self.tokens.name("a name")
            if once and (name in self.constants or name in self.variables or name in listed):
                self.tokens.fail(f"{name!r} is declared twice.", at=self.tokens.at - 1, given=name)
            listed.append(name)

        self.tokens.listed(read)
        return listed

    def definition(self, name: str) -> None:
        tokens = self.tokens
        if name == "TypeOk":
            self.types()
        elif name == "Init":
            self.read_init()
        elif name == "Next":
            self.read_next()
        elif name == "Spec":
            while tokens.word != Tokens.END and tokens.word not in _SECTIONS and tokens.after() != "==":
                tokens.next()
        else:
            if name in self.definitions:
                tokens.fail(f"{name!r} is defined twice.", given=name, at=tokens.at - 2)
            value = self.reader.operand()
            self.definitions[name] = value
            if not isinstance(value, Linear) and is_temporal(value):
                self.specifications.append((name, value))

    def items(self) -> None:
        while self.tokens.take(_AND):
            pass

    def types(self) -> None:
        tokens = self.tokens
        self.items()
        while True:
            at = tokens.at
            name = tokens.name("a variable")
            if name not in self.variables:
                self.undeclared(name, at, list(self.variables))
            tokens.expect("\\in")
            if name == _PLACES:
                self.locations.update(dict.fromkeys(self.map_to_locations(declared=False)))
            else:
                tokens.expect("Nat")
            if not tokens.take(_AND):
                return

    def map_to_locations(self, *, declared: bool) -> list[str]:
        tokens = self.tokens
        tokens.expect("[")
        tokens.expect(_PROCESSES)
        tokens.expect("->")
        tokens.expect("{")
        listed: list[str] = []
        while True:
            at = tokens.at
            name = self.location(declared=declared)
            if name in listed:
                tokens.fail(f"The location {name!r} comes twice.", given=name, at=at)
            listed.append(name)
            if not tokens.take(","):
                break
        tokens.expect("}")
        tokens.expect("]")
        return listed

    def location(self, *, declared: bool = True) -> str:
        tokens = self.tokens
        word = tokens.word
        if not word.startswith('"'):
            tokens.expected('a location such as "loc0"')
        name = word[1:-1]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            tokens.fail("A location's name is made of letters, digits and underscores.", given=word)
        if declared and name not in self.locations:
            self.undeclared(name, tokens.at, list(self.locations))
        tokens.next()
        return name

    def undeclared(self, name: str, at: int, allowed: list[str]) -> NoReturn:
        self.tokens.fail(
            f"{name!r} is not declared.", given=name, allowed=allowed[:24], nearest=nearest_of(name, allowed), at=at
        )

    def read_init(self) -> None:
        tokens = self.tokens
        self.items()
        while True:
            if tokens.word == _PLACES and tokens.after() == "\\in":
                tokens.next()
                tokens.next()
                self.starts = self.map_to_locations(declared=True)
            else:
                self.initial.append(
                    self.reader.condition("An initial condition holds no temporal operators.", stop=_AND)
                )
            if not tokens.take(_AND):
                return

    def read_next(self) -> None:
        tokens = self.tokens
        tokens.expect("\\E")
        process = tokens.name("a process")
        tokens.expect("\\in")
        tokens.expect(_PROCESSES)
        tokens.expect(":")
        tokens.take("\\/")
        while True:
            at = tokens.at
            name = tokens.name("a rule")
            tokens.expect("(")
            tokens.expect(process)
            tokens.expect(")")
            self.in_next.setdefault(name, at)
            if not tokens.take("\\/"):
                return

    def rule(self) -> None:
        tokens = self.tokens
        at = tokens.at
        name = tokens.name("a rule")
        if name in self.rules:
            tokens.fail(f"The rule {name!r} is defined twice.", given=name, at=at)
        tokens.expect("(")
        process = tokens.name("a process")
        tokens.expect(")")
        tokens.expect("==")
        source = target = ""
        guards: list[Formula] = []
        updates: dict[str, Linear] = {}
        self.items()
        while True:
            if tokens.word == _PLACES and tokens.after() == "[":
                source = self.place_of(process)
            elif tokens.word == _PLACES and tokens.after() == "'":
                target = self.new_place_of(process)
            elif tokens.word == "UNCHANGED":
                for kept in self.unchanged():
                    if kept == _PLACES:
                        target = target or source
                    else:
                        updates.setdefault(kept, Linear.name(kept))
            elif tokens.after() == "'":
                self.update(updates)
            else:
                guards.append(self.reader.condition("A rule holds no temporal operators.", stop=_AND))
            if not tokens.take(_AND):
                break
        for what, there in ((f'{_PLACES}[{process}] = "..."', source), (f"{_PLACES}' = [...]", target)):
            if not there:
                tokens.fail(f"The rule {name!r} does not say {what}.", given=name, at=at)
        silent = [each for each in self.variables if each != _PLACES and each not in updates]
        if silent:
            tokens.fail(
                f"The rule {name!r} does not say what becomes of {', '.join(silent)}.",
                given=name,
                allowed=f"{silent[0]}' = ... or UNCHANGED <<{', '.join(silent)}>>",
                at=at,
            )
        changed = tuple((each, value) for each, value in updates.items() if value != Linear.name(each))
        number = re.fullmatch(r"Rule(\d+)", name)
        self.rules[name] = Rule(
            number.group(1) if number else name, source, target, conjunction(guards), changed,
            tokens.line_and_column(at)[0],
        )  # fmt: skip

    def place_of(self, process: str) -> str:
        tokens = self.tokens
        for word in (_PLACES, "[", process, "]", "="):
            tokens.expect(word)
        return self.location()

    def new_place_of(self, process: str) -> str:
        tokens = self.tokens
        for word in (_PLACES, "'", "=", "[", _PLACES, "EXCEPT", "!", "[", process, "]", "="):
            tokens.expect(word)
        name = self.location()
        tokens.expect("]")
        return name

    def unchanged(self) -> list[str]:
        tokens = self.tokens
        tokens.next()
        if not tokens.take("<<"):
            return [self.variable()]
        listed = []
        while not tokens.take(">>"):
            listed.append(self.variable())
            tokens.end_item(",", ">>")
        return listed

    def variable(self) -> str:
        name = self.tokens.name("a variable")
        if name not in self.variables:
            self.undeclared(name, self.tokens.at - 1, list(self.variables))
        return name

    def update(self, updates: dict[str, Linear]) -> None:
        tokens = self.tokens
        at = tokens.at
        name = self.variable()
        tokens.expect("'")
        tokens.expect("=")
        value = self.reader.linear(_AND)
        if updates.setdefault(name, value) != value:
            tokens.fail(f"The variable {name!r} gets two values.", given=name, at=at)

    def meaning(self, tokens: Tokens) -> Operand:
        """Return what the name under the cursor stands for."""
        at = tokens.at
        if tokens.word == "Cardinality":
            return self.cardinality()
        name = tokens.name("a name")
        if name in self.definitions:
            return self.definitions[name]
        known = [each for each in (*self.constants, *self.variables) if each not in (_PROCESSES, _PLACES)]
        if name not in known:
            self.undeclared(name, at, [*known, *self.definitions])
        return Linear.name(name)

    def cardinality(self) -> Linear:
        tokens = self.tokens
        for word in ("Cardinality", "(", "{"):
            tokens.expect(word)
        process = tokens.name("a process")
        for word in ("\\in", _PROCESSES, ":"):
            tokens.expect(word)
        listed = [self.place_of(process)]
        while tokens.take("\\/"):
            listed.append(self.place_of(process))
        tokens.expect("}")
        tokens.expect(")")
        return Linear.of(dict.fromkeys(listed, 1))


def _value(linear: Linear, how_many: Linear) -> Linear:
    factors, rest = linear.split(_HOW_MANY.__eq__)
    return rest + how_many.times(factors[_HOW_MANY]) if factors else linear


def _replaced(formula: Formula, how_many: Linear) -> Formula:
    """Return a formula with the number of processes in place of its name."""
    if isinstance(formula, Comparison):
        return Comparison(_value(formula.left, how_many), formula.relation, _value(formula.right, how_many))
    if isinstance(formula, Constant):
        return formula
    parts = tuple(_replaced(part, how_many) for part in formula.parts)
    return type(formula)(parts) if isinstance(formula, And | Or) else type(formula)(*parts)
