"""The compiled loop counts right, draws fairly and stops when it should."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.cai_izumi_wada import CaiIzumiWada
from wavetank.protocols.leaders.simulation import (
    BOARD,
    RANK,
    Population,
    check_agents,
    draw_below,
    meeting,
    set_rank,
)


@meeting
def _count_meetings(agents, memory, a, b, constants, draws, board):  # type: ignore[no-untyped-def]
    memory[a, b] += 1


@pytest.fixture
def counted() -> Population:
    n = 5
    return Population(_count_meetings, np.zeros((n, 1), np.int32), np.zeros((n, n), np.int32), np.zeros(1, np.int64), 3)


def test_every_ordered_pair_meets_equally_often_and_nobody_meets_itself(counted: Population) -> None:
    counted.advance(40_000)
    met = counted.memory
    assert met.sum() == 200_000
    assert np.trace(met) == 0
    pairs = met[~np.eye(5, dtype=bool)]
    # 20 pairs, 10,000 expected of each; five standard deviations are about 490.
    assert np.abs(pairs - 10_000).max() < 500


def test_parallel_time_is_meetings_over_agents(counted: Population) -> None:
    counted.advance(12.0)
    assert counted.time == 12.0
    assert counted.memory.sum() == 60


def test_a_run_in_pieces_is_the_run_in_one_piece() -> None:
    protocol = CaiIzumiWada()
    whole, pieces = (protocol.begin(20, "garbage", 7) for _ in range(2))
    whole.advance(300.0)
    for _ in range(30):
        pieces.advance(10.0)
    assert np.array_equal(whole.ranks, pieces.ranks)
    assert whole.board.tolist() == pieces.board.tolist()


def test_the_count_of_ranks_held_once_is_right_after_any_changes() -> None:
    agents = CaiIzumiWada().begin(12, "garbage", 0)
    rng = np.random.default_rng(1)
    for _ in range(300):
        set_rank(agents.agents, agents.board, int(rng.integers(12)), int(rng.integers(13)))
        holders = np.bincount(agents.agents[:, RANK], minlength=13)
        assert agents.board[0] == (holders[1:] == 1).sum()
        assert np.array_equal(agents.board[BOARD + 1 :], holders[1:])
        assert agents.is_ranked() == (sorted(agents.ranks) == list(range(1, 13)))


def test_a_run_stops_when_the_output_was_right_for_the_window() -> None:
    agents = CaiIzumiWada().begin(8, "garbage", 4)
    assert agents.advance(1e5, window=25.0)
    assert agents.is_ranked()
    assert agents.time - agents.ranked_since == 25.0


def test_a_run_without_window_goes_on() -> None:
    agents = CaiIzumiWada().begin(8, "correct", 0)
    assert not agents.advance(50.0)
    assert agents.time == 50.0
    assert agents.ranked_since == 0.0


def test_what_is_not_ranked_is_ranked_since_never() -> None:
    assert np.isnan(CaiIzumiWada().begin(8, "all-rank-1", 0).ranked_since)


def test_draws_are_below_their_bound_and_uniform() -> None:
    draws = np.array([123, 0], np.uint64)
    found = np.bincount([draw_below(draws, 10) for _ in range(20_000)], minlength=10)
    assert found.size == 10
    assert np.abs(found - 2000).max() < 250
    assert draws[1] == 20_000


def test_one_agent_is_too_few() -> None:
    with pytest.raises(BadValueError, match="too few or too many agents"):
        check_agents(1)
