"""From a history and a model's coordinates to questions about orders.

What an event must have seen (C and R) is computed as a least set; every read then says which writes come before which
(O and F).  Where what is seen is the beginning of an order, a read says instead: another write of the key comes before
the one read, or after the reader.

Source: S. Burckhardt, "Principles of Eventual Consistency", 2014; A. Bouajjani, C. Enea, R. Guerraoui, J. Hamza, "On
Verifying Causal Consistency", POPL 2017; R. Biswas, C. Enea, "On the Complexity of Checking Transactional
Consistency", OOPSLA 2019; A. Cerone, A. Gotsman, "Analysing Snapshot Isolation", JACM 65(2), 2018.

Differs from the source:
1. All models are put as one kind of question (:mod:`wavetank.check.consistency.orders`).
2. Sets are Python integers, one bit an event.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wavetank.check.consistency.configurations import (
    ATOMIC,
    CAUSES,
    COMMITTED,
    CONFLICTS,
    HAPPENS_BEFORE,
    OWN,
    PRAM,
    RT,
    RT_DELTA,
    RT_FROM_WRITES,
    RT_WRITES,
    SEEN,
    SESSION,
    SO,
    SO_WRITES,
    STEPWISE,
    Configuration,
)
from wavetank.check.consistency.events import Event, Read
from wavetank.check.consistency.orders import Constraints, in_order


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """How old is old.

    Parameters
    ----------
    delta_s : float
        Age from which a write must be seen under ``delta``; in the history's clock.
    settled_s : float
        After the last write's return, when writes count as settled under ``eventual``.
    """

    delta_s: float = 1.0
    settled_s: float = math.inf


@dataclass
class Question:
    """Some orders asked for, or a contradiction found without one.

    Parameters
    ----------
    parts : list of (Constraints, nodes)
        Each to be solved; the nodes are events, -1 for points in time and other aids.
    wrong : int or None
        An event that contradicts the model whatever the orders.
    says : str
    seen : dict
        Event to the set of writes that it must see, one bit an event.
    """

    parts: list[tuple[Constraints, list[int]]] = field(default_factory=list)
    wrong: int | None = None
    says: str = ""
    seen: dict[int, int] = field(default_factory=dict)


def bits(mask: int) -> Iterator[int]:
    """Yield the members of a set of events."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _View:
    """What is the same for all models of one history."""

    def __init__(self, events: Sequence[Event], messages: Sequence[tuple[int, int]]) -> None:
        self.events, self.messages = events, messages
        self.sessions: dict[str, list[int]] = {}
        self.writers: dict[str, int] = {}
        self.all_writers = 0
        for at, event in enumerate(events):
            session = self.sessions.setdefault(event.process, [])
            session.append(at)
            for key in event.writes:
                self.writers[key] = self.writers.get(key, 0) | 1 << at
            if event.writes:
                self.all_writers |= 1 << at

    def session_edges(self, chosen: Sequence[int]) -> list[tuple[int, int]]:
        """Return each session's order among some events; what never returned precedes nothing."""
        edges: list[tuple[int, int]] = []
        last: dict[str, int] = {}
        for at in chosen:
            event = self.events[at]
            before = last.get(event.process)
            if before is not None:
                edges.append((before, at))
            if event.returned < math.inf:
                last[event.process] = at
        return edges


def _seen(view: _View, configuration: Configuration, clocks: Clocks) -> tuple[list[int], list[int]]:
    """Return what each event must see, and what must be seen with it."""
    events, closure = view.events, configuration.closure
    n = len(events)
    seen, along = [0] * n, [0] * n
    timely = [0] * n
    if configuration.timeliness == "delta":
        for at, event in enumerate(events):
            for w in bits(view.all_writers):
                if events[w].returned < event.invoked - clocks.delta_s:
                    timely[at] |= 1 << w
    direct = []
    for at, event in enumerate(events):
        mask = timely[at]
        for read in event.reads:
            for w in read.chain:
                mask |= 1 << w
        direct.append(mask & ~(1 << at))
    senders: dict[int, list[int]] = {}
    if CAUSES in closure:
        for sender, receiver in view.messages:
            senders.setdefault(receiver, []).append(sender)
    changed = True
    while changed:
        changed = False
        for session in view.sessions.values():
            # Each of these is closed: with an event it has all that comes along.
            own = had_seen = session_writes = causes = 0
            for at in session:
                event = events[at]
                found = seen[at] | direct[at]
                for w in bits(direct[at]):
                    found |= along[w]
                for sender in senders.get(at, ()):
                    found |= seen[sender] | along[sender] | (1 << sender if events[sender].writes else 0)
                if OWN in closure:
                    found |= own
                if SEEN in closure:
                    found |= had_seen
                brought = along[at]
                if event.writes:
                    if SESSION in closure:
                        brought |= session_writes
                    if CAUSES in closure:
                        brought |= causes | found
                changed |= brought != along[at] or found != seen[at]
                seen[at], along[at] = found, brought
                if event.returned < math.inf:
                    had_seen |= found
                    causes |= found
                    if event.writes:
                        own |= 1 << at | brought
                        session_writes |= 1 << at | brought
    return seen, along


