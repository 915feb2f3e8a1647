"""The states of an instance and the steps between them, as whole numbers.

Everything that a state is made of is interned: a node's local state (fields, timers, what it saved and decided) is one
number, an event (a message on its way to a node, a timer of a node, a crash) is another.  A handler runs once for each
pair of local state and event, on a copy of that one node; from then on the step is a look-up.  A state of the whole
system is a tuple of numbers, and both the compiled search and replaying work on such tuples.

Source: G. Holzmann, "State Compression in SPIN: Recursive Indexing and Compression Training Runs", SPIN 1997
(components of a state are numbered, and a state is the tuple of their numbers).

Differs from the source:
1. Steps are interned as well as components: a handler is not run again for the same local state and event.
2. The components are nodes and messages, not processes and channels: the network is a list of message numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from wavetank.check.explore.clock import DUE, HORIZON, NEVER_DUE, Clock, counted_down
from wavetank.check.explore.environment import CHOICE, COUNTED, UNLIMITED, Environment, Symmetry
from wavetank.check.explore.parts import (
    ACT,
    COST,
    DROP,
    DROPS,
    DUPLICATE,
    DUPLICATES,
    NAMES,
    OBLIGED,
    TIMEOUTS,
    Action,
    Event,
    Kind,
    Local,
    NodeContext,
    Transition,
)
from wavetank.check.explore.values import canonical, copied, renamed
from wavetank.errors import BadValueError
from wavetank.sim.faults import Fault, attach, byzantine_members
from wavetank.sim.network import Topology
from wavetank.sim.node import Algorithm, Node, Snapshot, unlisted
from wavetank.sim.rng import stream_key
from wavetank.sim.simulation import Request

# Beyond this, looking at every permutation of a state costs more than the symmetry saves.
MOST_PERMUTATIONS = 720


class System:
    """An instance: an algorithm, how many nodes, their environment.

    A state is a tuple: the local state of each node, the counters of :data:`COUNTED`, the number of the replies given,
    and the messages in transit (sorted; with ``fifo`` sorted by link, in order within one).

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes.
    requests : sequence of Request
        What clients ask; those of one node come in the order of their times, otherwise at any time.
    environment : Environment
    faults : sequence of Fault
    topology : Topology, optional
        Complete by default.
    symmetry : bool
        Whether states that differ by a renaming of interchangeable nodes count as one.
    seed : int
        Of the nodes' random streams.
    clock : Clock, optional
        How time passes; by default there is no time.
    absolute : bool
        Whether the time itself is a part of the states: needed where handlers read it.

    Attributes
    ----------
    timed : set of (int, int)
        Local states and events whose handler read the time while there was no clock.
    starts_timed : bool
        Whether a node did so when it was started.
    has_timers : bool
        Whether a node set a timer.
    drew : bool
        Whether a node drew random numbers.

    Raises
    ------
    BadValueError
        For a size, request, fault, clock or symmetry that makes no sense.
    ClockWasRead
        With a clock, when a handler reads the time and ``absolute`` is False.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        size: int,
        *,
        requests: Sequence[Request] = (),
        environment: Environment | None = None,
        faults: Sequence[Fault] = (),
        topology: Topology | None = None,
        symmetry: bool = False,
        seed: int = 0,
        clock: Clock | None = None,
        absolute: bool = False,
    ) -> None:
        if size < 1:
            raise BadValueError("An instance has nodes.", given=size, allowed="1 or more", where="size")
        self.algorithm = algorithm
        self.size = size
        self.environment = environment or Environment()
        self.clock = clock
        self.absolute = absolute and clock is not None
        self.seed = seed
        self._check_clock(symmetry)
        self.faults = tuple(faults)
        self.requests = tuple(requests)
        self.correct = frozenset(range(size)) - byzantine_members(faults)
        for fault in faults:
            for member in fault.members:
                if not 0 <= member < size:
                    raise BadValueError("A fault must name an existing node.", given=member, allowed=f"0 to {size - 1}")
        network = Topology.complete(size) if topology is None else topology
        if network.size != size:
            raise BadValueError("The topology has another size.", given=network.size, allowed=str(size))
        fresh = self._fresh_draws = self.environment.draws == "fresh"
        self.contexts = [
            NodeContext(node, size, tuple(network.peers(node)), stream_key(seed, "node", -1 if fresh else node), clock)
            for node in range(size)
        ]
        for context in self.contexts:
            context.absolute = self.absolute
        self._kinds = frozenset(algorithm.messages)
        self._asked: list[list[int]] = [[] for _ in range(size)]
        for number in sorted(range(len(self.requests)), key=lambda number: self.requests[number].at):
            node = self.requests[number].node
            if not 0 <= node < size:
                raise BadValueError("A request must name an existing node.", given=node, allowed=f"0 to {size - 1}")
            self._asked[node].append(number)
        self.events: list[Event] = []
        self._event_ids: dict[Hashable, int] = {}
        self.locals: list[Local] = []
        self._local_ids: dict[Hashable, int] = {}
        self.menus: list[tuple[int, ...]] = []
        # Numbers what was decided (or broken) in each local state.
        self.decided: list[int] = []
        self._decided_ids: dict[Hashable, int] = {}
        self.transitions: dict[tuple[int, int], Transition] = {}
        self.has_timers = False
        self.timed: set[tuple[int, int]] = set()
        self.starts_timed = False
        self.drew = False
        # For each event that is a message the same message one round later; -1 for one that is due.
        self.later: list[int] = []
        self.handler_calls = 0
        # Number 0 is "no replies", both of a step and of a state.
        self.replies: list[dict[int, Any]] = [{}]
        self._reply_ids: dict[Hashable, int] = {canonical({}): 0}
        self._merged: dict[tuple[int, int], int] = {}
        self.permutations: list[tuple[int, ...]] = [tuple(range(size))]
        self.local_images: list[list[int]] = []
        self.event_images: list[list[int]] = []
        self._compositions: dict[int, list[int]] = {}
        self._renaming: set[int] = set()
        self._symmetry: Symmetry | None = None
        if symmetry:
            self._symmetry, self.permutations = self._declared_symmetry(network)
        self.tick = -1 if clock is None else self._intern_event(Event(Kind.TICK, -1))
        self.initial = self._start()
        if symmetry:
            self._check_symmetry()

    # The first state

    def _start(self) -> tuple[int, ...]:
        locals_, sends, replies = [], [], 0
        for index in range(self.size):
            fresh = Local(index, self._new_node(index))
            if self.clock is not None:
                fresh.pending = tuple(math.ceil(self.requests[number].at) for number in self._asked[index])
            local, sent, given = self._react(fresh, lambda node: node.start())
            self.starts_timed = self.starts_timed or self.contexts[index].read
            locals_.append(self._intern_local(local))
            sends += sent
            replies = self.merged(replies, given)
        row = (*locals_, *self.environment.bounds(), replies)
        return self._with_network(row, self._sent([], sends))

    def _new_node(self, index: int) -> Node:
        node = attach(self.algorithm, index, self.size, self.faults)
        node.context = self.contexts[index]
        return node

    def _check_clock(self, symmetry: bool) -> None:
        if self.clock is None:
            return
        environment = self.environment
        for where, given, allowed in (
            ("channels", environment.channels, ("any-order", "fifo")),
            ("timers", environment.timers, ("any-time",)),
            ("timeouts", environment.timeouts, ("unlimited",)),
            ("draws", environment.draws, ("counted",)),
            ("symmetry", symmetry, (False,)),
        ):
            if given not in allowed:
                raise BadValueError(
                    "This does not go with a clock, which says when messages arrive and timers run out.",
                    given=f"{where} = {given}",
                    allowed=[str(each) for each in allowed],
                    where=where,
                )
        if len(self.clock.offsets) > self.size:
            raise BadValueError(
                "There are more offsets than nodes.",
                given=len(self.clock.offsets),
                allowed=f"up to {self.size}",
                where="offsets",
            )

    # Interning

    def _intern_event(self, event: Event) -> int:
        what = (
            canonical(event.what, f"message {type(event.what).__name__}") if event.kind == Kind.RECEIVE else event.what
        )
        key = (event.kind, event.node, event.sender, what, event.age)
        found = self._event_ids.get(key)
        if found is None:
            found = self._event_ids[key] = len(self.events)
            self.events.append(event)
            self.later.append(found)
            if self.clock is not None and event.kind == Kind.RECEIVE:
                self._intern_later(found, event, key[:-1], self.clock)
            if self._symmetry is not None:
                self.event_images.append([])
                self._find_images(found, event, self._renamed_event, self._intern_event, self.event_images)
        return found

    def _intern_later(self, number: int, event: Event, key: tuple[Any, ...], clock: Clock) -> None:
        """Intern a new message at every age it may reach."""
        while (age := clock.older(event.age)) != event.age:
            if age == DUE:
                self.later[number] = DUE
                return
            event = event._replace(age=age)
            self.later[number] = self._event_ids[*key, age] = len(self.events)
            number = len(self.events)
            self.events.append(event)
            self.later.append(number)

    def _find_images(
        self,
        number: int,
        thing: Any,
        rename: Callable[[Any, tuple[int, ...]], Any],
        intern: Callable[[Any], int],
        images: list[list[int]],
    ) -> None:
        """Intern all renamings of a new thing, unless it is itself being interned as one."""
        if id(images) in self._renaming:
            return
        self._renaming.add(id(images))
        try:
            found = [intern(rename(thing, permutation)) for permutation in self.permutations]
        finally:
            self._renaming.discard(id(images))
        for place, image in enumerate(found):
            if not images[image]:
                # Renaming an image is renaming the thing itself, by both permutations one after the other.
                images[image] = [found[both] for both in self._composed(place)]
        if not images[number]:
            raise BadValueError(
                "Renaming nodes by the permutation that changes nothing changed something.",
                given=repr(thing)[:80],
                where="symmetry",
            )

    def _composed(self, first: int) -> list[int]:
        """Return, for each permutation, the place of "first that of place ``first``, then this"."""
        if first not in self._compositions:
            one = self.permutations[first]
            places = {permutation: place for place, permutation in enumerate(self.permutations)}
            self._compositions[first] = [places[tuple([then[image] for image in one])] for then in self.permutations]
        return self._compositions[first]

    def _intern_local(self, local: Local) -> int:
        where = f"node {local.index}, {type(local.node).__name__}"
        fields = canonical(local.node, where)
        decisions = (local.broken, canonical(local.decisions, f"{where}, decisions"))
        saved = canonical(local.saved, f"{where}, saved")
        timing = (local.waits, local.pending, local.now)
        key = (local.index, fields, local.timers, saved, local.up, local.given, local.draws, decisions, timing)
        found = self._local_ids.get(key)
        if found is None:
            found = self._local_ids[key] = len(self.locals)
            self.locals.append(local)
            self.menus.append(())
            seen = (local.index, decisions)
            self.decided.append(self._decided_ids.setdefault(seen, len(self._decided_ids)))
            self.menus[found] = tuple(self._intern_event(event) for event in self._menu(local))
            if self._symmetry is not None:
                if local.draws and len(self.permutations) > 1 and local.index not in self._fixed():
                    raise BadValueError(
                        "Interchangeable nodes draw no random numbers: each has a stream of its own.",
                        where=where,
                        hint="leave symmetry out",
                    )
                self.local_images.append([])
                self._find_images(found, local, self._renamed_local, self._intern_local, self.local_images)
        return found

    def _menu(self, local: Local) -> Iterator[Event]:
        index, environment = local.index, self.environment
        if local.broken:
            return
        if not local.up:
            if environment.recoveries:
                yield Event(Kind.RECOVER, index)
            return
        for place, name in enumerate(local.timers):
            if f":{CHOICE}" in name:
                yield Event(Kind.CHOOSE, index, -1, name)
            elif local.waits and local.waits[place][0]:
                continue
            elif environment.timers != "never" and environment.timeouts:
                yield Event(Kind.TIMER, index, -1, name)
        if local.given < len(self._asked[index]) and not (local.pending and local.pending[0]):
            yield Event(Kind.REQUEST, index, -1, self._asked[index][local.given])
        if environment.crashes and index in self.correct:
            yield Event(Kind.CRASH, index)

    def _intern_replies(self, replies: dict[int, Any]) -> int:
        key = canonical(replies, "replies")
        found = self._reply_ids.get(key)
        if found is None:
            found = self._reply_ids[key] = len(self.replies)
            self.replies.append(replies)
        return found

    def merged(self, known: int, given: int) -> int:
        """Return the number of the replies after more were given; the first answer to a request stays."""
        if not given:
            return known
        found = self._merged.get((known, given))
        if found is None:
            found = self._intern_replies({**self.replies[given], **self.replies[known]})
            self._merged[known, given] = found
        return found

    # Steps of one node

    def transition(self, local: int, event: int) -> Transition:
        """Return what an event does to a local state; the handler runs the first time only.

        For the clock's step ``local`` is :data:`~wavetank.check.explore.clock.DUE` or ``HORIZON`` when the node
        does not let time pass.
        """
        found = self.transitions.get((local, event))
        if found is None:
            before, happened = self.locals[local], self.events[event]
            if happened.kind == Kind.TICK:
                found = Transition(self._ticked(before), (), 0)
            else:
                after, sends, replies = self._happened(before, happened)
                found = Transition(self._intern_local(after), tuple(sends), replies)
            self.transitions[local, event] = found
        return found

    def _ticked(self, local: Local) -> int:
        """Return a local state one round later, or why there is none."""
        clock = self.clock
        if clock is None or local.broken:
            return self._intern_local(local)
        waits = counted_down(local.waits)
        asked = bool(local.pending) and not local.pending[0] and local.up and clock.requests == "on-time"
        if waits is None or asked:
            return DUE
        if self.absolute and local.now >= clock.horizon:
            return HORIZON
        pending = tuple(max(left - 1, 0) for left in local.pending)
        return self._intern_local(local.but(waits=waits, pending=pending, now=local.now + self.absolute))

    def _happened(self, local: Local, event: Event) -> tuple[Local, list[int], int]:
        kind = event.kind
        if kind == Kind.CRASH:
            return local.but(timers=(), waits=(), up=False, broken=""), [], 0
        if kind == Kind.RECOVER:
            fresh = local.but(node=self._new_node(local.index), timers=(), waits=(), up=True, broken="")
            return self._noted(event, local, self._react(fresh, lambda node: node.start()))
        if not local.up or local.broken:
            return local, [], 0
        before = local.but(node=copied(local.node))
        if kind == Kind.RECEIVE:
            found = self._react(before, lambda node: node.receive(event.sender, event.what))
        elif kind == Kind.REQUEST:
            before.given += 1
            before.pending = before.pending[1:]
            command = self.requests[event.what].command
            found = self._react(before, lambda node: node.request(event.what, command))
        else:
            left = [place for place, name in enumerate(local.timers) if name != event.what]
            before.timers = tuple(local.timers[place] for place in left)
            before.waits = tuple(local.waits[place] for place in left) if local.waits else ()
            found = self._react(before, lambda node: node.timer(event.what))
        return self._noted(event, local, found)

    def _noted(self, event: Event, local: Local, found: tuple[Local, list[int], int]) -> tuple[Local, list[int], int]:
        """Note a handler that read the time where there is none."""
        if self.contexts[local.index].read:
            self.timed.add((self._intern_local(local), self._intern_event(event)))
        return found

    def _react(self, local: Local, handler: Callable[[Node], None]) -> tuple[Local, list[int], int]:
        """Run a handler on a node that nobody else holds."""
        context = self.contexts[local.index]
        context.begin(local)
        self.handler_calls += 1
        broken = ""
        context.at_work = True
        try:
            handler(local.node)
        except Exception as error:
            # A handler that fails is a finding about the algorithm, and the way to it is worth a counterexample.
            broken = f"node {local.index} raised {type(error).__name__}: {error}"
        finally:
            context.at_work = False
        self.drew = self.drew or context.rng.count > local.draws
        names = tuple(sorted(context.timers))
        self.has_timers = self.has_timers or bool(names)
        after = local.but(
            timers=names,
            waits=() if self.clock is None else tuple(context.timers[name] for name in names),
            saved=context.saved,
            up=True,
            draws=0 if self._fresh_draws else context.rng.count,
            decisions=context.decisions,
            broken=broken or context.contradiction,
        )
        sends = []
        for to, message in () if broken else context.sent:
            if type(message) not in self._kinds:
                raise unlisted(message, self.algorithm)
            sends.append(self._intern_event(Event(Kind.RECEIVE, to, local.index, message)))
        return after, sends, self._intern_replies(context.replies)

    # Steps of the system

    @property
    def fixed_width(self) -> int:
        """Numbers in a state before the messages."""
        return self.size + len(COUNTED) + 1

    def network_of(self, row: Sequence[int]) -> list[int]:
        """Return the events that are messages in transit."""
        return list(row[self.fixed_width :])

    def channel(self, event: int) -> int:
        """Return the number of a message's link."""
        found = self.events[event]
        return found.sender * self.size + found.node

    def _sent(self, network: list[int], sends: Sequence[int]) -> list[int]:
        """Return the network with more messages."""
        if self.environment.channels == "set":
            return [*network, *[event for event in dict.fromkeys(sends) if event not in network]]
        return [*network, *sends]

    def _with_network(self, row: Sequence[int], network: list[int]) -> tuple[int, ...]:
        order = self.channel if self.environment.channels == "fifo" else None
        return (*row[: self.fixed_width], *sorted(network, key=order))

    def actions(self, row: Sequence[int]) -> list[tuple[int, int]]:
        """Return what can happen in a state: pairs of (:data:`ACT`, ``DROP`` or ``DUPLICATE``) and an event."""
        found: list[tuple[int, int]] = []
        budget = row[self.size : self.size + len(COUNTED)]
        network = self.network_of(row)
        seen: set[int] = set()
        for event in network:
            link = self.channel(event) if self.environment.channels == "fifo" else event
            if link in seen:
                continue
            seen.add(link)
            if self.clock is not None and self.events[event].age < self.clock.least_delay:
                continue
            found.append((ACT, event))
            if budget[DROPS]:
                found.append((DROP, event))
            if budget[DUPLICATES]:
                found.append((DUPLICATE, event))
        for local in row[: self.size]:
            for event in self.menus[local]:
                kind = self.events[event].kind
                if kind in COST and not budget[COST[kind]]:
                    continue
                if kind == Kind.TIMER and network and self.environment.timers == "when-quiet":
                    continue
                found.append((ACT, event))
        if self._passes(row, bool(found))[0] is not None:
            found.append((ACT, self.tick))
        return found

    def idle(self, local: int) -> bool:
        """Return whether a local state waits for no time to come."""
        found = self.locals[local]
        waiting = any(last != NEVER_DUE for _, last in found.waits) or any(found.pending)
        return bool(found.broken) or not waiting

    def _passes(self, row: Sequence[int], possible: bool) -> tuple[tuple[int, ...] | None, bool]:
        """Return the state one round later, None when time does not pass, and whether only the horizon forbids it.

        Where nothing can ever happen any more, and where a round changes nothing, time does not pass.
        """
        if self.clock is None:
            return None, False
        network = [self.later[event] for event in self.network_of(row)]
        nodes = [self.transition(local, self.tick).local for local in row[: self.size]]
        if DUE in network or DUE in nodes or not (possible or network or not all(map(self.idle, row[: self.size]))):
            return None, False
        if HORIZON in nodes:
            return None, True
        after = self._with_network((*nodes, *row[self.size : self.fixed_width]), network)
        return (after, False) if after != tuple(row) else (None, False)

    def at_horizon(self, row: Sequence[int]) -> bool:
        """Return whether time would go on if there were no horizon."""
        if not self.absolute:
            return False
        possible = any(event != self.tick for _, event in self.actions(row))
        return self._passes(row, possible)[1]

    @property
    def bounds_timeouts(self) -> bool:
        """Whether timers expire up to a number of times, and then no more, although they are set."""
        return self.environment.timers != "never" and self.environment.timeouts not in (0, "unlimited")

    def held_timers(self, row: Sequence[int]) -> frozenset[tuple[int, str]]:
        """Return node and name of the timers that would run out if the bound on time-outs were not spent.

        A run that only this bound ends is no run of the algorithm.  No time-outs at all are a choice of their own.
        """
        if not self.bounds_timeouts or row[self.size + TIMEOUTS]:
            return frozenset()
        if self.environment.timers == "when-quiet" and len(row) > self.fixed_width:
            return frozenset()
        nodes = [self.locals[number] for number in row[: self.size]]
        return frozenset(
            (node.index, name)
            for node in nodes
            if node.up and not node.broken
            for name in node.timers
            if f":{CHOICE}" not in name
        )

    def obliged(self, action: tuple[int, int]) -> bool:
        """Return whether something must happen sooner or later if it stays possible: no fault, no choice."""
        how, event = action
        return how == ACT and self.events[event].kind in OBLIGED

    def after(self, row: Sequence[int], action: tuple[int, int]) -> tuple[int, ...]:
        """Return the state after something happened."""
        how, event = action
        found, changed = self.events[event], list(row)
        if found.kind == Kind.TICK:
            passed = self._passes(row, True)[0]
            return tuple(row) if passed is None else passed
        network = self.network_of(row)
        if how == DUPLICATE:
            network.insert(network.index(event), event)
            return self._with_network(self._spent(changed, DUPLICATES), network)
        if found.kind == Kind.RECEIVE and (how == DROP or self.environment.channels != "set"):
            network.remove(event)
        if how == DROP:
            return self._with_network(self._spent(changed, DROPS), network)
        step = self.transition(row[found.node], event)
        changed[found.node] = step.local
        changed[self.fixed_width - 1] = self.merged(row[self.fixed_width - 1], step.replies)
        if found.kind in COST:
            self._spent(changed, COST[found.kind])
        return self._with_network(changed, self._sent(network, step.sends))

    def _spent(self, row: list[int], counter: int) -> list[int]:
        if row[self.size + counter] != UNLIMITED:
            row[self.size + counter] -= 1
        return row

    # In the terms of the algorithm

    def action(self, step: tuple[int, int]) -> Action:
        """Return a step as a user reads it."""
        how, event = step
        kind, node, sender, what, age = self.events[event]
        return Action(("", "drop", "duplicate")[how] or NAMES[kind], node, sender, what, age)

    def step(self, action: Action) -> tuple[int, int] | None:
        """Return the numbers of an action, or None when no such thing can happen here."""
        how = {"drop": DROP, "duplicate": DUPLICATE}.get(action.kind, ACT)
        kind = next((kind for kind, name in NAMES.items() if name == action.kind), Kind.RECEIVE)
        what = canonical(action.what) if kind == Kind.RECEIVE else action.what
        event = self._event_ids.get((kind, action.node, action.sender, what, action.age))
        return None if event is None else (how, event)

    def snapshot(self, row: Sequence[int]) -> Snapshot:
        """Return a state for invariants."""
        locals_ = [self.locals[number] for number in row[: self.size]]
        decisions = {
            (local.index, instance): value for local in locals_ for instance, value in local.decisions.items()
        }  # fmt: skip
        nodes = [local.node for local in locals_]
        return Snapshot(nodes, self.correct, decisions, self.replies[row[self.fixed_width - 1]])

    def broken(self, row: Sequence[int]) -> str:
        """Return what a node did that no node may do: raise, or decide twice; "" when there is nothing."""
        for number in row[: self.size]:
            local = self.locals[number]
            if local.broken and local.index in self.correct:
                return local.broken
        return ""

    # Symmetry

    def _fixed(self) -> set[int]:
        declared = set(self._symmetry.fixed) if self._symmetry is not None else set()
        busy = {index for index in range(self.size) if self._asked[index]}
        return declared | busy

    def _declared_symmetry(self, network: Topology) -> tuple[Symmetry, list[tuple[int, ...]]]:
        declared = getattr(self.algorithm, "symmetry", None)
        if not isinstance(declared, Symmetry):
            raise BadValueError(
                f"{type(self.algorithm).__name__} does not say that its nodes are interchangeable.",
                where="symmetry",
                hint="give the algorithm an attribute symmetry = Symmetry(ids=...), or leave symmetry out",
            )
        if self.faults:
            raise BadValueError(
                "The behaviour of a faulty node names other nodes and is not renamed with them.",
                given=[type(fault).__name__ for fault in self.faults],
                where="symmetry, faults",
                hint="leave symmetry out",
            )
        if network.links is not None:
            raise BadValueError("Nodes are interchangeable where all are linked to all.", where="symmetry, topology")
        self._symmetry = declared
        free = [index for index in range(self.size) if index not in self._fixed()]
        if math.factorial(len(free)) > MOST_PERMUTATIONS:
            raise BadValueError(
                "There are too many interchangeable nodes.",
                given=len(free),
                allowed="6 or fewer",
                where="symmetry",
                hint="leave symmetry out, or name nodes in Symmetry.fixed",
            )
        found = []
        for images in itertools.permutations(free):
            permutation = list(range(self.size))
            for one, other in zip(free, images, strict=True):
                permutation[one] = other
            found.append(tuple(permutation))
        return declared, found

    def _names(self, permutation: tuple[int, ...]) -> tuple[Callable[[int], int], tuple[int, ...]]:
        order = [0] * self.size
        for old, new in enumerate(permutation):
            order[new] = old
        return (lambda node: permutation[node] if 0 <= node < self.size else node), tuple(order)

    def _renamed_event(self, event: Event, permutation: tuple[int, ...]) -> Event:
        rename, order = self._names(permutation)
        sender = rename(event.sender) if event.sender >= 0 else -1
        what = event.what
        if event.kind == Kind.RECEIVE and self._symmetry is not None:
            what = renamed(what, self._symmetry.ids, rename, order)
        return Event(event.kind, rename(event.node), sender, what, event.age)

    def _renamed_local(self, local: Local, permutation: tuple[int, ...]) -> Local:
        symmetry = self._symmetry
        if symmetry is None:
            return local
        rename, order = self._names(permutation)
        saved = renamed(_Fields(local.saved), {_Fields: symmetry.saved}, rename, order).__dict__
        roles = {"value": symmetry.decisions}
        decisions = {}
        for instance, value in local.decisions.items():
            # The instance stays: it is a slot or a number, also where it looks like a node's id.
            one = renamed(_Fields({"value": value}), {_Fields: roles}, rename, order)
            decisions[instance] = one.value
        index = rename(local.index)
        node = renamed(local.node, symmetry.ids, rename, order)
        if isinstance(node, Node) and "context" in local.node.__dict__:
            node.context = self.contexts[index]
        return local.but(index=index, node=node, saved=saved, decisions=decisions)

    def image(self, row: Sequence[int], place: int) -> tuple[int, ...]:
        """Return a state renamed by the permutation of that place."""
        permutation = self.permutations[place]
        locals_ = [0] * self.size
        for index, number in enumerate(row[: self.size]):
            locals_[permutation[index]] = self.local_images[number][place]
        network = [self.event_images[event][place] for event in self.network_of(row)]
        return self._with_network([*locals_, *row[self.size : self.fixed_width]], network)

    def _check_symmetry(self) -> None:
        for place, permutation in enumerate(self.permutations):
            if self.image(self.initial, place) != self.initial:
                swapped = [index for index, image in enumerate(permutation) if index != image]
                raise BadValueError(
                    f"The nodes {swapped} of {type(self.algorithm).__name__} do not start alike.",
                    where="symmetry",
                    hint="name nodes with a part of their own in Symmetry.fixed, and every field that holds ids in "
                    "Symmetry.ids",
                )

    def asymmetry(self, local: int, event: int) -> str:
        """Return how a step differs from its own renaming, which shows a wrong declaration; "" when it does not."""
        step = self.transition(local, event)
        for place, permutation in enumerate(self.permutations[1:], 1):
            other = self.transition(self.local_images[local][place], self.event_images[event][place])
            expected = self.local_images[step.local][place]
            sends = sorted(self.event_images[each][place] for each in step.sends)
            if (other.local, sorted(other.sends), other.replies) != (expected, sends, step.replies):
                found = self.events[event]
                return (
                    f"node {found.node} and node {permutation[found.node]} react differently to "
                    f"{found.kind.name.lower()} {found.what!r}"
                )
        return ""


class _Fields:
    """Values under names, so that they are renamed as fields are."""

    def __init__(self, fields: Mapping[str, Any] = ()) -> None:  # type: ignore[assignment]
        self.__dict__.update(fields)
