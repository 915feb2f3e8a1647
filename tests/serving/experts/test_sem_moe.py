"""Planted partitions are found, small cases are near the best of all, and nothing gets worse from round to round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.experts.counting import count, homes_of
from wavetank.serving.experts.interface import ExpertPlacement, RoutingTrace
from wavetank.serving.experts.plans import InTurns
from wavetank.serving.experts.rivals import AlternatingAssignment
from wavetank.serving.experts.sem_moe import Items, SemMoE, remote, requests_of, tokens_of
from wavetank.serving.experts.traces import Generated


def planted(seed: int, *, devices: int = 4) -> RoutingTrace:
    """Return requests about one of four topics with words and experts of their own; each round has every topic once."""
    draws = np.random.default_rng(seed)
    requests, length, layers, experts, words = 48, 20, 3, 16, 40
    names = np.stack([draws.permutation(experts).reshape(devices, -1) for _ in range(layers)])
    topics = np.concatenate([draws.permutation(devices) for _ in range(requests // devices)])
    tokens = (topics[:, None] * (words // devices) + draws.integers(0, words // devices, (requests, length))).ravel()
    routes = np.empty((layers, len(tokens), 2), np.int64)
    for layer in range(layers):
        pairs = np.stack([draws.permutation(4)[:2] for _ in range(words)])
        routes[layer] = names[layer][np.repeat(topics, length)[:, None], pairs[tokens]]
    return RoutingTrace(
        tokens=tokens, starts=np.arange(requests + 1) * length, prompts=np.full(requests, 10), routes=routes,
        experts=experts, vocabulary=words,
    )  # fmt: skip


def local(system: ExpertPlacement, trace: RoutingTrace, *, whole: bool, devices: int = 4) -> float:
    plan = system.fit(trace.part(range(16)), devices, whole_requests=whole)
    judged = trace.part(range(16, trace.requests))
    homes = homes_of(plan, judged, devices, whole_requests=whole, clairvoyant=False)
    got = count(plan.experts, homes, judged, devices)
    assert (np.bincount(plan.experts[0]) == trace.experts // devices).all()
    return got.local / got.pairs


@pytest.mark.parametrize("votes", ["labels", "confidence", "shares"])
def test_a_planted_partition_is_found_for_requests(votes: str) -> None:
    for seed in range(3):
        assert local(SemMoE(votes=votes), planted(seed), whole=True) == 1.0


def test_a_planted_partition_is_found_for_tokens() -> None:
    # A batch has equally many tokens of each topic, so that every token has room at home.
    for seed in range(3):
        assert local(SemMoE(), planted(seed), whole=False) > 0.97


def test_the_objective_never_rises_and_devices_are_equally_full() -> None:
    trace = Generated(requests=60, tokens=30, layers=2, experts=16, per_token=3, vocabulary=300, topics=6).trace(1)
    for items in (requests_of(trace), tokens_of(trace, 1)):
        rounds = SemMoE(epochs=8, beginnings=2, swaps=500).cluster(items, 4)
        values = [each.objective for each in rounds]
        assert len(values) == 16
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0]
        best = rounds[-1]
        assert all((np.bincount(row, minlength=4) == 4).all() for row in best.experts)
        weight = 0.1
        tokens = np.bincount(best.items, weights=items.tokens, minlength=4)
        away = sum(
            items.uses[item, layer, expert]
            for item in range(len(items.tokens))
            for layer in range(items.uses.shape[1])
            for expert in range(16)
            if best.experts[layer, expert] != best.items[item]
        )
        assert values[-1] == pytest.approx(weight * np.abs(tokens - tokens.mean()).sum() + (1 - weight) * away)


def exhaustive(items: Items) -> float:
    """Return the fewest routes that leave, of all equal places of eight experts on two devices; items are free."""
    best = np.inf
    for left in itertools.combinations(range(8), 4):
        experts = np.ones((1, 8), np.int64)
        experts[0, list(left)] = 0
        kept = np.stack([(items.uses[:, 0] * (experts[0] == device)).sum(axis=1) for device in range(2)])
        best = min(best, float(items.uses.sum() - kept.max(axis=0).sum()))
    return best


def test_small_cases_are_within_a_twentieth_of_the_best_of_all() -> None:
    ratios = []
    for seed in range(30):
        draws = np.random.default_rng(seed)
        uses = draws.poisson(draws.gamma(0.3, 20.0, (14, 1, 8))).astype(float)
        uses[uses.sum(axis=(1, 2)) == 0, 0, 0] = 1
        items = Items(uses.sum(axis=(1, 2)), uses)
        best = exhaustive(items)
        found = SemMoE(epochs=10, swaps=200, room=10.0, balance=0.0).cluster(items, 2)[-1]
        # Counted in routes that stay: those that leave may be none.
        ratios.append((uses.sum() - remote(found.experts, found.items, uses)) / (uses.sum() - best))
        exact = AlternatingAssignment(beginnings=40).places(items, 2, equal=False)
        kept = np.stack([(uses[:, 0] * (exact[0] == device)).sum(axis=1) for device in range(2)]).max(axis=0).sum()
        assert 0.95 * (uses.sum() - best) <= kept <= uses.sum() - best
    assert min(ratios) > 0.95
    assert max(ratios) <= 1.0 + 1e-12


def test_requests_go_to_every_device_once_a_round() -> None:
    trace = Generated(requests=42, tokens=20, layers=2, experts=16, per_token=2, vocabulary=200, topics=5).trace(3)
    plan = SemMoE(epochs=2).fit(trace, 4, whole_requests=True)
    homes = homes_of(plan, trace, 4, whole_requests=True, clairvoyant=False)[0, ::20]
    for begin in range(0, 40, 4):
        assert sorted(homes[begin : begin + 4].tolist()) == [0, 1, 2, 3]
    assert len(set(homes[40:].tolist())) == 2


def test_without_schedules_requests_go_in_turns_and_experts_are_the_same() -> None:
    trace = planted(0)
    with_them = SemMoE().fit(trace, 4, whole_requests=True)
    without = SemMoE(schedules=False).fit(trace, 4, whole_requests=True)
    assert np.array_equal(with_them.experts, without.experts)
    assert without.sending == InTurns(4)  # type: ignore[attr-defined]


def test_no_device_has_more_items_than_its_share_and_some_room() -> None:
    # All items like the same experts best, so that all would go where these are.
    uses = np.tile(np.r_[np.full(4, 9.0), np.full(4, 1.0)], (40, 1, 1))
    items = Items(np.ones(40), uses)
    for room, most in ((0.0, 10), (0.2, 12), (10.0, 40)):
        placed = SemMoE(room=room, epochs=2, alike=0.0).cluster(items, 4)[0].items
        assert np.bincount(placed, minlength=4).max() <= most


def test_experts_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(BadValueError, match="divided equally"):
        SemMoE().fit(planted(0), 3, whole_requests=True)
    with pytest.raises(UnknownNameError, match="vote"):
        SemMoE(votes="loud", epochs=1).fit(planted(0), 4, whole_requests=True)
