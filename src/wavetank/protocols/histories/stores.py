"""Small replicated stores, each built to one consistency model: the engine must put them where they belong.

From the weakest: last writer wins by skewed clocks, FIFO broadcast, causal broadcast with vector clocks, total-order
broadcast by a sequencer with local reads, quorums with and without a write-back, and a primary that does everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from wavetank.protocols.histories.replicas import OpenStore, Replicas, Reply
from wavetank.settings import setting

_INITIAL = 0


class _Opens:
    """A store whose state for one run takes the replicas and the store's parameters."""

    state: ClassVar[Callable[..., OpenStore]]

    def open(self, replicas: Replicas) -> OpenStore:
        """Return the store's state for one run."""
        return type(self).state(replicas, **vars(self))


class _LastWriterWins:
    def __init__(self, replicas: Replicas, skew_s: float) -> None:
        self._replicas, self._skew_s = replicas, skew_s
        self._held: list[dict[str, tuple[float, int, int]]] = [{} for _ in range(replicas.replicas)]

    def read(self, replica: int, key: str, reply: Reply) -> None:
        reply(self._held[replica].get(key, (0.0, 0, _INITIAL))[2])

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        entry = (self._replicas.now_s + replica * self._skew_s, replica, value)
        self._apply(replica, key, entry)
        self._replicas.broadcast(replica, lambda receiver: self._apply(receiver, key, entry))
        reply(None)

    def _apply(self, replica: int, key: str, entry: tuple[float, int, int]) -> None:
        held = self._held[replica]
        if key not in held or held[key] < entry:
            held[key] = entry


@dataclass(frozen=True, kw_only=True)
class LastWriterWinsStore(_Opens):
    """Writes are stamped by the replica's own clock; the highest stamp wins everywhere, at once where it is written.

    Parameters
    ----------
    skew_s : float
        By how much the clock of each replica is ahead of the one before it.

    References
    ----------
    Vogels 2009; the default of several Dynamo-style stores.
    """

    skew_s: float = setting(
        0.2, unit="s", says="Lead of each replica's clock over the clock of the replica before", low=0.0
    )

    state = _LastWriterWins


class _Fifo:
    def __init__(self, replicas: Replicas) -> None:
        n = replicas.replicas
        self._replicas = replicas
        self._held: list[dict[str, int]] = [{} for _ in range(n)]
        self._sent = [0] * n
        self._applied = [[0] * n for _ in range(n)]
        self._early: list[dict[tuple[int, int], tuple[str, int]]] = [{} for _ in range(n)]

    def read(self, replica: int, key: str, reply: Reply) -> None:
        reply(self._held[replica].get(key, _INITIAL))

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        number = self._sent[replica]
        self._sent[replica] += 1
        self._held[replica][key] = value
        self._replicas.broadcast(replica, lambda receiver: self._receive(receiver, replica, number, key, value))
        reply(None)

    def _receive(self, replica: int, sender: int, number: int, key: str, value: int) -> None:
        self._early[replica][sender, number] = (key, value)
        while (entry := self._early[replica].pop((sender, self._applied[replica][sender]), None)) is not None:
            self._held[replica][entry[0]] = entry[1]
            self._applied[replica][sender] += 1


@dataclass(frozen=True, kw_only=True)
class FifoStore(_Opens):
    """Every replica applies each other one's writes in their order, whatever it has seen of third ones (PRAM).

    References
    ----------
    R. Lipton, J. Sandberg, "PRAM: A Scalable Shared Memory", Princeton CS-TR-180-88, 1988.
    """

    state = _Fifo


@dataclass
class _Update:
    sender: int
    needs: tuple[int, ...]
    key: str
    stamp: tuple[int, int]
    value: int


