"""A worker alone: what enters a step, what leaves, what is given up."""

from __future__ import annotations

from typing import Any

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.worker import Request, Worker, step_of

STEP = FittedStepTime(
    overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-5, per_prefill_pair_s=1e-9
)


def worker(block_tokens: int = 0, **limits: Any) -> Worker:
    limits = {"workers": 1, "step_time": STEP, "max_running": 8, "max_batched_tokens": 64, **limits}
    return Worker(Cluster(**limits), block_tokens)


def request(number: int, prompt: int = 10, output: int = 3, blocks: tuple[int, ...] = ()) -> Request:
    return Request(number, 0, prompt, output, list(blocks))


def test_a_step_takes_what_the_step_time_says_of_its_batch() -> None:
    one = worker()
    one.queue += [request(0, prompt=10), request(1, prompt=20)]
    # 30 prompt tokens, 55 + 210 causal pairs.
    assert step_of([one], one.cluster) == round((1e-3 + 30 * 1e-5 + 265 * 1e-9) * 1e12)
    one.finish_step(1)
    # Two decode; each reads its prompt (its newest token is computed in this step).
    assert one.context == 30
    assert step_of([one], one.cluster) == round((1e-3 + 2e-4 + 30e-6) * 1e12)


def test_workers_that_step_together_wait_for_the_slowest_and_the_barrier() -> None:
    small, large = worker(sync_s=1e-3), worker(sync_s=1e-3)
    small.queue.append(request(0, prompt=1))
    large.queue.append(request(1, prompt=60))
    alone = worker()
    alone.queue.append(request(2, prompt=60))
    assert step_of([small, large], small.cluster) == step_of([alone], alone.cluster) + 10**9


def test_a_prompt_longer_than_the_budget_is_cut_into_chunks() -> None:
    one = worker(max_batched_tokens=16, max_running=4)
    long = request(0, prompt=40, output=1)
    one.queue.append(long)
    assert [one.plan(False), one.plan(False), one.plan(False)] == [(16, 136), (16, 392), (8, 292)]
    one.finish_step(7)
    assert (long.first_ps, long.finish_ps, one.held) == (7, 7, 0)


def test_admission_stops_at_the_slots_and_where_the_cache_has_no_room() -> None:
    crowded = worker(max_running=2)
    crowded.queue += [request(i, prompt=5) for i in range(4)]
    crowded.plan(False)
    assert (len(crowded.running), len(crowded.queue)) == (2, 2)
    full = worker(kv_capacity_tokens=100, kv_watermark=0.0, max_batched_tokens=500)
    full.queue += [request(0, prompt=60), request(1, prompt=41), request(2, prompt=1)]
    full.plan(False)
    # First come, first served: the third would fit and waits behind the second.
    assert ([r.number for r in full.running], [r.number for r in full.queue], full.held) == ([0], [1, 2], 60)


def test_the_youngest_gives_up_its_cache_when_there_is_none_left_and_goes_first_again() -> None:
    one = worker(kv_capacity_tokens=22, kv_watermark=0.0)
    first, second = request(0, prompt=10, output=10), request(1, prompt=10, output=10)
    one.queue += [first, second]
    one.plan(False)
    one.finish_step(1)
    one.plan(False)
    one.finish_step(2)
    one.plan(False)
    assert (second.preemptions, second.decodes, one.queue, one.running) == (1, False, [second], [first])
    assert one.held == first.resident == 11


def test_full_blocks_of_a_prefix_are_found_again_and_the_last_token_is_always_computed() -> None:
    one = worker(block_tokens=4, prefix_caching=True)
    one.queue.append(request(0, prompt=12, output=1, blocks=(1, 2, 3)))
    assert one.plan(False)[0] == 12
    one.finish_step(1)
    again = request(1, prompt=12, output=1, blocks=(1, 2, 3))
    one.queue.append(again)
    assert one.plan(False)[0] == 4
    assert again.matched == 8


def test_what_is_aborted_leaves_wherever_it_is() -> None:
    one = worker(max_running=2, max_batched_tokens=16)
    waiting, decoding, cut = request(2), request(0, prompt=5, output=9), request(1, prompt=30)
    one.queue += [decoding, cut, waiting]
    one.plan(False)
    one.finish_step(1)
    one.plan(False)
    assert (one.running, one.queue) == ([decoding, cut], [waiting])
    assert one.abort(waiting)
    assert one.abort(cut)
    assert one.abort(decoding)
    assert not one.abort(decoding)
    assert (one.held, one.queue, one.running, one.ending) == (0, [], [], [])
    # A prompt that would have ended with the step in progress gives no token.
    ending = request(3, prompt=4)
    one.queue.append(ending)
    one.plan(False)
    assert one.ending == [ending]
    one.abort(ending)
    one.finish_step(2)
    assert (ending.generated, ending.first_ps) == (0, -1)
