"""The direct serialization graph of a history of transactions, and the anomalies that its cycles are.

Which transaction wrote what another one read is known from unlike values.  The order of the versions of a list is the
longest list that anybody read; a list that was read holds all versions before it.  That gives write-write, write-read
and read-write (anti-dependency) edges.  With the order of sessions and of real time beside them, a cycle is an anomaly
that has a name, and of lists whose every value was appended once no cycle means that there is an order.

Sources: A. Adya, "Weak Consistency: A Generalized Theory and Optimistic Implementations for Distributed Transactions",
MIT, 1999 (G0 to G2); K. Kingsbury, P. Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations",
VLDB 14(3), 2020 (the inference, the names, real time and sessions).

Differs from the sources:
1. Registers have the edges that single transactions show (a read before a write of the same key, the initial value);
   whether other orders exist is left to the search (:mod:`wavetank.check.consistency.orders`).
2. Real time and what nobody read go through points in time and ends of lists, so that edges stay linear in number.
3. One example of each anomaly is kept, the shortest that was met.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.check.consistency.configurations import COMMITTED, CONFLICTS, RT, SO, Configuration
from wavetank.check.consistency.objects import frozen, items_of, list_keys, steps_of
from wavetank.check.consistency.orders import in_order, strong_components
from wavetank.sim.history import History

WW, WR, RW, PROCESS, REAL_TIME, VIA = range(6)
"""Kinds of edges; ``VIA`` leads on from a point that is no transaction."""
KIND_NAMES = ("ww", "wr", "rw", "process", "rt", "")
# How far cycles are looked for: components of the graph, and anti-dependencies of each.
_MOST_COMPONENTS, _MOST_STARTS = 8, 200
_DATA = (WW, WR, RW, VIA)


class Link(NamedTuple):
    """One edge between two transactions.

    Parameters
    ----------
    tail, head : int
        Numbers of operations in the history; the first comes before the second.
    kind : str
        ``ww``, ``wr``, ``rw``, ``process`` or ``rt``.
    key : str
        What both touched; empty for ``process`` and ``rt``.
    """

    tail: int
    head: int
    kind: str
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """Something that a level of isolation forbids.

    Parameters
    ----------
    name : str
        As Elle has it: ``G0``, ``G1a``, ``G1b``, ``G1c``, ``G-single``, ``G-nonadjacent`` or ``G2-item``, the cycles
        also with ``-process`` or ``-realtime``; ``lost-update``, ``dirty-update``, ``internal``,
        ``incompatible-order``, ``duplicate-elements``, ``thin-air``.
    says : str
        One line.
    operations : tuple of int
    links : tuple of Link
        The cycle, each edge beginning where the one before ended; empty where it is no cycle.
    """

    name: str
    says: str
    operations: tuple[int, ...]
    links: tuple[Link, ...] = ()


@dataclass
class Dependencies:
    """Transactions and what is known of their order.

    Parameters
    ----------
    numbers : list of int
        Of each node the operation in the history; -1 for points that are no transactions.
    complete : bool
        Whether the edges decide: if they have no cycle, the transactions have an order that explains all.
    clear : bool
        Whether of every value one transaction alone can be the writer, so that each anomaly is sure.
    findings : list of Anomaly
        Those that are no cycles.
    """

    numbers: list[int]
    keys: list[str]
    rank: list[float]
    complete: bool = True
    clear: bool = True
    findings: list[Anomaly] = field(default_factory=list)
    tails: array[int] = field(default_factory=lambda: array("q"))
    heads: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("b"))
    key_of: array[int] = field(default_factory=lambda: array("i"))

    def add(self, tail: int, head: int, kind: int, key: int = -1) -> None:
        """Add an edge; one from a transaction to itself says nothing."""
        if tail != head:
            self.tails.append(tail)
            self.heads.append(head)
            self.kinds.append(kind)
            self.key_of.append(key)

    def point(self, rank: float) -> int:
        """Add a node that is no transaction."""
        self.numbers.append(-1)
        self.rank.append(rank)
        return len(self.numbers) - 1

    def chosen(self, respects: frozenset[str]) -> NDArray[np.bool_]:
        """Return which edges a model with these orders has."""
        kinds = np.frombuffer(self.kinds, np.int8) if self.kinds else np.zeros(0, np.int8)
        found: NDArray[np.bool_] = np.isin(kinds, _DATA)
        if respects & {SO, RT}:
            found |= kinds == PROCESS
        if RT in respects:
            found |= kinds == REAL_TIME
        return found

    def order(self, respects: frozenset[str]) -> tuple[int, ...] | None:
        """Return operations in an order that keeps all edges, None if they have a cycle."""
        if not self.numbers:
            return ()
        chosen = self.chosen(respects)
        edges = np.column_stack([_ints(self.tails)[chosen], _ints(self.heads)[chosen]])
        found = in_order(edges, np.asarray(self.rank))
        if len(found) < len(self.numbers):
            return None
        numbers = np.asarray(self.numbers)[found]
        return tuple(numbers[numbers >= 0].tolist())


def _ints(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _base(name: str) -> str:
    """Return an anomaly's name without what sessions or real time added."""
    return name.removesuffix("-process").removesuffix("-realtime")


