"""The plain trainer learns, and its judge draws what no training has seen."""

from __future__ import annotations

import asyncio

import pytest

from wavetank.training.tenants.policy import Base
from wavetank.training.tenants.service import TenantTask
from wavetank.training.tenants.synchronous import expected_reward, train_alone
from wavetank.training.tenants.toys import Arithmetic, Bandit, Grid

BASE = Base(0)


@pytest.mark.parametrize("environment", [Bandit(secret=4), Arithmetic(secret=4), Grid(secret=4)])
def test_tasks_are_learnt(environment):
    task = TenantTask(name="mine", environment=environment, updates=25, seed=1)
    adapters = asyncio.run(train_alone(task, BASE))
    assert [each.version for each in adapters] == list(range(26))
    first, last = (asyncio.run(expected_reward(task, BASE, each, 64)) for each in (adapters[0], adapters[-1]))
    assert last > first + 0.25


def test_what_one_task_learns_is_wrong_for_another():
    task = TenantTask(name="mine", environment=Bandit(secret=4), updates=25, seed=1)
    other = TenantTask(name="other", environment=Bandit(secret=5), updates=25, seed=1)
    adapter = asyncio.run(train_alone(task, BASE))[-1]
    own, foreign = (asyncio.run(expected_reward(each, BASE, adapter, 64)) for each in (task, other))
    assert own > foreign + 0.25
