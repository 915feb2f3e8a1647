"""Linear expressions and formulas of threshold automata, as immutable values.

A linear expression is an integer combination of names (parameters, shared counters, locations) and of quotients of
parameters by a constant; a formula joins comparisons of two of them with the connectives of propositional logic and,
in specifications, with "always" and "eventually".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

Relation = Literal["==", "!=", "<", "<=", ">", ">="]
NEGATED: Mapping[Relation, Relation] = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class Quotient:
    """The whole part (rounded down) of an expression over parameters divided by a positive constant."""

    dividend: Linear
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) / {self.divisor})"


@dataclass(frozen=True)
class Linear:
    """A linear combination with integer coefficients.

    Parameters
    ----------
    terms : tuple of (name or Quotient, int)
        Coefficients that are not zero, in the order in which the names appear.
    constant : int
    """

    terms: tuple[tuple[str | Quotient, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(coefficients: Mapping[str | Quotient, int], constant: int = 0) -> Linear:
        """Return the combination without the terms whose coefficient is zero."""
        return Linear(tuple((name, factor) for name, factor in coefficients.items() if factor), constant)

    @staticmethod
    def name(name: str | Quotient) -> Linear:
        """Return the combination that is one name."""
        return Linear(((name, 1),))

    def __add__(self, other: Linear) -> Linear:
        if not other.terms:
            return Linear(self.terms, self.constant + other.constant)
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        return Linear.of(factors, self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.times(-1)

    def times(self, factor: int) -> Linear:
        """Return the combination multiplied by a constant."""
        if not factor:
            return Linear()
        return Linear(tuple((name, value * factor) for name, value in self.terms), self.constant * factor)

    def names(self) -> Iterator[str]:
        """Yield the names that occur, those inside quotients included."""
        for name, _ in self.terms:
            if isinstance(name, Quotient):
                yield from name.dividend.names()
            else:
                yield name

    def value(self, values: Mapping[str, int]) -> int:
        """Return the value under ``values``, which must name everything that occurs."""
        total = self.constant
        for name, factor in self.terms:
            if isinstance(name, Quotient):
                total += factor * (name.dividend.value(values) // name.divisor)
            else:
                total += factor * values[name]
        return total

    def split(self, chosen: Callable[[str], bool]) -> tuple[dict[str, int], Linear]:
        """Return the coefficients of the chosen names, and the combination of everything else."""
        inside: dict[str, int] = {}
        outside: dict[str | Quotient, int] = {}
        for name, factor in self.terms:
            if isinstance(name, str) and chosen(name):
                inside[name] = factor
            else:
                outside[name] = factor
        return inside, Linear.of(outside, self.constant)

    def __str__(self) -> str:
        parts: list[str] = []
        for name, factor in self.terms:
            sign = "-" if factor < 0 else "+" if parts else ""
            size = "" if abs(factor) == 1 else f"{abs(factor)} * "
            parts.append(f"{sign} {size}{name}" if parts else f"{sign}{size}{name}")
        if self.constant or not parts:
            sign = "-" if self.constant < 0 else "+"
            parts.append(f"{sign} {abs(self.constant)}" if parts else str(self.constant))
        return " ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """``left relation right`` over integers."""

    left: Linear
    relation: Relation
    right: Linear
    parts: ClassVar[tuple[Formula, ...]] = ()

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether the comparison is true under ``values``."""
        difference = self.left.value(values) - self.right.value(values)
        return compare(difference, self.relation)

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True)
class Constant:
    """Truth or falsehood."""

    truth: bool
    parts: ClassVar[tuple[Formula, ...]] = ()

    def __str__(self) -> str:
        return "true" if self.truth else "false"


@dataclass(frozen=True)
class _OfOne:
    inner: Formula
    sign: ClassVar[str]

    @property
    def parts(self) -> tuple[Formula, ...]:
        """The formulas inside."""
        return (self.inner,)

    def __str__(self) -> str:
        return f"{self.sign}({self.inner})"


class Not(_OfOne):
    """Negation."""

    sign = "!"


class Always(_OfOne):
    """``[]``: now and in every later configuration."""

    sign = "[]"


class Eventually(_OfOne):
    """``<>``: now or in some later configuration."""

    sign = "<>"


@dataclass(frozen=True)
class _OfSeveral:
    parts: tuple[Formula, ...]
    sign: ClassVar[str]
    empty: ClassVar[str]

    def __str__(self) -> str:
        return self.sign.join(f"({part})" for part in self.parts) or self.empty


class And(_OfSeveral):
    """Conjunction; empty is true."""

    sign, empty = " && ", "true"


class Or(_OfSeveral):
    """Disjunction; empty is false."""

    sign, empty = " || ", "false"


@dataclass(frozen=True)
class Implies:
    """``premise -> conclusion``."""

    premise: Formula
    conclusion: Formula

    @property
    def parts(self) -> tuple[Formula, ...]:
        """The formulas inside."""
        return (self.premise, self.conclusion)

    def __str__(self) -> str:
        return f"({self.premise}) -> ({self.conclusion})"


Formula = Comparison | Constant | Not | And | Or | Implies | Always | Eventually
TRUE, FALSE = Constant(True), Constant(False)


