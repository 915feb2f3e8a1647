"""A fleet under a policy: windows, changes of the plan while requests run, and what came of every request.

GPUs are numbered, and a group has neighbours whose first number its degree divides.  A new plan keeps what it can: a
group that stays goes on, one that gets another tier or role goes on with it, and only where a degree changes do the old
groups end their step, pause, hand their caches to the new ones on the same GPUs and go on.  A cache that finds no room
is dropped and made again.  No request is lost: whatever waits is sent to a group anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import as_device, as_model
from wavetank.serving.tiers.interface import (
    DECODE,
    PREFILL,
    Floats,
    Group,
    Ints,
    Plan,
    Policy,
    Problem,
    Rules,
    Tier,
    WindowView,
    check_plan,
)
from wavetank.serving.tiers.profile import Hardware
from wavetank.serving.tiers.sharding import moved_share
from wavetank.serving.tiers.steps import (
    ARRIVED,
    BATCH,
    DONE,
    GROUPS,
    INBOX,
    LATES,
    MOVING,
    WAITING,
    WAITS,
    Fleet,
    advance,
    bound_s,
    dispatch,
    hand_over,
    join,
    leave,
    step_s,
    unpromise,
    wake,
)
from wavetank.serving.tiers.traffic import TieredRequests

_LINK_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class Served:
    """What came of the requests, and of the plans.

    Attributes
    ----------
    requests : TieredRequests
    tiers : tuple of Tier
    first_s, finish_s : ndarray of float64, shape (n,)
        First and last token; NaN where there was none before the run ended.
    made : ndarray of int64, shape (n,)
        Tokens made.
    plans : tuple of (float, Plan)
        Every plan, with the time from which it held.
    paused_gpu_s : float
        GPU seconds in which groups were paused.
    moved_bytes : float
        Keys and values that changed GPUs at switches.
    remade : int
        Requests whose cache was dropped at a switch.
    misplaced : int
        Requests that are in no list or in two, or done with other tokens than asked.
    """

    requests: TieredRequests
    tiers: tuple[Tier, ...]
    first_s: Floats
    finish_s: Floats
    made: Ints
    plans: tuple[tuple[float, Plan], ...]
    paused_gpu_s: float
    moved_bytes: float
    remade: int
    misplaced: int

    def good(self) -> np.ndarray:
        """Return which requests kept both objectives, bool of shape (n,)."""
        asked = self.requests
        ttft = np.array([tier.ttft_s for tier in self.tiers])[asked.tier]
        tpot = np.array([tier.tpot_s for tier in self.tiers])[asked.tier]
        # A step is a whole number of picoseconds: what is on the objective is within it.
        spent = (self.finish_s - self.first_s) / np.maximum(asked.output_tokens - 1, 1)
        kept: np.ndarray = (self.first_s - asked.arrival_s <= ttft) & (spent <= tpot + 1e-9)
        return kept

    def good_per_s(self, from_s: float, to_s: float) -> float:
        """Return the requests per second that arrived between two times and kept both objectives."""
        within = (self.requests.arrival_s >= from_s) & (self.requests.arrival_s < to_s)
        return float((self.good() & within).sum() / (to_s - from_s))

    def shares(self, from_s: float, to_s: float) -> list[float]:
        """Return, of each tier, the share of requests that arrived between two times and kept both objectives."""
        within = (self.requests.arrival_s >= from_s) & (self.requests.arrival_s < to_s)
        good = self.good()
        found = []
        for tier in range(len(self.tiers)):
            own = within & (self.requests.tier == tier)
            found.append(float(good[own].mean()) if own.any() else 1.0)
        return found


@dataclass(kw_only=True)
class _Run:
    """A fleet while it serves."""

    fleet: Fleet
    hardware: Hardware
    tiers: tuple[Tier, ...]
    full_copy: bool
    switch_s: float
    most: dict[Group, int]
    plan: Plan = ()
    # Of each group: its first GPU.
    at: list[int] = field(default_factory=list)
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    paused_gpu_s: float = 0.0
    moved_bytes: float = 0.0
    remade: int = 0

    @property
    def _link(self) -> float:
        """Bytes per second of one GPU's link."""
        return as_device(self.hardware.device).link_bytes_per_s * _LINK_SHARE

    def change(self, plan: Plan, now: float) -> None:
        """Go over to another plan."""
        fleet, before = self.fleet, list(zip(self.plan, self.at, strict=True))
        slots = placed(plan, before, self.hardware.gpus)
        stays = {first: index for index, (group, first) in enumerate(before)}
        # What waits, and what runs, by the group that it leaves.
        waiting: list[int] = []
        leaving: list[tuple[int, int, int, int, float]] = []
        kept: dict[int, tuple[int, Group]] = {}
        for group, first in slots:
            index = stays.get(first)
            if index is not None and before[index][0].tp == group.tp:
                kept[index] = (first, group)
        for index, (old, first) in enumerate(before):
            after = kept.get(index)
            if after is not None and after[1] == old:
                continue
            waiting += self._taken_out(index, goes_on=after is not None and after[1].role == old.role)
            everybody = after is None or after[1].role == PREFILL
            i = 0
            while i < fleet.sizes[index, BATCH]:
                # A group that gets another tier keeps that tier's requests, and what finds no room elsewhere.
                own = int(fleet.tier[fleet.batch[index, i]])
                if after is not None and not everybody and after[1].tier in (own, -1):
                    i += 1
                    continue
                r = int(leave(fleet, index, i))
                leaving.append((r, first, old.tp, int(fleet.promised[r]), float(fleet.free_s[index])))
                self._ask_again(r)
        # Caches on their way keep no room anywhere: they go to the groups that decode now.
        moving = [int(fleet.inbox[g, i]) for g in range(len(before)) for i in range(fleet.sizes[g, INBOX])]
        self._arrange(slots, before, kept, now)
        for r in moving:
            hand_over(fleet, r, float(fleet.ready_s[r]))
        received, coming = np.zeros(len(slots)), np.zeros(len(slots), np.int64)
        for r, first, tp, promised, made_s in sorted(leaving):
            if not self._moved_in(r, first, tp, promised, made_s, slots, received, coming):
                waiting.append(r)
        self._pause(slots, received, now)
        for r in sorted(waiting, key=lambda each: (fleet.arrival_s[each], each)):
            dispatch(fleet, r, now)
        self.plan, self.at = tuple(group for group, _ in slots), [first for _, first in slots]
        self.plans.append((now, tuple(sorted(plan))))

    def _ask_again(self, r: int) -> None:
        unpromise(self.fleet, r)
        self.fleet.decoder[r] = -1

    def _taken_out(self, g: int, goes_on: bool) -> list[int]:
        """Return what waits at a group, which then has no list of it; a prompt in work goes on, or begins anew."""
        fleet = self.fleet
        found = [int(fleet.waits[g, i]) for i in range(fleet.sizes[g, WAITS])]
        found += [int(fleet.lates[g, i]) for i in range(fleet.sizes[g, LATES])]
        working = int(fleet.prompt_now[g])
        if working >= 0 and not goes_on:
            found.append(working)
            fleet.held[g] -= fleet.prompt[working] + (fleet.output[working] if fleet.role[g] != PREFILL else 0)
            fleet.prompt_now[g] = -1
        for r in found:
            self._ask_again(r)
        if working >= 0 and not goes_on:
            # What was processed of it stays behind.
            fleet.todo[working] = fleet.prompt[working] + fleet.made[working]
        fleet.sizes[g, WAITS] = fleet.sizes[g, LATES] = 0
        return found

    def _arrange(
        self,
        slots: Sequence[tuple[Group, int]],
        before: Sequence[tuple[Group, int]],
        kept: dict[int, tuple[int, Group]],
        now: float,
    ) -> None:
        """Put the groups of the new plan into the arrays: those that stay with their state, the others empty."""
        fleet, came_from = self.fleet, {first: index for index, (first, _) in kept.items()}
        per_group = [
            "steps", "running", "context", "held", "prompt_now", "next_end", "promises", "backlog", "free_s", "next_s",
            "waits", "lates", "batch", "sizes", "tight",
        ]  # fmt: skip
        old = {name: getattr(fleet, name)[: len(before)].copy() for name in per_group}
        for g, (group, first) in enumerate(slots):
            index = came_from.get(first)
            for name in per_group:
                getattr(fleet, name)[g] = 0 if index is None else old[name][index]
            if index is None:
                ends = [old["free_s"][k] for k, (each, start) in enumerate(before)
                        if start < first + group.tp and first < start + each.tp]  # fmt: skip
                fleet.free_s[g] = max([now, *ends]) + (self.switch_s if before else 0.0)
                self.paused_gpu_s += group.tp * (self.switch_s if before else 0.0)
                fleet.next_s[g] = np.inf
                fleet.prompt_now[g] = -1
                fleet.next_end[g] = np.iinfo(np.int64).max
            # Promises follow the requests, wherever these are now.
            fleet.promises[g] = fleet.backlog[g] = 0
            fleet.sizes[g, INBOX] = 0
            fleet.group_tier[g], fleet.role[g] = group.tier, group.role
            fleet.degree[g] = self.hardware.degrees.index(group.tp)
            fleet.room[g] = self.hardware.room_tokens(group.tp, self.full_copy)
            fleet.most[g] = self.most[group]
            for which, queue in ((WAITS, fleet.waits), (LATES, fleet.lates), (BATCH, fleet.batch)):
                fleet.place[queue[g, : fleet.sizes[g, which]]] = g
            if fleet.prompt_now[g] >= 0:
                fleet.place[fleet.prompt_now[g]] = g
        fleet.counts[GROUPS] = len(slots)
        fleet.counts[1] = 0
        where = {index: g for g, (_, first) in enumerate(slots) if (index := came_from.get(first)) is not None}
        promised = np.flatnonzero((fleet.promised == 1) & (fleet.state != DONE))
        for r in promised:
            if fleet.decoder[r] >= 0:
                known = where.get(int(fleet.decoder[r]), -1)
                if known < 0 or fleet.role[known] == PREFILL:
                    # The group that it was promised at is gone: it is still served in time where there is room.
                    fleet.promised[r], fleet.decoder[r] = 0, -1
                    continue
                fleet.decoder[r] = known
            g = int(fleet.place[r] if fleet.decoder[r] < 0 else fleet.decoder[r])
            fleet.promises[g] += 1
            if fleet.state[r] < MOVING:
                fleet.backlog[fleet.place[r]] += fleet.todo[r]
        fleet.decoder[fleet.promised == 0] = -1

    def _moved_in(
        self, r: int, first: int, tp: int, promised: int, made_s: float, slots: Sequence[tuple[Group, int]],
        received: Floats, coming: Ints,
    ) -> bool:  # fmt: skip
        """Let a request that ran go on in a group with room, of its tier and on the same GPUs where it can.

        ``made_s`` is the end of the step it was in: a group that is free before goes on, and has it when it comes.
        """
        fleet = self.fleet
        needs = int(fleet.prompt[r] + fleet.output[r])
        options = []
        for g, (group, start) in enumerate(slots):
            if group.role == PREFILL or fleet.held[g] + coming[g] + needs > fleet.room[g]:
                continue
            shared = start < first + tp and first < start + group.tp
            load = (fleet.held[g] + coming[g] + needs) / fleet.room[g]
            context = int(fleet.context[g] + fleet.prompt[r] + fleet.made[r])
            slow = step_s(fleet, g, fleet.running[g] + 1, context, 0, 0) > bound_s(fleet, g, fleet.tier[r])
            options.append((slow, group.tier not in (int(fleet.tier[r]), -1), not shared, load, g))
        if not options:
            self.remade += 1
            fleet.todo[r] = fleet.prompt[r] + fleet.made[r]
            return False
        _, _, apart, _, g = min(options)
        share = 1.0 if apart else moved_share(tp, slots[g][0].tp)
        moved = share * float(fleet.prompt[r] + fleet.made[r]) * as_model(self.hardware.model).kv_bytes_per_token
        self.moved_bytes += moved
        later = apart and made_s > fleet.free_s[g]
        if later:
            coming[g] += needs
            fleet.decoder[r] = g
            hand_over(fleet, r, made_s + moved / (self._link * slots[g][0].tp))
        else:
            received[g] += moved
            fleet.held[g] += needs
            join(fleet, g, r)
        fleet.promised[r] = promised
        fleet.promises[g] += promised
        fleet.decoder[r] = g if promised and (later or slots[g][0].role == DECODE) else -1
        return True

    def _pause(self, slots: Sequence[tuple[Group, int]], received: Floats, now: float) -> None:
        """Add the time of the moved caches, and let groups with work begin."""
        fleet = self.fleet
        for g, (group, _) in enumerate(slots):
            took = received[g] / (self._link * group.tp)
            if took:
                fleet.free_s[g] = max(fleet.free_s[g], now) + took
                self.paused_gpu_s += took * group.tp
                if np.isfinite(fleet.next_s[g]):
                    fleet.next_s[g] = fleet.free_s[g]
            if fleet.running[g]:
                wake(fleet, g, now)


