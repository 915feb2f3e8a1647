"""Study ``tenant-learning``: what tasks learn when a real service trains all of them at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.tenants.interface import Rules, Tenancy
from wavetank.training.tenants.policy import Base
from wavetank.training.tenants.service import TenantResult, TenantService, TenantTask
from wavetank.training.tenants.synchronous import expected_reward
from wavetank.training.tenants.toys import Arithmetic, Bandit, Grid

_KINDS = ("bandit", "arithmetic", "grid")


@dataclass(frozen=True, kw_only=True)
class TenantLearning(Study):
    """Small policies on one frozen base are trained for real: bandits, sums and walks, whose tools sleep for log-normal
    times.  Every task has a secret of its own, so that what one learns is wrong for another.  What was learnt is
    judged by answers drawn from the final policies, which no training has seen.
    """

    name: ClassVar[str] = "tenant-learning"
    baseline: ClassVar[str] = "one-by-one"
    primary: ClassVar[str] = "final_reward"
    secondary: ClassVar[tuple[str, ...]] = ("wall_s",)
    must_be_zero: ClassVar[tuple[str, ...]] = ("too_old", "foreign_changes", "base_changes")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("final_reward", "", "higher", "measured",
               "reward of answers drawn from the final policies, mean over the tasks"),
        Metric("worst_task_reward", "", "higher", "measured", "likewise, of the task with the least",
               words="final reward of the worst task"),
        Metric("wall_s", "s", "lower", "measured", "from the first task's submission to the last one's result",
               words="time"),
        Metric("too_old", "", "lower", "measured", "answers trained on that are older than the rules allow",
               words="answers that are too old"),
        Metric("stale_updates", "updates", "lower", "measured", "age of an answer that is trained on, mean",
               words="age of answers"),
        Metric("foreign_changes", "", "lower", "measured",
               "updates after which the base or an adapter of another task was not the same, to the last bit",
               words="changes of others"),
        Metric("base_changes", "", "lower", "measured", "whether the base is another one after the run",
               words="changes of the base"),
        Metric("rows_per_batch", "turns", "higher", "measured", "turns in a batch of the policy, mean",
               words="turns in a batch"),
        Metric("reward_by_kind", "", "higher", "measured", "final reward by kind of task", table=False,
               words="final reward"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Final reward", y="final_reward", says="All should be as long as tasks that were trained alone."),
        Chart("bars", "Time", y="wall_s", says="Tools sleep; who waits for them one by one takes longest."),
    )  # fmt: skip

    tasks: int = setting(16, unit="tasks", says="Tasks, of three kinds in turn", low=1, high=256)
    updates: int = setting(25, unit="updates", says="Updates of each task", low=1, high=10_000)
    groups: int = setting(4, says="Groups of an update", low=1, high=256)
    group: int = setting(8, says="Answers of a group", low=2, high=256)
    rate: float = setting(0.05, says="Learning rate", low=1e-6, high=10.0)
    delay_s: float = setting(0.005, unit="s", says="Median delay of a tool", low=0.0, high=60.0)
    sigma: float = setting(0.5, says="Standard deviation of the delay's logarithm", low=0.0, high=3.0)
    episodes: int = setting(64, says="Answers that judge a task", low=1, high=100_000)

    def check(self) -> None:
        """Refuse nothing that the ranges let through but a run without anything to learn from."""
        if self.tasks * self.updates > 100_000:
            raise BadValueError("This would take very long.", given=f"{self.tasks} x {self.updates} updates",
                                allowed="100000 updates in all", where=f"study {self.name}")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The policies have two layers and adapters of rank 4; nothing here says how a language model learns.",
            "One process computes everything, so that time is saved only where tools sleep.",
        )

    def work(self, seed: int, *, delays: bool = True) -> list[TenantTask]:
        """Return the tasks of a seed.

        Parameters
        ----------
        seed : int
        delays : bool
            Whether their tools sleep.
        """
        found = []
        for number in range(self.tasks):
            secret = seed * 1000 + number
            delay_s = self.delay_s if delays else 0.0
            environment = (Bandit, Arithmetic, Grid)[number % 3](secret=secret, delay_s=delay_s, sigma=self.sigma)
            found.append(TenantTask(
                name=f"{_KINDS[number % 3]}-{number}", environment=environment, updates=self.updates,
                groups=self.groups, group=self.group, seed=secret, rate=self.rate,
            ))  # fmt: skip
        return found

    def measure(self, system: Tenancy, seed: int) -> Measurements:
        """Train all tasks of a seed, and judge what they have learnt."""
        return asyncio.run(self._measure(system.rules(), seed))

    async def _measure(self, rules: Rules, seed: int) -> Measurements:
        base = Base(seed)
        before = hashlib.sha256(base.bytes()).digest()
        began_s = time.perf_counter()
        async with TenantService(base, rules=rules, audit=True) as service:
            tenants = [service.submit(task) for task in self.work(seed)]
            results: list[TenantResult] = [await tenant.result() for tenant in tenants]
            wall_s = time.perf_counter() - began_s
        rewards = np.array([
            await expected_reward(task, base, result.adapter, self.episodes)
            for task, result in zip(self.work(seed, delays=False), results, strict=True)
        ])  # fmt: skip
        ages = np.sum([result.stale for result in results], axis=0)
        found = Measurements()
        found.put("final_reward", rewards.mean())
        found.put("worst_task_reward", rewards.min())
        found.put("wall_s", wall_s)
        found.put("too_old", ages[rules.s_max + 1 :].sum())
        found.put("stale_updates", ages @ np.arange(ages.size) / max(int(ages.sum()), 1))
        found.put("foreign_changes", service.foreign_changes)
        found.put("base_changes", before != hashlib.sha256(base.bytes()).digest())
        found.put("rows_per_batch", service.batch_rows / service.batches)
        for place, kind in enumerate(_KINDS):
            if rewards[place::3].size:
                found.put("reward_by_kind", rewards[place::3].mean(), kind=kind)
        return found
