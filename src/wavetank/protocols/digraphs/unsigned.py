"""Exact Byzantine consensus in a synchronous directed network without signatures.

One phase for each set F of at most f nodes, in which everyone acts as if F were the faulty ones: what came through F is
not listened to.  In the phase that guesses right there are no lies, and all correct nodes end it with one value.  In
the others a node changes its value only for one that came over paths which no f nodes cover, so a correct node had it:
what all correct nodes agree on stays, and stays theirs.

Nodes know the network, so for each F the one source component S of the network without F: first S settles on a value,
then S passes it on to the others.  In S, let Z be the nodes seen to have 0 and N those with 1.  If no f nodes cut Z off
from a node of N, N takes 0; otherwise Z takes 1.  One of the two always spreads: if f nodes cut Z off from a node of N,
and f nodes cut N off from a node of Z, then what reaches the one and what reaches the other are disjoint, against
3-reach.  Values travel along the paths of :mod:`~wavetank.protocols.digraphs.routes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from wavetank.protocols.digraphs.interface import DigraphConsensus
from wavetank.protocols.digraphs.routes import (
    Listening,
    Path,
    Reaches,
    check_links,
    check_peers,
    check_size,
    members_of,
    onward,
    reaches,
    small_sets,
)
from wavetank.settings import setting
from wavetank.sim.node import Message, Node


class Report(Message, frozen=True):
    """A node's value in a step, and the nodes it came through; the one whose value it is first, the sender last."""

    step: int
    path: tuple[int, ...]
    value: int


@dataclass(frozen=True)
class Step:
    """What happens between two timers.

    Parameters
    ----------
    guess : int
        F: who is taken to be faulty, as bits.
    source : int
        S: the source component of the network without F, as bits.
    settles : bool
        Whether S settles on a value; otherwise it sends the value to the others.
    onward : dict
        Path to those it goes to next.
    listening : dict
        Node to how it listens; only for those that may change their value.
    hops : int
        Links of the longest path.
    """

    guess: int
    source: int
    settles: bool
    onward: dict[Path, tuple[int, ...]]
    listening: dict[int, Listening]
    hops: int


def source_of(known: Reaches, guess: int) -> int:
    """Return as bits the first source component of the network without the nodes of ``guess``."""
    kept = [node for node in range(known.size) if not guess >> node & 1]
    # Nobody reaches a source but itself, so it is reached by fewer than what lies below it.
    return min((known.reach(node, guess) for node in kept), key=lambda mask: (mask.bit_count(), mask))


@lru_cache(maxsize=64)
def timetable(links: tuple[str, ...], size: int, faults: int) -> tuple[Step, ...]:
    """Return all steps, in order; those in which nobody has anything to say are left out."""
    check_size(size, faults)
    known = reaches(links, size)
    found = []
    for guess in small_sets(range(size), min(faults, size - 1)):
        others = [node for node in range(size) if not guess >> node & 1]
        source = source_of(known, guess)
        for settles in (True, False):
            listening = {}
            for node in others:
                if bool(source >> node & 1) != settles:
                    continue
                paths = {
                    path
                    for cover in small_sets((other for other in others if other != node), faults)
                    for origin, path in known.paths(node, guess | cover).items()
                    if source >> origin & 1
                }
                listening[node] = Listening.over(node, paths, others, faults)
            ways = [path for each in listening.values() for path in each.paths]
            hops = max((len(path) - 1 for path in ways), default=0)
            if hops:
                found.append(Step(guess, source, settles, onward(ways), listening, hops))
    return tuple(found)


@lru_cache(maxsize=65536)
def spreads(known: Reaches, faults: int, guess: int, origins: int, targets: int) -> bool:
    """Return whether no ``faults`` nodes cut ``origins`` off from any of ``targets`` in the network without ``guess``.

    Parameters
    ----------
    known : Reaches
    faults : int
    guess, origins, targets : int
        Nodes as bits.
    """
    others = [node for node in range(known.size) if not guess >> node & 1]
    return all(
        known.reach(node, guess | cover) & origins
        for node in members_of(targets)
        for cover in small_sets((other for other in others if other != node), faults)
    )


