"""Visits every configuration of a counter system with fixed small parameters: the oracle beside the three checkers.

Nothing is abstract here: numbers of processes and counters are what they are, rules fire one process at a time,
breadth first, so that a counterexample has the fewest firings.  It shows violations and never proves the property for
all parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.automaton import Rule, ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import Counterexample, steps_of
from wavetank.protocols.threshold.expressions import Comparison, at_least_zero, conjuncts, holds
from wavetank.protocols.threshold.preprocess import CounterSystem, plain_counter_system
from wavetank.protocols.threshold.properties import Query
from wavetank.settings import setting

_State = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, kw_only=True)
class ExplicitSearch:
    """Breadth-first search for all parameters up to a bound."""

    largest_parameter: int = setting(5, says="Largest value of each parameter", low=0, high=100)
    most_states: int = setting(200_000, says="Most configurations that are visited", low=1)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return a violation with small parameters, or "undecided".

        Parameters
        ----------
        system : CounterSystem
            Only its automaton and query are used: what preprocessing made of them is not trusted here.
        deadline : Deadline
        """
        left = self.most_states
        tried = 0
        try:
            for parameters in small_parameters(system.automaton, self.largest_parameter, deadline):
                space = StateSpace(system.automaton, system.query, parameters)
                run = space.violation(left, deadline)
                if run is not None:
                    return Answer("violated", f"a run of {len(run.steps)} steps was found", run, by="explicit")
                left -= space.visited
                tried += 1
        except OutOfTimeError as reason:
            return Answer("undecided", f"{reason}; no violation in {tried} settings of the parameters", by="explicit")
        return Answer(
            "undecided",
            f"no violation for parameters up to {self.largest_parameter} ({tried} settings); larger: not tried",
            by="explicit",
        )


def small_parameters(
    automaton: ThresholdAutomaton, largest: int, deadline: Deadline | None = None
) -> Iterator[dict[str, int]]:
    """Yield the parameters that meet the resilience condition, each up to ``largest``, small sums first.

    Raises
    ------
    OutOfTimeError
    """
    names = automaton.parameters
    found = []
    for values in itertools.product(range(largest + 1), repeat=len(names)):
        if deadline is not None:
            deadline.check()
        setting_of = dict(zip(names, values, strict=True))
        if all(holds(assumption, setting_of) for assumption in automaton.assumptions):
            found.append(setting_of)
    yield from sorted(found, key=lambda item: sum(item.values()))


