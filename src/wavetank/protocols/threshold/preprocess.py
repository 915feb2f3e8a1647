"""Turns an automaton and one way to violate a property into the counter system that the checkers decide.

Translated models have thousands of rules of which few matter for one question.  What stays is what can change the
answer: locations that can be reached, rules that bring a process or a counter closer to the violation, one of several
locations that behave alike, one of several guards that mean the same under the resilience condition.  Every step keeps
the answer in both directions, and every rule of the result remembers the rule of the file it came from, so that a
counterexample can be replayed on the file's own automaton.

Source: the preprocessors of TACO (arXiv 2605.06118): unreachable locations, self loops, unused counters.

Differs from the source:

1. Rules that cannot help to reach the violation are dropped (only where no rule resets a counter: firing them is never
   needed, since no process is obliged to move).
2. Locations with equal behaviour and equal part in the question become one (coarsest partition).
3. Guards are compared under the resilience condition: those always true vanish, those never true take their rule along,
   those implied by others in the same guard vanish.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wavetank.check.deadline import Deadline
from wavetank.errors import BadFileError
from wavetank.protocols.threshold.automaton import Rule, ThresholdAutomaton, is_shift
from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    And,
    Comparison,
    Formula,
    Linear,
    Or,
    at_least_zero,
    comparisons,
    conjunction,
    conjuncts,
    disjunction,
    disjuncts,
    negation_normal,
)
from wavetank.protocols.threshold.parameters import ParameterFacts
from wavetank.protocols.threshold.properties import Query

LARGEST_GUARD = 256


@dataclass(frozen=True)
class Threshold:
    """The condition ``scale * term >= bound``.

    Parameters
    ----------
    term : tuple of (int, int)
        Counter and coefficient; coefficients have no common divisor and the first is positive.  Empty for a condition
        on parameters alone.
    scale : int
        Positive.
    bound : Linear
        Over parameters.
    """

    term: tuple[tuple[int, int], ...]
    scale: int
    bound: Linear

    @property
    def grows(self) -> bool:
        """Whether increments can only make it true."""
        return all(factor > 0 for _, factor in self.term)


@dataclass(frozen=True)
class Move:
    """A rule of the counter system.

    Parameters
    ----------
    source, target : int
        Locations.
    guards : frozenset of int
        ``i + 1``: threshold ``i`` holds; ``-(i + 1)``: it does not.
    shifts : tuple of (int, int)
        Counter and the amount added to it, not zero.
    assigns : tuple of (int, Linear)
        Counter and its new value over old values (resets above all).
    origin : Rule
        The rule of the file; no part of equality.
    """

    source: int
    target: int
    guards: frozenset[int]
    shifts: tuple[tuple[int, int], ...]
    assigns: tuple[tuple[int, Linear], ...]
    origin: Rule = dataclasses.field(compare=False)

    @property
    def only_increments(self) -> bool:
        """Whether it neither resets nor lowers a counter."""
        return not self.assigns and all(by > 0 for _, by in self.shifts)


@dataclass(frozen=True)
class CounterSystem:
    """What a checker decides: can a run from ``initial`` meet ``stages`` one after the other?

    Parameters
    ----------
    automaton : ThresholdAutomaton
        Where it comes from.
    query : Query
        The question in the automaton's own terms.
    parameters, counters : tuple of str
    locations : tuple of tuple of str
        Each location here stands for locations of the automaton that behave alike; the first lends its name.
    thresholds : tuple of Threshold
    moves : tuple of Move
    resilience : Formula
        Over parameters.
    initial : Formula
        Over parameters, counters and locations.
    starts : frozenset of int
        Locations that can hold processes initially; all others are empty then.
    zero_counters : frozenset of int
        Counters known to start at zero.
    stages : tuple of Formula
        Negation-free; ``(FALSE,)`` when the question is settled: no.
    """

    automaton: ThresholdAutomaton
    query: Query
    parameters: tuple[str, ...]
    counters: tuple[str, ...]
    locations: tuple[tuple[str, ...], ...]
    thresholds: tuple[Threshold, ...]
    moves: tuple[Move, ...]
    resilience: Formula
    initial: Formula
    starts: frozenset[int]
    zero_counters: frozenset[int]
    stages: tuple[Formula, ...]

    @property
    def impossible(self) -> bool:
        """Whether preprocessing alone shows that the stages cannot be met."""
        return FALSE in self.stages or self.initial == FALSE

    @property
    def only_increments(self) -> bool:
        """Whether no move resets or lowers a counter."""
        return all(move.only_increments for move in self.moves)

    @property
    def all_guards_grow(self) -> bool:
        """Whether every threshold is monotone in the counters."""
        return all(threshold.grows for threshold in self.thresholds)

    def location_number(self) -> dict[str, int]:
        """Return the number of each location by the name that formulas use."""
        return {names[0]: number for number, names in enumerate(self.locations)}

    def counter_number(self) -> dict[str, int]:
        """Return the number of each counter by its name."""
        return {name: number for number, name in enumerate(self.counters)}


def counter_system(automaton: ThresholdAutomaton, query: Query, deadline: Deadline | None = None) -> CounterSystem:
    """Return the reduced counter system of one question.

    Raises
    ------
    OutOfTimeError
        When the time is up; reductions ask z3 about parameters.
    BadFileError
        If a guard has more than 256 alternatives.
    """
    return _Reduction(automaton, query, deadline or Deadline()).system()


def plain_counter_system(automaton: ThresholdAutomaton, query: Query) -> CounterSystem:
    """Return the counter system of one question without any reduction, for cross-checks."""
    thresholds, moves = _moves_of(automaton)
    initial = conjunction([negation_normal(item) for item in automaton.initial] + [query.initial])
    zero = _forced_zero(initial, {*automaton.locations, *automaton.counters})
    return CounterSystem(
        automaton,
        query,
        automaton.parameters,
        automaton.counters,
        tuple((name,) for name in automaton.locations),
        thresholds,
        moves,
        conjunction(negation_normal(item) for item in automaton.assumptions),
        initial,
        frozenset(number for number, name in enumerate(automaton.locations) if name not in zero),
        frozenset(number for number, name in enumerate(automaton.counters) if name in zero),
        tuple(negation_normal(stage) for stage in query.stages),
    )


def _moves_of(automaton: ThresholdAutomaton) -> tuple[tuple[Threshold, ...], tuple[Move, ...]]:
    """Return the thresholds and one move for every alternative of every rule's guard."""
    location = {name: number for number, name in enumerate(automaton.locations)}
    counter = {name: number for number, name in enumerate(automaton.counters)}
    thresholds: dict[Threshold, int] = {}
    alternatives: dict[Formula, list[frozenset[int]]] = {}
    moves: dict[Move, None] = {}
    for rule in automaton.rules:
        if rule.guard not in alternatives:
            alternatives[rule.guard] = _alternatives(rule, counter, thresholds)
        shifts = tuple(sorted((counter[name], value.constant) for name, value in rule.updates if is_shift(name, value)))
        assigns = tuple(
            sorted(
                ((counter[name], value) for name, value in rule.updates if not is_shift(name, value)),
                key=lambda pair: pair[0],
            )
        )
        for guards in alternatives[rule.guard]:
            moves.setdefault(Move(location[rule.source], location[rule.target], guards, shifts, assigns, rule))
    return tuple(thresholds), tuple(moves)


