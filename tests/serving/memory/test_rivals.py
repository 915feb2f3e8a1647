"""The rivals: where they end in steady traffic whose best boundary is known."""

import numpy as np
from tests.serving.memory.conftest import trace

from wavetank.serving.memory.interface import run_policy
from wavetank.serving.memory.rivals import FixedSplit, GhostCaches, HillClimbing, KnownPopularities


def test_a_fixed_boundary_stays():
    assert set(run_policy(trace(requests=1280), FixedSplit(share=0.3)).shares) == {0.3}


def test_ghost_caches_and_known_popularities_go_where_rows_are_hot_and_where_users_are_flat():
    for policy in (GhostCaches(), KnownPopularities()):
        assert run_policy(trace("hot-rows"), policy).shares[-1] < 0.3
        assert run_policy(trace("flat-users"), policy).shares[-1] > 0.85


def test_hill_climbing_moves_in_both_directions():
    moves = np.sign(np.diff(run_policy(trace(), HillClimbing()).shares))
    assert {-1.0, 1.0} <= set(moves)
