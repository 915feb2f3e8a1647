from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.ledger.verdicts import (
    ANOTHER,
    CONSISTENT,
    CONTRADICTED,
    EXCEEDS,
    GOOD,
    NOT_RUN,
    REACHED,
    SHORT,
    UNDECIDED,
    far,
    of_figure,
    of_goal,
)
from wavetank.study.effects import NOTHING, Effect, effect

ENDS = st.tuples(st.floats(0.01, 50), st.floats(0.01, 50)).map(sorted)


def known(low: float, high: float) -> Effect:
    return Effect(math.sqrt(low * high), low, high, low, high, 6)


@pytest.mark.parametrize(("better", "paper", "ends", "verdict"), [
    ("lower", 0.5, (0.4, 0.5), REACHED), ("lower", 0.5, (0.4, 0.7), CONSISTENT), ("lower", 0.5, (0.6, 0.9), SHORT),
    ("lower", 0.5, (0.4, 0.71), UNDECIDED),
    ("lower", 0.5, (0.8, 1.2), UNDECIDED), ("lower", 0.5, (0.8, 1.0), UNDECIDED),
    ("lower", 0.5, (1.0, 1.0), CONTRADICTED),
    ("lower", 0.5, (1.1, 1.2), CONTRADICTED), ("lower", 0.5, (1.0, 1.2), UNDECIDED),
    ("lower", 0.5, (0.1, 0.2), ANOTHER),
    ("lower", None, (0.9, 0.99), REACHED), ("lower", None, (1.1, 1.2), CONTRADICTED),
    ("higher", 2.0, (2.0, 2.5), REACHED), ("higher", 2.0, (1.42, 2.1), CONSISTENT),
    ("higher", 2.0, (1.41, 2.1), UNDECIDED), ("higher", 2.0, (1.1, 1.9), SHORT),
    ("higher", 2.0, (0.9, 2.5), UNDECIDED), ("higher", 2.0, (0.5, 0.9), CONTRADICTED),
    ("higher", 2.0, (4.1, 5.0), ANOTHER), ("higher", 2.0, (3.9, 5.0), REACHED), ("higher", None, (1.1, 9.0), REACHED),
])  # fmt: skip
def test_a_papers_figure(better: str, paper: float | None, ends: tuple[float, float], verdict: str) -> None:
    assert of_figure(known(*ends), paper, better=better, neutral=1.0) == verdict


@pytest.mark.parametrize(("ends", "verdict"), [
    ((0.04, 0.05), REACHED), ((0.05, 0.2), CONSISTENT), ((0.3, 0.4), SHORT), ((0.5, 1.2), UNDECIDED),
    ((1.1, 1.2), CONTRADICTED), ((0.001, 0.02), ANOTHER),
])  # fmt: skip
def test_an_absolute_figure_of_a_paper_can_get_every_verdict(ends: tuple[float, float], verdict: str) -> None:
    assert of_figure(known(*ends), 0.05, better="lower", neutral=1.0) == verdict


@pytest.mark.parametrize(("least", "most", "better", "ends", "verdict"), [
    (5, None, "higher", (5.0, 6.0), REACHED), (5, None, "higher", (4.0, 6.0), UNDECIDED),
    (5, None, "higher", (3.0, 4.0), SHORT),
    (None, 5, "lower", (4.0, 5.0), REACHED), (None, 5, "lower", (4.0, 6.0), UNDECIDED),
    (None, 5, "lower", (6.0, 7.0), SHORT),
    (3, 5, "higher", (3.0, 5.0), REACHED), (3, 5, "higher", (2.0, 4.0), UNDECIDED),
    (3, 5, "higher", (6.0, 7.0), EXCEEDS), (3, 5, "higher", (1.0, 2.0), SHORT),
    (3, 5, "lower", (1.0, 2.0), EXCEEDS), (3, 5, "lower", (6.0, 7.0), SHORT),
])  # fmt: skip
def test_a_goal(least: float | None, most: float | None, better: str, ends: tuple[float, float], verdict: str) -> None:
    assert of_goal(known(*ends), least, most, better=better) == verdict


