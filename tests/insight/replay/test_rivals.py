"""What rivals say of a changed step, by hand."""

import pytest

from wavetank.insight.replay.interface import CollectedStep
from wavetank.insight.replay.rivals import ClosedFormReplay, RecordedDurations
from wavetank.workloads.chakra_writing import made_node, made_trace


def rank(work, took):
    call = {"comm_type": 0, "comm_size": 8, "pg_name": "0"}
    return made_trace(
        [
            made_node(0, "mm", "compute", duration_ns=work),
            made_node(1, "sum", "collective", after=[0], duration_ns=took, attributes=call),
        ]
    )


STEP = CollectedStep([rank(1_000_000, 8_000_000), rank(7_000_000, 2_000_000)], 0.009)


def test_the_recorded_length_takes_every_delay():
    assert RecordedDurations().step_s(STEP, 0, 0.0) == 0.009
    assert RecordedDurations().step_s(STEP, 0, 0.004) == RecordedDurations().step_s(STEP, 1, 0.004) == 0.013


def test_the_sum_is_that_of_the_busiest_rank_and_the_shortest_collectives():
    form = ClosedFormReplay()
    assert form.step_s(STEP, 0, 0.0) == pytest.approx(0.009)
    assert form.step_s(STEP, 0, 0.004) == pytest.approx(0.009)
    assert form.step_s(STEP, 0, 0.008) == pytest.approx(0.011)
    assert form.step_s(STEP, 1, 0.004) == pytest.approx(0.013)
