"""Takes the specifications of an automaton apart into questions of reachability.

A safety formula is violated by a finite run, so its negation holds "eventually" operators but no "always".  Every way
to violate it is a :class:`Query`: a condition on the first configuration and a sequence of conditions that
configurations of the run meet one after the other.  Formulas whose negation holds an "always" speak about infinite
runs; they are reported as not checked.

Source: Konnov, Veith, Widder, "What you always wanted to know about model checking of fault-tolerant distributed
algorithms" (the logic ELTL_FT); the fragment is that of TACO (arXiv 2605.06118).

Differs from the source:

1. "Eventually" inside "eventually" keeps its order in time; TACO lets both conditions hold at once.
2. Any linear condition may stand under "eventually", not only bounds on single locations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.expressions import (
    FALSE,
    TRUE,
    Always,
    And,
    Eventually,
    Formula,
    Or,
    conjunction,
    disjunction,
    is_temporal,
    negation_normal,
)

LARGEST_NUMBER_OF_QUERIES = 64


@dataclass(frozen=True)
class Query:
    """One way to violate a property.

    Parameters
    ----------
    initial : Formula
        What holds in the first configuration, beyond the automaton's initial conditions; negation-free.
    stages : tuple of Formula
        What configurations of the run meet, in this order, at least one; two may be met by the same configuration.
    """

    initial: Formula
    stages: tuple[Formula, ...]


@dataclass(frozen=True)
class SafetyProperty:
    """A specification and the ways to violate it.

    Parameters
    ----------
    name : str
    formula : Formula
    queries : tuple of Query
        The property holds when none of them can be met.
    not_checked : str
        Why the property is not checked; empty when it is.
    """

    name: str
    formula: Formula
    queries: tuple[Query, ...] = ()
    not_checked: str = ""


class _NotSafetyError(Exception):
    """Raised inside this module for a formula that no finite run violates."""


@dataclass(frozen=True)
class _Event:
    """A configuration that meets ``now`` and from which the ``later`` events happen."""

    now: Formula
    later: tuple[_Event, ...]


# What holds at once, and what happens from here on.
_Branch = tuple[Formula, tuple[_Event, ...]]


def safety_properties(automaton: ThresholdAutomaton) -> tuple[SafetyProperty, ...]:
    """Return the automaton's specifications, each with its queries or the reason why it is not checked."""
    found = []
    for name, formula in automaton.specifications:
        try:
            queries = tuple(_queries(negation_normal(formula, negate=True)))
        except _NotSafetyError as reason:
            found.append(SafetyProperty(name, formula, not_checked=str(reason)))
        else:
            found.append(SafetyProperty(name, formula, queries))
    return tuple(found)


def _queries(negated: Formula) -> list[Query]:
    found: dict[Query, None] = {}
    for now, events in _branches(negated):
        for order in _orders(events):
            found[Query(now, tuple(order) or (TRUE,))] = None
            if len(found) > LARGEST_NUMBER_OF_QUERIES:
                raise _NotSafetyError("it can be violated in too many ways that differ in time")
    return list(found)


def _branches(formula: Formula) -> list[_Branch]:
    if not is_temporal(formula):
        return [] if formula == FALSE else [(formula, ())]
    if isinstance(formula, Always):
        raise _NotSafetyError("a liveness property: only infinite runs violate it")
    if isinstance(formula, Eventually):
        inner = _branches(formula.inner)
        at_once = disjunction(now for now, events in inner if not events)
        found: list[_Branch] = [] if at_once == FALSE else [(conjunction(()), (_Event(at_once, ()),))]
        return found + [(conjunction(()), (_Event(now, events),)) for now, events in inner if events]
    if isinstance(formula, Or):
        plain = [part for part in formula.parts if not is_temporal(part)]
        listed = [branch for part in formula.parts if is_temporal(part) for branch in _branches(part)]
        return (_branches(disjunction(plain)) if plain else []) + listed
    product: list[_Branch] = [(conjunction(()), ())]
    for part in formula.parts if isinstance(formula, And) else ():
        options = _branches(part)
        product = [(conjunction((now, then)), events + more) for now, events in product for then, more in options]
        if len(product) > LARGEST_NUMBER_OF_QUERIES:
            raise _NotSafetyError("it can be violated in too many ways")
    return product


def _orders(events: Sequence[_Event]) -> Iterator[list[Formula]]:
    """Yield the orders in which events can happen, every event before those that follow from it."""
    if not events:
        yield []
    for number, event in enumerate(events):
        rest = (*events[:number], *events[number + 1 :], *event.later)
        for order in _orders(rest):
            yield [event.now, *order]
