"""Runs that violate a property: from a checker's abstract run to steps of the file's own automaton, replayed.

Checkers answer with how often each rule fires between points where conditions change.  Here the firings are put into an
order in which every process that moves is there to move, as rules of the automaton between its own locations, and
replayed one by one with the automaton's own formulas: a run that does not replay is never shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wavetank.check.deadline import OutOfTimeError
from wavetank.errors import WavetankError
from wavetank.protocols.threshold.automaton import Rule, ThresholdAutomaton
from wavetank.protocols.threshold.expressions import FALSE, Linear, comparisons, holds
from wavetank.protocols.threshold.preprocess import CounterSystem, Move
from wavetank.protocols.threshold.properties import Query

MOST_FIRINGS = 1_000_000


class ReplayError(WavetankError):
    """A run that the automaton does not allow: a defect of the checker that gave it."""

    exit_code = 4


@dataclass(frozen=True)
class AbstractRun:
    """How often moves of a counter system fire.

    Parameters
    ----------
    parameters : mapping of str to int
    processes : mapping of int to int
        Location of the system to the number of processes that start there.
    counters : mapping of str to int
        Initial value of each counter of the automaton that does not start at zero.
    segments : tuple of mapping of int to int
        Move to number of firings; all guards of a segment's moves hold whenever one of them fires, in any order.
    """

    parameters: Mapping[str, int]
    processes: Mapping[int, int]
    counters: Mapping[str, int]
    segments: tuple[Mapping[int, int], ...]


@dataclass(frozen=True)
class Step:
    """A rule that fires several times in a row."""

    rule: Rule
    times: int


@dataclass(frozen=True)
class Counterexample:
    """A run of an automaton that violates a property.

    Parameters
    ----------
    parameters : mapping of str to int
    initial : mapping of str to int
        Processes by location and values by counter.
    steps : tuple of Step
    """

    parameters: Mapping[str, int]
    initial: Mapping[str, int]
    steps: tuple[Step, ...]

    @property
    def setting(self) -> str:
        """The parameters in words."""
        return ", ".join(f"{name} = {value}" for name, value in self.parameters.items())


def concretise(system: CounterSystem, run: AbstractRun) -> Counterexample:
    """Return an abstract run as steps of the automaton.

    Raises
    ------
    ReplayError
        If a segment's firings cannot be ordered or written in the automaton's rules.
    OutOfTimeError
        If there are more than 1,000,000 firings: a run that is not replayed is not shown.
    """
    automaton = system.automaton
    at = dict.fromkeys(automaton.locations, 0)
    for location, count in run.processes.items():
        # A location where processes start stands for itself alone.
        at[system.locations[location][0]] += count
    values = {name: run.counters.get(name, 0) for name in automaton.counters} | dict(run.parameters)
    initial = {**at, **{name: values[name] for name in automaton.counters}}
    fired = _Firings(system, at, values)
    firings = 0
    for segment in run.segments:
        counts = {move: count for move, count in segment.items() if count}
        firings += sum(counts.values())
        if firings > MOST_FIRINGS:
            raise OutOfTimeError(
                f"a run of more than {firings} firings was found, too long to be replayed (at most {MOST_FIRINGS})"
            )
        for move, times in _ordered(system, counts, fired.occupied()):
            for _ in range(times):
                fired.fire(system.moves[move])
    return Counterexample(dict(run.parameters), initial, steps_of(fired.rules))


def steps_of(rules: Iterable[Rule]) -> tuple[Step, ...]:
    """Return single firings as steps: a rule that fires several times in a row is one."""
    runs = ([*firings] for _, firings in itertools.groupby(rules, key=id))
    return tuple(Step(firings[0], len(firings)) for firings in runs)


class _Firings:
    """Translates moves of a system into rules of its automaton, process by process."""

    def __init__(self, system: CounterSystem, at: dict[str, int], values: dict[str, int]) -> None:
        self.at = at
        self.values = values
        self.rules: list[Rule] = []
        self._system = system
        self._group = {name: number for number, names in enumerate(system.locations) for name in names}
        # A counter that only initial conditions speak of is still there, but no move says how it changes.
        kept = {counter for threshold in system.thresholds for counter, _ in threshold.term}
        kept |= {counter for move in system.moves for counter, _ in (*move.shifts, *move.assigns)}
        sides = [side for stage in system.stages for item in comparisons(stage) for side in (item.left, item.right)]
        named = {name for side in sides for name in side.names()}
        self._kept = {name for number, name in enumerate(system.counters) if number in kept or name in named}
        self._by_ends: dict[tuple[int, int], list[Rule]] = {}
        for rule in system.automaton.rules:
            if rule.source in self._group and rule.target in self._group:
                ends = self._group[rule.source], self._group[rule.target]
                self._by_ends.setdefault(ends, []).append(rule)

    def occupied(self) -> dict[int, int]:
        """Return the number of processes by location of the system."""
        found: dict[int, int] = {}
        for name, count in self.at.items():
            if count and name in self._group:
                group = self._group[name]
                found[group] = found.get(group, 0) + count
        return found

    def fire(self, move: Move) -> None:
        wanted = {self._system.counters[counter]: by for counter, by in move.shifts}
        assigned = {self._system.counters[counter]: value for counter, value in move.assigns}
        candidates = self._by_ends.get((move.source, move.target), [])
        # The rule that the move came from is the first choice, so that runs read like the file.
        for rule in [move.origin, *candidates]:
            if self.at.get(rule.source, 0) and rule.target in self._group and self._does(rule, move, wanted, assigned):
                self._apply(rule)
                return
        raise ReplayError(
            "A rule of a counterexample cannot fire.",
            given=f"rule {move.origin.name}: {move.origin.source} -> {move.origin.target}",
        )

    def _does(self, rule: Rule, move: Move, wanted: Mapping[str, int], assigned: Mapping[str, Linear]) -> bool:
        if (self._group.get(rule.source), self._group.get(rule.target)) != (move.source, move.target):
            return False
        shifts, sets = {}, {}
        for name, value in rule.updates:
            if name in self._kept:
                if value.terms == ((name, 1),):
                    shifts[name] = value.constant
                else:
                    sets[name] = value
        return shifts == wanted and sets == assigned and holds(rule.guard, self.values)

    def _apply(self, rule: Rule) -> None:
        new = {name: value.value(self.values) for name, value in rule.updates}
        self.values |= new
        self.at[rule.source] -= 1
        self.at[rule.target] += 1
        self.rules.append(rule)


def unreachable_sources(system: CounterSystem, counts: Mapping[int, int], occupied: Mapping[int, int]) -> set[int]:
    """Return the sources of firing moves that no process can get to by firing moves.

    Parameters
    ----------
    system : CounterSystem
    counts : mapping of int to int
        Firings by move.
    occupied : mapping of int to int
        Processes by location.
    """
    reached = {location for location, count in occupied.items() if count > 0}
    edges: dict[int, list[int]] = {}
    sources = set()
    for number, count in counts.items():
        if count > 0:
            move = system.moves[number]
            edges.setdefault(move.source, []).append(move.target)
            sources.add(move.source)
    stack = list(reached)
    while stack:
        for target in edges.get(stack.pop(), ()):
            if target not in reached:
                reached.add(target)
                stack.append(target)
    return sources - reached


def _ordered(system: CounterSystem, counts: dict[int, int], occupied: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield moves and how often each fires in a row, so that a process is always there to move."""
    left = dict(counts)
    at = dict(occupied)
    for component in _components(system, left):
        inside = [number for number in left if system.moves[number].source in component]
        if len(component) == 1 and all(system.moves[n].target not in component for n in inside):
            for number in inside:
                yield number, _fire(system, number, left[number], left, at)
            continue
        while inside:
            for number in inside:
                if not at.get(system.moves[number].source, 0):
                    continue
                # Firing is right when everything that is left can still be reached afterwards.
                after, rest = dict(at), {n: left[n] for n in inside}
                _fire(system, number, 1, rest, after)
                if not unreachable_sources(system, rest, after):
                    yield number, _fire(system, number, 1, left, at)
                    break
            else:
                raise ReplayError("The firings of a counterexample cannot be ordered.")
            inside = [number for number in inside if left.get(number)]


