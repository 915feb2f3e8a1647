"""How survivors agree on who takes part: propose, wait until all have let go of their step, apply; the epoch rises.

The lowest rank that is neither gone nor new proposes.  Who gets a proposal leaves its step, and answers what its slots
hold; nobody begins another step before it is to apply a mask.  When all of the proposed mask have answered, the
proposer sends the mask with what all slots hold, so that each computes the same plan.  A proposal that loses a member
is replaced by one of a higher epoch.  Everybody in a mask has promised its epoch before anybody applies it, so that a
later proposer, who promised it as well, takes a higher one: no epoch has two masks.

What is *gone* is known, not guessed: who is silent for too long is fenced by the launcher first.  The same state
machine is explored with a fault between any two steps (:class:`MaskAgreement`) and runs among real ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.settings import setting
from wavetank.sim.node import Message, Node, Snapshot

Holdings = tuple[int, ...]


class Propose(Message, frozen=True):
    """Leave your step: the mask of an epoch is to be another one."""

    epoch: int
    mask: int


class Ready(Message, frozen=True):
    """I have left my step, and hold these weights."""

    epoch: int
    held: tuple[int, ...] = ()


class Refused(Message, frozen=True):
    """I have promised a later epoch to somebody else."""

    epoch: int
    promised: int


class Apply(Message, frozen=True):
    """All have left their steps: this is who takes part, and what each slot holds."""

    epoch: int
    mask: int
    incarnations: tuple[int, ...]
    held: tuple[tuple[int, ...], ...] = ()


class Join(Message, frozen=True):
    """I am new, hold my weights, and take part as soon as you like; who was in my place is gone."""

    incarnation: int


class Lost(Message, frozen=True):
    """The launcher has fenced a rank's first processes: they will never do anything again."""

    rank: int
    count: int


class Token(Message, frozen=True):
    """What every member needs of every other one in each step."""

    epoch: int
    step: int


class Probe(Message, frozen=True):
    """Are you there?"""


class Alive(Message, frozen=True):
    """I am."""


