"""What the resilience condition says about parameters, asked of z3.

All reductions and abstractions of threshold automata rest on facts such as "n - t - f is never below t + 1 - f"; here
they are asked once each and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wavetank.errors import missing_extra
from wavetank.protocols.threshold.clock import Deadline, OutOfTimeError
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
)


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

    def quotient_symbols(self) -> Mapping[Quotient, str]:
        """Return the symbols of quotients met so far."""
        return self._quotients

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
        z3 = load_z3()
        self._deadline = deadline
        self._z3 = z3
        self._context = z3.Context()
        self._solver = z3.SolverFor("QF_LIA", ctx=self._context)
        self._variables = {name: z3.Int(f"p_{name}", ctx=self._context) for name in parameters}
        self._quotients: dict[Quotient, Any] = {}
        for variable in self._variables.values():
            self._solver.add(variable >= 0)
        for condition in conditions:
            self._solver.add(self._formula(condition))
        self._known: dict[tuple[Linear, ...], bool] = {}

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
            self._known[asked] = self._ask(asked)
        return self._known[asked]

    def always(self, at_least_zero: Linear) -> bool:
        """Return whether the expression is at least zero for all parameters."""
        return not self.possible(at_least_zero.times(-1) - Linear((), 1))

    def _ask(self, asked: tuple[Linear, ...]) -> bool:
        self._deadline.check()
        # Quotients are defined once and for all, outside the question.
        terms = [self._linear(linear) for linear in asked]
        self._solver.push()
        try:
            for term in terms:
                self._solver.add(term >= 0)
            self._solver.set("timeout", max(1, int(1000 * min(self._deadline.left_s, 1e6))))
            answer = self._solver.check()
        except self._z3.Z3Exception as error:
            raise OutOfTimeError(f"the solver gave up: {error}") from error
        finally:
            self._solver.pop()
        if answer == self._z3.unknown:
            raise OutOfTimeError("the solver gave up on a question about parameters")
        return bool(answer == self._z3.sat)

    def _linear(self, linear: Linear) -> Any:
        total = self._z3.IntVal(linear.constant, ctx=self._context)
        for name, factor in linear.terms:
            total = total + factor * (self._quotient(name) if isinstance(name, Quotient) else self._variables[name])
        return total

    def _quotient(self, quotient: Quotient) -> Any:
        if quotient not in self._quotients:
            dividend = self._linear(quotient.dividend)
            symbol = self._z3.Int(f"q_{len(self._quotients)}", ctx=self._context)
            self._quotients[quotient] = symbol
            self._solver.add(quotient.divisor * symbol <= dividend)
            self._solver.add(dividend < quotient.divisor * (symbol + 1))
        return self._quotients[quotient]

    def _formula(self, formula: Formula) -> Any:
        z3 = self._z3
        if isinstance(formula, Constant):
            return z3.BoolVal(formula.truth, ctx=self._context)
        if isinstance(formula, Comparison):
            left, right = self._linear(formula.left), self._linear(formula.right)
            return {
                "==": left == right, "!=": left != right, "<": left < right, "<=": left <= right,
                ">": left > right, ">=": left >= right,
            }[formula.relation]  # fmt: skip
        if isinstance(formula, Not):
            return z3.Not(self._formula(formula.inner))
        if isinstance(formula, Implies):
            return z3.Implies(self._formula(formula.premise), self._formula(formula.conclusion))
        if isinstance(formula, And | Or):
            parts = [self._formula(part) for part in formula.parts]
            # The neutral element carries the context when there are no parts.
            empty = z3.BoolVal(isinstance(formula, And), ctx=self._context)
            return (z3.And if isinstance(formula, And) else z3.Or)(*parts, empty)
        raise TypeError("A temporal formula is no condition on parameters.")
