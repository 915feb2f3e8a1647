"""Approximate Byzantine consensus in an asynchronous directed network without signatures.

In each round a node widens an interval around its value as far as others certify, until one guess at the faulty nodes
makes it sure that everyone else will hear of the interval too; it chooses a point in it, waits for the points of all
who reach it around some f nodes, and goes on with the middle between the extremes.  Two correct nodes always share a
point of a correct node, so the range of values shrinks by at least a half in each round.

In the source a node waits, for a guess at the faulty nodes, for consistent values over all paths around the guess, then
for witnesses that hold what it holds; it cuts off what f nodes cover and takes the middle.  Here what f nodes cover is
cut off first, again and again, and the choice stands in for the witnesses.

Why it is right, read for each number t as a question "at least t?".  *Valid*: what no f nodes cover was said by a
correct node.  *All hear*: let T be the correct nodes whose interval says yes; if it holds all that reach some node
around its guess, then by 3-reach no f nodes cut T off from any other correct node, so that says yes, too.  *Live*: with
A the correct nodes that begin with yes and B the others, A or B is not cut off from the other side.  *Halved*: what
reaches u and v around the faulty nodes and their two guesses has a node in common (3-reach), whose one choice both
count.  As nothing is rounded, a liar can make an interval grow only so often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from wavetank.protocols.digraphs.interface import DigraphConsensus
from wavetank.protocols.digraphs.routes import (
    Listening,
    Path,
    check_links,
    check_peers,
    check_size,
    onward,
    reaches,
    small_sets,
)
from wavetank.settings import setting
from wavetank.sim.node import Message, Node, Snapshot

LARGEST_INPUT = 1_000_000
# What fits a message whatever the round; no correct node says more.
_LARGEST = 2**62


class Interval(Message, frozen=True):
    """How far a node's interval reaches in a round, and the nodes this came through; whose it is first."""

    round: int
    path: tuple[int, ...]
    low: int
    high: int


class Choice(Message, frozen=True):
    """The point a node chose in a round, and the nodes this came through; whose it is first."""

    round: int
    path: tuple[int, ...]
    value: int


@dataclass(frozen=True)
class Ways:
    """All paths of a network.

    Parameters
    ----------
    onward : dict
        Path to those it goes to next.
    listening : tuple of Listening
        Of each node.
    places : dict
        Path to its place among those that end at the same node.
    hops : int
        Links of the longest path.
    """

    onward: dict[Path, tuple[int, ...]]
    listening: tuple[Listening, ...]
    places: dict[Path, int]
    hops: int


@lru_cache(maxsize=64)
def ways(links: tuple[str, ...], size: int, faults: int) -> Ways:
    """Return all paths of a network; around every 2f nodes there is one, where there is any."""
    check_size(size, faults)
    known = reaches(links, size)
    paths = {
        path
        for node in range(size)
        for around in small_sets((other for other in range(size) if other != node), 2 * faults)
        for path in known.paths(node, around).values()
    }
    # What passes through a node, the node hears.
    paths |= {path[:place] for path in paths for place in range(1, len(path))}
    listening = tuple(
        Listening.over(node, (path for path in paths if path[-1] == node), range(size), faults) for node in range(size)
    )
    return Ways(
        onward(paths),
        listening,
        {path: place for each in listening for place, path in enumerate(each.paths)},
        max((len(path) - 1 for path in paths), default=0),
    )


@dataclass
class Round:
    """What a node knows of one round.

    Parameters
    ----------
    low, high : list
        By path: how far the interval of its first node is known to reach; infinite before anything came.
    choice : list
        By path: the point its first node chose, or None.
    value : int or None
        This node's value when it began the round, in units of the round; None before.
    ended : bool
        Whether this node went on to the next round.
    """

    low: list[float]
    high: list[float]
    choice: list[int | None]
    value: int | None = None
    ended: bool = False


