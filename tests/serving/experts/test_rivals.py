"""Each rule of placement does what it says, against counts by hand and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.experts.counting import count, homes_of
from wavetank.serving.experts.interface import RoutingTrace
from wavetank.serving.experts.rivals import (
    AlternatingAssignment,
    BalancedExperts,
    ContiguousExperts,
    ScheduledRequests,
    TrafficExperts,
    TrueRouting,
    balanced,
    contiguous,
    loads_of,
)
from wavetank.serving.experts.sem_moe import SemMoE
from wavetank.serving.experts.traces import Generated

TRACE = Generated(requests=40, tokens=20, layers=3, experts=8, per_token=2, vocabulary=100, topics=4, circle=3).trace(1)


def local(system: object, trace: RoutingTrace, devices: int, *, whole: bool = True) -> float:
    plan = system.fit(trace, devices, whole_requests=whole)  # type: ignore[attr-defined]
    known = system.clairvoyant  # type: ignore[attr-defined]
    homes = homes_of(plan, trace, devices, whole_requests=whole, clairvoyant=known)
    got = count(plan.experts, homes, trace, devices)
    return got.local / got.pairs


def test_contiguous_experts_are_in_equal_pieces() -> None:
    assert contiguous(TRACE, 4)[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ContiguousExperts().fit(TRACE, 2, whole_requests=True).experts.tolist() == [[0] * 4 + [1] * 4] * 3


def test_balanced_experts_even_out_routes() -> None:
    assert balanced(np.array([9, 1, 8, 2]), 2).tolist() == [0, 0, 1, 1]
    loads = loads_of(TRACE)
    assert loads.sum(axis=1).tolist() == [TRACE.routes[0].size] * 3
    plan = BalancedExperts().fit(TRACE, 2, whole_requests=True)
    for layer in range(3):
        sums = np.bincount(plan.experts[layer], weights=loads[layer])
        plain = np.bincount(contiguous(TRACE, 2)[layer], weights=loads[layer])
        assert sums.max() <= plain.max()
        assert np.bincount(plan.experts[layer]).tolist() == [4, 4]


def test_experts_that_follow_each_other_are_together_as_no_other_places_have_them() -> None:
    plan = TrafficExperts(uneven=100.0).fit(TRACE, 2, whole_requests=True)

    def together(first: np.ndarray, second: np.ndarray, layer: int) -> int:
        left, right = first[TRACE.routes[layer]], second[TRACE.routes[layer + 1]]
        return int((left[:, :, None] == right[:, None, :]).sum())

    for layer in range(2):
        best = 0
        for chosen in itertools.combinations(range(8), 4):
            places = np.ones(8, np.int64)
            places[list(chosen)] = 0
            best = max(best, together(plan.experts[layer], places, layer))
        assert together(plan.experts[layer], plan.experts[layer + 1], layer) >= best * 0.998


def test_bounded_loads_are_kept_where_they_can_be() -> None:
    plan = TrafficExperts(uneven=0.1).fit(TRACE, 2, whole_requests=True)
    loads = loads_of(TRACE)
    for layer in range(1, 3):
        sums = np.bincount(plan.experts[layer], weights=loads[layer])
        greedy = np.bincount(balanced(loads[layer], 2), weights=loads[layer]).max()
        assert sums.max() <= max(loads[layer].sum() / 2 * 1.1, greedy) + 1e-6


def test_in_data_parallel_attention_places_alone_are_worth_nothing() -> None:
    big = Generated(requests=400, tokens=64, layers=2).trace(4)
    for system in (ContiguousExperts(), BalancedExperts(), TrafficExperts(), SemMoE(schedules=False, epochs=2)):
        assert local(system, big, 4) == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize("whole", [True, False])
def test_more_knowledge_keeps_more(whole: bool) -> None:
    plain, scheduled, both, truth = (
        local(each, TRACE, 4, whole=whole)
        for each in (ContiguousExperts(), ScheduledRequests(), AlternatingAssignment(), TrueRouting())
    )
    assert plain < scheduled < both <= truth + 1e-12


def test_experts_that_cannot_be_divided_are_refused() -> None:
    kinds = (ContiguousExperts, BalancedExperts, TrafficExperts, ScheduledRequests, AlternatingAssignment)
    for system in (kind() for kind in kinds):
        with pytest.raises(BadValueError, match="divided equally"):
            system.fit(TRACE, 5, whole_requests=True)
