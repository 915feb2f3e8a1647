"""What the resilience condition says about parameters, asked of z3.

All reductions and abstractions of threshold automata rest on facts such as "n - t - f is never below t + 1 - f"; here
they are asked once each and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.errors import missing_extra
from wavetank.protocols.threshold.expressions import (
    And,
    Comparison,
    Constant,
    Formula,
    Implies,
    Linear,
    Not,
    Or,
    Quotient,
    comparisons,
)

_INTEGER = re.compile(r"\(define-fun (\S+) \(\) Int\s+(\d+)\)")


def load_z3() -> Any:
    """Return the module z3.

    Raises
    ------
    MissingExtraError
    """
    try:
        import z3
    except ImportError as error:
        raise missing_extra("z3-solver", "protocols", needed_for="Checking threshold automata") from error
    return z3


class SmtText:
    """Writes linear expressions and formulas in SMT-LIB, with one integer a name.

    z3 reads a text many times faster than Python builds the same terms call by call.

    Parameters
    ----------
    symbols : mapping
        Name in the automaton to symbol in the text.
    """

    def __init__(self, symbols: Mapping[str, str]) -> None:
        self.symbols = symbols
        self._quotients: dict[Quotient, str] = {}

    def declare_quotients(self, linears: Iterable[Linear]) -> list[str]:
        """Return declarations and definitions of the quotients in ``linears`` that are new."""
        lines = []
        for linear in linears:
            for name, _ in linear.terms:
                if isinstance(name, Quotient) and name not in self._quotients:
                    lines += self.declare_quotients([name.dividend])
                    symbol = f"q{len(self._quotients)}"
                    self._quotients[name] = symbol
                    dividend, times = self.linear(name.dividend), f"(* {name.divisor} {symbol})"
                    lines.append(f"(declare-const {symbol} Int)")
                    lines.append(f"(assert (and (<= {times} {dividend}) (< {dividend} (+ {times} {name.divisor}))))")
        return lines

    def linear(self, linear: Linear) -> str:
        """Return the expression's text."""
        parts = []
        for name, factor in linear.terms:
            symbol = self._quotients[name] if isinstance(name, Quotient) else self.symbols[name]
            parts.append(symbol if factor == 1 else f"(* {number(factor)} {symbol})")
        if linear.constant or not parts:
            parts.append(number(linear.constant))
        return parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"

    def formula(self, formula: Formula) -> str:
        """Return the text of a formula without temporal operators."""
        if isinstance(formula, Constant):
            return "true" if formula.truth else "false"
        if isinstance(formula, Comparison):
            left, right = self.linear(formula.left), self.linear(formula.right)
            if formula.relation == "!=":
                return f"(not (= {left} {right}))"
            return f"({'=' if formula.relation == '==' else formula.relation} {left} {right})"
        if isinstance(formula, Not):
            return f"(not {self.formula(formula.inner)})"
        if isinstance(formula, Implies):
            return f"(=> {self.formula(formula.premise)} {self.formula(formula.conclusion)})"
        if isinstance(formula, And | Or):
            word = "and" if isinstance(formula, And) else "or"
            if not formula.parts:
                return "true" if word == "and" else "false"
            return f"({word} {' '.join(map(self.formula, formula.parts))})"
        raise TypeError("A temporal formula is no condition on one configuration.")


def number(value: int) -> str:
    """Return an integer's text in SMT-LIB, which has no negative literals."""
    return str(value) if value >= 0 else f"(- {-value})"


