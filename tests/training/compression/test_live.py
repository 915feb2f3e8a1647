"""Real processes send the same bytes and have the same sums as ranks that take turns in one process."""

import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.ranks import Fault, run_ranks
from wavetank.training.compression.frames import BadFrameError, Speeds
from wavetank.training.compression.interface import Task
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.peers import GlooSum
from wavetank.training.compression.ring import play
from wavetank.training.compression.rivals import PlainRing

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.training.compression.live import all_reduce, sum_on_ranks

SHAPE = (30, 100)


def smooth(size):
    return [np.cumsum(np.random.default_rng(i).normal(size=SHAPE), axis=1).astype(np.float32).reshape(-1)
            for i in range(size)]  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_the_sums_of_ranks_that_take_turns(size):
    given, task = smooth(size), Task(size=size, shape=SHAPE, bound=0.01, speeds=Speeds(link_bytes_per_s=1e6))
    played = play(Ncclz(), given, task)
    found = sum_on_ranks(Ncclz(), given, task)
    for sums, _, seconds in found:
        assert np.array_equal(sums, played.sums[0])
        assert len(seconds[0]) == 1
    assert sum(sent[0] for _, sent, _ in found) == played.sent_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="connections are throttled on Linux only")
def test_a_throttled_link_takes_the_time_of_the_bytes():
    given = [np.zeros(250_000, np.float32)] * 2
    task = Task(size=2, shape=(250_000,), bound=1.0)

    (_, sent, seconds), _ = sum_on_ranks(PlainRing(), given, task, links=(4e6, 0.0))
    assert sent == [1_000_000, 1_000_000]
    assert seconds[0][0] > 0.15
    assert seconds[1][0] < seconds[0][0]


@pytest.mark.parametrize("system", [Ncclz(), GlooSum()])
def test_a_rank_that_is_killed_ends_all_at_once_and_leaves_no_process(system):
    given, task = smooth(3), Task(size=3, shape=SHAPE, bound=0.01)
    point = "exchange" if isinstance(system, Ncclz) else "in flight"
    began_s = time.monotonic()
    with pytest.raises(WavetankError, match=r"failed|died"):
        sum_on_ranks(system, given, task, timeout_s=100.0, faults=[Fault(rank=1, point=point)])
    assert time.monotonic() - began_s < 60
    assert not [each for each in children() if "rank_process" in each]


def children():
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            if fields[1] == str(os.getpid()) and fields[0] != "Z":
                found.append((each / "cmdline").read_text())
    return found


def meets_a_liar(rank):
    import torch

    if rank.number:
        # Says that a terabyte follows.
        for each in [rank.group.recv([torch.zeros(1, dtype=torch.int64)], 0, 0),
                     rank.group.send([torch.tensor([1 << 40])], 0, 0)]:  # fmt: skip
            each.wait()
        return ""
    try:
        all_reduce(rank, PlainRing(), np.zeros(300, np.float32), Task(size=2, shape=(300,), bound=1.0))
    except BadFrameError as error:
        return f"{error} {error.given}"
    return "summed"


def test_a_length_beyond_any_message_of_the_task_is_refused_before_room_is_made():
    said, _ = run_ranks(meets_a_liar, 2, timeout_s=60.0)
    assert "another length" in said
    assert str(1 << 40) in said


def test_links_and_repeats_that_are_none_are_refused():
    given, task = smooth(2), Task(size=2, shape=SHAPE, bound=0.01)
    for wrong in ({"links": ()}, {"links": (-1.0,)}, {"links": (float("nan"),)}, {"links": (1e10,)}, {"repeats": 0}):
        with pytest.raises(BadValueError):
            sum_on_ranks(Ncclz(), given, task, **wrong)


def test_a_rank_that_refuses_its_numbers_ends_all_with_its_error():
    given = smooth(2)
    given[1] = np.full(given[1].size, np.nan, np.float32)
    with pytest.raises(WavetankError, match="failed"):
        sum_on_ranks(Ncclz(), given, Task(size=2, shape=SHAPE, bound=0.01), timeout_s=60.0)
    with pytest.raises(BadValueError, match="Each rank"):
        sum_on_ranks(Ncclz(), given, Task(size=3, shape=SHAPE, bound=0.01))
