"""A worker that is stepped from outside keeps the simulator's times to the picosecond."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.proxy.batching import SteppedWorker
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.worker import Request
from wavetank.workloads import RequestTrace

PS = 10**12
STEP = FittedStepTime(overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-5)


def cluster(**limits: Any) -> Cluster:
    return Cluster(**{"workers": 1, "step_time": STEP, "max_running": 8, "max_batched_tokens": 64, **limits})


def asked(trace: RequestTrace) -> list[Request]:
    blocks: list[list[int]] = [[] for _ in range(len(trace))]
    if trace.block_ids is not None and trace.block_offsets is not None:
        ids, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
        blocks = [ids[start:stop] for start, stop in itertools.pairwise(offsets)]
    columns = (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), blocks)
    return [
        Request(number, round(arrival_s * PS), prompt, output, held)
        for number, (arrival_s, prompt, output, held) in enumerate(zip(*columns, strict=True))
    ]


def served(stepped: SteppedWorker, requests: list[Request]) -> list[tuple[int, int]]:
    """Drive a worker through simulated time; return (request, time) of every token."""
    tokens = []
    todo = list(requests)
    while todo or stepped.ends_ps >= 0:
        while todo and (stepped.ends_ps < 0 or todo[0].arrival_ps <= stepped.ends_ps):
            now_ps = todo[0].arrival_ps
            while todo and todo[0].arrival_ps == now_ps:
                stepped.arrive(todo.pop(0))
            stepped.start(now_ps)
        ended_ps = stepped.ends_ps
        tokens += [(request.number, ended_ps) for request in stepped.finish()]
    return tokens


@st.composite
def traces(draw: Any) -> RequestTrace:
    n = draw(st.integers(1, 25))
    gaps_s = draw(st.lists(st.sampled_from([0.0, 0.0007, 0.003, 0.1]), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 150), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    blocks: dict[str, Any] = {}
    if draw(st.booleans()):
        size = draw(st.integers(4, 40))
        ids: list[int] = []
        offsets = [0]
        for i, prompt in enumerate(prompts):
            count = -(-prompt // size)
            shared = draw(st.integers(0, count))
            ids += [*range(shared)] + [10_000 * (i + 1) + k for k in range(count - shared)]
            offsets.append(len(ids))
        blocks = {"block_ids": ids, "block_offsets": offsets, "block_tokens": size}
    return RequestTrace(arrival_s=np.cumsum(gaps_s), prompt_tokens=prompts, output_tokens=outputs, **blocks)


@given(traces(), st.integers(1, 12), st.sampled_from([190, 250, 1000, 100_000]), st.booleans())
def test_driven_through_simulated_time_it_gives_the_simulators_times(
    trace: RequestTrace, slots: int, capacity: int, caching: bool
) -> None:
    limits = cluster(max_running=slots, kv_capacity_tokens=capacity, prefix_caching=caching)
    expected = simulate_slowly(trace, limits, RoundRobin())
    stepped = SteppedWorker(limits, trace.block_tokens if caching and trace.block_ids is not None else 0)
    requests = asked(trace)
    tokens = served(stepped, requests)
    for name in ("first_ps", "finish_ps", "preemptions", "matched"):
        assert [getattr(request, name) for request in requests] == expected[name].tolist()
    assert stepped.steps == int(expected["steps"][0])
    # One token at a time, the last when it is finished.
    assert len(tokens) == int(trace.output_tokens.sum())
    for number, request in enumerate(requests):
        times = [time_ps for which, time_ps in tokens if which == number]
        assert len(set(times)) == len(times) == request.output
        assert (times[0], times[-1]) == (request.first_ps, request.finish_ps)


def test_who_comes_during_a_step_waits_for_its_end() -> None:
    stepped = SteppedWorker(cluster())
    first, second = Request(0, 0, 10, 5, []), Request(1, PS // 10_000, 10, 5, [])
    stepped.arrive(first)
    stepped.start(0)
    stepped.arrive(second)
    assert (stepped.waiting, stepped.waiting_tokens) == (1, 10)
    assert stepped.finish() == [first]
    assert stepped.waiting == 0
    assert stepped.finish() == [first, second]


def test_a_step_begins_where_the_last_one_ended_however_late_that_was_noticed() -> None:
    stepped = SteppedWorker(cluster())
    stepped.arrive(Request(0, 0, 10, 3, []))
    stepped.start(0)
    ends_ps = stepped.ends_ps
    # It comes after the step's end, but before anybody calls finish.
    late = Request(1, ends_ps + 1, 10, 1, [])
    stepped.arrive(late)
    stepped.finish()
    assert stepped.worker.queue == []
    assert stepped.waiting == 1
    # Three steps for the first; the late one joins the third.
    stepped.finish()
    assert stepped.finish()[-1] is late


def test_an_idle_worker_whose_end_nobody_noticed_starts_with_the_next_arrival() -> None:
    stepped = SteppedWorker(cluster())
    stepped.arrive(Request(0, 0, 10, 1, []))
    stepped.start(0)
    stepped.arrive(Request(1, PS, 10, 1, []))
    stepped.finish()
    assert stepped.ends_ps > PS
    assert [request.number for request in stepped.finish()] == [1]
    assert stepped.ends_ps < 0


def test_starting_a_step_that_is_in_progress_changes_nothing() -> None:
    stepped = SteppedWorker(cluster())
    stepped.start(5)
    assert (stepped.ends_ps, stepped.steps) == (-1, 0)
    stepped.arrive(Request(0, 10, 10, 1, []))
    stepped.start(10)
    ends_ps = stepped.ends_ps
    stepped.start(11)
    assert (stepped.ends_ps, stepped.steps) == (ends_ps, 1)


@given(traces(), st.data())
def test_whoever_is_aborted_leaves_no_kv_cache_behind(trace: RequestTrace, data: Any) -> None:
    caching = trace.block_ids is not None
    stepped = SteppedWorker(
        cluster(kv_capacity_tokens=250, prefix_caching=caching), trace.block_tokens if caching else 0
    )
    todo, there = asked(trace), []
    while todo or stepped.ends_ps >= 0:
        act = data.draw(st.sampled_from(["arrive", "finish", "abort"]))
        if act == "arrive" and todo:
            there.append(todo.pop(0))
            stepped.arrive(there[-1])
            stepped.start(there[-1].arrival_ps)
        elif act == "abort" and there:
            stepped.abort(there.pop(data.draw(st.integers(0, len(there) - 1))))
        elif stepped.ends_ps >= 0:
            stepped.finish()
            there = [request for request in there if request.finish_ps < 0]
        elif todo:
            there.append(todo.pop(0))
            stepped.arrive(there[-1])
            stepped.start(there[-1].arrival_ps)
    assert (stepped.worker.held, stepped.worker.private, stepped.waiting) == (0, 0, 0)
    assert not stepped.worker.running
    assert not (stepped.worker.store and stepped.worker.store.held)
