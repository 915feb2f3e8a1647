"""Faulty nodes that know the algorithm: liars that collude, and the attack on networks that miss the condition.

They sign with the keys of their own members alone: signatures of correct nodes cannot be forged.

Source: L. Tseng, N. Vaidya, "Byzantine Consensus in Directed Graphs with Message Authentication", arXiv 2605.11309,
2026, for the kind of runs that show necessity.

Differs from the source:
1. The library and the three runs of :func:`attack` are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.conditions import broken_by
from wavetank.protocols.digraphs.signed_consensus import (
    VALUES,
    Chain,
    Denial,
    SignedConsensus,
    denial_content,
    signed_on,
)
from wavetank.sim.faults import Behaviour, Fault, FaultyNode, SelectiveRelay, Sends
from wavetank.sim.network import Topology
from wavetank.sim.node import Message
from wavetank.sim.rng import Draws


def signed_chain(algorithm: SignedConsensus, value: int, signers: Sequence[int]) -> Chain:
    """Return a chain that the given nodes, all of the adversary's, sign one after the other."""
    chain = Chain(signers[0], value, (), ())
    for signer in signers:
        chain = signed_on(algorithm.keys(), chain, signer)
    return chain


@dataclass(frozen=True, kw_only=True)
class Liar(Fault):
    """A fault without parameters of its own: every member behaves as ``acts`` says."""

    acts: ClassVar[type[Behaviour]]

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return self.acts()


class _TwoFaced(Behaviour):
    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if isinstance(message, Chain) and message.signers == (node.index,) and node.context.rng.chance(0.5):
            return ((to, signed_chain(_algorithm(node), 1 - message.value, message.signers)),)
        return ((to, message),)


class TwoFaced(Liar):
    """Signs one input for some and the other for the rest, and from then on behaves."""

    acts = _TwoFaced


@dataclass(frozen=True, kw_only=True)
class LateChains(Fault):
    """Keeps its input back, and shows chains that the members signed to single nodes, as late as they still count."""

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _LateChains(self.members)


@dataclass
class _LateChains(Behaviour):
    members: tuple[int, ...]
    block: int = 1

    def start(self, node: FaultyNode) -> None:
        self._arm(node, _algorithm(node).step_rounds * node.size)

    def _arm(self, node: FaultyNode, wait: float) -> None:
        # One step before the block ends: the message arrives in its last round.
        node.set_fault_timer(self, "late", max(wait - _algorithm(node).step_rounds, 0.5))

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return () if isinstance(message, Chain) and message.origin in self.members else ((to, message),)

    def timer(self, node: FaultyNode, name: str) -> None:
        rng = node.context.rng
        others = [member for member in self.members if member != node.index]
        origin_first = [node.index, *rng.shuffled(others)]
        if self.block <= len(self.members) and node.context.peers:
            for value in VALUES:
                victim = rng.choice(node.context.peers)
                node.context.send(victim, signed_chain(_algorithm(node), value, origin_first[: self.block]))
        self.block += 1
        if self.block <= len(self.members):
            self._arm(node, _algorithm(node).step_rounds * (node.size + 1))


class _FalseDenials(Behaviour):
    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if not isinstance(message, Denial) or message.node != node.index:
            return ((to, message),)
        lacks = tuple(
            (origin, value) for origin in range(node.size) for value in VALUES if node.context.rng.chance(0.7)
        )
        signature = _algorithm(node).keys().sign(node.index, denial_content(node.index, lacks))
        return ((to, Denial(node.index, lacks, signature)),)


class FalseDenials(Liar):
    """Denies what it likes, to each neighbour something else."""

    acts = _FalseDenials


class _Forger(Behaviour):
    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if not isinstance(message, Chain):
            return ((to, message),)
        rng = node.context.rng
        signers = tuple(rng.sample(range(node.size), min(len(message.signers) + 1, node.size)))
        forged = tuple(rng.bits().to_bytes(8, "big") * 2 for _ in signers)
        return ((to, message), (to, Chain(signers[0], rng.below(2), signers, forged)))


class Forger(Liar):
    """Sends chains with signatures of nodes it does not own; they are made up."""

    acts = _Forger


def _algorithm(node: FaultyNode) -> SignedConsensus:
    algorithm = node.algorithm
    if not isinstance(algorithm, SignedConsensus):
        raise BadValueError("This adversary knows consensus by signed chains alone.", given=type(algorithm).__name__)
    return algorithm


Adversary = Callable[[tuple[int, ...], Topology, Draws], list[Fault]]


