"""Linear expressions and formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    Always,
    And,
    Comparison,
    Eventually,
    Implies,
    Linear,
    Not,
    Or,
    Quotient,
    at_least_zero,
    comparisons,
    conjunction,
    disjunction,
    disjuncts,
    holds,
    is_temporal,
    negation_normal,
)

NAMES = ("a", "b", "c")
linears = st.builds(
    lambda factors, constant: Linear.of(dict(zip(NAMES, factors, strict=True)), constant),
    st.tuples(*[st.integers(-3, 3)] * 3),
    st.integers(-4, 4),
)
atoms = st.builds(Comparison, linears, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), linears)
formulas = st.recursive(
    atoms | st.sampled_from([TRUE, FALSE]),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Implies, inner, inner),
        st.builds(lambda *parts: And(parts), inner, inner),
        st.builds(lambda *parts: Or(parts), inner, inner),
    ),
    max_leaves=6,
)
worlds = st.fixed_dictionaries({name: st.integers(0, 5) for name in NAMES})


@given(linears, linears, worlds)
def test_arithmetic_of_expressions_is_that_of_their_values(left: Linear, right: Linear, world: dict[str, int]) -> None:
    assert (left + right).value(world) == left.value(world) + right.value(world)
    assert (left - right).value(world) == left.value(world) - right.value(world)
    assert left.times(-3).value(world) == -3 * left.value(world)


@given(formulas, worlds)
def test_the_normal_form_means_the_same_and_has_no_negation(formula, world: dict[str, int]) -> None:
    for negate in (False, True):
        normal = negation_normal(formula, negate)
        assert holds(normal, world) == (holds(formula, world) != negate)
        assert "!(" not in str(normal)
        assert "->" not in str(normal)


@given(atoms, worlds)
def test_a_comparison_is_one_or_two_expressions_at_least_zero(atom: Comparison, world: dict[str, int]) -> None:
    expressions, all_of = at_least_zero(atom)
    truths = [expression.value(world) >= 0 for expression in expressions]
    assert (all(truths) if all_of else any(truths)) == holds(atom, world)


@given(formulas, worlds)
def test_alternatives_together_mean_the_formula(formula, world: dict[str, int]) -> None:
    found = disjuncts(negation_normal(formula), 1000)
    assert found is not None
    assert any(all(holds(part, world) for part in parts) for parts in found) == holds(formula, world)


def test_too_many_alternatives_are_not_listed() -> None:
    pair = Or((Comparison(Linear.name("a"), ">", Linear()), Comparison(Linear.name("b"), ">", Linear())))
    assert disjuncts(And((pair,) * 4), 16) is not None
    assert disjuncts(And((pair,) * 5), 16) is None
    assert disjuncts(Or((pair, pair)), 3) is None


def test_a_quotient_rounds_down() -> None:
    half = Linear.name(Quotient(Linear.of({"a": 1}, 1), 2))
    assert [half.value({"a": value}) for value in range(4)] == [0, 1, 1, 2]
    assert list(half.names()) == ["a"]
    assert str(half) == "((a + 1) / 2)"


def test_expressions_are_written_as_one_would() -> None:
    assert str(Linear.of({"a": 2, "b": -1}, -3)) == "2 * a - b - 3"
    assert str(Linear.of({"a": -2})) == "-2 * a"
    assert str(Linear()) == "0"
    assert Linear.of({"a": 0}) == Linear()


def test_junctions_are_flat_and_settle_what_is_settled() -> None:
    atom = Comparison(Linear.name("a"), ">", Linear())
    assert conjunction([TRUE, atom, And((atom,))]) == atom
    assert conjunction([atom, FALSE]) == FALSE
    assert disjunction([FALSE, atom]) == atom
    assert disjunction([atom, TRUE]) == TRUE
    assert str(And(())) == "true"
    assert str(Or(())) == "false"


def test_temporal_operators_are_found_and_turned_round_by_negation() -> None:
    atom = Comparison(Linear.name("a"), "==", Linear())
    formula = Implies(atom, Not(Always(atom)))
    assert is_temporal(formula)
    assert not is_temporal(Not(And((atom, Or((atom,))))))
    assert negation_normal(formula) == Or((negation_normal(atom, True), Eventually(negation_normal(atom, True))))
    assert negation_normal(Eventually(atom), True) == Always(negation_normal(atom, True))
    assert list(comparisons(formula)) == [atom, atom]
    with pytest.raises(TypeError):
        holds(Always(atom), {"a": 0})


def test_parts_of_an_expression_are_split() -> None:
    inside, outside = Linear.of({"a": 2, "b": 3}, 1).split("a".__eq__)
    assert inside == {"a": 2}
    assert outside == Linear.of({"b": 3}, 1)
