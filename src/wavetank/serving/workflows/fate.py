"""FATE: a placement is scored by what it takes now and by the state that it leaves for what comes after it.

Placing a stage also decides which model stays resident where, where its output lies, which prefix is warm and which
devices later stages find usable.  FATE plans the ready stages alone, again at every event.  Every candidate, a stage on
one device or shared between a few, is scored by its expected cost in the present state, plus what the next levels of
the workflow would take after it and no longer before it.  A small integer program then chooses candidates for all ready
stages together; a stage may be left to wait for a device that is busy but warm.  It wins where loads, transfers and
cold prefixes are a fair part of the time, and where several stages want the same device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.errors import unknown_name
from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.costs import Times, ends_s
from wavetank.serving.workflows.interface import Dispatch, FloatArray, Platform, Session, StageKey, View
from wavetank.serving.workflows.prices import balance, work_left
from wavetank.serving.workflows.watch import Watch
from wavetank.settings import setting

_PER_S = 1000  # the solver counts whole milliseconds
DIMENSIONS = ("residency", "locality", "prefixes", "reachability")
"""What of the state after a placement its score looks at."""


@dataclass(frozen=True)
class Candidate:
    """A stage on devices."""

    key: StageKey
    devices: tuple[int, ...]
    cost_s: float
    score_s: float


class _Horizon:
    """Stages that come within a few levels, with what each would take on every device in a given state.

    Rows are stages: those that are ready, and what follows ready and running ones.
    """

    def __init__(self, view: View, times: Sequence[Times], levels: int) -> None:
        self.level: dict[StageKey, int] = {}
        frontier = [*view.ready, *(key for key in view.placed if key not in view.done)]
        for key in view.ready:
            self.level[key] = 0
        for depth in range(1, levels + 1):
            following = []
            for number, task in frontier:
                for child in view.applications[number].workflow.children[task]:
                    if (number, child) not in self.level:
                        self.level[number, child] = depth
                        following.append((number, child))
            frontier = following
        model_of = {key: times[key[0]].application.stages[key[1]].model for key in self.level}
        self.keys = sorted(self.level, key=lambda key: model_of[key])
        self.row = {key: i for i, key in enumerate(self.keys)}
        self.depth = np.array([self.level[key] for key in self.keys], float)
        stages = [times[number].application.stages[task] for number, task in self.keys]
        self.load_s, self.prefix_s, self.rest_s = (
            np.array([getattr(times[number], name)[task] for number, task in self.keys])
            for name in ("load_s", "prefix_s", "rest_s")
        )
        # Not allowed is infinite in one part alone: the difference of two such numbers is none.
        self.load_s[np.isinf(self.rest_s)] = 0.0
        self.prefix_s[np.isinf(self.rest_s)] = 0.0
        groups: dict[tuple[str, str], int] = {}
        self.group = np.array([groups.setdefault((each.model, each.prefix), len(groups)) for each in stages], int)
        self.groups = list(groups)
        names = [each.model for each in stages]
        self.starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        self.tokens = np.array([max(each.prefix_tokens, 1) for each in stages], float)

    def column(self, device: int, caches: Caches, residency: bool, prefixes: bool) -> FloatArray:
        """Return what every stage of the horizon takes on a device with these caches, waiting and transfers apart."""
        found = self.prefix_s[:, device] + self.rest_s[:, device]
        if residency:
            cold = np.array([model not in caches.models for model, _ in self.groups])
            found = found + np.where(cold[self.group], self.load_s[:, device], 0.0)
        if prefixes:
            cached = np.array(
                [caches.prefixes.get(key, 0) if key[0] in caches.models else 0 for key in self.groups], float
            )
            found = found - self.prefix_s[:, device] * np.minimum(cached[self.group] / self.tokens, 1.0)
        return found


class _Planning:
    def __init__(self, platform: Platform, about: Fate) -> None:
        self._watch = Watch(platform)
        self._platform = platform
        self._about = about
        self._looks = about.dimensions

    def decide(self, view: View) -> Sequence[Dispatch]:
        caches = self._watch.see(view)
        times = self._watch.times
        ready = sorted(view.ready, key=lambda key: -float(times[key[0]].rank_s[key[1]]))
        ready = ready[: self._about.stages_per_device * len(view.devices)]
        if not ready:
            return []
        found = self._candidates(view, ready, caches)
        if self._about.future_weight:
            found = self._with_future(view, found, caches)
        if "reachability" in self._looks:
            found = self._priced(view, ready, found)
        reward = self._rewards(ready, found)
        chosen = solved(found, reward, self._about.solver_work) if self._about.solver == "cp-sat" else None
        chosen = greedy(found, reward) if chosen is None else chosen
        return [
            Dispatch(each.key, each.devices)
            for each in chosen
            if all(view.devices[device].idle for device in each.devices)
        ]

    def _priced(self, view: View, ready: Sequence[StageKey], candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with scores that count what their devices' time is worth, and what would come late.

        Device time is priced by what all that is left could be done with.  A stage is late by what its longest way to
        the end exceeds the time that all that is left takes at least.
        """
        about, times = self._about, self._watch.times
        busy = np.array([max(each.ready_s - view.now_s, 0.0) for each in view.devices])
        least_s, prices = balance(work_left(times, view.placed), busy)
        # A free device is worth what others are at least; a price of 0 would make waste of it invisible.
        prices = np.maximum(prices, 1e-3 / busy.size) * busy.size
        way = {key: float(times[key[0]].rank_s[key[1]] - times[key[0]].mean_s[key[1]]) for key in ready}
        ideal = {key: float((prices * times[key[0]].run_s[key[1]]).min()) for key in ready}
        target = max(least_s, max(way[key] + float(times[key[0]].run_s[key[1]].min()) for key in ready))
        found = []
        for each in candidates:
            devices = list(each.devices)
            worth = float(prices[devices] @ np.maximum(each.cost_s - busy[devices], 0.0)) - ideal[each.key]
            # A device that is idle loses what it is worth until the next event.
            idle = about.idle_s * float(prices[[device for device in devices if view.devices[device].idle]].sum())
            late = max(each.cost_s + way[each.key] - target, 0.0)
            score = each.score_s + (about.cost_weight - 1) * each.cost_s
            score += about.price_weight * (worth - idle) + about.late_weight * late
            found.append(Candidate(each.key, each.devices, each.cost_s, score))
        return found

    def _rewards(self, ready: Sequence[StageKey], candidates: Sequence[Candidate]) -> dict[StageKey, float]:
        """Return what placing each stage is worth: more than any score costs, and more for those with far to go."""
        base = max(max(each.score_s for each in candidates), 0.0)
        rank = {key: float(self._watch.times[key[0]].rank_s[key[1]]) for key in ready}
        return {key: base + self._about.rank_weight * rank[key] for key in ready}

    def _candidates(self, view: View, ready: Sequence[StageKey], caches: Sequence[Caches]) -> list[Candidate]:
        """Return the cheapest candidates of every ready stage, shared ones among them."""
        found = []
        for key in ready:
            times = self._watch.times[key[0]]
            task = key[1]
            ends = ends_s(view, times, key, np.flatnonzero(times.allowed[task]).tolist(), caches)
            costs = {
                devices: end - view.now_s + self._about.shard_penalty_s * (len(devices) - 1)
                for devices, end in ends.items()
                if end < math.inf
            }
            own = [Candidate(key, devices, cost, cost) for devices, cost in costs.items()]
            own.sort(key=lambda each: (each.cost_s, each.devices))
            found += own[: self._about.candidates]
        return found

    def _with_future(self, view: View, candidates: Sequence[Candidate], caches: Sequence[Caches]) -> list[Candidate]:
        """Return the candidates with scores that count what later stages take after each."""
        horizon = _Horizon(view, self._watch.times, self._about.horizon)
        resident, warm = "residency" in self._looks, "prefixes" in self._looks
        count = len(caches)
        now = np.stack([horizon.column(each, caches[each], resident, warm) for each in range(count)], axis=1)
        by_stage: dict[StageKey, list[Candidate]] = {}
        for each in candidates:
            by_stage.setdefault(each.key, []).append(each)
        columns: dict[tuple[int, str, str, int], FloatArray] = {}
        found = []
        for key, own in by_stage.items():
            stage = self._watch.times[key[0]].application.stages[key[1]]
            # One layer per candidate: what each stage of the horizon takes on each device after it.
            after = np.repeat(now[None], len(own), axis=0)
            for layer, each in zip(after, own, strict=True):
                for device in each.devices:
                    state = device, stage.model, stage.prefix, stage.kept_tokens
                    if state not in columns:
                        changed = caches[device].copy()
                        changed.use(stage)
                        columns[state] = horizon.column(device, changed, resident, warm)
                    layer[:, device] = columns[state]
            future = self._future(view, horizon, own, now, after)
            found += [
                Candidate(key, each.devices, each.cost_s, each.cost_s + self._about.future_weight * value)
                for each, value in zip(own, future.tolist(), strict=True)
            ]
        return found

    def _future(
        self, view: View, horizon: _Horizon, own: Sequence[Candidate], now: FloatArray, after: FloatArray
    ) -> FloatArray:
        """Return for each candidate of a stage what others take more after it than in the present state."""
        about = self._about
        below = self._descendants(horizon, view, own[0].key)
        rows = [row for row, _, _ in below]
        # What stages that do not follow lose or gain, once per model: it is loaded again once, for the first of them.
        loss = about.discount**horizon.depth * (after.min(axis=2) - now.min(axis=1))
        loss[:, [horizon.row[own[0].key], *rows]] = 0.0
        found = np.maximum.reduceat(loss, horizon.starts, axis=1).clip(min=0.0).sum(axis=1)
        found += np.minimum.reduceat(loss, horizon.starts, axis=1).clip(max=0.0).sum(axis=1)
        found *= about.others_weight
        if not below:
            return found
        ready_s = np.array([each.ready_s for each in view.devices])
        held = np.zeros((len(own), ready_s.size))
        for mark, each in zip(held, own, strict=True):
            mark[list(each.devices)] = 1 / len(each.devices)
        before, later = now[rows], after[:, rows, :]
        if "reachability" in self._looks:
            ends = view.now_s + np.array([each.cost_s for each in own])
            waits = np.maximum(ready_s - ends[:, None], 0.0)
            before = before + waits[:, None, :]
            later = later + np.where(held > 0, 0.0, waits)[:, None, :]
        lost = later.min(axis=2)
        if "locality" in self._looks:
            sizes = np.array([size for _, _, size in below]) / self._platform.network_bytes_per_s
            lost = (later + sizes[None, :, None] * (1 - held[:, None, :])).min(axis=2) - sizes * (1 - 1 / ready_s.size)
        weight = about.discount ** np.array([level for _, level, _ in below], float)
        return found + (lost - before.min(axis=-1)) @ weight

    def _descendants(self, horizon: _Horizon, view: View, key: StageKey) -> list[tuple[int, int, float]]:
        """Return rows, levels below the stage, and bytes that come from it, of its descendants in the horizon."""
        number, task = key
        workflow = view.applications[number].workflow
        found: dict[int, tuple[int, int, float]] = {}
        frontier = [task]
        for level in range(1, self._about.horizon + 1):
            following = []
            for parent in frontier:
                for child in workflow.children[parent]:
                    row = horizon.row.get((number, child))
                    if child not in found and row is not None:
                        place = workflow.parents[child].index(parent)
                        size = workflow.edge_bytes[child][place] if level == 1 else 0.0
                        found[child] = row, level, size
                        following.append(child)
            frontier = following
        return list(found.values())