class Question:
    """A solver that is given text, asked under a deadline, and leaves Ctrl-C alone."""

    def __init__(self, deadline: Deadline) -> None:
        self._z3 = load_z3()
        self._deadline = deadline
        # The plain incremental core: on these formulas it is several times faster than the tactics for QF_LIA.
        self._solver = self._z3.SimpleSolver(ctx=self._z3.Context())
        self._model: Any = None

    def add(self, text: str) -> None:
        """Add declarations and assertions in SMT-LIB; a symbol is declared once, even where scopes are closed."""
        try:
            self._solver.from_string(text)
        except self._z3.Z3Exception as error:
            if "memory" not in str(error):
                raise
            raise OutOfTimeError(f"the solver gave up: {error}") from error

    def push(self) -> None:
        """Open a scope."""
        self._solver.push()

    def pop(self) -> None:
        """Forget what was added since the scope was opened."""
        self._solver.pop()

    def satisfiable(self, extra: str = "", deadline: Deadline | None = None) -> bool:
        """Return whether all that was added can be met.

        Parameters
        ----------
        extra : str
            Assertions for this question alone.
        deadline : Deadline, optional
            Instead of the solver's own.

        Raises
        ------
        OutOfTimeError
        KeyboardInterrupt
            z3 swallows Ctrl-C; it is raised again here.
        """
        clock = deadline or self._deadline
        clock.check()
        self._solver.set("timeout", max(1, int(1000 * min(clock.left_s, 1e6))))
        if extra:
            self._solver.push()
            self._solver.from_string(extra)
        try:
            answer = self._solver.check()
            self._model = self._solver.model() if answer == self._z3.sat else None
        except self._z3.Z3Exception as error:
            raise OutOfTimeError(f"the solver gave up: {error}") from error
        finally:
            if extra:
                self._solver.pop()
        if answer == self._z3.unknown:
            reason = str(self._solver.reason_unknown())
            if "keyboard" in reason or "interrupt" in reason:
                raise KeyboardInterrupt
            raise OutOfTimeError("the time is up" if clock.left_s <= 0.05 else f"the solver gave up: {reason}")
        return bool(answer == self._z3.sat)

    def model(self) -> dict[str, int]:
        """Return the integers of the last model by symbol; those not in it may be anything, say zero."""
        # The text is read many times faster than the model is asked symbol by symbol.
        return {name: int(value) for name, value in _INTEGER.findall(self._model.sexpr()) if value != "0"}


class ParameterFacts:
    """Answers questions about parameters that meet the resilience condition.

    Parameters
    ----------
    parameters : sequence of str
    conditions : sequence of Formula
        Over parameters; together the resilience condition.
    deadline : Deadline
    """

    def __init__(self, parameters: Iterable[str], conditions: Iterable[Formula], deadline: Deadline) -> None:
        self._text = SmtText({name: f"p{number}" for number, name in enumerate(parameters)})
        self._question = Question(deadline)
        self._known: dict[tuple[Linear, ...], bool] = {}
        lines = [f"(declare-const {symbol} Int)(assert (>= {symbol} 0))" for symbol in self._text.symbols.values()]
        for condition in conditions:
            sides = [side for item in comparisons(condition) for side in (item.left, item.right)]
            lines += self._text.declare_quotients(sides)
            lines.append(f"(assert {self._text.formula(condition)})")
        self._question.add("\n".join(lines))

    def possible(self, *at_least_zero: Linear) -> bool:
        """Return whether some parameters make every expression at least zero.

        Raises
        ------
        OutOfTimeError
        """
        constants = [linear for linear in at_least_zero if not linear.terms]
        if any(linear.constant < 0 for linear in constants):
            return False
        asked = tuple(sorted({linear for linear in at_least_zero if linear.terms}, key=str))
        if asked not in self._known:
            # Quotients are defined once and for all, outside the question.
            self._question.add("\n".join(self._text.declare_quotients(asked)))
            wanted = "".join(f"(assert (>= {self._text.linear(each)} 0))" for each in asked)
            self._known[asked] = self._question.satisfiable(wanted)
        return self._known[asked]

    def always(self, at_least_zero: Linear) -> bool:
        """Return whether the expression is at least zero for all parameters."""
        return not self.possible(at_least_zero.times(-1) - Linear((), 1))
