"""Starts, counts of bits, and what all protocols keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import UnknownNameError
from wavetank.protocols.leaders.austin import AustinGroups
from wavetank.protocols.leaders.burman_silent import BurmanSilent
from wavetank.protocols.leaders.burman_sublinear import BurmanSublinear
from wavetank.protocols.leaders.cai_izumi_wada import CaiIzumiWada
from wavetank.protocols.leaders.interface import (
    STARTS,
    bits,
    check_start,
    product_log2,
    start_ranks,
    subsets_log2,
    sum_log2,
)
from wavetank.protocols.leaders.tradeoff import TradeoffLeader

PROTOCOLS = [
    TradeoffLeader(rho=4),
    TradeoffLeader(rho=6, recruits="tokens"),
    BurmanSilent(),
    BurmanSilent(election="tickets"),
    CaiIzumiWada(),
    AustinGroups(rho=4),
    BurmanSublinear(depth=0),
    BurmanSublinear(depth=1),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_every_start_ends_with_a_permutation_and_one_leader(protocol: Any, start: str) -> None:
    for seed in range(3):
        election = protocol.elect(48, start, seed, most_time=1e5)
        assert election.converged
        assert sorted(election.ranks) == list(range(1, 49))
        assert election.leaders == 1


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_right_ranking_is_left_alone(protocol: Any) -> None:
    agents = protocol.begin(32, "correct", 5)
    ranks = agents.ranks
    agents.advance(2000.0)
    assert np.array_equal(agents.ranks, ranks)
    assert agents.triggers == 0
    assert protocol.elect(32, "correct", 5, most_time=10.0).time == 0.0


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_equal_seeds_give_equal_runs_and_others_do_not(protocol: Any) -> None:
    times = [protocol.elect(30, "garbage", seed, most_time=1e5).time for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_states_need_no_more_bits_than_the_record(protocol: Any) -> None:
    for n in (16, 100, 1000):
        memory = protocol.memory(n)
        # n states at least are necessary.
        assert math.log2(n) <= memory.state_bits <= memory.record_bits + 1e-9


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_run_that_is_cut_short_says_so(protocol: Any) -> None:
    election = protocol.elect(64, "garbage", 0, most_time=0.1)
    assert not election.converged
    assert math.isnan(election.time)


@given(st.integers(2, 60), st.sampled_from(sorted(STARTS)), st.integers(0, 2**32))
def test_starts_are_what_they_say(n: int, start: str, seed: int) -> None:
    ranks = start_ranks(start, n, np.random.default_rng(seed))
    assert ranks.shape == (n,)
    held = np.bincount(ranks, minlength=n + 1)
    if start == "correct":
        assert held[1:].tolist() == [1] * n
    elif start in ("all-leaders", "all-rank-1"):
        assert held[1] == n
    elif start == "no-leader":
        assert held[0] == held[1] == 0
        assert held[1:].max() == 2
    elif start == "duplicate":
        assert sorted(held[1:])[:1] + sorted(held[1:])[-1:] == [0, 2]
        assert n == 2 or held[1] == 1


def test_an_unknown_start_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        check_start("duplicates")
    assert caught.value.nearest == "duplicate"


def test_bits_of_fields_and_sets() -> None:
    assert [bits(values) for values in (1, 2, 3, 1024, 1025)] == [0, 1, 2, 10, 11]
    assert bits(3, 1024, 5) == 2 + 10 + 3
    assert product_log2((8, 4, 6)) == pytest.approx(math.log2(192))
    assert sum_log2((3.0, 5.0, 2000.0)) == 2000.0
    assert sum_log2((3.0, 5.0)) == pytest.approx(math.log2(40))
    assert subsets_log2(10, 3) == pytest.approx(math.log2(1 + 10 + 45 + 120))
    assert subsets_log2(5, 9) == pytest.approx(5.0)
