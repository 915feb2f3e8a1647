"""Mechanism of the compiled simulator: the closed form of a phase and the heap of finishing steps."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator import core, tables, worker_steps
from wavetank.serving.simulator.asked import asked_of
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import rules_of, simulate
from wavetank.serving.simulator.tables import DOMAIN, FINE, NEVER, PHASES, PREEMPTIONS, PS, make_tables
from wavetank.sim.lent import words
from wavetank.workloads import RequestTrace


@njit
def steps_until(domain, when_ps):
    return worker_steps._steps_until(domain, when_ps)


@njit
def steps_done(domain, when_ps):
    return worker_steps.steps_done(domain, when_ps)


@njit
def duration(domain, steps):
    return worker_steps._duration(domain, steps)


@njit
def cut_phase(domain, when_ps):
    worker_steps.cut_phase(domain, when_ps)


@njit
def push(heap, size, key):
    return tables._push(heap, size, key)


@njit
def pop(heap, size):
    return tables.pop(heap, size)


@njit
def live_top(t, d):
    return tables.live_top(t, d)


@njit
def schedule_finish(t, d, r):
    tables.schedule_finish(t, d, r)


def phase(first_ps, growth_ps, steps, now_ps=0):
    """Return a domain within a planned phase."""
    domain = np.zeros(1, DOMAIN)[0]
    domain["now_ps"], domain["first_ps"], domain["growth_ps"] = now_ps, first_ps, growth_ps
    domain["phase_steps"], domain["planned"] = steps, 1
    domain["phase_end_ps"] = now_ps + duration(domain, steps)
    return domain


class TestClosedForm:
    @given(st.integers(1, 10**12), st.integers(0, 10**9), st.integers(0, 300))
    def test_a_phase_takes_as_long_as_its_steps_one_by_one(self, first_ps, growth_ps, steps):
        one_by_one = sum(first_ps + i * growth_ps for i in range(steps))
        assert duration(phase(first_ps, growth_ps, 1), steps) == one_by_one

    @given(
        st.integers(1, 10**11),
        st.integers(0, 10**8),
        st.integers(1, 2000),
        st.sampled_from([-1, 0, 1]),
        st.integers(0, 10**18),
    )
    def test_the_first_boundary_at_or_after_a_time_is_found_exactly(self, first_ps, growth_ps, steps, beside, now_ps):
        domain = phase(first_ps, growth_ps, 4000, now_ps)
        boundary_ps = now_ps + duration(domain, steps)
        found = steps_until(domain, boundary_ps + beside)
        assert found >= 1
        assert now_ps + duration(domain, found) >= boundary_ps + beside
        assert found == 1 or now_ps + duration(domain, found - 1) < boundary_ps + beside

    @pytest.mark.parametrize(("first_ps", "growth_ps"), [(10**9, 10**4), (10**9, 0), (1, 1), (10**6, 3)])
    def test_it_is_found_in_phases_of_a_million_steps(self, first_ps, growth_ps):
        domain = phase(first_ps, growth_ps, 2 * 10**6)
        for steps in (10**6 - 1, 10**6, 10**6 + 1):
            assert steps_until(domain, duration(domain, steps)) == steps
            assert steps_until(domain, duration(domain, steps) + 1) == steps + 1

    def test_a_time_before_the_phase_is_answered_with_its_first_boundary(self):
        assert steps_until(phase(100, 1, 50, now_ps=1000), 5) == 1

    @given(st.integers(2, 10**6), st.integers(0, 1000), st.integers(1, 60), st.integers(-5, 10**8))
    def test_steps_that_ended_by_a_time_are_counted(self, first_ps, growth_ps, steps, when_ps):
        domain = phase(first_ps, growth_ps, steps)
        ended = sum(duration(domain, k) <= when_ps for k in range(1, steps + 1))
        assert steps_done(domain, when_ps) == ended

    def test_a_phase_is_cut_at_the_first_boundary_from_a_time_on(self):
        for when_ps, steps, end_ps in ((1, 1, 100), (100, 1, 100), (101, 2, 210), (10**6, 9, 9 * 100 + 10 * 36)):
            domain = phase(100, 10, 9)
            cut_phase(domain, when_ps)
            assert (domain["phase_steps"], domain["phase_end_ps"]) == (steps, end_ps)

    def test_a_domain_at_a_boundary_has_no_phase_to_cut(self):
        domain = phase(100, 10, 9)
        domain["planned"] = 0
        cut_phase(domain, 101)
        assert domain["phase_steps"] == 9


class TestHeap:
    @given(st.lists(st.one_of(st.integers(0, 2**62), st.none()), max_size=120))
    def test_it_gives_what_the_standard_heap_gives(self, calls):
        heap, size, standard = np.zeros(130, np.int64), 0, []
        for key in calls:
            if key is not None:
                size = push(heap, size, key)
                heapq.heappush(standard, key)
            elif standard:
                assert heap[0] == heapq.heappop(standard)
                size = pop(heap, size)
        assert size == len(standard)
        assert size == 0 or heap[0] == standard[0]

    def tables(self, n):
        cluster = Cluster(workers=1, max_running=1, max_batched_tokens=8)
        rules = rules_of(cluster, block_tokens=0, caching=False, probes=0)
        return make_tables(n, rules, cluster.uniform, router_blocks=0, max_blocks=0)

    def test_entries_of_preempted_requests_are_passed_over(self):
        t = self.tables(3)
        for r, step in enumerate((40, 20, 30)):
            t.requests["finish_step"][r] = step
            schedule_finish(t, 0, r)
        assert live_top(t, 0) == 20
        t.requests["finish_step"][1] = -1
        assert live_top(t, 0) == 30
        t.requests["finish_step"][2] = 50
        assert live_top(t, 0) == 40
        t.requests["finish_step"][0] = -1
        assert live_top(t, 0) == NEVER

    def test_when_entries_of_preempted_requests_fill_it_only_live_ones_are_kept(self):
        n = 500
        t = self.tables(n)
        room = t.heap.shape[1]
        assert room < n
        for r in range(n):
            t.requests["finish_step"][r] = 10_000 - r
            schedule_finish(t, 0, r)
            if r % 100:
                t.requests["finish_step"][r] = -1
            assert t.domains["heap_size"][0] <= room
        found = []
        while (step := live_top(t, 0)) != NEVER:
            found.append(int(step))
            t.requests["finish_step"][10_000 - step] = -1
        assert found == [9600, 9700, 9800, 9900, 10_000]


class TestFastForward:
    def run(self, rows, **given):
        arrival_s, prompts, outputs = zip(*rows, strict=True)
        requests = RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)
        cluster = Cluster(
            **{"workers": 1, "step_time": FittedStepTime(overhead_s=1e-3, per_context_token_s=1e-6), **given}
        )
        rules = rules_of(cluster, block_tokens=0, caching=False, probes=0)
        t = make_tables(len(rows), rules, cluster.uniform, router_blocks=0, max_blocks=0)
        t.requests["arrival_ps"] = np.round(requests.arrival_s * PS)
        t.requests["prompt"], t.requests["output"] = prompts, outputs
        from wavetank.serving.simulator.simulate import _view

        ended = core.run_arrivals(
            words(t), words(rules), cluster.step_time.function, RoundRobin().choose, np.zeros((1, 1)), np.zeros(0),
            words(_view(cluster)),
            asked_of(requests, None, None), np.zeros(0, np.int64),
        )  # fmt: skip
        assert ended == FINE
        assert (
            t.requests["finish_ps"].tolist()
            == np.round(simulate(requests, cluster, RoundRobin()).finish_s * 1e12).tolist()
        )
        return t

    def test_a_request_alone_takes_two_plans_however_long_it_is(self):
        for outputs in (2, 30, 100_000):
            t = self.run([(0.0, 10, outputs)])
            assert t.domains["step"].tolist() == [outputs]
            assert t.counts[PHASES] == 2

    def test_a_phase_ends_with_the_next_completion(self):
        # The prompts, then up to the ends of 5, 50 and 500 tokens.
        assert self.run([(0.0, 10, n) for n in (500, 5, 50)]).counts[PHASES] == 4

    def test_it_ends_at_an_arrival_that_may_be_admitted_and_goes_on_over_one_that_may_not(self):
        rows = [(0.0, 10, 500), (0.1, 10, 1)]
        assert self.run(rows).counts[PHASES] == 4
        # Without a slot for it: prompt, decodes, prompt.
        assert self.run(rows, max_running=1).counts[PHASES] == 3

    def test_members_of_a_group_are_stepped(self):
        t = self.run([(0.0, 10, 100)], workers=2, group_size=2)
        assert t.counts[PHASES] == t.domains["step"][0] == 100

    def test_afterwards_nothing_is_held_running_or_queued(self):
        t = self.run(
            [(0.001 * i, 30, 5 + i % 27) for i in range(100)], kv_capacity_tokens=120, max_running=4, kv_watermark=0.0
        )
        assert t.counts[PREEMPTIONS] == t.requests["preemptions"].sum() > 0
        for name in ("held", "context", "queue_tokens", "decoding", "running", "queue_length"):
            assert t.workers[name].tolist() == [0]
        for name in ("queued", "active"):
            assert t.domains[name].tolist() == [0]
        assert t.workers["newest"].tolist() == t.workers["queue_head"].tolist() == [-1]

    @given(st.integers(1, 4000), st.integers(1, 40), st.integers(2, 400))
    @settings(max_examples=30, deadline=None)
    def test_a_decode_step_more_takes_the_step_time_at_the_context_reached(self, prompt, requests, outputs):
        step = FittedStepTime(overhead_s=1e-3, per_request_s=1e-5, per_context_token_s=1e-7)
        cluster = Cluster(
            workers=1, step_time=step, max_running=40, max_batched_tokens=200_000, kv_capacity_tokens=10**7
        )  # fmt: skip

        def finish_ps(n):
            rows = {"prompt_tokens": [prompt] * requests, "output_tokens": [n] * requests}
            run = simulate(RequestTrace(arrival_s=np.zeros(requests), **rows), cluster, RoundRobin())
            return round(run.finish_s[0] * 1e12)

        context = requests * (prompt + outputs - 1)
        assert finish_ps(outputs + 1) - finish_ps(outputs) == 10**9 + 10**7 * requests + 10**5 * context
