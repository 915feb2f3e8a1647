"""The decision that is timed is a real one."""

import numpy as np
import pytest

from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import RandomWorker, RoundRobin
from wavetank.serving.routing.decision_time import decision_s
from wavetank.serving.routing.one_step_optimum import OneStepOptimum


class Watched:
    """Counts decisions and keeps the last one's sizes."""

    def __init__(self):
        self.decisions, self.seen = 0, {}

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.zeros(0)


class WatchedChooser(Watched):
    def choose(self, view, arrival, state, parameters):
        self.decisions += 1
        self.seen = {"workers": view.running.size, "free": (view.slots - view.running).tolist(), "arrival": arrival}
        return 0


class WatchedPlacer(Watched):
    reads_active = True

    def place(self, view, pool, active, state, parameters, placed):
        self.decisions += 1
        self.seen = {
            "workers": view.running.size,
            "free": (view.slots - view.running).tolist(),
            "waiting": pool.prompt_tokens.size,
            "prompts": pool.prompt_tokens.min(),
            "active": np.bincount(active.worker).tolist(),
            "placed": placed.tolist(),
        }
        placed[:] = 0
        return placed.size


def test_an_arrival_router_is_asked_until_there_is_enough_to_time():
    router = WatchedChooser()
    assert 0 < decision_s(router, workers=7) < 1
    # 1 + 4 + 16 + ... calls.
    assert router.decisions in {(4**k - 1) // 3 for k in range(1, 16)}
    assert router.seen["workers"] == 7
    assert router.seen["arrival"].prompt_tokens == 1000.0


def test_a_pool_router_has_a_full_pool_and_a_free_slot_a_worker_at_every_decision():
    router = WatchedPlacer()
    assert 0 < decision_s(router, workers=5, waiting=40, slots=9) < 1
    seen = router.seen
    assert (seen["workers"], seen["waiting"]) == (5, 40)
    assert seen["free"] == [1] * 5
    assert seen["active"] == [8] * 5
    assert seen["prompts"] >= 1
    # What an earlier decision placed is waiting again.
    assert router.decisions > 1
    assert seen["placed"] == [-1] * 40


@pytest.mark.parametrize(
    "router",
    [
        RoundRobin(),
        RandomWorker(),
        BalanceRoute(horizon_steps=0),
        BalanceRoute(termination="logistic"),
        OneStepOptimum(),
    ],
    ids=lambda r: type(r).__name__,
)
def test_every_kind_of_router_can_be_timed(router):
    if isinstance(router, OneStepOptimum):
        pytest.importorskip("ortools", reason="the optimum is found with OR-tools")
    assert 0 < decision_s(router, workers=8, waiting=12) < 10