def placed(plan: Plan, before: Sequence[tuple[Group, int]], gpus: int) -> list[tuple[Group, int]]:
    """Return the groups of a plan with their first GPUs: as many as can be where a group of their degree was.

    Parameters
    ----------
    plan : tuple of Group
        Degrees are powers of two that fit into the GPUs together.
    before : sequence of (Group, int)
        What ran, and where.
    gpus : int
    """
    left, old = sorted(plan, key=lambda group: (-group.tp, group)), list(before)
    found: list[tuple[Group, int]] = []
    # The same group first, then one of its tier and degree, then one of its degree.
    for alike in (3, 2, 1):
        for group in list(left):
            wanted = (group.tp, group.tier, group.role)[:alike]
            match = next((each for each in old if (each[0].tp, each[0].tier, each[0].role)[:alike] == wanted), None)
            if match is not None:
                old.remove(match)
                left.remove(group)
                found.append((group, match[1]))
    while left:
        group = left.pop(0)
        # The aligned place with the fewest GPUs of smaller groups on it; those look for another place.
        places = []
        for start in range(0, gpus, group.tp):
            on = [each for each in found if each[1] < start + group.tp and start < each[1] + each[0].tp]
            if all(each.tp < group.tp for each, _ in on):
                places.append((sum(each.tp for each, _ in on), start, on))
        _, start, pushed = min(places)
        found = [each for each in found if each not in pushed]
        found.append((group, start))
        left = sorted([*left, *(each for each, _ in pushed)], key=lambda group: (-group.tp, group))
    return sorted(found, key=lambda each: each[1])


