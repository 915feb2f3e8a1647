"""The judging code on data whose truth is known: how often it is wrong, and what it can see."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.ledger.verdicts import CONTRADICTED, GOOD, REACHED, of_figure, of_goal
from wavetank.study.answer import Figures, Who, standings
from wavetank.study.effects import effect, paired
from wavetank.study.records import Record
from wavetank.study.study import Metric

TRIALS = 600
# Of 600 trials of a chance of 5 %, 48 or fewer are hits in 99.9 % of all cases.
MOST_WRONG = 48
METRIC = Metric("m", "", "higher")


def draws(count: int, noise: float, shape: str, seed: int, systems: int = 2) -> np.ndarray:
    """Return values (trial, system, replicate) around 1: log-normal, with outliers, or skewed."""
    random = np.random.default_rng([seed, count, round(1000 * noise)])
    size = (TRIALS, systems, count)
    values = np.exp(noise * random.standard_normal(size))
    if shape == "outliers":
        values *= np.where(random.random(size) < 0.1, 1 + 10 * noise * random.random(size), 1.0)
    elif shape == "skewed":
        values = 1 + noise * random.exponential(size=size)
    return values


@pytest.mark.parametrize("shape", ["normal", "outliers", "skewed"])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_equal_systems_are_told_apart_in_one_trial_of_twenty_at_most(count: int, noise: float, shape: str) -> None:
    values = draws(count, noise, shape, seed=1)
    found = [effect(list(ours / theirs)) for ours, theirs in values]
    wrong = [of_figure(each, None, better="higher", neutral=1.0) in (REACHED, CONTRADICTED) for each in found]
    assert sum(wrong) <= MOST_WRONG


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_a_system_just_at_the_figure_or_the_goal_reaches_it_in_one_trial_of_twenty_at_most(
    count: int, noise: float
) -> None:
    values = draws(count, noise, "normal", seed=2)
    found = [effect(list(1.2 * ours / theirs)) for ours, theirs in values]
    assert sum(of_figure(each, 1.2, better="higher", neutral=1.0) == REACHED for each in found) <= MOST_WRONG
    assert sum(of_goal(each, 1.2, None, better="higher") == REACHED for each in found) <= MOST_WRONG


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_forty_percent_of_an_effect_is_never_the_effect(count: int, noise: float) -> None:
    """Neither reached nor consistent with it: noise must not turn a weak effect into a good verdict."""
    found = [effect(list(1.176 * ours / theirs)) for ours, theirs in draws(count, noise, "normal", seed=3)]
    assert sum(of_figure(each, 1.5, better="higher", neutral=1.0) in GOOD for each in found) <= MOST_WRONG


@pytest.mark.parametrize("systems", [2, 5, 10])
@pytest.mark.parametrize("count", [6, 10])
def test_a_star_among_equals_is_rare_in_the_whole_table(count: int, systems: int) -> None:
    names = [f"s{number}" for number in range(systems)]
    who = {name: Who("system", name) for name in names}
    stars = 0
    for trial in draws(count, 0.1, "normal", seed=4, systems=systems)[:200]:
        data = Figures(
            Record("s", name, seed, "m", float(value), "", "simulated", {})
            for name, values in zip(names, trial, strict=True)
            for seed, value in enumerate(values)
        )
        stars += bool(standings(data, METRIC, {}, who, columns=1))
    # Of 200 trials of a chance of 5 %, 20 or fewer in 99.9 % of all cases.
    assert stars <= 20


@pytest.mark.parametrize(("noise", "count", "least"), [
    (0.01, 3, 0.75), (0.01, 5, 0.99), (0.02, 5, 0.75), (0.03, 10, 0.85), (0.05, 20, 0.8),
])  # fmt: skip
def test_what_can_be_seen_of_a_five_percent_gain_under_a_common_noise_of_twenty(
    noise: float, count: int, least: float
) -> None:
    """The power: the share of trials in which a paired gain of 5 % is found, by own noise and number of pairs."""
    common = np.exp(0.2 * np.random.default_rng(5).standard_normal((TRIALS, count)))
    seen = 0
    for shared, (ours, theirs) in zip(common, draws(count, noise, "normal", seed=6), strict=True):
        found = paired(dict(enumerate(1.05 * shared * ours)), dict(enumerate(shared * theirs)))
        seen += of_figure(found, None, better="higher", neutral=1.0) == REACHED
    assert seen / TRIALS >= least
