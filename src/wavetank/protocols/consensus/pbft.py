"""Practical Byzantine fault tolerance: three phases order the requests, and a new view replaces a faulty primary.

The primary gives each batch of requests a number (pre-prepare); the replicas agree on the number within the view
(prepare) and across views (commit).  2f+1 of 3f+1 replicas are a quorum, and two quorums share a correct one.  Replicas
that wait too long for a request move to the next view; what may have been committed is carried over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from wavetank.protocols.consensus.store import Registers, check_command
from wavetank.settings import check_parameters, setting
from wavetank.sim.node import Message, Node, Snapshot, disagreement

VIEWS_AHEAD = 8
MOST_ASKED = 16_384
# Batches accepted under one number in different views, the latest, that a view change names.
_ACCEPTED_A_PLACE = 8

_encode = msgspec.msgpack.Encoder().encode


class Ask(Message, frozen=True):
    """A client's request."""

    number: int
    origin: int
    command: Any


class Outcome(Message, frozen=True):
    """What a request gave, for the replica it entered at."""

    number: int
    result: Any


class PrePrepare(Message, frozen=True):
    """The primary gives a batch its number."""

    view: int
    place: int
    batch: tuple[Ask, ...]


class Prepare(Message, frozen=True):
    """A replica accepted the batch of this digest under this number."""

    view: int
    place: int
    digest: bytes


class Commit(Message, frozen=True):
    """A replica knows that a quorum accepted it."""

    view: int
    place: int
    digest: bytes


class Checkpoint(Message, frozen=True):
    """The digest of the state after a number."""

    place: int
    digest: bytes


class Certified(Message, frozen=True):
    """A batch that was prepared, or accepted, in a view."""

    place: int
    digest: bytes
    view: int


class ViewChange(Message, frozen=True):
    """A replica leaves its view, and says what it knows: checkpoints, prepared batches, accepted batches."""

    view: int
    stable: int
    checkpoints: tuple[Checkpoint, ...]
    prepared: tuple[Certified, ...]
    accepted: tuple[Certified, ...]


class ViewChangeAck(Message, frozen=True):
    """A replica saw the view change of this digest from ``sender``."""

    view: int
    sender: int
    digest: bytes


class NewView(Message, frozen=True):
    """The new primary's view: on which view changes it rests, and which batches it takes over."""

    view: int
    changes: tuple[tuple[int, bytes], ...]
    stable: Checkpoint
    chosen: tuple[tuple[int, bytes], ...]


class Remind(Message, frozen=True):
    """A replica still waits to enter a view, and may have missed what the others said."""

    view: int


class FetchBatch(Message, frozen=True):
    """A replica lacks the batch of a digest."""

    digest: bytes


class Batch(Message, frozen=True):
    """A batch that was asked for."""

    batch: tuple[Ask, ...]


class FetchState(Message, frozen=True):
    """A replica lacks the state after a number."""

    place: int


class State(Message, frozen=True):
    """The state after a number: registers, and the results of the requests executed."""

    place: int
    values: tuple[tuple[str, Any], ...]
    results: tuple[tuple[int, Any], ...]


_NULL: tuple[Ask, ...] = ()


def digest_of(content: Any) -> bytes:
    """Return the digest of a message, or of a tuple of them."""
    return hashlib.blake2b(_encode(content), digest_size=16).digest()


_NULL_DIGEST = digest_of(_NULL)
_BEGINNING = Checkpoint(0, digest_of(((), ())))


