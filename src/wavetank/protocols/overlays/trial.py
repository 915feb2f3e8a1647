"""One trial of a directory: the same nodes, records, questions and failures for every overlay, and one way to count.

All accounting of the directory studies is here: what counts as a success, from when to when a lookup takes, which
messages are control traffic.

Source: P. Dazzi et al., arXiv 2605.11839, 2026 (the metrics).

Differs from the source:
1. A lookup is a success if it returns the endpoint published under its key while the publisher is up all along; other
   lookups are not asked.  A lookup whose asker crashes before it could end does not count.
2. Records are in place at the start and are published again from then on; so a start without warm-up tests the tables.
3. Control messages are those of joining, stabilizing and refreshing; lookups and publications are counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.churn import Presence, Sessions
from wavetank.protocols.overlays.continuum import INTERMITTENT, Intermittent, LinkClasses, Sites
from wavetank.protocols.overlays.directory import PURPOSES, Directory, Outcome, inner_node
from wavetank.protocols.overlays.tables import give_cold, give_exact, give_records
from wavetank.sim.events import simulate
from wavetank.sim.faults import Fault
from wavetank.sim.network import Links as PlainLinks
from wavetank.sim.network import Network, Topology
from wavetank.sim.node import Node
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request, Run

CONTROL = ("join", "stabilize", "refresh")
TABLES = ("exact", "cold")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a directory is tried under.

    Parameters
    ----------
    nodes : int
    keys : int
        Records, each under a key of its own, published by random nodes.
    lookups : int
        Questions, at random times of the window by random nodes.
    rounds : float
        Length of the run; lookups are asked up to ``deadline_rounds`` before its end.
    tables : str
        ``exact`` or ``cold``: what nodes know at the start.
    warm_up : bool
        Whether lookups wait for log2 N rounds, or start at once.
    mean_session_rounds : float
        Mean of the exponential up times, 0 for no churn.
    mean_absence_rounds : float
        Mean of the down times.
    continuum : bool
        Whether links have the delays of cloud and edge; messages take one round otherwise.
    round_ms : float
        Milliseconds per round, with ``continuum``.
    window_rounds : float
        Time within which all lookups are asked; the run ends with the last answer; 0 for the whole run.
    """

    nodes: int = 1024
    keys: int = 256
    lookups: int = 1024
    rounds: float = 100.0
    tables: str = "exact"
    warm_up: bool = True
    mean_session_rounds: float = 0.0
    mean_absence_rounds: float = 10.0
    continuum: bool = False
    round_ms: float = 125.0
    window_rounds: float = 0.0

    def __post_init__(self) -> None:
        if self.tables not in TABLES:
            raise BadValueError("Tables are exact or cold at the start.", given=self.tables, allowed=TABLES)
        if self.nodes < 2 or self.keys < 1 or self.lookups < 1:
            raise BadValueError(
                "A trial has nodes, keys and lookups.",
                given=(self.nodes, self.keys, self.lookups),
                allowed="2 nodes, 1 key and 1 lookup or more",
            )

    def first_round(self) -> float:
        """Return when the first lookup may be asked."""
        return 1.0 + (math.ceil(math.log2(self.nodes)) if self.warm_up else 0)


@dataclass
class Found:
    """What a trial found.

    Attributes
    ----------
    run : Run
    success : float
        Successful lookups / lookups that count.
    latencies : list of float
        Rounds from asking to the answer, of successful lookups, rising.
    hops : list of int
        Nodes asked one after the other, of successful lookups.
    asked : float
        Questions per lookup, mean over all that were answered.
    first_success_rounds : float
        From the start of the run to an asker's first success, median over the nodes that asked.
    messages, bytes : dict
        By purpose, per node and round.
    reasons : Counter
        Why the others failed.
    """

    run: Run
    success: float = math.nan
    latencies: list[float] = field(default_factory=list)
    hops: list[int] = field(default_factory=list)
    asked: float = math.nan
    first_success_rounds: float = math.nan
    messages: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def latency(self, quantile: float) -> float:
        """Return a quantile of the latencies in rounds; NaN without any."""
        if not self.latencies:
            return math.nan
        return self.latencies[min(int(quantile * len(self.latencies)), len(self.latencies) - 1)]

    @property
    def control(self) -> float:
        """Return control messages per node and round."""
        return sum(self.messages[name] for name in CONTROL)


@dataclass(frozen=True)
class Workload:
    """Records and questions of a trial, the same for all overlays."""

    records: tuple[tuple[int, str, str], ...]
    requests: tuple[Request, ...]
    wanted: tuple[str, ...]


