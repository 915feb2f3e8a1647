"""Rounds and channels by the rules of QUANTAS 2, for the same nodes that run as events, on sockets and in the explorer.

A round receives, computes and ends.  Every directed pair of neighbours has a channel that keeps order, delivers only so
many messages a round, and whose slow messages hold up those behind them.  What is idle costs nothing: a round costs its
messages and the nodes that wake up, and a broadcast is one object that many inboxes share.

Source: J. Oglio, M. Nesterenko, "QUANTAS 2: An Abstract, Concrete and Byzantine Simulator", arXiv 2605.08547, 2026, and
its public code as of 30 September 2025.

Differs from the source:
1. Nodes are told what happened (messages, timers); the source calls every peer in every round.  What a peer draws every
   round becomes the time until the draw succeeds.
2. Random numbers come from one stream a node and a channel, so a run does not depend on threads.
3. A node's own messages are counted when it sends them; the source counts nothing.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from wavetank.errors import BadValueError
from wavetank.protocols.faults import Behaviour, Fault, FaultyNode
from wavetank.protocols.interfaces import Algorithm, Message, Node
from wavetank.protocols.network import Topology
from wavetank.protocols.simulation import Happening, Request, Run, SimulatedContext, asking, new_run
from wavetank.rng import Draws, stream_key
from wavetank.settings import check_parameters, setting

DELAYS = ("uniform", "poisson", "one")

Packet = tuple[int, Message]
Receiver = Callable[[list[Packet]], None]
_sender_of = itemgetter(0)
_popleft = deque.popleft


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
class QuantasRounds:
    """The abstract simulator of QUANTAS 2: what its ``distribution`` says about channels, and the loop of rounds.

    Parameters
    ----------
    delay : str
        ``uniform`` (a whole number from ``least_delay`` to ``most_delay``), ``poisson`` (of ``mean_delay``, cut to that
        interval) or ``one``; never below one round.
    least_delay, most_delay, mean_delay : int
        Rounds.
    drop, duplicate, reorder : float
        Probability that a message is lost; that one more copy is queued (tried again after each copy); that a channel
        with several messages shuffles them before a round.
    per_round : int
        Messages a channel delivers in a round.  A channel takes as many in its whole life as it could deliver.
    capacity : int
        Messages a channel holds; what comes on top is lost.
    """

    delay: str = setting("uniform", choices=DELAYS, says="distribution of the delay")
    least_delay: int = setting(1, unit="rounds", low=0, says="least delay")
    most_delay: int = setting(1, unit="rounds", low=0, says="greatest delay")
    mean_delay: int = setting(1, unit="rounds", low=1, says="mean of poisson")
    drop: float = setting(0.0, low=0.0, high=1.0, says="probability that a message is lost")
    duplicate: float = setting(0.0, low=0.0, high=1.0, says="probability of one more copy")
    reorder: float = setting(0.0, low=0.0, high=1.0, says="probability that a channel shuffles before a round")
    per_round: int = setting(1, low=1, says="messages a channel delivers in a round")
    capacity: int = setting(2**31 - 1, low=1, says="messages a channel holds")

    def __post_init__(self) -> None:
        check_parameters(
            type(self), {name: getattr(self, name) for name in self.__dataclass_fields__}, where="channels"
        )
        if self.most_delay < self.least_delay:
            raise BadValueError(
                "The greatest delay is below the least.", given=self.most_delay, allowed=f"at least {self.least_delay}"
            )

    @property
    def plain(self) -> bool:
        """Whether every message takes one round, none is lost or copied, and order is kept."""
        sure = self.drop == self.duplicate == self.reorder == 0.0
        return sure and (self.delay == "one" or self.most_delay <= 1) and self.capacity >= 2**31 - 1

    def sampled_delay(self, draws: Draws) -> int:
        """Draw a delay in rounds."""
        if self.delay == "one":
            return 1
        if self.delay == "uniform":
            found = draws.between(self.least_delay, self.most_delay)
        else:
            # Knuth's product of uniforms; means here are a few rounds.
            limit, found, product = math.exp(-self.mean_delay), 0, draws.random()
            while product > limit and found <= self.most_delay:
                found, product = found + 1, product * draws.random()
            found = min(max(found, self.least_delay), self.most_delay)
        return max(found, 1)

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
            raise BadValueError("A node that is down exists.", given=pauses.stopped, allowed=f"0 to {count - 1}")
        run = new_run(algorithm, count, requests, faults)
        loop = _Loop(self, topology, run, rounds=rounds, seed=seed, log=log, pauses=pauses)
        loop.play(stop)
        return run


class _Context(SimulatedContext):
    """A node's side of the loop."""

    __slots__ = ("_loop", "_slot", "_slots", "_top", "backlogs")

    def __init__(self, loop: _Loop, topology: Topology, node: int, seed: int) -> None:
        super().__init__(loop.run, topology, node, seed, loop.put_timer)
        self._loop = loop
        # A channel that delivers b messages a round has the slots 0, 1, 2, ...: slot s is delivered in round s // b.
        # Messages to everyone take a slot on all channels at once (_slot), others on one (_slots); _top is the first
        # slot that is free on all.
        self._slot = 0
        self._slots: dict[int, int] = {}
        self._top = 0
        # By receiver, what waits on its channel behind a burst of messages; never empty.
        self.backlogs: dict[int, deque[Message]] = {}

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        linked = self._linked
        if (to == self.id or not 0 <= to < self.size) if linked is None else to not in linked:
            raise self.no_link(to)
        if type(message) not in self._kinds:
            raise self.not_listed(message)
        loop = self._loop
        loop.sent += 1
        if not loop.plain:
            loop.push(self.id, to, message)
            return
        slots = self._slots
        slot = slots.get(to, 0)
        if slot < self._slot:
            slot = self._slot
        if slot < loop.first:
            slot = loop.first
        slots[to] = slot + 1
        if slot >= self._top:
            self._top = slot + 1
        backlogs = self.backlogs
        if backlogs and to in backlogs:
            backlogs[to].append(message)
        elif slot < loop.limit:
            box = loop.boxes[to]
            if not box:
                loop.awake.append(to)
            box.append((self.id, message))
        else:
            loop.later_to_one(slot // loop.per_round, to, (self.id, message))

    def send_all(self, to: int, messages: Sequence[Message]) -> None:
        """Send several messages to one of ``peers``, as that many calls of ``send`` would."""
        loop = self._loop
        backlog = self.backlogs.get(to)
        if backlog is None:
            # The first ones may arrive in the next round; those behind them wait for their turn together.
            first = loop.per_round if loop.plain else len(messages)
            for message in messages[:first]:
                self.send(to, message)
            messages = messages[first:]
            if not messages:
                return
            backlog = loop.backlog(self, to, self._slots[to])
        loop.sent += len(messages)
        self._slots[to] = slot = self._slots[to] + len(messages)
        self._top = max(self._top, slot)
        backlog.extend(messages)

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise self.not_listed(message)
        loop = self._loop
        slot = max(self._slot, loop.first)
        if not loop.plain or self._top > slot:
            self.multicast(self.peers, message)
            return
        loop.sent += len(self.peers)
        self._slot = self._top = slot + 1
        targets = None if self._linked is None else self.peers
        if slot >= loop.limit:
            loop.later_to_many(slot // loop.per_round, (self.id, message), targets)
        elif targets is None:
            loop.to_all((self.id, message))
        else:
            loop.to_some((self.id, message), targets)

    def multicast(self, targets: Iterable[int], message: Message) -> None:
        """Send a message to those of some nodes that are ``peers``."""
        loop = self._loop
        linked = self._linked
        if not loop.plain:
            for to in targets:
                if to != self.id if linked is None else to in linked:
                    self.send(to, message)
            return
        first, limit, top = max(self._slot, loop.first), loop.limit, self._top
        slots, boxes, awake, backlogs = self._slots, loop.boxes, loop.awake, self.backlogs
        packet = (self.id, message)
        for to in targets:
            if to == self.id if linked is None else to not in linked:
                continue
            slot = slots.get(to, 0)
            if slot < first:
                slot = first
            slots[to] = slot + 1
            if slot >= top:
                top = slot + 1
            loop.sent += 1
            if backlogs and to in backlogs:
                backlogs[to].append(message)
            elif slot < limit:
                box = boxes[to]
                if not box:
                    awake.append(to)
                box.append(packet)
            else:
                loop.later_to_one(slot // loop.per_round, to, packet)
        self._top = top


class _Channel:
    """A queue between two nodes, for channels that do more than deliver in the next round."""

    __slots__ = ("draws", "left", "queue")

    def __init__(self, draws: Draws, left: int) -> None:
        self.draws = draws
        self.left = left
        # (round of arrival at the earliest, message)
        self.queue: deque[tuple[int, Message]] = deque()


class _Loop:
    """The state of a run and its rounds."""

    def __init__(
        self, rules: QuantasRounds, topology: Topology, run: Run, *, rounds: int, seed: int, log: bool, pauses: Pauses
    ) -> None:
        self.rules = rules
        self.plain = rules.plain
        self.per_round = rules.per_round
        self.run = run
        self.last = rounds
        self.seed = seed
        self.watched = log
        self.pauses = pauses
        self.round = 0
        self.sent = self.delivered = self.dropped = self.duplicated = self.timers = 0
        count = topology.size
        self.contexts = [_Context(self, topology, node, seed) for node in range(count)]
        # The first slot of the next round, and of the one after it (see _Context).
        self.first, self.limit = self.per_round, 2 * self.per_round
        # What arrives in the next round, and who then has something in its box.
        self.boxes: list[list[Packet]] = [[] for _ in range(count)]
        self.awake: list[int] = []
        self.everyone = False
        # What arrives later: by round, for many and for one node.  A burst on one channel is a backlog: by round, those
        # that begin to arrive, with the messages this first round has room for; then, by receiver and sender, those of
        # which every round takes its share.
        self._parcels: dict[int, list[tuple[Packet, Sequence[int] | None]]] = {}
        self._late: dict[int, dict[int, list[Packet]]] = {}
        self._begins: dict[int, list[tuple[int, int, int]]] = {}
        self._backlogs: dict[int, dict[int, deque[Message]]] = {}
        self._timers: dict[int, list[tuple[int, str, int]]] = {}
        self._requests: dict[int, list[int]] = {}
        # Rounds in which something is due: a heap, and what is in it.
        self._agenda: list[int] = []
        self._planned: set[int] = set()
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._busy: set[tuple[int, int]] = set()
        # Paused nodes: until when; the timers that ran out, what arrived, and the requests that were made meanwhile.
        self._down: dict[int, float] = {}
        self._held: dict[int, list[tuple[str, int]]] = {}
        self._inboxes: dict[int, list[Packet]] = {}
        self._postponed: dict[int, list[int]] = {}
        self._stops: dict[int, list[int]] = {}
        self._resumes: dict[int, list[int]] = {}
        self._crashes = [Draws(stream_key(seed, "crash", node)) for node in range(count)] if pauses.rounds else []

    # What nodes do.

    def to_all(self, packet: Packet) -> None:
        """Put a packet into every box but its sender's."""
        boxes = self.boxes
        for box in boxes:
            box.append(packet)
        boxes[packet[0]].pop()
        self.everyone = True

    def to_some(self, packet: Packet, targets: Sequence[int]) -> None:
        """Put a packet into some boxes."""
        boxes, awake = self.boxes, self.awake
        for to in targets:
            box = boxes[to]
            if not box:
                awake.append(to)
            box.append(packet)

    def backlog(self, context: _Context, to: int, slot: int) -> deque[Message]:
        """Return a new backlog for a channel; its first message has the slot."""
        due, taken = divmod(slot, self.per_round)
        begins = self._begins.get(due)
        if begins is None:
            begins = self._begins[due] = []
            self._wake(due)
        begins.append((to, context.id, self.per_round - taken))
        found = context.backlogs[to] = deque[Message]()
        return found

    def later_to_one(self, due: int, to: int, packet: Packet) -> None:
        """Have a packet arrive in a later round than the next."""
        boxes = self._late.get(due)
        if boxes is None:
            boxes = self._late[due] = {}
            self._wake(due)
        box = boxes.get(to)
        if box is None:
            boxes[to] = [packet]
        else:
            box.append(packet)

    def later_to_many(self, due: int, packet: Packet, targets: Sequence[int] | None) -> None:
        """Have a packet arrive at several nodes in a later round than the next; no targets stands for everyone."""
        parcels = self._parcels.get(due)
        if parcels is None:
            parcels = self._parcels[due] = []
            self._wake(due)
        parcels.append((packet, targets))

    def push(self, sender: int, to: int, message: Message) -> None:
        """Put a message, and copies of it, on a channel."""
        rules = self.rules
        key = (sender, to)
        channel = self._channels.get(key)
        if channel is None:
            draws = Draws(stream_key(self.seed, "channel", sender, to))
            channel = self._channels[key] = _Channel(draws, rules.per_round * self.last)
        draws = channel.draws
        if rules.drop and draws.chance(rules.drop):
            self.dropped += 1
            return
        copies = 0
        while channel.left and len(channel.queue) < rules.capacity:
            channel.left -= 1
            channel.queue.append((self.round + rules.sampled_delay(draws), message))
            copies += 1
            if not rules.duplicate or not draws.chance(rules.duplicate):
                break
        if copies:
            self.duplicated += copies - 1
            self._busy.add(key)
        else:
            self.dropped += 1

    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        """Have a timer run out."""
        if due > self.last:
            return
        number = math.ceil(due)
        if number <= self.round:
            number = self.round + 1
        timers = self._timers.get(number)
        if timers is None:
            timers = self._timers[number] = []
            self._wake(number)
        timers.append((node, name, generation))

    def _wake(self, number: int) -> None:
        if number not in self._planned:
            self._planned.add(number)
            heapq.heappush(self._agenda, number)

    # The rounds.

    def play(self, stop: Callable[[Run], bool] | None) -> None:
        """Run to the last round."""
        run = self.run
        for number, request in enumerate(run.requests):
            due = max(math.ceil(request.at), 1)
            self._requests.setdefault(due, []).append(number)
            self._wake(due)
        for node, context in zip(run.nodes, self.contexts, strict=True):
            node.context = context
        for number, node in enumerate(run.nodes):
            if self.watched:
                run.log.append(Happening(0.0, number, "start"))
            node.start()
        self._plan_pauses()
        receivers = [_receiver(node) for node in run.nodes]
        spare: list[list[Packet]] = [[] for _ in run.nodes]
        reached = self.last
        while (following := self._following()) <= self.last:
            number = self.round = following
            self.first = (number + 1) * self.per_round
            self.limit = self.first + self.per_round
            agenda = self._agenda
            if agenda and agenda[0] == number:
                self._planned.remove(heapq.heappop(agenda))
            spare, self.boxes = self.boxes, spare
            awake: Collection[int] = range(len(spare)) if self.everyone else self.awake
            self.awake, self.everyone = [], False
            if self._late or self._parcels or self._begins or self._backlogs or self._busy:
                awake = self._arrived(number, awake, spare)
            timers = self._timers.pop(number, None)
            if timers is not None or self._down or self._stops:
                self._mixed(number, awake, spare, timers or [], receivers)
            else:
                self._deliver(number, awake if type(awake) is range else sorted(awake), spare, receivers)
            if number in self._requests:
                self._ask(number)
            if stop is not None and stop(run):
                reached = number
                break
        run.time = float(reached)
        asking(run)(run.time)
        run.sent, run.delivered, run.dropped = self.sent, self.delivered, self.dropped
        run.duplicated, run.timers = self.duplicated, self.timers
        run.under_way = self.sent + self.duplicated - self.delivered - self.dropped

    def _following(self) -> int:
        if self.awake or self.everyone or self._backlogs or self._busy:
            return self.round + 1
        return self._agenda[0] if self._agenda else self.last + 1

    def _arrived(self, number: int, awake: Collection[int], boxes: list[list[Packet]]) -> Collection[int]:
        """Add what arrives from earlier rounds, in order of sender, then of channel; return who is awake."""
        late = self._late.pop(number, {})
        parcels = self._parcels.pop(number, ())
        begins = self._begins.pop(number, ())
        if not (late or parcels or begins or self._backlogs or self._busy):
            return awake
        if parcels:
            if len(parcels) == 1 and parcels[0][1] is None and not (awake or late or begins or self._backlogs):
                # One broadcast and nothing else: every box is in order.
                packet = parcels[0][0]
                for box in boxes:
                    box.append(packet)
                boxes[packet[0]].pop()
                return range(len(boxes))
            singles, late = late, {}
            for packet, targets in parcels:
                for to in self.contexts[packet[0]].peers if targets is None else targets:
                    late.setdefault(to, []).append(packet)
            for to, packets in singles.items():
                late.setdefault(to, []).extend(packets)
        # What comes from backlogs alone is in order.
        mixed = bool(late or begins)
        if self._backlogs:
            self._take_turns(late)
        if begins:
            self._begin_backlogs(begins, late)
        touched = list(late)
        for to, packets in late.items():
            box = boxes[to]
            if box:
                # Sent earlier on their channels than anything of the last round, and sorting is stable.
                box[:0] = packets
                box.sort(key=_sender_of)
            else:
                boxes[to] = packets
                if mixed:
                    packets.sort(key=_sender_of)
        if self._busy:
            touched += self._unqueued(number, boxes)
        return {*awake, *touched} if awake else touched

    def _unqueued(self, number: int, boxes: list[list[Packet]]) -> set[int]:
        """Take from the queues of channels what arrives in this round; return where something did."""
        touched = set()
        for key in sorted(self._busy):
            channel = self._channels[key]
            queue, draws = channel.queue, channel.draws
            if self.rules.reorder and len(queue) > 1 and draws.chance(self.rules.reorder):
                queue = channel.queue = deque(draws.shuffled(list(queue)))
            left = self.per_round
            while queue and left and queue[0][0] <= number:
                boxes[key[1]].append((key[0], queue.popleft()[1]))
                touched.add(key[1])
                left -= 1
            if not queue:
                self._busy.discard(key)
        for to in touched:
            if len(boxes[to]) > 1:
                boxes[to].sort(key=_sender_of)
        return touched

    def _take_turns(self, late: dict[int, list[Packet]]) -> None:
        """Add to what is late at each node what its backlogs deliver in this round."""
        each = self.per_round
        for to, backlogs in list(self._backlogs.items()):
            if each == 1:
                packets = list(zip(backlogs, map(_popleft, backlogs.values()), strict=True))
            else:
                packets = [
                    (sender, backlog.popleft())
                    for sender, backlog in backlogs.items()
                    for _ in range(min(each, len(backlog)))
                ]
            if to in late:
                late[to] += packets
            else:
                late[to] = packets
            if not all(backlogs.values()):
                for sender in [sender for sender, backlog in backlogs.items() if not backlog]:
                    del backlogs[sender], self.contexts[sender].backlogs[to]
                if not backlogs:
                    del self._backlogs[to]

    def _begin_backlogs(self, begins: Sequence[tuple[int, int, int]], late: dict[int, list[Packet]]) -> None:
        """Add to what is late what arrives of backlogs that have waited for other messages of their channel."""
        joined = set()
        for to, sender, room in begins:
            backlog = self.contexts[sender].backlogs[to]
            packets = late.setdefault(to, [])
            while backlog and room:
                packets.append((sender, backlog.popleft()))
                room -= 1
            if backlog:
                self._backlogs.setdefault(to, {})[sender] = backlog
                joined.add(to)
            else:
                del self.contexts[sender].backlogs[to]
        for to in joined:
            self._backlogs[to] = dict(sorted(self._backlogs[to].items()))

    def _deliver(
        self,
        number: int,
        awake: Iterable[int],
        boxes: list[list[Packet]],
        receivers: list[Receiver],
    ) -> None:
        contexts, watched = self.contexts, self.watched
        now = float(number)
        delivered = 0
        for node in awake:
            box = boxes[node]
            if box:
                contexts[node].now = now
                delivered += len(box)
                if watched:
                    self.run.log.extend(Happening(now, node, "message", what, sender) for sender, what in box)
                receivers[node](box)
                box.clear()
        self.delivered += delivered

    def _mixed(
        self,
        number: int,
        awake: Iterable[int],
        boxes: list[list[Packet]],
        timers: list[tuple[int, str, int]],
        receivers: list[Receiver],
    ) -> None:
        """A round with timers or with nodes that stand still."""
        due: dict[int, list[tuple[str, int]]] = {}
        for node, name, generation in timers:
            if node in due:
                due[node].append((name, generation))
            else:
                due[node] = [(name, generation)]
        woken = self._pause(number) if self._down or self._stops else ()
        down, contexts, nodes, watched = self._down, self.contexts, self.run.nodes, self.watched
        now = float(number)
        delivered = ran = 0
        order = {*awake, *due, *woken}
        if down:
            # Channels empty into the inbox all the same; it is read on waking up.
            for node in down.keys() & order:
                order.remove(node)
                box = boxes[node]
                delivered += len(box)
                self._inboxes[node] += box
                box.clear()
                if node in due:
                    self._held.setdefault(node, []).extend(due[node])
        for node in woken:
            inbox = self._inboxes.pop(node)
            delivered -= len(inbox)
            boxes[node][:0] = inbox
            if node in self._held:
                due[node] = self._held.pop(node) + due.get(node, [])
        for node in sorted(order):
            box = boxes[node]
            context = contexts[node]
            context.now = now
            if box:
                delivered += len(box)
                if watched:
                    self.run.log.extend(Happening(now, node, "message", what, sender) for sender, what in box)
                receivers[node](box)
                box.clear()
            if node in due:
                for name, generation in due[node]:
                    if context.ran_out(name, generation):
                        ran += 1
                        if watched:
                            self.run.log.append(Happening(now, node, "timer", name))
                        nodes[node].timer(name)
        self.delivered += delivered
        self.timers += ran

    def _ask(self, number: int) -> None:
        for place in self._requests.pop(number, ()):
            request = self.run.requests[place]
            if request.node in self._down:
                self._postponed.setdefault(request.node, []).append(place)
                continue
            self.contexts[request.node].now = float(number)
            if self.watched:
                self.run.log.append(Happening(float(number), request.node, "request", request.command, place))
            self.run.nodes[request.node].request(place, request.command)

    # Nodes that stand still.

    def _plan_pauses(self) -> None:
        for node in self.pauses.stopped:
            self._stop(node, self.pauses.until)
        for node in range(len(self.contexts)):
            if node not in self._down:
                self._plan_stop(node, 0)

    def _stop(self, node: int, until: float) -> None:
        self._down[node] = until
        # A node that stops again in the round in which it wakes up has not read what is there.
        self._inboxes.setdefault(node, [])
        if until <= self.last:
            number = math.ceil(until)
            self._resumes.setdefault(number, []).append(node)
            self._wake(number)

    def _plan_stop(self, node: int, now: int) -> None:
        """Draw the round in which a node that is up stops."""
        if not self._crashes or not self.pauses.odds:
            return
        due = now + geometric(self._crashes[node], self.pauses.odds)
        if due <= self.last:
            self._stops.setdefault(due, []).append(node)
            if due > self.round:
                self._wake(due)

    def _pause(self, number: int) -> set[int]:
        """Stop and wake nodes; return those that woke up and stay awake."""
        woken = set(self._resumes.pop(number, ()))
        for node in sorted(woken):
            del self._down[node]
            # The round in which a node wakes up is one in which it can stop.
            self._plan_stop(node, number - 1)
        for node in self._stops.pop(number, ()):
            self._stop(node, number + self.pauses.rounds)
            woken.discard(node)
        for node in sorted(woken):
            postponed = self._postponed.pop(node, None)
            if postponed is not None:
                self._requests[number] = postponed + self._requests.get(number, [])
        return woken


def _receiver(node: Node) -> Receiver:
    """Return the quickest call that gives a node its box."""
    inner = node
    if isinstance(node, FaultyNode) and all(_lets_through(type(each)) for each in node.behaviours):
        inner = node.inner
    batch: Receiver | None = getattr(inner, "receive_all", None)
    if batch is not None:
        return batch

    def one_by_one(box: list[Packet]) -> None:
        receive = node.receive
        for sender, message in box:
            receive(sender, message)

    return one_by_one


def _lets_through(kind: type[Behaviour]) -> bool:
    """Return whether a behaviour neither sees what its node receives nor ever stops or replaces the node."""
    return kind.receives is Behaviour.receives and kind.timer is Behaviour.timer


def geometric(draws: Draws, probability: float) -> int:
    """Draw how many tries it takes to succeed once, from 1 on."""
    if probability >= 1.0:
        return 1
    return 1 + int(math.log1p(-draws.random()) / math.log1p(-probability))
