"""Packing adapters on few GPUs: one loop for what a planner believes, its order of packing, and its number of slots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wavetank.serving.placement.beliefs import (
    Belief,
    Distilled,
    Formula,
    MemoryOnly,
    WithoutAdapters,
    plain_capacity_per_s,
)
from wavetank.serving.placement.interface import (
    NO_GPU,
    TOO_MUCH,
    Adapter,
    Gpu,
    Placement,
    PlacementProblem,
    all_resident,
    outcasts,
)
from wavetank.serving.placement.twin import judge
from wavetank.settings import setting
from wavetank.sim.rng import stream

_BELIEFS: dict[str, type[Belief]] = {
    "distilled": Distilled, "formula": Formula, "without-adapters": WithoutAdapters, "memory": MemoryOnly,
}  # fmt: skip
# Seed of the hour that a plan is verified with before it is given out; studies judge with others.
_VERIFY_SEED = 1_000
_ROUNDS = 40
_TIGHTER = 0.93


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Planner that puts adapters, by falling load, each on the most loaded GPU that is believed to keep up with it."""

    believes: str = setting(
        "distilled",
        says="What a GPU keeps up: by a forest trained on the twin, by a formula, as much as the base model, or "
        "whatever fits into its memory",
        choices=tuple(_BELIEFS),
    )
    slots: str = setting(
        "best", says="Slots of a GPU: with which most is believed to be kept up, one for every adapter, or the most "
        "there are", choices=("best", "resident", "most"),
    )  # fmt: skip
    order: str = setting(
        "load", says="Adapters by falling load, like ranks together, or as given", choices=("load", "rank", "given")
    )
    verify: bool = setting(
        False,
        says="Whether plans are tried with the twin, loads evened out, and headroom lowered where a GPU starves",
    )

    @property
    def tries(self) -> bool:
        """Whether plans are tried before they are given out."""
        return self.verify

    @property
    def belief(self) -> Belief:
        """What this planner believes."""
        return _BELIEFS[self.believes]()

    def plan(self, problem: PlacementProblem) -> Placement:
        """Pack; see :class:`~wavetank.serving.placement.interface.PlacementPlanner`.

        Parameters
        ----------
        problem : PlacementProblem
        """
        plan = self.pack(problem)
        if not self.verify or plan.unplaced or not plan.gpus:
            return self._tightened(problem, plan) if self.verify else plan
        # As many GPUs, or fewer, with even loads, while the twin keeps up: what is packed tightly has no reserve.
        adapters = sorted(problem.adapters, key=lambda each: (-each.rate_per_s, -each.rank))
        best = None if starving(problem, plan, _VERIFY_SEED) else plan
        for count in range(len(plan.gpus), 0, -1):
            even = fed_and_even(problem, adapters, count)
            if even is None:
                break
            best = even
        return best or self._tightened(problem, plan)

    def _tightened(self, problem: PlacementProblem, plan: Placement) -> Placement:
        """Return a plan with less and less headroom until the twin keeps up with every GPU."""
        for _ in range(_ROUNDS):
            if not starving(problem, plan, _VERIFY_SEED):
                break
            problem = replace(problem, headroom=problem.headroom * _TIGHTER)
            plan = self.pack(problem)
        return plan

    def pack(self, problem: PlacementProblem) -> Placement:
        """Return the plan without trying it.

        Parameters
        ----------
        problem : PlacementProblem
        """
        unplaced = outcasts(problem)
        open_: list[tuple[list[Adapter], int]] = []
        for each in self._ordered([one for one in problem.adapters if one.name not in unplaced]):
            alone = self._slots(problem, [each])
            if alone is None:
                unplaced[each.name] = TOO_MUCH
                continue
            # The most loaded first: what they cannot take, emptier ones can.
            for place in sorted(range(len(open_)), key=lambda i: -sum(one.rate_per_s for one in open_[i][0])):
                together = [*open_[place][0], each]
                slots = self._slots(problem, together)
                if slots is not None:
                    open_[place] = (together, slots)
                    break
            else:
                if problem.gpus is not None and len(open_) == problem.gpus:
                    unplaced[each.name] = NO_GPU
                else:
                    open_.append(([each], alone))
        if not unplaced:
            open_ = self._emptied(problem, open_)
        gpus = tuple(Gpu(adapters=tuple(one.name for one in adapters), slots=slots) for adapters, slots in open_)
        return Placement(gpus=gpus, unplaced=unplaced)

    def _ordered(self, adapters: list[Adapter]) -> list[Adapter]:
        if self.order == "load":
            return sorted(adapters, key=lambda each: (-each.rate_per_s, -each.rank))
        if self.order == "rank":
            return sorted(adapters, key=lambda each: (-each.rank, -each.rate_per_s))
        return adapters

    def _slots(self, problem: PlacementProblem, adapters: Sequence[Adapter]) -> int | None:
        """Return the slots of a GPU that is believed to keep up; None where none does."""
        choices = problem.choices(max(each.rank for each in adapters))
        # Slots beyond the adapters only cost memory, except the number that holds them all.
        enough = next((each for each in choices if each >= len(adapters)), choices[-1])
        if self.slots == "best":
            choices = [each for each in choices if each <= enough]
        elif self.slots == "resident":
            choices = [all_resident(problem, adapters) or enough]
        else:
            choices = choices[-1:]
        keeps_up = self.belief.capacity_per_s(problem, adapters, choices) * problem.headroom
        best = int(np.argmax(keeps_up))
        asked = sum(each.rate_per_s for each in adapters)
        return choices[best] if keeps_up[best] >= asked else None

    def _emptied(
        self, problem: PlacementProblem, gpus: list[tuple[list[Adapter], int]]
    ) -> list[tuple[list[Adapter], int]]:
        """Try to spread the adapters of the least loaded GPU over the others."""
        if len(gpus) < 2:
            return gpus
        least = min(range(len(gpus)), key=lambda i: sum(one.rate_per_s for one in gpus[i][0]))
        others = [gpu for i, gpu in enumerate(gpus) if i != least]
        for each in self._ordered(list(gpus[least][0])):
            for i, (adapters, _) in enumerate(others):
                slots = self._slots(problem, [*adapters, each])
                if slots is not None:
                    others[i] = ([*adapters, each], slots)
                    break
            else:
                return gpus
        return self._emptied(problem, others)


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """Deals adapters over more and more GPUs until the twin keeps up with all: a search with the simulator in its loop.

    Each adapter, by falling load, goes to the GPU with the least load; first over all of them, then with a part of the
    GPUs for the highest rank alone, so that the others have narrower slots.
    """

    tries: ClassVar[bool] = True

    def plan(self, problem: PlacementProblem) -> Placement:
        """Search; see :class:`~wavetank.serving.placement.interface.PlacementPlanner`.

        Parameters
        ----------
        problem : PlacementProblem
        """
        unplaced = outcasts(problem)
        # Where less may be used, more requests are tried.
        scaled = [
            replace(each, rate_per_s=each.rate_per_s / problem.headroom)
            for each in problem.adapters
            if each.name not in unplaced
        ]
        tried = replace(problem, adapters=tuple(scaled), headroom=1.0) if scaled else problem
        plain_per_s = plain_capacity_per_s(problem.model)
        for each in scaled:
            alone = Placement(gpus=(Gpu(adapters=(each.name,), slots=1),))
            if each.rate_per_s > 0.5 * plain_per_s and starving(tried, alone, _VERIFY_SEED):
                unplaced[each.name] = TOO_MUCH
        adapters = sorted(
            (each for each in scaled if each.name not in unplaced), key=lambda each: (-each.rate_per_s, -each.rank)
        )
        if not adapters:
            return Placement(gpus=(), unplaced=unplaced)
        most = min(problem.gpus or len(adapters), len(adapters))
        first = min(max(math.ceil(sum(each.rate_per_s for each in adapters) / plain_per_s), 1), most)
        for count in range(first, most + 1):
            found = fed_and_even(tried, adapters, count)
            if found is not None:
                return replace(found, unplaced=unplaced)
        # Too few GPUs: as many of the lightest adapters as they keep up with.
        low, high = 0, len(adapters)
        best = Placement(gpus=())
        while high - low > 1:
            middle = (low + high) // 2
            found = fed_and_even(tried, adapters[-middle:], min(most, middle))
            if found is None:
                high = middle
            else:
                low, best = middle, found
        left = {each.name: NO_GPU for each in adapters[: len(adapters) - low]}
        return replace(best, unplaced=unplaced | left)


