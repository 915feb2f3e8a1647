"""The table of consistency models: each is a point with four coordinates, and the points are partly ordered.

C, closure: with whatever an event sees it must see more.  O, ordering: how what is concurrent gets ordered, and what
that order respects.  R, timeliness: by when a write must be seen.  F, value: what an event that sees this, in this
order, must answer.  The engine decides from the coordinates alone; a name is only a label.

Source: R. Landers, K. Kramer, "Light Cone Consistency: Toward a Unified Theory of Consistency in Message-Passing
Systems", arXiv 2605.09114, 2026 (v1 and v2); P. Viotti, M. Vukolic, "Consistency in Non-Transactional Distributed
Storage Systems", ACM Computing Surveys 49(1), 2016; A. Adya, "Weak Consistency: A Generalized Theory and Optimistic
Implementations for Distributed Transactions", MIT, 1999 (PL-3U); R. Hansdah, L. Patnaik, "Update Serializability in
Locking", ICDT 1986.

Differs from the source:
1. The paper's table was not at hand in full: the coordinates of each name follow the cited definitions.
2. Closure is a set of generators instead of one relation, so that session guarantees combine.
3. Ordering says for whom there is one order (each read, each process, each key, all) and whether what is seen is a
   beginning of it; the paper's trivial, per key, total and fork-allowed orders are among these.
4. Isolation levels are rows like all others: an event is a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from wavetank.errors import unknown_name

Ordering = Literal["read", "process", "replay", "key", "keys-replay", "total", "updates", "fork", "prefix", "single"]
Timeliness = Literal["absent", "eventual", "delta"]
Value = Literal["last", "last-if-quiet", "one-of-last-k"]

# Generators of C.  With a write seen: the writer's earlier writes; what the writer had seen.  An event sees besides:
# its own process's earlier writes; what that process saw before; all of a transaction of which it sees a part.
OWN, SEEN, SESSION, CAUSES = "own-writes", "earlier-reads", "writers-session", "writers-reads"
COMMITTED, STEPWISE, ATOMIC, CONFLICTS = "committed", "rest-of-transaction", "whole-transaction", "conflicting-writes"
PRAM = frozenset({OWN, SEEN, SESSION})
HAPPENS_BEFORE = PRAM | {CAUSES}
EVERYTHING = HAPPENS_BEFORE | {COMMITTED, STEPWISE, ATOMIC}

# What an order respects.  The names mean: between whom; "real-time" is returned-before-invoked.
SO, SO_WRITES = "session", "session-of-writes"
RT, RT_WRITES, RT_FROM_WRITES, RT_DELTA = "real-time", "real-time-of-writes", "real-time-after-writes", "delta-old"
_RESPECT_MORE = {
    SO: {SO_WRITES},
    RT_FROM_WRITES: {RT_WRITES, RT_DELTA},
    RT: {SO, SO_WRITES, RT_WRITES, RT_FROM_WRITES, RT_DELTA},
    RT_DELTA: {RT_WRITES},
}

# For whom there is one order: every key is implied by its values.
_ORDERS_LESS: dict[str, frozenset[str]] = {
    "read": frozenset(),
    "process": frozenset({"read"}),
    "replay": frozenset({"read", "process"}),
    "key": frozenset({"read"}),
    "keys-replay": frozenset({"read", "process", "replay", "key"}),
    "total": frozenset({"read", "process", "key"}),
    "fork": frozenset({"read", "process", "replay"}),
    "updates": frozenset({"read", "process", "key", "total"}),
    "prefix": frozenset({"read", "process", "key", "total"}),
    "single": frozenset({"read", "process", "replay", "key", "keys-replay", "total", "updates", "fork", "prefix"}),
}
_VALUES_LESS: dict[str, frozenset[str]] = {
    "last": frozenset({"last-if-quiet", "one-of-last-k"}),
    "last-if-quiet": frozenset(),
    "one-of-last-k": frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One consistency model as a point.

    Parameters
    ----------
    name : str
    says : str
        What it promises, in a line.
    closure : frozenset of str
        Generators of C that it asks for.
    ordering : str
        O: for whom there is one order.  ``read``: each read on its own.  ``process``: each process.  ``replay``: each
        process, which sees a beginning of its order.  ``key``: each key.  ``keys-replay``: each process, agreeing on
        every key.  ``total``: all.  ``updates``: all that write, and each that only reads stands in an order of its own
        that agrees on every key.  ``fork``: a tree, each process on one path.  ``prefix``: all, and a transaction reads
        a beginning of it.  ``single``: all, and each event stands at one place of it.
    respects : frozenset of str
        What the order is consistent with, besides what the closure says.
    timeliness : str
        R: ``delta`` (what returned delta before must be seen), ``eventual`` (what is settled) or ``absent``.
    value : str
        F: the last write seen; the last unless writes are under way; one of the last k.
    per_key : bool
        Asked of every key on its own.
    """

    name: str
    says: str
    closure: frozenset[str] = frozenset()
    ordering: Ordering = "read"
    respects: frozenset[str] = frozenset()
    timeliness: Timeliness = "absent"
    value: Value = "last"
    per_key: bool = False

    @property
    def timed(self) -> bool:
        """Whether it knows of real time; then nobody sees what began after it had returned."""
        return self.timeliness == "delta" or bool(self.respected & {RT, RT_WRITES, RT_FROM_WRITES, RT_DELTA})

    @property
    def supplied(self) -> frozenset[str]:
        """Generators of C that hold under it, asked for or brought by an order that respects them."""
        found = set(self.closure)
        if self.ordering in ("single", "fork") and self.respected & {SO}:
            found |= HAPPENS_BEFORE
        if self.ordering in ("single", "prefix"):
            found |= {COMMITTED, STEPWISE, ATOMIC}
        if self.ordering == "single":
            found |= {CONFLICTS}
            if SO_WRITES in self.respected:
                found |= {SESSION}
        return frozenset(found)

    @property
    def respected(self) -> frozenset[str]:
        """What the order respects, with all that follows."""
        found = set(self.respects)
        for each in self.respects:
            found |= _RESPECT_MORE.get(each, set())
        if SESSION in self.closure and self.ordering in ("replay", "keys-replay", "total", "prefix", "single"):
            found |= {SO_WRITES}
        if self.ordering == "replay" and self.closure >= PRAM:
            found |= {SO, SO_WRITES}
        return frozenset(found)


