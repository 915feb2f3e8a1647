"""One GPU in the simulator."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.adapters.lora_fidelity import cluster, workload
from wavetank.serving.placement.interface import Gpu, model_named
from wavetank.serving.placement.twin import capacity_per_s, configuration_of, judge, serve
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.simulate import simulate

LLAMA = "llama-3.1-8b-instruct"


def test_few_requests_are_all_served(problem):
    some = problem(0.05, 0.05)
    run = serve(LLAMA, some.adapters, 2, 1)
    assert run.share > 0.98 and run.worst_share == 1.0
    assert 0 < run.itl_mean_s < 0.1


def test_twice_the_requests_of_a_full_gpu_give_no_more_tokens_and_wait_without_end(problem):
    full = capacity_per_s(problem(1.0), problem(1.0).adapters, 1)
    half, twice, four_times = (serve(LLAMA, problem(times * full).adapters, 1, 1) for times in (0.5, 2, 4))
    assert four_times.given_tokens == pytest.approx(twice.given_tokens, rel=0.03)
    # Of requests that were finished within the hour.
    assert half.ttft_p99_s < 2 < 100 < min(twice.ttft_p99_s, four_times.ttft_p99_s)


def test_one_adapter_is_the_plain_engine_with_the_cost_of_one(problem):
    """One adapter with many slots is what the same cluster gives with the costs of one adapter put into its steps."""
    some = problem(2.0)
    configuration = configuration_of(LLAMA, some.adapters, 8)
    costs = dataclasses.replace(model_named(LLAMA)[1], first_load_s_per_rank=0.0)
    requests = workload(configuration, 3, duration_s=600.0)
    with_adapter = simulate(requests, cluster(configuration, costs), RoundRobin())
    factor = 1 + costs.percent_per_adapter / 100
    scaled = dataclasses.replace(
        costs,
        **{name: getattr(costs, name) * factor for name in
           ("overhead_s", "per_request_s", "per_context_token_s", "per_prefill_token_s")},
    )  # fmt: skip
    scaled = dataclasses.replace(
        scaled, overhead_s=scaled.overhead_s + costs.per_adapter_s + costs.per_adapter_s_per_rank * 8
    )
    plain = simulate(requests, cluster(configuration, scaled, adapters=False), RoundRobin())
    assert np.mean(with_adapter.finish_s - with_adapter.arrival_s) == pytest.approx(
        np.mean(plain.finish_s - plain.arrival_s), rel=0.01
    )


def test_the_largest_rate_is_kept_up_with_and_a_tenth_more_is_not(problem):
    mix = problem(3.0, 2.0, 1.0, 1.0, ranks=(8, 16))
    full = capacity_per_s(mix, mix.adapters, 4, search_s=3600.0)
    scale = full / 7.0
    runs = [
        judge(problem(*(scale * times * rate for rate in (3.0, 2.0, 1.0, 1.0)), ranks=(8, 16)),
              Gpu(adapters=("a0", "a1", "a2", "a3"), slots=4), 7)
        for times in (0.93, 1.12)
    ]  # fmt: skip
    assert runs[0].share >= 0.9 > runs[1].share


def test_fewer_slots_than_adapters_cost_throughput(problem):
    many = problem(*[1.0] * 32)
    assert capacity_per_s(many, many.adapters, 1) < 0.8 * capacity_per_s(many, many.adapters, 32)


def test_slots_without_memory_are_refused(problem):
    with pytest.raises(BadValueError, match="No KV cache"):
        serve(LLAMA, problem(1.0, ranks=(64,)).adapters, 384, 0)
