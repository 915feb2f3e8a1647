"""PBFT as QUANTAS runs it: one request at a time through pre-prepare, prepare and commit, with changes of view.

The leader proposes; nodes that see more than 2f matching prepares, then more than 2f matching commits, confirm.  Every
tenth request they exchange checkpoints; a node that confirms nothing for ten rounds asks for the next view.
:mod:`wavetank.protocols.consensus.pbft` is the full protocol; this is the variant whose messages QUANTAS counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import numpy as np

from wavetank.protocols.quantas.series import BoxNode, QuantasAlgorithm, algorithm_nodes, running_count, running_total
from wavetank.settings import setting
from wavetank.sim.faults import Behaviour, Fault, FaultyContext, FaultyNode, Sends
from wavetank.sim.node import Context, Message, Node, Snapshot, disagreement
from wavetank.sim.simulation import Run


class Payload(Message, frozen=True):
    """What a request is; ``flipped`` is the trace of an equivocation."""

    submitter: int
    number: int
    submitted: float
    flipped: bool


class Submit(Message, frozen=True):
    """A request for all to remember."""

    payload: Payload


class Propose(Message, frozen=True):
    """The leader's pre-prepare."""

    seq: int
    view: int
    payload: Payload


class Prepare(Message, frozen=True):
    """A prepare."""

    seq: int
    view: int
    payload: Payload


class Commit(Message, frozen=True):
    """A commit."""

    seq: int
    view: int
    payload: Payload


class Checkpoint(Message, frozen=True):
    """The digest of everything confirmed."""

    seq: int
    view: int
    digest: str


class ViewChange(Message, frozen=True):
    """A vote for the view after ``view``, with what was prepared in it."""

    seq: int
    view: int
    proofs: tuple[Propose, ...]


class NewView(Message, frozen=True):
    """The new leader's call, with what has to be proposed again."""

    seq: int
    view: int
    proofs: tuple[Propose, ...]


# All nodes make the same messages: one object for equal ones saves making, comparing and hashing them again.
_prepare = lru_cache(maxsize=4096)(Prepare)
_commit = lru_cache(maxsize=4096)(Commit)
_checkpoint = lru_cache(maxsize=256)(Checkpoint)


@lru_cache(maxsize=256)
def _chained(digest: str, payloads: tuple[Payload, ...]) -> str:
    found = hashlib.blake2b(digest.encode(), digest_size=16)
    for payload in payloads:
        found.update(repr(payload).encode())
    return found.hexdigest()


@lru_cache(maxsize=4096)
def other_version(message: Message, flip: bool) -> Message:
    """Return the message as an equivocator sends it to one half of the nodes."""
    if isinstance(message, Checkpoint):
        plain = message.digest.removesuffix("#flip")
        return msgspec.structs.replace(message, digest=plain + "#flip" * flip)
    if isinstance(message, Propose | Prepare | Commit):
        return msgspec.structs.replace(message, payload=msgspec.structs.replace(message.payload, flipped=flip))
    return message


@dataclass
class _Slot:
    """What was received for one sequence number in one view."""

    proposals: list[tuple[int, Payload]] = field(default_factory=list)
    prepares: dict[Payload, set[int]] = field(default_factory=dict)
    commits: dict[Payload, set[int]] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[int, ViewChange]] = field(default_factory=list)
    changers: set[int] = field(default_factory=set)
    calls: list[tuple[int, NewView]] = field(default_factory=list)


_PROPOSE, _PREPARE, _COMMIT, _CHANGE, _CALL = range(5)


