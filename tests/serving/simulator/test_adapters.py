"""LoRA adapters: what they cost a step, who may run, what is loaded and evicted; the scheduler's overhead."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import FewestRequests, RoundRobin
from wavetank.serving.simulator.adapters import (
    MILLION,
    Adapters,
    AdapterSlots,
    SchedulerOverhead,
    codes_of,
    overhead_ps,
    share_with_a_slot,
)
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.serving.simulator.worker import Worker, step_of
from wavetank.workloads import RequestTrace, generate_requests

FLAT = FittedStepTime(overhead_s=1e-3)
# A step with adapters takes 1 ms for each distinct one; loading takes 5 ms.
SIMPLE = Adapters(slots=2, percent=100.0, percent_per_adapter=0.0, load_s=5e-3, load_s_per_rank=0.0, per_adapter_s=1e-3)


def cluster(**more):
    defaults = {"workers": 1, "step_time": FLAT, "max_running": 8, "max_batched_tokens": 512, "kv_watermark": 0.0}
    return Cluster(**{**defaults, "adapters": SIMPLE, **more})


def trace(*rows):
    """Make a trace of (arrival in s, prompt, output, adapter) rows; no adapter is ""."""
    arrival_s, prompts, outputs, names = zip(*rows, strict=True)
    known = tuple(dict.fromkeys(names))
    codes = [known.index(name) for name in names]
    return RequestTrace(
        arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs, adapter=codes, adapter_names=known
    )


def ms(times_s):
    return np.round(np.asarray(times_s) * 1e3, 6).tolist()


class TestCosts:
    def test_defaults_are_the_published_ones_of_llama(self):
        adapters = Adapters()
        assert [adapters.factor(n) for n in (0, 1, 100)] == pytest.approx([1.0, 2.0193, 3.93])
        # 6.4 ms at rank 8 to 8.1 ms at rank 32.
        loads_ms = dataclasses.replace(adapters, ranks=(8, 32)).loads_ps(4) / 1e9
        assert loads_ms == pytest.approx([6.398, 8.102, 6.398, 8.102])

    def test_the_schedulers_overhead_is_the_published_line(self):
        overhead = SchedulerOverhead()
        for running, waiting, share in ((300, 0, 1.0), (500, 8000, 0.5), (1081, 20_309, 0.1)):
            scaled = (running - 0.232) / (1081 - 0.232), waiting / 20_309, waiting * share / 16_371
            published_s = 0.004373 * scaled[0] + 0.004615 * scaled[1] - 0.004391 * scaled[2] - 0.000196
            assert overhead_ps(overhead, share, running, waiting) / 1e12 == pytest.approx(published_s, rel=1e-4)
        # Never negative.
        assert overhead_ps(overhead, 1.0, 1, 0) == 0
        assert overhead_ps(None, 1.0, 1000, 1000) == 0

    def test_the_share_of_adapters_with_a_slot_is_at_most_one(self):
        assert share_with_a_slot(Adapters(slots=8), 32) == 0.25
        assert share_with_a_slot(Adapters(slots=8), 4) == share_with_a_slot(None, 4) == 1.0

    @given(st.integers(0, 300), st.integers(0, 10**6), st.floats(0, 20))
    def test_a_step_is_the_plain_one_times_the_factor(self, distinct, context, percent_each):
        adapters = Adapters(percent_per_adapter=percent_each)
        step = FittedStepTime(overhead_s=1e-2, per_request_s=1e-5, per_context_token_s=5e-8)
        plain_ps = step.seconds(10, context) * 1e12
        found = adapters.step_ps(step, distinct, 10, context, 0, 0)
        assert found == pytest.approx(plain_ps * adapters.factor(distinct), rel=1e-4)
        # A line in the context with a whole slope.
        slope = adapters.step_ps(step, distinct, 10, 1, 0, 0) - adapters.step_ps(step, distinct, 10, 0, 0, 0)
        assert found == adapters.step_ps(step, distinct, 10, 0, 0, 0) + slope * context

    def test_without_an_adapter_in_the_batch_it_is_the_plain_one(self):
        assert Adapters().millionths(0) == MILLION
        assert SIMPLE.step_ps(FLAT, 0, 3, 5, 0, 0) == 10**9

    def test_equal_parameters_make_equal_adapters_that_survive_pickling(self):
        for each in (SIMPLE, SchedulerOverhead(base_s=1e-3), cluster()):
            assert pickle.loads(pickle.dumps(each)) == each

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"slots": 0}, "where: slots"),
            ({"ranks": ()}, "whole numbers"),
            ({"ranks": (8, 0)}, "1 to 10,000"),
            ({"ranks": (8.5,)}, "whole numbers"),
            ({"percent": 0.0}, "percent"),
            ({"percent_per_adapter": -1.0}, "percent_per_adapter"),
            ({"load_s": float("nan")}, "load_s"),
            ({"per_adapter_s": -1e-9}, "per_adapter_s"),
            ({"first_load_s": float("inf")}, "first_load_s"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given, said):
        with pytest.raises(BadValueError, match=said):
            Adapters(**given)

    def test_an_overhead_without_bounds_is_refused(self):
        with pytest.raises(BadValueError, match="per_waiting_s"):
            SchedulerOverhead(per_waiting_s=float("nan"))

    @pytest.mark.parametrize("kind", [Adapters, SchedulerOverhead])
    def test_every_parameter_says_what_it_is(self, kind):
        assert all(field.metadata["says"] for field in dataclasses.fields(kind))


class TestWhoRuns:
    def test_a_request_whose_adapter_has_no_slot_is_passed_over_and_those_behind_it_are_not(self):
        run = simulate(
            trace((0.0, 5, 3, "a"), (0.0, 5, 3, "b"), (0.0, 5, 1, "c"), (0.0, 5, 1, "a"), (0.0, 5, 1, "")),
            cluster(),
            RoundRobin(),
        )
        # Two loads and two adapters in the first step; c waits until a and b are done, and is loaded then.
        assert ms(run.first_token_s) == [13, 13, 13 + 3 + 3 + 7, 13, 13]
        assert run.adapter_loads == 3

    def test_the_adapter_used_longest_ago_makes_room_and_one_that_is_there_is_not_loaded(self):
        rows = [(float(i), 5, 1, name) for i, name in enumerate("abacab")]
        run = simulate(trace(*rows), cluster(), RoundRobin())
        # c pushes b out, for a was used later; then a is there, and b is not.
        assert ms(run.ttft_s) == [7, 7, 2, 7, 2, 7]
        assert run.adapter_loads == 4

    def test_what_a_running_request_uses_stays(self):
        rows = [(0.0, 5, 3000, "a"), (0.5, 5, 1, "b"), (1.0, 5, 1, "c"), (1.5, 5, 1, "b"), (2.0, 5, 1, "a")]
        run = simulate(trace(*rows), cluster(), RoundRobin())
        # b and c take turns in the other slot, although a was loaded first.
        assert run.adapter_loads == 4
        assert ms(run.ttft_s)[4] <= 2 * 2

    def test_an_adapter_is_read_from_disk_once_a_worker(self):
        rows = [(float(i), 5, 1, name) for i, name in enumerate("abca")]
        given_cluster = cluster(adapters=dataclasses.replace(SIMPLE, first_load_s=0.1))
        assert ms(simulate(trace(*rows), given_cluster, RoundRobin()).ttft_s) == [107, 107, 107, 7]

    def test_reading_an_adapter_from_disk_takes_longer_with_its_rank(self):
        rows = [(float(i), 5, 1, name) for i, name in enumerate("abca")]
        adapters = dataclasses.replace(SIMPLE, ranks=(8, 32), first_load_s=0.1, first_load_s_per_rank=0.01)
        assert ms(simulate(trace(*rows), cluster(adapters=adapters), RoundRobin()).ttft_s) == [187, 427, 187, 7]

    def test_a_step_that_loads_is_longer_than_those_after_it_in_a_decode_pool_too(self):
        both = DisaggregatedCluster(
            prefill=cluster(), decode=cluster(), kv_bytes_per_token=0.0, transfer_latency_s=0.0
        )
        run = simulate(trace((0.0, 5, 5, "a")), both, RoundRobin())
        assert ms(run.finish_s) == [7 + 7 + 3 * 2]
        assert run.adapter_loads == 2

    def test_every_worker_has_slots_of_its_own(self):
        rows = [(float(i), 5, 1, "ab"[i % 2]) for i in range(8)]
        assert simulate(trace(*rows), cluster(workers=2), RoundRobin()).adapter_loads == 2
        assert simulate(trace(*rows), cluster(workers=3), RoundRobin()).adapter_loads == 6

    def test_a_group_waits_for_the_worker_that_loads(self):
        rows = (0.0, 5, 1, "a"), (0.0, 5, 1, "")
        run = simulate(trace(*rows), cluster(workers=2, group_size=2), RoundRobin())
        assert ms(run.finish_s) == [7, 7]

    def test_the_scheduler_takes_longer_the_more_requests_wait(self):
        slow = SchedulerOverhead(base_s=1e-3, per_running_s=0.0, per_waiting_s=1e-3, per_waiting_share_s=0.0)
        rows = [(0.0, 5, 2, "")] + [(0.0015, 5, 1, "")] * 3
        plain = cluster(adapters=None, scheduler_overhead=slow, max_running=1)
        # 2 ms a step while nobody waits; the three arrive within the first, and then 3, 2, 1 and 0 wait.
        assert ms(simulate(trace(*rows), plain, RoundRobin()).finish_s) == [7, 11, 14, 16]

    def test_requests_that_come_make_the_next_step_longer_once(self):
        eager = SchedulerOverhead(
            base_s=0.0, per_running_s=0.0, per_waiting_s=0.0, per_waiting_share_s=0.0, per_arrival_s=2e-3
        )
        rows = [(0.0, 5, 6, "")] + [(0.0035, 5, 1, "")] * 2
        plain = cluster(adapters=None, scheduler_overhead=eager)
        # 3 ms with its own arrival; two come in the second step, so that the third takes 5 ms; then three of 1 ms.
        assert ms(simulate(trace(*rows), plain, RoundRobin()).finish_s) == [12, 9, 9]
        slowly = simulate_slowly(trace(*rows), plain, RoundRobin())
        assert slowly["finish_ps"].tolist() == [12 * 10**9, 9 * 10**9, 9 * 10**9]

    def test_requests_that_are_refused_take_no_time(self):
        eager = SchedulerOverhead(
            base_s=0.0, per_running_s=0.0, per_waiting_s=0.0, per_waiting_share_s=0.0, per_arrival_s=2e-3
        )
        rows = [(0.0, 5, 3, "")] + [(0.0005, 5, 1, "")] * 9
        narrow = cluster(adapters=None, scheduler_overhead=eager, max_running=1, max_waiting=2)
        # 3 ms, then 1 + 2 * 2 ms for the two that may wait, then 1 ms.
        assert ms(simulate(trace(*rows), narrow, RoundRobin()).finish_s)[0] == 9


class Watching:
    """The readable simulator's step, with a look at the batch of every worker."""

    def __init__(self, slots):
        self.slots, self.steps = slots, 0

    def __call__(self, workers: list[Worker], cluster: Cluster) -> int:
        taken_ps = step_of(workers, cluster)
        for worker in workers:
            self.steps += 1
            assert worker.slots is not None
            used = {request.adapter for request in worker.running} - {-1}
            assert set(worker.slots.users) == used
            assert len(used) <= self.slots
            assert used <= set(worker.slots.resident)
            assert len(worker.slots.resident) <= self.slots
        return taken_ps


