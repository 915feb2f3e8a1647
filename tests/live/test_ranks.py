"""Real processes that work together, and what is done to them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.rank_work import (
    echo,
    fails,
    is_busy,
    joins_unless,
    paced,
    reports,
    shares_the_default_group,
    sleeps,
    sums,
    writes_what_all_see,
)

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.ranks import LOOPBACK, Fault, Ranks, run_ranks


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def nothing_left(ranks: Ranks) -> Iterator[Ranks]:
    """Leave the block, whatever happens in it, and find that none of the processes is there any more."""
    pids = []
    try:
        with ranks:
            pids = [ranks.pid(rank) for rank in range(ranks.size)]
            assert not any(map(gone, pids))
            yield ranks
    finally:
        assert pids
        assert all(map(gone, pids))


def test_every_rank_gets_the_arguments_and_its_value_comes_back() -> None:
    with nothing_left(Ranks(echo, 3, arguments={"array": np.arange(3.0)})) as ranks:
        values = ranks.values(60.0)
    assert [list(value) for value in values] == [[0, 0, 0], [0, 1, 2], [0, 2, 4]]
    assert [outcome.reports for outcome in ranks.outcomes] == [[{"rank": 0}], [{"rank": 1}], [{"rank": 2}]]


def test_a_rank_that_has_ended_is_replaced_with_the_same_memory_and_its_own_faults() -> None:
    with nothing_left(Ranks(echo, 2, arguments={"array": np.arange(2.0)}, shared_bytes=64)) as ranks:
        first = ranks.pid(1)
        assert [list(value) for value in ranks.values(60.0)] == [[0, 0], [0, 1]]
        ranks.replace(1, arguments={"array": np.arange(4.0)})
        assert ranks.running == (1,) and ranks.pid(1) != first
        with pytest.raises(BadValueError):
            ranks.replace(1)
        ended = [(event.rank, event.kind) for event in ranks.events(60.0) if event.kind != "reported"]
        assert ended == [(1, "returned")]
        assert [list(outcome.value) for outcome in ranks.outcomes] == [[0, 0], [0, 1, 2, 3]]


def test_what_came_with_one_read_is_not_lost_when_the_loop_is_left() -> None:
    with nothing_left(Ranks(reports, 1, arguments={"count": 500})) as ranks:
        found: list[Any] = []
        while ranks.running or len(found) < 500:
            for event in ranks.events(20.0):
                found += [event.value] if event.kind == "reported" else []
                break
            else:
                break
    assert found == list(range(500))


def test_ranks_and_their_launcher_share_memory_where_some_is_asked_for() -> None:
    with nothing_left(Ranks(writes_what_all_see, 2, shared_bytes=64)) as ranks:
        assert [list(each) for each in ranks.values(60.0)] == [[10, 11], [10, 11]]
        assert ranks.shared is not None
        assert ranks.shared[:3].tolist() == [10, 11, 0]
    assert run_ranks(writes_what_all_see, 1, timeout_s=60.0) == [None]


def test_a_rank_that_raises_is_named_with_its_error() -> None:
    with pytest.raises(WavetankError, match="Rank 1 failed") as caught:
        run_ranks(fails, 2, timeout_s=60.0)
    assert "no such thing" in str(caught.value)


def test_a_rank_that_does_not_end_in_time_is_ended_and_named() -> None:
    with (
        pytest.raises(WavetankError, match=r"Rank 0 did not end within 0\.5 s"),
        nothing_left(Ranks(sleeps, 2, arguments={"seconds": 600.0})) as ranks,
    ):
        ranks.values(0.5)


def test_a_stopped_rank_is_ended_too() -> None:
    with nothing_left(Ranks(sleeps, 1, arguments={"seconds": 600.0})) as ranks:
        next(ranks.events(60.0))
        ranks.stop(0)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_cancelling_the_caller_leaves_no_process(interruption: type[BaseException]) -> None:
    with (
        pytest.raises(interruption),
        nothing_left(Ranks(sleeps, 2, arguments={"seconds": 600.0})) as ranks,
    ):
        for _ in ranks.events(60.0):
            raise interruption


def test_a_killed_rank_is_told_from_one_that_returned() -> None:
    with nothing_left(Ranks(sleeps, 2, arguments={"seconds": 0.5})) as ranks:
        for event in ranks.events(60.0):
            if (event.rank, event.kind) == (1, "reported"):
                ranks.kill(1)
        assert [(outcome.ended, outcome.value) for outcome in ranks.outcomes] == [("returned", None), ("died", -9)]


def test_a_value_sent_to_a_rank_that_has_ended_is_lost_in_silence() -> None:
    with nothing_left(Ranks(sleeps, 1, arguments={"seconds": 0.0})) as ranks:
        ranks.wait(60.0)
        ranks.send(0, {"too": "late"})


def test_slow_lets_a_rank_run_for_a_share_of_the_time_only() -> None:
    with nothing_left(Ranks(is_busy, 1, arguments={"seconds": 0.8})) as ranks:
        for event in ranks.events(60.0):
            if event.kind == "reported":
                ranks.slow(0, 0.1)
                ranks.send(0, "go")
        assert ranks.outcomes[0].ended == "returned"
        assert ranks.outcomes[0].value < 0.4


def test_a_rank_that_never_joins_ends_the_wait_of_the_others() -> None:
    with nothing_left(Ranks(joins_unless, 2, arguments={"absent": 1}, start_timeout_s=2.0)) as ranks:
        for event in ranks.events(100.0):
            assert event.rank == 0
            assert str(event.value).startswith("Not all of 2 ranks came within 2 s")
            break


def test_survivors_of_a_kill_in_the_middle_of_an_all_reduce_do_the_step_again() -> None:
    faults = [Fault(rank=1, point="in flight", at={"step": 1}, seconds=0.02)]
    ranks = Ranks(sums, 3, arguments={"length": 400_000, "steps": 3}, faults=faults, bytes_per_s=2e7, timeout_s=20.0)
    with nothing_left(ranks):
        outcomes = ranks.wait(120.0)
    assert [outcome.ended for outcome in outcomes] == ["returned", "died", "returned"]
    for outcome in (outcomes[0], outcomes[2]):
        found, members, _ = outcome.value
        assert found == [[6.0, 6.0], [4.0, 4.0], [4.0, 4.0]]
        assert members == [0, 2]
    # It was done again once, and those who were left knew whom they had lost.
    (again,) = outcomes[0].reports
    assert again[:2] == ["again", 1]
    assert again[3] == [0, 2]


def test_a_death_while_others_join_again_is_noticed_at_once() -> None:
    # Without the launcher's word rank 0 would wait out the limit of five minutes for a member that cannot come.
    faults = [Fault(rank=2, point="in flight", at={"step": 0}), Fault(rank=1, point="joining", at={"epoch": 1})]
    ranks = Ranks(sums, 3, arguments={"length": 10, "steps": 2}, faults=faults, timeout_s=300.0)
    with nothing_left(ranks):
        outcomes = ranks.wait(120.0)
    assert [outcome.ended for outcome in outcomes] == ["returned", "died", "died"]
    found, members, _ = outcomes[0].value
    assert (found, members) == ([[1.0, 1.0], [1.0, 1.0]], [0])


def test_a_death_before_the_default_group_is_noticed_at_once() -> None:
    # torch itself would wait for it, and then say that it waited.
    faults = [Fault(rank=1, point="joining")]
    with nothing_left(Ranks(shares_the_default_group, 2, faults=faults, start_timeout_s=300.0)) as ranks:
        outcomes = ranks.wait(120.0)
    assert [outcome.ended for outcome in outcomes] == ["returned", "died"]
    assert outcomes[0].value == "A member of the group has ended."


def test_ranks_are_started_once() -> None:
    ranks = Ranks(sleeps, 1, arguments={"seconds": 0.0})
    with nothing_left(ranks):
        ranks.wait(60.0)
    with pytest.raises(BadValueError, match="started once"), ranks:
        pass


def test_the_interface_to_which_ranks_are_bound_is_this_systems_loopback() -> None:
    assert LOOPBACK in [name for _, name in socket.if_nameindex()]


def test_a_rank_that_stands_still_is_ended_and_the_others_go_on() -> None:
    faults = [Fault(rank=0, point="before", at={"step": 1}, kind="stop")]
    ranks = Ranks(sums, 2, arguments={"length": 10, "steps": 2}, faults=faults, timeout_s=1.5, patience_s=1.0)
    with nothing_left(ranks):
        outcomes = ranks.wait(120.0)
    assert [(outcome.ended) for outcome in outcomes] == ["died", "returned"]
    assert outcomes[0].value == -9
    assert outcomes[1].value[0] == [[3.0, 3.0], [2.0, 2.0]]


def test_a_throttled_rank_sends_no_faster_than_it_may() -> None:
    bytes_per_s, length = 4e6, 500_000
    with nothing_left(Ranks(paced, 2, arguments={"length": length}, timeout_s=30.0)) as ranks:
        seen = 0
        for event in ranks.events(120.0):
            if event.kind == "reported":
                seen += 1
                if seen > 2:
                    ranks.throttle(event.rank, bytes_per_s)
                ranks.send(event.rank, "go")
    free, held = ranks.outcomes[0].value
    # Of two ranks each sends half of the array twice; a burst of the kernel's buffer may go ahead of the pace.
    assert held >= 0.5 * length * 8 / bytes_per_s
    assert held > free


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"work": lambda rank: None}, "function of a module"),
        ({"size": 0}, "out of range"),
        ({"size": 17}, "out of range"),
        ({"timeout_s": 0.0}, "limit of time"),
        ({"bytes_per_s": -1.0}, "bytes per second"),
        ({"bytes_per_s": float("nan")}, "bytes per second"),
        ({"bytes_per_s": 0.5}, "bytes per second"),
        ({"faults": [Fault(rank=2, point="x")]}, "names no rank"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValueError, match=problem):
        Ranks(**{"work": echo, "size": 2, **arguments})


@pytest.mark.parametrize("bad", [{"kind": "explode"}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_a_fault_that_does_not_exist_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Fault(rank=0, point="x", **bad)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_of_time_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(BadValueError, match="share of the time"):
        Ranks(echo, 1).slow(0, share)


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(BadValueError, match="plain values"), Ranks(echo, 2, arguments={"array": object()}):
        pass