def forbids(configuration: Configuration, name: str) -> bool:
    """Return whether a model forbids an anomaly of this name.

    Parameters
    ----------
    configuration : Configuration
    name : str
        See :class:`Anomaly`.
    """
    base = _base(name)
    if name.endswith("-process") and not configuration.respected & {SO, RT}:
        return False
    if name.endswith("-realtime") and RT not in configuration.respected:
        return False
    if configuration.value != "last":
        # Reads beside writes may see anything.
        return False
    if configuration.per_key and base not in ("internal", "thin-air", "duplicate-elements"):
        # Of transactions on several keys such a model sees the parts.
        return False
    ordering, supplied = configuration.ordering, configuration.supplied
    one_order = ordering in ("total", "prefix", "single", "updates")
    conflicts = CONFLICTS in supplied
    return {
        "internal": True,
        "thin-air": True,
        "duplicate-elements": True,
        "incompatible-order": conflicts and ordering in ("key", "prefix", "single", "updates"),
        "G0": one_order,
        "G1a": COMMITTED in supplied,
        "G1b": COMMITTED in supplied,
        "G1c": COMMITTED in supplied and one_order,
        "dirty-update": COMMITTED in supplied,
        "lost-update": conflicts and ordering in ("key", "prefix", "single", "updates"),
        "G-single": conflicts and ordering in ("prefix", "single", "updates"),
        "G-nonadjacent": conflicts and ordering in ("prefix", "single"),
        "G2-item": ordering == "single",
    }.get(base, False)


class _Reading(NamedTuple):
    """What a transaction read of a key before its own writes; of a register a tuple of the one value."""

    number: int
    items: tuple[Hashable, ...]


class _Builder:
    """Reads a history's transactions once and keeps what the edges need."""

    def __init__(self, history: History) -> None:
        self.operations = history.operations
        self.initial = frozen(history.initial)
        self.steps = [steps_of(op) for op in self.operations]
        self.key_numbers: dict[str, int] = {}
        self.findings: list[Anomaly] = []
        self.complete = not history.messages
        written = {key for steps in self.steps for action, key, _ in steps if action == "write"}
        self.lists = list_keys(self.operations)
        self.complete &= not written
        self.whole = bool(self.lists & written)
        # (key, value) -> (operation, whether it is the last of its transaction); several make it unclear.
        self.writer: dict[tuple[str, Hashable], tuple[int, bool]] = {}
        self.own: dict[tuple[int, str], list[Hashable]] = {}
        self.writers_of: dict[str, list[int]] = {}
        self.unclear: set[tuple[str, Hashable]] = set()
        for number, steps in enumerate(self.steps):
            last = {key: at for at, (action, key, _) in enumerate(steps) if action != "read"}
            for at, (action, key, value) in enumerate(steps):
                if action == "read":
                    continue
                self.key_numbers.setdefault(key, len(self.key_numbers))
                name = (key, frozen(value))
                if name in self.writer:
                    self.unclear.add(name)
                self.writer[name] = (number, last[key] == at)
                mine = self.own.setdefault((number, key), [])
                if not mine:
                    self.writers_of.setdefault(key, []).append(number)
                mine.append(name[1])
        self.complete &= not self.unclear

    def committed(self, number: int) -> bool:
        op = self.operations[number]
        return op.returned is not None and op.result is not False

    def report(self, name: str, number: int, says: str, *others: int) -> None:
        self.findings.append(
            Anomaly(name=name, says=f"operation {number}: {says}", operations=tuple(dict.fromkeys((number, *others))))
        )