requests_with_adapters = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.001, 0.02]), st.integers(1, 60), st.integers(1, 30),
        st.sampled_from(["", "a", "b", "c", "d", "e"]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


def with_times(rows):
    arrival_s = np.cumsum([row[0] for row in rows])
    return trace(*((t, *row[1:]) for t, row in zip(arrival_s, rows, strict=True)))


class TestInvariants:
    @given(requests_with_adapters, st.integers(1, 4), st.sampled_from([130, 400, 10_000]), st.sampled_from([1, 2]))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_a_batch_has_no_more_adapters_than_slots_and_what_it_uses_is_never_evicted(self, rows, slots, cache, group):
        requests = with_times(rows)
        if not any(row[3] for row in rows):
            return
        given_cluster = cluster(
            adapters=dataclasses.replace(SIMPLE, slots=slots), kv_capacity_tokens=cache, workers=2, group_size=group
        )
        watching = Watching(slots)
        slow = simulate_slowly(requests, given_cluster, FewestRequests(), step=watching)
        fast = simulate(requests, given_cluster, FewestRequests())
        assert watching.steps >= fast.steps > 0
        assert fast.adapter_loads == slow["adapter_loads"][0]

    @given(requests_with_adapters, st.integers(1, 4), st.sampled_from([130, 10_000]))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_every_token_is_served_whatever_waits_for_a_slot(self, rows, slots, cache):
        requests = with_times(rows)
        given_cluster = cluster(adapters=dataclasses.replace(SIMPLE, slots=slots), kv_capacity_tokens=cache)
        run = simulate(requests, given_cluster, RoundRobin())
        assert (run.first_token_s > requests.arrival_s).all()
        assert (run.finish_s >= run.first_token_s).all()
        # A step gives a request one token at most, and nobody gets one without a step.
        assert run.steps >= requests.output_tokens.max()
        needed = {row[3] for row in rows} - {""}
        assert run.adapter_loads >= len(needed)

    @given(st.integers(0, 5), st.sampled_from([20_000, 400_000]))
    @settings(max_examples=10, deadline=None)
    def test_without_requests_for_adapters_the_plain_engine_is_what_runs(self, seed, cache):
        plain = generate_requests(rate_per_s=30.0, n_requests=150, seed=seed)
        unnamed = dataclasses.replace(plain, adapter=np.zeros(150, np.int64), adapter_names=("",))
        base = Cluster(workers=2, kv_capacity_tokens=cache)
        with_slots = dataclasses.replace(base, adapters=Adapters())
        runs = [simulate(*each, RoundRobin()) for each in ((plain, base), (plain, with_slots), (unnamed, with_slots))]
        for run in runs[1:]:
            assert np.array_equal(run.finish_s, runs[0].finish_s)
            assert run.adapter_loads == 0

    def test_one_adapter_that_costs_nothing_is_the_plain_engine(self):
        plain = generate_requests(rate_per_s=30.0, n_requests=150, seed=1)
        named = dataclasses.replace(plain, adapter=np.zeros(150, np.int64), adapter_names=("a",))
        free = Adapters(slots=100, percent=100.0, percent_per_adapter=0.0, load_s=0.0, load_s_per_rank=0.0)
        base = Cluster(workers=2)
        runs = [
            simulate(*each, RoundRobin()) for each in ((plain, base), (named, dataclasses.replace(base, adapters=free)))
        ]
        assert np.array_equal(runs[0].finish_s, runs[1].finish_s)

    def test_twice_the_load_at_saturation_gives_the_same_throughput_and_longer_waits(self):
        requests = generate_requests(rate_per_s=60.0, n_requests=20_000, seed=2)
        named = dataclasses.replace(
            requests, adapter=np.arange(20_000) % 40, adapter_names=tuple(f"a{i}" for i in range(40))
        )
        one = Cluster(workers=1, adapters=Adapters(slots=8), scheduler_overhead=SchedulerOverhead())
        found = [simulate(named.scaled(factor).slice(0, 150), one, RoundRobin()).metrics() for factor in (1.0, 2.0)]
        rates = [each["throughput_tokens_per_s"] for each in found]
        assert rates[1] == pytest.approx(rates[0], rel=0.05)
        assert found[1]["ttft_mean_s"] > 1.2 * found[0]["ttft_mean_s"] > 10

    def test_adapters_mean_nothing_on_a_cluster_without_slots(self):
        rows = trace((0.0, 5, 3, "a"), (0.0, 5, 3, "b"))
        assert ms(simulate(rows, cluster(adapters=None), RoundRobin()).finish_s) == [3, 3]


class TestReadable:
    def test_slots_keep_who_uses_them(self):
        slots = AdapterSlots(SIMPLE, SIMPLE.loads_ps(3), SIMPLE.firsts_ps(3))
        for adapter in (0, 1, 0, -1):
            assert slots.may_run(adapter)
            slots.take(adapter)
        assert not slots.may_run(2)
        assert slots.may_run(-1)
        assert slots.loading_ps == 10**10
        slots.give_back(0)
        assert not slots.may_run(2)
        slots.give_back(0)
        slots.give_back(-1)
        slots.take(2)
        assert list(slots.resident) == [1, 2]
        assert slots.loaded == 3

    def test_codes_leave_the_unnamed_adapter_out(self):
        codes, count = codes_of(trace((0.0, 1, 1, "x"), (0.0, 1, 1, ""), (0.0, 1, 1, "y")))
        assert codes.tolist() == [0, -1, 1]
        assert count == 2
        codes, count = codes_of(RequestTrace(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1]))
        assert codes.tolist() == [-1]
        assert count == 0
