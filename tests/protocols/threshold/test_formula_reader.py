"""Expressions and formulas read from text."""

from __future__ import annotations

import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    Always,
    And,
    Comparison,
    Eventually,
    Formula,
    Implies,
    Linear,
    Not,
    Or,
    Quotient,
)
from wavetank.protocols.threshold.formula_reader import FormulaReader
from wavetank.protocols.threshold.parser import _TOKEN, NOTATION
from wavetank.protocols.threshold.source_text import Tokens


def reader(text: str) -> FormulaReader:
    tokens = Tokens(text, "text", _TOKEN, {"/*": "*/"})
    return FormulaReader(tokens, NOTATION, lambda found: Linear.name(found.next()), "NT".__contains__)


def formula(text: str) -> Formula:
    return reader(text).formula()


def atom(name: str) -> Comparison:
    return Comparison(Linear.name(name), "==", Linear())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - -x", Linear.of({"x": 1}, 7)),
        ("2 * (x - 3) * 2", Linear.of({"x": 4}, -12)),
        ("-(x + y)", Linear.of({"x": -1, "y": -1})),
        ("(4 * N + 3) / 2", Linear.of({"N": 2}, 1)),
        ("(N + T) / 2 + 1", Linear.of({Quotient(Linear.of({"N": 1, "T": 1}), 2): 1}, 1)),
        ("x - x", Linear()),
    ],
)
def test_arithmetic_is_read_as_mathematicians_do(text: str, expected: Linear) -> None:
    assert reader(text).linear() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 0 || b == 0 && c == 0", Or((atom("a"), And((atom("b"), atom("c")))))),
        ("a == 0 -> b == 0 -> c == 0", Implies(atom("a"), Implies(atom("b"), atom("c")))),
        ("! a == 0 && b == 0", And((Not(atom("a")), atom("b")))),
        ("<>[](a == 0) -> []a == 0", Implies(Eventually(Always(atom("a"))), Always(atom("a")))),
        ("((a) == (0))", atom("a")),
        ("1 && (0 || true)", And((TRUE, Or((FALSE, TRUE))))),
        ("a =! 0", Comparison(Linear.name("a"), "!=", Linear())),
    ],
)
def test_connectives_bind_as_in_the_language(text: str, expected: Formula) -> None:
    assert formula(text) == expected


def test_nesting_may_be_deeper_than_python_recurses() -> None:
    depth = 5000
    text = "(a == 0 && " * depth + "a == 0" + ")" * depth
    found = formula(text)
    assert isinstance(found, And)
    assert len(found.parts) == depth + 1


def test_reading_stops_at_the_connective_asked_for() -> None:
    here = reader("(a == 0 && b == 0) || c == 0 && d == 0")
    assert here.formula("&&") == Or((And((atom("a"), atom("b"))), atom("c")))
    assert here.tokens.word == "&&"


@pytest.mark.parametrize(
    ("text", "says", "column"),
    [
        ("a == ", "Expected a name or a number", 6),
        ("(a == 0", "Expected \\)", 8),
        ("a * b == 0", "not linear", 3),
        ("a / 2 == 0", "Only parameters", 3),
        ("N / 0 == 0", "positive constant", 3),
        ("a && b", "Expected a condition", 3),
        ("(a == 0) + 1 > 0", "Expected a number beside", 10),
        ("a", "Expected a condition", 1),
        ("2", "Expected a condition", 1),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(text: str, says: str, column: int) -> None:
    with pytest.raises(BadFileError, match=says) as caught:
        formula(text)
    assert caught.value.where == f"text, line 1, column {column}"


def test_a_condition_is_no_number() -> None:
    with pytest.raises(BadFileError, match="found a condition"):
        reader("a == 0").linear()


@pytest.mark.parametrize(
    "text",
    ["!" * 5000 + "(a == 0)", "a == 0 -> " * 5000 + "b == 0", "(a == 0 && (b == 0 || " * 3000 + "true" + "))" * 3000,
     "a == " + "(" * 5000 + "N" + " / 3)" * 5000],
    ids=["not", "implies", "alternating", "quotients"],
)  # fmt: skip
def test_connectives_inside_one_another_have_a_limit(text: str) -> None:
    with pytest.raises(BadFileError, match="nested too deep") as caught:
        formula(text)
    assert "line 1, column" in str(caught.value.where)
