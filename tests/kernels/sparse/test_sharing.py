"""Threads that share a product: every part is done once, and nobody waits for a thread that has not come."""

import pickle

import numpy as np

from wavetank.kernels.sparse import products, sharing
from wavetank.kernels.sparse.products import SpMVPlan
from wavetank.workloads import matrices


def plan_of(monkeypatch, threads=2):
    monkeypatch.setattr(products, "NONZEROS_WORTH_A_THREAD", 64)
    return SpMVPlan(matrices.rmat(12), threads=threads, order="hottest-first")


def test_the_caller_does_every_part_that_no_thread_has_begun(monkeypatch):
    plan = plan_of(monkeypatch)
    team = plan._team
    alone = sharing.Team(1, team.parts, team.form, team.carries, team.moved)
    x, y = np.ones(4096), np.zeros(4096)
    assert alone.run(sharing.TAKE, x, y) == team.parts
    assert (alone.moved == 1).all()
    assert alone.run(sharing.MULTIPLY, alone.moved, y) == team.parts


def test_a_thread_that_comes_when_all_is_done_leaves_without_work(monkeypatch):
    team = plan_of(monkeypatch)._team
    assert sharing.follow(team._board, 3, team.form, team.carries, team.moved) == 0


def test_caller_and_followers_together_do_each_part_once(monkeypatch):
    plan = plan_of(monkeypatch, threads=3)
    team, x, y = plan._team, np.ones(4096), np.zeros(4096)
    team.run(sharing.TAKE, x, y)
    by_caller = 1 * team.run(sharing.TAKE, x, y)
    for _ in range(200):
        y[0] = 0
        by_caller += team.run(sharing.MULTIPLY, team.moved, y)
    followers = list(team._following)
    assert 0 < by_caller <= 201 * team.parts
    assert all(each.result(timeout=60) >= 0 for each in followers)


def test_a_team_is_pickled_without_its_threads(monkeypatch):
    team = plan_of(monkeypatch)._team
    team.run(sharing.TAKE, np.ones(4096), np.zeros(4096))
    copy = pickle.loads(pickle.dumps(team))
    assert copy._pool is None
    assert copy.parts == team.parts
    assert copy.run(sharing.TAKE, np.ones(4096), np.zeros(4096)) <= copy.parts
