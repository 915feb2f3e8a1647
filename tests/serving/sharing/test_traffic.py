"""Made traffic: what was asked for is in it."""

import math

import numpy as np
import pytest

from wavetank.serving.sharing.interface import Load, View
from wavetank.serving.sharing.traffic import make_scene


def test_the_load_is_what_was_asked_for():
    for load in (0.3, 1.2):
        scene = make_scene(3, load=load, seconds=1200.0)
        work = scene.requests.gpu_s.sum() / scene.seconds
        left = sum(node.gpu for node in scene.nodes) - scene.needs[:, :, 0].sum(axis=1).mean()
        assert work / left == pytest.approx(load, rel=0.1)


def test_radio_functions_fit_where_they_are_and_use_a_third_to_two_thirds():
    for seed in range(5):
        scene = make_scene(seed, seconds=300.0)
        for at, node in enumerate(scene.nodes):
            here = [i for i, each in enumerate(scene.services) if each.radio and scene.placement[i] == at]
            used = scene.needs[:, here, 0].sum(axis=1)
            assert (used <= 0.851 * node.gpu).all() and 0.25 < used.mean() / node.gpu < 0.7
            assert 2 <= len(here) <= 3


def test_memory_holds_what_is_placed():
    for seed in range(5):
        scene = make_scene(seed, seconds=120.0)
        idle = Load(rate_per_s=0, gpu_s=0, cpu_s=0, spread=0, fulfilled=1)
        view = View(
            time_s=0, nodes=scene.nodes, services=scene.services, placement=scene.placement,
            moving=(False,) * len(scene.services), loads=(idle,) * len(scene.services),
        )  # fmt: skip
        assert all(view.free_gb(node) >= 0 for node in range(len(scene.nodes)))


def test_hot_services_change_and_without_an_end_they_do_not():
    scene = make_scene(1, hot_s=60.0, hot_times=5.0, seconds=600.0)
    ai = [i for i, each in enumerate(scene.services) if not each.radio]
    relative = scene.rates[:, ai] / np.median(scene.rates[:, ai], axis=0)
    assert len({tuple(np.flatnonzero(row > 2)) for row in relative}) > 3
    still = make_scene(1, hot_s=math.inf, hot_times=5.0, seconds=600.0).rates[:, ai]
    assert (still == still[0]).all()


def test_deadlines_work_and_order():
    scene = make_scene(2, seconds=300.0)
    requests = scene.requests
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert all(0.05 <= each.deadline_s <= 5.0 for each in scene.services if not each.radio)
    for i, each in enumerate(scene.services):
        own = requests.service == i
        if each.radio:
            assert not own.any()
        elif own.sum() > 500:
            assert requests.gpu_s[own].mean() == pytest.approx(scene.means[i, 0], rel=0.15)
            assert requests.arrival_s[own] + each.deadline_s == pytest.approx(requests.deadline_s[own])


def test_equal_seeds_are_equal_scenes():
    a, b, c = make_scene(1), make_scene(1), make_scene(2)
    assert a.services == b.services and np.array_equal(a.requests.arrival_s, b.requests.arrival_s)
    assert a.services != c.services