def _row(
    name: str,
    says: str,
    closure: Iterable[str] = (),
    ordering: Ordering = "read",
    respects: Iterable[str] = (),
    timeliness: Timeliness = "absent",
    value: Value = "last",
    per_key: bool = False,
) -> Configuration:
    return Configuration(
        name=name, says=says, closure=frozenset(closure), ordering=ordering, respects=frozenset(respects),
        timeliness=timeliness, value=value, per_key=per_key,
    )  # fmt: skip


_TRANSACTIONS = {COMMITTED, STEPWISE, ATOMIC}

MODELS = {
    each.name: each
    for each in (
        _row("weak", "a read sees what somebody wrote, and nobody reads in circles"),
        _row("eventual", "once writes are settled, all reads agree on them", timeliness="eventual"),
        _row("strong-eventual", "who has seen the same writes reads the same", ordering="total", timeliness="eventual"),
        _row("read-your-writes", "a process sees its own writes", {OWN}, "process"),
        _row("monotonic-reads", "a process goes on seeing what it has seen", {SEEN}, "process"),
        _row("monotonic-writes", "writes of a process are seen in its order", {SESSION}, "process"),
        _row("writes-follow-reads", "a write is seen after what its writer had read", {CAUSES}, "process"),
        _row("slow", "each process sees writes of each process to each key in order", PRAM, "replay", per_key=True),
        _row("pram", "each process sees the writes of each process in order (FIFO)", PRAM, "replay"),
        _row("cache", "each key alone is sequential (coherence)", EVERYTHING | {CONFLICTS}, "single", {SO},
             per_key=True),
        _row("processor", "PRAM, and all agree on the order of writes to a key", PRAM, "keys-replay"),
        _row("per-key-causal", "each key alone is causal", HAPPENS_BEFORE, "replay", per_key=True),
        _row("weak-causal", "an event sees the causes of what it sees", HAPPENS_BEFORE),
        _row("causal", "each process sees all in one order that keeps causes (causal memory)", HAPPENS_BEFORE,
             "replay"),
        _row("causal-plus", "weak-causal, and all agree on the order of writes to a key", HAPPENS_BEFORE, "key"),
        _row("causal-convergence", "weak-causal, and all agree on one order of writes", HAPPENS_BEFORE, "total"),
        _row("real-time-causal", "causal-convergence in an order that respects real time", HAPPENS_BEFORE, "total",
             {RT_WRITES}),
        _row("timed-causal", "weak-causal, and writes are seen within delta", HAPPENS_BEFORE, timeliness="delta"),
        _row("bounded-staleness", "all agree on one order of writes, seen within delta", ordering="total",
             timeliness="delta"),
        _row("prefix-sequential", "reads see a beginning of one order that keeps sessions' writes", {SESSION},
             "single", {SO_WRITES}),
        _row("prefix-linearizable", "reads see a beginning of one order that keeps real time among writes", {SESSION},
             "single", {RT_WRITES, SO_WRITES}),
        _row("sequential", "one order of all that keeps every session", EVERYTHING, "single", {SO}),
        _row("safe", "a read without writes beside it sees the last one", (), "single", {RT_FROM_WRITES},
             value="last-if-quiet"),
        _row("regular", "a read sees the last write, or one beside it", (), "single", {RT_FROM_WRITES}),
        _row("delta-atomic", "as if every read had been asked up to delta earlier", (), "single", {RT_DELTA}),
        _row("k-linearizable", "linearizable, but a read may see any of the last k writes", EVERYTHING, "single", {RT},
             value="one-of-last-k"),
        _row("linearizable", "one order of all that keeps real time", EVERYTHING, "single", {RT}),
        _row("fork-sequential", "sequential until processes part for good", HAPPENS_BEFORE, "fork", {SO}),
        _row("fork-linearizable", "linearizable until processes part for good", HAPPENS_BEFORE, "fork", {RT}),
        _row("read-uncommitted", "writes of transactions do not interleave", (), "total"),
        _row("read-committed", "no read of what was aborted or of a middle, no circle of information", {COMMITTED},
             "total"),
        _row("monotonic-atomic-view", "who sees a part of a transaction sees the rest from then on",
             {COMMITTED, STEPWISE}, "total"),
        _row("read-atomic", "who sees a part of a transaction sees all of it", _TRANSACTIONS, "total"),
        _row("transactional-causal", "atomic, causal, and all agree on one order", HAPPENS_BEFORE | _TRANSACTIONS,
             "total"),
        _row("parallel-snapshot-isolation", "atomic and causal; of two writers of a key one sees the other",
             EVERYTHING | {CONFLICTS}, "key"),
        _row("prefix-consistent", "a transaction reads a beginning of one order", _TRANSACTIONS, "prefix"),
        _row("snapshot-isolation", "prefix-consistent; of two writers of a key one sees the other",
             _TRANSACTIONS | {CONFLICTS}, "prefix"),
        _row("strong-session-snapshot-isolation", "snapshot isolation that keeps sessions",
             EVERYTHING | {CONFLICTS}, "prefix", {SO}),
        _row("strong-snapshot-isolation", "snapshot isolation that keeps real time", EVERYTHING | {CONFLICTS}, "prefix",
             {RT}),
        _row("update-serializable", "serializable for all that write; who only reads sees some such order (PL-3U)",
             _TRANSACTIONS | {CONFLICTS}, "updates"),
        _row("serializable", "one order of all transactions", _TRANSACTIONS | {CONFLICTS}, "single"),
        _row("strong-session-serializable", "serializable in an order that keeps sessions", EVERYTHING | {CONFLICTS},
             "single", {SO}),
        _row("strict-serializable", "serializable in an order that keeps real time", EVERYTHING | {CONFLICTS}, "single",
             {RT}),
    )
}  # fmt: skip
"""All named models."""


