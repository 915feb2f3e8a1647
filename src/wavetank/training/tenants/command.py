"""``wavetank launch tenants``: small tasks trained side by side in one service, some of them with broken tools."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wavetank.errors import WavetankError
from wavetank.exits import DOES_NOT_HOLD, INTERRUPTED
from wavetank.terminal import say, say_heading, say_json, say_wrapped, style
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.sim.rng import Draws
    from wavetank.training.tenants.service import TenantTask
    from wavetank.training.tenants.toys import Session

_EPISODES = 64


@click.command()
@click.option(
    "--tasks", type=click.IntRange(1, 64), default=6, show_default=True, help="Tasks, of three kinds in turn."
)
@click.option("--updates", type=click.IntRange(1, 10_000), default=25, show_default=True, help="Updates of each task.")
@click.option("--s-max", type=click.IntRange(0, 64), default=1, show_default=True, help="Updates an answer may be old.")
@click.option(
    "--at-once", type=click.IntRange(0, 64), default=0, show_default=True, help="Tasks that run at once; 0: all."
)
@click.option(
    "--delay-s", type=click.FloatRange(0, 60), default=0.02, show_default=True, help="Median delay of a tool, s."
)
@click.option(
    "--broken", type=click.IntRange(0, 64), default=0, show_default=True, help="Further tasks whose tools always fail."
)
@click.option(
    "--memory-mb",
    type=click.IntRange(0, 1_000_000),
    default=0,
    show_default=True,
    help="Run each task's tools in a process of its own that may take this much memory, MB; 0: in this one.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the base, the tasks and their secrets.")
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps every adapter; a run goes on from what it finds there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    tasks: int, updates: int, s_max: int, at_once: int, delay_s: float, broken: int, memory_mb: int,
    seed: int, checkpoints: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Train small tasks side by side on one frozen base, each with an adapter of its own, and print what they learnt.

    Bandits, sums and walks have tools that sleep.  Broken tasks fail by themselves, and the others go on.  Ctrl-C ends
    all; with --checkpoints the next run goes on from there.  With --memory-mb tools that block, exit or eat memory end
    a process of their own task alone.
    """
    from wavetank.training.tenants.interface import Rules

    if checkpoints is not None:
        try:
            checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = "The folder of checkpoints cannot be made."
            raise WavetankError(problem, given=str(error), where="--checkpoints") from error
    run = _Run(quiet=as_json)
    began_s, interrupted = time.monotonic(), False
    try:
        rules, work = Rules(s_max=s_max, at_once=at_once), _tasks(tasks, updates, delay_s, seed)
        work = [*_broken(broken, updates), *work]
        if memory_mb:
            work = [_confined(task, memory_mb) for task in work]
        asyncio.run(run.train(work, rules, seed, checkpoints))
    except KeyboardInterrupt:
        interrupted = True
    spent_s = time.monotonic() - began_s
    found = {"tasks": run.lines, "failed": run.failed, "spent_s": spent_s, "changes_of_others": run.changes}
    if as_json:
        say_json(found)
    else:
        say_heading(f"{len(run.lines)} of {tasks} tasks done in {show(spent_s, 's')}")
        if interrupted:
            say_wrapped(
                "Interrupted: what was done is in the folder of checkpoints." if checkpoints else "Interrupted."
            )
        else:
            say_wrapped(f"Updates that changed the base or another task's adapter: {run.changes}.")
    if interrupted:
        return INTERRUPTED
    return 0 if len(run.lines) == tasks and not run.changes else DOES_NOT_HOLD


def _tasks(tasks: int, updates: int, delay_s: float, seed: int) -> list[TenantTask]:
    from wavetank.training.tenants.study_learning import TenantLearning

    return TenantLearning(tasks=tasks, updates=updates, delay_s=delay_s).work(seed)


def _broken(tasks: int, updates: int) -> list[TenantTask]:
    from wavetank.training.tenants.service import TenantTask

    return [
        TenantTask(name=f"broken-{n}", environment=_BrokenTool(), updates=updates, most_bad_updates=0)
        for n in range(tasks)
    ]


def _confined(task: TenantTask, memory_mb: int) -> TenantTask:
    from wavetank.training.tenants.confined import Confined

    return dataclasses.replace(task, environment=Confined(environment=task.environment, memory_mb=memory_mb))


@dataclass(frozen=True)
class _BrokenTool:
    """An environment whose every answer breaks off at once."""

    def begin(self, prompt: int, draws: Draws) -> Session:
        raise ConnectionError("the tool does not answer")


class _Run:
    """What the tenants have come to so far."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.lines: list[dict[str, Any]] = []
        self.failed: list[dict[str, str]] = []
        self.changes = 0

    async def train(self, tasks: list[TenantTask], rules: Any, seed: int, checkpoints: Path | None) -> None:
        """Serve all tasks until the last one has ended."""
        from wavetank.training.tenants.policy import Base
        from wavetank.training.tenants.service import TenantService

        base = Base(seed)
        async with TenantService(base, rules=rules, checkpoints=checkpoints, audit=True) as service:
            waiting = [self._wait(service.submit(task), task, base) for task in tasks]
            await asyncio.gather(*waiting)
            self.changes = service.foreign_changes

    async def _wait(self, tenant: Any, task: TenantTask, base: Any) -> None:
        from wavetank.training.tenants.confined import Confined
        from wavetank.training.tenants.service import TenantFailedError
        from wavetank.training.tenants.synchronous import expected_reward

        before = tenant.adapter
        try:
            result = await tenant.result()
        except TenantFailedError as error:
            self.failed.append({"task": task.name, "why": error.problem})
            self._say(style(f"{task.name} failed: {error.problem}", fg="yellow"))
            return
        plain = task.environment.environment if isinstance(task.environment, Confined) else task.environment
        still = dataclasses.replace(task, environment=dataclasses.replace(plain, delay_s=0.0))  # type: ignore[type-var]
        first, last = [await expected_reward(still, base, each, _EPISODES) for each in (before, result.adapter)]
        self.lines.append({"task": task.name, "updates": result.adapter.version, "first_reward": first,
                           "last_reward": last, "spent_s": result.spent_s, "oldest": len(result.stale) - 1,
                           "dropped": result.dropped})  # fmt: skip
        self._say(f"{task.name:<16} {result.adapter.version} updates in {show(result.spent_s, 's')}, reward "
                  f"{first:.2f} to {last:.2f}")  # fmt: skip

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)
