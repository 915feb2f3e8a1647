"""Specifications taken apart."""

from __future__ import annotations

import pytest

from wavetank.protocols.threshold.expressions import TRUE
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.properties import SafetyProperty, safety_properties

TEXT = """skel P { shared x; parameters N, F;
  locations (0) { a: [0]; b: [1]; c: [2]; }
  inits (0) { a == N; b == 0; c == 0; x == 0; }
  rules (0) { 0: a -> b when (true) do { }; }
  specifications (0) { p: %s; } }"""


def taken_apart(formula: str) -> SafetyProperty:
    (found,) = safety_properties(parse_automaton(TEXT % formula))
    return found


def shown(formula: str) -> list[tuple[str, list[str]]]:
    return [(str(query.initial), [str(stage) for stage in query.stages]) for query in taken_apart(formula).queries]


@pytest.mark.parametrize(
    ("formula", "queries"),
    [
        ("[](b == 0)", [("true", ["b != 0"])]),
        ("(a == 0) -> [](b == 0)", [("a == 0", ["b != 0"])]),
        ("a == 0 || [](b == 0)", [("a != 0", ["b != 0"])]),
        ("F == 0 -> (a == 0 -> [](b == 0))", [("(F == 0) && (a == 0)", ["b != 0"])]),
        ("[](b != 0 -> c == 0)", [("true", ["(b != 0) && (c != 0)"])]),
        ("[](b != 0 -> [](c == 0))", [("true", ["b != 0", "c != 0"])]),
        ("[](b == 0) && [](c == 0)", [("true", ["b != 0"]), ("true", ["c != 0"])]),
        ("[](b == 0) || [](c == 0)", [("true", ["b != 0", "c != 0"]), ("true", ["c != 0", "b != 0"])]),
        ("a != 0", [("a == 0", ["true"])]),
        ("[](b == 0 || x < 3)", [("true", ["(b != 0) && (x >= 3)"])]),
        ("true", []),
    ],
)
def test_every_way_to_violate_a_safety_formula_is_listed(formula: str, queries: list[tuple[str, list[str]]]) -> None:
    assert taken_apart(formula).not_checked == ""
    assert shown(formula) == queries


@pytest.mark.parametrize(
    "formula", ["<>(b != 0)", "<>[](a == 0) -> [](b == 0)", "[](b != 0 -> <>(c != 0))", "[]<>(b == 0)"]
)
def test_liveness_is_reported_as_not_checked(formula: str) -> None:
    found = taken_apart(formula)
    assert "liveness" in found.not_checked
    assert found.queries == ()


def test_too_many_orders_in_time_are_not_checked() -> None:
    many = " || ".join(["[](b == 0)", "[](c == 0)", "[](a == 0)", "[](x < 1)", "[](x < 2)"])
    assert "too many ways" in taken_apart(many).not_checked


def test_a_formula_without_temporal_operators_speaks_about_the_start() -> None:
    (query,) = taken_apart("a == N").queries
    assert query.stages == (TRUE,)
    assert str(query.initial) == "a != N"