class QuantasPBFTNode(BoxNode):
    """A replica.

    Attributes
    ----------
    view, seq : int
        Current view; number of requests confirmed, which is the next sequence number.
    confirmed : list of Payload
    confirmed_at : list of float
        Rounds.
    """

    def __init__(self, algorithm: QuantasPBFT, size: int) -> None:
        self.interval = algorithm.checkpoint_interval
        self.patience = algorithm.patience
        self.window = algorithm.window
        self.votes = algorithm.votes_of(size)
        self.phase = _PROPOSE
        self.view = 0
        self.seq = 0
        self.deadline: float = algorithm.patience
        self.armed = False
        self.stable = 0
        self.anchor = 0
        self.submitted = 0
        self.unhandled: list[Payload] = []
        self.confirmed: list[Payload] = []
        self.confirmed_at: list[float] = []
        self.digest = ""
        self.slots: dict[int, dict[int, _Slot]] = {}
        self.steps = (self._propose, self._prepare, self._commit, self._change_view, self._enter_view)

    def start(self) -> None:
        """The leader begins in round 1; all others wait, but not for ever."""
        if self.context.id == 0:
            self.context.set_timer("begin", 1)
        self._arm()

    def timer(self, name: str) -> None:
        """Begin, or give up on the view."""
        if name == "patience":
            self.armed = False
        self._run()
        self._arm()

    def receive_all(self, box: Sequence[tuple[int, Any]]) -> None:
        """Take note of all messages of a round and go as far as they let."""
        # Most messages equal others of the same round, and are the same object: look at each object once.
        votes: dict[int, Callable[[int], None]] = {}
        last: Any = None
        vote: Callable[[int], None] = set[int]().add
        for sender, message in box:
            if message is not last:
                known = votes.get(id(message))
                if known is None:
                    known = self._ballot(message)
                    if known is None:
                        self._note(sender, message)
                        continue
                    votes[id(message)] = known
                vote, last = known, message
            vote(sender)
        self._run()

    def _ballot(self, message: Any) -> Callable[[int], None] | None:
        """Return what counts the senders of a prepare or commit; None for other messages."""
        if isinstance(message, Prepare):
            return self._slot(message.seq, message.view).prepares.setdefault(message.payload, set()).add
        if isinstance(message, Commit):
            return self._slot(message.seq, message.view).commits.setdefault(message.payload, set()).add
        return None

    def _slot(self, seq: int, view: int) -> _Slot:
        views = self.slots.get(seq)
        if views is None:
            views = self.slots[seq] = {}
        slot = views.get(view)
        if slot is None:
            slot = views[view] = _Slot()
        return slot

    def _note(self, sender: int, message: Any) -> None:
        if isinstance(message, Submit):
            self.unhandled.append(message.payload)
            return
        slot = self._slot(message.seq, message.view)
        if isinstance(message, Propose):
            slot.proposals.append((sender, message.payload))
        elif isinstance(message, Checkpoint):
            slot.checkpoints[message.digest] = slot.checkpoints.get(message.digest, 0) + 1
        elif isinstance(message, ViewChange):
            slot.changes.append((sender, message))
            slot.changers.add(sender)
        elif isinstance(message, NewView):
            slot.calls.append((sender, message))

    def _say(self, message: Any) -> None:
        """Send to all, this node included."""
        self.context.broadcast(message)
        vote = self._ballot(message)
        if vote is None:
            self._note(self.context.id, message)
        else:
            vote(self.context.id)

    def _leader(self) -> int:
        return self.view % self.context.size

    # The phases: each returns whether the next one may go on at once.

    def _run(self) -> None:
        while True:
            self._look_for_stable_checkpoint()
            late = self.context.now - self.deadline
            if late >= 0 and (late > 0 or self.phase >= _CHANGE):
                self._ask_for_view()
                return
            if not self.steps[self.phase]():
                return

    def _propose(self) -> bool:
        seq, me = self.seq, self.context.id
        if me == self._leader():
            if not self.unhandled:
                payload = Payload(me, self.submitted, self.context.now, False)
                self.submitted += 1
                self._say(Submit(payload))
            self._say(Propose(seq, self.view, self.unhandled[0]))
            self.phase = _PREPARE
            return False
        views = self.slots.get(seq)
        slot = None if views is None else views.get(self.view)
        if slot is None:
            return False
        leader = self._leader()
        for sender, payload in slot.proposals:
            if sender == leader:
                self._say(_prepare(seq, self.view, payload))
                self.phase = _PREPARE
                return True
        return False

    def _prepare(self) -> bool:
        slot = self._slot(self.seq, self.view)
        for _, payload in slot.proposals:
            if self._is_prepared(slot, self.view, payload):
                self._say(_commit(self.seq, self.view, payload))
                self.phase = _COMMIT
                return True
        return False

    def _is_prepared(self, slot: _Slot, view: int, payload: Payload) -> bool:
        leader = view % self.context.size
        return len(slot.prepares.get(payload, ())) >= self.votes and any(
            sender == leader and each == payload for sender, each in slot.proposals
        )

    def _commit(self) -> bool:
        slot, leader = self._slot(self.seq, self.view), self._leader()
        for sender, payload in slot.proposals:
            if sender != leader or len(slot.commits.get(payload, ())) < self.votes:
                continue
            now = self.context.now
            self.confirmed.append(payload)
            self.confirmed_at.append(now)
            self.context.decide((payload.submitter, payload.number, payload.flipped), self.seq)
            self.seq += 1
            self.deadline = now + self.patience
            if self.seq % self.interval == 0:
                self.digest = _chained(self.digest, tuple(self.confirmed[-self.interval :]))
                self._say(_checkpoint(self.seq, self.view, self.digest))
            if payload in self.unhandled:
                self.unhandled.remove(payload)
            self.phase = _PROPOSE
            return True
        return False

    def _look_for_stable_checkpoint(self) -> None:
        seq = self.seq
        if seq % self.interval or seq not in self.slots:
            return
        slot = self.slots[seq].get(self.view)
        if slot is not None and max(slot.checkpoints.values(), default=0) >= self.votes and self.stable != seq:
            self.stable = seq
            for old in [each for each in self.slots if each < seq]:
                del self.slots[old]

    def _ask_for_view(self) -> None:
        self.anchor = self.stable
        proofs = []
        for seq in range(self.stable + 1, self.seq):
            slot = self._slot(seq, self.view)
            for _, payload in slot.proposals:
                if self._is_prepared(slot, self.view, payload):
                    proofs.append(Propose(seq, self.view, payload))
                    break
        self._say(ViewChange(self.anchor, self.view, tuple(proofs)))
        self.view += 1
        self.deadline = self.context.now + self.patience
        self.phase = _CHANGE
        # The votes of the others may be here already.
        self.context.set_timer("next", 1)

    def _change_view(self) -> bool:
        slot = self._slot(self.anchor, self.view - 1)
        if len(slot.changers) < self.votes:
            return False
        if self.context.id == self._leader():
            best: dict[int, Propose] = {}
            for _, change in slot.changes:
                for proof in change.proofs:
                    if self.stable < proof.seq <= self.stable + self.window and (
                        proof.seq not in best or proof.view > best[proof.seq].view
                    ):
                        best[proof.seq] = proof
            self._say(NewView(self.anchor, self.view, tuple(best[seq] for seq in sorted(best))))
        self.phase = _CALL
        self.context.set_timer("next", 1)
        return False

    def _enter_view(self) -> bool:
        leader = self._leader()
        calls = self._slot(self.anchor, self.view).calls
        call = next((call for sender, call in calls if sender == leader), None)
        if call is None or len(self._slot(self.anchor, self.view - 1).changers) < self.votes:
            return False
        for proof in call.proofs:
            self._say(Propose(proof.seq, self.view, proof.payload))
        self.deadline = self.context.now + self.patience
        self.phase = _PROPOSE
        return True

    def _arm(self) -> None:
        """Keep one timer; the deadline only moves on."""
        if not self.armed:
            self.armed = True
            # Phases that wait for a view end with the deadline, the others one round later.
            self.context.set_timer("patience", max(self.deadline + (self.phase < _CHANGE) - self.context.now, 1))


