"""Prompts on simulated workers: their order, their arrivals, and what a rule is worth there."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse.interface import Prompt, Workload
from wavetank.serving.reuse.irminsul import Irminsul
from wavetank.serving.reuse.rivals import NoReuse, RadixCache
from wavetank.serving.reuse.workers import arriving, in_turns, serve_on_workers
from wavetank.serving.reuse.workload import Edits, edited, same_prompts
from wavetank.workloads import RequestTrace


def test_conversations_that_follow_one_another_in_a_file_go_side_by_side() -> None:
    prompts = [Prompt(np.array([k], np.uint32), 1, session) for k, session in enumerate((5, 5, 5, 2, 2))]
    assert [int(each.ids[0]) for each in in_turns(Workload(prompts)).prompts] == [0, 3, 1, 4, 2]


@pytest.fixture(name="arrivals")
def _arrivals(monkeypatch: pytest.MonkeyPatch) -> RequestTrace:
    outputs = np.arange(12) + 1
    trace = RequestTrace(arrival_s=3.0 + 0.5 * np.arange(12), prompt_tokens=np.full(12, 7), output_tokens=outputs)
    monkeypatch.setattr("wavetank.serving.reuse.workers.read_trace", lambda name: trace)
    return trace


def test_requests_come_and_answer_as_those_of_the_trace(arrivals: RequestTrace) -> None:
    workload = same_prompts(0, sessions=2, turns=3, tokens=40)
    requests = arriving(workload, "somewhere", 2.0)
    assert requests.arrival_s.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert requests.output_tokens.tolist() == arrivals.output_tokens[:6].tolist()
    assert (requests.prompt_tokens == 40).all()
    # Blocks of 16 tokens, by which routers know a prompt that comes back.
    assert requests.block_ids is not None
    pairs = requests.block_ids.reshape(6, 2).tolist()
    assert pairs[:3] == [pairs[0]] * 3
    assert not set(pairs[0]) & set(pairs[3])
    assert requests.n_blocks == 4
    with pytest.raises(BadValueError, match="13 prompts"):
        arriving(same_prompts(0, sessions=1, turns=13, tokens=4), "somewhere", 1.0)


@pytest.mark.usefixtures("arrivals")
def test_what_is_found_behind_an_edit_shortens_the_time_to_the_first_token() -> None:
    workload = edited(same_prompts(1, sessions=2, turns=6, tokens=6_000), Edits(tokens=5, at=0.3), 1)
    requests = arriving(workload, "somewhere", 1.0)
    runs = [
        serve_on_workers(rule, workload, requests, workers=1, tokens=100_000, shared=True, router="round-robin")
        for rule in (NoReuse(), RadixCache(), Irminsul())
    ]
    shares = [run.matched_tokens.sum() / run.prompt_tokens.sum() for run in runs]
    assert shares[0] == 0
    assert 0.15 < shares[1] < 0.4
    assert shares[2] > 0.7
    times = [run.metrics()["ttft_mean_s"] for run in runs]
    assert times == sorted(times, reverse=True)
    # Every prompt is the tokens of these three kinds.
    counted = runs[2].matched_tokens + runs[2].recomputed_tokens + runs[2].computed_tokens
    assert (counted == runs[2].prompt_tokens).all()
