"""What a task and a batch may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.exchange.interface import Batch, Task, checked, exclusive_sums, pieces_of

TASK: dict[str, Any] = {"ranks": 2, "slots": 2, "hidden": 8, "tokens": 3, "choices": 2}


def batch(tokens: int = 2, hidden: int = 8, slots: Any = 0, dtype: Any = np.float32) -> Batch:
    return Batch(np.ones((tokens, hidden), dtype), np.full((tokens, 2), slots), np.ones((tokens, 2), dtype))


def test_rows_have_the_bytes_of_their_form() -> None:
    assert Task(**TASK).row_bytes == 32
    assert Task(**TASK, dtype="float64").row_bytes == 64
    quantised = Task(**TASK, wire="int8")
    assert (quantised.row_bytes, quantised.output_bytes) == (16, 32)
    assert Task(**TASK).packed_rows == 12
    assert Task(**TASK, window_rows=5, source_rows=1).packed_rows == 5
    assert (Task(**TASK).fixed_rows, Task(**TASK, source_rows=1).fixed_rows) == (3, 1)


@pytest.mark.parametrize(
    "change",
    [{"ranks": 0}, {"ranks": 65}, {"slots": True}, {"hidden": 1.0}, {"tokens": -1}, {"choices": 0}, {"window_rows": -1},
     {"dtype": "float16"}, {"wire": "bf16"}, {"hidden": 3}, {"hidden": 12, "wire": "int8"},
     {"dtype": "float64", "wire": "int8"}],
)  # fmt: skip
def test_tasks_that_cannot_be_are_refused_and_say_which_part(change: dict[str, Any]) -> None:
    with pytest.raises(BadValueError) as caught:
        Task(**{**TASK, **change})
    assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [(batch(tokens=4), "at most 3 tokens"), (batch(hidden=16), "does not fit"), (batch(slots=4), "-1 to 3"),
     (batch(slots=-2), "-1 to 3"), (batch(slots=0.5), "no slot")],
)  # fmt: skip
def test_batches_that_do_not_fit_are_refused(given: Batch, says: str) -> None:
    with pytest.raises(BadValueError, match=says):
        checked(given, Task(**TASK))


def test_a_batch_comes_back_in_the_types_of_its_task() -> None:
    found = checked(batch(dtype=np.float64, slots=-1), Task(**TASK))
    assert found.values.dtype == found.gates.dtype == np.float32
    assert found.slots.dtype == np.int64
    empty = checked(batch(tokens=0), Task(**TASK))
    assert empty.slots.shape == (0, 2)


def test_what_has_no_scale_is_refused_where_scales_are_needed_alone() -> None:
    for bad in (np.nan, np.inf):
        given = batch()
        given.values[1, 2] = bad
        assert checked(given, Task(**TASK)).values[1, 2] != 1.0
        with pytest.raises(BadValueError, match="not finite"):
            checked(given, Task(**TASK, wire="int8"))


def test_what_is_infinite_only_as_it_travels_has_no_scale_either() -> None:
    given = batch(dtype=np.float64)
    given.values[0, 3] = 1e300
    with pytest.raises(BadValueError, match="not finite"):
        checked(given, Task(**TASK, wire="int8"))
    given.values[0, 3] = 1e38
    assert np.isfinite(checked(given, Task(**TASK, wire="int8")).values).all()


@pytest.mark.parametrize("dtype", [np.complex128, np.bool_, object])
def test_values_that_are_no_real_numbers_are_refused(dtype: Any) -> None:
    for name in ("values", "gates"):
        given = batch()
        with pytest.raises(BadValueError, match="real numbers") as caught:
            checked(given._replace(**{name: getattr(given, name).astype(dtype)}), Task(**TASK))
        assert name in str(caught.value)


def test_sums_before_and_pieces_follow_the_order_of_memory() -> None:
    assert exclusive_sums(np.array([[2, 0], [3, 1]])).tolist() == [[0, 2], [2, 5]]
    rows, output = np.arange(6).reshape(6, 1), np.zeros((6, 1))
    pieces = pieces_of([2, 0, 3], rows, output)
    assert [(each.slot, each.given.ravel().tolist()) for each in pieces] == [(0, [0, 1]), (2, [2, 3, 4])]
    pieces[1].output[:] = 1
    assert output.ravel().tolist() == [0, 0, 1, 1, 1, 0]
