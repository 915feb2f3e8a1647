"""Plans of coverage: every expert once more, from the cheapest source, as early as can be; or a clear refusal."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.interface import InfeasibleError, Plan, Rates
from wavetank.serving.rank_failures.plan import coverage_plan, rebalanced, spread, trimmed

RATES = Rates(peer_bytes_per_s=1000, host_bytes_per_s=100, disk_bytes_per_s=10)


def live_counts(plan: Plan, active: list[int], experts: int) -> list[int]:
    slots = plan.expert_of.size // len(active)
    there = [int(each) for place, each in enumerate(plan.expert_of) if each >= 0 and active[place // slots]]
    assert all(each < 0 for place, each in enumerate(plan.expert_of) if not active[place // slots])
    return [there.count(expert) for expert in range(experts)]


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 1), (4, 2), (5, 3), (3, 3)])
def test_r_replicas_survive_every_loss_of_r_minus_one_ranks_without_a_copy(ranks: int, replicas: int) -> None:
    experts = 7
    held = spread(experts, ranks, experts, replicas)
    for dead in itertools.combinations(range(ranks), replicas - 1):
        active = [int(rank not in dead) for rank in range(ranks)]
        plan = coverage_plan(held, active, [50] * experts, rates=RATES)
        assert plan.transfers == () and plan.picoseconds == 0
        assert min(live_counts(plan, active, experts)) >= 1


def test_every_loss_of_ranks_is_covered_once_within_the_slots() -> None:
    held = spread(6, 4, 6, 2)
    for mask in itertools.product((0, 1), repeat=4):
        if not any(mask):
            continue
        active = list(mask)
        plan = coverage_plan(held, active, [10, 20, 30, 40, 50, 60], rates=RATES)
        survived = {int(held[slot]) for slot in range(24) if active[slot // 6] and held[slot] >= 0}
        assert {each.expert for each in plan.transfers} == set(range(6)) - survived
        assert min(live_counts(plan, active, 6)) == 1 or sum(active) > 1
        assert all(plan.expert_of[each.slot] == each.expert and each.source == "host" for each in plan.transfers)
        for rank in range(4):
            here = [each for each in plan.expert_of[rank * 6 : rank * 6 + 6].tolist() if each >= 0]
            assert len(here) == len(set(here))


def test_the_end_of_the_plan_is_near_that_of_the_best_of_all_assignments() -> None:
    held = np.array([-1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3], np.int64)
    sizes = [90, 70, 50, 40]
    plan = coverage_plan(held, [1, 1, 0], sizes, rates=RATES)
    best = min(
        max(sum(size for size, rank in zip(sizes, places, strict=True) if rank == each) for each in (0, 1))
        for places in itertools.product((0, 1), repeat=4)
    )
    assert best == 130
    assert plan.picoseconds <= best * 10**12 // 100 * 7 // 6
    assert sorted(each.expert for each in plan.transfers) == [0, 1, 2, 3]


def test_a_process_that_waits_is_cheaper_than_the_host_and_the_host_than_the_disk() -> None:
    room = np.array([0, -1, -1, 1, -1, -1, 2, -1, -1], np.int64)
    plan = coverage_plan(room, [1, 0, 0], [10] * 3, rates=RATES, standby=[1])
    assert {(each.expert, each.source, each.holder) for each in plan.transfers} == {(1, "peer", 3), (2, "host", -1)}
    # One rank takes one after the other: 10 bytes at 1,000 a second, and 10 at 100.
    assert plan.picoseconds == 110 * 10**9
    disk = coverage_plan(room, [1, 0, 0], [10] * 3, rates=RATES, host=False)
    assert {each.source for each in disk.transfers} == {"disk"} and disk.picoseconds == 2 * 10**12


def test_experts_that_are_nowhere_or_have_no_slot_are_named() -> None:
    held = np.array([0, 1, 2, 3], np.int64)
    with pytest.raises(InfeasibleError) as nowhere:
        coverage_plan(held, [1, 0], [10] * 4, rates=RATES, host=False, disk=False)
    assert nowhere.value.experts == (2, 3) and "[2, 3]" in str(nowhere.value)
    with pytest.raises(InfeasibleError) as full:
        coverage_plan(held, [1, 0], [10, 10, 10, 30], rates=RATES)
    assert full.value.experts == (2, 3)
    with pytest.raises(BadValueError):
        coverage_plan(held, [0, 0], [10] * 4, rates=RATES)
    with pytest.raises(BadValueError):
        coverage_plan(np.array([0, 9], np.int64), [1, 1], [10], rates=RATES)


def test_replicas_that_are_not_the_last_make_room() -> None:
    held = np.array([0, 1, 0, 1, 2, 3], np.int64)
    plan = coverage_plan(held, [1, 1, 0], [10] * 4, rates=RATES)
    assert live_counts(plan, [1, 1, 0], 4) == [1, 1, 1, 1]


def test_what_a_fault_added_is_taken_back_and_home_is_kept() -> None:
    home = spread(4, 2, 4, 1)
    after = np.array([0, 2, 1, 3, 1, 3, -1, -1], np.int64)
    assert trimmed(after, 2, 1, home).tolist() == [0, 2, -1, -1, 1, 3, -1, -1]
    # Whoever lacks its home is no reason to lose the last replica.
    assert trimmed(np.array([0, 2, 1, 3, -1, -1, -1, -1], np.int64), 2, 1, home).tolist() == [0, 2, 1, 3] + [-1] * 4


def test_busy_experts_get_replicas_as_long_as_the_busiest_rank_gains() -> None:
    plan = Plan(np.array([0, 1, -1, 2, 3, -1], np.int64), (), 0)
    more = rebalanced(plan, 2, [90, 10, 10, 10], most=4)
    # 100 and 20; the busy one is halved: 55 and 65; then expert 2: 60 each.
    assert [(each.expert, each.slot, each.holder) for each in more.transfers] == [(0, 5, 0), (2, 2, 3)]
    assert [each.expert for each in rebalanced(plan, 2, [90, 10, 10, 10], most=1).transfers] == [0]
    assert rebalanced(plan, 2, [10, 10, 10, 10], most=4).transfers == ()


@pytest.mark.parametrize("given", [(4, 2, 4, 3), (4, 2, 4, 0), (9, 2, 4, 1)])
def test_a_spread_that_does_not_fit_is_refused(given: Any) -> None:
    with pytest.raises(BadValueError):
        spread(*given)


def test_fewer_experts_than_ranks_leave_ranks_without() -> None:
    assert spread(2, 4, 2, 1).tolist() == [0, -1, 1, -1, -1, -1, -1, -1]
