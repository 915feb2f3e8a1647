"""A tuner that looks at traces: known laws of the parts are found from few trials; what it lacks does not stop it."""

import itertools

import numpy as np
import pytest

from wavetank.insight.metrics.search import PARTS, CclSearch
from wavetank.study.tuning import Space, Trial, trials_to

PLANS = tuple(
    (tensor, stages, micro, 16 // micro, again)
    for tensor, stages, micro, again in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (0, 1))
)
SPACE = Space(
    configurations=PLANS, predicted_bytes=np.array([plan[2] * plan[1] for plan in PLANS]), room_bytes=16, node=4
)


def parts(plan):
    """Seconds of computing, of communication alone, and of waiting."""
    tensor, stages, micro, microbatches, again = plan
    return (
        (1.0 + again / 3) * (1 + 0.3 / micro),
        0.3 * (tensor - 1) ** 1.5 * microbatches**0.5,
        0.6 * stages / micro**0.5,
    )


SPEEDS = [1 / sum(parts(plan)) if fits <= 16 else None for plan, fits in zip(PLANS, SPACE.predicted_bytes, strict=True)]
FIGURES = [dict(zip(PARTS, np.array(parts(plan)[:2]) / sum(parts(plan)), strict=True)) for plan in PLANS]
BEST = max(speed for speed in SPEEDS if speed is not None)


def trials(tuner, seed, figures=FIGURES):
    found = trials_to(tuner, SPACE, SPEEDS, 0.99 * BEST, np.random.default_rng(seed), most=len(PLANS), figures=figures)
    return len(found)


def test_a_smooth_law_is_found_in_few_trials():
    assert np.median([trials(CclSearch(), seed) for seed in range(6)]) <= 12


def test_the_first_trials_are_spread():
    tried, draws = [], np.random.default_rng(0)
    for _ in range(4):
        number = CclSearch().propose(SPACE, tried, draws)
        tried.append(Trial(number, SPEEDS[number], FIGURES[number]))
    places = SPACE.features[[trial.number for trial in tried]]
    apart = min(np.abs(a - b).sum() for a, b in itertools.combinations(places, 2))
    assert apart >= 1.5


def test_parts_are_predicted_one_by_one_and_differ_from_their_sum():
    worked = [Trial(k, SPEEDS[k], FIGURES[k]) for k in (0, 9, 20, 33) if SPEEDS[k] is not None]
    at = SPACE.features[[trial.number for trial in worked]]
    mean, deviation = CclSearch()._speeds(at, worked, SPACE.features)
    blind, _ = CclSearch(traces=False)._speeds(at, worked, SPACE.features)
    assert mean[worked[0].number] == pytest.approx(np.log(SPEEDS[worked[0].number]), abs=0.05)
    assert np.abs(mean - blind).max() > 0.01
    assert (deviation > 0).all()


def test_without_shares_the_time_alone_counts():
    plain = [trials(CclSearch(), seed, figures=None) for seed in range(3)]
    assert plain == [trials(CclSearch(traces=False), seed) for seed in range(3)]


def test_what_does_not_fit_by_the_formula_is_not_tried_and_failures_stop_nobody():
    tried = [Trial(k, None) for k in range(4)]
    number = CclSearch().propose(SPACE, tried, np.random.default_rng(0))
    assert SPACE.predicted_bytes[number] <= 16
    free = {CclSearch(filtered=False).propose(SPACE, [], np.random.default_rng(s)) for s in range(200)}
    assert any(SPACE.predicted_bytes[each] > 16 for each in free)


def test_shares_above_one_are_brought_to_one():
    odd = [Trial(k, 1.0 + k, {PARTS[0]: 0.9, PARTS[1]: 0.9}) for k in range(4)]
    mean, deviation = CclSearch()._speeds(SPACE.features[:4], odd, SPACE.features)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