class PBFTNode(Node):
    """A replica."""

    def __init__(self, parameters: PBFT, size: int) -> None:
        self.parameters = parameters
        self.faults = (size - 1) // 3
        self.quorum = parameters.quorum or size - self.faults
        self.view = 0
        # Between leaving a view and entering the next, only view changes, checkpoints and fetches count.
        self.active = True
        self.stable = _BEGINNING
        self.executed = 0
        self.next_place = 1
        self.registers = Registers()
        self.batches: dict[bytes, tuple[Ask, ...]] = {_NULL_DIGEST: _NULL}
        # Digests of batches that others were asked for.
        self.wanted: set[bytes] = set()
        # (view, place) to the digest accepted from the primary.
        self.accepted: dict[tuple[int, int], bytes] = {}
        # (view, place) to digests to who voted for them.
        self.prepares: dict[tuple[int, int], dict[bytes, set[int]]] = {}
        self.commits: dict[tuple[int, int], dict[bytes, set[int]]] = {}
        # place to the last batch prepared there and its view; place to digest to the last view it was accepted in.
        self.last_prepared: dict[int, tuple[bytes, int]] = {}
        self.last_accepted: dict[int, dict[bytes, int]] = {}
        self.committed: dict[int, bytes] = {}
        # Replica to the digests of the states that it says it had, by place.
        self.claims: dict[int, dict[int, bytes]] = {}
        self.own_checkpoints: dict[int, tuple[bytes, State]] = {0: (_BEGINNING.digest, State(0, (), ()))}
        # What clients want: own requests, and those of others that are not executed.
        self.mine: dict[int, Ask] = {}
        self.waiting: dict[int, Ask] = {}
        # Numbers that wait because of a replica: of its own clients, and (under ~id) of those it passed on.
        self.asked: dict[int, set[int]] = {}
        self.outcomes: dict[int, dict[int, Any]] = {}
        self.changes: dict[int, dict[int, ViewChange]] = {}
        # View, and whose view change is seen, to who saw it with which digest.
        self.acks: dict[tuple[int, int], dict[int, bytes]] = {}
        # Replica to a view so far ahead that what it says there is not kept.
        self.ahead: dict[int, int] = {}
        self.new_views: dict[int, NewView] = {}
        self.patience = parameters.patience_rounds
        self.timing = False

    @property
    def primary(self) -> int:
        """The node that leads the view."""
        return self.view % self.context.size

    # Requests.

    def request(self, number: int, command: Any) -> None:
        """Take a client's request."""
        check_command(command)
        ask = Ask(number, self.context.id, command)
        self.mine[number] = ask
        if len(self.mine) == 1:
            self.context.set_timer("retry", self.parameters.retry_rounds)
        if self.primary != self.context.id and self.active:
            self.context.send(self.primary, ask)
        self.waiting.setdefault(number, ask)
        self._hurry()
        self._lead()

    def _on_ask(self, sender: int, message: Ask) -> None:
        if message.number in self.registers.results:
            if sender == message.origin:
                self.context.send(sender, Outcome(message.number, self.registers.results[message.number]))
                # Fewer than f+1 may have executed it: the others need this replica's votes, not only its word.
                self._repeat(sender)
            return
        if self.waiting.get(message.number) == message and sender == message.origin:
            self._repeat(sender)
        elif message.number not in self.waiting:
            asked = self.asked.setdefault(sender if sender == message.origin else ~sender, set())
            if len(asked) >= MOST_ASKED:
                # A correct replica asks again.
                return
            asked.add(message.number)
            self.waiting[message.number] = message
            if sender == message.origin and self.primary != self.context.id:
                # The client's replica asked everyone, so it does not trust the primary to have got it.
                self.context.send(self.primary, message)
        self._hurry()
        self._lead()

    def _on_outcome(self, sender: int, message: Outcome) -> None:
        if message.number not in self.mine:
            return
        said = self.outcomes.setdefault(message.number, {})
        said[sender] = message.result
        if sum(result == message.result for result in said.values()) > self.faults:
            # Others have executed it; this replica will when it has caught up.
            del self.mine[message.number], self.outcomes[message.number]
            self.context.reply(message.number, message.result)

    def _repeat(self, to: int) -> None:
        """Send again what was said in this view about numbers that are still open."""
        for (view, place), digest in self.accepted.items():
            if view != self.view:
                continue
            if self.primary == self.context.id:
                if digest in self.batches:
                    self.context.send(to, PrePrepare(view, place, self.batches[digest]))
            else:
                self.context.send(to, Prepare(view, place, digest))
            # What was committed in an earlier view can be no other in this one.
            if self.last_prepared.get(place) == (digest, view) or self.committed.get(place) == digest:
                self.context.send(to, Commit(view, place, digest))

    def _done(self, number: int) -> None:
        """Wait no longer for a request."""
        if self.waiting.pop(number, None) is not None:
            for asked in self.asked.values():
                asked.discard(number)

    def _lead(self) -> None:
        """As the primary, give numbers to the requests that have none."""
        if not self.active or self.primary != self.context.id:
            return
        numbered = {ask.number for place, batch in self._open() if place > self.executed for ask in batch}
        todo = [ask for ask in self.waiting.values() if ask.number not in numbered]
        while todo and self.next_place <= self.stable.place + self.parameters.window:
            if self.next_place - self.executed > self.parameters.in_flight:
                return
            batch = tuple(todo[: self.parameters.batch])
            del todo[: self.parameters.batch]
            place = self.next_place
            self.next_place += 1
            self.context.broadcast(PrePrepare(self.view, place, batch))
            self._accept(place, batch)

    def _open(self) -> Iterable[tuple[int, tuple[Ask, ...]]]:
        for (view, place), digest in self.accepted.items():
            if view == self.view and digest in self.batches:
                yield place, self.batches[digest]

    # Three phases.

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        _HANDLERS[type(message)](self, sender, message)

    def _in_window(self, place: int) -> bool:
        return self.stable.place < place <= self.stable.place + self.parameters.window

    def _on_pre_prepare(self, sender: int, message: PrePrepare) -> None:
        if message.view != self.view or not self.active or sender != self.primary or not self._in_window(message.place):
            return
        if len(message.batch) > self.parameters.batch:
            return
        if (self.view, message.place) not in self.accepted:
            for ask in message.batch:
                if ask.number not in self.registers.results:
                    self.waiting.setdefault(ask.number, ask)
            self._accept(message.place, message.batch)
            self._hurry()

    def _accept(self, place: int, batch: tuple[Ask, ...]) -> None:
        digest = digest_of(batch)
        self.batches[digest] = batch
        self._accept_digest(place, digest)

    def _accept_digest(self, place: int, digest: bytes) -> None:
        self.accepted[self.view, place] = digest
        views = self.last_accepted.setdefault(place, {})
        views[digest] = self.view
        if len(views) > _ACCEPTED_A_PLACE:
            del views[min(views, key=views.__getitem__)]
        if self.primary != self.context.id:
            self.context.broadcast(Prepare(self.view, place, digest))
            _vote(self.prepares, self.view, place, digest, self.context.id)
        self._check_prepared(place, digest)

    def _on_prepare(self, sender: int, message: Prepare) -> None:
        view, place = message.view, message.place
        if not self._is_near(view) or not self._in_window(place) or sender == view % self.context.size:
            return
        # The primary's pre-prepare is its vote.
        if _vote(self.prepares, view, place, message.digest, sender) == self.quorum - 1:
            self._check_prepared(place, message.digest)

    def _is_near(self, view: int) -> bool:
        return self.view <= view <= self.view + VIEWS_AHEAD

    def _check_prepared(self, place: int, digest: bytes) -> None:
        if not self.active or self.accepted.get((self.view, place)) != digest:
            return
        votes = self.prepares.get((self.view, place), {}).get(digest, ())
        if len(votes) < self.quorum - 1 or self.last_prepared.get(place) == (digest, self.view):
            return
        self.last_prepared[place] = (digest, self.view)
        self.context.broadcast(Commit(self.view, place, digest))
        _vote(self.commits, self.view, place, digest, self.context.id)
        self._check_committed(place, digest)

    def _on_commit(self, sender: int, message: Commit) -> None:
        if not self._is_near(message.view) or not self._in_window(message.place):
            return
        if _vote(self.commits, message.view, message.place, message.digest, sender) == self.quorum:
            self._check_committed(message.place, message.digest)

    def _check_committed(self, place: int, digest: bytes) -> None:
        if place in self.committed or self.last_prepared.get(place) != (digest, self.view):
            return
        if len(self.commits.get((self.view, place), {}).get(digest, ())) >= self.quorum:
            self.committed[place] = digest
            self._execute()

    def _execute(self) -> None:
        before = self.executed
        while (digest := self.committed.get(self.executed + 1)) is not None:
            batch = self.batches.get(digest)
            if batch is None:
                self._fetch(digest)
                break
            self.executed += 1
            self.context.decide(tuple((ask.number, ask.command) for ask in batch), self.executed)
            for ask in batch:
                result = self.registers.apply(ask.number, ask.command)
                self._done(ask.number)
                if self.mine.pop(ask.number, None) is not None:
                    self.outcomes.pop(ask.number, None)
                    self.context.reply(ask.number, result)
            if self.executed % self.parameters.checkpoint == 0:
                self._take_checkpoint()
        if self.executed > before:
            self.patience = self.parameters.patience_rounds
            self._relax()
            if not self.mine:
                self.context.cancel_timer("retry")
            self._lead()

    # Checkpoints and the state.

    def _take_checkpoint(self) -> None:
        state = State(
            self.executed,
            tuple(sorted(self.registers.values.items())),
            tuple(sorted(self.registers.results.items())),
        )
        digest = digest_of((state.values, state.results))
        self.own_checkpoints[self.executed] = (digest, state)
        message = Checkpoint(self.executed, digest)
        self.context.broadcast(message)
        self._on_checkpoint(self.context.id, message)

    def _on_checkpoint(self, sender: int, message: Checkpoint) -> None:
        if message.place <= self.stable.place:
            return
        self._claim(sender, message)
        if len(self._claimants(message)) >= self.quorum:
            self._stabilise(message)

    def _claim(self, sender: int, checkpoint: Checkpoint) -> None:
        said = self.claims.setdefault(sender, {})
        said.setdefault(checkpoint.place, checkpoint.digest)
        if len(said) > self._most_checkpoints:
            del said[min(said)]

    @property
    def _most_checkpoints(self) -> int:
        # A correct replica has that of its last stable place and those of its window.
        return self.parameters.window // self.parameters.checkpoint + 2

    def _claimants(self, checkpoint: Checkpoint) -> list[int]:
        return [who for who, said in self.claims.items() if said.get(checkpoint.place) == checkpoint.digest]

    def _stabilise(self, checkpoint: Checkpoint) -> None:
        own = self.own_checkpoints.get(checkpoint.place)
        if own is None or own[0] != checkpoint.digest:
            if self.executed < checkpoint.place:
                # It is too late to take part in what led here: others throw it away.
                self.context.broadcast(FetchState(checkpoint.place))
            return
        self.stable = checkpoint
        self._forget(checkpoint.place)
        self._take_over()
        self._lead()

    def _forget(self, place: int) -> None:
        self.prepares = {key: votes for key, votes in self.prepares.items() if key[1] > place}
        self.commits = {key: votes for key, votes in self.commits.items() if key[1] > place}
        self.accepted = {key: digest for key, digest in self.accepted.items() if key[1] > place}
        self.last_prepared = {each: last for each, last in self.last_prepared.items() if each > place}
        self.last_accepted = {each: last for each, last in self.last_accepted.items() if each > place}
        self.committed = {each: digest for each, digest in self.committed.items() if each > place}
        self.own_checkpoints = {each: own for each, own in self.own_checkpoints.items() if each >= place}
        self.claims = {
            who: {each: digest for each, digest in said.items() if each > place} for who, said in self.claims.items()
        }
        kept = {digest for _, digest in self._named_digests()} | {_NULL_DIGEST}
        self.batches = {digest: batch for digest, batch in self.batches.items() if digest in kept}
        self.wanted &= kept
        self.next_place = max(self.next_place, place + 1)

    def _named_digests(self) -> Iterable[tuple[int, bytes]]:
        for place, digests in self.last_accepted.items():
            for digest in digests:
                yield place, digest
        yield from self.committed.items()
        for (_, place), digest in self.accepted.items():
            yield place, digest

    def _on_fetch_state(self, sender: int, message: FetchState) -> None:
        own = self.own_checkpoints.get(message.place)
        if own is not None:
            self.context.send(sender, own[1])

    def _on_state(self, sender: int, message: State) -> None:
        if message.place <= self.executed:
            return
        checkpoint = Checkpoint(message.place, digest_of((message.values, message.results)))
        # One correct replica vouches for it: f+1 say so.
        claimants = self._claimants(checkpoint)
        if len(claimants) <= self.faults:
            return
        self.registers.values = dict(message.values)
        self.registers.results = dict(message.results)
        self.executed = message.place
        for number in [number for number in self.waiting if number in self.registers.results]:
            self._done(number)
        for number in [number for number in self.mine if number in self.registers.results]:
            del self.mine[number]
            self.outcomes.pop(number, None)
            self.context.reply(number, self.registers.results[number])
        self.own_checkpoints = {
            self.stable.place: self.own_checkpoints[self.stable.place],
            message.place: (checkpoint.digest, message),
        }
        if len(claimants) >= self.quorum:
            self._stabilise(checkpoint)
        self._relax()
        self._execute()

    def _on_fetch_batch(self, sender: int, message: FetchBatch) -> None:
        batch = self.batches.get(message.digest)
        if batch is not None:
            self.context.send(sender, Batch(batch))

    def _on_batch(self, sender: int, message: Batch) -> None:
        digest = digest_of(message.batch)
        if digest in self.wanted:
            self.wanted.discard(digest)
            self.batches[digest] = message.batch
            self._execute()
            self._check_new_view()

    def _fetch(self, digest: bytes) -> None:
        self.wanted.add(digest)
        self.context.broadcast(FetchBatch(digest))

    # Views.

    def _hurry(self) -> None:
        """Wait for the oldest request no longer than patience lasts."""
        if self.active and self.waiting and not self.timing and self.parameters.view_changes:
            self.timing = True
            self.context.set_timer("patience", self.patience)

    def _stop_waiting(self) -> None:
        if self.timing:
            self.timing = False
            self.context.cancel_timer("patience")

    def _relax(self) -> None:
        self._stop_waiting()
        self._hurry()

    def timer(self, name: str) -> None:
        """Ask everyone, or leave the view."""
        if name == "retry":
            for ask in self.mine.values():
                self.context.broadcast(ask)
            if self.mine:
                self.context.set_timer("retry", self.parameters.retry_rounds)
            return
        if name == "again":
            if not self.active:
                self.context.broadcast(self.changes[self.view][self.context.id])
                self.context.broadcast(Remind(self.view))
                self.context.set_timer("again", self.parameters.retry_rounds)
            return
        self.timing = False
        self._leave(self.view + 1)

    def _leave(self, view: int) -> None:
        self.view = view
        self.active = False
        self.context.record("view changes")
        self._stop_waiting()
        message = ViewChange(
            view,
            self.stable.place,
            tuple(Checkpoint(place, own[0]) for place, own in sorted(self.own_checkpoints.items())),
            tuple(Certified(place, *self.last_prepared[place]) for place in sorted(self.last_prepared)),
            tuple(
                Certified(place, digest, accepted)
                for place in sorted(self.last_accepted)
                for digest, accepted in sorted(self.last_accepted[place].items())
            ),
        )
        self.prepares = {key: votes for key, votes in self.prepares.items() if key[0] >= view}
        self.commits = {key: votes for key, votes in self.commits.items() if key[0] >= view}
        self.accepted = {key: digest for key, digest in self.accepted.items() if key[0] >= view}
        self.changes = {each: changes for each, changes in self.changes.items() if each >= view}
        self.acks = {key: senders for key, senders in self.acks.items() if key[0] >= view}
        self.ahead = {who: each for who, each in self.ahead.items() if each > view}
        self.new_views = {each: new for each, new in self.new_views.items() if each >= view}
        self.context.broadcast(message)
        self.context.set_timer("again", self.parameters.retry_rounds)
        self._on_view_change(self.context.id, message)

    def _on_view_change(self, sender: int, message: ViewChange) -> None:
        view = message.view
        if view < self.view or not self._makes_sense(message):
            return
        if not self._is_near(view):
            self.ahead[sender] = max(view, self.ahead.get(sender, view))
        elif self.changes.setdefault(view, {}).setdefault(sender, message) != message:
            # One message a sender and view: a second, different one is a lie.
            return
        else:
            self._acknowledge(sender, message)
        ahead = [each for each in self.changes if each > self.view]
        leavers = {who for each in ahead for who in self.changes[each]} | self.ahead.keys()
        if len(leavers) > self.faults and self.parameters.view_changes:
            # A correct replica is among them: follow.
            self._leave(min([*ahead, *self.ahead.values()]))
            return
        gone = {who for each, known in self.changes.items() if each >= self.view for who in known} | self.ahead.keys()
        if not self.active and not self.timing and len(gone) >= self.quorum:
            # Only now can the new primary act.  Each view is given twice the time of the one before, or a slow
            # network would never see one through.
            self.patience *= 2
            self.timing = True
            self.context.set_timer("patience", self.patience)
        self._check_new_view()

    def _makes_sense(self, change: ViewChange) -> bool:
        """Return whether a correct replica may say this; whatever is checked against it later is short then."""
        first, last = change.stable + 1, change.stable + self.parameters.window
        named = (*change.prepared, *change.accepted)
        return (
            change.stable >= 0
            and len(change.checkpoints) <= self._most_checkpoints
            and len({each.place for each in change.prepared}) == len(change.prepared)
            and len(change.accepted) <= _ACCEPTED_A_PLACE * self.parameters.window
            and all(first <= each.place <= last and 0 <= each.view < change.view for each in named)
        )

    def _acknowledge(self, sender: int, message: ViewChange) -> None:
        ack = ViewChangeAck(message.view, sender, digest_of(message))
        to = message.view % self.context.size
        if to != self.context.id:
            self.context.send(to, ack)
        else:
            self._on_view_change_ack(self.context.id, ack)

    def _on_remind(self, sender: int, message: Remind) -> None:
        own = self.changes.get(message.view, {}).get(self.context.id)
        if own is not None:
            self.context.send(sender, own)
        new = self.new_views.get(message.view)
        if new is not None and message.view % self.context.size == self.context.id:
            self.context.send(sender, new)

    def _on_view_change_ack(self, sender: int, message: ViewChangeAck) -> None:
        if self._is_near(message.view) and 0 <= message.sender < self.context.size:
            self.acks.setdefault((message.view, message.sender), {}).setdefault(sender, message.digest)
            self._check_new_view()

    def _on_new_view(self, sender: int, message: NewView) -> None:
        if self._is_near(message.view) and sender == message.view % self.context.size:
            self.new_views.setdefault(message.view, message)
            self._check_new_view()

    def _check_new_view(self) -> None:
        if self.active or self.view not in self.changes:
            return
        changes = self.changes[self.view]
        if self.primary == self.context.id:
            vouched = {
                who: change
                for who, change in changes.items()
                if who == self.context.id or self._vouched(who, digest_of(change))
            }
            decided = self._decision(vouched)
            if decided is None:
                return
            lacking = [digest for _, digest in decided[1] if digest not in self.batches]
            for digest in lacking:
                if digest not in self.wanted:
                    self._fetch(digest)
            if lacking:
                return
            named = tuple(sorted((who, digest_of(change)) for who, change in vouched.items()))
            message = self.new_views[self.view] = NewView(self.view, named, *decided)
            self.context.broadcast(message)
        else:
            waiting = self.new_views.get(self.view)
            if waiting is None:
                return
            message = waiting
            if any(who not in changes or digest_of(changes[who]) != digest for who, digest in message.changes):
                return
            if self._decision({who: changes[who] for who, _ in message.changes}) != (message.stable, message.chosen):
                return
        self._enter(message)

    def _vouched(self, who: int, digest: bytes) -> bool:
        seen = self.acks.get((self.view, who), {})
        others = sum(said == digest for other, said in seen.items() if other not in (who, self.context.id))
        return others >= 2 * self.faults - 1

    def _decision(self, changes: Mapping[int, ViewChange]) -> tuple[Checkpoint, tuple[tuple[int, bytes], ...]] | None:
        """Return from where on, and with which batches, the new view goes on; None when more must be known."""
        if len(changes) < self.quorum:
            return None
        known = list(changes.values())
        candidates = {each for change in known for each in change.checkpoints}
        good = [
            each
            for each in candidates
            if sum(each in change.checkpoints for change in known) > self.faults
            and sum(change.stable <= each.place for change in known) >= self.quorum
        ]
        if not good:
            return None
        stable = max(good, key=lambda each: (each.place, each.digest))
        # What may have been committed was prepared in the window of a correct replica whose stable place is no later.
        last = max((each.place for change in known for each in change.prepared), default=stable.place)
        last = min(last, stable.place + self.parameters.window)
        chosen = []
        for place in range(stable.place + 1, last + 1):
            digest = self._choice(place, known)
            if digest is None:
                return None
            chosen.append((place, digest))
        return stable, tuple(chosen)

    def _choice(self, place: int, known: list[ViewChange]) -> bytes | None:
        """Return the batch that may have been committed at a place, the null batch if none can have been."""
        prepared = [
            next((each for each in change.prepared if each.place == place), None)
            for change in known
            if change.stable < place
        ]
        for candidate in sorted({each for each in prepared if each is not None}, key=lambda each: -each.view):
            agree = sum(
                other is None
                or other.view < candidate.view
                or (other.view == candidate.view and other.digest == candidate.digest)
                for other in prepared
            )
            support = sum(
                any(
                    each.place == place and each.digest == candidate.digest and each.view >= candidate.view
                    for each in change.accepted
                )
                for change in known
            )
            if agree >= self.quorum and support > self.faults:
                return candidate.digest
        return _NULL_DIGEST if sum(each is None for each in prepared) >= self.quorum else None

    def _enter(self, message: NewView) -> None:
        self.active = True
        self.context.record("new views")
        self._stop_waiting()
        # Before anything can be led: new batches come after those that are taken over.
        self.next_place = max([message.stable.place, *(place for place, _ in message.chosen)]) + 1
        if message.stable.place > self.stable.place:
            for who, _ in message.changes:
                if message.stable in self.changes[self.view][who].checkpoints:
                    self._claim(who, message.stable)
            self._stabilise(message.stable)
        self._take_over()
        self._hurry()
        for ask in self.mine.values():
            if self.primary != self.context.id:
                self.context.send(self.primary, ask)
        self._lead()

    def _take_over(self) -> None:
        """Accept what the new view took over from earlier ones, as far as this replica's window reaches."""
        new = self.new_views.get(self.view)
        if new is None or not self.active:
            return
        for place, digest in new.chosen:
            if self._in_window(place) and (self.view, place) not in self.accepted:
                if digest not in self.batches:
                    self._fetch(digest)
                self._accept_digest(place, digest)


