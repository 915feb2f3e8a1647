"""Exact Byzantine consensus in a directed network whose messages are signed.

A value travels with a chain of signatures.  In block b only chains of b signers count; a node that accepts a value
signs it and sends it on in the next block; after n-f blocks a chain must hold a signer of the one source component, so
all of the source agrees.  What only some outside it accepted is then struck out: f+1 signed denials are enough.

The condition, as derived in :mod:`wavetank.protocols.digraphs.conditions`: for every set F of at most f nodes, what
remains has exactly one source component, of more than f nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.digraphs.interface import DigraphConsensus
from wavetank.protocols.digraphs.signing import SCHEMES, Scheme, scheme
from wavetank.settings import setting
from wavetank.sim.node import Message, Node

VALUES = (0, 1)


class Chain(Message, frozen=True):
    """A value of an origin, with who signed it, in order; the origin first."""

    origin: int
    value: int
    signers: tuple[int, ...]
    signatures: tuple[bytes, ...]


class Denial(Message, frozen=True):
    """A node signs which values it did not accept."""

    node: int
    lacks: tuple[tuple[int, int], ...]
    signature: bytes


def chain_content(origin: int, value: int, signers: tuple[int, ...]) -> bytes:
    """Return what the last of ``signers`` signs."""
    return f"chain {origin} {value} {signers}".encode()


def denial_content(node: int, lacks: tuple[tuple[int, int], ...]) -> bytes:
    """Return what a denial's node signs."""
    return f"denial {node} {lacks}".encode()


def signed_on(keys: Scheme, chain: Chain, node: int) -> Chain:
    """Return a chain that ``node`` has signed as well; an origin signs a chain without signers."""
    signers = (*chain.signers, node)
    signature = keys.sign(node, chain_content(chain.origin, chain.value, signers))
    return Chain(chain.origin, chain.value, signers, (*chain.signatures, signature))


class SignedNode(Node):
    """A participant."""

    def __init__(self, parameters: SignedConsensus, index: int, size: int) -> None:
        self.parameters = parameters
        self.input = parameters.input_of(index)
        self.blocks = size - parameters.faults
        # A message takes at most one step from node to node, so a block is long enough for any path.
        self.block_rounds = size * parameters.step_rounds
        self.block = 1
        # (origin, value) to the chain that made it accepted.
        self.accepted: dict[tuple[int, int], Chain] = {}
        self.fresh: list[Chain] = []
        self.denied: dict[tuple[int, int], set[int]] = {}
        self.heard: set[tuple[int, tuple[tuple[int, int], ...]]] = set()

    def start(self) -> None:
        """Sign the input and send it."""
        me = self.context.id
        chain = signed_on(self.parameters.keys(), Chain(me, self.input, (), ()), me)
        self.accepted[me, self.input] = chain
        self.context.broadcast(chain)
        self.context.set_timer("block", self.block_rounds)

    def receive(self, sender: int, message: Any) -> None:
        """Take a chain while blocks last, a denial at any time."""
        if isinstance(message, Chain):
            self._on_chain(message)
        else:
            self._on_denial(message)

    def _on_chain(self, chain: Chain) -> None:
        key = (chain.origin, chain.value)
        if self.block > self.blocks or key in self.accepted or len(chain.signers) < self.block:
            return
        if not self._is_good(chain):
            self.context.record("rejected chains")
            return
        self.accepted[key] = chain
        self._relay(chain)
        if self.context.id not in chain.signers:
            self.fresh.append(chain)

    def _relay(self, chain: Chain) -> None:
        self.context.broadcast(chain)

    def extend(self) -> None:
        """Sign what was accepted in the last block and send it on."""
        for chain in self.fresh:
            self.context.broadcast(signed_on(self.parameters.keys(), chain, self.context.id))
        self.fresh = []

    def _is_good(self, chain: Chain) -> bool:
        signers = chain.signers
        return (
            chain.value in VALUES
            and 0 < len(signers) == len(chain.signatures) == len(set(signers))
            and all(0 <= signer < self.context.size for signer in signers)
            and signers[0] == chain.origin
            and all(
                self.parameters.keys().verify(
                    signers[place],
                    chain_content(chain.origin, chain.value, signers[: place + 1]),
                    chain.signatures[place],
                )
                for place in range(len(signers))
            )
        )

    def timer(self, name: str) -> None:
        """Go on to the next block, to the denials, or to the decision."""
        me = self.context.id
        self.block += 1
        if self.block <= self.blocks:
            self.extend()
        elif self.block == self.blocks + 1:
            lacks = tuple(
                (origin, value)
                for origin in range(self.context.size)
                for value in VALUES
                if (origin, value) not in self.accepted
            )
            denial = Denial(me, lacks, self.parameters.keys().sign(me, denial_content(me, lacks)))
            self._on_denial(denial)
        else:
            self.context.decide(self._decision())
            return
        self.context.set_timer("block", self.block_rounds)

    def _on_denial(self, denial: Denial) -> None:
        key = (denial.node, denial.lacks)
        if key in self.heard or self.block > self.blocks + 1:
            return
        # A liar signs many versions, but may not flood the network.
        if sum(node == denial.node for node, _ in self.heard) >= 2 * self.context.size:
            return
        keys = self.parameters.keys()
        if not self._can_deny(denial) or not keys.verify(denial.node, denial_content(*key), denial.signature):
            self.context.record("rejected denials")
            return
        self.heard.add(key)
        for each in denial.lacks:
            self.denied.setdefault(each, set()).add(denial.node)
        self.context.broadcast(denial)

    def _can_deny(self, denial: Denial) -> bool:
        """Return whether a denial is of a node, and of values of nodes, each once."""
        return (
            0 <= denial.node < self.context.size
            and len(set(denial.lacks)) == len(denial.lacks)
            and all(0 <= origin < self.context.size and value in VALUES for origin, value in denial.lacks)
        )

    def _decision(self) -> int:
        votes = dict.fromkeys(VALUES, 0)
        for origin in range(self.context.size):
            kept = [
                value
                for value in VALUES
                if (origin, value) in self.accepted
                and len(self.denied.get((origin, value), ())) <= self.parameters.faults
            ]
            if len(kept) == 1:
                votes[kept[0]] += 1
        return 1 if votes[1] > votes[0] else 0


@dataclass(frozen=True, kw_only=True)
class SignedConsensus(DigraphConsensus):
    """One value that all correct nodes decide, and that they had if all had the same."""

    system: ClassVar[str] = "signed-digraph-consensus"
    messages: ClassVar[tuple[type[Message], ...]] = (Chain, Denial)
    condition: ClassVar[str] = "signed"

    step_rounds: float = setting(1.0, unit="rounds", low=0.1, says="Longest time from a node to its neighbour")
    signatures: str = setting("keyed-hash", choices=SCHEMES, says="Signature scheme")
    key_seed: int = setting(0, low=0, says="Seed of the keys")

    def keys(self) -> Scheme:
        """Return what the nodes sign with."""
        return scheme(self.signatures, self.key_seed)

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return SignedNode(self, index, size)

    def rounds(self, size: int) -> float:
        """Return how many rounds it takes."""
        return (size - self.faults + 1) * size * self.step_rounds

    def max_faults(self, size: int) -> int:
        """Return how many faulty nodes are tolerated, if the network allows it."""
        return min(self.faults, (size - 1) // 2)