def dependencies(history: History) -> Dependencies:
    """Return the graph of a history of transactions.

    Parameters
    ----------
    history : History
        Of transactions alone.
    """
    build = _Builder(history)
    readings = _readings(build)
    seen = {build.writer[name][0] for name in _names_seen(build, readings) if name in build.writer}
    numbers = [
        number
        for number, op in enumerate(build.operations)
        if op.result is not False and (op.returned is not None or number in seen)
    ]
    node_of = {number: node for node, number in enumerate(numbers)}
    found = Dependencies(list(numbers), [], [build.operations[number].invoked for number in numbers])
    for key, of_key in readings.items():
        build.key_numbers.setdefault(key, len(build.key_numbers))
        if key in build.lists:
            _list_edges(build, key, of_key, node_of, found)
        else:
            _register_edges(build, key, of_key, node_of, found)
    _lost_updates(build, readings)
    _session_edges(build, numbers, found)
    _real_time_edges(build, numbers, found)
    found.keys = list(build.key_numbers)
    found.findings, found.complete = build.findings, build.complete
    found.clear = not (build.unclear or build.whole) and not any(value == build.initial for _, value in build.writer)
    return found


def _readings(build: _Builder) -> dict[str, list[_Reading]]:
    """Return by key what each committed transaction read first; reads that its own steps explain are checked here."""
    found: dict[str, list[_Reading]] = {}
    for number, steps in enumerate(build.steps):
        if not build.committed(number):
            continue
        expected: dict[str, Any] = {}
        mine: dict[str, list[Hashable]] = {}
        for action, key, value in steps:
            if action == "append":
                mine.setdefault(key, []).append(frozen(value))
                if key in expected:
                    expected[key] = (*items_of(expected[key]), frozen(value))
                continue
            if action == "write":
                expected[key] = frozen(value)
                mine.setdefault(key, []).append(expected[key])
                continue
            held: Any = items_of(value) if key in build.lists else frozen(value)
            if key in expected:
                if held != expected[key]:
                    build.report("internal", number, f"it read {value!r} of {key}, and should have read "
                                 f"{_plain(expected[key])!r} by its own steps")  # fmt: skip
                continue
            expected[key] = held
            if key not in build.lists:
                found.setdefault(key, []).append(_Reading(number, (held,)))
                continue
            ending = tuple(mine.get(key, ()))
            if ending and held[-len(ending) :] != ending:
                build.report("internal", number, f"it appended {list(ending)!r} to {key} and then read {value!r}")
                continue
            before = held[: len(held) - len(ending)]
            # Of whatever length the list is: nobody reads what it appends later, or once more what it appended.
            early = [item for item in build.own.get((number, key), ()) if item in before]
            if early and (key, early[0]) not in build.unclear:
                build.report("internal", number, f"it read {early[0]!r} of {key} before appending it")
                continue
            found.setdefault(key, []).append(_Reading(number, before))
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _names_seen(build: _Builder, readings: dict[str, list[_Reading]]) -> Iterator[tuple[str, Hashable]]:
    for key, of_key in readings.items():
        longest: tuple[Hashable, ...] = ()
        for reading in of_key:
            if len(reading.items) > len(longest) and reading.items[: len(longest)] == longest:
                fresh, longest = reading.items[len(longest) :], reading.items
            elif longest[: len(reading.items)] == reading.items:
                continue
            else:
                fresh = reading.items
            for item in fresh:
                yield key, item


def _list_edges(
    build: _Builder, key: str, of_key: list[_Reading], node_of: dict[int, int], found: Dependencies
) -> None:
    """Add the edges that the longest list of a key and its beginnings show."""
    longest = max(of_key, key=lambda reading: len(reading.items))
    versions = longest.items
    if not _checked_versions(build, key, longest):
        return
    name = build.key_numbers[key]
    writers = [build.writer[key, item][0] for item in versions]
    for one, two in itertools.pairwise(writers):
        if one in node_of and two in node_of:
            found.add(node_of[one], node_of[two], WW, name)
    known = set(versions)
    late = [
        node_of[number]
        for number in build.writers_of.get(key, ())
        if number in node_of and not known.issuperset(build.own[number, key])
    ]
    ends = _Ends(found, late, name)
    if late and writers and writers[-1] in node_of:
        ends.lead(node_of[writers[-1]], WW)
    for reading in of_key:
        reader, length = node_of[reading.number], len(reading.items)
        if reading.items != versions[:length]:
            _incompatible(build, key, reading, longest)
            continue
        if length:
            before, is_last = build.writer[key, versions[length - 1]]
            if not is_last and before != reading.number:
                says = f"it read {key} up to {versions[length - 1]!r}, in the middle of operation {before}"
                build.report("G1b", reading.number, says, before)
            if before in node_of:
                found.add(node_of[before], reader, WR, name)
        if length < len(versions):
            following = writers[length]
            if following in node_of and not (length and following == writers[length - 1]):
                found.add(reader, node_of[following], RW, name)
        else:
            ends.lead(reader, RW)


