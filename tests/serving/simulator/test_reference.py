"""The compiled simulator and the readable one agree to the picosecond, whatever is simulated."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from wavetank.platforms.step_time import STEP_SIGNATURE, FittedStepTime, RooflineStepTime
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RandomWorker, RoundRobin
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.adapters import Adapters, SchedulerOverhead
from wavetank.serving.simulator.cluster import Cluster, WorkerKind
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace

PS = 1e12


@njit(STEP_SIGNATURE)
def _curved(R, C, P, S, table):
    return int(table[0] + table.size * table[1] * math.sqrt(C) + 1e7 * R + 1e7 * P + 1e3 * S)


@dataclasses.dataclass(frozen=True)
class CurvedStepTime:
    """A step time that is no line in the context: the simulator cannot jump over its steps."""

    context_slope_ps = -1
    function = staticmethod(_curved)
    table: Any = dataclasses.field(default_factory=lambda: np.array([1e9, 5e7]), compare=False)

    def seconds(self, R, C):
        return _curved(R, C, 0, 0, self.table) / PS


def checksum(*parts: Any) -> int:
    """Hash everything that a router is shown: one wrong bit in a view sends requests elsewhere."""
    return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


@dataclasses.dataclass(frozen=True)
class NosyRouter:
    """Routes by a hash of all it sees."""

    reads_prefix: bool = True
    reads_adapters: bool = True
    reads_events: bool = True

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.array([17.0])

    def choose(self, view, arrival, state, parameters):
        state[0] = checksum(*view, *arrival, state, parameters) % 1000
        fit = np.flatnonzero(view.takes & view.serves)
        return int(fit[int(state[0]) % fit.size])


@dataclasses.dataclass(frozen=True)
class NosyPoolRouter:
    """Places requests by a hash of all it sees, whether there is a slot or not."""

    reads_active = True
    decline: int = 3  # of ten requests stay at first

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.array([17.0])

    def place(self, view, pool, active, state, parameters, placed):
        state[0] = checksum(*view, *pool, *active, state, parameters) % 1000
        for i in range(placed.size):
            draw = (int(state[0]) + i) % 10
            if draw >= self.decline or pool.waited_steps[i] > 5:
                fit = np.flatnonzero(view.takes & pool.serves[i])
                placed[i] = fit[(int(state[0]) // 10 + i) % fit.size]
        return int((placed >= 0).sum())


# The last name is none: a request that takes any model.
MODELS = ("big", "small", "")


@st.composite
def traces(draw: Any) -> RequestTrace:
    n = draw(st.integers(1, 40))
    gap_s = st.sampled_from([0.0, 0.0, 0.0007, 0.003, 0.011, 0.1, 0.613])
    arrival_s = np.cumsum(draw(st.lists(gap_s, min_size=n, max_size=n)))
    prompts = draw(st.lists(st.integers(1, 200), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    blocks: dict[str, Any] = {}
    if draw(st.booleans()):
        size = draw(st.integers(4, 40))
        ids: list[int] = []
        offsets = [0]
        for i, prompt in enumerate(prompts):
            count = -(-prompt // size)
            shared = draw(st.integers(0, count))
            common = 1000 * draw(st.integers(0, 2))
            ids += [common + k for k in range(shared)] + [10_000 * (i + 1) + k for k in range(count - shared)]
            offsets.append(len(ids))
        blocks = {"block_ids": ids, "block_offsets": offsets, "block_tokens": size}
    if draw(st.booleans()):
        # The third name is none: the model without an adapter.
        codes = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
        blocks |= {"adapter": codes, "adapter_names": ("a", "b", "", "c", "d", "e", "f")}
    if draw(st.booleans()):
        for name, codes, names in (("model", 2, MODELS), ("tier", 2, ("now", "soon", "later"))):
            blocks |= {name: draw(st.lists(st.integers(0, codes), min_size=n, max_size=n)), f"{name}_names": names}
    if draw(st.booleans()):
        blocks["session"] = draw(st.lists(st.integers(-1, 5), min_size=n, max_size=n))
        blocks["max_tokens"] = draw(st.lists(st.sampled_from([0, 1, 77]), min_size=n, max_size=n))
    if draw(st.booleans()):
        within_s = st.sampled_from([math.nan, 0.1, 1.7])
        blocks["deadline_s"] = draw(st.lists(within_s, min_size=n, max_size=n))
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs, **blocks)


step_times = st.one_of(
    st.builds(
        FittedStepTime,
        overhead_s=st.sampled_from([1e-3, 5e-3]),
        per_request_s=st.sampled_from([0.0, 1e-4]),
        per_context_token_s=st.sampled_from([0.0, 1e-6, 1e-5]),
        per_prefill_token_s=st.just(1e-4),
        per_prefill_pair_s=st.just(1e-7),
    ),
    st.just(RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B")),
    st.just(CurvedStepTime()),
)


adapters = st.builds(
    Adapters,
    slots=st.sampled_from([1, 2, 3, 7, 50]),
    ranks=st.sampled_from([(8,), (8, 32, 16)]),
    percent_per_adapter=st.sampled_from([0.0, 1.93, 17.7777777]),
    percent=st.sampled_from([100.0, 200.0]),
    per_adapter_s=st.sampled_from([0.0, 1e-3]),
    load_s=st.sampled_from([0.0, 5.83e-3]),
    first_load_s=st.sampled_from([0.0, 0.05]),
    first_load_s_per_rank=st.sampled_from([0.0, 0.003]),
)
overheads = st.builds(
    SchedulerOverhead,
    base_s=st.sampled_from([-1e-4, 0.0, 1e-3]),
    per_waiting_s=st.sampled_from([0.0, 1e-4]),
    per_waiting_share_s=st.sampled_from([-1e-4, 0.0]),
    per_arrival_s=st.sampled_from([0.0, 2e-3]),
)


@st.composite
def kinds(draw: Any, workers: int, step_time: Any) -> tuple[WorkerKind, ...]:
    """Split workers into kinds, whose step times are of the class of the cluster's."""
    cuts = sorted(draw(st.sets(st.integers(1, workers - 1), max_size=2))) if workers > 1 else []
    found = []
    for first, until in itertools.pairwise([0, *cuts, workers]):
        own = step_time
        if isinstance(step_time, FittedStepTime):
            own = dataclasses.replace(step_time, overhead_s=draw(st.sampled_from([7e-4, 1e-3, 0.02])))
        elif isinstance(step_time, RooflineStepTime):
            own = draw(st.none() | st.just(RooflineStepTime(device="A100-SXM-80GB", model="Llama-3.1-8B")))
        elif isinstance(step_time, CurvedStepTime):
            own = CurvedStepTime(table=np.array([draw(st.sampled_from([1e9, 3e9])), 2e7, 0.0]))
        slots = draw(st.integers(0, 9))
        found.append(
            WorkerKind(
                workers=until - first, step_time=own, max_running=slots, max_batched_tokens=draw(st.integers(12, 90)),
                kv_capacity_tokens=draw(st.sampled_from([0, 255, 300, 5000])),
            )
        )  # fmt: skip
    return tuple(found)


