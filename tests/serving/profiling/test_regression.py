"""From points to steps: exact at what was measured, interpolated between, never falling, and the same when compiled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.links import Link
from wavetank.serving.profiling.database import Point, ProfiledModel
from wavetank.serving.profiling.measuring import Grid
from wavetank.serving.profiling.operations import Operation, canonical
from wavetank.serving.profiling.regression import (
    batch_point,
    compiled_step_time,
    fitted,
    monotone,
)

GRID = Grid.up_to(64, 8, 64)


def operation(name: str, *dims: Any) -> Operation:
    return Operation(name, canonical({"a": [{"t": "float32", "d": list(dims)}]}))


LINEAR = operation("aten.linear.default", {"NUM_TOKS": 1}, 8)
HEAD = operation("aten.linear.default", {"NUM_REQS": 1}, 8)
VIEW = operation("aten.view.default", {"NUM_TOKS": 1}, 8)
INDEX = operation("aten.index.Tensor", {"NUM_TOKS": 1}, {"NUM_REQS": 1})
ATTENTION = operation("wavetank.cached_attention.default", {"NUM_TOKS": 1}, 4, 8)
ALL = (LINEAR, HEAD, VIEW, INDEX, ATTENTION)


def cost(made: Operation, point: Point) -> float:
    """Return a planted time, linear in everything so that interpolation is exact."""
    if made.kind == "attention":
        return 1e-5 + 2e-6 * point.chunk * (1 + point.past / 8) + 1e-6 * point.decodes * (1 + point.context)
    tokens, requests = ("NUM_TOKS" in made.swept) * point.tokens, ("NUM_REQS" in made.swept) * point.requests
    return 1e-5 + 1e-6 * tokens + 3e-6 * requests


def measured(made: Operation) -> dict[Point, float]:
    return {point: cost(made, point) for point in GRID.points(made)}


def model(**change: Any) -> ProfiledModel:
    given_: dict[str, Any] = {
        "name": "planted", "variant": "", "counts": {each: i + 1 for i, each in enumerate(ALL)}, "step_s": 1e-4,
        "sequence_s": 1e-6, "collectives": {},
    }  # fmt: skip
    return ProfiledModel(**{**given_, **change})


@pytest.mark.parametrize("made", ALL, ids=lambda each: each.kind)
def test_measured_points_come_out_as_measured(made: Operation) -> None:
    """Check 5."""
    latency = fitted(made, measured(made))
    for point, seconds in measured(made).items():
        assert latency(point) == pytest.approx(seconds, rel=1e-6), point


def test_between_two_points_the_time_lies_between_theirs() -> None:
    latency = fitted(LINEAR, {Point(tokens=10): 1e-3, Point(tokens=20): 3e-3})
    assert latency(Point(tokens=15)) == pytest.approx(2e-3)
    assert latency(Point(tokens=1)) == pytest.approx(1e-3)
    assert latency(Point(tokens=40)) > 3e-3


@given(st.lists(st.floats(1e-6, 1e-2), min_size=2, max_size=12))
def test_more_tokens_never_take_less_time(seconds: list[float]) -> None:
    latency = fitted(LINEAR, {Point(tokens=2**i): s for i, s in enumerate(seconds)})
    times = [latency(Point(tokens=n)) for n in range(1, 2 ** len(seconds), max(1, 2 ** len(seconds) // 50))]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(times))


def test_times_that_never_fall_are_left_as_they_are_and_others_become_means() -> None:
    assert monotone(np.array([1.0, 2.0, 2.0, 5.0])).tolist() == [1.0, 2.0, 2.0, 5.0]
    assert monotone(np.array([1.0, 4.0, 2.0, 5.0])).tolist() == [1.0, 3.0, 3.0, 5.0]


def sum_of_latencies(of: ProfiledModel, fits: Any, point: Point) -> float:
    total = sum(count * fits[each](batch_point(each, point)) for each, count in of.counts.items())
    return total + of.step_s + (point.decodes + (point.chunk > 0)) * of.sequence_s


def test_a_step_is_the_sum_of_count_times_latency() -> None:
    fits = {each: fitted(each, measured(each)) for each in ALL}
    point = Point(chunk=16, past=16, decodes=4, context=16)
    at = {each: cost(each, batch_point(each, point)) for each in ALL if each.kind != "once"}
    at[VIEW] = cost(VIEW, GRID.points(VIEW)[0])
    total = sum(count * at[each] for each, count in model().counts.items()) + 1e-4 + 5e-6
    assert sum_of_latencies(model(), fits, point) == pytest.approx(total, rel=1e-6)


def test_the_compiled_table_says_the_same_as_the_sum() -> None:
    data = {each: measured(each) for each in ALL}
    fits = {each: fitted(each, points) for each, points in data.items()}
    table = compiled_step_time(model(), fits, data)
    assert table.context_slope_ps == -1
    for point in GRID.points(ATTENTION):
        pairs = point.chunk * point.past + point.chunk * (point.chunk + 1) // 2
        found = table.seconds(point.decodes, point.decodes * (point.context - 1), point.chunk, pairs)
        assert found == pytest.approx(sum_of_latencies(model(), fits, point), rel=1e-6), point


def test_a_negative_overhead_never_makes_a_step_of_no_time() -> None:
    data = {each: measured(each) for each in ALL}
    fits = {each: fitted(each, points) for each, points in data.items()}
    table = compiled_step_time(model(step_s=-1.0, sequence_s=-1.0), fits, data)
    assert table.seconds(1, 16) > 0


def test_collectives_take_the_time_of_a_link_and_need_one() -> None:
    data = {each: measured(each) for each in ALL}
    fits = {each: fitted(each, points) for each, points in data.items()}
    shared = model(collectives={
        ("all_reduce", '[{"NUM_TOKS":1},100]', "bfloat16", 2): 3,
        ("all_gather", '[{"NUM_REQS":1},50]', "float32", 2): 1,
    })  # fmt: skip
    with pytest.raises(BadValueError, match="what connects them"):
        compiled_step_time(shared, fits, data)
    link = Link(bytes_per_s=1e6, latency_s=1e-3)
    alone, together = compiled_step_time(model(), fits, data), compiled_step_time(shared, fits, data, link=link)
    more_s = together.seconds(4, 64) - alone.seconds(4, 64)
    assert more_s == pytest.approx(3 * (1e-3 + 4 * 100 * 2 / 1e6) + 1e-3 + 4 * 50 * 4 / 1e6, rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "element_bytes"),
    [("float64", 8), ("int64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("uint8", 1),
     ("bool", 1), ("float4_e2m1fn_x2", 1)],
)  # fmt: skip
def test_elements_of_a_collective_have_the_bytes_of_their_kind(dtype: str, element_bytes: int) -> None:
    data = {each: measured(each) for each in ALL}
    fits = {each: fitted(each, points) for each, points in data.items()}
    shared = model(collectives={("all_reduce", '[{"NUM_TOKS":1},100]', dtype, 2): 1})
    link = Link(bytes_per_s=1e6, latency_s=1e-3)
    more_s = compiled_step_time(shared, fits, data, link=link).seconds(4, 64)
    more_s -= compiled_step_time(model(), fits, data).seconds(4, 64)
    assert more_s == pytest.approx(1e-3 + 4 * 100 * element_bytes / 1e6, rel=1e-6)


def test_an_operation_that_was_not_measured_is_named() -> None:
    with pytest.raises(BadFileError) as caught:
        fitted(LINEAR, {})
    assert "linear" in str(caught.value.given)
