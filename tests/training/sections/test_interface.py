"""Layouts by hand, samples dealt evenly, and plans that leave samples out or cannot be."""

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.sections.interface import Batch, Plan, dealt, flow, step


def small(**words):
    forward = np.array([30, 0, 60, 0])
    given = {"tokens": np.full(4, 7), "forward_ps": forward, "critical_ps": np.array([120, 240, 60, 120])}
    given |= {"backward_ps": 2 * forward, "ranks": 1, "stages": 3, "stage_gpus": 4, "stage_layers": 4}
    return Batch(**(given | {"encoder_gpus": 2, "queue": 2} | words))


ALL = np.arange(4)


def test_an_encoder_of_its_own_is_slower_the_fewer_gpus_it_has():
    times = flow(small(), Plan(orders=()), ALL)
    assert times.forward_ps.tolist() == [[60, 0, 120, 0]]
    assert times.critical_ps.tolist() == [120, 240, 60, 120]


def test_times_of_days_are_not_wrapped_around():
    days = small(critical_ps=np.full(4, 24 * 10**16), stage_layers=40)
    times = flow(days, Plan(orders=(), layout="stage-0"), ALL)
    assert times.critical_ps.tolist() == [24 * 10**16] * 4
    assert (times.forward_ps[0] - days.forward_ps).tolist() == [8 * 10**16] * 4
    assert step(days, Plan(orders=(ALL,), layout="stage-0")).time_ps >= 4 * 24 * 10**16


def test_a_first_stage_has_the_encoder_and_its_layers_and_may_give_them_away():
    whole = flow(small(), Plan(orders=(), layout="stage-0"), ALL)
    assert whole.forward_ps.tolist() == [[30 + 40, 80, 60 + 20, 40]]
    assert whole.backward_ps.tolist() == [[60 + 80, 160, 120 + 40, 80]]
    assert whole.critical_ps.tolist() == [120, 240, 60, 120]
    half = flow(small(), Plan(orders=(), layout="stage-0", moved_layers=2), ALL)
    assert half.forward_ps.tolist() == [[30 + 20, 40, 60 + 10, 20]]
    # Two other stages have one layer more each.
    assert half.critical_ps.tolist() == [150, 300, 75, 150]


def test_a_step_is_that_of_its_slowest_rank_and_counts_its_gpus():
    given = small(ranks=2)
    plan = Plan(orders=(np.array([1, 0]), np.array([3, 2])), queue=0)
    took = step(given, plan)
    # Rank 0: text, image (ready), then the encoder's backward pass; rank 1 likewise.
    assert took.time_ps == max(240 + 120 + 120, 120 + 60 + 240)
    assert took.gpus == 2 * (3 * 4 + 2)
    assert step(given, replace(plan, layout="stage-0")).gpus == 2 * 3 * 4
    # Where the first stage is a machine of its own, its part of the first and the last sample fills the pipeline.
    alone = small(forward_ps=np.zeros(4, int), backward_ps=np.zeros(4, int))
    for order in (ALL, ALL[::-1]):
        only = Plan(orders=(order,), layout="stage-0", queue=0)
        assert 540 <= step(alone, only).time_ps < 1.1 * 540
    idle = [480 - 360, 480 - 180]
    assert took.idle_ps == np.mean(idle)
    assert took.bound_ps == 420


def test_samples_are_dealt_so_that_both_sections_are_even():
    draws = np.random.default_rng(0)
    image = draws.random(64) < 0.5
    forward = np.where(image, draws.integers(1, 100, 64), 0)
    many = small(
        tokens=np.ones(64, int), forward_ps=forward, backward_ps=2 * forward, critical_ps=draws.integers(50, 200, 64),
        ranks=4, encoder_gpus=4,
    )  # fmt: skip
    ranks = dealt(many, Plan(orders=()))
    assert np.array_equal(np.sort(np.concatenate(ranks)), np.arange(64))
    assert all(np.array_equal(each, np.sort(each)) for each in ranks)
    for work in (many.critical_ps, 3 * forward):
        loads = [work[each].sum() for each in ranks]
        assert max(loads) < 1.1 * np.mean(loads)
    assert max(each.size for each in ranks) <= 20


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": np.ones(3, int)}, {"critical_ps": np.array([1, 0, 1, 1])}, {"forward_ps": np.array([-1, 0, 0, 0])},
        {"backward_ps": np.zeros(4)}, {"stages": 1}, {"encoder_gpus": 0}, {"queue": -1}, {"ranks": 0},
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_is_refused(change):
    with pytest.raises(BadValueError):
        small(**change)


def test_plans_that_leave_samples_out_or_have_no_such_layout_are_refused():
    for orders in ((ALL[:3],), (np.array([0, 1, 2, 2]),), (ALL, ALL[:0])):
        with pytest.raises(BadValueError):
            step(small(), Plan(orders=orders))
    for words in ({"layout": "elsewhere"}, {"moved_layers": 1}, {"layout": "stage-0", "moved_layers": 5}):
        with pytest.raises(BadValueError):
            step(small(), Plan(orders=(ALL,), **words))
