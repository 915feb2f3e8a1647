"""Critics."""

import math
from dataclasses import replace

import numpy as np
import pytest

from wavetank.serving.sharing.critics import FEATURES, Fluid, Learned, features, gain, value_of
from wavetank.serving.sharing.interface import Move

CRITICS = {"fluid": Fluid(), "learned": Learned()}
AWAY = Move(service="s0", to="n1")


def test_features_of_a_known_view(view):
    rows = features(view(radio=((0, 0.5),), ai=((0, 2.0, 0.1, 1.0), (0, 1.0, 0.05, 0.5))))
    row = dict(zip(FEATURES, rows[1], strict=True))
    assert not rows[0].any()
    assert row["gpu_left"] == 0.5 and row["gpu_use"] == pytest.approx(0.25 / 0.5)
    assert row["cpu_use"] == pytest.approx(0.125 / 0.5)
    assert row["own_use"] == pytest.approx(0.4) and row["others"] == 1
    assert row["work_over_deadline"] == pytest.approx(0.2) and row["rate_times_deadline"] == 2.0
    assert row["radio_share"] == 0.5


@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
class TestEveryCritic:
    def test_fulfilment_is_a_share_and_falls_with_the_load(self, view, critic):
        found = [critic.of(view(ai=((0, rate, 0.1, 1.0),)))[2] for rate in (0.5, 3.0, 6.0, 15.0)]
        assert all(0 <= each <= 1 for each in found)
        assert found[0] > 0.97 and found[3] < 0.7
        assert found == sorted(found, reverse=True)

    def test_moving_away_from_a_full_node_wins(self, view, critic):
        full = view(ai=((0, 5.0, 0.1, 0.5), (0, 4.0, 0.1, 0.5)))
        assert gain(full, AWAY, critic) > 10

    def test_moving_where_nothing_is_won_loses_the_interruption(self, view, critic):
        assert gain(view(ai=((0, 0.5, 0.1, 5.0),)), AWAY, critic) < -1

    def test_an_interruption_as_long_as_the_horizon_is_never_worth_it(self, view, critic):
        full = view(ai=((0, 50.0, 0.1, 0.5), (0, 40.0, 0.1, 0.5), (0, 40.0, 0.1, 0.5)), downtime_s=math.inf)
        assert gain(full, AWAY, critic) == -math.inf

    def test_radio_functions_that_do_not_fit_count(self, view, critic):
        assert critic.of(view(radio=((0, 0.7), (0, 0.6)), ai=()))[:2].tolist() == [0, 0]
        assert critic.of(view(radio=((0, 0.5), (0, 0.5)), ai=()))[:2].tolist() == [1, 1]


def test_the_fluid_tail_is_that_of_an_m_m_1_queue(view):
    # One exponential service alone: P(sojourn > D) = exp(-(mu - lambda) D), here with use 0.5 in front by the formula.
    one = view(radio=(), ai=((0, 5.0, 0.1, 0.4),))
    one = replace(one, loads=(replace(one.loads[0], spread=1.0, cpu_s=0.0),))
    assert Fluid().of(one)[0] == pytest.approx(1 - 0.5 * np.exp(-(10 - 5) * 0.4))


def test_idle_services_count_nothing(view):
    idle = view(ai=((0, 0.0, 0.1, 1.0),))
    assert value_of(idle, np.array([1.0, 1.0, 0.3])) == 2.0
