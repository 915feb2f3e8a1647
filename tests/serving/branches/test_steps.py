"""The engine of steps: closed forms, a second implementation, and what no controller may change."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.branches.conftest import FITTED, line, line_step, mixed_answers, requests_of

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.branches.rivals import AdmittedEager, Eager, FixedCap, Off, TokenBudget
from wavetank.serving.branches.steps import Engine, simulate_branches
from wavetank.serving.branches.taper import Taper

CONTROLLERS = (Off(), Eager(), FixedCap(cap=3), TokenBudget(tokens=20), Taper(), Taper(replans=False),
               Taper(predictor="exact"), AdmittedEager(admission=0.9))  # fmt: skip
STEADY = FittedStepTime(overhead_s=0.01)


def run(requests, controller, step=None, log=False, **fields):
    engine = Engine(**{"kv_tokens": 40_000, "chunk_tokens": 256} | fields)
    return simulate_branches(requests, engine, step or line_step(), controller, line(), log=log)


def test_one_request_alone_takes_its_longest_branch_or_the_sum_of_all():
    one = requests_of([[[7], [10, 30, 20], [5], [4, 4]]])
    # The prompt's step gives the first token; a step takes 10 ms.
    assert run(one, Off(), STEADY).serving.finish_s[0] == pytest.approx(0.01 * (7 + 60 + 5 + 8))
    for controller in (Eager(), Taper()):
        assert run(one, controller, STEADY).serving.finish_s[0] == pytest.approx(0.01 * (7 + 30 + 5 + 4))
    assert run(one, FixedCap(cap=1), STEADY).serving.finish_s[0] == pytest.approx(0.8)


def test_without_parallel_stages_every_controller_gives_the_same_schedule():
    serial = requests_of([[[int(n)]] for n in np.random.default_rng(0).integers(1, 80, 50)], gap_s=0.1)
    schedules = {
        (tuple(found.serving.first_token_s), tuple(found.serving.finish_s))
        for found in (run(serial, each) for each in CONTROLLERS if not isinstance(each, AdmittedEager))
    }
    assert len(schedules) == 1


def test_infinite_slack_is_eager_and_no_slack_or_no_share_of_it_is_off(busy):
    endless = {"tpot_slo_s": 1e3, "ttft_slo_s": 1e5}
    eager, off = (run(busy, each, **endless).serving.finish_s.tolist() for each in (Eager(), Off()))
    assert run(busy, Taper(), **endless).serving.finish_s.tolist() == eager != off
    assert run(busy, Taper(rho=0.0), **endless).serving.finish_s.tolist() == off
    assert run(busy, Taper(), tpot_slo_s=1e-3).serving.finish_s.tolist() == off


@pytest.mark.parametrize("controller", CONTROLLERS, ids=repr)
def test_tokens_are_conserved_stages_join_and_widths_leave_the_cache_alone(busy, controller):
    found = run(busy, controller, log=True)
    log, trace = found.log, busy.trace
    # Every branch has its tokens, one a step; the first token of an answer comes with its prompt.
    assert log["sequences"].sum() + len(trace) == trace.output_tokens.sum()
    assert log["prefill"].sum() == trace.prompt_tokens.sum()
    first, last = found.branch_steps.T
    assert (first >= 0).all() and (last - first + 1 >= busy.lengths).all()
    for stage in range(busy.branch_offsets.size - 1):
        if stage + 1 in busy.stage_offsets:
            continue
        here, after = (slice(*busy.branch_offsets[at : at + 2]) for at in (stage, stage + 1))
        assert first[after].min() > last[here].max()
    # What is held is what was computed of requests that have not ended, whichever branches run.
    ends = log["start_s"] + log["taken_s"]
    for at in range(0, len(ends), 37):
        computed = log["prefill"][:at].sum() + log["sequences"][:at].sum()
        begun = (found.serving.first_token_s <= ends[at - 1]).sum() if at else 0
        ended = found.serving.finish_s <= (ends[at - 1] if at else -1.0)
        gone = (trace.prompt_tokens + trace.output_tokens)[ended].sum()
        assert log["held"][at] == computed + begun - gone
    assert log["held"].max() <= 40_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("controller", [Taper(), Taper(rho=1.0, bank_share=1.0), Taper(predictor="exact", rho=1.0)])
def test_extra_branches_make_no_token_late_where_step_times_are_known(seed, controller):
    draws = np.random.default_rng(seed)
    requests = requests_of(mixed_answers(seed), gap_s=0.2, prompt_tokens=draws.integers(1, 900, 40))
    found = run(requests, controller, log=True, tpot_slo_s=0.07, ttft_slo_s=1.0)
    log = found.log
    assert log["taken_s"] == pytest.approx(log["predicted_s"], abs=1e-11)
    longer = log["taken_s"] - log["plain_s"]
    assert (longer <= np.maximum(log["slack_s"], 0.0) + 1e-9).all()
    assert (log["extra"][log["slack_s"] < 0] == 0).all()
    assert log["extra"].sum() > 100
    assert found.over_slack == 0
    # The same engine counts those of a controller that does not care.
    assert run(requests, Eager(), tpot_slo_s=0.07, ttft_slo_s=1.0).over_slack > 10


def test_no_parameter_of_the_engine_brings_taper_beyond_the_slack_that_it_predicts(busy):
    noise = np.exp(np.random.default_rng(0).normal(0, 0.2, 500))
    engine = Engine(kv_tokens=40_000, chunk_tokens=128, refit_s=1.0, tpot_slo_s=0.06)
    found = simulate_branches(busy, engine, line_step(), Taper(), line(), noise=noise, log=True)
    assert found.over_slack == 0 and found.extra_tokens > 0
    assert (found.predictor != line()).any()


def test_the_predictor_follows_a_machine_that_is_slower_than_its_profile():
    requests = requests_of(mixed_answers(0, 200), gap_s=0.2)
    # Half as slow again, in every term.
    slower = FittedStepTime(
        overhead_s=1.5 * FITTED[0], per_request_s=1.5 * FITTED[1], per_context_token_s=1.5 * FITTED[2],
        per_prefill_token_s=3e-4,
    )  # fmt: skip
    learned = run(requests, Taper(), slower, refit_s=5.0, log=True).log
    late = slice(len(learned["taken_s"]) // 2, None)
    assert np.abs(learned["predicted_s"] / learned["taken_s"] - 1)[late].mean() < 0.05
    stale = run(requests, Taper(), slower, refit_s=1e5, log=True).log
    assert np.abs(stale["predicted_s"] / stale["taken_s"] - 1)[late].mean() > 0.3


def slow_engine(requests, width, engine, step, shared=False):
    """Serve in the plainest way with up to ``width`` branches of each request, and return first and last times."""
    trace = requests.trace
    todo, batch, now, number = list(range(len(trace))), [], float(trace.arrival_s[0]), 0
    first, finish = [math.nan] * len(trace), [math.nan] * len(trace)
    while todo or batch:
        held = sum(r["need"] for r in batch)
        while todo and trace.arrival_s[todo[0]] <= now and len(batch) < engine.max_requests:
            i = todo[0]
            need = int(trace.prompt_tokens[i] + trace.output_tokens[i])
            if held + need > engine.kv_tokens:
                break
            stages = [
                requests.lengths[slice(*requests.branch_offsets[s : s + 2])].tolist()
                for s in range(requests.stage_offsets[i], requests.stage_offsets[i + 1])
            ]
            batch.append({"i": i, "need": need, "stages": stages, "missing": int(trace.prompt_tokens[i]),
                          "done": [0] * len(stages[0]), "base": int(trace.prompt_tokens[i])})  # fmt: skip
            held += need
            todo.pop(0)
        if not batch:
            now = max(now, float(trace.arrival_s[todo[0]]))
            continue
        room, prompt, pairs, ran, extras = engine.chunk_tokens, 0, 0, [], []
        for r in batch:
            if r["missing"]:
                take = min(room, r["missing"])
                before = r["base"] - r["missing"]
                pairs += take * before + take * (take + 1) // 2
                room, prompt = room - take, prompt + take
                r["missing"] -= take
                if not r["missing"]:
                    r["starts"] = True
                continue
            own, *more = [b for b, n in enumerate(r["stages"][0]) if r["done"][b] < n]
            ran.append((r, own, r["base"] + r["done"][own]))
            extras += [(r, b, r["done"][b] if shared else r["base"] + r["done"][b]) for b in more]
        n, wide = len(extras), {}
        for r, b, context in [extras[(k + number) % n] for k in range(n)]:
            if wide.get(r["i"], 1) < width and len(ran) < engine.max_sequences:
                wide[r["i"]] = wide.get(r["i"], 1) + 1
                ran.append((r, b, context))
        now += step.seconds(len(ran), sum(context for *_, context in ran), prompt, pairs)
        number += 1
        for r, b, _ in ran:
            r["done"][b] += 1
        for r in list(batch):
            if r.pop("starts", False):
                first[r["i"]] = now
                r["done"][0] = 1
            if r["done"] == r["stages"][0]:
                r["base"] += sum(r["stages"].pop(0))
                if not r["stages"]:
                    finish[r["i"]] = now
                    batch.remove(r)
                else:
                    r["done"] = [0] * len(r["stages"][0])
    return first, finish


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), width=st.integers(1, 6), chunk=st.sampled_from([7, 64, 300]),
    kv=st.sampled_from([900, 3000, 40_000]), most=st.sampled_from([2, 128]), shared=st.booleans(),
)  # fmt: skip
def test_a_second_and_plainer_engine_gives_the_same_times(seed, width, chunk, kv, most, shared):
    draws = np.random.default_rng(seed)
    requests = requests_of(mixed_answers(seed, 12), gap_s=0.3, prompt_tokens=draws.integers(1, 200, 12))
    step = FittedStepTime(overhead_s=0.04, per_request_s=1e-3, per_context_token_s=1e-6, per_prefill_token_s=2e-4,
                          per_prefill_pair_s=1e-7)  # fmt: skip
    engine = Engine(kv_tokens=kv, chunk_tokens=chunk, max_requests=most, max_sequences=24, shared_prefix=shared)
    found = simulate_branches(requests, engine, step, FixedCap(cap=width), line()).serving
    first, finish = slow_engine(requests, width, engine, step, shared)
    assert found.first_token_s == pytest.approx(first, abs=1e-9)
    assert found.finish_s == pytest.approx(finish, abs=1e-9)


def test_requests_wait_for_the_cache_and_for_admission():
    two = requests_of([[[20]], [[20]]], prompt_tokens=100)
    together = run(two, Off()).serving
    apart = run(two, Off(), kv_tokens=200).serving
    assert together.first_token_s[1] < together.finish_s[0] < apart.first_token_s[1]
    held_back = run(two, AdmittedEager(admission=0.1)).serving
    assert held_back.first_token_s[1] > held_back.finish_s[0]


def test_only_requests_within_both_objectives_count():
    requests = requests_of([[[50]]] * 20, gap_s=1.0)
    found = run(requests, Off(), STEADY)
    figures = {}
    for tpot, ttft in ((0.011, 1.0), (0.009, 1.0), (0.011, 0.001)):
        figures[tpot, ttft] = found.figures(Engine(tpot_slo_s=tpot, ttft_slo_s=ttft))
    assert figures[0.011, 1.0]["attainment"] == 1.0
    assert figures[0.011, 1.0]["goodput_tokens_per_s"] == figures[0.011, 1.0]["throughput_tokens_per_s"] > 40
    assert all(figures[key]["goodput_tokens_per_s"] == 0.0 for key in ((0.009, 1.0), (0.011, 0.001)))


def test_a_request_larger_than_the_cache_and_impossible_noise_are_refused(busy):
    with pytest.raises(BadValueError, match="KV cache"):
        run(busy, Off(), kv_tokens=100)
    for noise in ([], [1.0, 0.0], [np.nan]):
        with pytest.raises(BadValueError, match="Factors"):
            simulate_branches(busy, Engine(), line_step(), Off(), line(), noise=np.array(noise))
    with pytest.raises(BadValueError):
        Engine(chunk_tokens=0)
