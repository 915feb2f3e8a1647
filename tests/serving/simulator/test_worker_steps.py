"""What workers do step by step, where batches are decided while the step before runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.platforms import FittedStepTime
from wavetank.serving import Cluster, RequestTrace, ServingRun, simulate
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.vllm_default import VLLMDefault

AHEAD = Cluster(
    workers=1, step_time=FittedStepTime(overhead_s=0.01), max_running=8, refresh_s=0.0, kv_watermark=0.0,
    scheduled_ahead=True,
)  # fmt: skip
PROMPT = dataclasses.replace(AHEAD, scheduled_ahead=False)


def served(
    arrivals: list[float], outputs: list[int], cluster: Cluster = AHEAD, router: object = VLLMDefault(), **limits: int
) -> ServingRun:
    trace = RequestTrace(arrival_s=arrivals, prompt_tokens=[10] * len(arrivals), output_tokens=outputs)
    return simulate(trace, dataclasses.replace(cluster, **limits), router)


def test_an_idle_engine_starts_at_once():
    assert served([0.0], [3]).first_token_s == pytest.approx([0.01])
    assert served([0.0, 1.0], [3, 3]).first_token_s == pytest.approx([0.01, 1.01])


@pytest.mark.parametrize("router", [VLLMDefault(), BalanceRoute(horizon_steps=0)])
def test_an_arrival_during_a_step_finds_the_next_one_decided(router):
    # Steps end every 10 ms; the second request arrives in the second step and runs in the fourth.
    assert served([0.0, 0.015], [9, 9], router=router).first_token_s == pytest.approx([0.01, 0.04])
    assert served([0.0, 0.015], [9, 9], PROMPT, router).first_token_s == pytest.approx([0.01, 0.03])


def test_a_slot_that_a_request_gives_back_is_seen_a_step_late():
    # The first request ends at 30 ms; the third takes its slot in the step from 40 ms on, not in the one from 30 ms on.
    arrivals, outputs = [0.0, 0.0, 0.001], [3, 20, 5]
    assert served(arrivals, outputs, PROMPT, max_running=2).first_token_s == pytest.approx([0.01, 0.01, 0.04])
    assert served(arrivals, outputs, max_running=2).first_token_s == pytest.approx([0.01, 0.01, 0.05])


def test_the_kv_cache_of_who_left_is_seen_at_once():
    # 12 tokens each: two do not fit beside each other, and the second has waited since long before the first ends.
    assert served([0.0, 0.001], [3, 3], kv_capacity_tokens=20).first_token_s == pytest.approx([0.01, 0.04])


def test_a_group_decides_ahead_as_long_as_any_of_its_workers_runs():
    # The second request goes to the idle worker of the group, which takes part in the steps of the other.
    found = served([0.0, 0.015], [9, 9], workers=2, group_size=2)
    assert found.worker.tolist() == [0, 1]
    assert found.first_token_s == pytest.approx([0.01, 0.04])
    # Independent replicas know nothing of each other.
    assert served([0.0, 0.015], [9, 9], workers=2).first_token_s == pytest.approx([0.01, 0.025])


@given(
    gaps=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=30),
    outputs=st.lists(st.integers(1, 30), min_size=30, max_size=30),
    slots=st.integers(1, 4),
)
def test_nobody_gains_from_it_on_a_lone_worker_and_slots_are_never_exceeded(gaps, outputs, slots):
    arrivals = np.cumsum(gaps).tolist()
    ahead = served(arrivals, outputs[: len(gaps)], max_running=slots)
    prompt = served(arrivals, outputs[: len(gaps)], PROMPT, max_running=slots)
    # Steps take the same time whatever is in them, so that only waiting differs.
    assert (ahead.first_token_s >= prompt.first_token_s - 1e-12).all()
    assert (np.diff(ahead.first_token_s) >= -1e-12).all()
    starts = np.concatenate([ahead.first_token_s - 0.01, ahead.finish_s])
    change = np.concatenate([np.ones(len(gaps)), -np.ones(len(gaps))])
    order = np.lexsort((change, np.round(starts, 9)))
    assert np.cumsum(change[order]).max() <= slots
