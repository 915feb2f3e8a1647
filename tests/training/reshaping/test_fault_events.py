"""Faults of single GPUs: as drawn, as recorded, and damaged files."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.rng import stream
from wavetank.training.reshaping.fault_events import Event, drawn_events, recorded_events, slow_share_of_trace

DRAWN = {"every_s": 10.0, "horizon_s": 100.0, "slow_share": 0.5, "losses": (0.25,), "repair_s": math.inf}


def drawn(seed=0, devices=64, **more):
    return drawn_events(devices, **{**DRAWN, **more}, draws=stream(seed, "test"))


def test_faults_come_at_regular_times_each_on_a_device_that_was_well():
    events = drawn()
    assert [each.time_s for each in events] == [10.0 * k for k in range(1, 10)]
    assert len({each.device for each in events}) == 9
    assert {each.speed for each in events} == {0.0, 0.75}
    assert events == drawn() != drawn(seed=1)


def test_all_faults_kill_or_all_slow():
    assert {each.speed for each in drawn(slow_share=0.0)} == {0.0}
    assert {each.speed for each in drawn(slow_share=1.0, losses=(0.1, 0.5))} == {0.9, 0.5}


def test_repaired_devices_come_back_and_may_fail_again():
    events = drawn(repair_s=15.0, devices=2)
    assert Event(25.0, events[0].device, 1.0) in events
    assert list(events) == sorted(events)
    # With both away nobody is left to fail.
    assert len(drawn(devices=2)) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"every_s": 0.0}, {"horizon_s": math.inf}, {"slow_share": 1.5}, {"repair_s": 0.0}, {"losses": ()},
     {"losses": (1.0,)}, {"slow_share": math.nan}],
)  # fmt: skip
def test_faults_that_there_cannot_be_are_refused(wrong):
    with pytest.raises(BadValueError):
        drawn(**wrong)


def row(node, day, kind, name):
    return {"node_id": node, "event_time": day, "event_type": kind, "fault_type": {"Class": name}}


@pytest.fixture
def trace(tmp_path):
    rows = [
        row("a", 1.0, "fault_start", "GPU"), row("a", 2.0, "fault_end", "GPU"),
        row("b", 3.0, "fault_start", "Fan"), row("b", 4.0, "fault_end", "Fan"),
        row("c", 9.0, "fault_start", "NIC"), row("c", 10.0, "fault_end", "NIC"),
        row("d", 5.0, "fault_start", "CPU"),
    ]  # fmt: skip
    (tmp_path / "fault_trace.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    return tmp_path


def test_classes_of_the_trace_say_how_often_a_server_is_only_slow(trace):
    assert slow_share_of_trace(trace) == 0.5


def test_recorded_faults_strike_one_gpu_of_their_server(trace):
    events, end_s = recorded_events(3200, faster=10.0, slow_share=0.0, losses=(0.5,), days=10.0,
                                    draws=stream(0, "test"), folder=trace)  # fmt: skip
    assert end_s == 86_400.0
    starts = [each for each in events if each.speed == 0.0]
    assert [each.time_s for each in starts] == [8640.0, 3 * 8640.0, 5 * 8640.0, 9 * 8640.0]
    assert len({each.device // 8 for each in starts}) == 4
    backs = {each.device: each.time_s for each in events if each.speed == 1.0}
    # The last one is back when the run is over, the fourth never.
    assert backs == {starts[0].device: 2 * 8640.0, starts[1].device: 4 * 8640.0}
    slow, _ = recorded_events(3200, faster=10.0, slow_share=1.0, losses=(0.5,), days=10.0, draws=stream(0, "test"),
                              folder=trace)  # fmt: skip
    assert {each.speed for each in slow} == {0.5, 1.0}


@pytest.mark.parametrize("content", [b"nothing", gzip.compress(b"[{}]"), gzip.compress(b"[]")])
def test_a_damaged_trace_is_refused(tmp_path, content):
    (tmp_path / "fault_trace.json.gz").write_bytes(content)
    with pytest.raises(BadFileError, match="trace"):
        slow_share_of_trace(tmp_path)
