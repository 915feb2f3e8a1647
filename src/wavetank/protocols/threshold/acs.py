"""Decides coverability backward over minimal configurations: counters as intervals, locations as numbers (ACS).

With counters known only by their interval, more processes never hurt: the abstract counter system is well structured,
and the configurations that can reach a violation are an upward-closed set with finitely many minimal elements.  The
checker finds them backward from the violation until nothing new appears.  If no initial configuration is among them the
property holds for all parameters; otherwise the abstract paths are tried for real runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.answers import SETTLED, Answer
from wavetank.protocols.threshold.error_paths import find_run
from wavetank.protocols.threshold.intervals import IntervalAbstraction, Target, targets
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class IntervalBackward:
    """Backward search over minimal bases."""

    most_elements: int = setting(500_000, says="Most minimal elements that are kept", low=1)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        if system.impossible:
            return Answer("holds", SETTLED, by="acs")
        try:
            abstraction = IntervalAbstraction(system, deadline)
            reached = abstraction.forward()
            bases = backward_basis(system, abstraction, reached, self.most_elements, deadline)
            size = sum(len(rows) for basis in bases for rows in basis.values())
            if not _starts_inside(system, abstraction, bases[0]):
                return Answer("holds", f"the backward fixed point ({size} minimal elements) holds no start", by="acs")
            # A run goes on to the later stages: their contexts are on the way too.
            ever = {context for basis in bases for context, rows in basis.items() if len(rows)}
            live = {context: reached[context] for context in ever}

            def needs(context: int) -> Sequence[Mapping[int, int]]:
                rows = bases[0][context][:65]
                return [{int(place): int(row[place]) for place in np.flatnonzero(row)} for row in rows]

            run = find_run(system, abstraction, live, needs, deadline)
        except OutOfTimeError as reason:
            return Answer("undecided", str(reason), by="acs")
        if run is not None:
            return Answer("violated", "an abstract error path is real", run, by="acs")
        return Answer("holds", f"all abstract error paths are spurious ({size} minimal elements)", by="acs")


def backward_basis(
    system: CounterSystem,
    abstraction: IntervalAbstraction,
    reached: Mapping[int, int],
    most_elements: int,
    deadline: Deadline,
) -> list[dict[int, NDArray[np.int32]]]:
    """Return the minimal configurations of every context from which the stages that are left look reachable.

    Parameters
    ----------
    system : CounterSystem
    abstraction : IntervalAbstraction
    reached : mapping of int to int
        From ``abstraction.forward()``.
    most_elements : int
    deadline : Deadline

    Returns
    -------
    list of dict of int to array of int32, shape (elements, locations)
        For every stage: the set from which it and all later ones can be met.

    Raises
    ------
    OutOfTimeError
        When time or ``most_elements`` end first.
    """
    into = abstraction.edges(reached)
    found: list[dict[int, NDArray[np.int32]]] = []
    last = _Basis(system, reached, most_elements)
    for stage in reversed(range(len(system.stages))):
        wanted = targets(system, stage)
        following, last = last, _Basis(system, reached, most_elements)
        waiting: list[tuple[int, NDArray[np.int32]]] = []
        for context in reached:
            rows = [_row(system, target) for target in wanted]
            if stage < len(system.stages) - 1:
                rows = [np.maximum(row, other) for row in rows for other in following.rows[context]]
            waiting += [(context, row) for row in rows if last.add(context, row)]
        # Few processes first: small elements dominate many larger ones.
        waiting.sort(key=lambda item: -int(item[1].sum()))
        while waiting:
            deadline.check()
            context, row = waiting.pop()
            if not last.holds(context, row):
                continue
            for before, move in into[context]:
                rule = system.moves[move]
                if before == context and not row[rule.target]:
                    # It asks for one process more and gains nothing.
                    continue
                new = row.copy()
                if rule.source == rule.target:
                    new[rule.source] = max(1, new[rule.source])
                else:
                    new[rule.target] = max(0, new[rule.target] - 1)
                    new[rule.source] += 1
                if last.add(before, new):
                    waiting.append((before, new))
        found.insert(0, last.rows)
    return found


def _row(system: CounterSystem, target: Target) -> NDArray[np.int32]:
    row = np.zeros(len(system.locations), np.int32)
    for place, least in target.least.items():
        row[place] = least
    return row


class _Basis:
    """Minimal elements of an upward-closed set, by context."""

    def __init__(self, system: CounterSystem, reached: Mapping[int, int], most: int) -> None:
        width = len(system.locations)
        self.rows: dict[int, NDArray[np.int32]] = {context: np.zeros((0, width), np.int32) for context in reached}
        self._occupied = {
            context: np.array([places >> place & 1 for place in range(width)], bool)
            for context, places in reached.items()
        }
        self._most = most
        self._size = 0

    def add(self, context: int, row: NDArray[np.int32]) -> bool:
        """Add an element unless the set holds it already; return whether it is new."""
        if np.any(row[~self._occupied[context]]):
            return False
        rows = self.rows[context]
        if np.any(np.all(rows <= row, axis=1)):
            return False
        kept = rows[~np.all(rows >= row, axis=1)]
        self.rows[context] = np.vstack([kept, row])
        self._size += 1 + len(kept) - len(rows)
        if self._size > self._most:
            raise OutOfTimeError(f"the backward search keeps more than {self._most} elements")
        return True

    def holds(self, context: int, row: NDArray[np.int32]) -> bool:
        """Return whether an element is still minimal."""
        return bool(np.any(np.all(self.rows[context] == row, axis=1)))


def _starts_inside(
    system: CounterSystem, abstraction: IntervalAbstraction, basis: Mapping[int, NDArray[np.int32]]
) -> bool:
    elsewhere = np.array([place not in system.starts for place in range(len(system.locations))], bool)
    return any(
        context in basis and bool(np.any(~np.any(basis[context][:, elsewhere], axis=1)))
        for context in abstraction.initial
    )