def serve(
    requests: TieredRequests, policy: Policy, problem: Problem, hardware: Hardware, *, drain_s: float = 60.0
) -> Served:
    """Serve requests under a policy.

    Parameters
    ----------
    requests : TieredRequests
    policy : Policy
    problem : Problem
    hardware : Hardware
    drain_s : float
        How long the run goes on after the last arrival; requests that are not done by then have not kept their
        objectives.

    Raises
    ------
    BadValueError
        If a plan does not fit, or a request fits into no group.
    """
    plan, state = policy.begin(problem)
    heads = as_model(hardware.model).kv_heads
    check_plan(plan, hardware.gpus, heads)
    run = _started(requests, policy.rules, problem, hardware)
    run.change(plan, 0.0)
    fleet = run.fleet
    last = float(requests.arrival_s[-1])
    end, index, counted = last + drain_s, 0, 0
    finished = 0
    while (index + 1) * problem.window_s < end:
        index += 1
        now = index * problem.window_s
        advance(fleet, now)
        if now > last and (fleet.state == DONE).all():
            break
        arrived = np.bincount(requests.tier[counted : fleet.counts[ARRIVED]], minlength=len(problem.tiers))
        counted = int(fleet.counts[ARRIVED])
        waiting = np.bincount(requests.tier[:counted][fleet.state[:counted] == WAITING], minlength=len(problem.tiers))
        good = _good_so_far(fleet, now)
        view = WindowView(index, arrived, waiting, max(good - finished, 0) / problem.window_s, run.plans[-1][1])
        finished = good
        wanted = tuple(sorted(policy.decide(view, state)))
        if wanted != view.plan and now <= last:
            check_plan(wanted, hardware.gpus, heads)
            run.change(wanted, now)
    advance(fleet, end)
    return Served(
        requests=requests, tiers=problem.tiers, first_s=fleet.first_s, finish_s=fleet.finish_s, made=fleet.made,
        plans=tuple(run.plans), paused_gpu_s=run.paused_gpu_s, moved_bytes=run.moved_bytes, remade=run.remade,
        misplaced=_misplaced(fleet),
    )  # fmt: skip


