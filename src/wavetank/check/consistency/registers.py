"""Models judged by replaying registers, where values come again and nobody can say who wrote what was read.

A model with one order for all asks whether registers could have answered its events in an order that it allows, so the
order is searched for and not the writers.  So does a model that gives each process an order of its own.  Of other
models an order found for a stronger one, or the writers that a process's own order names, make a first guess.

Source: R. Landers, K. Kramer, "Light Cone Consistency: Toward a Unified Theory of Consistency in Message-Passing
Systems", arXiv 2605.09114, 2026 (the models); P. Gibbons, E. Korach, "Testing Shared Memories", SIAM Journal on
Computing 26(4), 1997 (replay).

Differs from the source:
1. Where every event touches one register, a snapshot that no other writer of the register may overlap is one place in
   one order: snapshot isolation and update serializability are then serializability.  With one register in all,
   parallel snapshot isolation and processor consistency are sequential.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wavetank.check.consistency import objects
from wavetank.check.consistency.configurations import CAUSES, CONFLICTS, EVERYTHING, SO, Configuration
from wavetank.check.consistency.events import Event, Events, Read
from wavetank.check.consistency.objects import frozen, list_keys
from wavetank.check.consistency.orders import Constraints
from wavetank.check.consistency.replay import NEED, NEED_OTHER, PUT, Replay, Step, replay
from wavetank.check.consistency.visibility import Clocks, ask
from wavetank.check.deadline import Allowance
from wavetank.check.report import Outcome
from wavetank.sim.history import History, Operation

Sources = dict[tuple[int, str], int]
"""Event and key to the event whose write it read, -1 for the initial value."""


@dataclass(frozen=True)
class Replayed:
    """What replaying found.

    Parameters
    ----------
    outcome : str
    order : tuple of int
        Events, of one process after another where each has its own order.
    sources : dict
        Who wrote what was read, by the order of the reader.
    says : str
    """

    outcome: Outcome
    order: tuple[int, ...] = ()
    sources: Sources = field(default_factory=dict)
    says: str = ""


def steps_of(operation: Operation) -> tuple[Step, ...]:
    """Return what an operation on registers needs and does; of one that never returned, what it does if it happened.

    Parameters
    ----------
    operation : Operation
        A read, write, compare-and-set that succeeded or failed or never returned, or transaction of reads and writes.
    """
    key, action, value = operation.key, operation.action, operation.value
    back = operation.returned is not None
    if action == "read":
        return (Step(NEED, key, frozen(operation.result)),) if back else ()
    if action == "write":
        return (Step(PUT, key, frozen(value)),)
    if action == "cas":
        old, new = frozen(value[0]), frozen(value[1])
        if operation.result is False:
            return (Step(NEED_OTHER, key, old),)
        return (Step(NEED, key, old), Step(PUT, key, new))
    return tuple(
        Step(NEED if what == "read" else PUT, name, frozen(each))
        for what, name, each in objects.steps_of(operation)
        if what != "read" or back
    )


def replayed(
    history: History, found: Events, configuration: Configuration, clocks: Clocks, allowance: Allowance
) -> Replayed | None:
    """Judge by replaying registers, or return None for a model, or a history, that this does not decide.

    Parameters
    ----------
    history : History
        Of registers; one with lists beside them is not decided.
    found : Events
        The same as events.
    configuration : Configuration
    clocks : Clocks
    allowance : Allowance
    """
    if list_keys(history.operations):
        # A list keeps what it held, and only a write may replace what a register does.
        return None
    return _Asked(history, found, clocks, allowance).judged(configuration)


def _as_one_order(events: Sequence[Event], configuration: Configuration, messages: bool) -> Configuration | None:
    """Return the model of one order for all that allows the same of these events, or None."""
    if configuration.ordering == "single":
        return None if configuration.value == "one-of-last-k" else configuration
    touched = [{*_touched(event)} for event in events]
    if any(len(keys) > 1 for keys in touched) or CONFLICTS not in configuration.closure | (
        {CONFLICTS} if configuration.ordering == "keys-replay" else set()
    ):
        return None
    if configuration.ordering in ("prefix", "updates"):
        return replace(configuration, ordering="single")
    alone = len(set().union(*touched)) <= 1 and not (messages and configuration.ordering == "keys-replay")
    if alone and configuration.ordering in ("key", "keys-replay"):
        return replace(
            configuration, closure=frozenset(EVERYTHING | {CONFLICTS}), ordering="single", respects=frozenset({SO})
        )
    return None


def _past_only(events: Sequence[Event], configuration: Configuration, sources: Sources) -> bool:
    """Return whether nobody read what began after it had returned."""
    return all(
        source < 0
        or events[source].invoked <= events[at].returned
        or (configuration.value == "last-if-quiet" and not events[at].quiet)
        for (at, _), source in sources.items()
    )


def _touched(event: Event) -> tuple[str, ...]:
    return (*event.writes, *(read.key for read in event.reads))


def _keys(events: Sequence[Event], configuration: Configuration) -> list[str | None]:
    """Return the keys that are asked about one by one, or None for all together."""
    return [*dict.fromkeys(key for event in events for key in _touched(event))] if configuration.per_key else [None]


def _sources(order: Iterable[int], steps: Mapping[int, tuple[Step, ...]]) -> Sources:
    """Return whose writes the events of an order read."""
    last: dict[str, int] = {}
    found: Sources = {}
    for at in order:
        for step in steps[at]:
            if step.kind != PUT:
                found.setdefault((at, step.key), last.get(step.key, -1))
        for step in steps[at]:
            if step.kind == PUT:
                last[step.key] = at
    return found


@dataclass(frozen=True)
class _Asked:
    """A history of registers, and what a replay of it may use."""

    history: History
    found: Events
    clocks: Clocks
    allowance: Allowance

    def judged(self, configuration: Configuration) -> Replayed | None:
        """Judge by one order for all, or by one for each process; None for a model that has neither."""
        events = self.found.events
        alike = _as_one_order(events, configuration, bool(self.found.messages))
        if alike is not None:
            answer = self._one_order(alike)
            if answer.outcome == "holds" and alike.timed and not _past_only(events, alike, answer.sources):
                # It holds of other writers, or not at all: an order with each read before what began later shows it.
                answer = self._one_order(alike, reads_first=True)
                return answer if answer.outcome == "holds" else None
            return answer
        if configuration.ordering == "replay" and CAUSES not in configuration.closure:
            return self._own_orders(configuration)
        return None

    def _parts(self, configuration: Configuration) -> list[tuple[Constraints, list[int]]]:
        """Return the orders asked for, if nobody asks what was read."""
        masked = [
            replace(event, reads=[Read(read.key, choices=(-1,)) for read in event.reads]) for event in self.found.events
        ]
        return ask(masked, configuration, self.clocks, self.found.messages).parts

    def _steps(self, at: int, key: str | None) -> tuple[Step, ...]:
        """Return the steps of an event, on one key if there is one."""
        steps = steps_of(self.history.operations[self.found.events[at].number])
        return steps if key is None else tuple(step for step in steps if step.key == key)

    def _question(self, steps: list[tuple[Step, ...]], constraints: Constraints, nodes: list[int]) -> Replay:
        optional = [at >= 0 and self.found.events[at].returned == math.inf for at in nodes]
        return Replay(steps, constraints.edges, optional, constraints.rank, frozen(self.history.initial))

    def _one_order(self, configuration: Configuration, *, reads_first: bool = False) -> Replayed:
        """Find one order for all, or one for each key; with ``reads_first`` a read comes before what began after it."""
        events = self.found.events
        order: list[int] = []
        sources: Sources = {}
        for key, (constraints, nodes) in zip(_keys(events, configuration), self._parts(configuration), strict=True):
            steps = [self._steps(at, key) if at >= 0 else () for at in nodes]
            if reads_first:
                constraints.edges += [
                    (one, two)
                    for one, reader in enumerate(nodes)
                    if reader >= 0 and not events[reader].writes
                    for two, writer in enumerate(nodes)
                    if writer >= 0 and events[writer].writes and events[reader].returned < events[writer].invoked
                ]
            answer = replay(self._question(steps, constraints, nodes), self.allowance, self.allowance.memory_bytes)
            if answer.outcome != "holds":
                return Replayed(answer.outcome, says=answer.says)
            mine = [nodes[node] for node in answer.order if nodes[node] >= 0]
            order += mine
            sources |= _sources(mine, dict(zip(nodes, steps, strict=True)))
        return Replayed("holds", tuple(order), sources)

    def _own_orders(self, configuration: Configuration) -> Replayed | None:
        """Find an order of all writes and of its own reads for each process; others' writes need nothing there."""
        events = self.found.events
        parts = iter(self._parts(configuration))
        order: list[int] = []
        sources: Sources = {}
        asked: list[tuple[Replay, list[int], str]] = []
        used: set[int] = set()
        for key in _keys(events, configuration):
            mine = [event for event in events if key is None or key in _touched(event)]
            for process in dict.fromkeys(event.process for event in mine):
                constraints, nodes = next(parts)
                steps = [
                    tuple(step for step in self._steps(at, key) if step.kind == PUT or events[at].process == process)
                    for at in nodes
                ]
                asked.append((self._question(steps, constraints, nodes), nodes, process))
        for question, nodes, _ in asked:
            answer = replay(question, self.allowance, self.allowance.memory_bytes)
            if answer.outcome != "holds":
                return Replayed(answer.outcome, says=answer.says)
            used |= {nodes[node] for node in answer.order if question.optional[node] and events[nodes[node]].reads}
        for question, nodes, process in asked:
            # What others saw of a compare-and-set that never returned must have found its value in its own process's
            # order.
            for node, at in enumerate(nodes):
                if at in used and events[at].process == process:
                    question.optional[node] = False
            answer = replay(question, self.allowance, self.allowance.memory_bytes)
            if answer.outcome != "holds":
                return None
            placed = [nodes[node] for node in answer.order]
            order += [at for at in placed if events[at].process == process]
            steps_at = dict(zip(nodes, question.steps, strict=True))
            sources |= {
                (at, key): source
                for (at, key), source in _sources(placed, steps_at).items()
                if events[at].process == process
            }
        return Replayed("holds", tuple(order), sources) if _no_circle(sources) else None


def _no_circle(sources: Sources) -> bool:
    after: dict[int, set[int]] = {}
    for (at, _), source in sources.items():
        if source >= 0:
            after.setdefault(at, set()).add(source)
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError:
        return False
    return True
