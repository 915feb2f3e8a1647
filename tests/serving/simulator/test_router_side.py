"""What routers are shown at a refresh, and how placements are taken in."""

import numpy as np
import pytest
from numba import njit

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.simulator import router_side
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import rules_of
from wavetank.serving.simulator.tables import make_tables

CLUSTER = Cluster(workers=2, routers=3, step_time=FittedStepTime(overhead_s=1e-3))
RULES = rules_of(CLUSTER, block_tokens=0, caching=False, probes=1)


@njit
def keep_waiting(t, placed, n):
    router_side.keep_waiting(t, placed, n)


@njit
def router_of(rules, r):
    return router_side.router_of(rules, r)


@njit
def probe_workers(t, rules, number, now_ps):
    router_side.probe_workers(t, rules, number, now_ps)


def tables(n=6):
    return make_tables(n, RULES, CLUSTER.uniform, router_blocks=0, max_blocks=0)


@pytest.mark.parametrize(
    ("placed", "left"),
    [([-1, 0, 1, -1], [10, 13, 14, 15]), ([0, 0, 0, 0], [14, 15]), ([-1, -1, -1, -1], [10, 11, 12, 13, 14, 15])],
)
def test_what_is_not_placed_stays_in_order_before_those_behind_the_window(placed, left):
    t = tables()
    t.pool[:] = np.arange(10, 16)
    t.pool_ends[:] = 0, 6
    keep_waiting(t, np.array(placed), 4)
    assert t.pool[t.pool_ends[0] : t.pool_ends[1]].tolist() == left


def test_requests_are_dealt_evenly_among_the_copies_of_a_router():
    counts = np.bincount([router_of(RULES, r) for r in range(3000)], minlength=3)
    # Five standard deviations of a fair deal.
    assert abs(counts - 1000).max() < 5 * np.sqrt(3000 * 2 / 9)


def test_a_probe_within_a_phase_counts_the_tokens_of_the_steps_that_have_ended():
    t = tables()
    t.workers["decoding"], t.workers["context"], t.workers["running"] = 3, 100, 3
    t.domains["planned"], t.domains["first_ps"], t.domains["phase_steps"], t.domains["phase_end_ps"] = 1, 10, 5, 50
    probe_workers(t, RULES, 0, 39)
    assert t.probe_tokens[0].tolist() == [109, 109]
    assert t.probe_running[0].tolist() == [3, 3]
