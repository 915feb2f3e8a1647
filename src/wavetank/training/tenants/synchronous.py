"""The plain trainer: one task, one answer after the other, one turn at a time, then an update.

What :class:`~wavetank.training.tenants.service.TenantService` must equal with one task and ``s_max = 0``, to the last
bit.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from wavetank.training.tenants.policy import Adapter, Base, advantages, chosen, log_probabilities, new_adapter, updated
from wavetank.training.tenants.service import Step, TenantTask, answer_draws, samples_of


async def train_alone(task: TenantTask, base: Base) -> list[Adapter]:
    """Return the adapter before the first update, and after each.

    Parameters
    ----------
    task : TenantTask
        Whose environment never fails.
    base : Base
    """
    adapters = [new_adapter(task.seed, task.rank)]
    for update in range(task.updates):
        batch: list[tuple[list[Step], float]] = []
        for group in range(update * task.groups, (update + 1) * task.groups):
            answers = [await _answer(task, base, adapters[-1], group, sample) for sample in range(task.group)]
            batch += zip(
                (steps for steps, _ in answers), map(float, advantages([reward for _, reward in answers])), strict=True
            )
        samples = samples_of(batch)
        new = None if samples is None else updated(base, adapters[-1], samples, rate=task.rate, clip=task.clip)
        if new is None:
            raise ArithmeticError("an update is not finite")
        adapters.append(new)
    return adapters


async def _answer(task: TenantTask, base: Base, adapter: Adapter, group: int, sample: int) -> tuple[list[Step], float]:
    acting, drawing = answer_draws(task.seed, group, sample)
    session: Any = task.environment.begin(group, drawing)
    if inspect.isawaitable(session):
        session = await session
    seen, steps, reward = session.observation, [], 0.0
    while True:
        (row,) = log_probabilities(base, seen[None], [adapter], [0])
        action = chosen(row, acting.random())
        steps.append(Step(seen, action, float(row[action])))
        reply = await session.act(action)
        reward += reply.reward
        if reply.done:
            return steps, reward
        seen = reply.observation


async def expected_reward(task: TenantTask, base: Base, adapter: Adapter, episodes: int) -> float:
    """Return the mean reward of answers that no training has seen, drawn from the policy.

    Parameters
    ----------
    task : TenantTask
        Without delays, or it takes their time.
    base : Base
    adapter : Adapter
    episodes : int
        Answers, each to a prompt of its own.
    """
    found = [await _answer(task, base, adapter, group, task.group) for group in range(episodes)]
    return float(np.mean([reward for _, reward in found]))