class _Ends:
    """Points before all of some transactions, and before all but one: from each to all others in linear edges."""

    def __init__(self, found: Dependencies, late: Sequence[int], key: int) -> None:
        self.found, self.key = found, key
        self.place = {node: at for at, node in enumerate(late)}
        self.up: list[int] = []
        self.down: list[int] = []
        if not late:
            return
        rank = min(found.rank[node] for node in late)
        for points, nodes in ((self.up, late), (self.down, late[::-1])):
            for node in nodes:
                point = found.point(rank)
                found.add(point, node, VIA, key)
                if points:
                    found.add(point, points[-1], VIA, key)
                points.append(point)

    def lead(self, node: int, kind: int) -> None:
        """Add that a transaction comes before all of them but itself."""
        if not self.place:
            return
        at = self.place.get(node)
        if at is None:
            self.found.add(node, self.up[-1], kind, self.key)
            return
        if at:
            self.found.add(node, self.up[at - 1], kind, self.key)
        if at + 1 < len(self.place):
            self.found.add(node, self.down[len(self.place) - 2 - at], kind, self.key)


def _checked_versions(build: _Builder, key: str, longest: _Reading) -> bool:
    """Return whether a list can be what one key held: every item appended once, and by whom is known."""
    if not _known_items(build, key, longest):
        return False
    place = {item: at for at, item in enumerate(longest.items)}
    aborted = -1
    for item in longest.items:
        number = build.writer[key, item][0]
        if build.operations[number].result is False:
            aborted = number
        elif aborted >= 0:
            says = f"it appended {item!r} to {key} on top of what the aborted operation {aborted} had appended"
            build.report("dirty-update", number, says, aborted)
            aborted = -1
        places = [place[own] for own in build.own[number, key] if own in place]
        if places != sorted(places):
            says = f"it read what operation {number} appended to {key} in another order"
            build.report("incompatible-order", longest.number, says, number)
            return False
    return True


def _known_items(build: _Builder, key: str, reading: _Reading) -> bool:
    """Return whether each item of a list was appended once; or report what it is instead."""
    if any((key, item) in build.unclear for item in reading.items):
        return False
    if len(set(reading.items)) != len(reading.items):
        build.report("duplicate-elements", reading.number, f"it read an element of {key} twice")
        return False
    for item in reading.items:
        if (key, item) not in build.writer:
            build.report("thin-air", reading.number, f"it read {item!r} of {key}, which nobody appended")
            return False
        number = build.writer[key, item][0]
        if build.operations[number].result is False:
            says = f"it read {item!r} of {key}, which the aborted operation {number} appended"
            build.report("G1a", reading.number, says, number)
    return True


def _incompatible(build: _Builder, key: str, reading: _Reading, longest: _Reading) -> None:
    """Report a list that does not begin the longest one."""
    if _known_items(build, key, reading):
        says = f"it read {_brief(reading.items)} of {key}, and operation {longest.number} {_brief(longest.items)}"
        build.report("incompatible-order", reading.number, says, longest.number)


def _brief(items: tuple[Hashable, ...]) -> str:
    text = "[" + " ".join(map(str, items)) + "]"
    return text if len(text) <= 60 else f"[...{text[-56:]}"


def _register_edges(
    build: _Builder, key: str, of_key: list[_Reading], node_of: dict[int, int], found: Dependencies
) -> None:
    """Add who read whose value, and what a read before a write of one transaction says of the order of values."""
    name = build.key_numbers[key]
    # Value -> writers that read it before, and so come next.
    following: dict[Hashable, list[int]] = {}
    for reading in of_key:
        if (reading.number, key) in build.own:
            following.setdefault(reading.items[0], []).append(node_of[reading.number])
    # Every writer comes after the initial value.
    is_initial = (key, build.initial) not in build.writer
    writers = [node_of[number] for number in build.writers_of.get(key, ()) if number in node_of]
    ends = _Ends(found, writers, name)
    for reading in of_key:
        value, reader = reading.items[0], node_of[reading.number]
        if (key, value) in build.unclear:
            continue
        wrote = build.writer.get((key, value))
        if wrote is None:
            if value != build.initial:
                build.report("thin-air", reading.number, f"it read {value!r} of {key}, which nobody wrote")
            elif is_initial:
                ends.lead(reader, RW)
            continue
        number, is_last = wrote
        if value == build.initial:
            continue
        if build.operations[number].result is False:
            says = f"it read {value!r} of {key}, which the aborted operation {number} wrote"
            build.report("G1a", reading.number, says, number)
        elif number == reading.number:
            build.report("internal", number, f"it read {value!r} of {key} before writing it")
        elif not is_last:
            says = f"it read {value!r} of {key}, which operation {number} overwrote itself"
            build.report("G1b", reading.number, says, number)
        elif number in node_of:
            found.add(node_of[number], reader, WR, name)
            for node in following.get(value, ())[:_MOST_STARTS]:
                found.add(node_of[number], node, WW, name)
                found.add(reader, node, RW, name)


