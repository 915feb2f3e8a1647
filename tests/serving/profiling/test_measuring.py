"""Measuring: what is swept, what operations are called with, and a machine that is busy."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.machine import limits
from wavetank.serving.profiling import measuring
from wavetank.serving.profiling.database import OperationDatabase, Point
from wavetank.serving.profiling.measuring import Call, Grid, Replay, Timing, clock_of, device_conditions, fill, sweep
from wavetank.serving.profiling.operations import Operation, canonical

torch = pytest.importorskip("torch", reason="torch is not installed")

GRID = Grid.up_to(16, 4, 32)
QUICK = Timing(warm_ups=0, runs=3, budget_s=10.0, tries=1)
TOKENS = {"NUM_TOKS": 1}


def operation(name: str, *arguments: Any, **named: Any) -> Operation:
    structure: dict[str, Any] = {"a": list(arguments)}
    return Operation(name, canonical(structure | ({"k": named} if named else {})))


def tensor(*dims: Any, t: str = "float32", **more: Any) -> dict[str, Any]:
    return {"t": t, "d": list(dims), **more}


LINEAR = operation("aten.linear.default", tensor(TOKENS, 8), tensor(16, 8, w=1), None)


def test_a_grid_has_its_ends_and_only_varies_what_the_request_sets() -> None:
    assert GRID.tokens == (1, 2, 4, 8, 16)
    assert [point.tokens for point in GRID.points(LINEAR)] == list(GRID.tokens)
    rows = operation("aten.linear.default", tensor({"NUM_REQS": 1}, 8), tensor(16, 8, w=1))
    assert GRID.points(rows) == [Point(requests=n) for n in (1, 2, 4)]
    assert len(GRID.points(operation("aten.exp.default", tensor(8)))) == 1
    both = GRID.points(operation("aten.index.Tensor", tensor(TOKENS, 8), [tensor({"NUM_REQS": 1}, t="int64")]))
    assert both
    assert all(point.requests <= point.tokens for point in both)


def test_attention_is_swept_over_four_dimensions() -> None:
    attention = operation("wavetank.cached_attention.default", tensor(TOKENS, 4, 8))
    points = Grid.up_to(64, 8, 256).points(attention)
    assert len(set(points)) == len(points)
    for name in ("chunk", "past", "decodes", "context"):
        assert len({getattr(point, name) for point in points}) > 2
    assert any(point.chunk and point.decodes for point in points)
    assert all(bool(point.decodes) == bool(point.context) for point in points)


@pytest.mark.parametrize("change", [{"max_tokens": 15}, {"max_requests": 1}, {"max_context": 31}, {"max_tokens": 2.0}])
def test_a_grid_of_less_than_two_points_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Grid.up_to(**change)


def run(made: Operation, point: Point) -> list[Any]:
    calls = Replay(made, GRID, "cpu").calls(point)
    return [each.run() for each in calls]


def test_an_operation_is_called_with_the_shapes_of_the_point() -> None:
    results = run(LINEAR, Point(tokens=4))
    assert all(each.shape == (4, 16) for each in results)
    # Weights differ from call to call, activations do not.
    assert len(results) > 1
    assert not torch.equal(results[0], results[1])


def test_orders_in_memory_broadcasts_and_types_are_those_of_the_trace() -> None:
    made = operation("aten.add.Tensor", tensor(TOKENS, 8, o=[1, 0]), tensor(TOKENS, 8, e=[1]))
    (call,) = Replay(made, GRID, "cpu").calls(Point(tokens=4))
    left, right = call.activations
    assert (left.stride(), left.shape) == ((1, 4), (4, 8))
    assert right.stride()[1] == 0
    half = operation("aten.to.dtype", tensor(TOKENS, 8), {"v": "torch.bfloat16"})
    assert run(half, Point(tokens=2))[0].dtype is torch.bfloat16
    kept = operation("aten.sum.dim_IntList", tensor(TOKENS, 8), [0], keepdim=True)
    assert run(kept, Point(tokens=2))[0].shape == (1, 8)
    float_of = operation("aten.mul.Scalar", tensor(TOKENS, 8), {"f": (0.5).hex()})
    assert run(float_of, Point(tokens=2))[0].shape == (2, 8)
    assert run(operation("aten.mul.Scalar", tensor(TOKENS, 8), {"any": "float"}), Point(tokens=2))


def test_indices_are_valid_ones() -> None:
    look_up = operation("aten.embedding.default", tensor(3, 8, w=1), tensor(TOKENS, t="int64"))
    for point in (Point(tokens=1), Point(tokens=16)):
        assert all(each.shape == (point.tokens, 8) for each in run(look_up, point))
    rows = operation("aten.index.Tensor", tensor(TOKENS, 8), [tensor({"NUM_REQS": 1}, t="int64")])
    for point in GRID.points(rows):
        assert run(rows, point)[0].shape == (point.requests, 8)


def test_a_call_is_timed_as_often_as_asked_and_cut_off_by_its_budget() -> None:
    calls = 0

    def run_it() -> None:
        nonlocal calls
        calls += 1

    seconds, spent_s = Timing(warm_ups=2, runs=7, budget_s=100.0).timed([Call(run_it, ())])
    assert (len(seconds), calls) == (7, 9)
    assert all(each > 0 for each in seconds)
    assert spent_s > 0
    few, _ = Timing(warm_ups=0, runs=50, budget_s=1e-9).timed([Call(run_it, ())])
    assert len(few) == 3


def test_calls_are_taken_in_turns() -> None:
    seen: list[int] = []
    calls = [Call(lambda i=i: seen.append(i), ()) for i in range(3)]  # type: ignore[misc]
    Timing(warm_ups=1, runs=5, budget_s=100.0).timed(calls)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_a_clock_that_does_not_exist_is_refused() -> None:
    assert clock_of("processor", "cpu").now() > 0
    with pytest.raises(BadValueError, match="clock"):
        clock_of("sun", "cpu")


def test_results_of_other_threads_and_clocks_are_kept_apart() -> None:
    found = {device_conditions("cpu", threads, clock) for threads in (1, 2) for clock in ("wall", "processor")}
    assert len(found) == 4


def test_a_busy_machine_is_noticed_measured_again_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = itertools.chain([9.0, 0.0], itertools.repeat(9.0))
    monkeypatch.setattr(limits, "others_cores", lambda: lambda: next(busy))
    monkeypatch.setattr(measuring, "_LARGEST_SPREAD", 1e9)
    points = GRID.points(LINEAR)[:2]
    again = Timing(warm_ups=0, runs=3, tries=2)
    assert not any(each.disturbed for each in sweep(LINEAR, GRID, points, again).values())
    assert all(each.disturbed for each in sweep(LINEAR, GRID, points, again).values())


def test_the_same_operations_are_not_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "others_cores", lambda: lambda: 0.0)
    monkeypatch.setattr(measuring, "_LARGEST_SPREAD", 1e9)
    other = operation("aten.exp.default", tensor(TOKENS, 8))
    said: list[str] = []
    with OperationDatabase(":memory:") as database:
        first = fill(database, [LINEAR], GRID, "here", QUICK, said.append)
        second = fill(database, [LINEAR, other], GRID, "here", QUICK, said.append)
        third = fill(database, [LINEAR, other], GRID, "here", QUICK, said.append)
        elsewhere = fill(database, [LINEAR], GRID, "elsewhere", QUICK)
        larger = fill(database, [LINEAR], Grid.up_to(32, 4, 32), "here", QUICK)
    assert [each.points_measured for each in (first, second, third, elsewhere, larger)] == [5, 5, 0, 5, 2]
    assert second.reused == (LINEAR,)
    assert second.measured == (other,)
    assert said == [LINEAR.words(), other.words()]
    assert third.spent_s == 0.0


def test_what_does_not_fit_into_memory_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 30)
    large = operation("aten.linear.default", tensor(TOKENS, 1 << 15), tensor(1 << 15, 1 << 15, w=1))
    with pytest.raises(BadValueError, match="more memory"):
        Replay(large, GRID, "cpu")
