"""Workers that fail, recover, drain and join in the readable simulator, by the rules of
:mod:`~wavetank.serving.simulator.changes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.simulator.changes import (
    ACTIONS,
    DRAINING,
    FAILED,
    LOST,
    NOWHERE,
    OFF,
    OUTCOMES,
    REFUSED,
    UP,
    Churn,
    changes_of,
)

if TYPE_CHECKING:
    from wavetank.serving.routing.interface import WorkersView
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.serving.simulator.worker import Request, Worker


class Domain(Protocol):
    """What is asked of a domain."""

    workers: list[Worker]

    def break_off(self, now_ps: int) -> None:
        """End the step in progress, if there is one."""


@dataclass(eq=False)
class ReadableChanges:
    """Which workers take requests, and what becomes of the requests of the others.

    Attributes
    ----------
    churn, cluster
        As simulated.
    domains : list of Domain
    new_worker : callable
        Makes a worker that has nothing, by its number.
    send : callable
        Hands a request to a worker: ``send(request, worker, now_ps)``.
    flying : callable
        How many requests a worker has from the copy of the router that a request is dealt to.
    serves : callable
        Whether a worker has a request's model.
    """

    churn: Churn
    cluster: Cluster
    requests: Sequence[Request]
    domains: Sequence[Domain]
    view: WorkersView
    new_worker: Callable[[int], Worker]
    send: Callable[[Request, int, int], None]
    flying: Callable[[Request, int], int]
    serves: Callable[[int, Request], bool]
    states: list[int] = field(default_factory=list)
    # When domains that start take requests.
    starting: dict[int, int] = field(default_factory=dict)
    orphans: list[Request] = field(default_factory=list)
    # In the order in which nobody was seen to take them.
    waiting: list[Request] = field(default_factory=list)
    refused_connections: int = 0
    look_ps: int = -1
    # When the last of those ended that did not finish.
    ended_ps: int = -1
    up: list[tuple[int, int]] = field(default_factory=list)
    up_since: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first_ps, last_ps = self.requests[0].arrival_ps, self.requests[-1].arrival_ps
        known = changes_of(self.churn, self.cluster, first_ps, last_ps)
        self.coming = list(zip(known.time_ps.tolist(), known.group.tolist(), known.action.tolist(), strict=True))
        self.states = [UP] * len(self.domains)
        if self.churn.scale_high:
            self.look_ps = first_ps + round(self.churn.scale_every_s * PS_PER_S)
            first = self.churn.first_workers // self.cluster.group_size
            if first:
                self.states[first:] = [OFF] * (len(self.domains) - first)
        self.up_since = {d: first_ps for d, state in enumerate(self.states) if state == UP}
        self.outcomes: dict[Request, int] = {}
        self.sends: dict[Request, int] = dict.fromkeys(self.requests, 0)
        self.tried: dict[Request, set[int]] = {request: set() for request in self.requests}
        self.since_ps: dict[Request, int] = {}
        self.wait_ps = round(self.churn.wait_s * PS_PER_S)

    # What workers are.

    def is_up(self, worker: int) -> bool:
        """Say whether a worker takes requests."""
        return self.states[worker // self.cluster.group_size] == UP

    def next_ps(self) -> list[int]:
        """Return when something changes; nothing where every request has ended."""
        if all(request.finish_ps >= 0 or request in self.outcomes for request in self.requests):
            return []
        looks = [self.look_ps] if self.look_ps >= 0 else []
        return [change[0] for change in self.coming[:1]] + list(self.starting.values()) + looks

    def change(self, now_ps: int, waiting: int) -> None:
        """Make the changes of a moment."""
        while self.coming and self.coming[0][0] == now_ps:
            _, domain, action = self.coming.pop(0)
            self._act(domain, ACTIONS[action], now_ps)
        for domain in sorted(self.starting):
            if self.starting[domain] == now_ps:
                del self.starting[domain]
                if self.states[domain] == OFF:
                    self._become(domain, UP, now_ps)
        if self.look_ps == now_ps:
            self.look_ps += round(self.churn.scale_every_s * PS_PER_S)
            self._scale(now_ps, waiting)

    def _act(self, domain: int, action: str, now_ps: int) -> None:
        state = self.states[domain]
        becomes = {
            ("fail", UP): FAILED, ("fail", DRAINING): FAILED, ("stop", UP): OFF, ("stop", DRAINING): OFF,
            ("recover", FAILED): UP, ("drain", UP): DRAINING, ("join", DRAINING): UP, ("join", OFF): UP,
        }.get((action, state), state)  # fmt: skip
        if becomes == state:
            return
        self._become(domain, becomes, now_ps)
        if becomes in (FAILED, OFF):
            self._lose(domain, now_ps)

    def _become(self, domain: int, state: int, now_ps: int) -> None:
        if self.states[domain] == UP:
            self.up.append((self.up_since.pop(domain), now_ps))
        if state == UP:
            self.up_since[domain] = now_ps
        self.states[domain] = state

    def _lose(self, domain: int, now_ps: int) -> None:
        self.domains[domain].break_off(now_ps)
        for worker in self.domains[domain].workers:
            for request in worker.running + worker.queue:
                if request.first_ps >= 0 and self.churn.streams == "lost":
                    self._end(request, LOST, now_ps)
                else:
                    request.decodes, request.prefilled, request.known = False, 0, False
                    self.orphans.append(request)
        self._empty(domain)

    def _empty(self, domain: int) -> None:
        size = self.cluster.group_size
        self.domains[domain].workers[:] = [self.new_worker(domain * size + i) for i in range(size)]

    def _scale(self, now_ps: int, waiting: int) -> None:
        size = self.cluster.group_size
        flying = [sum(len(worker.queue) + len(worker.running) for worker in each.workers) for each in self.domains]
        for domain, state in enumerate(self.states):
            if state == DRAINING and not flying[domain]:
                self.states[domain] = OFF
                self._empty(domain)
        up = [domain for domain, state in enumerate(self.states) if state == UP]
        count = len(up) + len(self.starting)
        total = waiting + sum(flying)
        if total > self.churn.scale_high * count * size:
            wanted = math.ceil(total / (self.churn.scale_high * size))
            off = [d for d, state in enumerate(self.states) if state == OFF and d not in self.starting]
            for domain in off[: max(wanted - count, 0)]:
                self.starting[domain] = now_ps + round(self.churn.start_s * PS_PER_S)
        elif (
            total < self.churn.scale_low * count * size
            and total <= self.churn.scale_high * (count - 1) * size
            and not self.starting
            and len(up) > math.ceil(self.churn.least_workers / size)
        ):
            self._become(min(up, key=lambda domain: (flying[domain], -domain)), DRAINING, now_ps)

    # What becomes of requests.

    def deliver(self, request: Request, worker: int, now_ps: int) -> bool:
        """Send a request to a worker; returns False where that refuses the connection."""
        self.tried[request].add(worker)
        if not self.is_up(worker):
            self.refused_connections += 1
            return False
        self.since_ps.pop(request, None)
        w = self.domains[worker // self.cluster.group_size].workers[worker % self.cluster.group_size]
        if 0 < self.cluster.max_waiting <= len(w.queue):
            self.outcomes[request] = REFUSED
        else:
            self.sends[request] += 1
            self.send(request, worker, now_ps)
        return True

    def send_elsewhere(self, request: Request, now_ps: int) -> bool:
        """Send a request to the worker with the fewest in flight that the view shows and that was not tried."""
        while True:
            left = [
                w
                for w in range(self.cluster.workers)
                if self.view.takes[w] and self.serves(w, request) and w not in self.tried[request]
            ]
            if not left:
                return False
            if self.deliver(request, min(left, key=lambda w: self.flying(request, w)), now_ps):
                return True

    def place(self, request: Request, worker: int, now_ps: int) -> bool:
        """Send a request where the router says, or else to another worker; returns whether one took it."""
        return self.deliver(request, worker, now_ps) or self.send_elsewhere(request, now_ps)

    def somebody(self, request: Request) -> bool:
        """Say whether the view shows a worker for a request."""
        return any(self.view.takes[w] and self.serves(w, request) for w in range(self.cluster.workers))

    def stranded(self, request: Request, now_ps: int) -> bool:
        """Take in that no worker takes a request; returns whether it waits."""
        if not self.wait_ps:
            self.give_up(request, now_ps)
            return False
        self.tried[request].clear()
        self.since_ps[request] = now_ps
        return True

    def give_up(self, request: Request, now_ps: int) -> None:
        """End a request in an error."""
        self._end(request, LOST if request.first_ps >= 0 else NOWHERE, now_ps)

    def _end(self, request: Request, outcome: int, now_ps: int) -> None:
        self.outcomes[request] = outcome
        self.ended_ps = now_ps

    def send_orphans(self, now_ps: int) -> list[Request]:
        """Send the requests of workers that are gone again; returns those that wait now."""
        orphans, self.orphans = sorted(self.orphans, key=lambda request: request.number), []
        left = []
        for request in orphans:
            if self.sends[request] >= self.churn.tries:
                self.give_up(request, now_ps)
            elif not self.send_elsewhere(request, now_ps) and self.stranded(request, now_ps):
                left.append(request)
        return left

    def send_waiting(self, now_ps: int, shown: bool) -> None:
        """Send those that waited for a worker, where the view was just refreshed; end the waits that took too long."""
        for request in list(self.waiting):
            since_ps = self.since_ps[request]
            if shown and self.send_elsewhere(request, now_ps):
                self.waiting.remove(request)
                continue
            if shown:
                self.tried[request].clear()
            if since_ps + self.wait_ps <= now_ps:
                self.give_up(request, now_ps)
                self.waiting.remove(request)

    def waiting_ps(self, refreshed_ps: int, refresh_ps: int) -> list[int]:
        """Return when something happens to those that wait."""
        if not self.waiting:
            return []
        ticks = [(refreshed_ps // refresh_ps + 1) * refresh_ps] if refresh_ps else []
        return [self.since_ps[self.waiting[0]] + self.wait_ps, *ticks]

    def look_over(self, pool: list[Request], now_ps: int) -> bool:
        """End the waits of those for whom no worker was seen for too long; returns whether any takes requests."""
        for request in list(pool):
            if self.somebody(request):
                self.since_ps.pop(request, None)
            elif self.since_ps.setdefault(request, now_ps) + self.wait_ps <= now_ps:
                self.give_up(request, now_ps)
                pool.remove(request)
        return bool(self.view.takes.any())

    def columns(self, start_ps: int, end_ps: int) -> dict[str, NDArray[np.int64]]:
        """Return how requests ended, and for how long workers took requests between two moments."""
        spans = self.up + [(since_ps, end_ps) for since_ps in self.up_since.values()]
        up_ps = sum(max(min(until_ps, end_ps) - max(since_ps, start_ps), 0) for since_ps, until_ps in spans)
        return {
            "outcome": np.array([self.outcomes.get(each, OUTCOMES.index("finished")) for each in self.requests]),
            "sends": np.array([self.sends[each] for each in self.requests]),
            "refused_connections": np.array([self.refused_connections]),
            "up_ps": np.array([up_ps * self.cluster.group_size]),
        }