@dataclass(frozen=True, kw_only=True)
class QuantasPBFT(QuantasAlgorithm):
    """The PBFT variant of QUANTAS.

    Parameters
    ----------
    votes : int
        Matching prepares, commits and view changes that suffice; 0 for 2f + 1 with f = (n - 1) // 3.
    """

    votes: int = setting(0, says="Matching votes that suffice; 0: 2f + 1", low=0)
    patience: int = setting(10, unit="rounds", says="Time without progress before the view changes", low=1)
    checkpoint_interval: int = setting(10, unit="requests", says="Requests from checkpoint to checkpoint", low=1)
    window: int = setting(128, unit="requests", says="Requests beyond the stable checkpoint in a change of view", low=1)
    where: ClassVar[str] = "pbft"
    messages: ClassVar[tuple[type[Message], ...]] = (
        Submit, Propose, Prepare, Commit, Checkpoint, ViewChange, NewView,
    )  # fmt: skip

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return QuantasPBFTNode(self, size)

    def votes_of(self, size: int) -> int:
        """Return how many matching votes suffice among ``size`` replicas."""
        return self.votes or 2 * ((size - 1) // 3) + 1

    def max_faults(self, size: int) -> int:
        """Return how many equivocators are tolerated: fewer than any two quorums share, and at most (n - 1) // 3.

        2f + 1 of 3f + 1 replicas share f + 1 with every other quorum.  Among 3f + 2 or 3f + 3 they share f or f - 1:
        QUANTAS's quorum then tolerates fewer.
        """
        return max(min((size - 1) // 3, 2 * self.votes_of(size) - size - 1), 0)

    def conflicting(self, message: Message) -> Message:
        """Return what an equivocator says instead."""
        return other_version(message, True)

    def violation(self, snapshot: Snapshot) -> str:
        """Return two correct replicas that confirmed different requests at one sequence number."""
        return disagreement(snapshot)

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        nodes = algorithm_nodes(run)
        at = [when for node in nodes for when in node.confirmed_at]
        payloads = [payload for node in nodes for payload in node.confirmed]
        waited = [when - payload.submitted for when, payload in zip(at, payloads, strict=True)]
        count = running_count(at, rounds)
        some = np.maximum(count, 1)
        return {
            "latency": (running_total(at, waited, rounds) / some).tolist(),
            "faultyConfirmed": (running_total(at, [float(each.flipped) for each in payloads], rounds) / some).tolist(),
            "throughput": (count / run.size).tolist(),
        }


@dataclass(frozen=True, kw_only=True)
class SplitVotes(Fault):
    """Sends proposals, votes and checkpoints as they are to every second node, and altered to the others.

    The quorums of QUANTAS's equivocation fault: the first, third, ... member hears the truth.

    Parameters
    ----------
    other : tuple of int
        Nodes that receive the altered messages.
    """

    other: tuple[int, ...] = ()

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Splitting(self.other)


@dataclass
class _Splitting(Behaviour):
    other: tuple[int, ...]

    def side(self, node: FaultyNode) -> FaultyContext:
        return _SplitContext(node.context, node, frozenset(self.other))

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return ((to, other_version(message, to in self.other)),)


class _SplitContext(FaultyContext):
    """Sends different messages to the two halves, each of which is made once."""

    def __init__(self, outside: Context, node: FaultyNode, other: frozenset[int]) -> None:
        super().__init__(outside, node)
        self._halves = [(to, to in other) for to in outside.peers]

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if len(self._node.behaviours) > 1:
            super().broadcast(message)
            return
        send, plain, altered = self._outside.send, other_version(message, False), other_version(message, True)
        for to, other in self._halves:
            send(to, altered if other else plain)


def splitters(members: Iterable[int], nodes: Sequence[int]) -> SplitVotes:
    """Return the fault of QUANTAS's ``byzantine_count``: every second of the sorted nodes hears the other thing."""
    return SplitVotes(members=tuple(members), other=tuple(sorted(nodes)[1::2]))