def fed_and_even(problem: PlacementProblem, adapters: list[Adapter], count: int) -> Placement | None:
    """Return adapters dealt by load over some GPUs, if the twin keeps up with all of them.

    Parameters
    ----------
    problem : PlacementProblem
        Whose adapters these are, or more.
    adapters : list of Adapter
        By falling load.
    count : int
        GPUs.
    """
    plans = _dealt_by_load(problem, adapters, count)
    return next((plan for plan in plans if not starving(problem, plan, _VERIFY_SEED)), None)


def _dealt_by_load(problem: PlacementProblem, adapters: list[Adapter], count: int) -> Iterator[Placement]:
    widest = max(each.rank for each in adapters)
    wide = [each for each in adapters if each.rank == widest]
    share = sum(each.rate_per_s for each in wide) / sum(each.rate_per_s for each in adapters)
    for apart in dict.fromkeys((0, round(share * count), math.ceil(share * count))):
        narrow = [each for each in adapters if each.rank < widest]
        if apart and (apart >= count or not narrow):
            continue
        parts = [(adapters, count)] if not apart else [(wide, apart), (narrow, count - apart)]
        groups: list[list[Adapter]] = []
        for some, gpus in parts:
            loads = [0.0] * gpus
            own: list[list[Adapter]] = [[] for _ in range(gpus)]
            for each in some:
                least = min(range(gpus), key=loads.__getitem__)
                loads[least] += each.rate_per_s
                own[least].append(each)
            groups += [each for each in own if each]
        yield Placement(
            gpus=tuple(Gpu(adapters=tuple(one.name for one in each), slots=all_resident(problem, each) or 1)
                       for each in groups),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """Planner that deals adapters in turns over as few GPUs as the base model would need, all resident."""

    shuffled: bool = setting(False, says="Whether adapters are shuffled first; else they are dealt by falling rate")
    seed: int = setting(0, says="Seed of the shuffle", low=0)

    def plan(self, problem: PlacementProblem) -> Placement:
        """Deal; see :class:`~wavetank.serving.placement.interface.PlacementPlanner`.

        Parameters
        ----------
        problem : PlacementProblem
        """
        unplaced = outcasts(problem)
        adapters = sorted(
            (each for each in problem.adapters if each.name not in unplaced), key=lambda each: -each.rate_per_s
        )
        if self.shuffled:
            adapters = [adapters[i] for i in stream(self.seed, "dealt").permutation(len(adapters))]
        if not adapters:
            return Placement(gpus=(), unplaced=unplaced)
        asked = sum(each.rate_per_s for each in adapters)
        one_per_s = float(WithoutAdapters().capacity_per_s(problem, adapters, [1])[0]) * problem.headroom
        count = min(max(math.ceil(asked / one_per_s), 1), len(adapters))
        if problem.gpus is not None:
            count = min(count, problem.gpus)
        groups = [adapters[i::count] for i in range(count)]
        gpus = tuple(
            Gpu(adapters=tuple(one.name for one in each), slots=all_resident(problem, each) or 1) for each in groups
        )
        return Placement(gpus=gpus, unplaced=unplaced)


def starving(problem: PlacementProblem, plan: Placement, seed: int) -> bool:
    """Return whether any GPU of a plan does not keep up in the twin's hour.

    Parameters
    ----------
    problem : PlacementProblem
    plan : Placement
    seed : int
        Of the requests.
    """
    return any(not problem.fed(judge(problem, gpu, seed)) for gpu in plan.gpus)