def compare(difference: int, relation: Relation) -> bool:
    """Return whether ``difference relation 0``."""
    if relation == "==":
        return difference == 0
    if relation == "!=":
        return difference != 0
    if relation == "<":
        return difference < 0
    if relation == "<=":
        return difference <= 0
    return difference > 0 if relation == ">" else difference >= 0


def conjuncts(formula: Formula) -> tuple[Formula, ...]:
    """Return the parts of a conjunction, or the formula alone."""
    return formula.parts if isinstance(formula, And) else (formula,)


def conjunction(parts: Iterable[Formula]) -> Formula:
    """Return the flat conjunction, without truths; false when one part is false."""
    return _flat(parts, And, TRUE, FALSE)


def disjunction(parts: Iterable[Formula]) -> Formula:
    """Return the flat disjunction, without falsehoods; true when one part is true."""
    return _flat(parts, Or, FALSE, TRUE)


def _flat(parts: Iterable[Formula], kind: type[And | Or], neutral: Formula, decisive: Formula) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        for item in part.parts if isinstance(part, kind) else (part,):
            if item == decisive:
                return decisive
            if item != neutral:
                flat[item] = None
    return next(iter(flat)) if len(flat) == 1 else kind(tuple(flat)) if flat else neutral


def negation_normal(formula: Formula, negate: bool = False) -> Formula:
    """Return an equivalent formula without negations and implications.

    Parameters
    ----------
    formula : Formula
    negate : bool
        Return the negation's normal form instead.
    """
    if isinstance(formula, Comparison):
        relation = NEGATED[formula.relation] if negate else formula.relation
        return Comparison(formula.left, relation, formula.right)
    if isinstance(formula, Constant):
        return Constant(formula.truth != negate)
    if isinstance(formula, Not):
        return negation_normal(formula.inner, not negate)
    if isinstance(formula, Implies):
        parts = (negation_normal(formula.premise, not negate), negation_normal(formula.conclusion, negate))
        return conjunction(parts) if negate else disjunction(parts)
    if isinstance(formula, And | Or):
        inner = [negation_normal(part, negate) for part in formula.parts]
        return conjunction(inner) if isinstance(formula, And) != negate else disjunction(inner)
    inside = negation_normal(formula.inner, negate)
    return Always(inside) if isinstance(formula, Always) != negate else Eventually(inside)


def comparisons(formula: Formula) -> Iterator[Comparison]:
    """Yield every comparison of a formula, from left to right."""
    stack: list[Formula] = [formula]
    while stack:
        item = stack.pop()
        if isinstance(item, Comparison):
            yield item
        stack += reversed(item.parts)


def is_temporal(formula: Formula) -> bool:
    """Return whether "always" or "eventually" occurs."""
    return isinstance(formula, Always | Eventually) or any(map(is_temporal, formula.parts))


def holds(formula: Formula, values: Mapping[str, int]) -> bool:
    """Return the truth of a formula without temporal operators under ``values``."""
    if isinstance(formula, Comparison):
        return formula.holds(values)
    if isinstance(formula, Constant):
        return formula.truth
    if isinstance(formula, Not):
        return not holds(formula.inner, values)
    if isinstance(formula, And):
        return all(holds(part, values) for part in formula.parts)
    if isinstance(formula, Or):
        return any(holds(part, values) for part in formula.parts)
    if isinstance(formula, Implies):
        return not holds(formula.premise, values) or holds(formula.conclusion, values)
    raise TypeError("A temporal formula has no truth in one configuration.")


def at_least_zero(comparison: Comparison) -> tuple[tuple[Linear, ...], bool]:
    """Return expressions whose being at least zero states the comparison.

    Returns
    -------
    expressions : tuple of Linear
        One, or two for an equality or inequality.
    all_of : bool
        Whether all must be at least zero (True) or one of them suffices (False, for ``!=``).
    """
    difference = comparison.left - comparison.right
    one = Linear((), 1)
    if comparison.relation == ">=":
        return (difference,), True
    if comparison.relation == ">":
        return (difference - one,), True
    if comparison.relation == "<=":
        return (difference.times(-1),), True
    if comparison.relation == "<":
        return (difference.times(-1) - one,), True
    if comparison.relation == "==":
        return (difference, difference.times(-1)), True
    return (difference - one, difference.times(-1) - one), False


def disjuncts(formula: Formula, limit: int) -> list[tuple[Formula, ...]] | None:
    """Return the disjunctive normal form of a negation-free formula; None when it has more than ``limit`` parts.

    Parts of a conjunction that are neither conjunctions nor disjunctions (comparisons, temporal formulas) stay whole.
    """
    if formula == TRUE:
        return [()]
    if formula == FALSE:
        return []
    if isinstance(formula, Or):
        listed: list[tuple[Formula, ...]] = []
        for part in formula.parts:
            found = disjuncts(part, limit)
            if found is None or len(listed) + len(found) > limit:
                return None
            listed += found
        return listed
    if isinstance(formula, And):
        product: list[tuple[Formula, ...]] = [()]
        for part in formula.parts:
            found = disjuncts(part, limit)
            if found is None or len(product) * len(found) > limit:
                return None
            product = [left + right for left in product for right in found]
        return product
    return [(formula,)]
