"""The simulation once more, with objects and lists, a rule at a time: slow, and written to be read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wavetank.platforms.step_time import roofline_ps
from wavetank.training.rollouts.core import FAR, OPEN_PS

PS = 10**12


@dataclass
class Trajectory:
    number: int
    turns: list[int]
    context: int
    batch: int
    state: str = "later"
    turn: int = 0
    left: int = 0
    unread: int = 0
    known: int = 0
    home: Gpu | None = None
    held: int = 0
    cached: int = 0
    used: int = 0
    part: int | None = None


@dataclass
class Request:
    arrival: int
    prompt: int
    output: int
    unread: int = 0
    context: int = 0
    unwritten: int = 0
    first: int = FAR
    last: int = FAR
    last_token: int = 0
    gap: int = 0
    part: int | None = None


@dataclass
class Gpu:
    shared: bool
    pool: int
    cap: int
    chunk: int
    coming: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    guests: list[Trajectory] = field(default_factory=list)
    caches: list[Trajectory] = field(default_factory=list)
    budget: int = 0
    ready_at: int = 0
    free_at: int = FAR
    began_at: int = 0
    action: str = ""
    before: str = ""
    open_at: int = -FAR
    progress_at: int = 0
    flush: bool = False
    there: bool = True


class ByHand:
    def __init__(self, arrangement, rates, load, batches, own, spot=None):
        self.a, self.r = arrangement, rates
        own += arrangement.more_gpus
        self.gpus = [Gpu(False, rates.own_pool_bytes, rates.own_cap, rates.own_chunk)
                     for _ in range(own + arrangement.spot_gpus)]  # fmt: skip
        self.own = own
        self.spot = []
        for row in range(arrangement.spot_gpus):
            self.gpus[own + row].there = False
            for up, down in zip(spot.up_ps[row].tolist(), spot.down_ps[row].tolist(), strict=True):
                self.spot += [(up, row), (down, row)]
        self.spot.sort()
        self.requests = [Request(*row) for row in zip(*(each.tolist() for each in load[1:]), strict=True)]
        if arrangement.governor != "none":
            for first, end in zip(load.first[:-1], load.first[1:], strict=True):
                gpu = Gpu(True, rates.shared_pool_bytes, rates.guest_cap, rates.guest_chunk)
                gpu.coming = self.requests[first:end]
                gpu.budget = int((1 - rates.headroom) * gpu.pool)
                self.gpus.append(gpu)
        work = batches.trajectories
        self.work, self.ends = work, batches.ends.tolist()
        self.all = [
            Trajectory(i, list(range(work.first_turn[i], work.first_turn[i + 1])), int(work.prompt_tokens[i]),
                       next(k for k, end in enumerate(self.ends) if i < end))
            for i in range(len(work))
        ]  # fmt: skip
        self.delay = [round(each * PS) for each in work.delay_s.tolist()]
        self.version, self.over = 0, FAR
        self.queue: list[Trajectory] = []
        self.away: list[tuple[int, int]] = []
        self.began, self.learnt = {}, {}
        self.begin, self.end = {}, {}
        self.rollouts, self.learnt_at = [FAR] * len(self.ends), [FAR] * len(self.ends)
        self.recomputed = self.rerouted = self.halved = self.evicted = self.guest_ps = 0

    # --- memory

    def held(self, gpu):
        return sum(each.held for each in (*gpu.guests, *gpu.caches))

    def served(self, gpu):
        return sum((each.prompt + each.output) * self.r.serving_kv_bytes for each in gpu.running)

    def limit(self, gpu):
        return min(gpu.budget, gpu.pool - self.served(gpu)) if gpu.shared else gpu.pool

    def need(self, t):
        return (t.context + t.left) * self.r.rollout_kv_bytes

    def forget(self, t):
        if t.home is not None and t in t.home.caches:
            t.home.caches.remove(t)
        t.home, t.held, t.cached = None, 0, 0

    def evict(self, gpu, limit):
        while self.held(gpu) > limit and gpu.caches:
            self.forget(min(gpu.caches, key=lambda each: (each.used, each.number)))
            self.evicted += 1

    def break_off(self, gpu, t):
        gpu.guests.remove(t)
        t.known = max(t.known, t.context - t.unread)
        t.home, t.held, t.cached, t.state = None, 0, 0, "ready"
        self.rerouted += 1
        self.queue.append(t)

    def shrink(self, gpu, limit):
        self.evict(gpu, limit)
        while self.held(gpu) > limit and gpu.guests:
            self.break_off(gpu, gpu.guests[-1])

    # --- router

    def room(self, gpu, t, now):
        if not gpu.there or now < gpu.ready_at or len(gpu.guests) >= gpu.cap:
            return False
        come = gpu.coming and gpu.coming[0].arrival <= now and self.a.governor != "free"
        quiet = gpu.action == "" and not gpu.running and not gpu.waiting and not come
        if gpu.shared and not quiet and now - gpu.open_at > OPEN_PS:
            return False
        return sum(each.held for each in gpu.guests) + self.need(t) <= self.limit(gpu)

    def choose(self, t, now):
        free = [gpu for gpu in self.gpus if self.room(gpu, t, now)]
        if self.a.router.startswith("affinity") and t.home in free:
            return t.home
        if self.a.router == "affinity":
            free = [gpu for gpu in free if gpu.shared] or free
        # Fractions are compared as whole numbers would be: caps of these tests divide exactly.
        return min(free, key=lambda gpu: len(gpu.guests) / gpu.cap) if free else None

    def dispatch(self, now):
        while self.queue and (gpu := self.choose(self.queue[0], now)) is not None:
            t = self.queue.pop(0)
            if t.home is gpu:
                gpu.caches.remove(t)
                t.unread = max(t.context - t.cached, 0)
            else:
                self.forget(t)
                t.unread = t.context
                self.recomputed += t.known
            t.held = 0
            self.evict(gpu, self.limit(gpu) - self.need(t))
            t.held, t.home, t.state, t.part = self.need(t), gpu, "running", None
            if not gpu.guests:
                gpu.progress_at = now
            gpu.guests.append(t)
            self.begin.setdefault(t.turns[t.turn], now)
            if gpu.action == "":
                gpu.free_at = now

    # --- steps

    def step(self, items, chunk, table, mark):
        r = c = p = s = 0
        for each in items:
            part = 0
            if each.unread:
                part = min(each.unread, chunk - p)
                p += part
                read = each.context if isinstance(each, Request) else each.context - each.unread
                s += part * read + part * (part + 1) // 2
                part = part or None
            else:
                r, c = r + 1, c + each.context
            if mark:
                each.part = part
        return int(roofline_ps(r, c, p, s, table)) if r + p else 0

    def slack(self, gpu, now):
        decoding = [each for each in gpu.running if not each.unread]
        r, c = len(decoding), sum(each.context for each in decoding)
        chunk, table = self.r.serving_chunk, self.r.serving_table
        shorter, kept = 1 / (1 + self.r.wrong), 1 - self.a.margin

        whole = float(roofline_ps(r, c, chunk, chunk * (chunk + 1) // 2, table)) * shorter
        after = float(self.step(gpu.running, chunk, table, False)) * shorter
        found = [each.last_token + self.r.tpot_s * PS * kept - now - after for each in decoding]
        ahead = 0
        for each in (*(each for each in gpu.running if each.unread), *gpu.waiting):
            ahead += each.unread or each.prompt
            found.append(each.arrival + self.r.ttft_s * PS * kept - now - -(-ahead // chunk) * whole)
        return min(found)

    def admit(self, gpu, now):
        while gpu.coming and gpu.coming[0].arrival <= min(now, self.over):
            gpu.waiting.append(gpu.coming.pop(0))
        while gpu.waiting and len(gpu.running) < self.r.serving_cap:
            each = gpu.waiting[0]
            if self.served(gpu) + (each.prompt + each.output) * self.r.serving_kv_bytes > gpu.pool:
                return
            gpu.running.append(gpu.waiting.pop(0))
            each.unread, each.unwritten = each.prompt, each.output
            if self.served(gpu) + gpu.budget > (1 - 0.5 * self.r.headroom) * gpu.pool and gpu.budget > 0:
                self.halved += 1
                gpu.budget //= 2
            self.shrink(gpu, self.limit(gpu))

    def start(self, gpu, action, now, takes):
        gpu.action = gpu.before = action
        gpu.began_at, gpu.free_at = now, now + takes

    def decide(self, gpu, now):
        gpu.free_at = FAR
        if gpu.flush:
            gpu.flush = False
            for t in gpu.guests:
                self.recomputed += t.context - t.unread
                t.unread = t.context
        ready = gpu.there and now >= gpu.ready_at
        if not gpu.shared:
            if ready and gpu.guests:
                self.start(gpu, "guest", now, self.step(gpu.guests, gpu.chunk, self.r.rollout_table, True))
            return
        serves = self.a.governor != "free"
        if serves:
            self.admit(gpu, now)
        if ready:
            chunk = gpu.chunk
            # Only now: those who were admitted may have broken turns off.
            takes = self.step(gpu.guests, chunk, self.r.rollout_table, False)
            asked = takes or int(roofline_ps(0, 0, chunk, chunk * (chunk + 1) // 2, self.r.rollout_table))
            allowed = not (gpu.running or gpu.waiting)
            if not allowed and self.a.governor == "slack":
                allowed = asked / (1 + self.r.wrong) <= self.slack(gpu, now)
            elif not allowed and self.a.governor == "interleave":
                allowed = gpu.before == "serve"
            if allowed:
                gpu.open_at = now
                if takes:
                    gpu.progress_at = now
                    self.start(gpu, "guest", now, self.step(gpu.guests, chunk, self.r.rollout_table, True))
                    return
            elif gpu.guests and now - gpu.progress_at > self.r.stall_s * PS:
                while gpu.guests:
                    self.break_off(gpu, gpu.guests[-1])
        if gpu.running:
            self.start(gpu, "serve", now, self.step(gpu.running, self.r.serving_chunk, self.r.serving_table, True))
        elif serves and gpu.coming and gpu.coming[0].arrival <= self.over:
            gpu.free_at = gpu.coming[0].arrival

    def finish(self, gpu, now):
        if gpu.action == "serve":
            for each in list(gpu.running):
                if each.part is None:
                    continue
                if each.part:
                    each.unread -= each.part
                    each.context += each.part
                    if each.unread:
                        continue
                    each.first = now
                else:
                    each.gap = max(each.gap, now - each.last_token)
                each.context += 1
                each.unwritten -= 1
                each.last_token = now
                if not each.unwritten:
                    each.last = now
                    gpu.running.remove(each)
        elif gpu.action == "guest":
            if gpu.shared:
                self.guest_ps += now - gpu.began_at
            for t in list(gpu.guests):
                part, t.part = t.part, None
                if part is None:
                    continue
                t.unread -= part
                if t.unread:
                    continue
                t.context += 1
                t.left -= 1
                if not t.left:
                    gpu.guests.remove(t)
                    gpu.caches.append(t)
                    self.end[t.turns[t.turn]] = t.used = now
                    t.cached = t.known = t.context
                    t.state = "away"
                    if t.turn + 1 == len(t.turns):
                        self.forget(t)
                    self.away.append((now + self.delay[t.turns[t.turn]], t.number))
        gpu.action = ""

    # --- training

    def let_begin(self):
        upto = self.ends[min(self.version + self.a.staleness, len(self.ends) - 1)]
        for t in self.all[:upto]:
            if t.state == "later":
                t.state, t.left = "ready", int(self.work.turn_tokens[t.turns[0]])
                self.began[t.number] = self.version
                self.queue.append(t)

    def new_weights(self, now):
        for gpu in self.gpus:
            for t in list(gpu.caches):
                self.forget(t)
        for place, gpu in enumerate(self.gpus):
            gpu.flush = True
            takes = self.r.inner_sync_s if place < self.own else self.r.sync_s(self.a.format)
            gpu.ready_at = now + round(takes * PS)
            if gpu.shared:
                gpu.budget = max(int((1 - self.r.headroom) * gpu.pool) - self.served(gpu), 0)

    def train_ps(self, batch):
        rows = [t for t in self.all if t.batch == batch]
        tokens = sum(int(self.work.prompt_tokens[t.number]) + sum(int(self.work.turn_tokens[k]) for k in t.turns)
                     + self.r.answer_tokens * (len(t.turns) - 1) for t in rows)  # fmt: skip
        return round(self.r.train_s(tokens) * PS)

    def run(self):
        for gpu in self.gpus:
            if gpu.shared and gpu.coming and self.a.governor != "free":
                gpu.free_at = gpu.coming[0].arrival
        trained = FAR
        wakes: set[int] = set()
        self.let_begin()
        self.dispatch(0)
        while True:
            events = [(trained, 0, 0)]
            events += [(at, 1 if at == self.gpus[0].ready_at else 2, 0) for at in wakes]
            events += [(at, 3, row) for at, row in self.spot[:1]]
            events += [(at, 4, number) for at, number in self.away]
            events += [(gpu.free_at, 5, place) for place, gpu in enumerate(self.gpus)]
            now, kind, which = min(events)
            if now >= FAR:
                return self
            if kind == 0:
                self.learnt_at[self.version] = now
                self.version, trained = self.version + 1, FAR
                if self.version == len(self.ends):
                    self.over = now
                    continue
                self.new_weights(now)
                wakes = {gpu.ready_at for gpu in self.gpus if gpu.ready_at > now}
                self.let_begin()
            elif kind in (1, 2):
                wakes.remove(now)
                for gpu in self.gpus:
                    if gpu.action == "" and gpu.ready_at <= now and (gpu.guests or gpu.shared):
                        gpu.free_at = now
            elif kind == 3:
                gpu = self.gpus[self.own + self.spot.pop(0)[1]]
                gpu.there = not gpu.there
                if gpu.there:
                    gpu.ready_at = now + round(self.r.sync_s(self.a.format) * PS)
                    wakes.add(gpu.ready_at)
                else:
                    gpu.action, gpu.free_at = "", FAR
                    self.shrink(gpu, 0)
            elif kind == 4:
                self.away.remove((now, which))
                t = self.all[which]
                if t.turn + 1 == len(t.turns):
                    t.state = "done"
                    if all(each.state == "done" for each in self.all if each.batch == t.batch):
                        self.rollouts[t.batch] = now
                else:
                    t.turn += 1
                    t.context += self.r.answer_tokens
                    t.left, t.state = int(self.work.turn_tokens[t.turns[t.turn]]), "ready"
                    self.queue.append(t)
            else:
                gpu = self.gpus[which]
                self.finish(gpu, now)
                gpu.free_at = FAR
                self.dispatch(now)
                self.decide(gpu, now)
            self.dispatch(now)
            if kind in (0, 4) and trained == FAR and self.version < len(self.ends):
                batch = [t for t in self.all if t.batch == self.version]
                if all(t.state == "done" for t in batch):
                    self.learnt.update({t.number: self.version for t in batch})
                    trained = now + self.train_ps(self.version)


def figures(run):
    """The figures of a run by hand, as those of the compiled one are named."""
    turns = len(run.work.turn_tokens)
    return {
        "first_ps": [each.first for each in run.requests],
        "last_ps": [each.last for each in run.requests],
        "gap_ps": [each.gap for each in run.requests],
        "rollouts_ps": run.rollouts,
        "learnt_ps": run.learnt_at,
        "began_version": [run.began.get(each.number, -1) for each in run.all],
        "learnt_version": [run.learnt.get(each.number, -1) for each in run.all],
        "begin_ps": [run.begin.get(each, -1) for each in range(turns)],
        "end_ps": [run.end.get(each, -1) for each in range(turns)],
        "counters": [run.recomputed, run.rerouted, run.halved, run.evicted, run.guest_ps],
    }


def compiled_figures(run):
    """The same of a compiled run."""
    found = {name: np.asarray(getattr(run, name)).tolist() for name in run._fields if name != "most_pool_bytes"}
    return {**found, "counters": found["counters"][:5]}
