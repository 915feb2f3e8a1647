"""Facts about parameters."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    Always,
    And,
    Comparison,
    Formula,
    Implies,
    Linear,
    Not,
    Or,
    Quotient,
    holds,
)
from wavetank.protocols.threshold.parameters import (
    ParameterFacts,
    SmtText,
    load_z3,
    number,
)

N, T = Linear.name("N"), Linear.name("T")


def facts(*conditions: Formula) -> ParameterFacts:
    return ParameterFacts(["N", "T"], conditions, Deadline(30))


def test_the_resilience_condition_orders_thresholds() -> None:
    known = facts(Comparison(N, ">", T.times(3)), Comparison(T, ">=", Linear((), 1)))
    assert known.always(N - T.times(2) - Linear((), 2))
    assert not known.always(N - T.times(2) - Linear((), 3))
    assert known.possible(T.times(1), Linear((), 7) - N)
    assert not known.possible(T.times(3) - N)
    assert not known.possible(Linear((), -1))
    assert known.possible()


def test_quotients_round_down() -> None:
    known = facts(Comparison(N, "==", Linear((), 7)))
    half = Linear.name(Quotient(N, 2))
    assert known.always(half - Linear((), 3))
    assert known.always(Linear((), 3) - half)


def test_parameters_that_do_not_exist_make_everything_impossible() -> None:
    assert not facts(FALSE).possible()
    assert facts(TRUE, Not(FALSE), Or((FALSE, TRUE)), And(()), Implies(TRUE, TRUE)).possible()
    with pytest.raises(TypeError):
        facts(Always(TRUE))


def test_a_question_out_of_time_is_reported() -> None:
    with pytest.raises(OutOfTimeError):
        ParameterFacts(["N"], [], Deadline(-1)).possible(N - Linear((), 3))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(-3, 3)), min_size=1, max_size=3),
    st.sampled_from(["==", "!=", "<", ">="]),
)
def test_answers_agree_with_trying_small_parameters(rows: list[tuple[int, int, int]], relation: str) -> None:
    asked = [Linear.of({"N": n, "T": t}, constant) for n, t, constant in rows]
    condition = Comparison(N, relation, T.times(2))  # type: ignore[arg-type]
    bounded = [condition, Comparison(N, "<=", Linear((), 6)), Comparison(T, "<=", Linear((), 6))]
    expected = any(
        all(each.value(values) >= 0 for each in asked) and holds(condition, values)
        for n, t in itertools.product(range(7), repeat=2)
        for values in ({"N": n, "T": t},)
    )
    assert facts(*bounded).possible(*asked) == expected


def test_text_for_the_solver_is_smt_lib() -> None:
    text = SmtText({"N": "p0", "T": "p1"})
    quotient = Quotient(N + T, 2)
    assert text.declare_quotients([Linear.name(quotient)])[0] == "(declare-const q0 Int)"
    assert text.declare_quotients([Linear.name(quotient)]) == []
    assert text.linear(Linear.of({"N": 2, quotient: 1}, -3)) == "(+ (* 2 p0) q0 (- 3))"
    assert text.formula(Not(Comparison(N, "!=", T))) == "(not (not (= p0 p1)))"
    assert text.formula(And(())) == "true"
    assert text.formula(Or((TRUE, Implies(FALSE, Comparison(N, "<=", T))))) == "(or true (=> false (<= p0 p1)))"
    assert number(-3) == "(- 3)"
    with pytest.raises(TypeError):
        text.formula(Always(TRUE))


def test_a_solver_without_memory_gives_up() -> None:
    facts = ParameterFacts(("N",), (), Deadline(30))
    z3 = load_z3()

    class Full:
        def __getattr__(self, name: str) -> Any:
            if name == "check":
                raise z3.Z3Exception("out of memory")
            return lambda *_: None

    facts._question._solver = Full()
    with pytest.raises(OutOfTimeError, match="out of memory"):
        facts.possible(Linear.name("N"))
