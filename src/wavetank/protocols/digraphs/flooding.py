"""Two baselines of consensus in directed networks: signed chains on a complete graph, and flooding for crashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.protocols.digraphs.conditions import in_masks, sources
from wavetank.protocols.digraphs.interface import DigraphConsensus
from wavetank.protocols.digraphs.signed_consensus import Chain, SignedConsensus, SignedNode
from wavetank.settings import setting
from wavetank.sim.network import Topology
from wavetank.sim.node import Message, Node, Snapshot, disagreement


class _DolevStrongNode(SignedNode):
    """As in a directed network, with blocks of one round, f+1 of them, and nothing to deny."""

    def __init__(self, parameters: SignedConsensus, index: int, size: int) -> None:
        super().__init__(parameters, index, size)
        self.blocks = parameters.faults + 1
        self.block_rounds = parameters.step_rounds

    def _relay(self, chain: Chain) -> None:
        """Keep a chain for the next block: everyone hears its sender directly."""

    def timer(self, name: str) -> None:
        """Go on to the next round, or decide."""
        if self.block < self.blocks:
            self.block += 1
            self.extend()
            self.context.set_timer("block", self.block_rounds)
        else:
            self.context.decide(self._decision())


@dataclass(frozen=True, kw_only=True)
class DolevStrong(SignedConsensus):
    """Consensus by signed broadcasts in f+1 rounds; needs a link from everyone to everyone."""

    condition: ClassVar[str] = "complete"

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return _DolevStrongNode(self, index, size)

    def rounds(self, size: int) -> float:
        """Return how many rounds it takes."""
        return (self.faults + 1) * self.step_rounds


class Input(Message, frozen=True):
    """A node's input, as others pass it on."""

    origin: int
    value: int
    peers: tuple[int, ...]


class FloodingNode(Node):
    """A participant that believes everything it hears."""

    def __init__(self, parameters: CrashFlooding, index: int, size: int) -> None:
        self.parameters = parameters
        self.rounds = parameters.rounds(size)
        self.input = parameters.input_of(index)
        self.known: dict[int, Input] = {}

    def start(self) -> None:
        """Send the input."""
        self.receive(self.context.id, Input(self.context.id, self.input, tuple(self.context.peers)))
        self.context.set_timer("end", self.rounds)

    def receive(self, sender: int, message: Any) -> None:
        """Keep the first value of an origin and pass it on."""
        if 0 <= message.origin < self.context.size and message.origin not in self.known:
            self.known[message.origin] = message
            self.context.broadcast(message)

    def timer(self, name: str) -> None:
        """Decide the majority of the source."""
        graph = Topology.from_edges(
            ((node, to) for node, known in self.known.items() for to in known.peers if to in self.known),
            size=self.context.size,
        )
        inward = in_masks(graph)
        unheard = sum(1 << node for node in range(graph.size) if node not in self.known)
        # All it hears leads to this node, so one source alone reaches it when the condition holds; with several the
        # first will do, since then nothing is promised.
        found = np.empty(graph.size, dtype=np.int64)
        sources(inward, unheard, found)
        voters = [node for node in self.known if int(found[0]) >> node & 1]
        ones = sum(self.known[node].value for node in voters)
        self.context.decide(1 if 2 * ones > len(voters) else 0)


@dataclass(frozen=True, kw_only=True)
class CrashFlooding(DigraphConsensus):
    """Consensus where nodes may be silent from the start, but never lie."""

    system: ClassVar[str] = "crash-flooding"
    messages: ClassVar[tuple[type[Message], ...]] = (Input,)
    condition: ClassVar[str] = "reach-1"

    faults: int = setting(1, low=0, high=20, says="Most nodes that are down")
    step_rounds: float = setting(1.0, unit="rounds", low=0.1, says="Longest time from a node to its neighbour")

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return FloodingNode(self, index, size)

    def rounds(self, size: int) -> float:
        """Return how many rounds it takes."""
        return size * self.step_rounds

    def max_faults(self, size: int) -> int:
        """Return how many silent nodes are tolerated, if the network allows it."""
        return self.faults

    def violation(self, snapshot: Snapshot) -> str:
        """Return which two nodes disagree, or ""."""
        return disagreement(snapshot)