def ask(
    events: Sequence[Event],
    configuration: Configuration,
    clocks: Clocks,
    messages: Sequence[tuple[int, int]] = (),
) -> Question:
    """Put a model to a history.

    Parameters
    ----------
    events : sequence of Event
        Reads whose source is open are left out of the question.
    configuration : Configuration
        Any ordering but ``fork``.
    clocks : Clocks
    messages : sequence of (int, int)
        Events of which the first is a cause of the second, whatever they read.
    """
    if configuration.per_key:
        return _each_key(events, configuration, clocks)
    view = _View(events, messages)
    question = Question()
    if not _circles_free(view, question) or (configuration.timed and not _past_only(view, configuration, question)):
        return question
    ordering = configuration.ordering
    if ordering in ("single", "prefix"):
        _ask_single(view, configuration, clocks, question)
    elif ordering == "updates":
        _ask_updates(view, question)
    elif ordering == "key" and CONFLICTS in configuration.closure:
        _ask_parallel(view, question)
    elif ordering in ("replay", "keys-replay"):
        _ask_replay(view, configuration, question)
    else:
        _ask_seen(view, configuration, clocks, question)
    return question


def constraints_of(events: Sequence[Event], configuration: Configuration) -> int:
    """Return about how many edges and alternatives a model asks of a history, before asking."""
    writers: dict[str, int] = {}
    for event in events:
        for key in event.writes:
            writers[key] = writers.get(key, 0) + 1
    # A read is set against every other write of its key; each pair of writes counts where orders must agree.
    count = sum(writers.get(read.key, 0) for event in events for read in event.reads)
    if configuration.ordering == "updates":
        # What only reads sets each pair of its reads against the writers of one of them.
        count *= max((len(event.reads) for event in events if not event.writes), default=1)
    if CONFLICTS in configuration.closure and configuration.ordering in ("prefix", "key", "updates"):
        count += sum(each * each // 2 for each in writers.values())
    if configuration.ordering in ("replay", "keys-replay"):
        processes = len({event.process for event in events})
        count += processes * len(events)
        if configuration.ordering == "keys-replay":
            count += processes * sum(each * each for each in writers.values())
    return count


def _each_key(events: Sequence[Event], configuration: Configuration, clocks: Clocks) -> Question:
    """Ask of each key alone, as if the others were not there."""
    whole = Question()
    alone = replace(configuration, per_key=False)
    for key in dict.fromkeys(key for event in events for key in (*event.writes, *(r.key for r in event.reads))):
        numbers = [
            at for at, event in enumerate(events) if key in event.writes or any(r.key == key for r in event.reads)
        ]
        place = {at: number for number, at in enumerate(numbers)}
        part = [
            replace(
                events[at],
                reads=[
                    Read(key, tuple(place[one] for one in r.chain), place.get(r.anchor, -1), r.choices, r.step)
                    for r in events[at].reads
                    if r.key == key
                ],
                writes={key: events[at].writes[key]} if key in events[at].writes else {},
            )
            for at in numbers
        ]
        asked = ask(part, alone, clocks)
        if asked.wrong is not None:
            return Question(wrong=numbers[asked.wrong], says=asked.says)
        for constraints, nodes in asked.parts:
            whole.parts.append((constraints, [numbers[node] if node >= 0 else -1 for node in nodes]))
    return whole


def _known(event: Event) -> list[Read]:
    return [read for read in event.reads if not read.choices]


def _circles_free(view: _View, question: Question) -> bool:
    """Check that nobody read from what in turn read from it; only transactions and swaps can."""
    sources = {(w, at) for at, event in enumerate(view.events) for read in _known(event) for w in read.chain}
    free = in_order(np.array([*sources], np.int64).reshape(-1, 2), np.arange(len(view.events), dtype=np.float64))
    if len(free) == len(view.events):
        return True
    question.wrong = min(set(range(len(view.events))) - set(free.tolist()))
    question.says = "it read, by way of others, from itself"
    return False


def _past_only(view: _View, configuration: Configuration, question: Question) -> bool:
    """Check that nobody read what began after it had returned."""
    for at, event in enumerate(view.events):
        if configuration.value == "last-if-quiet" and not event.quiet:
            continue
        for read in _known(event):
            if any(view.events[w].invoked > event.returned for w in read.chain):
                question.wrong, question.says = at, "it saw what began after it had returned"
                return False
    return True


def _others(view: _View, at: int, read: Read) -> int:
    """Return the other writers of what was read."""
    mask = view.writers.get(read.key, 0) & ~(1 << at)
    for w in read.chain:
        mask &= ~(1 << w)
    return mask


def _ask_seen(view: _View, configuration: Configuration, clocks: Clocks, question: Question) -> None:
    """Models in which what an event sees is a set: orders per read, process, key, or one for all."""
    events, ordering = view.events, configuration.ordering
    seen, along = _seen(view, configuration, clocks)
    question.seen = dict(enumerate(seen))
    for at in bits(view.all_writers):
        if along[at] >> at & 1:
            question.wrong, question.says = at, "it would have to be seen before itself"
            return
    settled = _settled(view, configuration, clocks)
    # Without any of these a transaction may see one half of another.
    sets = bool(configuration.closure & (HAPPENS_BEFORE | {ATOMIC})) or configuration.timeliness == "delta"
    groups: dict[str, list[tuple[int, int]]] = {"all": []} if ordering == "total" else {}
    for at, event in enumerate(events):
        for read in _known(event):
            visible = seen[at] if sets else 0
            agree = ordering
            if settled is not None and event.invoked >= settled:
                visible |= view.all_writers
                agree = "total"
            if STEPWISE in configuration.closure:
                visible |= _rest_of_transactions(view, at, read)
            edges = groups.setdefault(_group(agree, event, read), [])
            for w in bits(visible & _others(view, at, read)):
                if read.anchor < 0:
                    question.wrong = at
                    question.says = f"it must have seen operation {events[w].number}, and did not"
                    return
                if agree == "read" and along[w] >> read.anchor & 1:
                    question.wrong = at
                    question.says = f"it must have seen operation {events[w].number}, which is later than what it read"
                    return
                edges.append((w, read.anchor))
            for one, two in itertools.pairwise(read.chain):
                if agree == "read" and along[one] >> two & 1:
                    question.wrong, question.says = at, "it saw writes in an order against their causes"
                    return
                edges.append((one, two))
            if COMMITTED in configuration.closure and event.writes:
                edges += [(w, at) for w in read.chain]
    groups.pop("", None)
    for name, edges in groups.items():
        _put_group(view, configuration, question, edges, along, name.removeprefix("key ") if ordering == "key" else "")


def _group(agree: str, event: Event, read: Read) -> str:
    if agree == "process":
        return f"process {event.process}"
    if agree == "key":
        return f"key {read.key}"
    return "all" if agree == "total" else ""


def _put_group(
    view: _View,
    configuration: Configuration,
    question: Question,
    edges: list[tuple[int, int]],
    along: Sequence[int],
    key: str,
) -> None:
    """Add the question whether writes, of one key or of all, have an order with these edges and their causes."""
    nodes = list(bits(view.writers.get(key, 0) if key else view.all_writers))
    place = {at: number for number, at in enumerate(nodes)}
    inside = view.writers.get(key, 0) if key else view.all_writers
    known = [(place[one], place[two]) for one, two in edges if one in place and two in place]
    for at in nodes:
        for w in bits(_latest(along[at] & inside, along)):
            known.append((place[w], place[at]))
    ranks = [view.events[at].invoked for at in nodes]
    constraints = Constraints(len(nodes), known, rank=ranks)
    names = list(nodes)
    if RT_WRITES in configuration.respected:
        _add_real_time(view, constraints, names, nodes, nodes, 0.0)
    question.parts.append((constraints, names))


def _latest(mask: int, along: Sequence[int]) -> int:
    """Return those of a set that do not come along with another of it."""
    kept = mask
    for w in bits(mask):
        if kept >> w & 1:
            kept &= ~(along[w] & ~(1 << w))
    return kept


def _settled(view: _View, configuration: Configuration, clocks: Clocks) -> float | None:
    """Return when writes count as settled, None where the model does not ask or they never do."""
    if configuration.timeliness != "eventual" or not math.isfinite(clocks.settled_s):
        return None
    last = max((view.events[w].returned for w in bits(view.all_writers)), default=-math.inf)
    return last + clocks.settled_s if math.isfinite(last) else None


def _rest_of_transactions(view: _View, at: int, read: Read) -> int:
    """Return the writers of the key whose other writes this transaction had seen before this step."""
    mask = 0
    for other in _known(view.events[at]):
        if other.step < read.step:
            for w in other.chain:
                if read.key in view.events[w].writes:
                    mask |= 1 << w
    return mask


def _ask_parallel(view: _View, question: Question) -> None:
    """Parallel snapshot isolation: what precedes is what is seen, and of two writers of a key one precedes."""
    everything = range(len(view.events))
    constraints = Constraints(len(view.events), [*view.session_edges(everything), *view.messages])
    constraints.rank = [event.invoked for event in view.events]
    for at, event in enumerate(view.events):
        for read in _known(event):
            constraints.edges += [(w, at) for w in read.chain]
            constraints.edges += itertools.pairwise(read.chain)
            for w in bits(_others(view, at, read)):
                # A later write that was seen contradicts the read.
                constraints.implications.append(((w, at), (w, read.anchor) if read.anchor >= 0 else (at, at)))
    for mask in view.writers.values():
        for a, b in itertools.combinations(bits(mask), 2):
            constraints.alternatives.append(((a, b), (b, a)))
    question.parts.append((constraints, list(everything)))


def _ask_updates(view: _View, question: Question) -> None:
    """Update serializability: what writes is in one order, and what only reads closes no circle of its own.

    The order is partial but for writers of one key; a reader contradicts it if a write later than one that it saw comes
    before another that it saw.
    """
    nodes = [at for at, event in enumerate(view.events) if event.writes]
    place = {at: number for number, at in enumerate(nodes)}
    constraints = Constraints(len(nodes), rank=[view.events[at].invoked for at in nodes])
    for mask in view.writers.values():
        for a, b in itertools.combinations(bits(mask), 2):
            constraints.alternatives.append(((place[a], place[b]), (place[b], place[a])))
    for at, event in enumerate(view.events):
        known = _known(event)
        for read in known:
            constraints.edges += [(place[one], place[two]) for one, two in itertools.pairwise(read.chain)]
            if event.writes:
                constraints.edges += [(place[w], place[at]) for w in read.chain]
                _constrain(view, at, read, constraints, place, place)
                continue
            for last in dict.fromkeys(other.chain[-1] for other in known if other.chain):
                if last == read.anchor:
                    continue
                for w in bits(_others(view, at, read)):
                    if w == last and read.anchor < 0:
                        question.wrong = at
                        question.says = f"it saw one half of operation {view.events[w].number} and not the other"
                        return
                    if w == last:
                        constraints.edges.append((place[w], place[read.anchor]))
                    else:
                        # An edge from a node to itself never holds.
                        then = (place[w], place[read.anchor]) if read.anchor >= 0 else (place[last], place[last])
                        constraints.implications.append(((place[w], place[last]), then))
    question.parts.append((constraints, nodes))


def _add_real_time(
    view: _View,
    constraints: Constraints,
    names: list[int],
    tails: Sequence[int],
    heads: Sequence[int],
    delta_s: float,
    begins: dict[int, int] | None = None,
) -> None:
    """Add that what returned more than delta before another was invoked precedes it.

    A chain of points in time keeps the number of edges linear.
    """
    # Where an event has two nodes, its end is the first.
    place = {at: number for number, at in reversed(list(enumerate(names))) if at >= 0}
    ended = sorted((view.events[at].returned, at) for at in tails if view.events[at].returned < math.inf)
    first = constraints.nodes
    rank = list(constraints.rank)
    for number, (returned, at) in enumerate(ended):
        constraints.edges.append((place[at], first + number))
        if number:
            constraints.edges.append((first + number - 1, first + number))
        names.append(-1)
        rank.append(returned)
    constraints.nodes += len(ended)
    constraints.rank = rank
    times = [returned for returned, _ in ended]
    for at in heads:
        before = bisect.bisect_left(times, view.events[at].invoked - delta_s)
        if before:
            head = place[at] if begins is None else begins[at]
            constraints.edges.append((first + before - 1, head))


def _ask_replay(view: _View, configuration: Configuration, question: Question) -> None:
    """Models in which each process sees a beginning of its own order of all writes."""
    causal = CAUSES in configuration.closure
    together = configuration.ordering == "keys-replay"
    whole = Constraints(0)
    whole_names: list[int] = []
    copies: list[dict[int, int]] = []
    for process, session in view.sessions.items():
        chosen = sorted(set(range(len(view.events)) if causal else bits(view.all_writers)) | set(session))
        place = {at: number for number, at in enumerate(chosen)}
        ranks = [view.events[at].invoked for at in chosen]
        constraints = Constraints(len(chosen), rank=ranks)
        session_order = view.session_edges(chosen) if configuration.closure >= PRAM else []
        constraints.edges += [(place[one], place[two]) for one, two in session_order]
        if causal:
            constraints.edges += [(place[one], place[two]) for one, two in view.messages]
        for at in chosen:
            event = view.events[at]
            mine = event.process == process
            for read in _known(event):
                if mine or causal:
                    constraints.edges += [(place[w], place[at]) for w in read.chain]
                if mine:
                    _constrain(view, at, read, constraints, place, place)
        if together:
            offset = whole.nodes
            whole.edges += [(a + offset, b + offset) for a, b in constraints.edges]
            whole.alternatives += [
                ((a + offset, b + offset), (c + offset, d + offset)) for (a, b), (c, d) in constraints.alternatives
            ]
            whole.nodes += constraints.nodes
            whole.rank = [*whole.rank, *ranks]
            whole_names += chosen
            copies.append({at: number + offset for at, number in place.items()})
        else:
            question.parts.append((constraints, chosen))
    if together and copies:
        for one, two in zip(copies, [*copies[1:], copies[0]], strict=True):
            for mask in view.writers.values():
                for a in bits(mask):
                    for b in bits(mask):
                        # Both orders are total, so that one of these two says that they agree.
                        if a != b and one is not two:
                            whole.alternatives.append(((one[a], one[b]), (two[b], two[a])))
        question.parts.append((whole, whole_names))


def _constrain(
    view: _View, at: int, read: Read, constraints: Constraints, begin: dict[int, int], end: dict[int, int]
) -> None:
    """Add that a read saw the last write before it; events begin and end at nodes that may differ."""
    for one, two in itertools.pairwise(read.chain):
        constraints.edges.append((end[one], end[two]))
    for w in bits(_others(view, at, read)):
        if w not in end:
            continue
        if read.anchor < 0:
            constraints.edges.append((begin[at], end[w]))
        else:
            constraints.alternatives.append(((end[w], end[read.anchor]), (begin[at], end[w])))


def _ask_single(view: _View, configuration: Configuration, clocks: Clocks, question: Question) -> None:
    """Models with one order for all, in which an event sees a beginning of it."""
    events = view.events
    quiet = configuration.value == "last-if-quiet"
    chosen = [at for at, event in enumerate(events) if event.quiet or not quiet]
    n = len(chosen)
    end = {at: number for number, at in enumerate(chosen)}
    split = configuration.ordering == "prefix"
    begin = {at: n + number for number, at in enumerate(chosen)} if split else end
    ranks = [events[at].invoked for at in chosen]
    constraints = Constraints(2 * n if split else n, rank=[*ranks, *ranks] if split else ranks)
    names = [*chosen, *chosen] if split else list(chosen)
    if split:
        constraints.edges += [(begin[at], end[at]) for at in chosen]
    respects = configuration.respected
    if SO in respects:
        constraints.edges += [(end[one], begin[two]) for one, two in view.session_edges(chosen)]
        constraints.edges += [(end[one], begin[two]) for one, two in view.messages if one in end and two in end]
    else:
        writers = [at for at in chosen if events[at].writes]
        constraints.edges += [(end[a], begin[b]) for a, b in view.session_edges(writers) if SO_WRITES in respects]
    for at in chosen:
        for read in _known(events[at]):
            constraints.edges += [(end[w], begin[at]) for w in read.chain]
            _constrain(view, at, read, constraints, begin, end)
    if split and CONFLICTS in configuration.closure:
        for mask in view.writers.values():
            same = [at for at in bits(mask) if at in end]
            for number, a in enumerate(same):
                for b in same[number + 1 :]:
                    constraints.alternatives.append(((end[a], begin[b]), (end[b], begin[a])))
    writers = [at for at in chosen if events[at].writes]
    readers = [at for at in chosen if not events[at].writes]
    if RT in respects:
        _add_real_time(view, constraints, names, chosen, chosen, 0.0, begin)
    else:
        if RT_WRITES in respects:
            _add_real_time(view, constraints, names, writers, writers, 0.0, begin)
        if RT_FROM_WRITES in respects:
            _add_real_time(view, constraints, names, writers, readers, 0.0, begin)
        elif RT_DELTA in respects:
            _add_real_time(view, constraints, names, writers, readers, clocks.delta_s, begin)
    question.parts.append((constraints, names))
