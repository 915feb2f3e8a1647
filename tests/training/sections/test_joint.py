"""Pipelines against formulas, a walk in plain Python and bounds; programmes that do everything once."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.sections.joint import MODES, programme, run_pipeline

UNIT = 240


def equal(stages, microbatches, work):
    forward = np.full((stages, microbatches), UNIT, np.int64)
    return forward, np.full((stages, microbatches), round(work * UNIT / stages), np.int64)


def walked(mode, tables):
    """Return the time of a step by going over all stages again and again until nothing moves."""
    stages, microbatches = tables[0].shape
    left = [programme(mode, stage, stages, microbatches) for stage in range(stages)]
    free, done = [0] * stages, {}
    while any(left):
        before = sum(map(len, left))
        for s in range(stages):
            while left[s]:
                kind, m = left[s][0]
                if kind == 0:
                    needs = [(0, s - 1, m)] if s else [(2, k, m) for k in range(stages) if mode != "plain"]
                elif kind == 1:
                    needs = [(1, s + 1, m) if s + 1 < stages else (0, s, m)]
                else:
                    needs = [(1, 0, m)] if kind == 3 else []
                if not all(each in done for each in needs):
                    break
                free[s] = max([free[s], *(done[each] for each in needs)]) + int(tables[kind][s, m])
                done[kind, s, m] = free[s]
                left[s].pop(0)
        assert sum(map(len, left)) < before, "nothing moves"
    return max(free)


@pytest.mark.parametrize(
    ("stages", "microbatches", "work", "first", "spread"),
    [(8, 64, 1, 130 + 1 / 3, 79.875), (8, 64, 3, 256, 97.625), (4, 16, 0.5, 25.5, 21.375)],
)
def test_known_times_of_an_encoder_in_the_first_stage_and_spread(stages, microbatches, work, first, spread):
    forward, chunk = equal(stages, microbatches, work)
    stretched = forward + chunk
    assert run_pipeline("plain", stretched, 2 * stretched).time_ps / UNIT / 3 == pytest.approx(spread, rel=1e-3)
    heavy = forward.copy()
    heavy[0] += round(work * UNIT)
    assert run_pipeline("plain", heavy, 2 * heavy).time_ps / UNIT / 3 == pytest.approx(first, rel=1e-3)
    # Chunks of the joint pipeline also fill what stages wait at begin and end: no longer than when all are stretched.
    joint = run_pipeline("joint", forward, 2 * forward, chunk, 2 * chunk).time_ps / UNIT / 3
    assert microbatches * (1 + work / stages) <= joint <= spread


def test_random_pipelines_take_what_a_walk_takes():
    for seed in range(25):
        draws = np.random.default_rng(seed)
        shape = int(draws.integers(1, 6)), int(draws.integers(1, 9))
        tables = [draws.integers(0, 20, shape) for _ in range(4)]
        assert run_pipeline("plain", *tables[:2]).time_ps == walked("plain", tables[:2])
        for mode in ("joint", "static"):
            assert run_pipeline(mode, *tables).time_ps == walked(mode, tables)


def test_every_stage_does_everything_once_and_encodes_before_it_is_needed():
    for mode in MODES:
        for stages, microbatches in ((1, 1), (4, 2), (3, 7), (5, 5)):
            for stage in range(stages):
                found = programme(mode, stage, stages, microbatches)
                kinds = (0, 1) if mode == "plain" else (0, 1, 2, 3)
                assert sorted(found) == [(kind, m) for kind in kinds for m in range(microbatches)]


def test_texts_alone_take_what_the_model_takes():
    forward, _ = equal(6, 20, 0)
    none = np.zeros_like(forward)
    alone = run_pipeline("plain", forward, 2 * forward).time_ps
    assert alone == (20 + 5) * 3 * UNIT
    for mode in ("joint", "static"):
        assert run_pipeline(mode, forward, 2 * forward, none, none).time_ps == alone


def test_a_joint_pipeline_holds_few_micro_batches_and_a_static_one_all():
    forward, chunk = equal(4, 40, 1)
    assert run_pipeline("static", forward, 2 * forward, chunk, 2 * chunk).held == 40
    assert 4 <= run_pipeline("joint", forward, 2 * forward, chunk, 2 * chunk).held <= 8
    assert run_pipeline("plain", forward, 2 * forward).held == 4


@pytest.mark.parametrize(
    ("mode", "tables"),
    [
        ("other", (np.ones((2, 2), int),) * 2), ("plain", (np.ones((2, 2), int),) * 4),
        ("joint", (np.ones((2, 2), int),) * 2), ("plain", (np.ones((2, 2)),) * 2), ("plain", (np.ones(4, int),) * 2),
        ("plain", (np.ones((2, 2), int), np.ones((2, 3), int))), ("plain", (-np.ones((2, 2), int),) * 2),
        ("plain", (np.ones((0, 2), int),) * 2),
    ],
)  # fmt: skip
def test_pipelines_that_cannot_be_are_refused(mode, tables):
    with pytest.raises(BadValueError):
        run_pipeline(mode, *tables)
