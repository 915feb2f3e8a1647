"""Runs in rounds: time is a whole number, and what is idle costs nothing.

A round costs its messages and the nodes that wake up, and a broadcast is one object that many boxes share.  A link is a
queue, by the rules of QUANTAS 2 (see :mod:`wavetank.protocols.quantas.rounds`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from wavetank.sim.node import Message, unlisted
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Packet, Request, Run, SimulatedContext, Simulation, sender_of


class _RoundsContext(SimulatedContext):
    """A node's side of rounds.

    A link with a budget of b messages per round has the slots 0, 1, 2, ...: slot s is delivered in round s // b.
    Messages to everyone take a slot on all links at once (``_slot``), others on one (``_slots``); ``_top`` is the first
    slot that is free on all.
    """

    __slots__ = ("_slot", "_slots", "_top")

    def __init__(self, rounds: Rounds, node: int) -> None:
        super().__init__(rounds, node)
        self._slot = self._top = 0
        self._slots: dict[int, int] = {}

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        rounds: Any = self._simulation
        if not rounds.plain:
            super().send(to, message)
            return
        linked = self._linked
        known = (0 <= to < self.size and to != self.id) if linked is None else to in linked
        if not known or type(message) not in self._kinds:
            self.check(to, message)
        rounds.sent += 1
        budget = rounds.budget
        if budget is not None:
            slots = self._slots
            slot = slots.get(to, 0)
            if slot < self._slot:
                slot = self._slot
            if slot < rounds.first:
                slot = rounds.first
            slots[to] = slot + 1
            if slot >= self._top:
                self._top = slot + 1
            if slot >= rounds.limit:
                rounds.later(slot // budget, (self.id, message), (to,))
                return
        box = rounds.boxes[to]
        if not box:
            rounds.awake.append(to)
        box.append((self.id, message))

    def send_all(self, to: int, messages: Sequence[Message]) -> None:
        """Send several messages to one of ``peers``, as that many calls of ``send`` would."""
        rounds: Any = self._simulation
        budget, slots, queue = rounds.budget or 1, self._slots, deque(messages)
        while queue and ((slot := slots.get(to, 0)) < rounds.limit or slot % budget or not rounds.limit):
            self.send(to, queue.popleft())
        if queue:
            # What has to wait waits together: whole rounds of this link.
            rounds.sent += len(queue)
            slots[to] = slot + len(queue)
            self._top = max(self._top, slots[to])
            rounds.in_turns(slot // budget, (to, self.id, queue))

    def broadcast(self, message: Message) -> None:
        """See Context."""
        rounds: Any = self._simulation
        if not rounds.plain:
            super().broadcast(message)
            return
        slot = max(self._slot, rounds.first)
        if self._top > slot:
            for to in self.peers:
                self.send(to, message)
            return
        if type(message) not in self._kinds:
            raise unlisted(message, self._run.algorithm)
        peers = self.peers
        rounds.sent += len(peers)
        packet = (self.id, message)
        budget = rounds.budget
        if budget is not None:
            self._slot = self._top = slot + 1
            if slot >= rounds.limit:
                rounds.later(slot // budget, packet, peers)
                return
        boxes = rounds.boxes
        if self._linked is None:
            _to_all(packet, boxes)
            rounds.everyone = True
            return
        awake = rounds.awake
        for to in peers:
            box = boxes[to]
            if not box:
                awake.append(to)
            box.append(packet)


def _to_all(packet: Packet, boxes: list[list[Packet]]) -> None:
    """Put a packet into every box but its sender's: one object that many share."""
    for box in boxes:
        box.append(packet)
    boxes[packet[0]].pop()


class _Channel:
    """A queue between two nodes, for links that do more than deliver in the next round."""

    __slots__ = ("draws", "left", "queue")

    def __init__(self, draws: Draws, left: float) -> None:
        self.draws = draws
        # Messages it may still take.
        self.left = left
        # (round of arrival at the earliest, message)
        self.queue: deque[tuple[int, Message]] = deque()