def _alternatives(rule: Rule, counter: Mapping[str, int], thresholds: dict[Threshold, int]) -> list[frozenset[int]]:
    found = disjuncts(_without_equalities(negation_normal(rule.guard)), LARGEST_GUARD)
    if found is None:
        raise BadFileError(
            "The guard of a rule has too many alternatives.",
            given=f"rule {rule.name}",
            allowed=f"at most {LARGEST_GUARD}",
            where=f"line {rule.line}",
            hint="Split the rule into several.",
        )
    listed: dict[frozenset[int], None] = {}
    for parts in found:
        guards: set[int] = set()
        false = False
        for part in parts:
            if not isinstance(part, Comparison):
                continue
            (expression,), _ = at_least_zero(part)
            coefficients, rest = expression.split(counter.__contains__)
            if not coefficients and not rest.terms:
                false |= rest.constant < 0
                continue
            threshold, positive = _threshold({counter[name]: by for name, by in coefficients.items()}, rest)
            number = thresholds.setdefault(threshold, len(thresholds)) + 1
            guards.add(number if positive else -number)
        if not false and not any(-guard in guards for guard in guards):
            listed[frozenset(guards)] = None
    return list(listed)


def _without_equalities(formula: Formula) -> Formula:
    if isinstance(formula, Comparison) and formula.relation in ("==", "!="):
        expressions, all_of = at_least_zero(formula)
        parts = [Comparison(expression, ">=", Linear()) for expression in expressions]
        return conjunction(parts) if all_of else disjunction(parts)
    if isinstance(formula, And):
        return conjunction(map(_without_equalities, formula.parts))
    if isinstance(formula, Or):
        return disjunction(map(_without_equalities, formula.parts))
    return formula