def _fire(system: CounterSystem, number: int, times: int, left: dict[int, int], at: dict[int, int]) -> int:
    move = system.moves[number]
    if at.get(move.source, 0) < (times if move.source != move.target else 1):
        raise ReplayError("The firings of a counterexample cannot be ordered.")
    at[move.source] -= times
    at[move.target] = at.get(move.target, 0) + times
    left[number] -= times
    if not left[number]:
        del left[number]
    return times


def _components(system: CounterSystem, counts: Mapping[int, int]) -> list[set[int]]:
    """Return the strongly connected components of the moves that fire, sources first."""
    edges: dict[int, list[int]] = {}
    for number in counts:
        move = system.moves[number]
        edges.setdefault(move.source, []).append(move.target)
        edges.setdefault(move.target, [])
    return strongly_connected(edges)


def strongly_connected(edges: Mapping[int, Sequence[int]]) -> list[set[int]]:
    """Return the strongly connected components of a graph, every one before those it leads to (Tarjan)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: dict[int, None] = {}
    found: list[set[int]] = []
    for root in edges:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        on_stack[root] = None
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    on_stack[other] = None
                    work.append((other, iter(edges[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while node not in component:
                        component.add(on_stack.popitem()[0])
                    found.append(component)
    return found[::-1]


def replay(automaton: ThresholdAutomaton, query: Query, run: Counterexample) -> list[dict[str, int]]:
    """Run a counterexample in the explicit counter system and check everything it claims.

    Parameters
    ----------
    automaton : ThresholdAutomaton
    query : Query
        What the run must meet.
    run : Counterexample

    Returns
    -------
    list of dict
        The configuration after every step, the initial one first: processes by location, values by counter.

    Raises
    ------
    ReplayError
        If parameters miss the resilience condition, the start is no initial configuration, a rule fires without a
        process or against its guard, or the stages of the query are not met in order.
    """
    values = {**run.parameters, **run.initial}
    for what, formulas in (
        ("the resilience condition", automaton.assumptions),
        ("the initial conditions", (*automaton.initial, query.initial)),
    ):
        for formula in formulas:
            if not holds(formula, values):
                raise ReplayError(f"A counterexample misses {what}.", given=str(formula))
    if any(values[name] < 0 for name in values):
        raise ReplayError("A counterexample starts with a negative number.")
    waiting = list(query.stages)

    def meet() -> None:
        while waiting and waiting[0] != FALSE and holds(waiting[0], values):
            waiting.pop(0)

    meet()
    configurations = [dict(values)]
    for step in run.steps:
        for _ in range(step.times):
            rule = step.rule
            if values[rule.source] < 1 or not holds(rule.guard, values):
                raise ReplayError("A rule of a counterexample cannot fire.", given=f"rule {rule.name}")
            new = {name: value.value(values) for name, value in rule.updates}
            if any(value < 0 for value in new.values()):
                raise ReplayError("A counter of a counterexample falls below zero.", given=f"rule {rule.name}")
            values.update(new)
            values[rule.source] -= 1
            values[rule.target] += 1
            meet()
        configurations.append(dict(values))
    if waiting:
        raise ReplayError("A counterexample does not violate the property.", given=str(waiting[0]))
    return configurations


def listing(automaton: ThresholdAutomaton, query: Query, run: Counterexample) -> str:
    """Return a replayed counterexample as text: parameters, then steps with what changed.

    Raises
    ------
    ReplayError
    """
    configurations = replay(automaton, query, run)
    lines = [f"parameters  {run.setting}", f"start       {_configuration(automaton, configurations[0])}"]
    for number, (step, after) in enumerate(zip(run.steps, configurations[1:], strict=True), 1):
        rule = step.rule
        times = "" if step.times == 1 else f"  ({step.times} times)"
        lines.append(f"step {number:<6} rule {rule.name}: {rule.source} -> {rule.target}{times}")
        lines.append(f"            {_configuration(automaton, after)}")
    lines.append(f"reached     {' then '.join(map(str, query.stages))}")
    return "\n".join(lines)


def _configuration(automaton: ThresholdAutomaton, values: Mapping[str, int]) -> str:
    processes = ", ".join(f"{name}: {values[name]}" for name in automaton.locations if values[name])
    counters = ", ".join(f"{name} = {values[name]}" for name in automaton.counters if values[name])
    return f"{processes or 'no process'}" + (f"; {counters}" if counters else "")