class ApproximateNode(Node):
    """A participant; it goes on helping with rounds that it has left."""

    def __init__(self, parameters: ApproximateConsensus, index: int, size: int) -> None:
        self.parameters = parameters
        self.input = parameters.input_of(index)
        self.rounds: dict[int, Round] = {}

    def start(self) -> None:
        """Begin the first round."""
        check_peers(self.parameters.links, self.context.id, self.context.peers, self.context.size)
        self._begin(0, self.input)

    def _ways(self) -> Ways:
        return ways(self.parameters.links, self.context.size, self.parameters.faults)

    def _round(self, number: int) -> Round:
        if number not in self.rounds:
            count = len(self._ways().listening[self.context.id].paths)
            self.rounds[number] = Round([math.inf] * count, [-math.inf] * count, [None] * count)
        return self.rounds[number]

    def _begin(self, number: int, value: int) -> None:
        self.context.record("value", value / 2**number)
        if number == self.parameters.halvings():
            self.context.decide(value / 2**number)
            return
        found = self._round(number)
        found.value = value
        found.low[0] = found.high[0] = value
        self._pass_on((self.context.id,), Interval(number, (self.context.id,), value, value))
        self._go_on(number)

    def _pass_on(self, path: Path, message: Message) -> None:
        for to in self._ways().onward.get(path, ()):
            self.context.send(to, message)

    def receive(self, sender: int, message: Any) -> None:
        """Note what came over a path, pass it on, and see how far the round has come."""
        known = self._ways()
        path = message.path
        # A sender can lie about the path before it, not about itself.
        if (
            not 0 <= message.round < self.parameters.halvings()
            or not path
            or path[-1] != sender
            or self.context.id not in known.onward.get(path, ())
        ):
            return
        path = (*path, self.context.id)
        place = known.places[path]
        found = self._round(message.round)
        if isinstance(message, Choice):
            if found.choice[place] is not None or abs(message.value) > _LARGEST:
                return
            found.choice[place] = message.value
            self._pass_on(path, Choice(message.round, path, message.value))
        else:
            low, high = min(found.low[place], message.low), max(found.high[place], message.high)
            if (low, high) == (found.low[place], found.high[place]) or max(abs(low), abs(high)) > _LARGEST:
                return
            found.low[place], found.high[place] = low, high
            self._pass_on(path, Interval(message.round, path, int(low), int(high)))
        if found.value is not None:
            self._go_on(message.round)

    def _go_on(self, number: int) -> None:
        """Widen the interval, choose, end the round: whatever can be done."""
        me = self.context.id
        listening = self._ways().listening[me]
        found = self._round(number)
        low, high = listening.certified_least(found.low), listening.certified_most(found.high)
        if (low, high) != (found.low[0], found.high[0]):
            found.low[0], found.high[0] = low, high
            self._pass_on((me,), Interval(number, (me,), int(low), int(high)))
        if found.ended or found.value is None:
            return
        # What lies between these two is in the interval of every correct node in the end.
        least, most = listening.heard_least(found.low), listening.heard_most(found.high)
        if least > most:
            return
        if found.choice[0] is None:
            choice = int(min(max(found.value, least), most))
            found.choice[0] = choice
            self._pass_on((me,), Choice(number, (me,), choice))
        for places in listening.avoiding:
            choices = [found.choice[place] for place in places]
            known = [choice for choice in choices if choice is not None and least <= choice <= most]
            if len(known) == len(choices):
                found.ended = True
                # In units of the next round the middle is the sum.
                self._begin(number + 1, min(known) + max(known))
                return


@dataclass(frozen=True, kw_only=True)
class ApproximateConsensus(DigraphConsensus):
    """A value for each correct node, within epsilon of every other one's and between the inputs of correct nodes.

    It works where the network meets the 3-reach condition, which is also necessary, signatures or not.

    Parameters
    ----------
    spread : int
        How far apart inputs of correct nodes may lie; further apart, only validity is promised.
    """

    system: ClassVar[str] = "approximate-digraph-consensus"
    messages: ClassVar[tuple[type[Message], ...]] = (Interval, Choice)
    condition: ClassVar[str] = "reach-3"

    inputs: tuple[int, ...] = setting(
        (0, 100), low=-LARGEST_INPUT, high=LARGEST_INPUT, says="Input of each node, repeated as needed"
    )
    spread: int = setting(100, low=0, high=2 * LARGEST_INPUT, says="Largest distance between inputs")
    epsilon: float = setting(1.0, low=1e-6, high=1e6, says="Largest distance between decisions")
    links: tuple[str, ...] = setting((), says="Network that all nodes know, as 0>1,1>0; empty for a complete network")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_links(self.links, where="system approximate-digraph-consensus, links")

    def halvings(self) -> int:
        """Return how many asynchronous rounds bring the spread down to epsilon."""
        return max(math.ceil(math.log2(self.spread / self.epsilon)), 0) if self.spread else 0

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return ApproximateNode(self, index, size)

    def rounds(self, size: int) -> float:
        """Return after how many rounds all have decided when no message takes longer than one; no node counts on it.

        Intervals are long enough after two times the longest path, choices arrive with the third, and what makes them
        count with the fourth.
        """
        return 4.0 * ways(self.links, size, self.faults).hops * self.halvings()

    def max_faults(self, size: int) -> int:
        """Return how many faulty nodes are tolerated, if the network allows it."""
        return min(self.faults, (size - 1) // 3)

    def violation(self, snapshot: Snapshot) -> str:
        """Return how epsilon-agreement or validity is broken among the correct nodes."""
        decided = {node: value for (node, _), value in snapshot.decisions.items() if node in snapshot.correct}
        if not decided:
            return ""
        lowest, highest = min(decided, key=decided.__getitem__), max(decided, key=decided.__getitem__)
        inputs = [self.input_of(node) for node in snapshot.correct]
        for node in (lowest, highest):
            if not min(inputs) <= decided[node] <= max(inputs):
                return f"node {node} decided {decided[node]}, outside the inputs {min(inputs)} to {max(inputs)}"
        if max(inputs) - min(inputs) <= self.spread and decided[highest] - decided[lowest] > self.epsilon:
            return (
                f"nodes {lowest} and {highest} decided {decided[lowest]} and {decided[highest]}, "
                f"further apart than {self.epsilon}"
            )
        return ""
