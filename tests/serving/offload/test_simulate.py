"""Streams and a link: against a run tick by tick, against formulas, and plans that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.serving.offload.conftest import small_case, ticked_ends

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.offload.chunkflow import ChunkFlow
from wavetank.serving.offload.interface import Case, Plan
from wavetank.serving.offload.rivals import AllResident, FixedYield, InPlace, Layerwise
from wavetank.serving.offload.simulate import simulate_offload
from wavetank.sim.links import CopyView

SYSTEMS = st.sampled_from([
    AllResident(), Layerwise(ahead=0), Layerwise(), Layerwise(ahead=2), Layerwise(ahead=2, resident=0.4),
    ChunkFlow(chunk_bytes=7, resident=0), ChunkFlow(chunk_bytes=5, resident=0.3), ChunkFlow(chunk_bytes=3),
    FixedYield(chunk_bytes=7, resident=0), FixedYield(chunk_bytes=4, resident=0, yields=False),
])  # fmt: skip


@given(
    system=SYSTEMS, layers=st.integers(1, 4), compute=st.lists(st.integers(0, 25), min_size=1, max_size=3),
    collective=st.integers(0, 12), weights=st.integers(0, 60), contended=st.booleans(),
    late=st.lists(st.integers(0, 15), min_size=1, max_size=3),
)  # fmt: skip
@example(
    system=ChunkFlow(chunk_bytes=7, resident=0), layers=3, compute=[9, 9], collective=6, weights=40, contended=True,
    late=[11, 0],
)  # fmt: skip
def test_steps_end_when_those_of_a_run_end_that_looks_at_every_picosecond(
    system: Any, layers: int, compute: list[int], collective: int, weights: int, contended: bool, late: list[int]
) -> None:
    case = small_case(
        layers=layers, compute=tuple(compute), collective=collective, weights=weights, contended=contended
    )  # fmt: skip
    got = simulate_offload(system, case, steps=2, late_ps=late)
    expected = ticked_ends(system, case, 2, tuple(late))
    # The end of a transfer is rounded up to a whole picosecond in both; halves are exact.
    assert list(got.end_ps) == expected


@given(st.integers(0, 200), st.integers(1, 50), st.integers(0, 200))
def test_exposed_time_without_collectives_is_what_copying_takes_longer_than_computing(
    weights: int, chunk: int, compute: int
) -> None:
    case = small_case(compute=(compute,), collective=0, weights=weights)
    for system in (ChunkFlow(resident=0, chunk_bytes=chunk), Layerwise(), FixedYield(resident=0, chunk_bytes=chunk)):
        got = simulate_offload(system, case, steps=3)
        assert got.step_ps == case.layers * (compute + max(0, weights - compute))
        # The first step waits for its first block besides.
        assert got.end_ps[0] == weights + (case.layers - 1) * max(weights, compute) + compute
        assert got.copied_bytes == 3 * case.layers * weights


@given(st.integers(0, 200), st.integers(1, 60), st.sampled_from([0.0, 0.1, 0.5]))
def test_exposed_time_under_contention_is_the_formula_and_what_chunks_under_way_cost(
    weights: int, chunk: int, resident: float
) -> None:
    case = small_case(weights=weights)
    missing = weights - case.share_bytes(resident)
    formula = case.layers * max(0, missing - case.compute_ps)
    for system in (ChunkFlow(resident=resident, chunk_bytes=chunk), FixedYield(resident=resident, chunk_bytes=chunk)):
        exposed = simulate_offload(system, case, steps=4).step_ps - case.layers * (50 + 20)
        assert formula <= exposed <= formula + case.layers * 2 * min(chunk, missing)
        # Copies that are still late after both collectives have met a chunk keep the link busy all the time.
        if missing >= case.compute_ps + 2 * chunk:
            assert exposed == formula


@pytest.mark.parametrize("chunk", [1, 5, 10])
def test_the_least_share_without_waiting_is_the_least(chunk: int) -> None:
    # Chunks that fit between collectives: nothing is under way when one begins.
    case = small_case(weights=130)
    system = ChunkFlow(chunk_bytes=chunk)
    kept = system.plan(case).resident[0]
    assert kept == 130 - 50
    free_ps = simulate_offload(AllResident(), case).step_ps
    assert simulate_offload(system, case).step_ps == free_ps
    below = ChunkFlow(chunk_bytes=chunk, resident=(kept - 1) / 130)
    assert below.plan(case).resident[0] == kept - 1
    assert simulate_offload(below, case).step_ps == free_ps + case.layers
    alone = small_case(weights=130, contended=False)
    assert system.plan(alone).resident[0] == 130 - 70


def test_everything_resident_copies_nothing_and_takes_as_long_as_without_offloading(case: Case) -> None:
    got = simulate_offload(ChunkFlow(resident=1.0), case, steps=3)
    assert got == simulate_offload(AllResident(), case, steps=3)
    assert got.copied_bytes == got.stalled_ps == got.longest_wait_ps == 0
    assert got.peak_bytes == case.layers * case.weight_bytes


def test_more_residents_never_make_a_step_longer_and_memory_grows_in_a_line() -> None:
    case = small_case(weights=200, layers=6)
    runs = [simulate_offload(ChunkFlow(resident=i / 10, chunk_bytes=5), case) for i in range(11)]
    steps = [each.step_ps for each in runs]
    assert steps == sorted(steps, reverse=True)
    assert [each.peak_bytes for each in runs[:-1]] == [(6 * i + 2 * (10 - i)) * 20 for i in range(10)]
    assert [each.copied_bytes for each in runs] == [3 * 6 * 20 * (10 - i) for i in range(11)]


def test_one_chunk_a_block_that_never_yields_is_layerwise(case: Case) -> None:
    whole = FixedYield(yields=False, resident=0, chunk_bytes=10_000)
    assert simulate_offload(whole, case, steps=3) == simulate_offload(Layerwise(), case, steps=3)


@given(st.integers(1, 60), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_a_collective_waits_for_one_chunk_at_most(chunk: int, late: list[int]) -> None:
    case = small_case(weights=90)
    got = simulate_offload(FixedYield(resident=0, chunk_bytes=chunk), case, late_ps=late)
    assert got.longest_wait_ps <= min(chunk, 90)
    assert simulate_offload(ChunkFlow(chunk_bytes=chunk), small_case(weights=49)).longest_wait_ps <= chunk


def test_a_copy_that_never_yields_makes_collectives_wait_as_long_again() -> None:
    case = small_case(weights=500)
    assert simulate_offload(Layerwise(), case).longest_wait_ps == 10


def test_a_copy_in_need_goes_on_beside_a_collective_that_others_hold_up() -> None:
    case = small_case(weights=60)
    late = (10_000, 0, 0)
    adaptive = simulate_offload(ChunkFlow(resident=0, chunk_bytes=5), case, late_ps=late)
    stubborn = simulate_offload(FixedYield(resident=0, chunk_bytes=5), case, late_ps=late)
    assert adaptive.step_ps < stubborn.step_ps


def test_weights_read_in_place_take_no_memory_and_hide_behind_their_own_phase_alone() -> None:
    case = small_case(weights=45, collective=0)
    got = simulate_offload(InPlace(), case, steps=2)
    assert got.step_ps == 4 * (45 + 20)
    assert got.peak_bytes == 0
    assert got.copied_bytes == 2 * 4 * 45


def test_a_model_of_one_block_and_one_without_weights_end() -> None:
    for system in (ChunkFlow(), Layerwise(), Layerwise(ahead=0), InPlace(), FixedYield(resident=0)):
        assert simulate_offload(system, small_case(layers=1), steps=1).end_ps[0] >= 70
        assert simulate_offload(system, small_case(weights=0)).copied_bytes == 0


class Odd:
    """A system with a plan of its own that never lets a copy go on, or always."""

    def __init__(self, plan: Plan, *, waits: bool = False) -> None:
        self.given, self.stops = plan, waits

    def plan(self, case: Case) -> Plan:
        return self.given

    def waits(self, view: CopyView) -> bool:
        return self.stops


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan((0,) * 3, 10), "part of every block"),
        (Plan((41,) * 4, 10), "part of every block"),
        (Plan((-1,) * 4, 10), "part of every block"),
        (Plan((0,) * 4, 0), "chunks and a slot"),
        (Plan((0,) * 4, 10, slots=0), "chunks and a slot"),
    ],
)
def test_plans_that_do_not_fit_are_refused(case: Case, plan: Plan, words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        simulate_offload(Odd(plan), case)


def test_a_rule_that_waits_for_nothing_is_named(case: Case) -> None:
    with pytest.raises(WavetankError, match="Nothing goes on"):
        simulate_offload(Odd(Plan((0,) * 4, 10), waits=True), case)


def test_steps_and_lateness_are_not_negative(case: Case) -> None:
    for steps, late_ps in ((0, (0,)), (1, ()), (1, (-1,))):
        with pytest.raises(BadValueError, match="nobody is early"):
            simulate_offload(Layerwise(), case, steps=steps, late_ps=late_ps)
