"""Proof-of-work chains as QUANTAS runs them, Bitcoin-like and Ethereum-like, and the parasites that mine in secret.

Miners spread transactions and blocks; a miner that has a transaction finds a block in a round with odds of its rate
over the rates of all others.  Colluding parasites show their blocks to each other only, mine on the secret chain, and
publish it when it is high enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.ledger import Ledger, forks
from wavetank.protocols.quantas.rounds import geometric
from wavetank.protocols.quantas.series import BoxNode, QuantasAlgorithm, algorithm_nodes
from wavetank.settings import setting
from wavetank.sim.faults import Behaviour, Fault, FaultyContext, FaultyNode, Sends
from wavetank.sim.node import Context, Message, Node
from wavetank.sim.simulation import Run

_OTHERS_SUBMIT_RATE = 20
RULES = ("longest", "heaviest")


class Transaction(Message, frozen=True):
    """A transaction: who submitted it, and its number there."""

    submitter: int
    number: int


class NewBlock(Message, frozen=True):
    """A block with its one transaction."""

    name: str
    parent: str
    height: int
    parasite: bool
    transaction: Transaction


class Miner(BoxNode):
    """A miner.

    Attributes
    ----------
    ledger : Ledger
    queue : dict
        Transactions that are in no block it knows, oldest first.
    secret : str
        The block to mine on instead of the tip; set by the parasite fault.
    mined : int
        Blocks it found.
    """

    def __init__(self, chain: QuantasChain, index: int, size: int) -> None:
        self.active = chain.active
        self.submit_rate = chain.submit_rate if index == chain.first else _OTHERS_SUBMIT_RATE
        self.odds = chain.odds(index, size)
        self.ledger = Ledger(chain.rule == "heaviest")
        self.queue: dict[Transaction, None] = {}
        self.known: set[Transaction] = set()
        self.mining = False
        self.tried = 0.0
        self.submitted = 0
        self.mined = 0
        self.secret = ""

    def start(self) -> None:
        """Wait for clients."""
        if self.active and self.submit_rate > 0:
            self._await_client()

    def _await_client(self) -> None:
        self.context.set_timer("client", geometric(self.context.rng, 1 / self.submit_rate))

    def receive_all(self, box: Sequence[tuple[int, Any]]) -> None:
        """Take note of all transactions and blocks of a round."""
        if not self.active:
            return
        known, queue = self.known, self.queue
        for _, message in box:
            if isinstance(message, NewBlock):
                self.ledger.add(message.name, message.parent, message.parasite)
                known.add(message.transaction)
                queue.pop(message.transaction, None)
            elif message not in known:
                known.add(message)
                queue[message] = None
        self._look_for_work()

    def timer(self, name: str) -> None:
        """A client submits, or a block is found."""
        if name == "client":
            self.submitted += 1
            transaction = Transaction(self.context.id, self.submitted)
            self.queue[transaction] = None
            self.known.add(transaction)
            self.context.broadcast(transaction)
            self._await_client()
            self._look_for_work()
        else:
            self.mining = False
            self.tried = self.context.now
            self._mine()

    def _look_for_work(self) -> None:
        """Begin to mine when there is something to mine, or stop when there is nothing left."""
        if self.queue and not self.mining and self.odds > 0:
            # A round counts for one try.
            after = geometric(self.context.rng, self.odds) - (self.tried != self.context.now)
            self.tried = self.context.now
            if after:
                self.mining = True
                self.context.set_timer("mine", after)
            else:
                self._mine()
        elif not self.queue and self.mining:
            self.mining = False
            self.context.cancel_timer("mine")

    def _mine(self) -> None:
        self.mined += 1
        transaction = next(iter(self.queue))
        del self.queue[transaction]
        parent = self.secret or self.ledger.tip
        name = f"{self.context.id}:{transaction.number}:{self.context.now:.0f}"
        block = self.ledger.add(name, parent, bool(self.secret))
        self.context.broadcast(NewBlock(name, parent, block.height, block.parasite, transaction))
        self._look_for_work()


@dataclass(frozen=True, kw_only=True)
class QuantasChain(QuantasAlgorithm):
    """A chain of blocks, each with one transaction.

    Parameters
    ----------
    rule : str
        ``longest`` (Bitcoin-like) or ``heaviest`` (Ethereum-like, GHOST): which tip to mine on.
    submit_rate : int
        Mean number of rounds between clients at the first miner, at the others 20; 0 for never.
    scaler : int
        A miner finds a block in a round with odds of its rate over ``scaler`` times the sum of the others' rates.
    active : bool
        Whether anybody does anything: QUANTAS's Bitcoin without parameters stands still.
    """

    rule: str = setting("longest", choices=RULES, says="Rule that chooses the tip to mine on")
    submit_rate: int = setting(
        20, unit="rounds", says="Mean time between client requests at the first miner; 0: none", low=0
    )
    rates: tuple[int, ...] = setting((), says="Mining rate of each miner")
    rate: int = setting(1, says="Mining rate of the miners without a rate of their own")
    scaler: int = setting(1, says="Factor that makes blocks rarer", low=1)
    first: int = setting(0, says="Index of the first miner", low=0)
    active: bool = setting(True, says="Whether miners do anything")
    where: ClassVar[str] = "chain"
    messages: ClassVar[tuple[type[Message], ...]] = (Transaction, NewBlock)

    def odds(self, index: int, size: int) -> float:
        """Return the probability that a miner finds a block in a round."""
        rates = [max(rate, 0) for rate in (*self.rates[:size], *[self.rate] * (size - len(self.rates)))]
        others = max(1, (sum(rates) - rates[index]) * self.scaler)
        return min(rates[index] / others, 1.0)

    def node(self, index: int, size: int) -> Node:
        """Return a new miner."""
        return Miner(self, index, size)

    def max_faults(self, size: int) -> int:
        """Return how many miners of equal rates may collude before they own the longest chain."""
        return (size - 1) // 2

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes in the last round."""
        if not self.active:
            return {}
        return {name: [value] for name, value in self._forks(run).items()}

    def _forks(self, run: Run) -> Mapping[str, Any]:
        return forks([miner.ledger for miner in algorithm_nodes(run)], heaviest=self.rule == "heaviest")

    def parasite_share(self, run: Run) -> float:
        """Return the parasites' share of the main chain; 0 for an empty one."""
        found = self._forks(run)
        length = found["dagLongestChainLength" if self.rule == "heaviest" else "dagCommonRootHeight"]
        return float(found["dagCommonRootParasites"] / length) if length else 0.0


