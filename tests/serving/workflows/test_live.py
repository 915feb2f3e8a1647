"""Real processes under the same schedulers: what they keep is what was simulated, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.workflows import live
from wavetank.serving.workflows.dispatcher import Dispatcher
from wavetank.serving.workflows.live import run_live
from wavetank.serving.workflows.rivals import LeastCost, RoundRobin
from wavetank.serving.workflows.simulate import simulate

CHAIN = application(tuple((i - 1,) if i else () for i in range(6)), (1.0,) * 6, models=("a", "b") * 3)
DEVICES = platform((1.0, 1.0, 1.0), load_s=2.0)


@pytest.mark.parametrize("scheduler", [RoundRobin(), LeastCost()], ids=lambda each: type(each).__name__)
def test_processes_load_and_keep_what_was_simulated_and_take_at_least_as_long(scheduler):
    """A chain leaves no choice to how fast the processes of a busy machine are."""
    expected = simulate([CHAIN], DEVICES, scheduler)
    found = run_live([CHAIN], Dispatcher(platform=DEVICES, scheduler=scheduler), speed=20.0)
    assert [each.key for each in found.stages] == [each.key for each in expected.stages]
    assert [each.devices for each in found.stages] == [each.devices for each in expected.stages]
    assert [each.loads for each in found.stages] == [each.loads for each in expected.stages]
    assert found.load_s == pytest.approx(expected.load_s)
    assert found.makespan_s >= expected.makespan_s - 1e-6


def test_a_process_that_dies_ends_the_run_with_its_name_and_leaves_no_other(monkeypatch):
    children: list[int] = []
    real = live.ChildProcess

    def kept(*arguments, **more):
        child = real(*arguments, **more)
        children.append(child.pid)
        return child

    monkeypatch.setattr(live, "ChildProcess", kept)

    def kill():
        while len(children) < 3:
            time.sleep(0.01)
        time.sleep(1.0)
        os.kill(children[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(WavetankError, match="has ended"):
        # 72 s of work at a tenth of the speed that it would need to be over before the signal.
        run_live([CHAIN], Dispatcher(platform=DEVICES, scheduler=RoundRobin()), speed=0.5)
    thread.join()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_that_keeps_something_else_is_found_out(monkeypatch):
    real = live._compare

    def other(books, begun, place, answer):
        real(books, begun, place, {**answer, "loaded": not answer["loaded"]})

    monkeypatch.setattr(live, "_compare", other)
    with pytest.raises(WavetankError, match="keeps something else"):
        run_live([CHAIN], Dispatcher(platform=DEVICES, scheduler=RoundRobin()), speed=50.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf")])
def test_speeds_without_meaning_are_refused(speed):
    with pytest.raises(BadValueError):
        run_live([CHAIN], Dispatcher(platform=DEVICES, scheduler=RoundRobin()), speed=speed)
