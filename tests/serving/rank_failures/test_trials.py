"""Trials: what is counted as wrong and lost, and prompts of a seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wavetank.serving.rank_failures.instance import Answer
from wavetank.serving.rank_failures.small_model import VOCABULARY, Shape, SmallModel, alone
from wavetank.serving.rank_failures.trials import (
    SIDES,
    Outcome,
    expected,
    judged,
    many_faults,
    one_fault,
    prompts,
    step_times,
)

SHAPE = Shape(hidden=8, inner=16, experts=4)


def test_wrong_and_lost_answers_are_counted_apart() -> None:
    want = list(expected(SHAPE, (1, 2), 6))
    assert want == alone(SmallModel(SHAPE), [1, 2], 6)
    said = [want, want[:4], [*want[:5], want[5] ^ 1]]
    answers = [Answer(number, [1, 2], 6, each) for number, each in enumerate(said)]
    instance: Any = SimpleNamespace(shape=SHAPE, answers={each.number: each for each in answers})
    outcome = Outcome()
    judged(instance, answers, outcome)
    assert (outcome.answers, outcome.wrong, outcome.lost, instance.answers) == (3, 1, 1, {})


def test_prompts_are_those_of_the_seed() -> None:
    assert prompts(3, 9) == prompts(3, 9) != prompts(4, 9)
    assert all(1 <= len(each) <= 8 and max(each) < VOCABULARY for each in prompts(3, 50))


@pytest.mark.slow
def test_one_fault_and_many_leave_every_answer_right() -> None:
    found = one_fault({"ranks": 3, "replicas": 1}, shape=SHAPE, seed=1, requests=4, count=40)
    assert (found.kills, found.wrong, found.lost, found.hung, found.answers) == (1, 0, 0, 0, 4)
    assert 0 < found.pause_s[0] <= found.whole_s[0] < 30 and found.copied >= 2
    many = many_faults({"ranks": 3, "replicas": 1}, shape=SHAPE, seed=2, kills=8)
    assert many.kills >= 8 and (many.wrong, many.lost, many.hung, many.moved) == (0, 0, 0, 0)


@pytest.mark.slow
def test_five_hundred_deaths_leave_every_answer_right() -> None:
    many = many_faults({"ranks": 4, "replicas": 1, "timeout_s": 5.0}, shape=Shape(), seed=0, kills=500)
    assert many.kills >= 500 and (many.wrong, many.lost, many.hung, many.moved) == (0, 0, 0, 0)
    assert len(many.at) >= 10


@pytest.mark.slow
def test_steps_with_tables_and_with_constants_are_timed() -> None:
    found = step_times(SHAPE, ranks=2, rounds=2, steps=5, requests=2, replicas=1)
    assert set(found) == set(SIDES) and min(found.values()) > 0
