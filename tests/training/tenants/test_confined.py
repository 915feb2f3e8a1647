"""Environments in processes of their own: the same numbers, and whatever they do stays there."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.training.tenants.test_service import alone, serve, task, three

from wavetank.errors import BadValueError
from wavetank.sim.rng import Draws
from wavetank.training.tenants.confined import Confined
from wavetank.training.tenants.interface import Rules
from wavetank.training.tenants.service import Reply, TenantFailedError
from wavetank.training.tenants.toys import Grid


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))


@dataclass(frozen=True)
class Hostile:
    bad: str

    def begin(self, prompt, draws):
        if self.bad == "begins for ever":
            time.sleep(3600)
        return Session(self.bad)


class Session:
    def __init__(self, bad):
        self.bad, self.observation = bad, np.ones(16)

    async def act(self, action):
        if self.bad == "loops":
            while True:
                pass
        if self.bad == "exits":
            os._exit(0)
        if self.bad == "eats":
            np.ones(10**10).sum()
        if self.bad == "shouts":
            os.write(1, b"x" * 10**6)
            sys.stdout.write("x" * 10**6)
        if self.bad == "answers much":
            return Reply(np.ones(10**5), 0.0, True)
        if self.bad == "no number":
            return Reply(self.observation, "much", True)
        return Reply(self.observation, float(action % 2), True)


def test_a_task_learns_the_same_as_in_the_process_of_the_service():
    environment = Confined(environment=Grid(secret=3))
    (result,), _ = serve([task("walk", environment, tool_timeout_s=60.0)], rules=Rules(), timeout_s=300.0)
    assert result.adapter.bytes() == alone(task("walk", Grid(secret=3)))[-1].bytes()
    assert result.dropped == result.again == 0


@pytest.mark.parametrize("bad", ["begins for ever", "loops", "exits", "eats", "answers much", "no number"])
def test_what_it_does_ends_its_own_tenant_and_the_others_are_as_they_would_be(bad):
    environment = Confined(environment=Hostile(bad), memory_mb=200)
    broken = task("bad", environment, tool_timeout_s=1.0, retries=0, most_bad_updates=0)
    results, (failure,) = serve(three(), also=[broken], rules=Rules(), timeout_s=300.0)
    assert isinstance(failure, TenantFailedError)
    assert "Too many updates in a row" in str(failure)
    for result, given in zip(results, three(), strict=True):
        assert result.adapter.bytes() == alone(given)[-1].bytes()


def test_what_it_prints_is_no_answer():
    loud = task("loud", Confined(environment=Hostile("shouts")), updates=1, tool_timeout_s=60.0)
    (result,), _ = serve([loud], rules=Rules(), timeout_s=300.0)
    assert result.dropped == 0 and result.adapter.version == 1


def test_a_process_that_ended_is_replaced():
    async def both():
        environment = Confined(environment=Hostile("exits"))
        session = await environment.begin(0, Draws(1))
        with pytest.raises(ConnectionError):
            await session.act(0)
        again = await environment.begin(0, Draws(1))
        seen = again.observation
        await environment.close()
        return seen

    assert asyncio.run(both()) == [1.0] * 16


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(BadValueError, match="no environment"):
        Confined(environment=3)
    local = type("Local", (), {"begin": lambda self, prompt, draws: None})
    with pytest.raises(BadValueError, match="sent"):
        Confined(environment=local())
