"""Real processes: the same sums, and ranks that are stopped, killed or late."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving.exchange.cases import EXCHANGES, FIXED, PACKED, Spoilt, rank_steps, small

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.ranks import Fault, Ranks
from wavetank.serving.exchange.interface import CapacityError, LateRankError, Task, Wait
from wavetank.serving.exchange.live import Meeting, Taken, driven, in_turns, steps_here, turns_here
from wavetank.serving.exchange.port import Port, memory_bytes
from wavetank.serving.exchange.reference import dense
from wavetank.serving.exchange.table import contiguous
from wavetank.serving.exchange.workload import slopes


def started(task: Task, experts: int, steps: Any, exchange: Any = FIXED, **given: Any) -> Ranks:
    """Return ranks that run some steps of an exchange."""
    arguments = {
        "contender": [type(exchange).__module__, type(exchange).__qualname__, dataclasses.asdict(exchange)],
        "task": dataclasses.asdict(task), "steps": [[list(each) for each in mine] for mine in steps],
        "expert_of": contiguous(experts, task.ranks).expert_of.tolist(), "limit_s": given.pop("limit_s", 30.0),
        "ahead": given.pop("ahead", 0),
    }  # fmt: skip
    return Ranks(steps_here, task.ranks, arguments=arguments, shared_bytes=memory_bytes(exchange, task), **given)


def ours() -> list[Path]:
    """Return what of this project has a name among the shared memory of this machine."""
    return sorted(Path("/dev/shm").glob("*wavetank*"))


def right(sums: Any, steps: Any, task: Task) -> bool:
    """Return whether all sums are those without an exchange, to the last digit."""
    return all(
        np.array_equal(found, dense(routed, slopes, task))
        for mine, its in zip(sums, steps, strict=True)
        for found, routed in zip(mine, its, strict=True)
    )


def test_processes_take_turns_with_all_exchanges_and_none_is_wrong() -> None:
    task = small(2, 4, hidden=16, tokens=8)
    every = in_turns(EXCHANGES, task, experts=4, load="zipf", rounds=2, steps=2)
    assert [rank["wrong"] for rank in every] == [[0] * 5] * 2
    for rank in every:
        assert rank["rows"] == 3 * 2 * 8 * 3
        assert np.array(rank["dispatch"]).shape == np.array(rank["combine"]).shape == (2, 5, 2)
        assert (np.array(rank["dispatch"]) > 0).all()
        wrote = [each["dispatch"]["written_bytes"] for each in rank["traffic"]]
        assert wrote[0] == wrote[1] == rank["rows"] * task.row_bytes


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [PACKED, FIXED])
def test_a_thousand_steps_with_ranks_that_sleep_at_any_stage_are_right(exchange: Any) -> None:
    task, rng = small(3, 6, tokens=3, choices=2), np.random.default_rng(1)
    steps = rank_steps("zipf", task, 6, 1000, 2)
    stages = ["counted", "placed", "experts", "computed", "done"]
    faults = [Fault(rank=int(rng.integers(3)), point=str(rng.choice(stages)), at={"step": int(rng.integers(1, 1001))},
                    kind="sleep", seconds=0.01) for _ in range(300)]  # fmt: skip
    for ahead in (0, 1):
        with started(task, 6, steps, exchange, faults=faults, ahead=ahead) as ranks:
            assert right(ranks.values(300.0), steps, task)


def test_sleeping_ranks_are_waited_for_and_a_killed_one_is_named() -> None:
    task = small(2, 4, tokens=3)
    steps = rank_steps("uniform", task, 4, 8, 3)
    faults = [Fault(rank=step % 2, point=("placed", "computed", "done")[step % 3], at={"step": step}, kind="sleep",
                    seconds=0.02) for step in range(1, 7)]  # fmt: skip
    with started(task, 4, steps, faults=[*faults, Fault(rank=1, point="computed", at={"step": 8})],
                 limit_s=0.5) as ranks:  # fmt: skip
        begin_s = time.monotonic()
        ended = ranks.wait(60.0)
        assert time.monotonic() - begin_s < 30.0
    assert (ended[1].ended, ended[1].value) == ("died", -9)
    assert ended[0].ended == "raised"
    assert "rank 1" in ended[0].value
    assert "computed, step 8" in ended[0].value


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize("stage", ["counted", "placed", "experts", "computed", "done"])
def test_whoever_waits_for_a_dead_or_stopped_rank_says_so_at_every_stage(stage: str, kind: str) -> None:
    task = small(3, 6, tokens=3, choices=2)
    steps = rank_steps("one", task, 6, 3, 3)
    steps[0][1] = steps[0][0]
    before = ours()
    with started(task, 6, steps, PACKED, faults=[Fault(rank=0, point=stage, at={"step": 2}, kind=kind)],
                 limit_s=0.5) as ranks:  # fmt: skip
        ended = ranks.wait(5.0)
        pids = [ranks.pid(rank) for rank in range(3)]
    assert [each.ended for each in ended] == ["died" if kind == "kill" else "running", "raised", "raised"]
    assert all("rank" in each.value for each in ended[1:])
    assert not any(Path(f"/proc/{pid}/maps").exists() and Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    assert ours() == before


class Alone:
    """The only rank, in this process."""

    number = 0

    def __init__(self, size: int) -> None:
        self.shared = np.zeros(size, np.uint8)

    def point(self, name: str, **at: int) -> None:
        """Nothing strikes here."""


def alone(exchanges: Sequence[Any], task: Task) -> tuple[Alone, list[list[Any]]]:
    rank = Alone(4096 + sum(memory_bytes(each, task) for each in exchanges))
    return rank, [[type(each).__module__, type(each).__qualname__, dataclasses.asdict(each)] for each in exchanges]


def test_sums_that_are_wrong_or_were_never_written_are_counted() -> None:
    task, exchanges = small(1, 4, tokens=3), (PACKED, Spoilt(), Spoilt(writes=False))
    rank, contenders = alone(exchanges, task)
    found = turns_here(rank, contenders, dataclasses.asdict(task), 4, "uniform", 0, 2, 3, 1.0)  # type: ignore[arg-type]
    # One token of three, or all, of three steps in three rounds.
    assert found["wrong"] == [0, 9, 27]


def test_a_rank_that_fails_says_so_to_all() -> None:
    task = small(1, 4, tokens=3, window_rows=2)
    rank, contenders = alone([PACKED], task)
    with pytest.raises(CapacityError):
        turns_here(rank, contenders, dataclasses.asdict(task), 4, "uniform", 0, 1, 2, 1.0)  # type: ignore[arg-type]
    assert Port(rank.shared[4096:], PACKED, task, 0).failures() == (0,)
    rank, contenders = alone([PACKED], task)
    steps = [[list(each) for each in rank_steps("uniform", small(1, 4, tokens=3), 4, 2)[0]]]
    with pytest.raises(CapacityError):
        steps_here(rank, contenders[0], dataclasses.asdict(task), steps, [0, 1, 2, 3], 1.0, 0)  # type: ignore[arg-type]
    assert Port(rank.shared, PACKED, task, 0).failures() == (0,)


def test_a_late_rank_is_named_with_its_stage_and_one_that_gave_up_is_not_waited_for() -> None:
    task = small(2, 4)
    memory = np.zeros(memory_bytes(PACKED, task), np.uint8)
    mine, other = (Port(memory, PACKED, task, rank) for rank in range(2))
    mine.step = 1

    def program() -> Any:
        yield from mine.wait("placed")

    with pytest.raises(LateRankError) as caught:
        driven(None, mine, program(), 0.02)
    assert (caught.value.rank, caught.value.stage) == (0, "placed")
    # Going on without one that still runs would let it write among the rows of new steps.
    assert "end its process" in str(caught.value)
    other.step = 1
    list(other.signal("placed"))
    list(mine.signal("placed"))
    taken = Taken()
    assert driven(None, mine, program(), 0.02, taken) is None
    assert taken.wall_s > 0
    mine.step = 2

    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        driven(None, mine, program(), 60.0, look=look)
    other.fail()
    with pytest.raises(WavetankError, match="does not go on"):
        driven(None, mine, program(), 60.0)


def test_waiting_is_no_processor_time_of_the_exchange() -> None:
    task = small(2, 4)
    memory = np.zeros(memory_bytes(PACKED, task), np.uint8)
    mine = Port(memory, PACKED, task, 0)
    mine.step = 1

    def program() -> Any:
        yield from mine.wait("placed")

    taken = Taken()
    with pytest.raises(LateRankError):
        driven(None, mine, program(), 0.05, taken)
    assert taken.wall_s == 0.0

    def works() -> Any:
        end_s = time.thread_time() + 0.03
        while time.thread_time() < end_s:
            continue
        yield Wait("placed", (), 0, np.empty(0, np.int64))

    driven(None, mine, works(), 0.05, taken)
    assert 0.03 <= taken.cpu_s < 0.3


def test_a_meeting_waits_for_all_and_names_who_does_not_come() -> None:
    words = np.zeros(16, np.int64)
    first, second = (Meeting(words, number, 2) for number in range(2))
    with pytest.raises(LateRankError, match="rank 1"):
        first.meet(0.02)
    second.meet(1.0)
    assert words[[0, 8]].tolist() == [1, 1]


def test_nothing_to_run_and_no_shared_memory_are_refused() -> None:
    task = small(2, 4)
    with pytest.raises(BadValueError, match="no exchange"):
        in_turns([], task, experts=4)
