"""Decides reachability backward over which locations are occupied: counters as intervals, locations as bits (ZCS).

A coarser and finite abstraction: of a location it is only known whether a process is there.  For every context the set
of such patterns from which the violation looks reachable is a binary decision diagram, and a backward fixed point over
them ends quickly where numbers of processes would not.  "No process there" is an ordinary condition here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.errors import missing_extra
from wavetank.protocols.threshold.answers import SETTLED, Answer
from wavetank.protocols.threshold.error_paths import find_run
from wavetank.protocols.threshold.intervals import IntervalAbstraction, targets
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class ZeroCounters:
    """Backward search over patterns of occupied locations."""

    try_paths: bool = setting(
        True, says="Whether abstract error paths are tried for real runs; if not, only an empty graph decides"
    )

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        if system.impossible:
            return Answer("holds", SETTLED, by="zcs")
        try:
            abstraction = IntervalAbstraction(system, deadline)
            reached = abstraction.forward()
            patterns = BackwardPatterns(system, abstraction, reached, deadline)
            if not patterns.hold_a_start():
                return Answer("holds", f"the error graph over {len(reached)} contexts is empty", by="zcs")
            if not self.try_paths:
                return Answer("undecided", "the error graph is not empty, and its paths were not to be tried", by="zcs")
            live = {context: reached[context] for context in patterns.live()}
            run = find_run(system, abstraction, live, _nothing, deadline)
        except OutOfTimeError as reason:
            return Answer("undecided", str(reason), by="zcs")
        if run is not None:
            return Answer("violated", "an abstract error path is real", run, by="zcs")
        return Answer("holds", f"all abstract error paths through {len(live)} contexts are spurious", by="zcs")


def _nothing(context: int) -> Sequence[Mapping[int, int]]:
    return ()


def diagrams() -> Any:
    """Return an empty store of decision diagrams: CUDD where dd was built with it, else dd's own in Python.

    Raises
    ------
    MissingExtraError
    """
    try:
        from dd.cudd import BDD
    except ImportError:
        try:
            from dd.autoref import BDD
        except ImportError as error:
            raise missing_extra("dd", "protocols", needed_for="The zero-counter checker") from error
    return BDD()


class BackwardPatterns:
    """For every context, the patterns of occupied locations from which the stages look reachable.

    Parameters
    ----------
    system : CounterSystem
    abstraction : IntervalAbstraction
    reached : mapping of int to int
        From ``abstraction.forward()``.
    deadline : Deadline

    Raises
    ------
    OutOfTimeError
    """

    def __init__(
        self,
        system: CounterSystem,
        abstraction: IntervalAbstraction,
        reached: Mapping[int, int],
        deadline: Deadline,
    ) -> None:
        self._system = system
        self._abstraction = abstraction
        self._reached = reached
        self._deadline = deadline
        self._store = diagrams()
        self._names = [f"l{place}" for place in range(len(system.locations))]
        self._store.declare(*self._names)
        self._into = abstraction.edges(reached)
        self._found: dict[int, Any] = dict.fromkeys(reached, self._store.false)
        self._ever: set[int] = set()
        for stage in reversed(range(len(system.stages))):
            self._found = self._fixed_point(self._begin(stage))
            self._ever |= {context for context, found in self._found.items() if found != self._store.false}

    def live(self) -> set[int]:
        """Return the contexts from which the stages look reachable."""
        return self._ever

    def hold_a_start(self) -> bool:
        """Return whether an initial configuration is among the patterns."""
        empty = [name for place, name in enumerate(self._names) if place not in self._system.starts]
        nothing_there = self._store.cube(dict.fromkeys(empty, False))
        return any(
            self._found[context] & nothing_there != self._store.false
            for context in self._abstraction.initial
            if context in self._found
        )

    def _begin(self, stage: int) -> dict[int, Any]:
        wanted = self._store.false
        for target in targets(self._system, stage):
            pattern = {self._names[place]: True for place in target.least}
            pattern |= {self._names[place]: False for place in target.empty}
            wanted |= self._store.cube(pattern)
        last = stage == len(self._system.stages) - 1
        return {
            context: self._possible(context, wanted if last else wanted & self._found[context])
            for context in self._reached
        }

    def _possible(self, context: int, patterns: Any) -> Any:
        """Return those patterns that occupy only what abstract runs occupy in the context."""
        never = {name: False for place, name in enumerate(self._names) if not self._reached[context] >> place & 1}
        # What is never occupied is not mentioned: diagrams stay small.
        return self._store.let(never, patterns) if never else patterns

    def _fixed_point(self, found: dict[int, Any]) -> dict[int, Any]:
        waiting = dict.fromkeys(context for context, patterns in found.items() if patterns != self._store.false)
        while waiting:
            self._deadline.check()
            context = next(reversed(waiting))
            del waiting[context]
            patterns = found[context]
            for before, move in self._into[context]:
                new = found[before] | self._possible(before, self._before(patterns, move))
                if new != found[before]:
                    found[before] = new
                    waiting[before] = None
                    if before == context:
                        patterns = new
        return found

    def _before(self, patterns: Any, move: int) -> Any:
        rule = self._system.moves[move]
        source, target = self._names[rule.source], self._names[rule.target]
        there = self._store.let({target: True}, patterns)
        if rule.source != rule.target:
            # The mover may have been the last one there, or not.
            there = self._store.let({source: False}, there) | self._store.let({source: True}, there)
        return self._store.var(source) & there
