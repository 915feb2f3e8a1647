"""Threads that share a product: every part is done once, and nobody waits for a thread that has not come."""

import pickle
import time

import numpy as np
import pytest

from wavetank.kernels.sparse import products, sharing
from wavetank.kernels.sparse.products import SpMVPlan
from wavetank.workloads import matrices


def plan_of(monkeypatch, threads=2):
    monkeypatch.setattr(products, "NONZEROS_WORTH_A_THREAD", 64)
    monkeypatch.setattr(products, "allowed_threads", lambda most=None: most or 1)
    return SpMVPlan(matrices.rmat(12), threads=threads, order="hottest-first")


def test_the_caller_does_every_part_that_no_thread_has_begun(monkeypatch):
    team = plan_of(monkeypatch)._team
    alone = sharing.Team(1, team.parts, team.form, team.carries, team.moved)
    # Two kinds of work: the vector is moved, then multiplied.
    assert alone.run(np.ones(4096), np.zeros(4096)) == 2 * team.parts
    assert (alone.moved == 1).all()


def test_a_thread_that_comes_when_all_is_done_leaves_without_work(monkeypatch):
    team = plan_of(monkeypatch)._team
    assert sharing.follow(team._board, 1, 3, *team._given) == 0


def test_caller_and_followers_together_do_each_part_once(monkeypatch):
    team, x, y = plan_of(monkeypatch, threads=3)._team, np.ones(4096), np.zeros(4096)
    by_caller = sum(team.run(x, y) for _ in range(200))
    end = time.monotonic() + 60
    while any(team._board[place] for place in team._here) and time.monotonic() < end:
        time.sleep(0.001)
    assert 0 < by_caller <= 200 * 2 * team.parts
    # All followers have left, and said so.
    assert [team._board[place] for place in team._here] == [0, 0, 0]


def test_a_caller_that_was_kept_waiting_works_alone_for_a_while(monkeypatch):
    team, x, y = plan_of(monkeypatch)._team, np.ones(4096), np.zeros(4096)
    team._board[sharing._ALONE] = 4
    assert [team.run(x, y) for _ in range(3)] == [2 * team.parts] * 3
    assert not team._board[team._here[1]]
    started = []
    monkeypatch.setattr(sharing, "start_helpers", lambda work, helpers: started.append(helpers))
    team.run(x, y)
    assert started == [1]


def test_a_product_of_one_thread_asks_for_no_helper(monkeypatch):
    team, x, y = plan_of(monkeypatch)._team, np.ones(4096), np.zeros(4096)
    monkeypatch.setattr(sharing, "start_helpers", lambda work, helpers: pytest.fail("a helper"))
    assert [team.run(x, y, 1) for _ in range(3)] == [2 * team.parts] * 3


def test_a_team_is_pickled_without_its_threads(monkeypatch):
    team = plan_of(monkeypatch)._team
    team.run(np.ones(4096), np.zeros(4096))
    copy = pickle.loads(pickle.dumps(team))
    assert not any(copy._board[place] for place in copy._here)
    assert copy.parts == team.parts
    assert copy.run(np.ones(4096), np.zeros(4096)) <= 2 * copy.parts
