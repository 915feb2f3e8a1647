"""A race between two roles that both wish to act: how a system runs it, and how one session of it goes.

Messages take random delays and keep their order only between the same two roles.  A role acts on its wish when the time
comes, if its protocol lets it; whatever else it may send, it sends at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wavetank.protocols.sessions.machines import Machine
from wavetank.protocols.sessions.runtime import RoleSession

# For a race without a third role: the branch of a racer after what it sent or took.
DATA_OR_STOP = {
    ("p", "sent", "data"): "data",
    ("p", "taken", "stop"): "stop",
    ("q", "taken", "data"): "data",
    ("q", "sent", "stop"): "stop",
}


@dataclass(frozen=True, kw_only=True)
class RacePlan:
    """How a system runs the race.

    Parameters
    ----------
    machines : mapping
        Role to machine; the racers are ``p`` and ``q``.
    wishes : mapping
        Racer to (partner, label): what it sends when it wishes to act.
    branches : mapping
        (role, what, label) to the branch, ``data`` or ``stop``, on which a role is after it ``sent`` or ``taken`` that.
    verdict : mapping
        Label of the wish that came first at a role that decides, to what this role then sends, as (partner, label).
    drop_stale : bool
    """

    machines: Mapping[str, Machine]
    wishes: Mapping[str, tuple[str, str]]
    branches: Mapping[tuple[str, str, str], str]
    verdict: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    drop_stale: bool = True


class RaceEnd(NamedTuple):
    """How one session ended.

    Parameters
    ----------
    messages : int
        Sent in the session.
    latency : float
        From the last wish that was acted on until the last racer stood on its final branch.
    agreed : bool
        Whether all racers stand on the same branch.
    leftovers : int
        Messages that arrived and were neither taken nor dropped.
    dropped : int
        Stale messages.
    crossed : bool
        Whether both racers acted on their wish.
    """

    messages: int
    latency: float
    agreed: bool
    leftovers: int
    dropped: int
    crossed: bool


def run_race(plan: RacePlan, wishes: Sequence[float], delays: Sequence[float]) -> RaceEnd:
    """Run one session of the race.

    Parameters
    ----------
    plan : RacePlan
    wishes : sequence of float
        When ``p`` and ``q`` wish to act.
    delays : sequence of float
        Delay of each message in the order of sending; used from the start again when there are more messages.
    """
    sessions = {role: RoleSession(machine, drop_stale=plan.drop_stale) for role, machine in plan.machines.items()}
    branch: dict[str, str] = {}
    settled_at: dict[str, float] = {}
    firsts: dict[str, str] = {}
    arrives: dict[tuple[str, str], float] = {}
    events: list[tuple[float, int, Any]] = []
    sent = acted = 0
    last_wish = 0.0

    def put(role: str, partner: str, label: str, now: float) -> None:
        nonlocal sent
        envelope, happened = sessions[role].send(partner, label)
        note(role, "sent", label, now)
        # First in, first out between the same two roles, whatever the delay drawn.
        at = max(now + delays[sent % len(delays)], arrives.get((role, partner), 0.0))
        arrives[role, partner] = at
        sent += 1
        heapq.heappush(events, (at, 2 + sent, envelope))
        for each in happened:
            if each.what == "taken":
                note(role, "taken", each.label, now)

    def note(role: str, what: str, label: str, now: float) -> None:
        side = plan.branches.get((role, what, label))
        if side is not None:
            if branch.get(role) != side:
                settled_at[role] = now
            branch[role] = side

    for number, role in enumerate(("p", "q")):
        heapq.heappush(events, (wishes[number], number, role))
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, str):
            if sessions[event].can_send(*plan.wishes[event]):
                put(event, *plan.wishes[event], now)
                acted += 1
                last_wish = now
            continue
        receiver = event.receiver
        firsts.setdefault(receiver, event.label)
        for each in sessions[receiver].deliver(event):
            if each.what == "taken":
                note(receiver, "taken", each.label, now)
        if receiver not in plan.wishes and sessions[receiver].offers():
            for partner, label in plan.verdict[firsts[receiver]]:
                put(receiver, partner, label, now)
    return RaceEnd(
        messages=sent,
        latency=max(settled_at.values()) - last_wish,
        agreed=len(set(branch.values())) == 1 and len(branch) == len(plan.wishes),
        leftovers=sum(len(session.waiting) for session in sessions.values()),
        dropped=sum(session.dropped for session in sessions.values()),
        crossed=acted == len(plan.wishes),
    )
