"""What predicates see of a state, found out by watching them look.

A predicate is a function of the fields it reads.  While it runs, reads of node fields are noted by class and name; two
states that agree on all fields ever read, on decisions and on replies, get the same verdict, and the predicate runs for
one of them only.  When a field is read for the first time, what was known is thrown away and found again.

Source: U. Acar, G. Blelloch, R. Harper, "Selective Memoization", POPL 2003 (a memo keyed by what was really read).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, cast

from wavetank.check.explore.system import System
from wavetank.check.explore.values import canonical, has_slots
from wavetank.errors import BadValueError, WavetankError
from wavetank.sim.node import Node, Snapshot

# Stands for all fields of a class: a predicate looked at them in a way that does not name fields.
_ALL = "*"

Predicate = Callable[[Snapshot], object]


class Views:
    """Numbers what predicates see of each local state, and calls them.

    Parameters
    ----------
    system : System
    predicates : sequence of (str, predicate)
        Names and functions; a predicate holds when it returns something true.
    invariant : callable
        ``algorithm.violation``: says which invariant is broken, or "".

    Attributes
    ----------
    ids : list of int
        For each local state the number of what is seen of it; equal numbers, equal sights.
    version : int
        Grows whenever ``ids`` is begun anew.
    calls : int
        How many views were judged.
    """

    def __init__(
        self, system: System, predicates: Sequence[tuple[str, Predicate]], invariant: Callable[[Snapshot], str]
    ) -> None:
        self._system = system
        self._predicates = tuple(predicates)
        self._invariant = invariant
        self._read: dict[type, set[str]] = {}
        self._seen: dict[Hashable, int] = {}
        self._watched: list[Node] = []
        self._decisions: dict[tuple[int, ...], dict[tuple[int, Any], Any]] = {}
        self.ids: list[int] = []
        self.version = 0
        self.calls = 0

    def update(self) -> None:
        """Number the local states that are new."""
        system = self._system
        for number in range(len(self.ids), len(system.locals)):
            local = system.locals[number]
            names = self._read.get(type(local.node), ())
            if _ALL in names:
                sight: Hashable = canonical(local.node, f"node {local.index}")
            else:
                held = local.node.__dict__
                sight = tuple([(name, canonical(held[name], name)) for name in sorted(names) if name in held])
            self.ids.append(self._seen.setdefault((system.decided[number], sight), len(self._seen)))

    def flags(self, row: Sequence[int]) -> int:
        """Return the verdicts on a state as bits: 1 when an invariant is broken, 2, 4, ... for predicates that hold."""
        system = self._system
        self.calls += 1
        if system.broken(row):
            return 1
        snapshot = self._snapshot(row)
        found = 1 if self._ask("violation", self._invariant, snapshot) else 0
        for place, (name, predicate) in enumerate(self._predicates, 1):
            if self._ask(name, predicate, snapshot):
                found |= 1 << place
        return found

    def violation(self, row: Sequence[int]) -> str:
        """Return which invariant a state breaks and how, or ""."""
        found = self._system.broken(row)
        return found or str(self._ask("violation", self._invariant, self._system.snapshot(row)) or "")

    def _ask(self, name: str, predicate: Callable[[Snapshot], object], snapshot: Snapshot) -> object:
        try:
            return predicate(snapshot)
        except WavetankError:
            raise
        except Exception as error:
            raise BadValueError(
                f"The predicate {name!r} failed: {type(error).__name__}: {error}",
                where=f"{type(self._system.algorithm).__name__}, {name}",
                hint="predicates see every reachable state: also nodes that are down, and faulty nodes as "
                "FaultyNode (snapshot.correct names the others)",
            ) from error

    def _snapshot(self, row: Sequence[int]) -> Snapshot:
        system = self._system
        for local in system.locals[len(self._watched) :]:
            self._watched.append(self._watch(local.node))
        numbers = row[: system.size]
        decided = tuple([system.decided[number] for number in numbers])
        decisions = self._decisions.get(decided)
        if decisions is None:
            decisions = self._decisions[decided] = dict(system.snapshot(row).decisions)
        nodes = [self._watched[number] for number in numbers]
        return Snapshot(nodes, system.correct, decisions, system.replies[row[system.fixed_width - 1]])

    def _watch(self, node: Node) -> Node:
        """Return a stand-in with the same fields that notes what is read."""
        kind = type(node)
        if not hasattr(node, "__dict__") or has_slots(cast(Any, kind)):
            self._note(kind, _ALL)
            return node
        stand_in: Node = object.__new__(_watching(cast(Any, kind)))
        object.__setattr__(stand_in, "__dict__", {**node.__dict__, "": self._note})
        return stand_in

    def _note(self, kind: type, name: str) -> None:
        names = self._read.setdefault(kind, set())
        if name not in names:
            names.add(name)
            self.ids.clear()
            self._seen.clear()
            self.version += 1


@cache
def _watching(kind: Any) -> type:
    """Return a subclass whose objects note which of their fields are read."""

    def look(self: Any, name: str) -> Any:
        held = object.__getattribute__(self, "__dict__")
        if name in held:
            held[""](kind, name)
        elif name == "__dict__":
            held[""](kind, _ALL)
            return {key: value for key, value in held.items() if key}
        elif not hasattr(kind, name):
            # That a field is not there is also something to see.
            held[""](kind, name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": look, "__module__": kind.__module__})
