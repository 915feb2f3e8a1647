"""Where sizes come from: the rules, one by one, and sizes rebuilt for other batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.profiling.taint import (
    CONTEXT,
    MIX,
    MODEL_CONFIG,
    NUM_REQS,
    NUM_TOKS,
    REQUEST_LABELS,
    TP_CONFIG,
    Registry,
    TaintedInt,
    combined,
    of_config,
)

FIRST = {NUM_TOKS: 7, NUM_REQS: 5, "MAX_NUM_REQS": 263, CONTEXT: 31, "MAX_CONTEXT": 509}
SECOND = {NUM_TOKS: 1013, NUM_REQS: 97, "MAX_NUM_REQS": 269, CONTEXT: 10007, "MAX_CONTEXT": 521}


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        (NUM_TOKS, NUM_TOKS, NUM_TOKS),
        (NUM_TOKS, "", NUM_TOKS),
        ("", NUM_REQS, NUM_REQS),
        ("", "", ""),
        (MODEL_CONFIG, MODEL_CONFIG, MODEL_CONFIG),
        (MODEL_CONFIG, TP_CONFIG, MODEL_CONFIG),
        (NUM_TOKS, MODEL_CONFIG, MIX),
        (TP_CONFIG, NUM_REQS, MIX),
        (MIX, MODEL_CONFIG, MIX),
        (NUM_REQS, NUM_TOKS, ""),
    ],
)
def test_labels_combine_by_the_table(left: str, right: str, result: str) -> None:
    assert combined(left, right) == result
    assert combined(right, left) == result


def sizes(registry: Registry) -> dict[str, Any]:
    found: dict[str, Any] = {label: registry.tainted(value) for label, value in registry.quantities.items()}
    return found | {
        "head": TaintedInt(64, of_config(64), registry),
        "tp": TaintedInt(4, of_config(4, TP_CONFIG), registry),
    }


@pytest.mark.parametrize(
    ("expression", "label", "value"),
    [
        (lambda s: s[NUM_TOKS] * s["head"], MIX, 64 * 1013),
        (lambda s: 3 * s[NUM_TOKS], NUM_TOKS, 3 * 1013),
        (lambda s: s[NUM_TOKS] + 1, NUM_TOKS, 1014),
        (lambda s: 1 - s[NUM_TOKS], NUM_TOKS, -1012),
        (lambda s: s[NUM_TOKS] + s[NUM_TOKS], NUM_TOKS, 2026),
        (lambda s: s[NUM_TOKS] * s[NUM_TOKS], NUM_TOKS, 1013**2),
        (lambda s: s[NUM_TOKS] * s["head"] // s["tp"], MIX, 16 * 1013),
        (lambda s: s[NUM_TOKS] * s["head"] // s[NUM_TOKS], MODEL_CONFIG, 64),
        (lambda s: (s[NUM_TOKS] + 3) * s["head"] - s["head"], MIX, 64 * 1015),
        (lambda s: s["head"] // s["tp"], MODEL_CONFIG, 16),
        (lambda s: s["head"] * s["tp"], MODEL_CONFIG, 256),
        (lambda s: s[NUM_TOKS] * s[NUM_REQS], "", 1013 * 97),
    ],
)
def test_arithmetic_keeps_what_is_needed_to_rebuild_a_size(expression: Any, label: str, value: int) -> None:
    found = expression(sizes(Registry(FIRST)))
    assert isinstance(found, TaintedInt)
    assert found.taint.label == label
    assert found.taint.size(FIRST) == found
    assert found.taint.size(SECOND) == value


@pytest.mark.parametrize(
    "expression",
    [
        lambda s: s[NUM_TOKS] // 2,
        lambda s: s[NUM_TOKS] + s[NUM_REQS],
        lambda s: s[NUM_TOKS] - s[NUM_TOKS],
        lambda s: s[NUM_TOKS] % 4,
        lambda s: (s[NUM_TOKS] + 1) * (s[NUM_TOKS] + 1),
        lambda s: s[NUM_TOKS] ** 2,
        lambda s: s["head"] // s[NUM_TOKS],
    ],
)
def test_what_cannot_be_rebuilt_is_a_plain_number(expression: Any) -> None:
    assert not isinstance(expression(sizes(Registry(FIRST))), TaintedInt)


def test_the_history_of_a_product_has_the_quantity_of_each_label() -> None:
    found: Any = sizes(Registry(FIRST))[NUM_TOKS] * sizes(Registry(FIRST))["head"]
    assert found.taint.history(FIRST) == {NUM_TOKS: 7, MODEL_CONFIG: 64}


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["*", "+", "-", "//"]), st.sampled_from([NUM_TOKS, NUM_REQS, "head", "tp", "3"])),
        max_size=5,
    ),
    start=st.sampled_from(sorted(REQUEST_LABELS)),
)
def test_any_expression_that_keeps_its_taint_rebuilds_its_size(steps: list[tuple[str, str]], start: str) -> None:
    def evaluated(quantities: dict[str, int], tainted: bool) -> Any:
        registry = Registry(quantities)
        known: dict[str, Any] = sizes(registry) if tainted else {**quantities, "head": 64, "tp": 4}
        value = known[start]
        for sign, name in steps:
            other = 3 if name == "3" else known[name]
            if tainted and not isinstance(value, TaintedInt):
                return None
            value = {"*": value * other, "+": value + other, "-": value - other, "//": value // other}[sign]
        return value

    try:
        found = evaluated(FIRST, tainted=True)
    except BadValueError:
        # Two sizes met in one number.
        return
    if isinstance(found, TaintedInt):
        assert int(found) == evaluated(FIRST, tainted=False)
        assert found.taint.size(SECOND) == evaluated(SECOND, tainted=False)


def test_two_origins_of_one_number_are_refused_and_named() -> None:
    registry = Registry(FIRST)
    registry.register(64, of_config(64))
    with pytest.raises(BadValueError, match="same number") as caught:
        registry.register(7, of_config(7))
    assert "NUM_TOKS" in str(caught.value)
    token = registry.tainted(7)
    with pytest.raises(BadValueError, match="same number"):
        registry.register(64, (token * 2).taint)  # type: ignore[attr-defined]


def test_a_number_of_the_configuration_may_come_twice_and_one_says_nothing() -> None:
    registry = Registry(FIRST)
    registry.register(64, of_config(64))
    registry.register(64, of_config(64, TP_CONFIG))
    registry.register(1, of_config(1))
    assert registry.find(1) is None
    assert registry.tainted(63) == 63
    assert not isinstance(registry.tainted(63), TaintedInt)


def test_a_tainted_size_is_a_number_like_any_other() -> None:
    token = Registry(FIRST).tainted(7)
    assert token == 7
    assert [0] * token == [0] * 7
    assert f"{token}" == "7"
    assert token / 2 == 3.5
    assert {7: "found"}[token] == "found"
    assert list(range(token)) == list(range(7))
