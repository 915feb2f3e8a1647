"""Explorers as systems of a study: the compiled search in its variants, and the plain one it is held against.

The plain explorer is what one writes first: it copies all nodes for every step, runs the handler, and compares whole
states.  It shares no code with the search but the canonical form of values, so it is also the oracle of the tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavetank.check.explore.environment import COUNTED, Environment
from wavetank.check.explore.explorer import ORDERS, SearchBudget, explore
from wavetank.check.explore.values import canonical, copied
from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.node import Algorithm, Message, Node, Opaque, Snapshot
from wavetank.sim.rng import Draws


class Count(NamedTuple):
    """What an explorer counted.

    Parameters
    ----------
    states, transitions : int
    complete : bool
        Whether that is all.
    counterexample : int
        Steps to the first broken invariant; -1 when none is.
    handler_calls : int
    """

    states: int
    transitions: int
    complete: bool
    counterexample: int
    handler_calls: int


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """The compiled search."""

    order: str = setting("breadth-first", says="Order of the search", choices=ORDERS[:2])
    symmetry: bool = setting(False, says="Whether states that differ by a renaming of nodes count as one")
    exact: bool = setting(False, says="Whether full states are compared, beyond their fingerprints")

    def count(self, algorithm: Algorithm, size: int, environment: Environment, most_states: int) -> Count:
        """Explore an instance.

        Parameters
        ----------
        algorithm : Algorithm
        size : int
            Nodes.
        environment : Environment
        most_states : int
            Budget of states.
        """
        found = explore(
            algorithm,
            size,
            environment=environment,
            order=self.order,
            symmetry=self.symmetry,
            exact=self.exact,
            budget=SearchBudget(states=most_states, seconds=600.0),
            terminal=0,
        )
        example = found.counterexample
        steps = -1 if example is None else len(example.actions)
        return Count(found.states, found.transitions, found.complete, steps, found.handler_calls)


class _Context(Opaque):
    """A node's side of the plain explorer: it writes into the state at hand."""

    def __init__(self, world: _World, index: int, size: int) -> None:
        self._world = world
        self.id = index
        self.size = size
        self.peers = tuple(peer for peer in range(size) if peer != index)
        self.now = 0.0

    @property
    def rng(self) -> Draws:
        """Refuse: the plain explorer draws nothing."""
        raise BadValueError("The plain explorer is for algorithms that draw no random numbers.", where="context.rng")

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        packet = (self.id, to, message)
        if not self._world.persistent or packet not in self._world.network:
            self._world.network.append(packet)

    def broadcast(self, message: Message) -> None:
        """See Context."""
        for to in self.peers:
            self.send(to, message)

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        self._world.timers.add((self.id, name))

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        self._world.timers.discard((self.id, name))

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self._world.saved[self.id, key] = copied(value)

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        return copied(self._world.saved.get((self.id, key), default))

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        self._world.decisions.setdefault((self.id, instance), value)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self._world.replies.setdefault(number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""


class _World:
    """A whole state, as objects."""

    def __init__(self, persistent: bool, bounds: dict[str, int]) -> None:
        self.persistent = persistent
        self.nodes: list[Node] = []
        self.network: list[tuple[int, int, Message]] = []
        self.timers: set[tuple[int, str]] = set()
        self.saved: dict[tuple[int, str], Any] = {}
        self.decisions: dict[tuple[int, Any], Any] = {}
        self.replies: dict[int, Any] = {}
        self.down: set[int] = set()
        self.left = bounds

    def copy(self) -> _World:
        made = _World(self.persistent, dict(self.left))
        made.nodes = [copied(node) for node in self.nodes]
        made.network = list(self.network)
        made.timers, made.down = set(self.timers), set(self.down)
        made.saved, made.decisions, made.replies = dict(self.saved), dict(self.decisions), dict(self.replies)
        for index, node in enumerate(made.nodes):
            node.context = _Context(made, index, len(made.nodes))
        return made

    def form(self, fifo: bool) -> Hashable:
        packets = [(sender, to, canonical(message)) for sender, to, message in self.network]
        if fifo:
            network: Hashable = tuple(sorted(packets, key=lambda packet: packet[:2]))
        else:
            network = frozenset((packet, packets.count(packet)) for packet in packets)
        nodes = tuple(canonical(node) for node in self.nodes)
        rest = (canonical(self.saved), canonical(self.decisions), canonical(self.replies))
        return (nodes, network, frozenset(self.timers), frozenset(self.down), tuple(self.left.values()), rest)


@dataclass(frozen=True, kw_only=True)
class NaiveExplorer:
    """Breadth-first search over whole systems, as one would write it first."""

    def count(self, algorithm: Algorithm, size: int, environment: Environment, most_states: int) -> Count:
        """Explore an instance; see :meth:`Explorer.count`."""
        bounds = dict(zip(COUNTED, environment.bounds(), strict=True))
        first = _World(environment.channels == "set", bounds)
        first.nodes = [algorithm.node(index, size) for index in range(size)]
        for index, node in enumerate(first.nodes):
            node.context = _Context(first, index, size)
            node.start()
        fifo = environment.channels == "fifo"
        seen = {first.form(fifo)}
        waiting = deque([(first, 0)])
        transitions, calls = 0, size
        while waiting:
            world, depth = waiting.popleft()
            snapshot = Snapshot(world.nodes, frozenset(range(size)), world.decisions, world.replies)
            if algorithm.violation(snapshot):
                return Count(len(seen), transitions, False, depth, calls)
            if len(seen) >= most_states:
                return Count(len(seen), transitions, False, -1, calls)
            for after in _successors(world, algorithm, environment):
                transitions += 1
                calls += 1
                form = after.form(fifo)
                if form not in seen:
                    seen.add(form)
                    waiting.append((after, depth + 1))
        return Count(len(seen), transitions, True, -1, calls)


def _successors(world: _World, algorithm: Algorithm, environment: Environment) -> Iterator[_World]:
    heads: list[tuple[int, int, Message]] = []
    for packet in world.network:
        if packet in heads:
            continue
        if environment.channels == "fifo" and any(packet[:2] == head[:2] for head in heads):
            continue
        heads.append(packet)
    for packet in heads:
        sender, to, message = packet
        after = world.copy()
        if not world.persistent:
            after.network.remove(packet)
        if to not in world.down:
            after.nodes[to].receive(sender, message)
        yield after
        if world.left["drops"]:
            after = _spent(world, "drops")
            after.network.remove(packet)
            yield after
        if world.left["duplicates"]:
            after = _spent(world, "duplicates")
            after.network.insert(after.network.index(packet), packet)
            yield after
    quiet = not world.network or environment.timers != "when-quiet"
    if environment.timers != "never" and quiet and world.left["timeouts"]:
        for node, name in sorted(world.timers):
            after = _spent(world, "timeouts")
            after.timers.discard((node, name))
            after.nodes[node].timer(name)
            yield after
    for node in range(len(world.nodes)):
        if node in world.down and world.left["recoveries"]:
            after = _spent(world, "recoveries")
            after.down.discard(node)
            after.nodes[node] = algorithm.node(node, len(world.nodes))
            after.nodes[node].context = _Context(after, node, len(world.nodes))
            after.nodes[node].start()
            yield after
        elif node not in world.down and world.left["crashes"]:
            after = _spent(world, "crashes")
            after.down.add(node)
            after.timers = {timer for timer in after.timers if timer[0] != node}
            yield after


def _spent(world: _World, counter: str) -> _World:
    after = world.copy()
    if after.left[counter] > 0:
        after.left[counter] -= 1
    return after
