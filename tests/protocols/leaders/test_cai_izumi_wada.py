"""The protocol with n states: exact against its Markov chain."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from wavetank.protocols.leaders.cai_izumi_wada import CaiIzumiWada


def exact_mean_time(ranks: tuple[int, ...]) -> float:
    """Return the expected parallel time of the protocol from given ranks, by solving its Markov chain.

    Parameters
    ----------
    ranks : tuple of int
        The agents' ranks, 1..n for n agents; n at most 8.
    """
    n = len(ranks)
    configurations = [counts for counts in product(range(n + 1), repeat=n) if sum(counts) == n]
    place = {counts: at for at, counts in enumerate(configurations)}
    # Mean meetings h: h = 1 + P h, with h = 0 where no two are equal.
    matrix = np.eye(len(configurations))
    ones = np.ones(len(configurations))
    for counts, at in place.items():
        if max(counts) == 1:
            ones[at] = 0.0
            continue
        moves = 0.0
        for rank, held in enumerate(counts):
            if held > 1:
                after = list(counts)
                after[rank] -= 1
                after[(rank + 1) % n] += 1
                chance = held * (held - 1) / (n * (n - 1))
                matrix[at, place[tuple(after)]] -= chance
                moves += chance
        matrix[at, at] -= 1.0 - moves
    mean = np.linalg.solve(matrix, ones)
    return float(mean[place[tuple(int(count) for count in np.bincount(np.array(ranks) - 1, minlength=n))]]) / n


def _times(n: int, runs: int) -> np.ndarray:
    return np.array([CaiIzumiWada().elect(n, "all-rank-1", seed, most_time=1e7).time for seed in range(runs)])


def test_two_agents_need_one_meeting() -> None:
    assert exact_mean_time((1, 1)) == pytest.approx(0.5)
    assert exact_mean_time((1, 2)) == 0.0
    assert set(_times(2, 20)) == {0.5}


def test_three_agents_by_hand() -> None:
    # From (1,1,1): one meeting gives (1,1,2); then pairs of equals are 2 of 6, three meetings in the mean, and each
    # step moves one of the doubled rank on: (1,2,2), then (1,2,3).
    assert exact_mean_time((1, 1, 1)) == pytest.approx((1 + 3 + 3) / 3)


# Check 5.
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_mean_time_is_that_of_the_markov_chain(n: int) -> None:
    times = _times(n, 3000)
    exact = exact_mean_time((1,) * n)
    assert abs(times.mean() - exact) <= 4 * times.std() / math.sqrt(times.size) + 1e-12


@pytest.mark.parametrize("n", [3, 5])
def test_single_meetings_take_as_long_as_the_jumps(n: int) -> None:
    protocol, times = CaiIzumiWada(), []
    for seed in range(1500):
        agents = protocol.begin(n, "all-rank-1", seed)
        assert agents.advance(1e5, window=0.0)
        times.append(agents.ranked_since)
    exact = exact_mean_time((1,) * n)
    assert abs(np.mean(times) - exact) <= 4 * np.std(times) / math.sqrt(len(times))


def test_time_is_quadratic() -> None:
    few = np.mean([CaiIzumiWada().elect(64, "garbage", seed, most_time=1e9).time for seed in range(40)])
    many = np.mean([CaiIzumiWada().elect(256, "garbage", seed, most_time=1e9).time for seed in range(40)])
    assert 10 < many / few < 26


def test_ten_thousand_agents_end_as_a_permutation() -> None:
    election = CaiIzumiWada().elect(10_000, "duplicate", 0, most_time=1e10)
    assert election.converged
    assert election.ranks.tolist() == list(range(1, 10_001))


def test_memory_is_n_states() -> None:
    assert CaiIzumiWada().memory(1024).state_bits == 10.0