def model(name: str) -> Configuration:
    """Return a model by its name.

    Raises
    ------
    UnknownNameError
    """
    if name not in MODELS:
        raise unknown_name("consistency model", name, MODELS)
    return MODELS[name]


def weaker(one: Configuration, other: Configuration) -> bool:
    """Return whether every history that ``other`` allows is allowed by ``one``, as far as the coordinates show.

    Each coordinate of ``one`` must ask no more than ``other`` supplies; True is certain, False is not knowing.
    """
    if other.per_key and not one.per_key:
        return False
    orders = one.ordering == other.ordering or one.ordering in _ORDERS_LESS[other.ordering]
    timely = one.timeliness in ("absent", other.timeliness) or (
        # Where real time is respected nothing old is ever missed.
        other.ordering == "single" and bool(other.respected & {RT, RT_FROM_WRITES}) and other.value == "last"
    )
    if one.timeliness == "delta" and RT_DELTA in other.respected and other.ordering == "single":
        timely = True
    values = one.value == other.value or one.value in _VALUES_LESS[other.value]
    if other.value != "last" and one.value != other.value:
        values = False
    return orders and timely and values and one.closure <= other.supplied and one.respected <= other.respected


def implied(names: Iterable[str] = MODELS) -> dict[str, tuple[str, ...]]:
    """Return for each model the other models that it implies."""
    chosen = [model(name) for name in names]
    return {
        strong.name: tuple(weak.name for weak in chosen if weak is not strong and weaker(weak, strong))
        for strong in chosen
    }
