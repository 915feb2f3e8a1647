"""Windows: what is reported, how far a boundary moves, and what is refused."""

import numpy as np
import pytest
from tests.serving.memory.conftest import trace

from wavetank.errors import BadValueError
from wavetank.serving.memory.interface import Decision, NodeReplay, run_policy
from wavetank.serving.memory.rivals import FixedSplit


def test_a_boundary_moves_by_two_hundredths_at_most_and_stays_within_bounds():
    replay = NodeReplay(trace(requests=128), 0.5)
    replay.move(0.9)
    assert replay.share == 0.52
    replay.move(0.515)
    assert replay.share == pytest.approx(0.515)
    for _ in range(100):
        replay.move(-5.0)
    assert replay.share == 0.02


def test_a_windows_figures_are_those_of_its_requests():
    traffic = trace(requests=640)
    replay = NodeReplay(traffic, 0.62)
    views = [replay.serve() for _ in range(10)]
    last = replay.latency_s[576:640]
    assert views[-1].mean_s == pytest.approx(last.mean()) and views[-1].p99_s == last.max()
    assert views[-1].distinct_share == len(set(traffic.user[576:640])) / 64
    assert views[-1].history_tokens == pytest.approx(traffic.history[576:640].mean())
    assert 0 < views[-1].row_hits < 1 and 0 < views[-1].user_hits < 1


class Wild:
    """Asks for no number."""

    def begin(self, traffic):
        return 0.5, None

    def decide(self, view, state):
        return Decision(float("nan"))


def test_bad_shares_and_traces_are_refused():
    with pytest.raises(BadValueError):
        run_policy(trace(requests=640), Wild())
    with pytest.raises(BadValueError):
        run_policy(trace(requests=63), FixedSplit())
    with pytest.raises(BadValueError):
        NodeReplay(trace(requests=64), 1.5)
    for wrong in ({"window": 0}, {"window": -1}, {"slo_s": 0.0}, {"slo_s": float("nan")}):
        with pytest.raises(BadValueError):
            run_policy(trace(requests=640), FixedSplit(), **wrong)


def test_equal_traces_give_equal_latencies():
    one, again = (run_policy(trace(requests=1280), FixedSplit()) for _ in range(2))
    assert np.array_equal(one.latency_s, again.latency_s)
