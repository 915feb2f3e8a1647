"""The protocol with rosters of rho names: the numbered checks of its design."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.interface import STARTS
from wavetank.protocols.leaders.reset import COLUMNS, MODE, RESET
from wavetank.protocols.leaders.simulation import RANK
from wavetank.protocols.leaders.tradeoff import (
    BASE,
    CHECK,
    COLLECT,
    SIZE,
    STAGE,
    TradeoffLeader,
    _merge_names,
)


def _mean_time(protocol: TradeoffLeader, n: int, runs: int) -> float:
    times = [protocol.elect(n, "all-rank-1", seed, most_time=100.0 * n).time for seed in range(runs)]
    return float(np.mean(times))


# Check 1: closure.
def test_checks_go_on_and_find_nothing_in_a_right_ranking() -> None:
    agents = TradeoffLeader(rho=8).begin(100, "correct", 1)
    agents.advance(20_000.0)
    assert agents.triggers == 0
    assert agents.is_ranked()
    assert agents.groups_checked > 1000


@pytest.mark.slow
@pytest.mark.parametrize("recruits", ["coins", "tokens"])
def test_no_false_alarm_in_ten_thousand_n_time(recruits: str) -> None:
    agents = TradeoffLeader(rho=8, recruits=recruits).begin(100, "correct", 2)
    agents.advance(1e4 * 100)
    assert agents.triggers == 0
    assert agents.is_ranked()


# Checks 2 and 3: convergence to a permutation from adversarial starts.
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rho", [2, 5, 16])
def test_every_start_converges_to_a_permutation(start: str, rho: int) -> None:
    election = TradeoffLeader(rho=rho).elect(150, start, 3, most_time=30_000)
    assert election.converged
    assert sorted(election.ranks) == list(range(1, 151))


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_every_start_converges_with_many_agents(start: str) -> None:
    for rho in (16, 64):
        election = TradeoffLeader(rho=rho).elect(4096, start, 0, most_time=400_000)
        assert sorted(election.ranks) == list(range(1, 4097))
        assert election.converged


@given(st.integers(2, 40), st.integers(0, 1000))
def test_small_populations_of_any_size_converge(n: int, seed: int) -> None:
    election = TradeoffLeader(rho=2 + seed % min(n - 1, 6)).elect(n, "garbage", seed, most_time=20_000)
    assert election.converged
    assert sorted(election.ranks) == list(range(1, n + 1))


def test_after_convergence_the_ranking_never_changes_again() -> None:
    protocol = TradeoffLeader(rho=8)
    agents = protocol.begin(64, "garbage", 9)
    agents.advance(1e5, window=protocol.window(64))
    ranks, triggers = agents.ranks, agents.triggers
    agents.advance(5000.0)
    assert np.array_equal(agents.ranks, ranks)
    assert agents.triggers == triggers


# Check 4: detection.
@pytest.mark.parametrize(("rho", "runs"), [(2, 40), (4, 100)])
def test_a_doubled_rank_is_found_within_one_sweep(rho: int, runs: int) -> None:
    found = sum(TradeoffLeader(rho=rho).finds_double(128, seed) for seed in range(runs))
    # The bar is 1 - rho^-3; three standard deviations below it at most.
    bar = 1 - rho**-3
    assert found >= runs * bar - 3 * math.sqrt(runs * bar * (1 - bar))


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "runs"), [(2, 300), (4, 500), (8, 500), (16, 300)])
def test_doubled_ranks_are_found_as_often_as_the_design_asks(rho: int, runs: int) -> None:
    found = sum(TradeoffLeader(rho=rho).finds_double(256, seed) for seed in range(runs))
    assert found / runs >= 1 - rho**-3


# Check 6: the slope.
def test_twice_the_roster_takes_about_half_the_time() -> None:
    times = [_mean_time(TradeoffLeader(rho=rho), 512, 4) for rho in (2, 4, 8, 16)]
    slopes = np.diff(np.log2(times))
    assert ((slopes > -1.25) & (slopes < -0.7)).all()


@pytest.mark.slow
def test_time_falls_as_one_over_rho_up_to_the_square_root() -> None:
    rhos = np.array([2, 4, 8, 16, 32])
    times = [_mean_time(TradeoffLeader(rho=int(rho)), 1024, 5) for rho in rhos]
    slope = np.polyfit(np.log(rhos), np.log(times), 1)[0]
    assert -1.1 < slope < -0.9


def test_a_roster_keeps_the_smallest_names_of_both() -> None:
    agents, memory = np.zeros((2, COLUMNS), np.int32), np.zeros((2, 4), np.int32)
    memory[0, :3], memory[1, :4] = [2, 5, 9], [1, 5, 7, 8]
    agents[:, SIZE] = 3, 4
    _merge_names(agents, memory, 0, 1, 4)
    assert memory.tolist() == [[1, 2, 5, 7]] * 2
    assert agents[:, SIZE].tolist() == [4, 4]


@given(
    st.sets(st.integers(1, 40), max_size=6),
    st.sets(st.integers(1, 40), max_size=6),
)
def test_merging_is_the_union_cut_at_rho(one: set[int], other: set[int]) -> None:
    agents, memory = np.zeros((2, COLUMNS), np.int32), np.zeros((2, 6), np.int32)
    for who, names in enumerate((one, other)):
        memory[who, : len(names)] = sorted(names)
        agents[who, SIZE] = len(names)
    _merge_names(agents, memory, 0, 1, 6)
    expected = sorted(one | other)[:6]
    for who in (0, 1):
        assert memory[who, : agents[who, SIZE]].tolist() == expected


def test_one_that_believes_all_are_ranked_and_has_no_rank_starts_a_reset() -> None:
    agents = TradeoffLeader(rho=4).begin(32, "correct", 0)
    agents.agents[7, RANK] = 0
    agents.agents[7, STAGE] = (agents.agents[7, STAGE] - 1) % 8
    agents.agents[7, MODE], agents.agents[7, BASE] = COLLECT, 31
    agents.recount()
    assert agents.advance(200.0, until_trigger=True)


def test_a_population_without_leader_notices_that_the_clock_stands_still() -> None:
    protocol = TradeoffLeader(rho=4)
    agents = protocol.begin(64, "no-leader", 0)
    # All records agree, so that only silence or the doubles themselves can tell.
    assert agents.advance(500.0, until_trigger=True)
    assert protocol.elect(64, "no-leader", 0, most_time=5000).converged


def test_two_leaders_are_found_without_meeting() -> None:
    agents = TradeoffLeader(rho=4).begin(2000, "correct", 0)
    second = int(np.flatnonzero(agents.ranks == 2)[0])
    agents.agents[second, RANK] = 1
    agents.recount()
    # Meeting would take 1000 time in the mean.
    assert agents.advance(100.0, until_trigger=True)


def test_garbage_holds_every_mode_and_no_rank_in_a_reset() -> None:
    agents = TradeoffLeader(rho=4).begin(500, "garbage", 0).agents
    assert set(agents[:, MODE]) == {0, 1, CHECK, RESET}
    assert (agents[agents[:, MODE] == RESET, RANK] == 0).all()
    assert len(set(agents[:, RANK])) > 100


def test_memory_grows_with_rho_and_counts_the_whole_record() -> None:
    memories = [TradeoffLeader(rho=rho).memory(1024) for rho in (2, 4, 8, 16, 32)]
    records = [memory.record_bits for memory in memories]
    assert records == sorted(records)
    # The roster alone: 8 names of 10 + 3 + 10 bits, and the value for an empty place.
    assert TradeoffLeader(rho=8).memory(1024).record_bits > 8 * 24
    assert TradeoffLeader(rho=8, recruits="tokens").memory(1024).record_bits < records[2]


def test_longer_names_cost_a_bit_for_every_place() -> None:
    short, long = (TradeoffLeader(rho=16, name_bits=bits).memory(1024).record_bits for bits in (20, 24))
    # 16 places and the recruit's own name.
    assert long - short == 4 * 17


def test_a_roster_larger_than_the_population_is_refused() -> None:
    with pytest.raises(BadValueError) as caught:
        TradeoffLeader(rho=64).begin(32, "garbage", 0)
    assert caught.value.allowed == "2 to 32"
    assert caught.value.where == "rho"