def _misplaced(fleet: Fleet) -> int:
    """Return how many requests are lost or duplicated: in no list or in two, or done with other tokens than asked."""
    times = np.zeros(fleet.arrival_s.size, np.int64)
    for g in range(fleet.counts[GROUPS]):
        for which, queue in ((WAITS, fleet.waits), (LATES, fleet.lates), (INBOX, fleet.inbox), (BATCH, fleet.batch)):
            np.add.at(times, queue[g, : fleet.sizes[g, which]], 1)
        if fleet.prompt_now[g] >= 0:
            times[fleet.prompt_now[g]] += 1
    arrived = np.arange(times.size) < fleet.counts[ARRIVED]
    done = fleet.state == DONE
    wrong = np.where(done | ~arrived, times != 0, times != 1)
    return int((wrong | (done & ((fleet.made != fleet.output) | (fleet.todo != 0)))).sum())


def _good_so_far(fleet: Fleet, now: float) -> int:
    """Return how many requests ended by now within both objectives."""
    done = (fleet.state == DONE) & (fleet.finish_s <= now)
    spent = (fleet.finish_s - fleet.first_s) / np.maximum(fleet.output - 1, 1)
    ttft, tpot = fleet.ttft_s[fleet.tier], fleet.tpot_s[fleet.tier]
    return int((done & (fleet.first_s - fleet.arrival_s <= ttft) & (spent <= tpot + 1e-9)).sum())


