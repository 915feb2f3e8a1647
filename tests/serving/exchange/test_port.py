"""A rank's access to shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.serving.exchange.cases import EXCHANGES, FIXED, PACKED, small

from wavetank.errors import BadValueError
from wavetank.machine.atomic_words import first_below
from wavetank.serving.exchange.interface import Batch, Task, Wait
from wavetank.serving.exchange.port import STAGES, Port, memory_bytes, reserved_bytes
from wavetank.serving.exchange.rivals import RelayBuffers
from wavetank.serving.exchange.table import contiguous
from wavetank.serving.exchange.together import Together
from wavetank.serving.exchange.workload import routed_tokens, slopes


def ports(task: Task, **given: object) -> list[Port]:
    memory = np.zeros(memory_bytes(PACKED, task), np.uint8)
    return [Port(memory, PACKED, task, rank, **given) for rank in range(task.ranks)]  # type: ignore[arg-type]


def test_each_word_has_one_writer_and_one_reader() -> None:
    first, second, third = ports(small())
    seen = set()
    for writer in (first, second, third):
        writer.step = 4
        for stage in STAGES:
            before = first.words.copy()
            list(writer.signal(stage))
            changed = np.flatnonzero(first.words != before).tolist()
            assert len(changed) == 3
            assert not seen & set(changed)
            seen |= set(changed)
    (wait,) = [each for each in third.wait("placed") if isinstance(each, Wait)]
    third.step = 4
    assert first_below(third.words, wait.places, 4, 1) == -1
    assert first_below(third.words, wait.places, 5, 1) == 0
    (back,) = [each for each in third.wait("done", back=2) if isinstance(each, Wait)]
    assert (back.step, back.members) == (2, (0, 1, 2))


def test_steps_take_turns_in_an_area_and_ranks_see_the_same_memory() -> None:
    first, second, _ = ports(small())
    first.step = second.step = 1
    first.area("input rows")[2, 0] = 5
    assert (second.area("input rows")[2, 0] == 5).all()
    second.step = 2
    assert not second.area("input rows").any()
    second.step = 3
    assert (second.area("input rows")[2, 0] == 5).all()


def test_private_memory_is_kept_for_its_turn() -> None:
    port = ports(small())[0]
    port.step = 1
    port.private("a", 4, 2, np.int64)[:] = 3
    assert (port.private("a", 2, 2, np.int64) == 3).all()
    port.step = 2
    assert not port.private("a", 4, 2, np.int64).any()


def test_who_joins_later_is_waited_for_from_then_on() -> None:
    first, second, _ = ports(small(), members=(0, 1))
    first.step = 7
    second.fail()
    assert first.failures() == (1,)
    second.regroup((0, 1), 8)
    assert (second.step, first.failures()) == (7, ())
    (wait,) = [each for each in first.wait("done", back=0) if isinstance(each, Wait)]
    assert first_below(first.words, wait.places[1:], 7, 1) == -1
    assert first_below(first.words, wait.places[1:], 8, 1) == 0


def test_tokens_for_who_does_not_take_part_are_refused_before_the_step_begins() -> None:
    task = small()
    port = ports(task, members=(0, 1))[0]
    values, gates = np.zeros((1, 8), np.float32), np.ones((1, 3), np.float32)
    with pytest.raises(BadValueError, match="rank 2"):
        port.begin(Batch(values, np.array([[0, 1, 2 * task.slots]]), gates))
    assert port.step == 0
    port.begin(Batch(values, np.array([[0, -1, 1]]), gates))
    assert port.step == 1


def test_memory_that_is_too_small_and_ranks_that_there_are_not_are_refused() -> None:
    task = small()
    memory = np.zeros(memory_bytes(FIXED, task), np.uint8)
    with pytest.raises(BadValueError, match="too small"):
        Port(memory[:-1], FIXED, task, 0)
    with pytest.raises(BadValueError, match="no such rank"):
        Port(memory, FIXED, task, 3)


def test_copies_are_counted_where_they_are_made() -> None:
    port = ports(small())[0]
    rows, room = np.ones((2, 4), np.int64), np.zeros((2, 4), np.int64)
    list(port.move("dispatch", rows, np.array([0, 1, 0]), room, np.array([1, -1, 0]), far=1))
    counted = port.traffic["dispatch"]
    assert (counted.read_bytes, counted.written_bytes, counted.far_bytes) == (64, 64, 32)
    values = np.ones((2, 8), np.float32)
    assert np.shares_memory(port.encoded(values), values)
    assert counted.read_bytes == 64
    list(port.add_up(values, np.array([[0, -1, 1]]), np.ones((1, 3), np.float32), values[:1].copy()))
    assert port.traffic["combine"].read_bytes == 64


def test_reserved_memory_is_a_ranks_windows_and_what_it_keeps_to_itself() -> None:
    # Pages of 4096 bytes hide nothing at these sizes: rows are many.
    task = Task(ranks=2, slots=4, hidden=1024, tokens=32, choices=2)
    rows = 2 * 32 * 2
    assert reserved_bytes(PACKED, task) == 2 * 2 * rows * 4096
    assert reserved_bytes(FIXED, task) == 2 * 2 * (4 * 2 * 32) * 4096
    assert reserved_bytes(RelayBuffers(), task) == (2 * 2 * rows + 2 * 64 + 2 * rows + 4 * rows) * 4096
    least = min(reserved_bytes(each, task) for each in EXCHANGES)
    assert least == reserved_bytes(PACKED, task)


def test_ranks_regroup_with_themselves_and_at_a_step_that_they_had_not_begun() -> None:
    first, _, third = ports(small())
    first.step = 4
    for members, step, says in (((1, 2), 5, "one of"), ((0, 1), 4, "5 or later"), ((0, 1), 3, "5 or later")):
        before = first.words.copy()
        with pytest.raises(BadValueError, match=says):
            first.regroup(members, step)
        assert (first.step, first.members) == (4, (0, 1, 2))
        assert np.array_equal(first.words, before)
    first.regroup((0, 2), 5)
    # One that has begun none may join at any.
    third.regroup((0, 2), 5)
    assert (first.members, first.step, third.step) == ((0, 2), 4, 4)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_memory_of_encoded_tokens_is_reserved_by_all(exchange: Any) -> None:
    task = Task(ranks=2, slots=4, hidden=512, tokens=8, choices=2, wire="int8")
    together = Together(exchange, task, contiguous(8, 2), slopes)
    together.run([[each, each] for each in routed_tokens("one", task, 8, 1)])
    for port in together.ports:
        kept = [each for name, each in port._private.items() if name.startswith(("encoded", "staged"))]
        assert sum(each.nbytes for each in kept) == 2 * 8 * task.row_bytes
        assert (2 * 8, task.row_bytes) in exchange.private_rows(task)
