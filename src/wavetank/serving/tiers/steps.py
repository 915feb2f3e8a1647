"""Groups of GPUs that serve requests step by step, compiled.

A step decodes one token of every running request and fills what the tightest objective per token leaves with prompt
tokens.  Effects of a step are known when it begins and hold from its end.  Requests wait in order of arrival, promised
ones first, then best effort, and last those whose first token is late already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.platforms.step_time import PS_PER_S, roofline_ps
from wavetank.serving.tiers.interface import BOTH, DECODE, PREFILL, Floats, Ints
from wavetank.serving.tiers.profile import CHUNK, SAFE
from wavetank.sim.compiled import compiled

# States of a request.
UNSEEN, WAITING, LATE, PROMPT, MOVING, RUNNING, DONE = range(7)
GUEST_SHARE = 0.7
"""Share of the bound up to which a group takes requests of other tiers, so that its own still find room."""
# A wait of more than this share of the objective is not promised.
_PROMISED_SHARE = 0.9


class Fleet(NamedTuple):
    """Requests and groups, in arrays that compiled code changes.

    Attributes
    ----------
    arrival_s : ndarray of float64, shape (n,)
    tier, prompt, output : ndarray of int64, shape (n,)
    ttft_s, tpot_s : ndarray of float64, shape (tiers,)
    state, place, decoder : ndarray of int64, shape (n,)
        Where a request is; the group; the group that its answer was promised at.
    promised : ndarray of int64, shape (n,)
        1 where its objectives were promised.
    todo : ndarray of int64, shape (n,)
        Prompt tokens still to be processed.
    made : ndarray of int64, shape (n,)
        Answer tokens made before it joined the batch it is in.
    ends : ndarray of int64, shape (n,)
        Step of its group after which a running request is done.
    first_s, finish_s, ready_s : ndarray of float64, shape (n,)
        First token, last token, arrival of its cache at the decoding group.
    group_tier, degree, role, room, steps, running, context, held, prompt_now, next_end : ndarray of int64 (groups,)
        ``degree`` is a row of ``tables``; ``room`` and ``held`` are tokens of KV cache; ``context`` is the sum of the
        contexts of what runs; ``prompt_now`` the request whose prompt is in work, -1 for none.
    most : ndarray of int64, shape (groups,)
        Requests whose answers are promised at most.
    promises, backlog : ndarray of int64, shape (groups,)
        Promised requests that are not done; prompt tokens of promised requests.
    free_s, next_s : ndarray of float64, shape (groups,)
        End of the last step; when the next one begins, infinity where there is nothing to do.
    waits, lates, inbox, batch : ndarray of int64, shape (groups, n)
    sizes : ndarray of int64, shape (groups, 4)
        How many of each list are in use.
    tight : ndarray of int64, shape (groups, tiers)
        Running requests of each tier that can still keep their objectives.
    tables : ndarray of float64, shape (degrees, 13)
    rules : ndarray of int64
        checked, spills, by_deadline.
    counts : ndarray of int64
        Next request to arrive, next group in turn, groups.
    transfer_s_per_token : ndarray of float64, shape (1,)
    """

    arrival_s: Floats
    tier: Ints
    prompt: Ints
    output: Ints
    ttft_s: Floats
    tpot_s: Floats
    state: Ints
    place: Ints
    decoder: Ints
    promised: Ints
    todo: Ints
    made: Ints
    ends: Ints
    first_s: Floats
    finish_s: Floats
    ready_s: Floats
    group_tier: Ints
    degree: Ints
    role: Ints
    room: Ints
    steps: Ints
    running: Ints
    context: Ints
    held: Ints
    prompt_now: Ints
    next_end: Ints
    most: Ints
    promises: Ints
    backlog: Ints
    free_s: Floats
    next_s: Floats
    waits: Ints
    lates: Ints
    inbox: Ints
    batch: Ints
    sizes: Ints
    tight: Ints
    tables: Floats
    rules: Ints
    counts: Ints
    transfer_s_per_token: Floats


WAITS, LATES, INBOX, BATCH = range(4)
CHECKED, SPILLS, BY_DEADLINE = range(3)
ARRIVED, TURN, GROUPS = range(3)


@compiled
def step_s(fleet: Fleet, g: int, requests: int, context: int, tokens: int, pairs: int) -> float:
    """Return how long a step of a group takes, s."""
    ps: float = roofline_ps(requests, context, tokens, pairs, fleet.tables[fleet.degree[g]])
    return ps / PS_PER_S


@compiled
def bound_s(fleet: Fleet, g: int, also: int) -> float:
    """Return how long a step of a group may take: the tightest of its tier, of what runs and of ``also`` (-1: none)."""
    bound = np.inf
    if fleet.group_tier[g] >= 0:
        bound = fleet.tpot_s[fleet.group_tier[g]]
    for tier in range(fleet.tpot_s.size):
        if fleet.tight[g, tier] > 0 or tier == also:
            bound = min(bound, fleet.tpot_s[tier])
    return bound * SAFE


@compiled
def chunk_of(fleet: Fleet, g: int, before: int) -> int:
    """Return the most prompt tokens of a group's next step, ``before`` of whose first prompt are processed."""
    if fleet.running[g] == 0:
        return CHUNK
    bound = bound_s(fleet, g, -1)
    low, high = 0, CHUNK + 1
    while high - low > 1:
        tokens = (low + high) // 2
        pairs = tokens * before + tokens * (tokens + 1) // 2
        if step_s(fleet, g, fleet.running[g], fleet.context[g], tokens, pairs) <= bound:
            low = tokens
        else:
            high = tokens
    return low