class UnsignedNode(Node):
    """A participant."""

    def __init__(self, parameters: UnsignedConsensus, index: int, size: int) -> None:
        self.parameters = parameters
        self.value = parameters.input_of(index)
        self.step = 0
        # For each step that is not over, path to value; early messages wait here for their step.
        self.heard: dict[int, dict[Path, int]] = {}

    def _steps(self) -> tuple[Step, ...]:
        return timetable(self.parameters.links, self.context.size, self.parameters.faults)

    def start(self) -> None:
        """Begin the first step, or decide where there is none: a node alone."""
        check_peers(self.parameters.links, self.context.id, self.context.peers, self.context.size)
        self._begin()

    def _begin(self) -> None:
        steps = self._steps()
        if self.step == len(steps):
            self.context.decide(self.value)
            return
        step = steps[self.step]
        path = (self.context.id,)
        for to in step.onward.get(path, ()):
            self.context.send(to, Report(self.step, path, self.value))
        self.context.set_timer("step", step.hops * self.parameters.step_rounds)

    def receive(self, sender: int, message: Any) -> None:
        """Note what came over a path for the first time, and pass it on."""
        steps = self._steps()
        if not self.step <= message.step < len(steps) or message.value not in (0, 1):
            return
        step = steps[message.step]
        path = message.path
        # A sender can lie about the path before it, not about itself.
        if not path or path[-1] != sender or self.context.id not in step.onward.get(path, ()):
            return
        heard = self.heard.setdefault(message.step, {})
        path = (*path, self.context.id)
        if path in heard:
            return
        heard[path] = message.value
        for to in step.onward.get(path, ()):
            self.context.send(to, Report(message.step, path, message.value))

    def timer(self, name: str) -> None:
        """End the step and begin the next."""
        step = self._steps()[self.step]
        heard = self.heard.pop(self.step, {})
        listening = step.listening.get(self.context.id)
        if listening is not None:
            values = [heard.get(path) for path in listening.paths]
            values[0] = self.value if step.settles else None
            other = 1 - self.value
            if (not step.settles or self._yields(step, listening, values)) and listening.certified(
                [value == other for value in values]
            ):
                # Outside S both values are certified only where the guess is wrong; then either will do.
                self.value = other
        self.step += 1
        self._begin()

    def _yields(self, step: Step, listening: Listening, values: list[int | None]) -> bool:
        """Return whether it is for this node to change its value, as far as it can see."""
        ones = 0
        seen: set[int] = set()
        for path, value in zip(listening.paths, values, strict=True):
            # In the phase that counts all paths from a node say the same; the first will do.
            if path[0] not in seen:
                seen.add(path[0])
                ones |= (value == 1) << path[0]
        zeros = step.source & ~ones
        known = reaches(self.parameters.links, self.context.size)
        zero_spreads = spreads(known, self.parameters.faults, step.guess, zeros, ones)
        return zero_spreads == (self.value == 1)


@dataclass(frozen=True, kw_only=True)
class UnsignedConsensus(DigraphConsensus):
    """One value that all correct nodes decide, and that they had if all had the same; nothing is signed.

    It works where the network meets the 3-reach condition, which is also necessary.
    """

    system: ClassVar[str] = "unsigned-digraph-consensus"
    messages: ClassVar[tuple[type[Message], ...]] = (Report,)
    condition: ClassVar[str] = "reach-3"

    links: tuple[str, ...] = setting((), says="Network that all nodes know, as 0>1,1>0; empty for a complete network")
    step_rounds: float = setting(1.0, unit="rounds", low=0.1, says="Longest time from a node to its neighbour")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_links(self.links, where="system unsigned-digraph-consensus, links")

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return UnsignedNode(self, index, size)

    def rounds(self, size: int) -> float:
        """Return how many rounds it takes."""
        return sum(step.hops for step in timetable(self.links, size, self.faults)) * self.step_rounds

    def max_faults(self, size: int) -> int:
        """Return how many faulty nodes are tolerated, if the network allows it."""
        return min(self.faults, (size - 1) // 3)
