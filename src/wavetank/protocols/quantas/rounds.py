"""Rounds and channels by the rules of QUANTAS 2, for the same nodes that run as events, on sockets and in the explorer.

A round receives, computes and ends.  Every directed pair of neighbours has a channel that keeps order, delivers a
number of messages per round, and whose slow messages hold up those behind it: these are the links of every simulation
in rounds.  What QUANTAS alone does is here: channels have a budget, nodes read their inbox at one go, may stand still,
and are asked at the end of a round.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.faults import Behaviour, Fault, FaultyNode
from wavetank.sim.network import DELAYS, Links, Network, Partition, Topology
from wavetank.sim.node import Algorithm
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.rounds import Rounds
from wavetank.sim.simulation import Packet, Request, Run, new_run

Receiver = Callable[[list[Packet]], None]


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Crashes as QUANTAS has them: a node stands still, its inbox fills, and it goes on with the state it had.

    Parameters
    ----------
    odds : float
        Probability, in every round in which a node is up, that it stops.
    rounds : int
        How long it then stands still; 0 for no crashes by chance.
    stopped : tuple of int
        Nodes that are down from the start.
    until : float
        Round in which those start.
    """

    odds: float = 0.0
    rounds: int = 0
    stopped: tuple[int, ...] = ()
    until: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.odds <= 1 or self.rounds < 0:
            raise BadValueError("Odds lie in [0, 1], and a crash takes rounds.", given=(self.odds, self.rounds))
        if self.stopped and not self.until > 0:
            raise BadValueError(
                "Nodes that are down from the start go on later.", given=self.until, allowed="until > 0"
            )


@dataclass(frozen=True, kw_only=True)
class QuantasRounds(Links):
    """The abstract simulator of QUANTAS 2: what its ``distribution`` says about channels, and its loop of rounds.

    The parameters are those of :class:`~wavetank.sim.network.Links`, which in rounds keep to QUANTAS's rules; a
    channel always has a budget.
    """

    delay: str = setting("uniform", choices=DELAYS, says="Distribution of the delay")
    duplicate: float = setting(0.0, low=0.0, high=1.0, says="Probability that a message gets one more copy")
    budget: int = setting(1, low=1, says="Most messages that a channel delivers per round")
    # QUANTAS has neither regions nor partitions, so they are no parameters.
    regions: tuple[int, ...] = field(default=(), init=False)
    between: tuple[tuple[float, ...], ...] = field(default=(), init=False)
    partitions: tuple[Partition, ...] = field(default=(), init=False)

    def simulate(
        self,
        algorithm: Algorithm,
        *,
        rounds: int,
        size: int = 0,
        topology: Topology | None = None,
        seed: int = 0,
        requests: Sequence[Request] = (),
        faults: Sequence[Fault] = (),
        pauses: Pauses | None = None,
        log: bool = False,
        stop: Callable[[Run], bool] | None = None,
    ) -> Run:
        """Run an algorithm for a number of rounds.

        Parameters
        ----------
        algorithm : Algorithm
            A node with a method ``receive_all(box)`` gets all ``(sender, message)`` of a round at once.
        rounds : int
        size : int
            Nodes of a complete topology.
        topology : Topology, optional
            Instead of ``size``.
        seed : int
        requests : sequence of Request
            Made at the end of their round, as the source injects its workloads.
        faults : sequence of Fault
        pauses : Pauses, optional
        log : bool
            Whether to write down everything that happens.
        stop : callable, optional
            Looked at after every round in which something happened.

        Raises
        ------
        BadValueError
            For a topology, request, fault or pause that makes no sense.
        """
        topology = topology or Topology.complete(size)
        count = topology.size
        if size not in (0, count) or rounds < 0:
            raise BadValueError("A run has a number of rounds and one size.", given=(rounds, size), allowed=f"{count}")
        pauses = pauses or Pauses()
        if not all(0 <= node < count for node in pauses.stopped):
            raise BadValueError("A node that is down must exist.", given=pauses.stopped, allowed=f"0 to {count - 1}")
        run = new_run(algorithm, count, requests, faults)
        network = Network(topology=topology, links=self)
        loop = _Loop(network, seed, None, run, until=rounds, watched=log, pauses=pauses)
        return loop.finished(stop=stop, invariant="at-the-end")


