import numpy as np
import pytest

from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.referee_choice import RefereeChoice
from wavetank.protocols.sessions.study import DELAYS, SessionRace, draw_delays
from wavetank.protocols.sessions.untagged_timeouts import UntaggedTimeouts


def figures(system, seed=0, **settings):
    return {
        metric: value for metric, value, _ in SessionRace(**{"sessions": 400, **settings}).measure(system, seed).rows
    }


@pytest.mark.parametrize("kind", DELAYS)
def test_delays_have_mean_one_and_follow_their_seed(kind):
    drawn = draw_delays(kind, (5000, 4), 1)
    assert drawn.mean() == pytest.approx(1.0, abs=0.03)
    assert np.array_equal(drawn, draw_delays(kind, (5000, 4), 1))


def test_mixed_choice_needs_two_messages_where_the_referee_needs_four():
    mixed, referee = figures(MixedChoice(), window=0.0), figures(RefereeChoice(), window=0.0)
    assert (mixed["messages"], referee["messages"]) == (2.0, 4.0)
    assert mixed["agreement"] == referee["agreement"] == 1.0
    assert mixed["leftovers"] == referee["leftovers"] == 0.0


def test_mixed_choice_saves_one_delay():
    mixed, referee = (figures(system, delays="constant", window=0.0) for system in (MixedChoice(), RefereeChoice()))
    assert (mixed["latency_delays"], referee["latency_delays"]) == (1.0, 2.0)


def test_hand_written_timeouts_end_on_two_branches():
    found = figures(UntaggedTimeouts(), window=0.0)
    assert found["agreement"] == 0.0
    assert found["leftovers"] == 2.0


def test_all_systems_see_the_same_wishes():
    assert figures(MixedChoice())["crossings"] == figures(UntaggedTimeouts())["crossings"]


def test_equal_seeds_give_equal_figures():
    assert figures(MixedChoice(), 3) == figures(MixedChoice(), 3) != figures(MixedChoice(), 4)


@pytest.mark.slow
def test_a_hundred_thousand_schedules_agree():
    found = figures(MixedChoice(), sessions=100_000, window=2.0)
    assert (found["agreement"], found["leftovers"]) == (1.0, 0.0)