class Rounds(Simulation):
    """A calendar of rounds; what arrives at a node in a round is in order of sender, then in the order of its link."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.plain = self.links.plain and self.scheduler is None
        self.budget = self.links.budget
        self.number = 0
        # The first slot of the next round, and of the one after it (see _RoundsContext); no budget, no slots.
        self.first = self.budget or 0
        self.limit = 2 * self.first
        # What arrives in the next round, and who then has something in its box.
        self.boxes: list[list[Packet]] = [[] for _ in self.contexts]
        self.awake: list[int] = []
        self.everyone = False
        # By round, what arrives later, and for whom.
        self._parcels: dict[int, list[tuple[Packet, Sequence[int]]]] = {}
        # By round, what then begins or goes on to arrive, as much as its link delivers: receiver, sender, messages.
        self._bursts: dict[int, list[tuple[int, int, deque[Message]]]] = {}
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._busy: set[tuple[int, int]] = set()
        self._timers: dict[int, list[tuple[int, str, int]]] = {}
        self._requests: dict[int, list[tuple[int, int]]] = {}
        # Rounds in which something is due.
        self._agenda: list[int] = []

    def context(self, node: int) -> _RoundsContext:
        """See Simulation."""
        return _RoundsContext(self, node)

    def uniform(self, context: SimulatedContext, to: int) -> Callable[[], float]:
        """See Simulation."""
        return self._channel(context.id, to).draws.random

    def _channel(self, sender: int, to: int) -> _Channel:
        channel = self._channels.get((sender, to))
        if channel is None:
            left = math.inf if self.budget is None else self.budget * math.floor(self.until)
            draws = Draws(stream_key(self.seed, "channel", sender, to))
            channel = self._channels[sender, to] = _Channel(draws, left)
        return channel

    def enqueue(self, context: SimulatedContext, to: int, message: Message) -> bool:
        """See Simulation."""
        channel = self._channel(context.id, to)
        if not channel.left or (self.links.queue is not None and len(channel.queue) >= self.links.queue):
            return False
        delay = self.delay(context, to, message, channel.draws.random)
        if math.isinf(delay):
            self.held += 1
            return True
        channel.left -= 1
        channel.queue.append((self.number + max(math.ceil(delay), 1), message))
        self._busy.add((context.id, to))
        return True

    def later(self, due: int, packet: Packet, targets: Sequence[int]) -> None:
        """Have a packet arrive in a later round than the next."""
        parcels = self._parcels.get(due)
        if parcels is None:
            parcels = self._parcels[due] = []
            heapq.heappush(self._agenda, due)
        parcels.append((packet, targets))

    def in_turns(self, due: int, burst: tuple[int, int, deque[Message]]) -> None:
        """Have messages arrive from a later round on, as many per round as a link delivers."""
        self._bursts.setdefault(due, []).append(burst)
        heapq.heappush(self._agenda, due)

    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        """See Simulation."""
        if due > self.until:
            return
        number = max(math.ceil(due), self.number + 1)
        timers = self._timers.get(number)
        if timers is None:
            timers = self._timers[number] = []
            heapq.heappush(self._agenda, number)
        timers.append((node, name, generation))

    def put_request(self, number: int, request: Request) -> None:
        """See Simulation."""
        due = max(math.ceil(request.at), 1)
        self._requests.setdefault(due, []).append((request.node, number))
        heapq.heappush(self._agenda, due)

    def play(self, stop: Callable[[Run], bool] | None) -> float:
        """See Simulation."""
        last, agenda, budget = math.floor(self.until), self._agenda, self.budget or 0
        receivers = [self.receiver(node) for node in range(len(self.contexts))]
        spare: list[list[Packet]] = [[] for _ in self.contexts]
        while (number := self._following()) <= last:
            self.number = number
            self.first = (number + 1) * budget
            self.limit = self.first + budget
            while agenda and agenda[0] <= number:
                heapq.heappop(agenda)
            spare, self.boxes = self.boxes, spare
            awake: Collection[int] = range(len(spare)) if self.everyone else self.awake
            self.awake, self.everyone = [], False
            if self._parcels or self._bursts or self._busy:
                awake = self._arrived(number, awake, spare)
            self.turn(number, awake, spare, receivers)
            if self.asks is not None:
                self.stepped(float(number))
            if stop is not None and stop(self.run):
                return number
        return last if stop is None else self.number

    def _following(self) -> int:
        """Return the next round in which something happens; one after the last when nothing does."""
        following = self.number + 1
        if self.awake or self.everyone or (self._busy and self.links.reorder):
            return following
        first = self._agenda[0] if self._agenda else math.floor(self.until) + 1
        if self._busy:
            first = min(first, *(self._channels[key].queue[0][0] for key in self._busy))
        return max(first, following)

    def _arrived(self, number: int, awake: Collection[int], boxes: list[list[Packet]]) -> Collection[int]:
        """Add what was sent before the last round; return who is awake."""
        parcels, bursts = self._parcels.pop(number, ()), self._bursts.pop(number, ())
        if not (parcels or bursts or self._busy):
            return awake
        if len(parcels) == 1 and not (awake or bursts) and len(parcels[0][1]) == len(boxes) - 1:
            _to_all(parcels[0][0], boxes)
            return range(len(boxes))
        late: dict[int, list[Packet]] = {}
        if bursts:
            self._take_turns(number, bursts, late)
        for packet, targets in parcels:
            for to in targets:
                late.setdefault(to, []).append(packet)
        for key in sorted(self._busy):
            self._unqueue(number, key, late)
        for to, packets in late.items():
            if boxes[to]:
                # Sent earlier on their links than anything of the last round, and sorting is stable.
                packets += boxes[to]
            if len(packets) > 1:
                packets.sort(key=sender_of)
            boxes[to] = packets
        return {*awake, *late}

    def _take_turns(
        self, number: int, bursts: Sequence[tuple[int, int, deque[Message]]], late: dict[int, list[Packet]]
    ) -> None:
        going, more = [], (self.budget or 1) - 1
        for burst in bursts:
            to, sender, messages = burst
            box = late.get(to)
            if box is None:
                box = late[to] = []
            box.append((sender, messages.popleft()))
            if more:
                box.extend((sender, messages.popleft()) for _ in range(min(more, len(messages))))
            if messages:
                going.append(burst)
        if going:
            self._bursts.setdefault(number + 1, []).extend(going)
            heapq.heappush(self._agenda, number + 1)

    def _unqueue(self, number: int, key: tuple[int, int], late: dict[int, list[Packet]]) -> None:
        channel, reorder = self._channels[key], self.links.reorder
        if reorder and len(channel.queue) > 1 and channel.draws.chance(reorder):
            channel.queue = deque(channel.draws.shuffled(list(channel.queue)))
        queue, room = channel.queue, self.budget or math.inf
        while queue and room and queue[0][0] <= number:
            late.setdefault(key[1], []).append((key[0], queue.popleft()[1]))
            room -= 1
        if not queue:
            self._busy.discard(key)

    def receiver(self, number: int) -> Callable[[list[Packet]], None]:
        """Return what gives a node its box."""
        receive, context = self.run.nodes[number].receive, self.contexts[number]
        if self.watched:

            def watched(box: list[Packet]) -> None:
                # What a handler sends is noted after the message that it answers.
                for sender, message in box:
                    self.note("message", context.now, number, message, sender)
                    receive(sender, message)

            return watched

        def one_by_one(box: list[Packet]) -> None:
            for sender, message in box:
                receive(sender, message)

        return one_by_one

    def turn(
        self,
        number: int,
        awake: Collection[int],
        boxes: list[list[Packet]],
        receivers: Sequence[Callable[[list[Packet]], None]],
    ) -> None:
        """Let the nodes act, one after the other: requests, then messages, then timers."""
        contexts, now = self.contexts, float(number)
        requests, timers = self._requests.pop(number, None), self._timers.pop(number, None)
        delivered = 0
        if requests is None and timers is None:
            for node in awake if type(awake) is range else sorted(awake):
                box = boxes[node]
                if box:
                    contexts[node].now = now
                    delivered += len(box)
                    receivers[node](box)
                    box.clear()
            self.delivered += delivered
            return
        asked, due = _by_node(requests or ()), _by_node(timers or ())
        for node in sorted({*awake, *asked, *due}):
            context, box = contexts[node], boxes[node]
            context.now = now
            if node in asked:
                for _, request in asked[node]:
                    self.ask(node, request)
            if box:
                delivered += len(box)
                receivers[node](box)
                box.clear()
            if node in due:
                for _, name, generation in due[node]:
                    if context.ran_out(name, generation):
                        self.timers += 1
                        if self.watched:
                            self.note("timer", now, node, name)
                        self.run.nodes[node].timer(name)
        self.delivered += delivered

    def ask(self, node: int, request: int) -> None:
        """Have a node asked."""
        command = self.run.requests[request].command
        if self.watched:
            self.note("request", self.contexts[node].now, node, command, request)
        self.run.nodes[node].request(request, command)

    def under_way(self) -> int:
        """See Simulation."""
        late = sum(len(targets) for parcels in self._parcels.values() for _, targets in parcels)
        late += sum(len(burst[2]) for bursts in self._bursts.values() for burst in bursts)
        return sum(map(len, self.boxes)) + late + sum(len(channel.queue) for channel in self._channels.values())


def _by_node(entries: Sequence[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for entry in entries:
        if entry[0] in found:
            found[entry[0]].append(entry)
        else:
            found[entry[0]] = [entry]
    return found