def _vote(
    ballots: dict[tuple[int, int], dict[bytes, set[int]]], view: int, place: int, digest: bytes, voter: int
) -> int:
    """Count a vote, the first of a replica for a number in a view; return how many its digest has."""
    ballot = ballots.get((view, place))
    if ballot is None:
        ballot = ballots[view, place] = {}
    votes = ballot.get(digest)
    if votes is None or len(ballot) > 1:
        if any(voter in others for each, others in ballot.items() if each != digest):
            return 0
        if votes is None:
            votes = ballot[digest] = set()
    votes.add(voter)
    return len(votes)


_HANDLERS: dict[type[Message], Any] = {
    Ask: PBFTNode._on_ask,
    Outcome: PBFTNode._on_outcome,
    PrePrepare: PBFTNode._on_pre_prepare,
    Prepare: PBFTNode._on_prepare,
    Commit: PBFTNode._on_commit,
    Checkpoint: PBFTNode._on_checkpoint,
    ViewChange: PBFTNode._on_view_change,
    ViewChangeAck: PBFTNode._on_view_change_ack,
    NewView: PBFTNode._on_new_view,
    Remind: PBFTNode._on_remind,
    FetchBatch: PBFTNode._on_fetch_batch,
    Batch: PBFTNode._on_batch,
    FetchState: PBFTNode._on_fetch_state,
    State: PBFTNode._on_state,
}


