"""Rules that look at one queue at a time: the longest first, in turns, the earliest deadline first, deferred batches.

Each is the whole answer where one model has all the traffic; what they lack shows where a long batch of one model meets
the deadlines of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from wavetank.serving.edge.interface import Decision, ExitProfile, Queues, deepest
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class OneQueue:
    """Scheduler that chooses a queue by its own state, then an exit."""

    drops_late: ClassVar[bool] = False

    order: str = setting(
        "longest", says="Queue that comes next: the longest, in turns, or with the oldest request",
        choices=("longest", "turns", "oldest"),
    )  # fmt: skip
    exit: str = setting(
        "final", says="Exit: the last, the first, or the deepest within the deadline",
        choices=("final", "first", "deepest"),
    )  # fmt: skip

    def choose(self, queues: Queues, profile: ExitProfile, turn: int) -> Decision:
        """Return the next batch.

        Parameters
        ----------
        queues : Queues
        profile : ExitProfile
        turn : int
        """
        waiting = [model for model, arrived_s in enumerate(queues.arrived_s) if arrived_s]
        if self.order == "turns":
            count = len(queues.arrived_s)
            model = min(waiting, key=lambda each: (each - turn) % count)
        elif self.order == "oldest":
            model = min(waiting, key=lambda each: queues.arrived_s[each][0])
        else:
            model = max(waiting, key=lambda each: len(queues.arrived_s[each]))
        batch = min(len(queues.arrived_s[model]), profile.max_batch)
        exit_ = 0 if self.exit == "first" else profile.exits - 1
        if self.exit == "deepest":
            waited_s = queues.now_s - queues.arrived_s[model][0]
            exit_ = deepest(profile, model, batch, waited_s, queues.slo_s)
        return Decision(model, batch, exit_)


@dataclass(frozen=True, kw_only=True)
class Deferred:
    """Scheduler that lets a batch grow until its oldest request would be late, and runs whole models."""

    drops_late: ClassVar[bool] = True

    def choose(self, queues: Queues, profile: ExitProfile, turn: int) -> Decision:
        """Return the batch whose latest start has come, or until when to wait.

        Parameters
        ----------
        queues : Queues
        profile : ExitProfile
        turn : int
        """
        last, earliest_s = profile.exits - 1, math.inf
        for model, arrived_s in enumerate(queues.arrived_s):
            if not arrived_s:
                continue
            due_s = arrived_s[0] + queues.slo_s
            fitting = [
                batch for batch in range(1, min(len(arrived_s), profile.max_batch) + 1)
                if queues.now_s + profile.seconds(model, last, batch) <= due_s
            ]  # fmt: skip
            batch = max(fitting, default=1)
            # One more request would start too late from here on; a full batch cannot grow.
            more = min(batch + 1, profile.max_batch)
            start_s = due_s - profile.seconds(model, last, more)
            if start_s <= queues.now_s or batch == profile.max_batch:
                return Decision(model, batch, last)
            earliest_s = min(earliest_s, start_s)
        return Decision(0, 0, last, earliest_s)
