"""A wakeup comes once, never early, and not at all when it was forgotten."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from wavetank.live.loops import fastest_loop
from wavetank.serving.proxy import wakeups
from wavetank.serving.proxy.wakeups import Wakeup


@pytest.fixture(params=["the kernel's timer", "the loop's timer"])
def timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "the loop's timer":
        monkeypatch.setattr(wakeups, "_kernel_timer", lambda: (None, -1))


LOOPS = [asyncio.new_event_loop, fastest_loop]


def run(scenario: Callable[[], Any], loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.usefixtures("timer")
def test_it_comes_once_for_every_order_and_never_early(loop: Any) -> None:
    async def scenario() -> list[float]:
        early: list[float] = []
        fired = asyncio.Event()
        due_s = 0.0

        def called() -> None:
            early.append(due_s - time.monotonic())
            fired.set()

        wakeup = Wakeup(called)
        for wait_s in (0.0003, 0.0017, 0.004, 0.0101, 0.0, -1.0):
            fired.clear()
            due_s = time.monotonic() + wait_s
            wakeup.at(due_s)
            await fired.wait()
        await asyncio.sleep(0.02)
        wakeup.close()
        return early

    early = run(scenario, loop)
    assert len(early) == 6
    assert max(early) <= 0


def test_on_linux_the_kernel_keeps_the_time() -> None:
    library, timer = wakeups._kernel_timer()
    assert ((library is not None), timer >= 0) == (sys.platform == "linux",) * 2
    if timer >= 0:
        os.close(timer)


@pytest.mark.usefixtures("timer")
def test_a_later_order_replaces_the_earlier_and_a_forgotten_one_never_comes() -> None:
    async def scenario() -> list[float]:
        came: list[float] = []
        wakeup = Wakeup(lambda: came.append(time.monotonic()))
        wakeup.at(time.monotonic() + 0.001)
        due_s = time.monotonic() + 0.03
        wakeup.at(due_s)
        await asyncio.sleep(0.06)
        late = [at_s - due_s for at_s in came]
        wakeup.at(time.monotonic() + 0.001)
        wakeup.cancel()
        await asyncio.sleep(0.01)
        wakeup.at(time.monotonic() - 1)
        wakeup.close()
        await asyncio.sleep(0.01)
        return [*late, len(came)]

    late_s, count = run(scenario)
    assert late_s >= 0
    assert count == 1


def test_one_that_is_closed_gives_its_file_back() -> None:
    async def scenario() -> None:
        for _ in range(2000):
            wakeup = Wakeup(lambda: None)
            wakeup.at(time.monotonic() + 60)
            wakeup.close()
            wakeup.close()

    # Far more than a process may have open at once on most systems.
    run(scenario)
