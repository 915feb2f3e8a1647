"""Policies of reuse: prefix caching is one to the digit, both simulators agree on all, and bad ones are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.serving.simulator.reuse_cases import STEP, random_case
from tests.serving.simulator.test_reference import NosyPoolRouter, NosyRouter, Recorder

from wavetank.errors import BadValueError
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.routing.block_affinity import BlockAffinity
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.simulator.changes import Churn
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.reuse import (
    ContentReuse,
    GivenUnits,
    PrefixReuse,
    ReuseRule,
    Units,
    check_rule,
    no_units,
    parents,
    units_of,
)
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.workloads import RequestTrace, SharedPrefix, generate_requests


def assert_the_same(trace: RequestTrace, cluster: Cluster, router: object) -> ServingRun:
    """Compare both simulators in all that they say of requests, and return what the compiled one said."""
    slow = simulate_slowly(trace, cluster, router)
    run = simulate(trace, cluster, router)
    for name, ours in (("first_ps", run.first_token_s), ("finish_ps", run.finish_s)):
        assert (slow[name] / 1e12 == ours).all(), name
    assert (slow["worker"] == run.worker).all()
    assert (slow["matched"] == run.matched_tokens).all()
    assert (slow["preemptions"] == run.preemptions).all()
    assert slow["steps"][0] == run.steps
    if run.recomputed_tokens.size:
        assert (slow["recomputed"] == run.recomputed_tokens).all()
        assert (slow["fetched"] * 1000.0 == run.transferred_bytes).all()
    else:
        assert not slow["fetched"].any()
    assert (run.computed_tokens >= 0).all()
    # The answer follows from the last token, which nobody keeps.
    assert (run.matched_tokens < run.prompt_tokens).all()
    return run


def test_both_simulators_agree_to_the_picosecond_on_random_policies() -> None:
    seen = np.zeros(4)
    for seed in range(150):
        router = (NosyRouter(), NosyPoolRouter(), RoundRobin())[seed % 3]
        trace, cluster = random_case(seed, fetch=seed % 3 != 1)
        run = assert_the_same(trace, cluster, router)
        seen += (run.matched_tokens.sum() > 0, run.recomputed_tokens.sum() > 0, run.transferred_bytes.sum() > 0,
                 run.preemptions.sum() > 0)  # fmt: skip
    # The cases are no trivial ones.
    assert (seen > (80, 30, 20, 20)).all(), seen


def test_both_simulators_agree_where_workers_fail() -> None:
    found = 0
    for seed in range(12):
        trace, cluster = random_case(seed, fetch=False)
        churn = Churn(time_to_failure_s=0.2, repair_s=0.05, seed=seed)
        run = assert_the_same_ends(trace, dataclasses.replace(cluster, churn=churn))
        found += int(run.matched_tokens.sum())
    assert found


def assert_the_same_ends(trace: RequestTrace, cluster: Cluster) -> ServingRun:
    slow, run = (each(trace, cluster, RoundRobin()) for each in (simulate_slowly, simulate))
    assert (slow["outcome"] == run.outcome).all()
    assert (slow["matched"] == run.matched_tokens).all()
    done = slow["finish_ps"] >= 0
    assert (slow["finish_ps"][done] / 1e12 == run.finish_s[done]).all()
    return run


@pytest.mark.parametrize("router", [RoundRobin(), PrefixAffinity(), NosyRouter()], ids=lambda each: type(each).__name__)
def test_prefix_caching_is_the_policy_of_prefix_blocks_to_the_digit(router: object) -> None:
    trace = generate_requests(rate_per_s=30.0, n_requests=300, seed=3, shared_prefix=SharedPrefix(share=0.7))
    caching = Cluster(workers=3, step_time=STEP, prefix_caching=True, kv_capacity_tokens=20_000)
    policy = dataclasses.replace(caching, prefix_caching=False, reuse=PrefixReuse())
    ours, theirs = (simulate(trace, each, router) for each in (policy, caching))
    for each in dataclasses.fields(ServingRun):
        assert np.array_equal(getattr(ours, each.name), getattr(theirs, each.name), equal_nan=True) if isinstance(
            getattr(ours, each.name), np.ndarray) else str(getattr(ours, each.name)) == str(
            getattr(theirs, each.name)), each.name  # fmt: skip
    assert ours.matched_tokens.sum() > 0.2 * ours.prompt_tokens.sum()


def test_where_the_phases_are_apart_prefill_workers_keep_prompts_by_a_policy() -> None:
    trace = generate_requests(rate_per_s=30.0, n_requests=100, seed=3, shared_prefix=SharedPrefix(share=0.7))
    part = Cluster(workers=2, step_time=STEP, kv_capacity_tokens=20_000)
    runs = [
        simulate(trace, DisaggregatedCluster(prefill=prefill, decode=part), RoundRobin())
        for prefill in (
            dataclasses.replace(part, prefix_caching=True),
            dataclasses.replace(part, reuse=PrefixReuse()),
            dataclasses.replace(part, reuse=ContentReuse(how=ReuseRule(again_share=0.5, fetch=True))),
        )
    ]
    assert (runs[0].finish_s == runs[1].finish_s).all()
    assert (runs[0].matched_tokens == runs[1].matched_tokens).all()
    assert runs[2].transferred_bytes.sum() > 0
    assert (2 * runs[2].recomputed_tokens >= runs[2].matched_tokens).all()


def test_all_fetches_of_a_step_take_a_day_at_most() -> None:
    # In turns: what the first worker has of the first twenty, the other one is asked for, all of it at once.
    first = [[k // 2] if k % 2 == 0 else [100 + k] for k in range(40)]
    second = [[200 + k] if k % 2 == 0 else [k // 2] for k in range(40)]
    trace = one_after_another(*first, *second)
    trace = dataclasses.replace(trace, arrival_s=np.repeat([0.0, 100.0], 40))
    slow = ReuseRule(fetch=True, bytes_per_token=1e9, link_bytes_per_s=180_000.0)
    cluster = Cluster(workers=2, step_time=STEP, refresh_s=0.0, reuse=PrefixReuse(how=slow))
    run = simulate(trace, cluster, RoundRobin())
    assert (run.transferred_bytes[41::2] == 10e9).all()
    assert run.ttft_s[41::2] == pytest.approx(86_400.0, abs=1.0)
    assert (simulate_slowly(trace, cluster, RoundRobin())["finish_ps"] / 1e12 == run.finish_s).all()


def one_after_another(*prompts: list[int]) -> RequestTrace:
    """Return prompts of blocks of ten tokens, and five tokens behind each, that do not meet."""
    return RequestTrace(
        arrival_s=100.0 * np.arange(len(prompts)), prompt_tokens=[10 * len(each) + 5 for each in prompts],
        output_tokens=np.ones(len(prompts), np.int64), block_ids=np.concatenate(prompts).astype(np.int64),
        block_offsets=np.cumsum([0, *(len(each) for each in prompts)]), block_tokens=10,
    )  # fmt: skip


def test_blocks_by_their_content_are_found_behind_a_change_and_blocks_of_prefixes_are_not() -> None:
    trace = one_after_another([0, 1, 2, 3], [9, 1, 2, 3], [8, 3, 3, 0])
    one = Cluster(workers=1, step_time=STEP)
    by_prefix, by_content, again = (
        simulate(trace, dataclasses.replace(one, reuse=policy), RoundRobin())
        for policy in (PrefixReuse(), ContentReuse(), ContentReuse(how=ReuseRule(again_tokens=3, again_share=0.5)))
    )
    assert by_prefix.matched_tokens.tolist() == [0, 0, 0]
    assert by_content.matched_tokens.tolist() == [0, 30, 30]
    # Of each block the first 3, and of the other 21 the half.
    assert again.recomputed_tokens.tolist() == [0, 9 + 11, 9 + 11]
    assert again.matched_tokens.tolist() == [0, 10, 10]
    assert again.computed_tokens.tolist() == [45, 15, 15]
    assert (by_content.ttft_s[1:] < again.ttft_s[1:]).all()
    assert (again.ttft_s[1:] < by_prefix.ttft_s[1:]).all()
    figures = again.metrics()
    assert figures["recomputed_share"] == pytest.approx(40 / 135)


def test_what_only_another_worker_has_is_fetched_in_the_time_of_its_bytes() -> None:
    trace = one_after_another([0, 1], [0, 1])
    two = Cluster(workers=2, step_time=STEP, refresh_s=0.0)
    # A router that takes turns sends the second prompt to a worker that has nothing.
    rule = ReuseRule(fetch=True, bytes_per_token=1e6, link_bytes_per_s=1e9, fetch_latency_s=0.25)
    alone, fetching = (
        simulate(trace, dataclasses.replace(two, reuse=PrefixReuse(how=each)), RoundRobin())
        for each in (ReuseRule(), rule)
    )
    local = simulate(trace, dataclasses.replace(two, workers=1, reuse=PrefixReuse()), RoundRobin())
    assert alone.matched_tokens.tolist() == [0, 0]
    assert fetching.matched_tokens.tolist() == [0, 20]
    assert fetching.transferred_bytes.tolist() == [0.0, 20e6]
    assert fetching.ttft_s[1] == pytest.approx(local.ttft_s[1] + 0.25 + 0.02, abs=1e-12)
    beside = dataclasses.replace(two, reuse=PrefixReuse(how=dataclasses.replace(rule, overlapped=True)))
    assert simulate(trace, beside, RoundRobin()).ttft_s[1] == pytest.approx(0.27, abs=1e-12)


def test_what_a_worker_has_all_the_time_takes_no_room_and_is_there_at_once() -> None:
    trace = one_after_another([0, 1, 2], [2, 0, 1])
    units = ContentReuse().units(trace)._replace(resident=np.array([[True, False, False]]))
    cluster = Cluster(workers=1, step_time=STEP, reuse=GivenUnits(given=units, how=ReuseRule(store_tokens=1)))
    run = simulate(trace, cluster, RoundRobin())
    # Nothing else stays: a block is longer than what may be kept.
    assert run.matched_tokens.tolist() == [10, 10]


def test_moved_runs_are_computed_again_from_their_beginning_and_once() -> None:
    # Contents 0 1 2 behind 5 in the second prompt, one behind another as before; in the third 2 and 1 change places.
    chain = {(0,): 0, (0, 1): 1, (0, 1, 2): 2, (5,): 3, (5, 0): 4, (5, 0, 1): 5, (5, 0, 1, 2): 6, (6,): 7, (6, 2): 8,
             (6, 2, 1): 9}  # fmt: skip
    prompts = [(0, 1, 2), (5, 0, 1, 2), (6, 2, 1)]
    ids = [chain[prompt[: i + 1]] for prompt in prompts for i in range(len(prompt))]
    units = Units(np.array(ids), np.array([0, 3, 7, 10]), np.full(10, 10), names=np.concatenate(prompts))
    trace = one_after_another(*map(list, prompts))
    rule = ReuseRule(again_tokens=14)
    run = simulate(trace, Cluster(workers=1, step_time=STEP, reuse=GivenUnits(given=units, how=rule)), RoundRobin())
    assert run.recomputed_tokens.tolist() == [0, 14, 20]
    assert run.matched_tokens.tolist() == [0, 16, 0]


def test_the_share_that_is_computed_again_is_rounded_up_and_whole_at_one() -> None:
    assert ReuseRule(again_share=1.0).again(3, 11) == 11
    assert ReuseRule(again_share=0.15).again(3, 11) == 3 + 2
    assert ReuseRule().again(0, 11) == 0
    assert ReuseRule(again_tokens=5).again(5, 5) == 5


def test_a_unit_behind_different_ones_names_not_all_before_it() -> None:
    units = Units(np.array([0, 1, 0, 2, 1]), np.array([0, 2, 5]), np.ones(3, np.int64))
    with pytest.raises(BadValueError, match="unit 1"):
        parents(units)
    free = units._replace(free=np.array([False, True, False]))
    assert parents(free).tolist()[0] == -1
    assert parents(no_units(3)).size == 0


@pytest.mark.parametrize("events", [False, True])
def test_a_router_is_shown_what_caches_have_only_where_it_asks_for_it(events: bool) -> None:
    trace = one_after_another([0, 1], [0, 1], [0, 1])
    rule = ReuseRule(fetch=True, bytes_per_token=1000.0, link_bytes_per_s=1e9)
    cluster = Cluster(workers=2, step_time=STEP, refresh_s=0.0, reuse=PrefixReuse(how=rule))
    shown = []
    for run in (simulate, simulate_slowly):
        router = Recorder(NosyRouter(reads_events=events))
        run(trace, cluster, router)
        shown.append([dict(zip(names, view, strict=True)) for names, view in router.shown])
    for ours, theirs in zip(*shown, strict=True):
        for name in ("cached_tokens", "cached_total_tokens"):
            assert np.isnan(ours[name]).all() == (not events), name
            assert np.array_equal(ours[name], theirs[name], equal_nan=True), name
    # A router of the catalog that goes by what it is shown decides alike.
    for seed in (62, 107, 212, 263, 377, 389):
        assert_the_same(*random_case(seed, fetch=True), BlockAffinity())


def test_nothing_is_found_that_another_model_or_adapter_computed() -> None:
    trace = one_after_another([0, 1], [0, 1], [0, 1], [0, 1])
    by_chain = PrefixReuse().units(trace)
    # Each prompt has identities of its own, so that only names are found.
    by_name = Units(np.arange(8), by_chain.offsets, np.full(8, 10), names=by_chain.ids)
    policies = [PrefixReuse(), ContentReuse(), GivenUnits(given=by_chain), GivenUnits(given=by_name)]
    others = dataclasses.replace(trace, adapter=[0, 1, 1, 0], adapter_names=("", "b"))
    models = dataclasses.replace(trace, model=[0, 1, 1, 0], model_names=("m", "n"))
    for policy in policies:
        cluster = Cluster(workers=1, step_time=STEP, reuse=policy)
        alike, adapters, named = (assert_the_same(each, cluster, RoundRobin()) for each in (trace, others, models))
        assert alike.matched_tokens.tolist() == [0, 20, 20, 20]
        assert adapters.matched_tokens.tolist() == named.matched_tokens.tolist() == [0, 0, 20, 20]
    there = by_chain._replace(resident=np.ones((1, 2), bool))
    assert units_of(GivenUnits(given=there), dataclasses.replace(others, adapter=[1] * 4), 1).tokens.size == 2
    with pytest.raises(BadValueError, match="of one model and adapter"):
        units_of(GivenUnits(given=there), others, 1)


BLOCKS = one_after_another([0, 1], [0, 1])
GOOD = PrefixReuse().units(BLOCKS)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (GOOD._replace(offsets=np.array([0, 4])), "divide"),
        (GOOD._replace(offsets=np.array([0, 5, 4])), "divide"),
        (GOOD._replace(ids=np.array([0, 1, 0, 2])), "number of tokens"),
        (GOOD._replace(ids=np.array([0, 1, 0, -1])), "number of tokens"),
        (GOOD._replace(tokens=np.array([10, 0])), "no tokens"),
        (GOOD._replace(tokens=np.array([10, 16])), "row 1"),
        (GOOD._replace(tokens=np.array([10, 2**31])), "fewer tokens"),
        (GOOD._replace(free=np.ones(3, bool)), "another shape"),
        (GOOD._replace(names=np.zeros(3, np.int64)), "another shape"),
        (GOOD._replace(names=np.full(4, -2)), "no number"),
        (GOOD._replace(names=np.full(4, 2**30)), "too many"),
        (GOOD._replace(free=np.ones(2, bool), names=np.zeros(4, np.int64)), "free unit"),
        (GOOD._replace(resident=np.ones((3, 2), bool)), "another shape"),
    ],
)
def test_units_that_are_not_those_of_the_trace_are_refused(bad: Units, says: str) -> None:
    with pytest.raises(BadValueError, match=says):
        units_of(GivenUnits(given=bad), BLOCKS, 2)


def test_rules_and_policies_that_make_no_sense_are_refused() -> None:
    for bad in ({"again_share": 1.5}, {"again_share": float("nan")}, {"again_tokens": -1}, {"link_bytes_per_s": 0.0},
                {"store_tokens": -1}, {"fetch_latency_s": float("inf")}):  # fmt: skip
        with pytest.raises(BadValueError):
            ReuseRule(**bad)
    with pytest.raises(BadValueError, match="longer on the link"):
        check_rule(ReuseRule(fetch=True, bytes_per_token=1e12, link_bytes_per_s=1.0), 10)
    with pytest.raises(BadValueError, match="no policy"):
        Cluster(reuse=PrefixReuse)  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match="one policy"):
        Cluster(reuse=PrefixReuse(), prefix_caching=True)
    with pytest.raises(BadValueError, match="come and go"):
        Cluster(reuse=PrefixReuse(how=ReuseRule(fetch=True)), churn=Churn(time_to_failure_s=1.0, repair_s=1.0))
    with pytest.raises(BadValueError, match="keeps a pool"):
        simulate(BLOCKS, Cluster(reuse=PrefixReuse(how=ReuseRule(fetch=True))), NosyPoolRouter())
    without = dataclasses.replace(BLOCKS, block_ids=None, block_offsets=None)
    assert simulate(without, Cluster(reuse=ContentReuse()), RoundRobin()).matched_tokens.tolist() == [0, 0]