def test_a_limit_that_no_run_can_do_better_than_is_one_of_every_run() -> None:
    """Typical runs lose nothing; the others are what the goal is about."""
    lost = effect([0.0] * 18 + [1.0, 2.0])
    assert lost.low == lost.high == 0
    assert of_goal(lost, None, 0, better="lower") == SHORT
    assert of_goal(effect([0.0] * 20), None, 0, better="lower") == REACHED
    right = effect([1.0] * 18 + [0.9, 0.0])
    assert of_goal(right, 1, None, better="higher") == SHORT
    # Some runs keep the limit with room to spare: it is one of typical runs.
    assert of_goal(effect([0.0] * 11 + [1.0] * 8 + [9.0]), None, 1, better="lower") == REACHED


def test_three_equal_runs_do_not_show_that_there_is_no_effect() -> None:
    for ratios, verdict in (([1.0] * 3, UNDECIDED), ([1.0] * 6, CONTRADICTED)):
        assert of_figure(effect(ratios), None, better="higher", neutral=1.0) == verdict
    assert of_figure(effect([1.0], exact=True), None, better="higher", neutral=1.0) == CONTRADICTED
    # Half of the runs or more have no event with either system: nothing is known of the others.
    rare = effect([1.0] * 18 + [0.0, 0.0])
    assert of_figure(rare, None, better="lower", neutral=1.0) == UNDECIDED


def test_without_figures_or_an_interval_there_is_no_verdict() -> None:
    few = Effect(1.5, -math.inf, math.inf, 1.5, 1.5, 1)
    for judged in (lambda found: of_figure(found, 2.0, better="higher", neutral=1.0),
                   lambda found: of_goal(found, 1.0, None, better="higher")):  # fmt: skip
        assert judged(NOTHING) == NOT_RUN
        assert judged(few) == UNDECIDED


@given(ENDS, st.floats(1.05, 20), st.floats(1.01, 5))
def test_noise_never_helps(ends: list[float], figure: float, wider: float) -> None:
    """A wider interval around the same centre never turns an open or bad verdict into a good one."""
    narrow = known(*ends)
    wide = known(ends[0] / wider, ends[1] * wider)
    for verdict in (
        lambda found: of_figure(found, figure, better="higher", neutral=1.0),
        lambda found: of_figure(found, 1 / figure, better="lower", neutral=1.0),
        lambda found: of_figure(found, None, better="higher", neutral=1.0),
        lambda found: of_goal(found, figure, None, better="higher"),
        lambda found: of_goal(found, None, figure, better="lower"),
    ):
        before, after = verdict(narrow), verdict(wide)
        if before in (UNDECIDED, CONTRADICTED):
            assert after not in GOOD
        if after == REACHED:
            assert before in (REACHED, ANOTHER)


@given(ENDS, st.floats(1.05, 20))
def test_lower_is_the_mirror_image_of_higher(ends: list[float], figure: float) -> None:
    mirrored = known(1 / ends[1], 1 / ends[0])
    up = of_figure(known(*ends), figure, better="higher", neutral=1.0)
    assert of_figure(mirrored, 1 / figure, better="lower", neutral=1.0) == up


def test_how_far_is_too_far() -> None:
    assert far(6.0, 1.0) == pytest.approx(12.0)
    assert far(1.1, 1.0) == pytest.approx(1.331)
    assert far(-2.0, 0.0) == -6.0


def test_a_goal_is_exceeded_only_between_two_ends_and_on_the_good_side() -> None:
    above, below = known(2.0, 2.02), known(0.5, 0.52)
    assert of_goal(above, 0.9, 1.1, better="higher") == of_goal(below, 0.9, 1.1, better="lower") == EXCEEDS
    assert of_goal(above, 0.9, 1.1, better="") == of_goal(below, 0.9, 1.1, better="") == SHORT
    assert of_goal(above, None, 1.1, better="higher") == of_goal(below, 0.9, None, better="lower") == SHORT


def test_another_quantity_is_no_success() -> None:
    assert set(GOOD) == {REACHED, EXCEEDS, CONSISTENT}
