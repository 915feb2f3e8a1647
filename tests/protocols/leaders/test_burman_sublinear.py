"""Names and trees of meetings: no false alarms, doubles found without meeting."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.burman_sublinear import BurmanSublinear


def _detection_time(depth: int, n: int, runs: int) -> float:
    found = []
    for seed in range(runs):
        agents = BurmanSublinear(depth=depth).begin(n, "duplicate", seed)
        assert agents.advance(50.0 * n, until_trigger=True)
        found.append(agents.time)
    return float(np.mean(found))


@pytest.mark.parametrize(("depth", "n"), [(0, 40), (1, 40), (2, 16)])
def test_trees_never_contradict_each_other_without_a_double(depth: int, n: int) -> None:
    agents = BurmanSublinear(depth=depth).begin(n, "correct", 3)
    agents.advance(1500.0)
    assert agents.triggers == 0


def test_deeper_trees_find_doubles_sooner() -> None:
    at_depth = [_detection_time(depth, 48, 30) for depth in (0, 1, 2)]
    # Without a tree the two must meet: (n - 1) / 2 in the mean.
    assert 12 < at_depth[0] < 40
    assert at_depth[1] < at_depth[0] / 2
    assert at_depth[2] < at_depth[1]


def test_depth_two_converges_from_garbage() -> None:
    for seed in range(3):
        election = BurmanSublinear(depth=2).elect(20, "garbage", seed, most_time=2000)
        assert sorted(election.ranks) == list(range(1, 21))


def test_memory_grows_with_n_to_the_depth() -> None:
    bits = [BurmanSublinear(depth=depth).memory(64).record_bits for depth in (0, 1, 2)]
    assert bits[0] < bits[1] / 2
    assert bits[2] > 30 * bits[1]
    # Counted also where nothing can be simulated any more.
    assert BurmanSublinear(depth=2).memory(4096).record_bits > 4096**2


def test_more_agents_than_fit_are_refused() -> None:
    with pytest.raises(BadValueError) as caught:
        BurmanSublinear(depth=2).begin(65, "garbage", 0)
    assert caught.value.allowed == "2 to 64 at depth 2"
