"""Deputies label, groups watch: what the reconstruction keeps."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.austin import AustinGroups


def _mean_time(rho: int, start: str, runs: int = 5) -> float:
    return float(np.mean([AustinGroups(rho=rho).elect(512, start, seed, most_time=1e5).time for seed in range(runs)]))


def test_more_deputies_are_faster() -> None:
    times = [_mean_time(rho, "all-rank-1") for rho in (2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]


def test_a_double_is_found_long_before_the_two_meet() -> None:
    # The doubles alone would meet after 256 time in the mean.
    found = []
    for seed in range(20):
        agents = AustinGroups(rho=16).begin(512, "duplicate", seed)
        assert agents.advance(5000.0, until_trigger=True)
        found.append(agents.time)
    assert np.mean(found) < 100


def test_messages_are_neither_lost_nor_doubled() -> None:
    rho, n = 4, 32
    agents = AustinGroups(rho=rho).begin(n, "correct", 0)
    agents.advance(500.0)
    held = agents.memory[:, rho : rho + rho * rho].reshape(n, rho, rho) >> 10
    for group in range(n // rho):
        members = (agents.ranks - 1) // rho == group
        for issuer in range(rho):
            assert sorted(held[members, issuer].ravel()) == list(range(rho * rho))


def test_memory_grows_with_the_square_of_rho() -> None:
    few, many = (AustinGroups(rho=rho).memory(1024).record_bits for rho in (8, 32))
    assert 12 < many / few < 20


def test_more_deputies_than_agents_are_refused() -> None:
    with pytest.raises(BadValueError, match="deputies"):
        AustinGroups(rho=32).begin(20, "garbage", 0)
