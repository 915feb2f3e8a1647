"""Toys: what is right is right, secrets differ, and tools take their time."""

from __future__ import annotations

import asyncio

import pytest

from wavetank.errors import BadValueError
from wavetank.sim.rng import Draws
from wavetank.training.tenants.policy import ACTIONS
from wavetank.training.tenants.toys import Arithmetic, Bandit, Grid, one_hot


def right(environment, prompt):
    """Return the actions that are rewarded."""

    async def tried(action):
        return await environment.begin(prompt, Draws(0)).act(action)

    return [action for action in range(ACTIONS) if asyncio.run(tried(action)).reward > 0]


@pytest.mark.parametrize("kind", [Bandit, Arithmetic])
def test_every_question_has_one_right_answer_which_depends_on_the_secret(kind):
    answers = [[right(kind(secret=secret), prompt) for prompt in range(16)] for secret in range(4)]
    assert all(len(each) == 1 for known in answers for each in known)
    assert len({str(known) for known in answers}) > 1


def test_sums_grow_by_one():
    found = [right(Arithmetic(secret=1), prompt)[0] for prompt in range(16)]
    assert [(each - found[0]) % 8 for each in found] == [0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 0]


def test_a_walk_ends_at_its_goal_or_after_its_moves():
    async def walked(actions, moves=6):
        session = Grid(secret=2, moves=moves).begin(0, Draws(0))
        start = session.observation
        replies = [await session.act(action) for action in actions]
        return start, replies

    # The goal is the field before the start, row by row: one to the left, unless that is in the row above.
    start, replies = asyncio.run(walked([2]))
    assert start.sum() == 1
    place = int(start.argmax())
    if place % 4:
        assert (replies[0].done, replies[0].reward) == (True, 0.95)
    else:
        start, replies = asyncio.run(walked([0, 3, 3, 3]))
        assert replies[-1].done
    start, replies = asyncio.run(walked([1] * 6))
    assert replies[-1].done
    assert replies[-1].observation.argmax() >= 12
    assert not any(each.reward for each in replies)


def test_a_tool_sleeps_for_a_time_drawn_from_the_answer():
    async def took(seed, delay_s):
        loop = asyncio.get_running_loop()
        began = loop.time()
        await Bandit(delay_s=delay_s, sigma=0.0).begin(0, Draws(seed)).act(0)
        return loop.time() - began

    assert asyncio.run(took(0, 0.05)) >= 0.049
    assert asyncio.run(took(0, 0.0)) < 0.04


def test_what_is_no_toy_is_refused():
    for words in ({"delay_s": -1.0}, {"sigma": float("nan")}, {"delay_s": float("inf")}):
        for kind in (Bandit, Arithmetic, Grid):
            with pytest.raises(BadValueError):
                kind(**words)
    with pytest.raises(BadValueError):
        Grid(moves=0)
    assert one_hot(3).tolist()[:5] == [0, 0, 0, 1, 0]
