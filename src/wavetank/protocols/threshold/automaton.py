"""A threshold automaton as its file gives it: parameters, shared counters, locations, rules, formulas.

Processes sit in locations; a rule moves one process when its guard, a condition on shared counters and parameters,
holds, and updates counters.  Automata with only increments are those for which safety is decidable; files that reset
or lower counters (extended threshold automata) are read too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wavetank.protocols.threshold.expressions import Formula, Linear


@dataclass(frozen=True)
class Rule:
    """One way for a process to move.

    Parameters
    ----------
    name : str
        The number in the file.
    source, target : str
        Locations.
    guard : Formula
        Over counters and parameters.
    updates : tuple of (str, Linear)
        New value of each counter that changes, over old values.
    line : int
        Line of its file where the rule begins; 0 when it comes from no file.  No part of equality.
    """

    name: str
    source: str
    target: str
    guard: Formula
    updates: tuple[tuple[str, Linear], ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class ThresholdAutomaton:
    """A threshold automaton and its specifications.

    Parameters
    ----------
    name : str
    parameters, counters, locations : tuple of str
        Parameters (natural numbers fixed in a run), shared counters, locations.
    assumptions : tuple of Formula
        The resilience condition, over parameters.
    initial : tuple of Formula
        Over locations (number of processes there), counters and parameters.
    rules : tuple of Rule
    specifications : tuple of (str, Formula)
        Name and temporal formula.
    local_names : tuple of str
        Local variables the file declares; nothing depends on them.
    location_values : tuple of tuple of int
        The values of local variables that the file gives each location; nothing depends on them.
    """

    name: str
    parameters: tuple[str, ...]
    counters: tuple[str, ...]
    locations: tuple[str, ...]
    assumptions: tuple[Formula, ...]
    initial: tuple[Formula, ...]
    rules: tuple[Rule, ...]
    specifications: tuple[tuple[str, Formula], ...] = ()
    local_names: tuple[str, ...] = ()
    location_values: tuple[tuple[int, ...], ...] = ()

    @property
    def has_only_increments(self) -> bool:
        """Whether every update adds a constant that is not negative: then safety is decidable."""
        return all(is_shift(name, value) and value.constant >= 0 for rule in self.rules for name, value in rule.updates)


def is_shift(name: str, value: Linear) -> bool:
    """Return whether the new value is the counter's old one plus some constant."""
    return value.terms == ((name, 1),)