def bits(mask: int) -> list[int]:
    """Return the ranks of a mask, in rising order."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


class Agreement:
    """What one rank knows about the mask.

    Processes in a rank's place are numbered, and so is what is said of them: nothing that arrives late counts for a
    later one.

    Parameters
    ----------
    me : int
    epoch : int
        0 for one that has still to join.
    mask : int
        Bit r: rank r takes part.
    incarnation : int
        How many processes were in this rank's place before.
    held : tuple of int
        What this rank's slots hold.
    patient : bool
        Whether a proposer waits for all answers; without that it is wrong, as the explorer shows.
    whole : bool
        Whether the mask may shrink; otherwise a member that is gone is waited for until its replacement is there.
    """

    def __init__(
        self, me: int, epoch: int, mask: int, *, incarnation: int = 0, held: Holdings = (), patient: bool = True,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.me, self.epoch, self.mask, self.held = me, epoch, mask, held
        self.patient, self.whole = patient, whole
        # Of each rank: the process that takes part, the latest that said that it would, how many are gone.
        self.taking_part: dict[int, int] = {me: incarnation}
        self.arrived: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        self.promised = (epoch, -1)
        # Of a proposal of this rank under way.
        self.proposed_mask = 0
        self.answers: dict[int, Holdings] = {}
        self.holdings: dict[int, Holdings] = {}

    @property
    def gone(self) -> int:
        """Return the members whose process is no more, as a mask."""
        return sum(1 << rank for rank in bits(self.mask) if self.lost.get(rank, 0) > self.taking_part.get(rank, 0))

    @property
    def joining(self) -> int:
        """Return the ranks whose new process is ready and does not take part yet, as a mask."""
        return sum(
            1 << rank for rank, number in self.arrived.items()
            if number > self.taking_part.get(rank, 0) and number >= self.lost.get(rank, 0)
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Return whether steps may be begun: nothing was promised that has not been applied."""
        return self.promised[0] == self.epoch and self.epoch > 0

    @property
    def wanted(self) -> int:
        """Return the mask that there should be."""
        return (self.mask & ~self.gone) | self.joining

    @property
    def needed(self) -> bool:
        """Return whether the mask must change, and can."""
        gone, joining = self.gone, self.joining
        return bool(gone | joining) and not (self.whole and gone & ~joining)

    def latest(self, rank: int) -> int:
        """Return the number of the latest process in a rank's place that this rank knows of."""
        return max(self.taking_part.get(rank, 0), self.arrived.get(rank, 0))

    def lose(self, rank: int, count: int) -> list[tuple[int, Message]]:
        """Take notice that a rank's first ``count`` processes are gone, and return what is to be sent.

        Parameters
        ----------
        rank, count : int
        """
        self.lost[rank] = max(count, self.lost.get(rank, 0))
        return self.act()

    def act(self) -> list[tuple[int, Message]]:
        """Propose, if it is this rank's turn and nothing fitting is under way; return what is to be sent."""
        gone, old = self.gone, bits(self.mask & ~self.gone)
        mine = self.promised[1] == self.me
        if self.epoch == 0 or not old or old[0] != self.me or (self.whole and gone & ~self.joining):
            return []
        if (not self.needed and self.settled) or (mine and self.proposed_mask == self.wanted):
            return []
        self.promised = (max(self.promised[0], self.epoch) + 1, self.me)
        self.proposed_mask = self.wanted
        self.answers = {self.me: self.held}
        out: list[tuple[int, Message]] = [
            (rank, Propose(self.promised[0], self.proposed_mask))
            for rank in bits(self.proposed_mask) if rank != self.me
        ]  # fmt: skip
        return out + self._count()

    def receive(self, sender: int, message: Any) -> list[tuple[int, Message]]:
        """Take a message of another rank and return what is to be sent.

        Parameters
        ----------
        sender : int
        message : Message
        """
        if isinstance(message, Join):
            if message.incarnation > self.latest(sender):
                self.arrived[sender] = message.incarnation
                self.lost[sender] = max(message.incarnation, self.lost.get(sender, 0))
                if self.promised[1] == self.me:
                    # A proposal under way may count on the one before.
                    self.proposed_mask = 0
            return self.act()
        if isinstance(message, Propose):
            if (message.epoch, sender) <= self.promised or message.epoch <= self.epoch:
                return [(sender, Refused(message.epoch, self.promised[0]))]
            self.promised, self.proposed_mask = (message.epoch, sender), 0
            return [(sender, Ready(message.epoch, self.held))]
        mine = self.promised == (getattr(message, "epoch", -1), self.me)
        if isinstance(message, Ready) and mine and self.proposed_mask >> sender & 1:
            self.answers[sender] = message.held
            return self._count()
        if isinstance(message, Refused) and mine and message.promised >= message.epoch:
            self.promised, self.proposed_mask = (message.promised, -1), 0
            return self.act()
        if isinstance(message, Apply) and self.promised == (message.epoch, sender):
            return self._apply(message)
        return []

    def _count(self) -> list[tuple[int, Message]]:
        members = bits(self.proposed_mask)
        if not members or (self.patient and any(rank not in self.answers for rank in members)):
            return []
        held = tuple(self.answers.get(rank, ()) for rank in members)
        apply = Apply(self.promised[0], self.proposed_mask, tuple(map(self.latest, members)), held)
        return [*((rank, apply) for rank in members if rank != self.me), *self._apply(apply)]

    def _apply(self, message: Apply) -> list[tuple[int, Message]]:
        self.epoch, self.mask, self.proposed_mask, self.answers = message.epoch, message.mask, 0, {}
        self.promised = (self.epoch, -1)
        members = bits(message.mask)
        self.holdings = dict(zip(members, message.held, strict=True))
        self.taking_part.update(zip(members, message.incarnations, strict=True))
        return self.act()


