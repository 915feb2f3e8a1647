"""Rivals by formula, the best of their choices against all of them, and choices made once."""

import numpy as np
from tests.training.sections.test_placement import job

from wavetank.training.sections.placement_rivals import BubbleFilling, FirstStage, Pool, filled

HEAVY, LIGHT = job(images=0.9, name="C", microbatches=32), job(images=0.1, microbatches=32)


def test_an_encoder_in_the_first_stage_adds_its_work_to_that_of_the_stage():
    took = FirstStage().step(HEAVY, LIGHT)
    work = int(HEAVY.work_ps.sum(1).max()) // HEAVY.stage_gpus
    stage = 20 * HEAVY.layer_ps * 32
    assert took.time_ps >= 3 * (HEAVY.work_ps.sum() // 2 // HEAVY.stage_gpus + stage) * 0.99
    assert took.time_ps <= 3 * (work + stage) * 1.1
    assert took.gpus == HEAVY.stage_gpus


def test_the_best_layers_are_the_best_of_all():
    for given in (LIGHT, HEAVY):
        times = {first: FirstStage.ran(given, first).time_ps for first in range(21)}
        assert times[FirstStage.best_first(given)] == min(times.values())
    assert FirstStage.best_first(HEAVY) < FirstStage.best_first(LIGHT)
    again, once = (FirstStage(layers=each).step(HEAVY, LIGHT).time_ps for each in ("replanned", "once"))
    assert again < once <= FirstStage().step(HEAVY, LIGHT).time_ps


def test_the_best_pool_is_the_best_of_all_and_none_without_images():
    for given in (LIGHT, HEAVY):
        times = {gpus: Pool.ran(given, gpus).time_ps for gpus in range(1, given.stages * given.stage_gpus)}
        assert times[Pool.best_gpus(given)] == min(times.values())
    assert Pool.best_gpus(job(images=0.0)) == 0
    texts = job(images=0.0)
    assert Pool().step(texts, texts).time_ps == FirstStage().step(texts, texts).time_ps
    best, once = (Pool(split=each).step(HEAVY, LIGHT) for each in ("best", "once"))
    assert best.time_ps < 0.8 * once.time_ps
    assert best.gpus > once.gpus == Pool.best_gpus(LIGHT)


def test_bubbles_take_what_they_hold_and_the_rest_is_shared():
    assert filled(0, 5, 4).tolist() == [0, 0, 0, 0]
    assert filled(9, 2, 3).tolist() == [1, 3, 5]
    assert filled(2, 2, 3).tolist() == [0, 0, 2]
    for work in (1, 10, 47, 1000):
        parts = filled(work, 5, 4)
        assert abs(int(parts.sum()) - work) <= 4
        # All that are used are needed at one time.
        ends = (parts - 5 * np.arange(4))[parts > 0]
        assert ends.size == 0 or ends.max() == ends.min()


def test_filled_bubbles_are_fast_and_hold_every_micro_batch():
    took = BubbleFilling().step(HEAVY, LIGHT)
    assert took.held == 32
    assert HEAVY.oracle_ps <= took.time_ps < 1.15 * HEAVY.oracle_ps
    texts = job(images=0.0)
    assert BubbleFilling().step(texts, texts).time_ps == FirstStage().step(texts, texts).time_ps
