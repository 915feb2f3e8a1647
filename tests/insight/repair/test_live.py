"""The rig: real processes that are gone afterwards, faults that move what they should, repairs that are executed."""

import asyncio
import os
from pathlib import Path

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.repair import live
from wavetank.insight.repair.interface import ACTIONS, FAULTS, READINGS
from wavetank.insight.repair.live import NONE, Rig, outcomes, running

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no /proc/self/schedstat here")

QUICK = Rig(rate_per_s=40.0, window_s=0.15, settle_s=0.1, healthy=2, neighbours=1)


def children():
    own, found = str(os.getpid()), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if words[1] == own and words[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_nothing_is_left_behind_when_a_run_is_broken_off():
    before = children()

    async def broken_off():
        async with running(QUICK) as work:
            await work.strike(FAULTS.index("cpu-contention"))
            assert len(children()) == len(before) + 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(broken_off())
    assert children() == before


@pytest.mark.slow
def test_every_action_is_executed_on_every_fault_and_all_processes_are_gone(monkeypatch):
    monkeypatch.setattr(live, "BUSY", 1e9)
    before = children()
    try:
        found = outcomes(QUICK, range(len(FAULTS)), (NONE, *range(len(ACTIONS))))
    except WavetankError as error:
        pytest.skip(f"too busy: {error}")
    assert children() == before
    assert [(each.fault, each.action) for each in found] == [(f, a) for f in range(3) for a in (NONE, 0, 1, 2)]
    leaks = [each.before.readings[READINGS.index("rss_slope")] for each in found if each.fault == 1]
    others = [each.before.readings[READINGS.index("rss_slope")] for each in found if each.fault != 1]
    assert max(leaks) > max(others)
    lost = READINGS.index("retransmits")
    narrow = [each.before.readings[lost] for each in found if each.fault == FAULTS.index("congestion")]
    assert max(narrow) > 0
    assert all(each.before.readings[lost] == 0 for each in found if each.fault != FAULTS.index("congestion"))


def test_a_narrow_link_loses_what_its_queue_cannot_hold():
    async def lost():
        async with running(QUICK) as work:
            work.link = 8192.0
            await asyncio.gather(*(work._request() for _ in range(10)))
            return work.lost

    assert asyncio.run(lost()) > 0


def test_a_machine_that_is_busy_is_refused(monkeypatch):
    monkeypatch.setattr(live, "BUSY", -1.0)
    before = children()
    with pytest.raises(WavetankError, match="too busy"):
        outcomes(QUICK, [0], [NONE])
    assert children() == before


def test_impossible_rigs_are_refused():
    for bad in ({"rate_per_s": 0.0}, {"window_s": float("nan")}, {"healthy": 0}, {"neighbours": -1}):
        with pytest.raises(BadValueError):
            Rig(**bad)