class MaskNode(Node):
    """A rank that makes steps with all others, and agrees with them on a mask when one is silent."""

    def __init__(self, steps: int, patient: bool, split: bool) -> None:
        self.steps, self.patient, self.split = steps, patient, split
        self.state: Agreement | None = None
        self.step = 0
        self.heard: tuple[tuple[int, int, int], ...] = ()
        self.alive = 0
        self.outbox: tuple[tuple[int, Message], ...] = ()
        self.applied: tuple[tuple[int, int], ...] = ()
        self.misrouted = ""

    @property
    def _agreement(self) -> Agreement:
        if self.state is None:
            raise RuntimeError("a node is started before it is asked")
        return self.state

    def start(self) -> None:
        """Begin as a member, or after a crash as one that has to join."""
        everybody = (1 << self.context.size) - 1
        before = self.context.load("processes", 0)
        self.context.save("processes", before + 1)
        if before:
            alone = 1 << self.context.id
            self.state = Agreement(self.context.id, 0, alone, incarnation=before, patient=self.patient)
            self.context.broadcast(Join(before))
        else:
            self.state = Agreement(self.context.id, 1, everybody, patient=self.patient)
            self.applied = ((1, everybody),)
            self._go()
        self.context.set_timer("late", 1)

    @property
    def served(self) -> bool:
        """Return whether it has made all steps of its epoch."""
        return self._agreement.settled and not self._agreement.needed and self.step >= self.steps

    def receive(self, sender: int, message: Any) -> None:
        """Take a message of the agreement, of a step, or about who is there."""
        if isinstance(message, Probe):
            self.context.send(sender, Alive())
        elif isinstance(message, Alive):
            self.alive |= 1 << sender
        elif isinstance(message, Lost):
            self._after(self._agreement.lose(message.rank, message.count))
        elif isinstance(message, Token):
            if message.epoch >= self._agreement.epoch:
                self.heard = tuple(sorted({*self.heard, (message.epoch, message.step, sender)}))
            self._go_on()
        else:
            # Who has just come has not been silent.
            self.alive |= isinstance(message, Join) << sender
            self._after(self._agreement.receive(sender, message))

    def timer(self, name: str) -> None:
        """Send the next message; ask who is there; what does not answer before the second timer is gone."""
        if name == "next":
            (rank, message), self.outbox = self.outbox[0], self.outbox[1:]
            self.context.send(rank, message)
            if self.outbox:
                self.context.set_timer("next", 1)
            return
        if name == "late":
            self.alive = 1 << self.context.id
            self.context.broadcast(Probe())
            self.context.set_timer("silent", 1)
            return
        agreement = self._agreement
        expected = (agreement.mask & ~agreement.gone) | agreement.proposed_mask | agreement.joining
        for rank in bits(expected & ~self.alive):
            count = agreement.latest(rank) + 1
            self.context.broadcast(Lost(rank, count))
            self._after(agreement.lose(rank, count))
        if agreement.epoch == 0:
            # Who proposes now may have been down when this rank said so.
            self.context.broadcast(Join(agreement.taking_part[self.context.id]))
        if not self.served or agreement.needed:
            self.context.set_timer("late", 1)

    def _after(self, out: list[tuple[int, Message]]) -> None:
        agreement = self._agreement
        if self.split and out:
            # One by one: a rank may die between two of them.
            self.outbox = (*self.outbox, *out)
            self.context.set_timer("next", 1)
        else:
            for rank, message in out:
                self.context.send(rank, message)
        if self.applied[-1:] != ((agreement.epoch, agreement.mask),) and agreement.epoch:
            self.applied = (*self.applied, (agreement.epoch, agreement.mask))
            self.heard = tuple(each for each in self.heard if each[0] >= agreement.epoch)
            self.step = 0
            if agreement.settled:
                self._go()
            self.context.set_timer("late", 1)
        self._go_on()

    def _go(self) -> None:
        agreement = self._agreement
        for rank in bits(agreement.mask):
            if rank != self.context.id:
                self.context.send(rank, Token(agreement.epoch, self.step))

    def _go_on(self) -> None:
        agreement = self._agreement
        while agreement.settled and self.step < self.steps:
            members = [rank for rank in bits(agreement.mask) if rank != self.context.id]
            if any((agreement.epoch, self.step, rank) not in self.heard for rank in members):
                return
            strangers = [rank for epoch, _, rank in self.heard if epoch == agreement.epoch and rank not in members]
            self.misrouted = f"rank {strangers[0]} is not active and sent a token" if strangers else self.misrouted
            self.step += 1
            if self.step < self.steps:
                self._go()


@dataclass(frozen=True, kw_only=True)
class MaskAgreement:
    """Ranks that make some steps together, and agree on a mask whenever one is gone or comes back."""

    steps: int = setting(1, says="Steps that ranks make in each epoch", low=1, high=16)
    patient: bool = setting(True, says="Whether a proposer waits for all answers; without that it is unsafe")
    split: bool = setting(False, says="Whether a rank sends one message at a time and may die between two")

    messages: ClassVar[tuple[type[Message], ...]] = (Propose, Ready, Refused, Apply, Join, Lost, Token, Probe, Alive)

    def node(self, index: int, size: int) -> Node:
        """Return a rank."""
        return MaskNode(self.steps, self.patient, self.split)

    def max_faults(self, size: int) -> int:
        """Return all but one."""
        return size - 1

    def violation(self, snapshot: Snapshot) -> str:
        """Return which two ranks applied different masks in one epoch, or who took a token of an inactive rank."""
        first: dict[int, tuple[int, int]] = {}
        for index, node in enumerate(snapshot.nodes):
            for epoch, mask in getattr(node, "applied", ()):
                who, other = first.setdefault(epoch, (index, mask))
                if other != mask:
                    return f"in epoch {epoch} rank {who} applied {bits(other)} and rank {index} {bits(mask)}"
            if getattr(node, "misrouted", ""):
                return f"rank {index}: {node.misrouted}"  # type: ignore[attr-defined]
        return ""

    def served(self, snapshot: Snapshot) -> bool:
        """Return whether some mask is applied by all of its members, which have made all their steps."""
        nodes = {index: node for index, node in enumerate(snapshot.nodes) if isinstance(node, MaskNode)}
        for node in nodes.values():
            state = node.state
            if state is None or not node.served:
                continue
            members = [nodes[rank] for rank in bits(state.mask)]
            if all(
                each.state is not None and each.served and each.state.epoch == state.epoch for each in members
            ):  # fmt: skip
                return True
        return False
