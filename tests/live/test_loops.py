"""The event loop that clients and backends run on."""

import asyncio
import sys

from wavetank.live.loops import fastest_loop


def test_it_is_a_new_loop_that_runs():
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        assert runner.run(asyncio.sleep(0, "done")) == "done"
    loop = fastest_loop()
    try:
        assert not loop.is_running()
        assert not loop.is_closed()
    finally:
        loop.close()


def test_without_uvloop_it_is_the_loop_of_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = fastest_loop()
    try:
        assert type(loop).__module__.startswith("asyncio.")
    finally:
        loop.close()