def workload_of(conditions: Conditions, presence: Presence, deadline: float, seed: int) -> Workload:
    """Return who publishes what, who asks for what, and when.

    Raises
    ------
    BadValueError
        If the run ends before lookups could.
    """
    first, last = conditions.first_round(), conditions.rounds - deadline
    if last <= first:
        raise BadValueError(
            "The run ends before its lookups could.",
            given=conditions.rounds,
            allowed=f"more than {first + deadline:g} rounds",
            where="rounds",
        )
    if conditions.window_rounds:
        last = min(last, first + conditions.window_rounds)
    draws = Draws(stream_key(seed, "workload"))
    nodes = conditions.nodes
    records = tuple((draws.below(nodes), f"capability {key}", f"agent {key}") for key in range(conditions.keys))
    asked = []
    for _ in range(conditions.lookups):
        # Few tries suffice unless nearly all are down; then there is little to ask.
        for _ in range(100):
            at = float(math.floor(first + draws.random() * (last - first)))
            asker, record = draws.below(nodes), draws.choice(records)
            # Who comes back in a round is not yet there for what is asked in it.
            if presence.stays(asker, at - 1, at) and presence.stays(record[0], at, at + deadline):
                asked.append((at, asker, record))
                break
    asked.sort()
    return Workload(
        records,
        tuple(Request(at=at, node=asker, command=("lookup", record[1])) for at, asker, record in asked),
        tuple(record[2] for _, _, record in asked),
    )


def try_directory(directory: Directory, conditions: Conditions, seed: int) -> Found:
    """Run a directory under conditions.

    Parameters
    ----------
    directory : Directory
        Its salt is replaced, so that every seed has identifiers of its own.
    conditions : Conditions
    seed : int
    """
    system = dataclasses.replace(directory, salt=seed)
    nodes = conditions.nodes
    faults: list[Fault] = []
    sessions = None
    if conditions.mean_session_rounds > 0:
        sessions = Sessions(
            members=tuple(range(nodes)),
            mean_up=conditions.mean_session_rounds,
            mean_down=conditions.mean_absence_rounds,
            until=conditions.rounds,
            seed=seed,
        )
        faults.append(sessions)
    scheduler = None
    links = PlainLinks()
    if conditions.continuum:
        classes = Sites(size=nodes, seed=seed).classes()
        scheduler = LinkClasses(classes, round_ms=conditions.round_ms, seed=seed)
        links = PlainLinks(least_delay=0.0)
        flickering = tuple(node for node, kind in enumerate(classes) if kind == INTERMITTENT)
        if flickering:
            faults.append(Intermittent(members=flickering))
    presence = Presence(sessions, nodes)
    workload = workload_of(conditions, presence, system.deadline_rounds, seed)
    up = [node for node in range(nodes) if presence.up(node, 0.0)]

    def setup(made: Sequence[Node]) -> None:
        give = give_exact if conditions.tables == "exact" else give_cold
        give(made, up, seed)
        give_records(made, up, workload.records)

    run = simulate(
        system,
        network=Network(topology=Topology.complete(nodes), links=links),
        until=conditions.rounds,
        life="events" if conditions.continuum else "rounds",
        seed=seed,
        requests=workload.requests,
        faults=faults,
        scheduler=scheduler,
        stop=(lambda run: len(run.replies) == len(workload.requests)) if conditions.window_rounds else None,
        setup=setup,
        # Thousands of nodes: asking them all after every event would cost more than the run.
        invariant="at-the-end",
    )
    return judged(run, workload, presence, system.deadline_rounds)


def judged(run: Run, workload: Workload, presence: Presence, deadline: float) -> Found:
    """Return the figures of a run."""
    found = Found(run)
    counted = 0
    firsts: dict[int, float] = {}
    asked: list[int] = []
    for number, (request, wanted) in enumerate(zip(workload.requests, workload.wanted, strict=True)):
        answer = run.replies.get(number)
        if answer is None:
            if presence.stays(request.node, request.at, request.at + deadline):
                counted += 1
                found.reasons["no answer"] += 1
            continue
        counted += 1
        outcome: Outcome = answer.result
        asked.append(outcome.asked)
        if wanted not in outcome.endpoints:
            found.reasons[outcome.reason or "other record"] += 1
            continue
        found.latencies.append(answer.at - request.at)
        found.hops.append(outcome.hops)
        firsts[request.node] = min(firsts.get(request.node, math.inf), answer.at)
    found.latencies.sort()
    if counted:
        found.success = len(found.latencies) / counted
    if asked:
        found.asked = sum(asked) / len(asked)
    if firsts:
        found.first_success_rounds = sorted(firsts.values())[len(firsts) // 2]
    for purpose, name in enumerate(PURPOSES):
        messages, size = run.total(f"messages {name}"), run.total(f"bytes {name}")
        for node in run.nodes:
            inner = inner_node(node)
            if not getattr(node, "down", False):
                messages += inner.sent[purpose]
                size += inner.sent_bytes[purpose]
        found.messages[name] = messages / run.size / run.time
        found.bytes[name] = size / run.size / run.time
    return found