@st.composite
def clusters(draw: Any) -> Cluster:
    group = draw(st.sampled_from([1, 1, 2, 4]))
    slots = draw(st.integers(1, 12))
    workers = group * draw(st.integers(1, 3))
    models = draw(st.lists(st.sampled_from([("big",), ("small",), ("big", "small")]), min_size=workers))[:workers]
    # Some worker has each.
    models[draw(st.integers(0, workers - 1))] = ("small", "big")
    step_time = draw(step_times)
    return Cluster(
        workers=workers,
        models=tuple(models) if draw(st.booleans()) else None,
        group_size=group,
        step_time=step_time,
        kinds=draw(kinds(workers, step_time)) if draw(st.booleans()) else (),
        max_running=slots,
        max_batched_tokens=draw(st.integers(slots, 300)),
        kv_capacity_tokens=draw(st.sampled_from([260, 260, 400, 1000, 100_000])),
        kv_watermark=draw(st.sampled_from([0.0, 0.01, 0.2])),
        sync_s=draw(st.sampled_from([0.0, 1e-3])),
        refresh_s=draw(st.sampled_from([0.0, 0.013, 0.1])),
        scheduled_ahead=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        prefix_memory_s=draw(st.sampled_from([0.05, 300.0])),
        pool_window=draw(st.sampled_from([1, 5, 512])),
        adapters=draw(st.none() | adapters),
        scheduler_overhead=draw(st.none() | st.none() | overheads),
    )


