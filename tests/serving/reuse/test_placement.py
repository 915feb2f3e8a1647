"""Placement of items: room and heat, planted partitions, and a brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import sparse

from wavetank.errors import WavetankError
from wavetank.serving.reuse.placement import RULES, Room, cut, place, together


def planted(blocks: int, size: int, noise: float, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    draws, count = np.random.default_rng(seed), blocks * size
    of = draws.permutation(count) % blocks
    same = of[:, None] == of
    weights = np.triu(np.where(same, 10, 0) + (draws.random((count, count)) < noise), 1)
    return sparse.csr_array(weights + weights.T), of


@pytest.mark.parametrize("rule", ["balanced", "multilevel"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_planted_blocks_are_found(rule: str, noise: float) -> None:
    graph, of = planted(4, 30, noise)
    ones = np.ones(120, np.int64)
    home = place(graph, ones, ones, workers=4, room=32, slack=0.1, replicas=0.0, rule=rule).home
    assert len({(a, b) for a, b in zip(of.tolist(), home.tolist(), strict=True)}) == 4
    assert cut(graph, home) == sum(graph[i, j] for i in range(120) for j in range(i) if of[i] != of[j])


@pytest.mark.parametrize("rule", RULES)
def test_no_room_is_ever_exceeded_and_what_fits_nowhere_is_nowhere(rule: str) -> None:
    draws = np.random.default_rng(1)
    for trial in range(20):
        count = int(draws.integers(1, 60))
        sizes, heat = draws.integers(1, 30, count), draws.integers(0, 50, count)
        graph = together(count, [draws.integers(0, count, 6) for _ in range(15)])
        room = int(draws.integers(0, 120))
        found = place(graph, sizes, heat, workers=3, room=room, replicas=0.1, rule=rule, seed=trial)
        always = int(sizes[found.everywhere].sum())
        for worker in range(3):
            assert always + sizes[found.home == worker].sum() <= room
        assert not (found.everywhere & (found.home >= 0)).any()
        if rule == "random" or room < 30:
            continue
        # What was left out fits nowhere.
        used = np.bincount(found.home[found.home >= 0], sizes[found.home >= 0], 3) + always
        left = sizes[(found.home < 0) & ~found.everywhere]
        assert not len(left) or left.min() + used.min() > room


def test_less_is_cut_than_by_chance_and_nearly_as_little_as_can_be() -> None:
    draws = np.random.default_rng(2)
    for _ in range(5):
        weights = np.triu(draws.integers(0, 6, (8, 8)), 1)
        graph, ones = sparse.csr_array(weights + weights.T), np.ones(8, np.int64)
        best = min(
            cut(graph, np.array(each)) for each in product((0, 1), repeat=8) if 3 <= sum(each) <= 5
        )  # fmt: skip
        found = {
            rule: cut(graph, place(graph, ones, ones, workers=2, room=5, slack=0.25, replicas=0.0, rule=rule).home)
            for rule in RULES
        }
        assert best <= found["balanced"] <= found["random"]
        assert found["balanced"] <= 1.15 * best


def test_heat_is_balanced_where_there_is_room_and_the_hottest_are_everywhere() -> None:
    draws = np.random.default_rng(4)
    heat = draws.zipf(1.8, 400).clip(max=300)
    graph = together(400, [draws.integers(0, 400, 20) for _ in range(60)])
    found = place(graph, np.ones(400, np.int64), heat, workers=8, room=100, slack=0.05, replicas=0.02)
    assert set(np.flatnonzero(found.everywhere)) == set(np.lexsort((np.arange(400), -heat))[:8])
    warm = np.bincount(found.home[found.home >= 0], heat[found.home >= 0], 8)
    assert warm.max() <= 1.05 * heat[~found.everywhere].sum() / 8


def test_items_asked_for_together_are_counted_once_a_request() -> None:
    graph = together(4, [np.array([0, 1, 1]), np.array([1, 0, 2]), np.array([], np.int64)])
    assert graph.toarray().tolist() == [[0, 2, 1, 0], [2, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert cut(graph, np.array([0, 0, 1, -1])) == 2
    assert Room(2, 3, 4).size == 3


def test_senseless_settings_are_refused() -> None:
    graph, ones = sparse.csr_array((2, 2), dtype=np.int64), np.ones(2, np.int64)
    for more in ({"workers": 0}, {"room": -1}, {"rule": "metis"}, {"slack": float("nan")}, {"replicas": 2.0}):
        with pytest.raises(WavetankError):
            place(graph, ones, ones, **{"workers": 2, "room": 4, **more})
    with pytest.raises(WavetankError):
        place(graph, 0 * ones, ones, workers=2, room=4)
