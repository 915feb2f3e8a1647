"""Real processes send the same bytes and have the same sums as ranks that take turns in one process."""

import sys

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.training.compression.frames import Speeds
from wavetank.training.compression.interface import Task
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.ring import play

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.training.compression.live import sum_on_ranks

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
    from wavetank.training.compression.rivals import PlainRing

    (_, sent, seconds), _ = sum_on_ranks(PlainRing(), given, task, links=(4e6, 0.0))
    assert sent == [1_000_000, 1_000_000]
    assert seconds[0][0] > 0.15
    assert seconds[1][0] < seconds[0][0]


def test_a_rank_that_refuses_its_numbers_ends_all_with_its_error():
    given = smooth(2)
    given[1] = np.full(given[1].size, np.nan, np.float32)
    with pytest.raises(WavetankError, match="failed"):
        sum_on_ranks(Ncclz(), given, Task(size=2, shape=SHAPE, bound=0.01), timeout_s=60.0)
    with pytest.raises(BadValueError, match="Each rank"):
        sum_on_ranks(Ncclz(), given, Task(size=3, shape=SHAPE, bound=0.01))