def _started(requests: TieredRequests, rules: Rules, problem: Problem, hardware: Hardware) -> _Run:
    """Return an idle fleet without groups."""
    n, gpus, tiers = len(requests.arrival_s), hardware.gpus, problem.tiers
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    least = min(hardware.room_tokens(degree, rules.full_copy) for degree in hardware.degrees)
    if longest > least:
        raise BadValueError(
            "A request does not fit into the KV cache of the smallest group.", given=f"{longest} tokens",
            allowed=f"{least} tokens", hint="cut prompts shorter, or leave the lowest degrees out",
        )  # fmt: skip

    def whole(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    fleet = Fleet(
        arrival_s=requests.arrival_s, tier=requests.tier, prompt=requests.prompt_tokens, output=requests.output_tokens,
        ttft_s=np.array([tier.ttft_s for tier in tiers]), tpot_s=np.array([tier.tpot_s for tier in tiers]),
        state=whole(n), place=whole(n) - 1, decoder=whole(n) - 1, promised=whole(n),
        todo=requests.prompt_tokens.copy(), made=whole(n), ends=whole(n), first_s=np.full(n, np.nan),
        finish_s=np.full(n, np.nan), ready_s=np.full(n, np.nan), group_tier=whole(gpus), degree=whole(gpus),
        role=whole(gpus), room=whole(gpus), steps=whole(gpus), running=whole(gpus), context=whole(gpus),
        held=whole(gpus), prompt_now=whole(gpus) - 1, next_end=whole(gpus), most=whole(gpus), promises=whole(gpus),
        backlog=whole(gpus), free_s=np.zeros(gpus), next_s=np.full(gpus, np.inf), waits=whole(gpus, n),
        lates=whole(gpus, n), inbox=whole(gpus, n), batch=whole(gpus, n), sizes=whole(gpus, 4),
        tight=whole(gpus, len(tiers)), tables=hardware.tables,
        rules=np.array([rules.checked, rules.spills, rules.by_deadline], np.int64), counts=whole(3),
        transfer_s_per_token=np.array(
            [as_model(hardware.model).kv_bytes_per_token / (as_device(hardware.device).link_bytes_per_s * _LINK_SHARE)]
        ),
    )  # fmt: skip
    return _Run(
        fleet=fleet, hardware=hardware, tiers=tiers, full_copy=rules.full_copy, switch_s=problem.switch_s,
        most=_promises(hardware, tiers, rules.full_copy),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _promises(hardware: Hardware, tiers: tuple[Tier, ...], full_copy: bool) -> dict[Group, int]:
    """Return how many answers each kind of group can be promised at most."""
    found: dict[Group, int] = {}
    for degree in hardware.degrees:
        own = [max(1, hardware.largest_batch(tier, degree, full_copy)) for tier in tiers]
        for role in range(DECODE + 1):
            found |= {Group(index, degree, role): most for index, most in enumerate(own)}
            found[Group(-1, degree, role)] = max(own)
    return found
