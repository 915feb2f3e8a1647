import numpy as np
import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.race import run_race


def races(sessions, seed):
    plan = MixedChoice().race()
    rng = np.random.default_rng(seed)
    wishes = rng.uniform(0, 2, (sessions, 2)).tolist()
    delays = rng.exponential(1.0, (sessions, 2)).tolist()
    return [run_race(plan, wish, delay) for wish, delay in zip(wishes, delays, strict=True)]


@pytest.mark.parametrize("sessions", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_over_random_schedules_both_end_on_one_branch_and_nothing_is_left(sessions):
    ends = races(sessions, 0)
    assert all(end.agreed and end.leftovers == 0 for end in ends)
    assert all(end.messages == (2 if end.crossed else 1) for end in ends)
    assert all(end.dropped == end.crossed for end in ends)
    assert 0.2 < sum(end.crossed for end in ends) / len(ends) < 0.8


@pytest.mark.parametrize("name", NAMES)
def test_protocols_come_as_text_or_as_global_types(name):
    assert set(MixedChoice().machines(example(name)))


def test_text_that_is_no_protocol_is_reported():
    with pytest.raises(BadFileError):
        MixedChoice().machines("nothing")


def test_rules_follow_the_parameters():
    assert not MixedChoice(drop_stale=False).race().drop_stale


def test_an_unknown_example_comes_with_the_nearest():
    with pytest.raises(Exception, match="nearest: race"):
        example("rase")