class StateSpace:
    """The configurations of an automaton with fixed parameters.

    Parameters
    ----------
    automaton : ThresholdAutomaton
    query : Query
    parameters : mapping of str to int
    """

    def __init__(self, automaton: ThresholdAutomaton, query: Query, parameters: Mapping[str, int]) -> None:
        self.automaton = automaton
        self.query = query
        self.parameters = dict(parameters)
        self.visited = 0
        self._system = plain_counter_system(automaton, query)
        self._moves: list[tuple[int, int, list[tuple[tuple[tuple[int, int], ...], int, bool]], Rule]] = []
        for move in self._system.moves:
            guards = []
            for guard in move.guards:
                threshold = self._system.thresholds[abs(guard) - 1]
                term = tuple((counter, factor * threshold.scale) for counter, factor in threshold.term)
                guards.append((term, threshold.bound.value(parameters), guard > 0))
            self._moves.append((move.source, move.target, guards, move.origin))

    def violation(self, most_states: int, deadline: Deadline | None = None) -> Counterexample | None:
        """Return the shortest run that meets the query's stages, or None when there is none.

        Raises
        ------
        OutOfTimeError
            When time or states end before the search does.
        """
        clock = deadline or Deadline()
        before: dict[_State, tuple[_State, Rule] | None] = {}
        layer: list[_State] = []
        for at, counters in self._starts(clock):
            state = (at, counters, self._met(at, counters, 0))
            if state not in before:
                before[state] = None
                layer.append(state)
        done = len(self._system.stages)
        while layer:
            following: list[_State] = []
            for number, state in enumerate(layer):
                if not number % 256:
                    clock.check()
                self.visited = len(before)
                if state[2] == done:
                    return self._run(state, before)
                if len(before) > most_states:
                    raise OutOfTimeError(f"more than {most_states} configurations")
                for rule, new in self._successors(state):
                    if new not in before:
                        before[new] = (state, rule)
                        following.append(new)
            layer = following
        return None

    def _successors(self, state: _State) -> Iterator[tuple[Rule, _State]]:
        at, counters, met = state
        for source, target, guards, rule in self._moves:
            if not at[source]:
                continue
            for term, bound, positive in guards:
                if (sum(factor * counters[counter] for counter, factor in term) >= bound) != positive:
                    break
            else:
                new_counters = self._updated(counters, rule)
                if min(new_counters, default=0) < 0:
                    continue
                new_at = at
                if source != target:
                    listed = list(at)
                    listed[source] -= 1
                    listed[target] += 1
                    new_at = tuple(listed)
                yield rule, (new_at, new_counters, self._met(new_at, new_counters, met))

    def _updated(self, counters: tuple[int, ...], rule: Rule) -> tuple[int, ...]:
        if not rule.updates:
            return counters
        values = self.parameters | dict(zip(self.automaton.counters, counters, strict=True))
        new = {name: value.value(values) for name, value in rule.updates}
        return tuple(new.get(name, value) for name, value in zip(self.automaton.counters, counters, strict=True))

    def _met(self, at: tuple[int, ...], counters: tuple[int, ...], met: int) -> int:
        stages = self.query.stages
        if met == len(stages):
            return met
        values = {**self.parameters, **self._numbers(at, counters)}
        while met < len(stages) and holds(stages[met], values):
            met += 1
        return met

    def _numbers(self, at: tuple[int, ...], counters: tuple[int, ...]) -> dict[str, int]:
        return {
            **dict(zip(self.automaton.locations, at, strict=True)),
            **dict(zip(self.automaton.counters, counters, strict=True)),
        }

    def _starts(self, clock: Deadline) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the initial configurations."""
        names = (*self.automaton.locations, *self.automaton.counters)
        limits = self._limits()
        initial = (*self.automaton.initial, self.query.initial)
        open_names = [name for name in names if limits[name]]
        values = {**self.parameters, **dict.fromkeys(names, 0)}
        for chosen in itertools.product(*(range(limits[name] + 1) for name in open_names)):
            clock.check()
            values.update(zip(open_names, chosen, strict=True))
            if all(holds(formula, values) for formula in initial):
                yield (
                    tuple(values[name] for name in self.automaton.locations),
                    tuple(values[name] for name in self.automaton.counters),
                )

    def _limits(self) -> dict[str, int]:
        """Return the largest initial value of every location and counter that the initial conditions allow.

        What they do not bound is tried up to the largest parameter, a choice that a search for bugs may make.
        """
        names = {*self.automaton.locations, *self.automaton.counters}
        limits = dict.fromkeys(names, max(self.parameters.values(), default=0))
        bounds = [part for part in conjuncts(self._system.initial) if isinstance(part, Comparison)]
        for comparison in bounds:
            expressions, all_of = at_least_zero(comparison)
            for expression in expressions if all_of else ():
                bounded, rest = expression.split(names.__contains__)
                if bounded and all(factor < 0 for factor in bounded.values()):
                    room = rest.value(self.parameters)
                    for name, factor in bounded.items():
                        limits[name] = min(limits[name], max(0, room // -factor))
        for comparison in bounds:
            # An equality may allow more than any parameter.
            if comparison.relation == "==":
                bounded, rest = (comparison.left - comparison.right).split(names.__contains__)
                if len(bounded) == 1:
                    ((name, factor),) = bounded.items()
                    limits[name] = max(0, -rest.value(self.parameters) // factor)
        return limits

    def _run(self, state: _State, before: Mapping[_State, tuple[_State, Rule] | None]) -> Counterexample:
        rules: list[Rule] = []
        while (came := before[state]) is not None:
            state, rule = came
            rules.append(rule)
        at, counters, _ = state
        return Counterexample(self.parameters, self._numbers(at, counters), steps_of(reversed(rules)))