def _threshold(coefficients: Mapping[int, int], rest: Linear) -> tuple[Threshold, bool]:
    """Return the threshold that says ``coefficients * counters + rest >= 0``, and whether it must hold or fail."""
    term = sorted(coefficients.items())
    if not term:
        return Threshold((), 1, rest.times(-1)), True
    positive = term[0][1] > 0
    if not positive:
        # -c x + r >= 0 says that c x >= r + 1 fails.
        term = [(counter, -factor) for counter, factor in term]
    bound = rest.times(-1) if positive else rest + Linear((), 1)
    scale = math.gcd(*(factor for _, factor in term))
    if not bound.terms:
        # A constant bound can be rounded, so that equal conditions look equal.
        return Threshold(tuple((c, f // scale) for c, f in term), 1, Linear((), -(-bound.constant // scale))), positive
    return Threshold(tuple((c, f // scale) for c, f in term), scale, bound), positive


def _forced_zero(formula: Formula, names: Iterable[str]) -> set[str]:
    """Return those of ``names`` (natural numbers) that a conjunction forces to zero."""
    known = set(names)
    zero: set[str] = set()
    for part in conjuncts(formula):
        if not isinstance(part, Comparison) or part.relation == "!=":
            continue
        for expression in at_least_zero(part)[0]:
            # constant - sum of positive multiples >= 0
            if all(isinstance(name, str) and name in known and factor < 0 for name, factor in expression.terms):
                zero.update(
                    name for name, factor in expression.terms if isinstance(name, str) and expression.constant < -factor
                )
    return zero


def rewrite(formula: Formula, names: Mapping[str, str | None], natural: bool = True) -> Formula:
    """Return a negation-free formula with names replaced, or dropped where they are known to be zero.

    Parameters
    ----------
    formula : Formula
    names : mapping
        Name to its new name, or to None when it is zero; names not in it stay.
    natural : bool
        Settle comparisons that no natural numbers can meet, or that all meet.
    """
    if isinstance(formula, And):
        return conjunction(rewrite(part, names, natural) for part in formula.parts)
    if isinstance(formula, Or):
        return disjunction(rewrite(part, names, natural) for part in formula.parts)
    if not isinstance(formula, Comparison):
        return formula
    sides = []
    for side in (formula.left, formula.right):
        factors: dict[object, int] = {}
        for name, factor in side.terms:
            new = names.get(name, name) if isinstance(name, str) else name
            if new is not None:
                # Members of one class have equal coefficients, and the class counts them all.
                factors[new] = factor
        sides.append(Linear(tuple(factors.items()), side.constant))  # type: ignore[arg-type]
    comparison = Comparison(sides[0], formula.relation, sides[1])
    return _settled(comparison) if natural else comparison


def _settled(comparison: Comparison) -> Formula:
    """Return a comparison, simpler where natural numbers settle it or one half of it."""
    expressions, all_of = at_least_zero(comparison)
    open_parts = []
    for expression in expressions:
        plain = all(isinstance(name, str) for name, _ in expression.terms)
        if plain and expression.constant >= 0 and all(factor >= 0 for _, factor in expression.terms):
            if not all_of:
                return TRUE
        elif plain and expression.constant < 0 and all(factor <= 0 for _, factor in expression.terms):
            if all_of:
                return FALSE
        else:
            open_parts.append(expression)
    if not open_parts:
        return TRUE if all_of else FALSE
    if len(open_parts) == len(expressions):
        return comparison
    return Comparison(open_parts[0], ">=", Linear())


class _Reduction:
    """The state of one reduction: sets of what is left, made smaller until nothing changes."""

    def __init__(self, automaton: ThresholdAutomaton, query: Query, deadline: Deadline) -> None:
        self.automaton = automaton
        self.query = query
        self.deadline = deadline
        self.initial = conjunction([negation_normal(item) for item in automaton.initial] + [query.initial])
        self.stages = tuple(negation_normal(stage) for stage in query.stages)
        self.thresholds, self.moves = _moves_of(automaton)
        self.names: list[tuple[str, ...]] = [(name,) for name in automaton.locations]
        parameters = set(automaton.parameters)
        assumptions = [negation_normal(item) for item in automaton.assumptions]
        fixed = [part for part in conjuncts(self.initial) if set(_names_of(part)) <= parameters]
        self.resilience = conjunction(assumptions + fixed)
        self.facts = ParameterFacts(automaton.parameters, [self.resilience], deadline)
        self.zero = _forced_zero(self.initial, {*automaton.locations, *automaton.counters})
        self.starts = {number for number, name in enumerate(automaton.locations) if name not in self.zero}
        self.zero_counters = {number for number, name in enumerate(automaton.counters) if name in self.zero}
        # Guard to the guards that hold whenever it does, under the resilience condition.
        self.implied: dict[int, set[int]] = {}
        self.increments_only = all(move.only_increments for move in self.moves)

    def system(self) -> CounterSystem:
        if not self.facts.possible():
            self.stages = (FALSE,)
        before: tuple[int, ...] = ()
        while FALSE not in self.stages:
            self.deadline.check()
            size = (len(self.moves), len(self.names), len(self._used_thresholds()), len(self._used_counters()))
            if size == before:
                break
            before = size
            self._drop_unreachable()
            self._simplify_guards()
            self._drop_unhelpful()
            self._forget_counters()
            self._lump()
            self._join_stages()
        if FALSE in self.stages:
            self.moves = ()
        return self._result()

    # What can happen at all.

    def _drop_unreachable(self) -> None:
        reached = set(self.starts)
        live = {number for number in range(len(self.automaton.counters)) if number not in self.zero_counters}

        def happens(move: Move) -> bool:
            if move.source not in reached or not self._firable(move, live):
                return False
            reached.add(move.target)
            live.update(counter for counter, by in move.shifts if by > 0)
            live.update(counter for counter, value in move.assigns if value != Linear())
            return True

        self.moves = _saturated(self.moves, happens)
        gone: dict[str, str | None] = {
            names[0]: None for number, names in enumerate(self.names) if number not in reached
        }
        gone |= {name: None for number, name in enumerate(self.automaton.counters) if number not in live}
        self.stages = tuple(rewrite(stage, gone) for stage in self.stages)

    def _firable(self, move: Move, live: set[int]) -> bool:
        """Return whether parameters exist for which each guard is possible on its own."""
        needed = []
        for guard in move.guards:
            threshold = self.thresholds[abs(guard) - 1]
            bound = threshold.bound
            if guard > 0 and all(factor < 0 or counter not in live for counter, factor in threshold.term):
                # The term is at most zero for good.
                needed.append(bound.times(-1))
            elif guard < 0 and all(factor > 0 or counter not in live for counter, factor in threshold.term):
                # The term is at least zero for good; with decrements too, for counters are natural numbers.
                needed.append(bound - Linear((), 1))
        return not needed or self.facts.possible(*needed)

    # What guards mean.

    def _simplify_guards(self) -> None:
        growing = {counter for move in self.moves for counter, by in move.shifts if by > 0}
        growing |= {counter for move in self.moves for counter, value in move.assigns if value != Linear()}
        growing |= set(range(len(self.automaton.counters))) - self.zero_counters
        lowered = {counter for move in self.moves for counter, by in move.shifts if by < 0}
        lowered |= {counter for move in self.moves for counter, _ in move.assigns}
        always: set[int] = set()
        used = sorted(self._used_thresholds())
        for number in used:
            threshold = self.thresholds[number]
            # The least value of the term in any configuration is zero where nothing in it is negative.
            least_zero = all(factor > 0 or counter not in growing for counter, factor in threshold.term)
            frozen = all(counter not in growing for counter, _ in threshold.term)
            if least_zero and self.facts.always(threshold.bound.times(-1)):
                always.add(number + 1)
            if frozen and self.facts.always(threshold.bound - Linear((), 1)):
                always.add(-(number + 1))
        implied = self._implications(used)
        self.implied = {one + 1: {other + 1 for other in others} for one, others in implied.items()}
        for one, others in implied.items():
            for other in others:
                # The other way round where they fail.
                self.implied.setdefault(-(other + 1), set()).add(-(one + 1))
        merged: dict[int, int] = {}
        for one, others in implied.items():
            for other in others:
                if one in implied.get(other, ()) and other < one:
                    merged[one] = min(other, merged.get(one, one))
        moves: dict[Move, None] = {}
        for move in self.moves:
            guards = {(1 if g > 0 else -1) * (merged.get(abs(g) - 1, abs(g) - 1) + 1) for g in move.guards}
            if any(-guard in always or -guard in guards for guard in guards):
                continue
            guards -= always
            if any(
                one > 0 and other < 0 and -other - 1 in implied.get(one - 1, ()) for one in guards for other in guards
            ):
                continue
            weak = {
                other
                for one in guards
                for other in guards
                if one != other
                and (
                    (one > 0 and other > 0 and other - 1 in implied.get(one - 1, ()))
                    or (one < 0 and other < 0 and -one - 1 in implied.get(-other - 1, ()))
                )
            }
            if move.source == move.target and not move.shifts and not move.assigns:
                continue
            moves.setdefault(dataclasses.replace(move, guards=frozenset(guards - weak)))
        self.moves = _weakest(moves, self.implied)

    def _implications(self, used: Sequence[int]) -> dict[int, set[int]]:
        """Return for each threshold those that hold whenever it does, for all parameters."""
        implied: dict[int, set[int]] = {}
        for one in used:
            strong = self.thresholds[one]
            for other in used:
                weak = self.thresholds[other]
                if one == other or not strong.grows or not weak.grows:
                    continue
                factors = dict(weak.term)
                if all(factors.get(counter, 0) >= factor for counter, factor in strong.term):
                    # weak's term is at least strong's, which is at least strong's bound / strong's scale.
                    difference = strong.bound.times(weak.scale) - weak.bound.times(strong.scale)
                    if bool(strong.term) == bool(weak.term) and self.facts.always(difference):
                        implied.setdefault(one, set()).add(other)
        return implied

    # What helps.

    def _drop_unhelpful(self) -> None:
        if not self.increments_only:
            return
        numbers = {names[0]: number for number, names in enumerate(self.names)}
        counters = {name: number for number, name in enumerate(self.automaton.counters)}
        wanted: set[int] = set()
        unwanted: set[int] = set()
        useful_counters: set[int] = set()
        for stage in self.stages:
            for comparison in comparisons(stage):
                for expression in at_least_zero(comparison)[0]:
                    for name, factor in expression.terms:
                        if name in numbers:
                            (wanted if factor > 0 else unwanted).add(numbers[name])
                        elif name in counters and factor > 0:
                            useful_counters.add(counters[name])

        def helps(move: Move) -> bool:
            if (
                move.target not in wanted
                and move.source not in unwanted
                and not any(counter in useful_counters for counter, _ in move.shifts)
            ):
                return False
            # A process that may still make this move is wanted where it starts.
            wanted.add(move.source)
            for guard in move.guards:
                for counter, factor in self.thresholds[abs(guard) - 1].term:
                    if (factor > 0) == (guard > 0):
                        useful_counters.add(counter)
            return True

        self.moves = _saturated(self.moves, helps)

    def _forget_counters(self) -> None:
        """Drop updates of counters that no guard and no stage reads."""
        read = self._used_counters()
        names = {name: number for number, name in enumerate(self.automaton.counters)}
        changed = True
        while changed:
            changed = False
            for move in self.moves:
                for counter, value in move.assigns:
                    more = {names[name] for name in value.names() if name in names} - read
                    if counter in read and more:
                        read |= more
                        changed = True
        moves: dict[Move, None] = {}
        for move in self.moves:
            shifts = tuple(item for item in move.shifts if item[0] in read)
            assigns = tuple(item for item in move.assigns if item[0] in read)
            if shifts or assigns or move.source != move.target:
                moves.setdefault(dataclasses.replace(move, shifts=shifts, assigns=assigns))
        self.moves = _weakest(moves, self.implied)

    def _used_thresholds(self) -> set[int]:
        return {abs(guard) - 1 for move in self.moves for guard in move.guards}

    def _used_counters(self) -> set[int]:
        names = {name: number for number, name in enumerate(self.automaton.counters)}
        used = {counter for number in self._used_thresholds() for counter, _ in self.thresholds[number].term}
        for formula in self.stages:
            used |= {names[name] for name in _names_of(formula) if name in names}
        # A counter that can fall holds a rule back at zero, whether or not anything reads it.
        for move in self.moves:
            used |= {counter for counter, by in move.shifts if by < 0}
            used |= {counter for counter, value in move.assigns if value.terms or value.constant < 0}
        return used

    # What behaves alike.

    def _lump(self) -> None:
        involved = {move.source for move in self.moves} | {move.target for move in self.moves} | self.starts
        roles: dict[str, list[tuple[int, int, int]]] = {}
        for number, comparison in enumerate(c for stage in self.stages for c in comparisons(stage)):
            for side, linear in enumerate((comparison.left, comparison.right)):
                for name, factor in linear.terms:
                    if isinstance(name, str):
                        roles.setdefault(name, []).append((number, side, factor))
        block: dict[int, object] = {}
        for location, names in enumerate(self.names):
            if location in involved:
                # Initial conditions distinguish locations by name.
                block[location] = ("start", location) if location in self.starts else tuple(roles.get(names[0], ()))
        leaving: dict[int, list[Move]] = {}
        for move in self.moves:
            leaving.setdefault(move.source, []).append(move)
        groups = _numbered(block)
        while True:
            signatures: dict[int, object] = {
                location: (
                    groups[location],
                    frozenset(
                        (move.guards, move.shifts, move.assigns, groups[move.target])
                        for move in leaving.get(location, ())
                        if groups[move.target] != groups[location] or move.shifts or move.assigns
                    ),
                )
                for location in groups
            }
            finer = _numbered(signatures)
            if len(set(finer.values())) == len(set(groups.values())):
                break
            groups = finer
        members: dict[int, list[int]] = {}
        for location, group in sorted(groups.items()):
            members.setdefault(group, []).append(location)
        ordered = sorted(members.values(), key=lambda items: items[0])
        new = {location: number for number, items in enumerate(ordered) for location in items}
        renamed: dict[str, str | None] = {names[0]: None for names in self.names}
        for items in ordered:
            for location in items:
                renamed[self.names[location][0]] = self.names[items[0]][0]
        moves: dict[Move, None] = {}
        for move in self.moves:
            source, target = new[move.source], new[move.target]
            if source != target or move.shifts or move.assigns:
                moves.setdefault(dataclasses.replace(move, source=source, target=target))
        self.moves = _weakest(moves, self.implied)
        self.stages = tuple(rewrite(stage, renamed) for stage in self.stages)
        self.starts = {new[location] for location in self.starts}
        self.names = [tuple(name for location in items for name in self.names[location]) for items in ordered]

    # What can be asked at once.

    def _join_stages(self) -> None:
        """Join a stage with the next one where it stays true once it is."""
        joined: list[Formula] = []
        for stage in self.stages:
            if joined and self._stays(joined[-1]):
                joined[-1] = conjunction((joined[-1], stage))
            else:
                joined.append(stage)
        self.stages = tuple(joined)

    def _stays(self, stage: Formula) -> bool:
        if not self.increments_only:
            return False
        numbers = {names[0]: number for number, names in enumerate(self.names)}
        counters = set(self.automaton.counters)
        for comparison in comparisons(stage):
            expressions, all_of = at_least_zero(comparison)
            if not all_of:
                return False
            for expression in expressions:
                factors = dict(expression.terms)
                by_location = {numbers[name]: by for name, by in factors.items() if name in numbers}
                if any(factors.get(name, 0) < 0 for name in counters):
                    return False
                if any(by_location.get(m.target, 0) < by_location.get(m.source, 0) for m in self.moves):
                    return False
        return True

    def _result(self) -> CounterSystem:
        automaton = self.automaton
        parameters = set(automaton.parameters)
        thresholds = sorted(self._used_thresholds())
        threshold_number = {old: new for new, old in enumerate(thresholds)}
        kept_counters = self._used_counters()
        for move in self.moves:
            kept_counters |= {counter for counter, _ in (*move.shifts, *move.assigns)}
        counters = sorted(kept_counters)
        counter_number = {old: new for new, old in enumerate(counters)}
        moves = tuple(
            dataclasses.replace(
                move,
                guards=frozenset((1 if g > 0 else -1) * (threshold_number[abs(g) - 1] + 1) for g in move.guards),
                shifts=tuple((counter_number[counter], by) for counter, by in move.shifts),
                assigns=tuple((counter_number[counter], value) for counter, value in move.assigns),
            )
            for move in self.moves
        )
        zero: dict[str, str | None] = dict.fromkeys(self.zero)
        initial = rewrite(
            conjunction(part for part in conjuncts(self.initial) if not set(_names_of(part)) <= parameters), zero
        )
        # Counters that only initial conditions speak of matter for whether a run can start.
        more = [name for name in automaton.counters if name in set(_names_of(initial))]
        counters += [
            number for number, name in enumerate(automaton.counters) if name in more and number not in counters
        ]
        return CounterSystem(
            automaton,
            self.query,
            automaton.parameters,
            tuple(automaton.counters[number] for number in counters),
            tuple(self.names),
            tuple(
                dataclasses.replace(each, term=tuple((counter_number[counter], by) for counter, by in each.term))
                for each in map(self.thresholds.__getitem__, thresholds)
            ),
            moves,
            self.resilience,
            initial,
            frozenset(self.starts),
            frozenset(new for new, old in enumerate(counters) if old in self.zero_counters),
            self.stages,
        )


def _saturated(moves: tuple[Move, ...], takes: Callable[[Move], bool]) -> tuple[Move, ...]:
    """Return the moves that ``takes`` accepts, each of which may make it accept others; in their order."""
    left, before = list(moves), -1
    while len(left) != before:
        before = len(left)
        left = [move for move in left if not takes(move)]
    refused = set(map(id, left))
    return tuple(move for move in moves if id(move) not in refused)


def _numbered(keys: Mapping[int, object]) -> dict[int, int]:
    numbers: dict[object, int] = {}
    return {item: numbers.setdefault(key, len(numbers)) for item, key in keys.items()}


def _weakest(moves: Iterable[Move], implied: Mapping[int, set[int]]) -> tuple[Move, ...]:
    """Return the moves without those that another with the same effect allows whenever they are allowed.

    Parameters
    ----------
    moves : iterable of Move
    implied : mapping of int to set of int
        Guard to the other guards that hold whenever it does.
    """
    by_effect: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        by_effect.setdefault((move.source, move.target, move.shifts, move.assigns), []).append(move)
    kept: list[Move] = []
    for group in by_effect.values():
        sets = {move.guards: move for move in group}
        changed = len(sets) > 1
        while changed:
            changed = False
            for guards in list(sets):
                for guard in guards:
                    # "g and A" beside "not g and A" is A.
                    other = guards - {guard} | {-guard}
                    if guard > 0 and other in sets and guards - {guard} not in sets:
                        sets[guards - {guard}] = dataclasses.replace(sets[guards], guards=guards - {guard})
                        changed = True
        for guards in sorted(sets, key=lambda each: (-len(each), sorted(each))):
            known = set(guards).union(*(implied.get(guard, ()) for guard in guards))
            if any(other <= known for other in sets if other != guards):
                del sets[guards]
        kept += sets.values()
    return tuple(kept)


def _names_of(formula: Formula) -> Iterable[str]:
    for comparison in comparisons(formula):
        yield from comparison.left.names()
        yield from comparison.right.names()