def _lost_updates(build: _Builder, readings: dict[str, list[_Reading]]) -> None:
    """Report transactions that read the same version of a key and both wrote it."""
    for key, of_key in readings.items():
        first: dict[Hashable, int] = {}
        for reading in of_key:
            if (reading.number, key) not in build.own:
                continue
            version: Hashable = (len(reading.items), reading.items[-1:]) if key in build.lists else reading.items
            if key not in build.lists and (key, reading.items[0]) in build.unclear:
                continue
            other = first.setdefault(version, reading.number)
            if other != reading.number:
                says = f"it and operation {other} both read {_brief(reading.items)} of {key} and wrote it"
                build.report("lost-update", reading.number, says, other)
                break


def _session_edges(build: _Builder, numbers: Sequence[int], found: Dependencies) -> None:
    last: dict[str, int] = {}
    for node, number in enumerate(numbers):
        operation = build.operations[number]
        if operation.process in last:
            found.add(last[operation.process], node, PROCESS)
        if operation.returned is not None:
            last[operation.process] = node


def _real_time_edges(build: _Builder, numbers: Sequence[int], found: Dependencies) -> None:
    """Add that what returned before another one was invoked precedes it, by way of a chain of points in time."""
    operations = build.operations
    ended = sorted(
        (returned, node) for node, number in enumerate(numbers) if (returned := operations[number].returned) is not None
    )
    points: list[int] = []
    times = [returned for returned, _ in ended]
    for returned, node in ended:
        point = found.point(returned)
        found.add(node, point, REAL_TIME)
        if points:
            # Along the chain of time itself; only models with real time enter it.
            found.add(points[-1], point, VIA)
        points.append(point)
    for node, number in enumerate(numbers):
        before = bisect.bisect_left(times, operations[number].invoked)
        if before:
            found.add(points[before - 1], node, VIA)


class _Graph:
    """A strongly connected part of the graph, for finding cycles of one kind or another."""

    def __init__(self, found: Dependencies, chosen: NDArray[np.bool_], nodes: set[int]) -> None:
        self.found = found
        self.after: dict[int, list[tuple[int, int, int]]] = {node: [] for node in nodes}
        at = np.flatnonzero(chosen)
        tails, heads = _ints(found.tails)[at].tolist(), _ints(found.heads)[at].tolist()
        for edge, tail, head in zip(at.tolist(), tails, heads, strict=True):
            if tail in nodes and head in nodes:
                self.after[tail].append((head, found.kinds[edge], edge))

    def back(self, begin: int, first: int, kinds: frozenset[int], *, apart: bool = False) -> list[int] | None:
        """Return the edges of a shortest way from the head of an edge to its tail, that edge first.

        With ``apart`` no two anti-dependencies follow each other, nor does one close the circle after another.
        """
        found = self.found
        goal, start = begin, found.heads[first]
        came: dict[tuple[int, bool], tuple[tuple[int, bool], int]] = {}
        state = (start, apart)
        seen = {state}
        front = deque([state])
        while front:
            state = front.popleft()
            node, after_rw = state
            for head, kind, edge in self.after[node]:
                if kind != VIA and kind not in kinds:
                    continue
                if apart and kind == RW and after_rw:
                    continue
                following = (head, apart and (kind == RW or (kind == VIA and after_rw)))
                if following in seen:
                    continue
                if head == goal and not following[1]:
                    path = [edge]
                    while state != (start, apart):
                        state, edge = came[state]
                        path.append(edge)
                    return [first, *reversed(path)]
                seen.add(following)
                came[following] = (state, edge)
                front.append(following)
        return None


