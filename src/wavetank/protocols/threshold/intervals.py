"""Cuts the range of every counter at the thresholds: the abstraction under the two backward checkers.

What guards can see of a counter is which of its thresholds it has reached.  A *context* is that knowledge for all of
them, a finite thing even though parameters are not fixed; which contexts exist, and which one a counter can step to
from which when a rule adds to it, follows from the resilience condition and is asked of z3 once.

Source: Baumeister, Eichler, Jacobs, Sakr, Voelp, "Parameterized Verification of Round-based Distributed Algorithms via
Extended Threshold Automata" (FM 2024), as the interval automata of TACO (arXiv 2605.06118).

Differs from the source:

1. Orders of thresholds are not enumerated one by one: a context holds any set of thresholds that some parameters allow
   to be reached together, so that one abstract system covers all orders.
2. Steps between contexts are those that some counter value under some parameters can make; the source allows a step to
   the next interval always.
3. Contexts and locations that no abstract run reaches forward from the start are left out before going backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.expressions import Comparison, Linear, at_least_zero, comparisons, disjuncts
from wavetank.protocols.threshold.parameters import Question, SmtText, number
from wavetank.protocols.threshold.preprocess import CounterSystem, Move, rewrite

LARGEST_NUMBER_OF_CONTEXTS = 200_000
_LARGEST_TARGET = 4096


@dataclass(frozen=True)
class Target:
    """What a stage asks of the locations, weakened to what an abstraction can express.

    Parameters
    ----------
    least : mapping of int to int
        Locations and the least number of processes there.
    empty : frozenset of int
        Locations without a process.
    """

    least: Mapping[int, int]
    empty: frozenset[int]


def targets(system: CounterSystem, stage: int) -> list[Target]:
    """Return targets that together cover every configuration that meets a stage.

    Conditions that bounds on single locations cannot express are left out: what is covered grows, and what the checker
    finds is decided by the exact condition afterwards.

    Raises
    ------
    OutOfTimeError
        If the stage has too many alternatives.
    """
    alternatives = disjuncts(rewrite(system.stages[stage], {}), _LARGEST_TARGET)
    if alternatives is None:
        raise OutOfTimeError(f"the condition has more than {_LARGEST_TARGET} alternatives")
    numbers = system.location_number()
    found: dict[tuple[tuple[tuple[int, int], ...], frozenset[int]], Target] = {}
    for parts in alternatives:
        least: dict[int, int] = {}
        empty: set[int] = set()
        any_of: list[list[int]] = []
        for part in parts:
            if not isinstance(part, Comparison):
                continue
            expressions, all_of = at_least_zero(part)
            for expression in expressions if all_of else ():
                _read_bound(expression, numbers, least, empty, any_of)
        for chosen in itertools.product(*any_of):
            each = dict(least)
            for location in chosen:
                each[location] = max(1, each.get(location, 0))
            if not empty & set(each):
                found.setdefault((tuple(sorted(each.items())), frozenset(empty)), Target(each, frozenset(empty)))
            if len(found) > _LARGEST_TARGET:
                raise OutOfTimeError(f"the condition has more than {_LARGEST_TARGET} alternatives")
    return list(found.values())


def _read_bound(
    expression: Linear,
    numbers: Mapping[str, int],
    least: dict[int, int],
    empty: set[int],
    any_of: list[list[int]],
) -> None:
    """Read ``expression >= 0`` where it bounds locations alone."""
    if not expression.terms or any(not isinstance(name, str) or name not in numbers for name, _ in expression.terms):
        return
    places = [(numbers[str(name)], factor) for name, factor in expression.terms]
    constant = expression.constant
    if all(factor > 0 for _, factor in places) and constant < 0:
        if len(places) == 1:
            location, factor = places[0]
            least[location] = max(least.get(location, 0), -(constant // factor))
        else:
            any_of.append([location for location, _ in places])
    elif all(factor < 0 for _, factor in places) and constant >= 0:
        empty.update(location for location, factor in places if constant < -factor)


class IntervalAbstraction:
    """Contexts of a counter system and the steps between them.

    A context is an integer whose bit ``i`` says whether threshold ``i`` is reached.

    Raises
    ------
    OutOfTimeError
    """

    def __init__(self, system: CounterSystem, deadline: Deadline) -> None:
        self.system = system
        self._deadline = deadline
        self._terms: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for index, threshold in enumerate(system.thresholds):
            self._terms.setdefault(threshold.term, []).append(index)
        self._masks = {term: sum(1 << index for index in indices) for term, indices in self._terms.items()}
        self._needs = [sum(1 << (guard - 1) for guard in move.guards if guard > 0) for move in system.moves]
        self._forbids = [sum(1 << (-guard - 1) for guard in move.guards if guard < 0) for move in system.moves]
        self._steps: dict[tuple[tuple[tuple[int, int], ...], int | None, int], dict[int, list[int]]] = {}
        self._changes = [self._change(move) for move in system.moves]
        self.initial = self._initial_contexts()

    def allows(self, context: int, move: int) -> bool:
        """Return whether a move's guard holds in a context."""
        return context & self._needs[move] == self._needs[move] and not context & self._forbids[move]

    def literals(self, context: int) -> list[int]:
        """Return a context as guards that hold in it."""
        return [i + 1 if context >> i & 1 else -(i + 1) for i in range(len(self.system.thresholds))]

    def after(self, context: int, move: int) -> Iterator[int]:
        """Yield the contexts that a move can lead to from one in which it is allowed."""
        options = [[(mask, new) for new in steps.get(context & mask, ())] for mask, steps in self._changes[move]]
        for chosen in itertools.product(*options):
            new_context = context
            for mask, new in chosen:
                new_context = new_context & ~mask | new
            yield new_context

    def changes_nothing(self, move: int) -> bool:
        """Return whether a move leaves every context as it is."""
        return not self._changes[move]

    def forward(self) -> dict[int, int]:
        """Return the contexts that abstract runs reach, each with the set of locations occupied in any of them.

        Returns
        -------
        dict of int to int
            Context to locations as a bit set.

        Raises
        ------
        OutOfTimeError
        """
        starts = sum(1 << location for location in self.system.starts)
        reached = dict.fromkeys(self.initial, starts)
        waiting = dict.fromkeys(self.initial)
        moves = self.system.moves
        while waiting:
            self._deadline.check()
            if len(reached) > LARGEST_NUMBER_OF_CONTEXTS:
                raise OutOfTimeError(f"the abstraction has more than {LARGEST_NUMBER_OF_CONTEXTS} contexts")
            context = next(iter(waiting))
            del waiting[context]
            occupied = reached[context]
            allowed = [move for move in range(len(moves)) if self.allows(context, move)]
            growing = True
            while growing:
                growing = False
                for move in allowed:
                    rule = moves[move]
                    if (
                        occupied >> rule.source & 1
                        and not occupied >> rule.target & 1
                        and context in self.after(context, move)
                    ):
                        occupied |= 1 << rule.target
                        growing = True
            reached[context] = occupied
            for move in allowed:
                rule = moves[move]
                if not occupied >> rule.source & 1 or self.changes_nothing(move):
                    continue
                for new in self.after(context, move):
                    joined = reached.get(new, 0) | occupied | 1 << rule.target
                    if joined != reached.get(new):
                        reached[new] = joined
                        waiting[new] = None
        return reached

    def edges(self, reached: Mapping[int, int]) -> dict[int, list[tuple[int, int]]]:
        """Return for every reached context the (context before, move) pairs that lead to it.

        Parameters
        ----------
        reached : mapping of int to int
            From :meth:`forward`.
        """
        into: dict[int, list[tuple[int, int]]] = {context: [] for context in reached}
        for context, occupied in reached.items():
            self._deadline.check()
            for move, rule in enumerate(self.system.moves):
                if occupied >> rule.source & 1 and self.allows(context, move):
                    for new in self.after(context, move):
                        if new in into:
                            into[new].append((context, move))
        return into

    def _change(self, move: Move) -> list[tuple[int, dict[int, list[int]]]]:
        """Return for every term that a move changes its mask and the steps it can make."""
        shifts = dict(move.shifts)
        assigns = dict(move.assigns)
        found = []
        for term in self._terms:
            counters = [counter for counter, _ in term]
            if any(counter in assigns for counter in counters):
                values = [assigns.get(counter) for counter in counters]
                if all(value is not None and not value.terms for value in values):
                    total = sum(factor * assigns[counter].constant for counter, factor in term)
                    found.append((self._masks[term], self._step_table(term, None, total)))
                else:
                    found.append((self._masks[term], self._step_table(term, None, -1)))
            else:
                by = sum(factor * shifts.get(counter, 0) for counter, factor in term)
                if by:
                    found.append((self._masks[term], self._step_table(term, by, 0)))
        return found

    def _step_table(self, term: tuple[tuple[int, int], ...], by: int | None, value: int) -> dict[int, list[int]]:
        """Return from which part of a context to which others a term can step.

        Parameters
        ----------
        term : tuple
        by : int or None
            What is added; None for a new value.
        value : int
            The new value; -1 for an unknown one.
        """
        key = (term, by, value)
        if key in self._steps:
            return self._steps[key]
        indices = self._terms[term]
        natural = all(factor > 0 for _, factor in term)
        lines = ["(declare-const v Int)", "(declare-const w Int)"]
        if natural:
            lines += ["(assert (>= v 0))", "(assert (>= w 0))"]
        if by is not None:
            lines.append(f"(assert (= w (+ v {number(by)})))")
        elif value >= 0 or not natural:
            lines.append(f"(assert (= w {number(value)}))" if value != -1 else "")
        conditions = [self._reached(index, "v") for index in indices] + [self._reached(index, "w") for index in indices]
        table: dict[int, list[int]] = {}
        for truths in self._all_truths(lines, indices, conditions):
            before = sum(1 << index for index, truth in zip(indices, truths[: len(indices)], strict=True) if truth)
            then = sum(1 << index for index, truth in zip(indices, truths[len(indices) :], strict=True) if truth)
            table.setdefault(before, []).append(then)
        self._steps[key] = table
        return table

    def _initial_contexts(self) -> list[int]:
        system = self.system
        indices = range(len(system.thresholds))
        lines = [
            f"(declare-const c{counter} Int)(assert (>= c{counter} 0))"
            for counter in range(len(system.counters))
            if counter not in system.zero_counters
        ]
        conditions = []
        for index in indices:
            parts = [
                f"(* {number(factor)} c{counter})"
                for counter, factor in system.thresholds[index].term
                if counter not in system.zero_counters
            ]
            conditions.append(self._reached(index, f"(+ 0 {' '.join(parts)})" if parts else "0"))
        return [
            sum(1 << index for index, truth in zip(indices, truths, strict=True) if truth)
            for truths in self._all_truths(lines, indices, conditions)
        ]

    def _reached(self, index: int, value: str) -> tuple[int, str]:
        return index, f"(* {self.system.thresholds[index].scale} {value})"

    def _all_truths(
        self, lines: Sequence[str], indices: Iterable[int], conditions: Sequence[tuple[int, str]]
    ) -> Iterator[tuple[bool, ...]]:
        """Yield every combination of truths of ``scaled value >= bound`` that some parameters allow."""
        system = self.system
        text = SmtText({name: f"p{i}" for i, name in enumerate(system.parameters)})
        question = Question(self._deadline)
        written = [f"(declare-const p{i} Int)(assert (>= p{i} 0))" for i in range(len(system.parameters))]
        sides = [side for item in comparisons(system.resilience) for side in (item.left, item.right)]
        written += text.declare_quotients([*sides, *(system.thresholds[index].bound for index in indices)])
        written.append(f"(assert {text.formula(system.resilience)})")
        written += lines
        names = []
        for place, (index, value) in enumerate(conditions):
            # Truths are read as integers, like everything else in a model.
            name = f"t{place}"
            names.append(name)
            bound = text.linear(system.thresholds[index].bound)
            written.append(f"(declare-const {name} Int)(assert (= {name} (ite (>= {value} {bound}) 1 0)))")
        question.add("\n".join(written))
        found = 0
        while question.satisfiable():
            model = question.model()
            truths = tuple(bool(model.get(name, 0)) for name in names)
            yield truths
            found += 1
            if not names:
                return
            if found > LARGEST_NUMBER_OF_CONTEXTS:
                raise OutOfTimeError("the thresholds have too many orders")
            differs = " ".join(f"(not (= {name} {int(truth)}))" for name, truth in zip(names, truths, strict=True))
            question.add(f"(assert (or {differs}))")