def selective(members: tuple[int, ...], graph: Topology, draws: Draws) -> list[Fault]:
    """Return faulty nodes that each send to a random half of the nodes alone."""
    return [
        SelectiveRelay(members=(member,), to=tuple(node for node in range(graph.size) if draws.chance(0.5)))
        for member in members
    ]


ADVERSARIES: Mapping[str, Adversary] = {
    "silent": lambda members, graph, draws: [SelectiveRelay(members=members, to=())],
    "two-faced": lambda members, graph, draws: [TwoFaced(members=members)],
    "late-chains": lambda members, graph, draws: [LateChains(members=members)],
    "selective-relay": selective,
    "false-denials": lambda members, graph, draws: [FalseDenials(members=members)],
    "forger": lambda members, graph, draws: [Forger(members=members)],
    "all-together": lambda members, graph, draws: [
        TwoFaced(members=members),
        FalseDenials(members=members),
        LateChains(members=members),
        *selective(members, graph, draws),
    ],
}


@dataclass(frozen=True, kw_only=True)
class AttackRun:
    """One run of an attack.

    Parameters
    ----------
    inputs : tuple of int
        Of each node.
    faults : tuple of Fault
        What the faulty nodes do.
    says : str
        What an algorithm must do in it.
    """

    inputs: tuple[int, ...]
    faults: tuple[Fault, ...]
    says: str


def attack(graph: Topology, faults: int) -> tuple[AttackRun, ...]:
    """Return runs of which at least one breaks any algorithm in a network that misses the signed condition.

    To some nodes the last run looks like the first, to others like the second; an algorithm that does the right thing
    in those does the wrong one in the last.

    Parameters
    ----------
    graph : Topology
    faults : int
        Byzantine nodes that must be tolerated.

    Returns
    -------
    tuple of AttackRun
        Empty where the signed condition holds.
    """
    broken = broken_by(graph, faults)
    if broken is None:
        return ()
    silent, sources = broken
    everyone = frozenset(range(graph.size))
    source = sources[0]
    rest = everyone - source - silent
    if not rest and len(sources) == 1:
        return tuple(
            AttackRun(
                inputs=_inputs(graph, liars),
                faults=_faults(Pretending, liars),
                says=f"{_show(everyone - liars)} must decide their input 1, though {_show(liars)} look correct with 0",
            )
            for liars in (silent, source)
        )
    mute = (SelectiveRelay(members=tuple(sorted(silent)), to=()),) if silent else ()
    if len(sources) > 1:
        first, second = sources[:2]
        return (
            AttackRun(inputs=(0,) * graph.size, faults=mute, says=f"{_show(first)} must decide 0"),
            AttackRun(inputs=(1,) * graph.size, faults=mute, says=f"{_show(second)} must decide 1"),
            AttackRun(
                inputs=_inputs(graph, first),
                faults=mute,
                says=f"{_show(first)} and {_show(second)} hear nobody else, as in the runs before",
            ),
        )
    return (
        AttackRun(inputs=(0,) * graph.size, faults=mute, says=f"{_show(source)} must decide 0"),
        AttackRun(
            inputs=_inputs(graph, source),
            faults=(Deaf(members=tuple(sorted(source)), to=tuple(sorted(silent))),),
            says=f"{_show(rest)} must decide 1, though {_show(source)} look correct with 0",
        ),
        AttackRun(
            inputs=_inputs(graph, source),
            faults=(SelectiveRelay(members=tuple(sorted(silent)), to=tuple(sorted(everyone - source))),)
            if silent
            else (),
            says=f"{_show(source)} see the first run, {_show(rest)} the second",
        ),
    )


def _inputs(graph: Topology, zeros: frozenset[int]) -> tuple[int, ...]:
    return tuple(0 if node in zeros else 1 for node in range(graph.size))


def _faults(kind: type[Fault], members: frozenset[int]) -> tuple[Fault, ...]:
    return (kind(members=tuple(sorted(members))),) if members else ()


class Pretending(Liar):
    """Does what a correct node with its input would do."""

    acts = Behaviour


@dataclass(frozen=True, kw_only=True)
class Deaf(Fault):
    """Acts as if some nodes never said a word.

    Parameters
    ----------
    to : tuple of int
        Whom it does not hear.
    """

    to: tuple[int, ...]

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Deaf(self.to)


@dataclass
class _Deaf(Behaviour):
    to: tuple[int, ...]

    def receives(self, node: FaultyNode, sender: int, message: Message) -> bool:
        return sender not in self.to


def _show(nodes: frozenset[int]) -> str:
    return "{" + ", ".join(map(str, sorted(nodes))) + "}"
