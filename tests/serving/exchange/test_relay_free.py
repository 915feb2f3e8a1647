"""Direct placement and direct reading: rows, bytes, races, capacities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.exchange.cases import EXCHANGES, FIXED, PACKED, layers, rank_steps, small, token_by_token

from wavetank.errors import WavetankError
from wavetank.serving.exchange import port as port_module
from wavetank.serving.exchange.interface import CapacityError, Point, Wait
from wavetank.serving.exchange.port import Port
from wavetank.serving.exchange.reference import batch_of, dense
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.table import ExpertTable, contiguous
from wavetank.serving.exchange.together import Together, rank_program
from wavetank.serving.exchange.workload import LOADS, routed_tokens, slopes

BOTH = pytest.mark.parametrize("exchange", [PACKED, FIXED], ids=["packed", "fixed"])


def right(together: Together, steps: Any, **given: Any) -> bool:
    """Return whether all sums of a run are those without an exchange, to the last digit."""
    sums = together.run(steps, **given)
    return all(
        np.array_equal(sums[rank][step], dense(routed, together.experts, together.task))
        for rank in together.table.members
        for step, routed in enumerate(steps[rank])
    )


@BOTH
@pytest.mark.parametrize("load", LOADS)
def test_sums_of_real_experts_are_those_of_single_tokens_to_the_last_digit(exchange: RelayFree, load: str) -> None:
    task, expert = small(dtype="float64"), layers(8, 4, 8)
    steps = rank_steps(load, task, 8, 3)
    sums = Together(exchange, task, contiguous(8, 3), expert).run(steps)
    for rank in range(3):
        for step, routed in enumerate(steps[rank]):
            assert np.array_equal(sums[rank][step], token_by_token(routed, expert))


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 4), experts=st.integers(1, 9), tokens=st.integers(1, 6), load=st.sampled_from(LOADS),
    wire=st.sampled_from(["plain", "int8"]), ahead=st.integers(0, 1), grain=st.integers(0, 3), seed=st.integers(0, 999),
)  # fmt: skip
def test_any_routing_in_any_order_of_ranks_gives_the_same_sums(
    ranks: int, experts: int, tokens: int, load: str, wire: str, ahead: int, grain: int, seed: int
) -> None:
    task = small(ranks, experts, tokens=tokens, choices=min(experts, 3), wire=wire)
    steps, rng = rank_steps(load, task, experts, 4, seed), np.random.default_rng(seed)
    for exchange in (PACKED, FIXED):
        together = Together(exchange, task, contiguous(experts, ranks), slopes, grain=grain)
        assert right(together, steps, order=lambda ready, _: int(rng.choice(ready)), ahead=ahead)


class Delayed:
    """A rank that is held at one stage until no other can go on; another rank and stage every few turns."""

    def __init__(self, seed: int, stages: Sequence[str]) -> None:
        self._rng, self._stages = np.random.default_rng(seed), stages
        self._rank, self._stage, self.held = 0, stages[0], dict.fromkeys(stages, 0)

    def __call__(self, ready: Sequence[int], points: Sequence[Point | None]) -> int:
        if self._rng.random() < 0.02:
            self._rank, self._stage = int(self._rng.integers(0, 4)), str(self._rng.choice(self._stages))
        free = [
            rank for rank, point in zip(ready, points, strict=True)
            if not (rank == self._rank and point is not None and point.name == self._stage)
        ]  # fmt: skip
        if len(free) < len(ready):
            self.held[self._stage] += 1
        return int(self._rng.choice(free or ready))


STAGES = ("counted", "placed", "experts", "computed", "done", "dispatch copy", "combine sums")


def delays(exchange: RelayFree, count: int, aheads: Sequence[int] = (0, 1)) -> dict[str, int]:
    """Hold ranks at all stages for some steps, and return how often each stage was one where somebody was held."""
    task, order = small(4, 6, choices=2, tokens=3), Delayed(7, STAGES)
    steps = rank_steps("zipf", task, 6, count, 5)
    for ahead in aheads:
        together = Together(exchange, task, contiguous(6, 4), slopes, grain=1)
        assert right(together, steps, order=order, ahead=ahead)
    return order.held


@BOTH
def test_a_rank_that_is_late_at_any_stage_is_waited_for(exchange: RelayFree) -> None:
    held = delays(exchange, 30)
    assert all(held[stage] for stage in STAGES if (exchange, stage) != (FIXED, "counted"))


@pytest.mark.slow
@BOTH
def test_a_rank_that_is_late_at_any_stage_is_waited_for_in_a_thousand_steps(exchange: RelayFree) -> None:
    held = delays(exchange, 1000)
    assert min(held[stage] for stage in STAGES if (exchange, stage) != (FIXED, "counted")) > 100


@BOTH
@pytest.mark.parametrize("stage", ["placed", "computed", "done"])
def test_the_test_of_delays_sees_each_wait_that_is_left_out(
    exchange: RelayFree, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Port.wait

    def hasty(self: Port, name: str, back: int = 0) -> Any:
        if name != stage:
            yield from honest(self, name, back)

    monkeypatch.setattr(port_module.Port, "wait", hasty)
    with pytest.raises((AssertionError, IndexError)):
        # Words of ranks that are done hold back who runs further ahead than there are windows.
        delays(exchange, 40, (2,) if stage == "done" else (0, 1))


@BOTH
def test_who_runs_further_ahead_than_there_are_windows_is_held_and_overwrites_none(exchange: RelayFree) -> None:
    with pytest.raises(WavetankError, match="No rank can go on") as caught:
        delays(exchange, 4, (2,))
    assert "done 1" in str(caught.value)


@BOTH
def test_every_row_is_written_once_and_sources_never_share_one(
    exchange: RelayFree, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, poison = small(3, 7, tokens=6), -(2**62)
    written: list[tuple[int, int]] = []
    honest = Port.move

    def watched(self: Port, phase: str, *arrays: Any) -> Any:
        written.extend((self.number, int(row)) for row in arrays[3])
        yield from honest(self, phase, *arrays)

    monkeypatch.setattr(port_module.Port, "move", watched)
    steps = [[each] for each in routed_tokens("zipf", task, 7, 2)]
    table = contiguous(7, 3)
    together = Together(exchange, task, table, slopes)
    for port in together.ports:
        port.step = 1
    window = together.ports[0].area("input rows")
    window[:] = poison
    for port in together.ports:
        port.step = 0
    together.run(steps)
    rows = [row for _, row in written]
    assert len(rows) == len(set(rows)) == 3 * 6 * 3
    flat = window.reshape(-1, window.shape[-1])
    assert sorted(rows) == np.flatnonzero((flat != poison).any(axis=1)).tolist()
    # Where rows begin is the sum of the counts before them: of slots, then of sources.
    counts = np.stack([np.bincount(batch_of(each[0], table, rank).slots.ravel(), minlength=9)
                       for rank, each in enumerate(steps)])  # fmt: skip
    for source in range(3):
        mine = sorted(row for rank, row in written if rank == source)
        wanted = []
        for slot in range(9):
            owner = slot // 3
            if exchange is PACKED:
                before = int(counts[:, owner * 3 : slot].sum() + counts[:source, slot].sum())
                begin = owner * task.packed_rows + before
            else:
                begin = (slot * 3 + source) * 6
            wanted += list(range(begin, begin + int(counts[source, slot])))
        assert mine == wanted


@BOTH
@pytest.mark.parametrize("wire", ["plain", "int8"])
def test_a_vector_is_written_once_and_an_output_read_once(exchange: RelayFree, wire: str) -> None:
    task, table = small(3, 8, tokens=6, wire=wire), contiguous(8, 3)
    steps = [[each] for each in routed_tokens("uniform", task, 8, 4)]
    together = Together(exchange, task, table, slopes, grain=2)
    together.run(steps)
    for rank, port in enumerate(together.ports):
        rows, slots = 6 * 3, batch_of(steps[rank][0], table, rank).slots
        far = int((slots // 3 != rank).sum())
        there, back = port.traffic["dispatch"], port.traffic["combine"]
        assert (there.read_bytes, there.written_bytes) == (rows * task.row_bytes, rows * task.row_bytes)
        assert (back.read_bytes, back.written_bytes) == (rows * task.output_bytes, 0)
        assert (there.far_bytes, back.far_bytes) == (far * task.row_bytes, far * task.output_bytes)


def test_both_schedules_and_auto_agree_and_auto_goes_by_the_tokens() -> None:
    auto = RelayFree()
    assert auto.fixed(small(tokens=256))
    assert not auto.fixed(small(tokens=257))
    task, steps = small(), rank_steps("uniform", small(), 8, 3)
    found = [Together(each, task, contiguous(8, 3), slopes).run(steps) for each in (PACKED, FIXED, auto)]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for mine, its in zip(found[0], other, strict=True)
                   for a, b in zip(mine, its, strict=True))  # fmt: skip


def test_a_window_without_room_is_refused_before_a_row_is_written() -> None:
    task = small(2, 4, tokens=4, choices=1, window_rows=7, source_rows=3)
    for exchange, says in ((PACKED, "allowed: 7 rows"), (FIXED, "allowed: 3 rows")):
        together = Together(exchange, task, contiguous(4, 2), slopes)
        with pytest.raises(CapacityError, match=says):
            together.run([[each] for each in routed_tokens("one", task, 4, 1)])
        together.ports[0].step = 1
        assert not together.ports[0].area("input rows").any()
    # One token fewer fits.
    for exchange in (PACKED, FIXED):
        steps = [[each] for each in routed_tokens("one", task, 4, 1, tokens=3)]
        assert right(Together(exchange, task, contiguous(4, 2), slopes), steps)


@BOTH
def test_a_full_window_is_enough(exchange: RelayFree) -> None:
    task = small(2, 4, tokens=4, choices=1, window_rows=8, source_rows=4)
    steps = [[each] for each in routed_tokens("one", task, 4, 1)]
    assert right(Together(exchange, task, contiguous(4, 2), slopes), steps)


@BOTH
def test_ranks_go_on_without_one_that_is_out_of_the_table_and_with_it_again(exchange: RelayFree) -> None:
    task = small(3, 2, choices=2)
    table = ExpertTable(2, 3, 1, replicas=2)
    table.change(expert_of=[0, 1, 1])
    together = Together(exchange, task, table, slopes)
    assert right(together, rank_steps("uniform", task, 2, 3))
    table.change(active=[1, 1, 0])
    for port in together.ports:
        port.members = table.members
    assert right(together, rank_steps("uniform", task, 2, 3, seed=1))
    table.change(active=[1, 1, 1])
    step = together.ports[0].step + 1
    for port in together.ports:
        port.regroup(table.members, step)
    assert right(together, rank_steps("uniform", task, 2, 3, seed=2))


@BOTH
@pytest.mark.parametrize("turns", [1, 4, 7, 11, 16])
def test_a_step_that_was_given_up_is_done_again_by_those_who_are_left(exchange: RelayFree, turns: int) -> None:
    task = small(3, 2, choices=2)
    table = ExpertTable(2, 3, 1, replicas=3)
    table.change(expert_of=[0, 1, 0])
    together, steps = Together(exchange, task, table, slopes, grain=1), rank_steps("uniform", task, 2, 2, seed=4)
    left = [turns]

    def dying(ready: Sequence[int], _: Sequence[Point | None]) -> int:
        # Rank 2 stops somewhere within the first step, and the others go on until they wait for it.
        left[0] -= ready[-1] == 2
        if ready[-1] == 2 and left[0] < 0:
            if len(ready) == 1:
                raise TimeoutError
            return ready[0]
        return ready[-1]

    with pytest.raises(TimeoutError):
        together.run(steps, order=dying)
    table.change(active=[1, 1, 0])
    step = max(port.step for port in together.ports) + 1
    for port in together.ports[:2]:
        port.regroup(table.members, step)
    assert right(together, steps)


def stale(seed: int, *, ended: bool) -> bool:
    """Return whether a rank that was left out within a step, and goes on later, spoils sums of those who regrouped."""
    rng, task = np.random.default_rng(seed), small(3, 2, choices=2)
    table = ExpertTable(2, 3, 1, replicas=3)
    table.change(expert_of=[0, 1, 0])
    together, steps = Together(PACKED, task, table, slopes, grain=1), rank_steps("uniform", task, 2, 4, seed=seed)
    programs = [rank_program(PACKED, together.ports[rank], steps[rank], table, slopes) for rank in range(3)]
    waits: list[Any] = [None] * 3
    sums: list[Any] = [None] * 3

    def turn(among: Sequence[int]) -> bool:
        ready = [rank for rank in among if sums[rank] is None and together._ready(rank, waits[rank])]
        if not ready:
            return False
        rank = int(rng.choice(ready))
        try:
            found = next(programs[rank])
            waits[rank] = found if isinstance(found, Wait) else None
        except StopIteration as end:
            sums[rank] = end.value
        return True

    for left in range(int(rng.integers(20, 200))):
        turn((0, 1, 2) if left % 3 else (0, 1))
    while turn((0, 1)):
        continue
    if sums[0] is not None or sums[1] is not None:
        return False
    table.change(active=[1, 1, 0])
    step = max(port.step for port in together.ports) + 1
    for rank in (0, 1):
        together.ports[rank].regroup(table.members, step)
        programs[rank] = rank_program(PACKED, together.ports[rank], steps[rank], table, slopes)
        waits[rank] = None
    while sums[0] is None or sums[1] is None:
        if ended or rng.random() > 0.05 or not turn((2,)):
            turn((0, 1))
    return not all(
        np.array_equal(found, dense(routed, slopes, task))
        for rank in (0, 1)
        for found, routed in zip(sums[rank], steps[rank], strict=True)
    )


def test_a_rank_that_is_left_out_must_have_ended_since_it_would_write_among_new_rows() -> None:
    seeds = range(60)
    assert not any(stale(seed, ended=True) for seed in seeds)
    # Why its process is to be ended first: one that goes on spoils sums, now and then.
    assert any(stale(seed, ended=False) for seed in seeds)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_of_a_rank_that_is_left_out_no_row_reaches_an_expert(exchange: Any) -> None:
    task, came = small(3, 2, choices=2), []
    table = ExpertTable(2, 3, 1, replicas=3)
    table.change(expert_of=[0, 1, 0])

    def expert(number: int, rows: np.ndarray) -> np.ndarray:
        came.append(len(rows))
        return slopes(number, rows)

    together = Together(exchange, task, table, expert)
    full = [[each] * 2 for each in routed_tokens("uniform", task, 2, 3)]
    together.run(full)
    assert sum(came) == 3 * 2 * 5 * 2
    table.change(active=[1, 1, 0])
    for port in together.ports:
        port.members = table.members
    came.clear()
    together.run(full)
    # Its counts of earlier steps still stand in both halves of the table.
    assert sum(came) == 2 * 2 * 5 * 2


@BOTH
def test_a_rank_that_never_comes_leaves_all_waiting_for_it_by_name(exchange: RelayFree) -> None:
    task = small(2, 4)
    together = Together(exchange, task, contiguous(4, 2), slopes)
    steps = rank_steps("uniform", task, 4, 2)
    with pytest.raises(WavetankError, match="No rank can go on") as caught:
        together.run([steps[0], steps[1][:1]])
    assert ("counted 2" if exchange is PACKED else "placed 2") in str(caught.value)


def test_nothing_is_waited_for_but_words_of_members() -> None:
    task = small()
    port = Together(PACKED, task, contiguous(8, 3), slopes).ports[1]
    port.members = (1, 2)
    waits = [each for each in port.wait("placed") if isinstance(each, Wait)]
    assert [each.members for each in waits] == [(1, 2)]
