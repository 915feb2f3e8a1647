"""The study ``state-spaces``: small instances, every interleaving, several ways to search.

Counts are exact and must agree, whatever the order; speeds are of one process on one core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.check.explore.environment import Environment
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

# More nodes than this have too many renamings to look at.
_MOST_RENAMED = 6


@dataclass(frozen=True, kw_only=True)
class StateSpaces(Study):
    """The instances are two-phase commit with a growing number of resource managers, messages that may arrive again for
    ever (as in its specification), and one with a planted bug: the manager does not wait for the last one.  The naive
    explorer stops at ``naive_states`` states; its speed is that of these.  Symmetry is tried with up to 6 managers.
    """

    name = "state-spaces"
    baseline = "naive-explorer"
    primary = "states_per_s"
    cases_by = "instance"
    default_seeds: ClassVar[int] = 3
    in_process: ClassVar[bool] = True
    metrics = (
        Metric("states_per_s", "/s", "higher", "measured", "distinct states / wall time of the search, code compiled"),
        Metric("states", "", "", "counted", "distinct states (with symmetry: orbits) of a search that ended"),
        Metric("handler_calls", "", "lower", "counted", "calls of the algorithm's handlers", table=False),
        Metric("counterexample_steps", "", "lower", "counted", "steps to the planted violation"),
    )  # fmt: skip
    charts = (
        Chart("bars", "States per second", y="states_per_s", by="instance", log="x",
              says="One process on one core; the naive explorer runs a handler at every step."),
        Chart("bars", "Distinct states", y="states", by="instance", log="x",
              says="All orders agree; symmetry counts orbits."),
    )  # fmt: skip

    managers: tuple[int, ...] = setting((3, 5, 7), says="Resource managers of the instances", low=1, high=10)
    planted: int = setting(4, says="Resource managers of the instance with the planted bug", low=2, high=8)
    naive_states: int = setting(4000, says="States after which the naive explorer stops", low=1, high=10_000_000)

    def measure(self, system: Any, seed: int) -> Measurements | Mapping[str, float]:
        """Count and time every instance."""
        environment = Environment(channels="set")
        naive = not hasattr(system, "order")
        # The first call compiles, or loads what was compiled.
        system.count(TwoPhaseCommit(), 2, environment, 10)
        found = Measurements()
        for managers in self.managers:
            if getattr(system, "symmetry", False) and managers > _MOST_RENAMED:
                continue
            most = self.naive_states if naive else 50_000_000
            began = time.perf_counter()
            count = system.count(TwoPhaseCommit(), managers + 1, environment, most)
            seconds = time.perf_counter() - began
            at = {"instance": f"two-phase-commit-{managers}"}
            found.put("states_per_s", count.states / seconds, **at)
            if count.complete:
                found.put("states", count.states, **at)
                found.put("handler_calls", count.handler_calls, **at)
        count = system.count(TwoPhaseCommit(missing=1), self.planted + 1, environment, 50_000_000)
        found.put("counterexample_steps", count.counterexample, instance=f"missing-one-of-{self.planted}")
        return found
