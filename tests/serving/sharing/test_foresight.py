"""The oracle."""

import itertools

import numpy as np
import pytest

from wavetank.serving.sharing.foresight import _KINKS, Foresight, _program
from wavetank.serving.sharing.simulation import simulate_sharing
from wavetank.serving.sharing.traffic import make_scene


def value(target, work, left, at, cost):
    use = np.bincount(target, weights=work, minlength=left.size) / left
    over = sum(slope * np.maximum(use - begin, 0).sum() for begin, slope in _KINKS)
    return over + sum(each for each, a, b in zip(cost, target, at, strict=True) if a != b)


def test_small_programs_equal_trying_everything():
    rng = np.random.default_rng(1)
    for _ in range(15):
        work, memory = rng.uniform(0, 0.6, 5), rng.uniform(1, 5, 5)
        left, free = rng.uniform(0.3, 1.0, 3), np.array([9.0, 8.0, 30.0])
        at, cost = np.array([2, 2, 2, 2, 2]), rng.uniform(0, 0.5, 5)
        fixed = np.array([True, False, False, False, False])
        found = np.array(_program(work, memory, left, free, at, cost, fixed))
        best = min(
            value(np.array(each), work, left, at, cost)
            for each in itertools.product(range(3), repeat=5)
            if each[0] == 2 and (np.bincount(each, weights=memory, minlength=3) <= free).all()
        )
        assert found[0] == 2 and (np.bincount(found, weights=memory, minlength=3) <= free + 1e-6).all()
        assert value(found, work, left, at, cost) <= best * 1.021 + 1e-6


def test_it_beats_staying_where_services_get_hot():
    scene = make_scene(4, seconds=300.0, load=0.8)
    moved = simulate_sharing(scene, Foresight().controller(0, scene))
    still = simulate_sharing(scene, None)
    assert moved.in_time.mean() > still.in_time.mean()
    assert moved.refused == 0 and moved.moves > 0


def test_endless_downtime_moves_nothing():
    scene = make_scene(4, seconds=200.0, downtime_times=1e9)
    assert simulate_sharing(scene, Foresight().controller(0, scene)).moves == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_all_moves_can_be_made(seed):
    scene = make_scene(seed, seconds=200.0, load=1.1)
    assert simulate_sharing(scene, Foresight().controller(0, scene)).refused == 0