@dataclass(frozen=True, kw_only=True)
class Parasites(Fault):
    """Miners that collude: they publish their secret chain when it is ``lead`` higher than what they last published.

    Parameters
    ----------
    lead : int
        Blocks.
    """

    lead: int = 1

    def __post_init__(self) -> None:
        if self.lead < 1:
            raise BadValueError("A secret chain is published when it leads.", given=self.lead, allowed="at least 1")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Secret(self.lead, tuple(each for each in self.members if each != index))


@dataclass
class _Secret(Behaviour):
    lead: int
    friends: tuple[int, ...]
    chain: list[NewBlock] = field(default_factory=list)
    published: int = 0

    def side(self, node: FaultyNode) -> FaultyContext:
        return _SecretContext(node.context, node, self)

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return ((to, message),)

    def keep(self, node: FaultyNode, block: NewBlock) -> Sequence[NewBlock]:
        """Show a block to friends; return what is now published."""
        block = msgspec.structs.replace(block, parasite=True)
        self.chain.append(block)
        for friend in self.friends:
            if friend in node.context.peers:
                node.context.send(friend, block)
        best = min(self.chain, key=_place)
        released: list[NewBlock] = []
        if best.height >= self.published + self.lead:
            released = sorted(self.chain, key=lambda each: (each.height, each.name))
            self.published = max(self.published, best.height)
            self.chain = []
        if isinstance(node.inner, Miner):
            node.inner.secret = "" if released else best.name
        return released


def _place(block: NewBlock) -> tuple[int, str]:
    return (-block.height, block.name)


class _SecretContext(FaultyContext):
    """Keeps blocks back; everything else goes out as it is."""

    def __init__(self, outside: Context, node: FaultyNode, secret: _Secret) -> None:
        super().__init__(outside, node)
        self._secret = secret

    def broadcast(self, message: Message) -> None:
        """See Context."""
        out: Sequence[Message] = (message,)
        if isinstance(message, NewBlock):
            out = self._secret.keep(self._node, message)
        for each in out:
            if len(self._node.behaviours) > 1:
                super().broadcast(each)
            else:
                self._outside.broadcast(each)