arrival_routers = st.one_of(
    st.sampled_from([RoundRobin(), FewestRequests(), FewestKVTokens(), VLLMDefault(), PrefixAffinity(), NosyRouter()]),
    st.builds(NosyRouter, reads_prefix=st.booleans(), reads_adapters=st.booleans(), reads_events=st.booleans()),
    st.builds(RandomWorker, seed=st.integers(0, 5)),
    st.builds(PowerOfTwo, seed=st.integers(0, 5)),
)
pool_routers = st.one_of(
    st.builds(
        BalanceRoute,
        horizon_steps=st.sampled_from([0, 4]),
        termination=st.sampled_from(["none", "geometric", "logistic", "oracle"]),
        mean_output_tokens=st.just(30.0),
        logistic=st.just((-2.0, 0.3, -0.1)),
        patience_steps=st.sampled_from([0, 3, 200]),
    ),
    st.builds(NosyPoolRouter, decline=st.integers(0, 10)),
)


def ps(times_s: Any) -> Any:
    """Return whole picoseconds, -1 for what never happened."""
    return np.nan_to_num(np.round(times_s * PS), nan=-1).astype(np.int64)


@dataclasses.dataclass
class Recorder:
    """Decides as another router and keeps what it was shown."""

    router: Any
    shown: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("reads_prefix", "reads_adapters", "reads_events", "reads_active"):
            setattr(self, name, getattr(self.router, name, False))
        if hasattr(self.router, "place"):
            self.place = self.record_place
        else:
            self.choose = self.record_choose

    def initial_state(self, workers):
        return self.router.initial_state(workers)

    def parameters(self):
        return self.router.parameters()

    def record_choose(self, view, arrival, state, parameters):
        self.shown.append((view._fields + arrival._fields, [np.copy(part) for part in (*view, *arrival)]))
        return self.router.choose(view, arrival, state, np.ascontiguousarray(parameters))

    def record_place(self, view, pool, active, state, parameters, placed):
        names = view._fields + pool._fields + active._fields
        self.shown.append((names, [np.copy(part) for part in (*view, *pool, *active)]))
        return self.router.place(view, pool, active, state, np.ascontiguousarray(parameters), placed)


def see_the_same(requests: RequestTrace, cluster: Cluster, router: Any, **predicted: Any) -> list[Any]:
    """Compare every field of every decision of both simulators, and return what was shown."""
    fast, slow = Recorder(router), Recorder(router)
    simulate(requests, cluster, fast, **predicted)
    simulate_slowly(requests, cluster, slow, **predicted)
    assert len(fast.shown) == len(slow.shown)
    for number, ((names, ours), (_, theirs)) in enumerate(zip(fast.shown, slow.shown, strict=True)):
        for name, one, other in zip(names, ours, theirs, strict=True):
            assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), (number, name, one, other)
    return fast.shown


def agree(requests: RequestTrace, cluster: Cluster, router: Any, expected: Any = None, spread: Any = None) -> None:
    predicted = {"expected_output_tokens": expected, "output_spread_tokens": spread}
    run = simulate(requests, cluster, router, **predicted)
    slow = simulate_slowly(requests, cluster, router, **predicted)
    assert ps(run.finish_s).tolist() == slow["finish_ps"].tolist()
    assert ps(run.first_token_s).tolist() == slow["first_ps"].tolist()
    assert run.worker.tolist() == slow["worker"].tolist()
    assert run.preemptions.tolist() == slow["preemptions"].tolist()
    assert run.matched_tokens.tolist() == slow["matched"].tolist()
    assert run.steps == slow["steps"][0]
    assert run.decisions == slow["decisions"][0]
    assert run.adapter_loads == slow["adapter_loads"][0]
    assert run.prefill_steps == slow["prefill_steps"][0]
    times_s = run.lock_s, run.work_s, run.mixed_s
    assert times_s == pytest.approx([slow[name][0] / PS for name in ("lock_ps", "work_ps", "mixed_ps")], abs=1e-12)
    if cluster.group_size > 1 and slow["counted_steps"][0]:
        assert run.imbalance_tokens == pytest.approx(slow["imbalance_tokens"][0] / slow["counted_steps"][0])


@given(traces(), clusters(), arrival_routers)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_both_agree_behind_routers_that_place_at_arrival(requests, cluster, router):
    agree(requests, cluster, router)


