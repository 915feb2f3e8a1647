"""The least makespan of a small workflow: a constraint program over the whole graph, which knows all lengths.

What it leaves out makes it a lower bound, never more than what can be had: a model is loaded before its first stage on
a device and never again, and every prefix that two stages have in common is cached for both.  Without loads and
prefixes a proven solution is the optimum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.errors import BadValueError, GaveUpError
from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.interface import Application, Platform
from wavetank.settings import setting

MOST_STAGES = 60
_PER_S = 1000


@dataclass(frozen=True, kw_only=True)
class WholeGraph:
    """Bounds what any scheduler can reach on small workflows that are there at the start; it decides nothing."""

    solver_work: float = setting(
        2.0, says="Limit of the solver in its own deterministic seconds; its bound holds then too", low=0.01, high=1e4
    )

    def least_makespan_s(self, applications: Sequence[Application], platform: Platform) -> tuple[float, bool]:
        """Return a lower bound of the makespan, and whether a schedule of the relaxed problem reaches it.

        Parameters
        ----------
        applications : sequence of Application
            Whose expected lengths are the real ones; together up to 60 stages, none of which may be shared.
        platform : Platform

        Raises
        ------
        BadValueError
            If there are too many stages, or one may be shared between devices.
        GaveUpError
            If the solver found no bound.
        """
        from ortools.sat.python import cp_model

        stages = [stage for each in applications for stage in each.stages]
        if len(stages) > MOST_STAGES or any(stage.most_shards > 1 for stage in stages):
            raise BadValueError("The program is for small workflows without shared stages.", given=len(stages),
                                allowed=f"up to {MOST_STAGES} stages on one device each")  # fmt: skip
        model = cp_model.CpModel()
        alike = Counter((stage.model, stage.prefix) for stage in stages if stage.prefix)
        all_times = [Times(application=each, platform=platform) for each in applications]
        longest = sum(
            float(times.run_s[i][times.allowed[i]].max() + times.load_s[i][times.allowed[i]].max())
            + sum(times.application.workflow.edge_bytes[i]) / platform.network_bytes_per_s
            for times in all_times
            for i in range(len(times.application.stages))
        )
        horizon = math.ceil(longest * _PER_S)
        makespan = model.new_int_var(0, horizon, "makespan")
        on_device: list[list[cp_model.IntervalVar]] = [[] for _ in platform.devices]
        for times in all_times:
            workflow = times.application.workflow
            starts = [model.new_int_var(0, horizon, "") for _ in workflow.tasks]
            ends = [model.new_int_var(0, horizon, "") for _ in workflow.tasks]
            where: list[dict[int, cp_model.IntVar]] = []
            for task, stage in enumerate(times.application.stages):
                shared = alike[stage.model, stage.prefix] > 1 if stage.prefix else False
                chosen = {}
                for device in map(int, times.allowed[task].nonzero()[0]):
                    takes = times.rest_s[task, device] + (0.0 if shared else times.prefix_s[task, device])
                    chosen[device] = model.new_bool_var("")
                    length = math.floor(takes * _PER_S)
                    on_device[device].append(
                        model.new_optional_interval_var(starts[task], length, ends[task], chosen[device], "")
                    )
                    loaded = math.floor(times.load_s[task, device] * _PER_S)
                    model.add(starts[task] >= loaded).only_enforce_if(chosen[device])
                model.add_exactly_one(chosen.values())
                model.add(makespan >= ends[task])
                where.append(chosen)
            for task, above in enumerate(workflow.parents):
                for parent, size in zip(above, workflow.edge_bytes[task], strict=True):
                    moved = math.floor(size / platform.network_bytes_per_s * _PER_S)
                    model.add(starts[task] >= ends[parent])
                    for device, here in where[task].items():
                        there = where[parent].get(device)
                        away = [here] if there is None else [here, there.negated()]
                        model.add(starts[task] >= ends[parent] + moved).only_enforce_if(away)
        for intervals in on_device:
            model.add_no_overlap(intervals)
        model.minimize(makespan)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = self.solver_work
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            raise GaveUpError("The program has no solution.", given=solver.status_name(status))
        return solver.best_objective_bound / _PER_S, status == cp_model.OPTIMAL
