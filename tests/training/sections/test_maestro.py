"""Insertion against all orders, never worse than what is given, and nothing changed where nothing can be gained."""

from itertools import permutations

import numpy as np
from tests.training.sections.by_the_clock import walked
from tests.training.sections.test_simulate import random_flow
from tests.training.sections.test_workload import batch

from wavetank.training.sections.flow_shop import johnson, makespan
from wavetank.training.sections.interface import step
from wavetank.training.sections.maestro import Maestro, wavefront
from wavetank.training.sections.rivals import as_given, static_rule
from wavetank.training.sections.simulate import Flow, run


def test_insertion_is_close_to_the_best_of_all_orders():
    ratios = []
    for seed in range(12):
        flow = random_flow(seed, 6, queue=seed % 3, images=0.6)
        parts = [each.tolist() for each in (flow.forward_ps, flow.critical_ps, flow.backward_ps)]
        best = min(walked(*parts, list(order), flow.queue) for order in permutations(range(6)))
        found = run(flow, wavefront(flow)).makespan_ps
        assert found >= best
        ratios.append(found / best)
    assert np.mean(ratios) < 1.03


def test_it_is_never_worse_than_the_given_order_and_keeps_one_that_is_as_good():
    for seed in range(30):
        flow = random_flow(seed, 15, sections=1 + seed % 2, queue=seed % 4)
        assert run(flow, wavefront(flow)).makespan_ps <= run(flow, np.arange(15)).makespan_ps
    texts = Flow(forward_ps=np.zeros((1, 6), int), critical_ps=np.arange(1, 7), backward_ps=np.zeros((1, 6), int))
    assert wavefront(texts).tolist() == [0, 1, 2, 3, 4, 5]


def test_with_one_frozen_section_the_step_is_as_short_as_johnsons():
    # Insertion alone misses it in two of these.
    for seed in range(400):
        draws = np.random.default_rng(seed)
        count = int(draws.integers(3, 40))
        forward = np.where(draws.random(count) < 0.8, draws.integers(1, 1000, count), 0)
        times = np.stack([forward, draws.integers(1, 1000, count)], 1)
        flow = Flow(forward_ps=forward[None], critical_ps=times[:, 1].copy(), backward_ps=0 * forward[None])
        assert run(flow, wavefront(flow)).makespan_ps == makespan(times, johnson(times))


def drawn(seed, ratio, shared):
    """32 samples, 40 % with images; the ratio is that of the encoder's backward work to the model's."""
    draws = np.random.default_rng(seed)
    image = draws.random(32) < 0.4
    encoder = np.where(image, np.exp(0.7 * draws.normal(size=32)), 0)
    critical = np.exp(0.7 * draws.normal(size=32))
    forward = (encoder / encoder.sum() * critical.sum() * ratio / 2 * 1e6).astype(np.int64)
    return Flow(
        forward_ps=forward[None], critical_ps=(critical * 1e6).astype(np.int64), backward_ps=2 * forward[None],
        shared=shared,
    )  # fmt: skip


def over_bound(order, ratio, shared):
    flows = [drawn(seed, ratio, shared) for seed in range(8)]
    return np.mean([run(flow, order(flow)).makespan_ps / flow.bound_ps for flow in flows])


def test_a_light_encoder_is_hidden_by_any_sane_order_and_a_heavy_one_by_insertion_alone():
    # Two pools: backward work is the heaviest load of the encoder.
    light = [over_bound(order, 0.2, False) for order in (as_given, static_rule, wavefront)]
    heavy = [over_bound(order, 1.0, False) for order in (as_given, static_rule, wavefront)]
    assert max(light) < 1.05
    assert light[1] < 1.01
    assert min(heavy[:2]) > 1.15
    assert light[2] < 1.001
    assert heavy[2] < 1.05
    # One pool, as much work as the model.
    assert over_bound(wavefront, 2 / 3, True) < 1.03 < over_bound(static_rule, 2 / 3, True)


def test_a_plan_has_its_own_sections_and_the_queue_of_the_batch():
    given = batch(images=0.5, work=0.8)
    plan = Maestro().plan(given)
    assert (plan.layout, plan.moved_layers, plan.queue) == ("sections", 0, 4)
    assert step(given, plan).time_ps < 1.05 * step(given, plan).bound_ps
