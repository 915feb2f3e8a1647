"""What runs for ever goes on after a defect, and ends when it is cancelled."""

from __future__ import annotations

import asyncio
import logging

import pytest

from wavetank.serving.proxy import tasks


def test_work_begins_anew_after_a_defect_and_after_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.0)

    async def main() -> int:
        begun = 0
        there = asyncio.Event()

        async def work() -> None:
            nonlocal begun
            begun += 1
            if begun < 3:
                raise RuntimeError("broken")
            if begun > 3:
                there.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(tasks.kept_up("the work", work))
        await there.wait()
        assert task.get_name() == "the work"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return begun

    caplog.set_level(logging.ERROR)
    assert asyncio.run(main()) == 4
    assert caplog.text.count("a defect of the router, in the work") == 2
