"""Real processes that train: StepWatch names the one that is slowed down, and predicts steps from their lengths."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.ranks import Event, Fault, Ranks
from wavetank.training.failures.trainer import Alone
from wavetank.training.reshaping import live
from wavetank.training.reshaping.live import Stopwatch, lengths_of, train_watched, watch
from wavetank.training.reshaping.step_watch import StepWatch

ARGUMENTS = {"steps": 60, "microbatches": 4, "tokens": 256}


@pytest.mark.parametrize("slowed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_rank_that_is_slowed_down_is_named(slowed):
    watching = StepWatch(window=20).start(0.0, 0.0)
    named: list[int] = []
    # Much longer than a step, so that other work on this machine does not decide.
    faults = [
        Fault(rank=slowed, point="microbatch", at={"step": step}, kind="sleep", seconds=1.0) for step in range(25, 60)
    ]
    with Ranks(train_watched, 2, arguments=ARGUMENTS, faults=faults, timeout_s=60.0) as ranks:
        for each in watch(ranks, watching, timeout_s=300.0):
            if each.number >= 29 and each.alarm is not None:
                named.append(each.alarm.replica)
            if len(named) == 5:
                break
    assert named == [slowed] * 5


def test_real_steps_are_predicted_from_their_lengths(monkeypatch):
    """In time of this process, which other work does not lengthen."""
    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=time.process_time))

    class Here(Alone):
        size = 1

        def __init__(self):
            self.outcome = []

        def report(self, value):
            self.outcome.append(Event(0, "reported", value, 0.0))

        def events(self, timeout_s):
            return iter(self.outcome)

    here = Here()
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_watched(here, steps=40, microbatches=2, tokens=1024)
    finally:
        torch.set_num_threads(threads)
    # Nothing is an alarm, so that everything is learned.
    found = list(watch(here, StepWatch(window=40, least=1e9).start(0.0, 0.0), timeout_s=1.0))
    assert [each.number for each in found] == list(range(40))
    assert all(0 < each.seen.busy_s[0, 0] < each.seen.step_s for each in found)
    steps = np.array([each.seen.step_s for each in found])
    predicted = np.array([each.predicted_s for each in found])[20:]
    error = np.mean(np.abs(predicted / steps[20:] - 1))
    middle = np.mean(np.abs(np.median(steps[:20]) / steps[20:] - 1))
    # The time of steps follows their lengths: the median of the steps before is no prediction.
    assert error < 0.15
    assert error < 0.6 * middle


def test_lengths_sum_to_the_tokens_and_belong_to_the_micro_batch():
    assert all(sum(lengths_of(number, 512)) == 512 for number in range(50))
    assert lengths_of(3, 512) == lengths_of(3, 512) != lengths_of(4, 512)
    assert max(max(lengths_of(number, 512)) for number in range(50)) > 256
    assert sum(lengths_of(0, 5)) == 5


def test_ranks_with_unequal_shares_and_ranks_that_die_are_named():
    watching = StepWatch().start(0.0, 0.0)
    unequal = {**ARGUMENTS, "microbatches": 3}
    with (
        Ranks(train_watched, 2, arguments=unequal, timeout_s=30.0) as ranks,
        pytest.raises(BadValueError, match="equally many"),
    ):
        list(watch(ranks, watching, timeout_s=120.0))
    fault = Fault(rank=1, point="microbatch", at={"step": 2})
    with (
        Ranks(train_watched, 2, arguments=ARGUMENTS, faults=[fault], timeout_s=30.0) as ranks,
        pytest.raises(WavetankError, match="Rank 1 died"),
    ):
        list(watch(ranks, watching, timeout_s=120.0))


def test_a_stopwatch_passes_everything_on_and_times_what_is_between():
    class Rank:
        number, members = 3, (1, 3)

        def __init__(self):
            self.calls = []

        def point(self, name, **at):
            self.calls.append((name, at))

        def all_reduce(self, tensor, **at):
            self.calls.append((tensor, at))

        def agree(self, well):
            return well

    rank = Rank()
    group = Stopwatch(rank)
    assert (group.number, group.members, group.busy_s) == (3, (1, 3), 0.0)
    group.point("microbatch", step=0)
    group.all_reduce("bucket", step=0)
    first = group.busy_s
    group.point("microbatch", step=0)
    group.all_reduce("other", step=0)
    assert group.busy_s == first > 0
    assert [name for name, _ in rank.calls] == ["microbatch", "bucket", "microbatch", "other"]
    assert {tuple(at.items()) for _, at in rank.calls} == {(("step", 0),)}
    assert group.agree(True) is True
    group.restart()
    assert group.busy_s == 0.0
