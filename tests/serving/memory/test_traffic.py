"""Traces: popularities, rates, seeds, and what is refused."""

import numpy as np
import pytest
from tests.serving.memory.conftest import trace

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.memory.che import mean_service_s, zipf
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.traffic import KNOWN, UNSEEN, make_traffic, scenario, switching


def test_users_are_zipf_and_rates_follow_the_load():
    made = trace(requests=50_000, load=0.6)
    counts = np.sort(np.bincount(made.user, minlength=1500))[::-1]
    assert counts[:20] / 50_000 == pytest.approx(zipf(1500, 0.9)[:20], rel=0.1)
    rate = 50_000 / made.arrival_s[-1]
    assert rate * mean_service_s(Node(), 0.62, *KNOWN["steady"]) == pytest.approx(0.6, rel=0.02)


def test_equal_seeds_give_equal_traces_and_scoring_regimes_are_not_trained_on():
    one, again, other = trace(seed=1), trace(seed=1), trace(seed=2)
    assert np.array_equal(one.user, again.user) and one.key == again.key != other.key
    assert not set(KNOWN.values()) & set(UNSEEN.values())
    trained = {(each.row_exponent, each.user_exponent) for each in switching(3, 1000, 6, unseen=False)}
    assert not trained & {value[:2] for value in UNSEEN.values()}


def test_scenarios_have_their_lengths_and_regimes_turn_into_each_other():
    for name in ("steady", "trend", "mix", "training"):
        assert sum(each.requests for each in scenario(name, 0, 60_000)[0]) == pytest.approx(60_000, rel=0.01)
    assert len(switching(0, 100, 6, unseen=True, transition=0.0)) == 6
    surges = [each.surge for each in scenario("burst", 0, 60_000)[0]]
    assert max(surges) / min(surges) >= 3


def test_bad_traffic_is_refused():
    with pytest.raises(BadValueError):
        make_traffic((), Node(), 0)
    for wrong in ({"transition": 1.5}, {"transition": float("nan")}, {"segments": 0}):
        with pytest.raises(BadValueError):
            switching(0, 1000, **{"segments": 2, "unseen": True, **wrong})
    for ask in (lambda: scenario("stedy", 0, 1000), lambda: trace("stedy")):
        with pytest.raises(UnknownNameError, match="steady"):
            ask()
    with pytest.raises(BadValueError):
        trace(load=0.0)
    with pytest.raises(BadValueError):
        trace(swaps_per_minute=2.0)