class _Loop(Rounds):
    """Rounds in which nodes read their inbox at one go, may stand still, and are asked when all have acted."""

    def __init__(self, *arguments: Any, pauses: Pauses, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._pauses = pauses
        # Nodes that stand still; the timers that ran out, what arrived, and the requests that were made meanwhile.
        self._down: set[int] = set()
        self._held: dict[int, list[tuple[int, str, int]]] = {}
        self._inboxes: dict[int, list[Packet]] = {}
        self._postponed: dict[int, list[tuple[int, int]]] = {}
        # By round, the nodes that stop, or go on.
        self._stops: dict[int, list[int]] = {}
        self._resumes: dict[int, list[int]] = {}
        self._crashes: dict[int, Draws] = {}

    def play(self, stop: Callable[[Run], bool] | None) -> float:
        for node in self._pauses.stopped:
            self._stop(node, self._pauses.until)
        for node in range(len(self.contexts)) if self._pauses.rounds and self._pauses.odds else ():
            self._crashes[node] = Draws(stream_key(self.seed, "crash", node))
            if node not in self._down:
                self._plan_stop(node, 0)
        return super().play(stop)

    def receiver(self, number: int) -> Receiver:
        node = inner = self.run.nodes[number]
        if isinstance(node, FaultyNode) and all(_lets_through(type(each)) for each in node.behaviours):
            inner = node.inner
        batch: Receiver | None = getattr(inner, "receive_all", None)
        if batch is None:
            return super().receiver(number)
        if not self.watched:
            return batch

        def watched(box: list[Packet]) -> None:
            for sender, message in box:
                self.note("message", self.contexts[number].now, number, message, sender)
            batch(box)

        return watched

    def turn(
        self, number: int, awake: Collection[int], boxes: list[list[Packet]], receivers: Sequence[Receiver]
    ) -> None:
        if self._down or self._stops:
            awake = self._pause(number, awake, boxes)
        asked = self._requests.pop(number, ())
        super().turn(number, awake, boxes, receivers)
        for node, request in asked:
            if node in self._down:
                self._postponed.setdefault(node, []).append((node, request))
            else:
                self.contexts[node].now = float(number)
                self.ask(node, request)

    # Nodes that stand still.

    def _stop(self, node: int, until: float) -> None:
        self._down.add(node)
        # A node that stops again in the round in which it wakes up has not read what is there.
        self._inboxes.setdefault(node, [])
        if until <= self.until:
            self._plan(self._resumes, math.ceil(until), node)

    def _plan_stop(self, node: int, now: int) -> None:
        """Draw the round in which a node that is up stops."""
        if self._crashes:
            due = now + geometric(self._crashes[node], self._pauses.odds)
            if due <= self.until:
                self._plan(self._stops, due, node)

    def _plan(self, plans: dict[int, list[int]], due: int, node: int) -> None:
        plans.setdefault(due, []).append(node)
        heapq.heappush(self._agenda, due)

    def _pause(self, number: int, awake: Collection[int], boxes: list[list[Packet]]) -> Collection[int]:
        """Stop and wake nodes; put aside what is for those that stand still; return who is awake."""
        woken = self._resumes.pop(number, [])
        for node in sorted(woken):
            self._down.remove(node)
            # The round in which a node wakes up is one in which it can stop.
            self._plan_stop(node, number - 1)
        for node in self._stops.pop(number, ()):
            self._stop(node, number + self._pauses.rounds)
        down = self._down
        for node in down.intersection(awake):
            # Channels empty into the inbox all the same; it is read on waking up.
            box = boxes[node]
            self.delivered += len(box)
            self._inboxes[node] += box
            box.clear()
        timers: list[tuple[int, str, int]] = []
        for timer in self._timers.pop(number, ()):
            (self._held.setdefault(timer[0], []) if timer[0] in down else timers).append(timer)
        asked: list[tuple[int, int]] = []
        for node in sorted({*woken} - down):
            inbox = self._inboxes.pop(node)
            self.delivered -= len(inbox)
            boxes[node][:0] = inbox
            timers[:0] = self._held.pop(node, ())
            asked += self._postponed.pop(node, ())
        if timers:
            self._timers[number] = timers
        if asked:
            self._requests[number] = asked + self._requests.get(number, [])
        return {*awake, *woken} - down


def _lets_through(kind: type[Behaviour]) -> bool:
    """Return whether a behaviour neither sees what its node receives nor ever stops or replaces the node."""
    return kind.receives is Behaviour.receives and kind.timer is Behaviour.timer


def geometric(draws: Draws, probability: float) -> int:
    """Draw how many tries it takes to succeed once, from 1 on."""
    if probability >= 1.0:
        return 1
    return 1 + int(math.log1p(-draws.random()) / math.log1p(-probability))