def _components(found: Dependencies, chosen: NDArray[np.bool_]) -> list[set[int]]:
    """Return the strongly connected parts that have a cycle, the smallest first."""
    label = strong_components(_ints(found.tails)[chosen], _ints(found.heads)[chosen], len(found.numbers))
    sizes = np.bincount(label, minlength=1)
    large = np.flatnonzero(sizes > 1)
    chosen_labels = large[np.argsort(sizes[large], kind="stable")][:_MOST_COMPONENTS]
    return [set(np.flatnonzero(label == one).tolist()) for one in chosen_labels.tolist()]


def cycles(found: Dependencies, in_budget: Callable[[], bool] = lambda: True) -> list[Anomaly]:
    """Return an example of each anomaly that is a cycle, the gravest first.

    Parameters
    ----------
    found : Dependencies
    in_budget : callable
        False ends the search; what was found stays.
    """
    answers: dict[str, Anomaly] = {}
    if not len(found.numbers):
        return []
    for respects in (frozenset[str](), frozenset({SO}), frozenset({RT})):
        chosen = found.chosen(respects)
        extra = frozenset({PROCESS} if SO in respects else {PROCESS, REAL_TIME} if RT in respects else ())
        for nodes in _components(found, chosen):
            graph = _Graph(found, chosen, nodes)
            for anomaly in _of_component(graph, extra, in_budget):
                answers.setdefault(anomaly.name, anomaly)
            if not in_budget():
                break
    return sorted(answers.values(), key=lambda anomaly: _GRAVITY.index(_base(anomaly.name)))


_GRAVITY = ("G0", "G1c", "G-single", "G-nonadjacent", "G2-item")


def _of_component(graph: _Graph, extra: frozenset[int], in_budget: Callable[[], bool]) -> Iterator[Anomaly]:
    """Yield the shortest cycle met of each class in one part of the graph."""
    found = graph.found
    starts: dict[int, list[tuple[int, int]]] = {WW: [], WR: [], RW: []}
    for node, after in graph.after.items():
        for _, kind, edge in after:
            if kind in starts and len(starts[kind]) < _MOST_STARTS:
                starts[kind].append((node, edge))
    classes: tuple[tuple[int, frozenset[int], bool], ...] = (
        (WW, extra | {WW}, False),
        (WR, extra | {WW, WR}, False),
        (RW, extra | {WW, WR}, False),
        (RW, extra | {WW, WR, RW}, True),
        (RW, extra | {WW, WR, RW}, False),
    )
    known = False
    for kind, kinds, apart in classes:
        if known and kind == RW and RW in kinds:
            # What holds less grave cycles besides is not worth another one.
            continue
        best: list[int] | None = None
        for node, edge in starts[kind]:
            path = graph.back(node, edge, kinds, apart=apart)
            if path is not None and (best is None or len(path) < len(best)):
                best = path
            if not in_budget():
                break
        if best is not None:
            known = True
            yield _named(found, best)


def _named(found: Dependencies, path: Sequence[int]) -> Anomaly:
    """Return the anomaly that a cycle of edges is."""
    links: list[Link] = []
    tail = kind = key = -1
    for edge in path:
        if found.kinds[edge] != VIA:
            kind, key = found.kinds[edge], found.key_of[edge]
        if found.numbers[found.tails[edge]] >= 0:
            tail = found.numbers[found.tails[edge]]
        head = found.numbers[found.heads[edge]]
        if head >= 0:
            links.append(Link(tail, head, KIND_NAMES[kind], found.keys[key] if key >= 0 else ""))
    if tail >= 0 and links and links[-1].head != links[0].tail:
        links.append(Link(tail, links[0].tail, KIND_NAMES[kind], found.keys[key] if key >= 0 else ""))
    kinds = [link.kind for link in links]
    anti = kinds.count("rw")
    if anti == 0:
        name = "G1c" if "wr" in kinds else "G0"
    elif anti == 1:
        name = "G-single"
    else:
        beside = any(one == two == "rw" for one, two in zip(kinds, [*kinds[1:], kinds[0]], strict=True))
        name = "G2-item" if beside else "G-nonadjacent"
    name += "-realtime" if "rt" in kinds else "-process" if "process" in kinds else ""
    around = "".join(f"{link.tail} -{link.kind}{' ' + link.key if link.key else ''}-> " for link in links)
    says = f"{around}{links[0].tail}"
    return Anomaly(name=name, says=says, operations=tuple(link.tail for link in links), links=tuple(links))
