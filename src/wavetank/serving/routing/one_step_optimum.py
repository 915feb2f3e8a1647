"""The one-step optimum: the placement that leaves the least imbalance right now, by integer programming.

For every decision it places as many waiting requests as slots and KV caches take, chosen and assigned so that
G * max L - sum L is least.  It is what BalanceRoute approximates in microseconds, and only small cases can be solved.

BF-IO's integer program of one step is solved with CP-SAT of OR-tools.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.serving.routing.interface import ActiveView, NoParameters, NoState, PoolView, WorkersView
from wavetank.settings import setting

MOST_WORKERS, MOST_REQUESTS = 8, 12


def solve(
    loads: NDArray[np.int64],
    free: NDArray[np.int64],
    room: NDArray[np.int64],
    sizes: NDArray[np.int64],
    overdue: NDArray[np.bool_],
    time_limit_s: float,
    serves: NDArray[np.int8] | None = None,
) -> NDArray[np.int64]:
    """Return the worker of each request (-1: stays): most overdue ones, then most of all, then least G * max L - sum L.

    Parameters
    ----------
    loads, free, room : int64 arrays (workers,)
        Tokens held, free slots, and tokens that the KV cache can still take.
    sizes : int64 array (requests,)
    overdue : bool array (requests,)
        Who must not be passed over again.
    time_limit_s : float
        After which the best placement found is taken.
    serves : int8 array (requests, workers), optional
        Where a request may go; anywhere by default.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise missing_extra("ortools", "serving", needed_for="The one-step optimum") from None
    workers, requests = loads.size, sizes.size
    model = cp_model.CpModel()
    on = [[model.new_bool_var("") for _ in range(workers)] for _ in range(requests)]
    for row in on:
        model.add_at_most_one(row)
    for g in range(workers):
        model.add(sum(on[i][g] for i in range(requests)) <= max(int(free[g]), 0))
        for i in range(requests):
            if sizes[i] > room[g] or (serves is not None and not serves[i, g]):
                model.add(on[i][g] == 0)
        model.add(sum(int(sizes[i]) * on[i][g] for i in range(requests)) <= max(int(room[g]), 0))
    highest = int(loads.max() + sizes.sum())
    envelope = model.new_int_var(0, highest, "")
    placed = []
    for g in range(workers):
        added = sum(int(sizes[i]) * on[i][g] for i in range(requests))
        model.add(envelope >= int(loads[g]) + added)
        placed.append(added)
    # Worth more than any imbalance; an overdue request is worth more than all others together.
    worth = [(workers * highest + 1) * (requests + 1 if late else 1) for late in overdue]
    model.minimize(workers * envelope - sum(placed) - sum(worth[i] * x for i, row in enumerate(on) for x in row))
    solver = cp_model.CpSolver()
    # Counted work, not wall time: the same decision on a busy machine.
    solver.parameters.max_deterministic_time = time_limit_s
    # One worker and a fixed seed: the same decision on every machine.
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise WavetankError(
            "CP-SAT found no placement in its time.",
            given=f"{workers} workers, {requests} requests, {time_limit_s:g} s",
            hint="raise time_limit_s",
        )
    result = np.full(requests, -1, np.int64)
    for i in range(requests):
        for g in range(workers):
            if solver.value(on[i][g]):
                result[i] = g
    return result


@dataclass(frozen=True, kw_only=True)
class OneStepOptimum(NoState, NoParameters):
    """Pool router that solves each decision to optimality; for at most 8 workers."""

    time_limit_s: float = setting(
        1.0, unit="s", says="Most work for one decision, in the solver's deterministic seconds", low=0.001, high=3600.0
    )
    patience_steps: int = setting(
        200, unit="steps", says="Decisions after which a passed-over request goes next", low=0, high=10**9
    )

    def place(
        self,
        view: WorkersView,
        pool: PoolView,
        active: ActiveView,
        state: NDArray[np.float64],
        parameters: NDArray[np.float64],
        placed: NDArray[np.int64],
    ) -> int:
        """Place the oldest waiting requests optimally."""
        if view.running.size > MOST_WORKERS:
            raise BadValueError(
                "The one-step optimum is for small clusters.",
                given=f"{view.running.size} workers",
                allowed=f"up to {MOST_WORKERS}",
                hint="leave one-step-optimum out with --systems, or set workers=8",
            )
        free = (view.slots - view.running - view.waiting - view.sent_requests) * view.takes
        loads = (view.kv_tokens + view.waiting_tokens + view.sent_tokens).astype(np.int64)
        room = view.kv_capacity_tokens.astype(np.int64) - loads
        sizes = pool.prompt_tokens[:MOST_REQUESTS].astype(np.int64)
        overdue = pool.waited_steps[:MOST_REQUESTS] > self.patience_steps
        placed[: sizes.size] = solve(loads, free, room, sizes, overdue, self.time_limit_s, pool.serves[: sizes.size])
        return int((placed[: sizes.size] >= 0).sum())
