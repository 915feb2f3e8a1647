"""Planted traces: what is hidden is what was asked for, and every trap is in them."""

import json

import pytest

from wavetank.insight.metrics.planted import OVERLAPS, planted


@pytest.mark.parametrize("percent", [*OVERLAPS, 25])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_counted_overlap_is_the_planted_one(percent, seed):
    assert planted(percent, seed).truth["compute_comm_overlap"] == percent / 100


def test_truth_is_consistent_and_of_the_seed():
    one, again, other = planted(50, 3), planted(50, 3), planted(50, 4)
    assert one.events == again.events
    assert one.truth != other.truth
    assert 0 < one.truth["idle_fraction"] < 1 - one.truth["compute_fraction"]


def test_traps_are_in_the_trace(tmp_path):
    made = planted(100, 0)
    kinds = [each["cat"] for each in made.events]
    assert {"kernel", "gpu_memcpy", "cpu_op"} == set(kinds)
    lanes = {each["args"].get("stream") for each in made.events if each["cat"] == "kernel"}
    assert len(lanes) == 4
    times = [each["ts"] for each in made.events]
    assert times != sorted(times)
    assert json.loads(made.write(tmp_path / "a.json").read_text())["traceEvents"] == made.events