@compiled
def _predicted_ttft_s(fleet: Fleet, g: int, r: int, now: float) -> float:
    """Return when a request's prompt would be done at a group, behind all that is promised there."""
    tokens = fleet.backlog[g] + fleet.todo[r]
    chunk = max(chunk_of(fleet, g, 0), 1)
    whole = tokens // chunk
    rest = tokens - whole * chunk
    found = max(fleet.free_s[g] - now, 0.0)
    if whole:
        found += whole * step_s(fleet, g, fleet.running[g], fleet.context[g], chunk, chunk * (chunk + 1) // 2)
    if rest:
        found += step_s(fleet, g, fleet.running[g], fleet.context[g], rest, rest * (rest + 1) // 2)
    return found


@compiled
def _home(fleet: Fleet, g: int, tier: int) -> bool:
    return fleet.group_tier[g] == tier or fleet.group_tier[g] < 0


@compiled
def _decoder_for(fleet: Fleet, tier: int) -> int:
    """Return the decoding group of a tier with the smallest share of promises, -1 where none has one left."""
    best, least = -1, 1.0
    for g in range(fleet.counts[GROUPS]):
        if fleet.role[g] == DECODE and _home(fleet, g, tier):
            share = fleet.promises[g] / max(fleet.most[g], 1)
            if share < least:
                best, least = g, share
    return best


@compiled
def wake(fleet: Fleet, g: int, now: float) -> None:
    """Let an idle group begin a step as soon as it is free."""
    begins = max(fleet.free_s[g], now)
    fleet.next_s[g] = min(fleet.next_s[g], begins)


@compiled
def _append(lists: Ints, fleet: Fleet, which: int, g: int, r: int) -> None:
    lists[g, fleet.sizes[g, which]] = r
    fleet.sizes[g, which] += 1


@compiled
def dispatch(fleet: Fleet, r: int, now: float) -> None:
    """Send a request to a group: to the least loaded that can keep its objectives, else as best effort.

    Parameters
    ----------
    fleet : Fleet
    r : int
        A request that is in no list.
    now : float
    """
    tier = fleet.tier[r]
    limit = fleet.ttft_s[tier] * _PROMISED_SHARE - (now - fleet.arrival_s[r])
    best, least, best_decoder = -1, np.inf, -1
    homes = 0
    late = now > fleet.arrival_s[r] + fleet.ttft_s[tier] and np.isnan(fleet.first_s[r])
    for g in range(fleet.counts[GROUPS]):
        if fleet.role[g] == DECODE or not _home(fleet, g, tier):
            continue
        homes += 1
        if not fleet.rules[CHECKED]:
            load = (fleet.held[g] + fleet.backlog[g]) / fleet.room[g]
            if load < least:
                best, least = g, load
            continue
        wait = _predicted_ttft_s(fleet, g, r, now)
        decoder = -1
        if fleet.role[g] == BOTH:
            share = (fleet.promises[g] + 1) / max(fleet.most[g], 1)
        else:
            decoder = _decoder_for(fleet, tier)
            share = 2.0 if decoder < 0 else (fleet.promises[decoder] + 1) / max(fleet.most[decoder], 1)
        load = max(wait / limit if limit > 0 else 2.0, share)
        if load <= 1.0 and load < least:
            best, least, best_decoder = g, load, decoder
    promised = 1 if best >= 0 else 0
    if best < 0:
        # In turn among the groups of the tier, or among all whose steps are short enough, where requests may spill.
        for wider in range(2):
            for k in range(fleet.counts[GROUPS]):
                g = (fleet.counts[TURN] + k) % fleet.counts[GROUPS]
                if fleet.role[g] == DECODE:
                    continue
                home = _home(fleet, g, tier)
                short = fleet.group_tier[g] < 0 or fleet.tpot_s[fleet.group_tier[g]] <= fleet.tpot_s[tier]
                if home if homes and not fleet.rules[SPILLS] else (home or short or wider == 1):
                    best = g
                    break
            if best >= 0:
                fleet.counts[TURN] = (best + 1) % fleet.counts[GROUPS]
                break
    fleet.place[r] = best
    fleet.decoder[r] = best_decoder
    fleet.promised[r] = promised
    if late:
        fleet.state[r] = LATE
        fleet.promised[r] = 0
        _append(fleet.lates, fleet, LATES, best, r)
    else:
        fleet.state[r] = WAITING
        if promised:
            fleet.backlog[best] += fleet.todo[r]
            fleet.promises[best if best_decoder < 0 else best_decoder] += 1
        _append(fleet.waits, fleet, WAITS, best, r)
    wake(fleet, best, now)


@compiled
def unpromise(fleet: Fleet, r: int) -> None:
    """Take back what was promised to a request."""
    if fleet.promised[r]:
        g = fleet.place[r] if fleet.decoder[r] < 0 else fleet.decoder[r]
        fleet.promises[g] -= 1
        if fleet.state[r] == WAITING or fleet.state[r] == PROMPT:
            fleet.backlog[fleet.place[r]] -= fleet.todo[r]
        fleet.promised[r] = 0


@compiled
def _next_waiting(fleet: Fleet, g: int, now: float) -> int:
    """Return the place in a group's list of what is to be processed next, after moving late requests; -1 for none."""
    kept = 0
    for i in range(fleet.sizes[g, WAITS]):
        r = fleet.waits[g, i]
        if now > fleet.arrival_s[r] + fleet.ttft_s[fleet.tier[r]] and np.isnan(fleet.first_s[r]):
            unpromise(fleet, r)
            fleet.state[r] = LATE
            _append(fleet.lates, fleet, LATES, g, r)
        else:
            fleet.waits[g, kept] = r
            kept += 1
    fleet.sizes[g, WAITS] = kept
    best, best_class, best_key = -1, 2, np.inf
    for i in range(kept):
        r = fleet.waits[g, i]
        kind = 0 if fleet.promised[r] else 1
        key = fleet.arrival_s[r] + (fleet.ttft_s[fleet.tier[r]] if fleet.rules[BY_DEADLINE] else 0.0)
        if kind < best_class or (kind == best_class and key < best_key):
            best, best_class, best_key = i, kind, key
    return best


@compiled
def _admissible(fleet: Fleet, g: int, r: int, joining: int, joining_context: int) -> bool:
    """Return whether a request's cache fits, and its answer within the bound beside what runs and joins."""
    needs = fleet.prompt[r] + (fleet.output[r] if fleet.role[g] == BOTH else 0)
    if fleet.held[g] + needs > fleet.room[g]:
        return False
    if fleet.role[g] == PREFILL:
        return True
    requests = fleet.running[g] + joining + 1
    context = fleet.context[g] + joining_context + fleet.prompt[r] + fleet.output[r] // 2
    if fleet.running[g] + joining == 0:
        return True
    bound = bound_s(fleet, g, fleet.tier[r])
    if fleet.group_tier[g] >= 0 and fleet.group_tier[g] != fleet.tier[r]:
        bound *= GUEST_SHARE
    return step_s(fleet, g, requests, context, 0, 0) <= bound


@compiled
def _on_time(fleet: Fleet, r: int) -> bool:
    return bool(fleet.first_s[r] <= fleet.arrival_s[r] + fleet.ttft_s[fleet.tier[r]])


@compiled
def join(fleet: Fleet, g: int, r: int) -> None:
    """Put a request into a group's batch; its cache is counted already."""
    fleet.state[r] = RUNNING
    fleet.place[r] = g
    fleet.ends[r] = fleet.steps[g] + fleet.output[r] - fleet.made[r]
    fleet.next_end[g] = min(fleet.next_end[g], fleet.ends[r])
    fleet.context[g] += fleet.prompt[r] + fleet.made[r]
    fleet.running[g] += 1
    if _on_time(fleet, r):
        fleet.tight[g, fleet.tier[r]] += 1
    _append(fleet.batch, fleet, BATCH, g, r)


@compiled
def leave(fleet: Fleet, g: int, i: int) -> int:
    """Take the request at place ``i`` out of a group's batch, with its cache, and return it."""
    r = fleet.batch[g, i]
    fleet.made[r] = fleet.output[r] - (fleet.ends[r] - fleet.steps[g])
    fleet.context[g] -= fleet.prompt[r] + fleet.made[r]
    fleet.running[g] -= 1
    fleet.held[g] -= fleet.prompt[r] + fleet.output[r]
    if _on_time(fleet, r):
        fleet.tight[g, fleet.tier[r]] -= 1
    fleet.sizes[g, BATCH] -= 1
    fleet.batch[g, i] = fleet.batch[g, fleet.sizes[g, BATCH]]
    return r


@compiled
def hand_over(fleet: Fleet, r: int, ready_s: float) -> None:
    """Send a request whose prompt is processed to a decoding group: the promised one, else the emptiest of its tier."""
    best = fleet.decoder[r]
    if best < 0:
        least, near = np.inf, False
        for g in range(fleet.counts[GROUPS]):
            if fleet.role[g] == PREFILL:
                continue
            home = _home(fleet, g, fleet.tier[r])
            load = fleet.held[g] / fleet.room[g]
            if (home and not near) or (home == near and load < least):
                best, least, near = g, load, home
    fleet.state[r] = MOVING
    fleet.place[r] = best
    fleet.ready_s[r] = ready_s
    _append(fleet.inbox, fleet, INBOX, best, r)
    wake(fleet, best, ready_s)


@compiled
def _finish(fleet: Fleet, r: int, at_s: float) -> None:
    unpromise(fleet, r)
    fleet.state[r] = DONE
    fleet.made[r] = fleet.output[r]
    fleet.finish_s[r] = at_s


@compiled
def _take_in(fleet: Fleet, g: int, now: float) -> None:
    """Let requests whose caches have come into the batch, in their order, while they fit."""
    kept = 0
    blocked = False
    for i in range(fleet.sizes[g, INBOX]):
        r = fleet.inbox[g, i]
        needs = fleet.prompt[r] + fleet.output[r]
        fits = fleet.held[g] + needs <= fleet.room[g]
        if not blocked and fleet.ready_s[r] <= now and fits:
            fleet.held[g] += needs
            join(fleet, g, r)
        else:
            blocked = blocked or not fits
            fleet.inbox[g, kept] = r
            kept += 1
    fleet.sizes[g, INBOX] = kept


@compiled
def _one_step(fleet: Fleet, g: int, now: float) -> None:
    """Begin a step of a group, with all its effects."""
    _take_in(fleet, g, now)
    tokens, pairs, joining, joining_context = 0, 0, 0, 0
    ended = fleet.inbox[g, fleet.sizes[g, INBOX] :]  # Free places: requests whose prompts end in this step.
    if fleet.role[g] != DECODE:
        r = fleet.prompt_now[g]
        left = chunk_of(fleet, g, fleet.prompt[r] + fleet.made[r] - fleet.todo[r] if r >= 0 else 0)
        while left > 0:
            if r < 0:
                i = _next_waiting(fleet, g, now)
                which, queue = WAITS, fleet.waits
                if i < 0:
                    if fleet.sizes[g, LATES] == 0:
                        break
                    i, which, queue = 0, LATES, fleet.lates
                candidate = queue[g, i]
                if not _admissible(fleet, g, candidate, joining, joining_context):
                    break
                for k in range(i, fleet.sizes[g, which] - 1):
                    queue[g, k] = queue[g, k + 1]
                fleet.sizes[g, which] -= 1
                r = candidate
                fleet.held[g] += fleet.prompt[r] + (fleet.output[r] if fleet.role[g] == BOTH else 0)
                fleet.state[r] = PROMPT
            part = min(left, fleet.todo[r])
            before = fleet.prompt[r] + fleet.made[r] - fleet.todo[r]
            pairs += part * before + part * (part + 1) // 2
            tokens += part
            left -= part
            fleet.todo[r] -= part
            if fleet.promised[r]:
                fleet.backlog[g] -= part
            if fleet.todo[r] == 0:
                ended[joining] = r
                joining += 1
                joining_context += fleet.prompt[r] + fleet.output[r] // 2
                r = -1
        fleet.prompt_now[g] = r
    if fleet.running[g] == 0 and tokens == 0:
        fleet.next_s[g] = np.inf
        for i in range(fleet.sizes[g, INBOX]):
            fleet.next_s[g] = min(fleet.next_s[g], max(fleet.ready_s[fleet.inbox[g, i]], now))
        return
    end = now + step_s(fleet, g, fleet.running[g], fleet.context[g], tokens, pairs)
    fleet.steps[g] += 1
    fleet.context[g] += fleet.running[g]
    if fleet.running[g] and fleet.next_end[g] <= fleet.steps[g]:
        i, fleet.next_end[g] = 0, np.iinfo(np.int64).max
        while i < fleet.sizes[g, BATCH]:
            r = fleet.batch[g, i]
            if fleet.ends[r] <= fleet.steps[g]:
                leave(fleet, g, i)
                _finish(fleet, r, end)
            else:
                fleet.next_end[g] = min(fleet.next_end[g], fleet.ends[r])
                i += 1
    for k in range(joining):
        r = ended[k]
        if np.isnan(fleet.first_s[r]):
            fleet.first_s[r] = end
        if fleet.made[r] == 0:
            fleet.made[r] = 1
        whole = fleet.role[g] == BOTH
        if fleet.made[r] >= fleet.output[r]:
            fleet.held[g] -= fleet.prompt[r] + (fleet.output[r] if whole else 0)
            _finish(fleet, r, end)
        elif whole:
            join(fleet, g, r)
        else:
            fleet.held[g] -= fleet.prompt[r]
            hand_over(fleet, r, end + fleet.prompt[r] * fleet.transfer_s_per_token[0])
    fleet.free_s[g] = fleet.next_s[g] = end


@compiled
def advance(fleet: Fleet, until_s: float) -> None:
    """Serve until a time: arrivals up to it are sent to groups, and steps that begin up to it have begun.

    Parameters
    ----------
    fleet : Fleet
    until_s : float
    """
    n = fleet.arrival_s.size
    while True:
        g, at = -1, np.inf
        for k in range(fleet.counts[GROUPS]):
            if fleet.next_s[k] < at:
                g, at = k, fleet.next_s[k]
        r = fleet.counts[ARRIVED]
        arrives = fleet.arrival_s[r] if r < n else np.inf
        if min(at, arrives) >= until_s:
            return
        if arrives <= at:
            fleet.counts[ARRIVED] += 1
            dispatch(fleet, r, arrives)
        else:
            _one_step(fleet, g, at)
