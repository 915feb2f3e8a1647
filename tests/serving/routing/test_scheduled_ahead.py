from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.platforms import FittedStepTime
from wavetank.serving import Cluster, RequestTrace, ServingRun, simulate
from wavetank.serving.routing.scheduled_ahead import ScheduledAhead
from wavetank.serving.routing.vllm_default import VLLMDefault

STEP = FittedStepTime(overhead_s=0.01)


def served(
    arrivals: list[float], outputs: list[int], router: object, *, workers: int = 1, max_running: int = 8
) -> ServingRun:
    trace = RequestTrace(
        arrival_s=np.array(arrivals), prompt_tokens=np.full(len(arrivals), 10), output_tokens=np.array(outputs)
    )
    cluster = Cluster(
        workers=workers, group_size=workers, step_time=STEP, max_running=max_running, refresh_s=0.0, kv_watermark=0.0
    )
    return simulate(trace, cluster, router)


def test_an_idle_engine_starts_at_once() -> None:
    assert served([0.0], [3], ScheduledAhead()).first_token_s == pytest.approx([0.01])


def test_an_arrival_during_a_step_finds_the_next_one_decided() -> None:
    # Steps end every 10 ms; the second request arrives in the second step and runs in the fourth.
    assert served([0.0, 0.015], [9, 9], ScheduledAhead()).first_token_s == pytest.approx([0.01, 0.04])
    assert served([0.0, 0.015], [9, 9], ScheduledAhead(ahead=False)).first_token_s == pytest.approx([0.01, 0.03])
    assert served([0.0, 0.015], [9, 9], VLLMDefault()).first_token_s == pytest.approx([0.01, 0.03])


def test_a_slot_that_a_request_gives_back_is_seen_a_step_late() -> None:
    # The first request ends at 30 ms; the third takes its slot in the step from 40 ms on, not in the one from 30 ms on.
    arrivals, outputs = [0.0, 0.0, 0.001], [3, 20, 5]
    ahead = served(arrivals, outputs, ScheduledAhead(), max_running=2)
    prompt = served(arrivals, outputs, VLLMDefault(), max_running=2)
    assert prompt.first_token_s == pytest.approx([0.01, 0.01, 0.04])
    assert ahead.first_token_s == pytest.approx([0.01, 0.01, 0.05])


def test_requests_go_to_the_engine_of_the_group_with_the_fewest() -> None:
    run = served([0.0, 0.0, 0.0, 0.0], [9] * 4, ScheduledAhead(), workers=2)
    assert sorted(run.worker.tolist()) == [0, 0, 1, 1]


def test_equal_parameters_mean_equal_routers() -> None:
    assert ScheduledAhead() == ScheduledAhead(ahead=True, waiting_weight=4.0)
    assert ScheduledAhead(ahead=False).parameters().tolist() == [0.0, 4.0]
    assert ScheduledAhead().initial_state(3).tolist() == [0.0] * 6


@given(
    gaps=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=30),
    outputs=st.lists(st.integers(1, 30), min_size=30, max_size=30),
    workers=st.integers(1, 3),
    slots=st.integers(1, 4),
)
def test_everything_is_served_in_order_and_never_sooner_than_at_the_boundary(
    gaps: list[float], outputs: list[int], workers: int, slots: int
) -> None:
    arrivals = np.cumsum(gaps).tolist()
    run = served(arrivals, outputs[: len(gaps)], ScheduledAhead(), workers=workers, max_running=slots)
    assert (run.finish_s >= run.first_token_s).all()
    # One pool, first come first served.
    assert (np.diff(run.first_token_s) >= -1e-12).all()
    assert (run.ttft_s >= 0.01 - 1e-12).all()
    starts = np.concatenate([run.first_token_s - 0.01, run.finish_s])
    change = np.concatenate([np.ones(len(gaps)), -np.ones(len(gaps))])
    order = np.lexsort((change, np.round(starts, 9)))
    assert np.cumsum(change[order]).max() <= workers * slots