def solved(candidates: Sequence[Candidate], reward_s: dict[StageKey, float], work: float) -> list[Candidate] | None:
    """Return the best set of candidates, at most one per stage and per device; None where the solver found none.

    Parameters
    ----------
    candidates : sequence of Candidate
    reward_s : dict of StageKey to float
        What placing each stage is worth.
    work : float
        The solver's limit, in its own deterministic units, so that equal views give equal plans.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = [model.new_bool_var("") for _ in candidates]
    by_stage: dict[StageKey, list[int]] = {}
    by_device: dict[int, list[int]] = {}
    for i, each in enumerate(candidates):
        by_stage.setdefault(each.key, []).append(i)
        for device in each.devices:
            by_device.setdefault(device, []).append(i)
    for rows in (*by_stage.values(), *by_device.values()):
        if len(rows) > 1:
            model.add_at_most_one(chosen[i] for i in rows)
    worth = [round((each.score_s - reward_s[each.key]) * _PER_S) for each in candidates]
    model.minimize(sum(value * var for value, var in zip(worth, chosen, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = False
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = work
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [each for each, var in zip(candidates, chosen, strict=True) if solver.boolean_value(var)]


def greedy(candidates: Sequence[Candidate], reward_s: dict[StageKey, float]) -> list[Candidate]:
    """Return candidates taken one after the other, the most worthwhile first.

    Parameters
    ----------
    candidates : sequence of Candidate
    reward_s : dict of StageKey to float
    """
    taken: set[int] = set()
    placed: set[StageKey] = set()
    found = []
    for each in sorted(candidates, key=lambda each: (each.score_s - reward_s[each.key], each.key, each.devices)):
        if each.key not in placed and not taken & set(each.devices):
            placed.add(each.key)
            taken |= set(each.devices)
            found.append(each)
    return found


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Scores placements of ready stages by cost and by the state that they leave, and chooses them together.

    Parameters
    ----------
    solver : str
        ``greedy`` takes the most worthwhile candidates one after the other.
    """

    future_weight: float = setting(0.5, says="Weight of what later stages take after a placement", low=0.0, high=100.0)
    others_weight: float = setting(
        1.0, says="Share of it for stages that do not follow the placed one", low=0.0, high=100.0
    )
    horizon: int = setting(2, unit="levels", says="Levels of descendants that are looked at", low=1, high=20)
    discount: float = setting(0.6, says="Weight of each further level", low=0.0, high=1.0)
    cost_weight: float = setting(0.3, says="Weight of the cost itself", low=0.0, high=100.0)
    price_weight: float = setting(
        1.0, says="Weight of device time at its price, beyond what the stage needs at least", low=0.0, high=100.0
    )
    idle_s: float = setting(
        2.0, unit="s", says="Time for which a device that gets nothing now is taken to stay idle", low=0.0, high=1e6
    )
    late_weight: float = setting(
        1.0,
        says="Weight of the time by which the way to the end exceeds what all work takes at least",
        low=0.0,
        high=100.0,
    )
    rank_weight: float = setting(
        0.5, says="How much more placing a stage is worth per second that it has to go", low=0.0, high=100.0
    )
    shard_penalty_s: float = setting(
        1.0, unit="s", says="What each further device of a shared stage adds to its score", low=0.0, high=1e6
    )
    candidates: int = setting(8, says="Candidates per stage that are kept, the cheapest now", low=1, high=100)
    stages_per_device: int = setting(
        2, unit="stages", says="Ready stages that are planned, per device, the most urgent first", low=1, high=100
    )
    solver: str = setting("cp-sat", says="What chooses the candidates", choices=("cp-sat", "greedy"))
    solver_work: float = setting(
        0.05, says="Limit of the solver in its own deterministic seconds; the greedy choice follows", low=1e-4, high=60
    )
    looks_at: str = setting(
        ",".join(DIMENSIONS), says="Dimensions of the state after a placement that its score looks at, with commas"
    )

    def __post_init__(self) -> None:
        for each in self.dimensions:
            if each not in DIMENSIONS:
                raise unknown_name("dimension of the state", each, DIMENSIONS)

    @property
    def dimensions(self) -> frozenset[str]:
        """What the score looks at, of :data:`DIMENSIONS`."""
        return frozenset(self.looks_at.replace(" ", "").split(",")) if self.looks_at else frozenset()

    def session(self, platform: Platform) -> Session:
        """Return a session that has seen no application.

        Parameters
        ----------
        platform : Platform
        """
        return _Planning(platform, self)