@dataclass(frozen=True, kw_only=True)
class PBFT:
    """A replicated log that tolerates Byzantine replicas.

    Parameters
    ----------
    patience_rounds : float
        How long a replica waits for a request before it leaves the view; doubled from view to view.
    quorum : int
        Votes that are enough; 0 for n - f.  Less is unsafe, and there to show that.
    view_changes : bool
        Whether a silent primary is replaced; without it the protocol does not live, and that is there to show.

    References
    ----------
    Castro and Liskov, ACM TOCS 20(4), 2002.
    """

    messages: ClassVar[tuple[type[Message], ...]] = tuple(_HANDLERS)

    patience_rounds: float = setting(
        20.0, unit="rounds", low=2.0, says="Wait for a request before a replica leaves the view"
    )
    retry_rounds: float = setting(30.0, unit="rounds", low=1.0, says="Wait before a request is sent to all replicas")
    batch: int = setting(16, low=1, says="Requests per sequence number")
    in_flight: int = setting(8, low=1, says="Sequence numbers open at once")
    checkpoint: int = setting(16, low=1, says="Sequence numbers from checkpoint to checkpoint")
    window: int = setting(64, low=1, says="Sequence numbers accepted above the stable checkpoint")
    quorum: int = setting(0, low=0, says="Votes that suffice; 0 for n - f")
    view_changes: bool = setting(True, says="Whether a silent primary is replaced")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where="system pbft")

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return PBFTNode(self, size)

    def max_faults(self, size: int) -> int:
        """Return how many replicas may be Byzantine."""
        return (size - 1) // 3

    def conflicting(self, message: Message) -> Message:
        """Return what an equivocator says in place of a message: that there is nothing to do under its number."""
        if isinstance(message, PrePrepare):
            return PrePrepare(message.view, message.place, _NULL)
        if isinstance(message, Prepare | Commit):
            return msgspec.structs.replace(message, digest=_NULL_DIGEST)
        if isinstance(message, Checkpoint):
            return msgspec.structs.replace(message, digest=message.digest[:-1] + bytes([message.digest[-1] ^ 1]))
        return message

    def violation(self, snapshot: Snapshot) -> str:
        """Return two correct replicas that executed different batches under one number."""
        return disagreement(snapshot)