@given(traces(), clusters(), arrival_routers, st.integers(1, 5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_both_agree_on_who_is_refused(requests, cluster, router, max_waiting):
    agree(requests, dataclasses.replace(cluster, max_waiting=max_waiting), router)


@given(traces(), clusters(), pool_routers)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_both_agree_behind_routers_with_a_pool(requests, cluster, router):
    agree(requests, cluster, router)


@given(traces(), clusters(), st.one_of(arrival_routers, pool_routers), st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_both_show_the_same_before_every_decision(requests, cluster, router, data):
    predicted = {}
    for name in ("expected_output_tokens", "output_spread_tokens"):
        lengths = st.lists(st.sampled_from([math.nan, 0.0, 12.5]), min_size=len(requests), max_size=len(requests))
        if data.draw(st.booleans()):
            predicted[name] = np.array(data.draw(lengths))
    see_the_same(requests, cluster, router, **predicted)


@pytest.mark.slow
@given(traces(), clusters(), st.one_of(arrival_routers, pool_routers))
@settings(max_examples=2000, deadline=None)
def test_both_agree_on_many_more_cases(requests, cluster, router):
    agree(requests, cluster, router)


@pytest.mark.parametrize("refresh_s", [0.0, 0.05])
def test_a_lone_worker_looks_and_decides_before_every_step_while_requests_wait(refresh_s):
    # One request decodes for 40 ms; the other is declined in the first five decisions, one a step.
    requests = RequestTrace(arrival_s=[0.0, 0.0015], prompt_tokens=[10, 10], output_tokens=[40, 40])
    cluster = Cluster(
        workers=1, step_time=FittedStepTime(overhead_s=1e-3), refresh_s=refresh_s, max_running=4, max_batched_tokens=64
    )

    class Patient(NosyPoolRouter):
        def place(self, view, pool, active, state, parameters, placed):
            placed[(pool.prompt_tokens > 0) & ((pool.waited_s == 0) | (pool.waited_steps >= 5))] = 0
            return int((placed >= 0).sum())

    run = simulate(requests, cluster, Patient())
    # It waits from the boundary at 2 ms; five steps later it is placed, and the step after that is its prefill.
    assert run.first_token_s[1] == pytest.approx(8e-3, abs=1e-12)
    agree(requests, cluster, Patient())


def test_of_prompts_that_end_together_the_later_ones_blocks_are_evicted_first_in_both():
    # Two prompts fill the cache; a third pushes two blocks out; then each of the two comes again.
    rows = {
        "arrival_s": [0.0, 0.0, 1.0, 2.0, 3.0],
        "prompt_tokens": [12, 12, 5, 12, 12],
        "output_tokens": [1] * 5,
        "block_ids": [0, 1, 2, 3, 4, 5, 6, 7, 3, 4, 5, 0, 1, 2],
        "block_offsets": [0, 3, 6, 8, 11, 14],
        "block_tokens": 4,
    }
    requests = RequestTrace(**rows)
    cluster = Cluster(
        workers=1, step_time=FittedStepTime(overhead_s=1e-3), kv_capacity_tokens=24, kv_watermark=0.0,
        prefix_caching=True, max_running=8, max_batched_tokens=64,
    )  # fmt: skip
    assert simulate(requests, cluster, RoundRobin()).matched_tokens.tolist()[3] == 4
    agree(requests, cluster, RoundRobin())


def test_expected_lengths_reach_routers_of_both_kinds_on_both_sides():
    class ByExpectation(NosyRouter):
        def choose(self, view, arrival, state, parameters):
            return int(arrival.expected_output_tokens) % view.running.size

    class PoolByExpectation(NosyPoolRouter):
        def place(self, view, pool, active, state, parameters, placed):
            placed[:] = pool.expected_output_tokens.astype(np.int64) % view.running.size
            return placed.size

    requests = RequestTrace(arrival_s=np.arange(6) * 0.01, prompt_tokens=[20] * 6, output_tokens=[5] * 6)
    expected = np.array([5.0, 3.0, 4.0, 2.0, 0.0, 7.0])
    for cluster in (Cluster(workers=3), Cluster(workers=3, group_size=3)):
        for router in (ByExpectation(), PoolByExpectation()):
            run = simulate(requests, cluster, router, expected_output_tokens=expected)
            assert run.worker.tolist() == [2, 0, 1, 2, 0, 1]
            agree(requests, cluster, router, expected)


class TestReadable:
    """Its own known answers, so that both are not wrong alike."""

    def test_one_request_alone(self):
        step = FittedStepTime(overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-5)
        requests = RequestTrace(arrival_s=[1.0], prompt_tokens=[10], output_tokens=[3])
        found = simulate_slowly(requests, Cluster(workers=1, step_time=step), RoundRobin())
        # 1 ms + 10 * 10 us for the prompt; then two steps of 1.1 ms + 10 us and 11 us.
        assert found["first_ps"].tolist() == [1_001_100_000_000]
        assert found["finish_ps"].tolist() == [1_001_100_000_000 + 1_110_000_000 + 1_111_000_000]
        assert found["steps"].tolist() == [3]
