"""Reads linear expressions and formulas from tokens, in the notation of ByMC or of TLA+.

One operator-precedence loop with explicit stacks reads both: translated models nest parentheses hundreds deep, which
recursion would not survive.  What a name may stand for is asked of the caller, so that an undeclared name is reported
where it stands.  In TLA+ a list of items behind equal bullets in one column is one operand, as if in parentheses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    Always,
    And,
    Comparison,
    Constant,
    Eventually,
    Formula,
    Implies,
    Linear,
    Not,
    Or,
    Quotient,
    Relation,
    is_temporal,
)
from wavetank.protocols.threshold.source_text import Tokens

Operand = Linear | Formula
# Binding strength: a prefix sign binds closest, then products, sums, comparisons, "not" and the temporal operators.
_BINDS = {"->": 1, "||": 2, "&&": 3, "not": 4, "always": 4, "eventually": 4, "compare": 5, "+": 6, "-": 6, "*": 7,
          "/": 7, "negate": 8}  # fmt: skip
_PREFIX = ("not", "always", "eventually", "negate")
# Formulas are walked through by recursion; what people and translators write stays far below.
DEEPEST_FORMULA = 100


_OPENS = ("(", "list")


@dataclass
class _BulletList:
    """An open list: its bullet, the column where all its bullets stand, and what its items so far join to."""

    bullet: str
    column: int
    joined: Operand | None = None


@dataclass(frozen=True)
class Notation:
    """How a language writes the operators.

    Parameters
    ----------
    binary : mapping
        Token to ``->``, ``||``, ``&&``, ``+``, ``-``, ``*``, ``/``.
    relations : mapping
        Token to the comparison it stands for.
    prefix : mapping
        Token to ``not``, ``always``, ``eventually``.
    truths : mapping
        Token to the constant it stands for.
    bullets : tuple of str
        Connectives that open a list where an operand is due; its items stand behind the same one in the same column.
    """

    binary: Mapping[str, str]
    relations: Mapping[str, Relation]
    prefix: Mapping[str, str]
    truths: Mapping[str, Constant]
    bullets: tuple[str, ...] = ()


class FormulaReader:
    """Reads expressions at the cursor of ``tokens``.

    Parameters
    ----------
    tokens : Tokens
    notation : Notation
    meaning : callable
        ``meaning(tokens)`` steps over the name under the cursor and returns what it stands for.
    divisible : callable
        Whether a name is a parameter, hence may be divided.
    """

    def __init__(
        self,
        tokens: Tokens,
        notation: Notation,
        meaning: Callable[[Tokens], Operand],
        divisible: Callable[[str], bool],
    ) -> None:
        self.tokens = tokens
        self._notation = notation
        self._meaning = meaning
        self._divisible = divisible

    def formula(self, stop: str = "") -> Formula:
        """Read a formula, as far as it goes or up to a connective outside parentheses."""
        at = self.tokens.at
        return self._as_formula(self.operand(stop), at)

    def condition(self, temporal: str, *, stop: str = "", at: int | None = None) -> Formula:
        """Read a formula without temporal operators, or fail with ``temporal`` (by default where it begins)."""
        begin = self.tokens.at if at is None else at
        found = self.formula(stop)
        if is_temporal(found):
            self.tokens.fail(temporal, at=begin)
        return found

    def linear(self, stop: str = "") -> Linear:
        """Read a linear expression, as far as it goes or up to a connective outside parentheses."""
        at = self.tokens.at
        found = self.operand(stop)
        if not isinstance(found, Linear):
            self.tokens.fail("Expected a number, found a condition.", at=at)
        return found

    def operand(self, stop: str = "") -> Operand:
        """Read a linear expression or a formula, as far as it goes or up to a connective outside parentheses."""
        tokens, notation = self.tokens, self._notation
        operands: list[Operand] = []
        operators: list[tuple[str, int, Relation | None]] = []
        # Open lists, innermost last: bullet, column, and what its items so far join to.
        lists: list[_BulletList] = []
        depth = 0
        began = tokens.at
        while True:
            # An operand is due.
            word = tokens.word
            if word in notation.bullets:
                operators.append(("list", tokens.at, None))
                lists.append(_BulletList(word, tokens.line_and_column()[1]))
                tokens.next()
                continue
            if word == "(":
                operators.append(("(", tokens.at, None))
                depth += 1
                tokens.next()
                continue
            if word in notation.prefix:
                operators.append((notation.prefix[word], tokens.at, None))
                tokens.next()
                continue
            if word == "-":
                operators.append(("negate", tokens.at, None))
                tokens.next()
                continue
            if word in notation.truths:
                operands.append(notation.truths[word])
                tokens.next()
            elif word[0].isdigit():
                operands.append(Linear((), tokens.number("a number")))
            elif word[0].isalpha() or word[0] in '_"':
                if word == Tokens.END:
                    tokens.expected("a name", "a number", "(")
                operands.append(self._meaning(tokens))
            else:
                tokens.expected("a name", "a number", "(")
            # An operator or the end is due.
            more_items = False
            while True:
                word = tokens.word
                opened = next((kind for kind, _, _ in reversed(operators) if kind in _OPENS), "")
                if opened == "list" and self._ends_item(lists[-1]):
                    self._reduce(operands, operators, 0)
                    at = operators[-1][1]
                    kind = notation.binary[lists[-1].bullet]
                    if lists[-1].joined is not None:
                        operands.append(self._joined(kind, None, lists[-1].joined, operands.pop(), at))
                    if word == lists[-1].bullet and tokens.line_and_column()[1] == lists[-1].column:
                        lists[-1].joined = operands.pop()
                        tokens.next()
                        more_items = True
                        break
                    operators.pop()
                    lists.pop()
                elif opened == "(" and word == ")":
                    self._reduce(operands, operators, 0)
                    operators.pop()
                    depth -= 1
                    tokens.next()
                else:
                    break
            if more_items:
                continue
            relation = notation.relations.get(word)
            kind = "compare" if relation else notation.binary.get(word, "")
            if not kind or (word == stop and not depth and not lists):
                if depth:
                    tokens.expected(")", "an operator")
                self._reduce(operands, operators, 0)
                self._refuse_deep(operands[-1], began)
                return operands.pop()
            binds = _BINDS[kind]
            # "->" groups to the right, all others to the left.
            self._reduce(operands, operators, binds + (kind == "->"))
            operators.append((kind, tokens.at, relation))
            tokens.next()

    def _ends_item(self, bullets: _BulletList) -> bool:
        """Return whether the token under the cursor cannot belong to the open item of a list."""
        tokens, notation = self.tokens, self._notation
        word = tokens.word
        if word not in notation.relations and word not in notation.binary:
            return True
        return tokens.line_and_column()[1] <= bullets.column

    def _refuse_deep(self, found: Operand, at: int) -> None:
        waiting: list[tuple[Operand, int]] = [(found, 1)]
        while waiting:
            item, depth = waiting.pop()
            inner: tuple[Operand, ...] = ()
            if isinstance(item, Linear):
                inner = tuple(name.dividend for name, _ in item.terms if isinstance(name, Quotient))
            elif isinstance(item, Comparison):
                inner = (item.left, item.right)
            else:
                inner = item.parts
            if depth > DEEPEST_FORMULA:
                self.tokens.fail(
                    "The formula is nested too deep.",
                    given=f"more than {DEEPEST_FORMULA} connectives inside one another",
                    allowed=f"at most {DEEPEST_FORMULA}",
                    at=at,
                )
            waiting += [(each, depth + 1) for each in inner]

    def _reduce(self, operands: list[Operand], operators: list[tuple[str, int, Relation | None]], least: int) -> None:
        while operators and operators[-1][0] not in _OPENS and _BINDS[operators[-1][0]] >= least:
            kind, at, relation = operators.pop()
            right = operands.pop()
            if kind in _PREFIX:
                operands.append(self._prefixed(kind, right, at))
            else:
                operands.append(self._joined(kind, relation, operands.pop(), right, at))

    def _prefixed(self, kind: str, inner: Operand, at: int) -> Operand:
        if kind == "negate":
            return self._as_linear(inner, at).times(-1)
        formula = self._as_formula(inner, at)
        if kind == "not":
            return Not(formula)
        return Always(formula) if kind == "always" else Eventually(formula)

    def _joined(self, kind: str, relation: Relation | None, left: Operand, right: Operand, at: int) -> Operand:
        if kind in ("&&", "||"):
            one, other = self._as_formula(left, at), self._as_formula(right, at)
            if kind == "&&":
                return And(
                    (one.parts if isinstance(one, And) else (one,))
                    + (other.parts if isinstance(other, And) else (other,))
                )
            return Or(
                (one.parts if isinstance(one, Or) else (one,)) + (other.parts if isinstance(other, Or) else (other,))
            )
        if kind == "->":
            return Implies(self._as_formula(left, at), self._as_formula(right, at))
        first, second = self._as_linear(left, at), self._as_linear(right, at)
        if kind == "compare":
            return Comparison(first, cast(Relation, relation), second)
        if kind == "+":
            return first + second
        if kind == "-":
            return first - second
        if kind == "*":
            if first.terms and second.terms:
                self._not_linear("A product of two names is not linear.", at)
            return second.times(first.constant) if not first.terms else first.times(second.constant)
        return self._quotient(first, second, at)

    def _quotient(self, dividend: Linear, divisor: Linear, at: int) -> Linear:
        if divisor.terms or divisor.constant < 1:
            self._not_linear("Only division by a positive constant is linear.", at)
        # Names are compared by what is inside their quotients, by recursion too.
        self._refuse_deep(dividend, at)
        by = divisor.constant
        if any(not self._divisible(name) for name in dividend.names()):
            self._not_linear("Only parameters can be divided.", at)
        if all(factor % by == 0 for _, factor in dividend.terms):
            # Whole multiples leave the rounding to the constant.
            return Linear(tuple((name, factor // by) for name, factor in dividend.terms), dividend.constant // by)
        return Linear.name(Quotient(dividend, by))

    def _not_linear(self, problem: str, at: int) -> NoReturn:
        self.tokens.fail(problem, at=at, hint="Write the condition as a linear one.")

    def _as_linear(self, found: Operand, at: int) -> Linear:
        if not isinstance(found, Linear):
            self.tokens.fail("Expected a number beside the operator, found a condition.", at=at)
        return found

    def _as_formula(self, found: Operand, at: int) -> Formula:
        if not isinstance(found, Linear):
            return found
        # Translated models write 1 for true and 0 for false.
        if found.terms or found.constant not in (0, 1):
            self.tokens.fail("Expected a condition, found a number.", at=at, allowed="a comparison, true, false")
        return TRUE if found.constant else FALSE