class _Causal:
    def __init__(self, replicas: Replicas) -> None:
        n = replicas.replicas
        self._replicas = replicas
        self._held: list[dict[str, tuple[tuple[int, int], int]]] = [{} for _ in range(n)]
        self._seen = [[0] * n for _ in range(n)]
        self._clock = [0] * n
        self._waiting: list[list[_Update]] = [[] for _ in range(n)]

    def read(self, replica: int, key: str, reply: Reply) -> None:
        reply(self._held[replica].get(key, ((0, 0), _INITIAL))[1])

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        self._clock[replica] += 1
        update = _Update(replica, tuple(self._seen[replica]), key, (self._clock[replica], replica), value)
        self._apply(replica, update)
        self._replicas.broadcast(replica, lambda receiver: self._receive(receiver, update))
        reply(None)

    def _apply(self, replica: int, update: _Update) -> None:
        self._seen[replica][update.sender] += 1
        self._clock[replica] = max(self._clock[replica], update.stamp[0])
        held = self._held[replica]
        if update.key not in held or held[update.key][0] < update.stamp:
            held[update.key] = (update.stamp, update.value)

    def _receive(self, replica: int, update: _Update) -> None:
        waiting = self._waiting[replica]
        waiting.append(update)
        ready: _Update | None = update
        while ready is not None:
            ready = next((each for each in waiting if self._is_ready(replica, each)), None)
            if ready is not None:
                waiting.remove(ready)
                self._apply(replica, ready)

    def _is_ready(self, replica: int, update: _Update) -> bool:
        seen = self._seen[replica]
        return seen[update.sender] == update.needs[update.sender] and all(
            have >= need for have, need in zip(seen, update.needs, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class CausalStore(_Opens):
    """A write waits at each replica until all that its writer had seen is there; Lamport stamps settle the rest.

    References
    ----------
    Ahamad et al. 1995; with the conflict rule of W. Lloyd et al., "Don't Settle for Eventual", SOSP 2011.
    """

    state = _Causal


class _Sequencer:
    def __init__(self, replicas: Replicas) -> None:
        n = replicas.replicas
        self._replicas = replicas
        self._held: list[dict[str, int]] = [{} for _ in range(n)]
        self._next, self._applied = 0, [0] * n
        self._early: list[dict[int, tuple[str, int, int, Reply]]] = [{} for _ in range(n)]

    def read(self, replica: int, key: str, reply: Reply) -> None:
        reply(self._held[replica].get(key, _INITIAL))

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        self._replicas.send(replica, 0, lambda: self._number(replica, key, value, reply))

    def _number(self, writer: int, key: str, value: int, reply: Reply) -> None:
        number = self._next
        self._next += 1
        self._receive(0, number, key, value, writer, reply)
        self._replicas.broadcast(0, lambda receiver: self._receive(receiver, number, key, value, writer, reply))

    def _receive(self, replica: int, number: int, key: str, value: int, writer: int, reply: Reply) -> None:
        self._early[replica][number] = (key, value, writer, reply)
        while (entry := self._early[replica].pop(self._applied[replica], None)) is not None:
            self._held[replica][entry[0]] = entry[1]
            self._applied[replica] += 1
            if entry[2] == replica:
                entry[3](None)


@dataclass(frozen=True, kw_only=True)
class SequencerStore(_Opens):
    """A sequencer numbers all writes; replicas apply them in that order; reads are local, writes wait for their turn.

    References
    ----------
    Attiya and Welch 1994: sequentially consistent, with fast reads.
    """

    state = _Sequencer


_Tagged = tuple[tuple[int, int], int]


class _Quorum:
    def __init__(self, replicas: Replicas, write_back: bool) -> None:
        self._replicas, self._write_back = replicas, write_back
        self._majority = replicas.replicas // 2 + 1
        self._held: list[dict[str, _Tagged]] = [{} for _ in range(replicas.replicas)]
        # Of each replica, so that two writes through one never get the same tag.
        self._highest = [0] * replicas.replicas

    def read(self, replica: int, key: str, reply: Reply) -> None:
        def found(latest: _Tagged) -> None:
            if self._write_back:
                self._store(replica, key, latest, lambda: reply(latest[1]))
            else:
                reply(latest[1])

        self._query(replica, key, found)

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        def found(latest: _Tagged) -> None:
            self._highest[replica] = max(self._highest[replica], latest[0][0]) + 1
            self._store(replica, key, ((self._highest[replica], replica), value), lambda: reply(None))

        self._query(replica, key, found)

    def _query(self, asker: int, key: str, found: Callable[[_Tagged], None]) -> None:
        def held(receiver: int) -> _Tagged:
            return self._held[receiver].get(key, ((0, 0), _INITIAL))

        self._ask_majority(asker, held, lambda answers: found(max(answers)))

    def _store(self, asker: int, key: str, entry: _Tagged, done: Callable[[], None]) -> None:
        def stored(receiver: int) -> _Tagged:
            held = self._held[receiver]
            if key not in held or held[key][0] < entry[0]:
                held[key] = entry
            return entry

        self._ask_majority(asker, stored, lambda _: done())

    def _ask_majority(self, asker: int, act: Callable[[int], _Tagged], done: Callable[[list[_Tagged]], None]) -> None:
        """Have every replica act and answer; go on once, with the answers of the first majority."""
        answers: list[_Tagged] = []

        def answered(entry: _Tagged) -> None:
            answers.append(entry)
            if len(answers) == self._majority:
                done(answers)

        def asked(receiver: int) -> None:
            entry = act(receiver)
            self._replicas.send(receiver, asker, lambda: answered(entry))

        asked(asker)
        self._replicas.broadcast(asker, asked)


@dataclass(frozen=True, kw_only=True)
class QuorumStore(_Opens):
    """Reads and writes ask a majority; a read writes back what it is about to return.

    Parameters
    ----------
    write_back : bool
        Without it two reads may see a write and then not see it: regular, not linearizable.

    References
    ----------
    Attiya, Bar-Noy and Dolev 1995, with several writers (N. Lynch, A. Shvartsman, 1997).
    """

    write_back: bool = setting(True, says="Whether a read first stores its result at a majority")

    state = _Quorum


class _Primary:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._held: dict[str, int] = {}

    def read(self, replica: int, key: str, reply: Reply) -> None:
        def act() -> None:
            value = self._held.get(key, _INITIAL)
            self._replicas.send(0, replica, lambda: reply(value))

        self._replicas.send(replica, 0, act)

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        def act() -> None:
            self._held[key] = value
            self._replicas.send(0, replica, lambda: reply(None))

        self._replicas.send(replica, 0, act)


@dataclass(frozen=True, kw_only=True)
class PrimaryStore(_Opens):
    """One replica does everything: linearizable, and not available to clients that are cut off from it.

    References
    ----------
    N. Budhiraja et al., "The Primary-Backup Approach", 1993; without backups, for nothing fails here.
    """

    state = _Primary
