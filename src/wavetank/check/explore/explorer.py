"""Explores every interleaving of a small instance of an algorithm.

All that can happen next happens next: any message on its way arrives, any timer runs out, what the environment allows
goes wrong.  Every state that can be reached is visited once, invariants are judged in each, and what must happen sooner
or later is judged on the graph of all of them.  What is found is a list of actions that anyone can replay.

Sources: C. Killian, J. Anderson, R. Jhala, A. Vahdat, "Life, Death, and the Critical Transition: Finding Liveness Bugs
in Systems Code", NSDI 2007 (the code that runs is the model); J. Nadal, Stateright, 2018-2025 (one actor, checked and
run).

Differs from the source:
1. Handlers run once for each local state and event, and the search is a compiled loop over numbers (see ``system`` and
   ``core``).
2. Symmetry looks at all renamings, so each orbit has one state; Stateright sorts, and may keep several.
3. What must happen sooner or later is judged on cycles too, under weak fairness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wavetank.check.deadline import Deadline, resident_bytes
from wavetank.check.explore import core
from wavetank.check.explore.clock import Clock, ClockWasRead
from wavetank.check.explore.counterexample import Path, follow, shortened
from wavetank.check.explore.environment import Environment
from wavetank.check.explore.liveness import never, obliged_causes
from wavetank.check.explore.parts import OBLIGED, Action
from wavetank.check.explore.search import OutOfBudget, Search
from wavetank.check.explore.system import System
from wavetank.check.explore.verdicts import Counterexample, Judgement, limits_in_words, on_time
from wavetank.check.explore.views import Predicate, Views
from wavetank.check.report import Outcome
from wavetank.errors import BadValueError, nearest_of
from wavetank.sim.faults import Fault
from wavetank.sim.network import Topology
from wavetank.sim.node import Algorithm
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request

ORDERS = ("breadth-first", "depth-first", "random")

# One bit is for invariants, one says that a state is terminal.
MOST_PREDICATES = 6


@dataclass(frozen=True, kw_only=True)
class SearchBudget:
    """What a search may use.

    Parameters
    ----------
    states : int
        Distinct states; with ``random`` the states visited.
    seconds : float
        Wall time.
    memory_bytes : int
        By how much the process may grow.
    depth : int or None
        Actions from the start, not with ``depth-first``; by default as many as there are, and 100 a random walk.
    """

    states: int = 20_000_000
    seconds: float = 60.0
    memory_bytes: int = 2 * 2**30
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("states", "seconds", "memory_bytes", "depth"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadValueError("A budget is more than nothing.", given=value, where=name)


@dataclass(kw_only=True)
class Exploration:
    """What a search found.

    Attributes
    ----------
    system : System
    order : str
    complete : bool
        Whether every state that can be reached was visited.
    stopped_by : str
        Why it is not complete; "" when it is.
    states, transitions : int
        Distinct states; steps between them that were looked at.
    terminal_states : int
        States in which nothing has to happen any more.
    depth : int
        Most steps from the start, breadth first; 0 in other orders.
    local_states, handler_calls, judged : int
        Distinct states of single nodes, calls of the algorithm's handlers, and views that predicates were called on.
    seconds : float
        Wall time.
    judgements : list of Judgement
        One for each property; ``invariant`` is the algorithm's own ``violation``.
    terminal : list of Path
        Runs to the first few terminal states.
    beyond_horizon : int
        States in which time went on beyond the horizon of the clock.
    """

    system: System
    order: str
    complete: bool = False
    stopped_by: str = ""
    states: int = 0
    transitions: int = 0
    terminal_states: int = 0
    depth: int = 0
    local_states: int = 0
    handler_calls: int = 0
    judged: int = 0
    seconds: float = 0.0
    judgements: list[Judgement] = field(default_factory=list)
    terminal: list[Path] = field(default_factory=list)
    beyond_horizon: int = 0

    @property
    def outcome(self) -> Outcome:
        """Return ``violated`` if any property is, else ``undecided`` if any is, else ``holds``."""
        outcomes = [judgement.outcome for judgement in self.judgements]
        return "violated" if "violated" in outcomes else "undecided" if "undecided" in outcomes else "holds"

    @property
    def counterexample(self) -> Counterexample | None:
        """Return the run that shows the first violation."""
        return next((each.example for each in self.judgements if each.outcome == "violated"), None)

    @property
    def violation(self) -> str:
        """Return what is violated, in words; "" when nothing is."""
        return next((each.says for each in self.judgements if each.outcome == "violated"), "")

    @property
    def states_per_s(self) -> float:
        """Return distinct states a second."""
        return self.states / self.seconds if self.seconds else 0.0


def explore(
    algorithm: Algorithm,
    size: int,
    *,
    requests: Sequence[Request] = (),
    environment: Environment | None = None,
    faults: Sequence[Fault] = (),
    topology: Topology | None = None,
    order: str = "breadth-first",
    symmetry: bool = False,
    exact: bool = False,
    always: Mapping[str, Predicate] | None = None,
    eventually: Mapping[str, Predicate] | None = None,
    sometimes: Mapping[str, Predicate] | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
    terminal: int = 3,
    clock: Clock | None = None,
) -> Exploration:
    """Explore every interleaving of a small instance.

    The search ends at the first broken invariant.  A budget that runs out, and Ctrl-C, end it too; then nothing is
    lost, and what was not decided is ``undecided``.

    Parameters
    ----------
    algorithm : Algorithm
        Its ``violation`` is an invariant, and so is that no handler raises and no node decides twice.
    size : int
        Nodes.
    requests : sequence of Request
        What clients ask; those of one node in the order of their times, otherwise at any time.
    environment : Environment, optional
        By default a network that loses nothing and delivers in any order, and no crashes.
    faults : sequence of Fault
        See :mod:`wavetank.sim.faults`; :class:`~wavetank.check.explore.environment.AnyOf` for a node that
        may send anything.
    topology : Topology, optional
        Complete by default.
    order : str
        ``breadth-first`` (the counterexample is a shortest one), ``depth-first``, or ``random``: walks from the start.
    symmetry : bool
        Count states that differ by a renaming of nodes as one; the algorithm declares where ids are kept
        (:class:`~wavetank.check.explore.environment.Symmetry`).
    exact : bool
        Compare full states where fingerprints (128 bits) are equal; slower, and takes several times the memory.
    always, eventually, sometimes : mapping of str to predicate
        Functions of a :class:`~wavetank.sim.node.Snapshot` that hold in every state; in some state of
        every fair run; in some state that can be reached.  They must depend on the snapshot alone.
    budget : SearchBudget, optional
    seed : int
        Of the nodes' random streams, and of random walks.
    terminal : int
        How many terminal states to keep a run to.
    clock : Clock, optional
        How time passes.  By default there is no time: any timer that is set may run out next.  Where a node or a
        predicate then reads ``context.now``, what depends on it is ``undecided``.

    Raises
    ------
    BadValueError
        For an order, property or combination that makes no sense.
    """
    always, eventually, sometimes = dict(always or {}), dict(eventually or {}), dict(sometimes or {})
    budget = budget or SearchBudget()
    _check(order, symmetry, exact, always, eventually, sometimes, budget)
    began = Deadline()

    def searched(absolute: bool) -> tuple[Exploration, Views]:
        system = System(
            algorithm,
            size,
            requests=requests,
            environment=environment,
            faults=faults,
            topology=topology,
            symmetry=symmetry,
            seed=seed,
            clock=clock,
            absolute=absolute,
        )
        views = Views(system, [*eventually.items(), *sometimes.items()], _invariant(algorithm, always))
        found = Exploration(system=system, order=order)
        if order == "random":
            _walk(found, views, list(eventually), list(sometimes), budget, seed, terminal)
        else:
            _search(found, views, list(eventually), list(sometimes), budget, exact=exact, terminal=terminal)
        return found, views

    try:
        found, views = searched(False)
    except ClockWasRead:
        # The time is no part of the states unless it makes a difference.
        found, views = searched(True)
    system = found.system
    found.judgements = [on_time(each, found) for each in found.judgements]
    found.local_states, found.handler_calls, found.judged = len(system.locals), system.handler_calls, views.calls
    found.seconds = began.spent_s
    return found


def replay(exploration: Exploration | System, actions: Sequence[Action]) -> Path:
    """Run a list of actions through the handlers again.

    Parameters
    ----------
    exploration : Exploration or System
        The instance.
    actions : sequence of Action

    Raises
    ------
    BadValueError
        For an action that cannot happen where it stands.
    """
    return follow(exploration if isinstance(exploration, System) else exploration.system, actions)


def violation_of(path: Path) -> str:
    """Return which invariant the algorithm itself sees broken at the end of a run; "" for none."""
    return path.system.broken(path.rows[-1]) or path.system.algorithm.violation(path.snapshot())


def _check(
    order: str,
    symmetry: bool,
    exact: bool,
    always: Mapping[str, Any],
    eventually: Mapping[str, Any],
    sometimes: Mapping[str, Any],
    budget: SearchBudget,
) -> None:
    if order not in ORDERS:
        raise BadValueError(
            "There is no such order.", given=order, allowed=ORDERS, nearest=nearest_of(order, ORDERS), where="order"
        )
    names = [*always, *eventually, *sometimes]
    if len(set(names)) < len(names) or "invariant" in names:
        raise BadValueError("Every property has a name of its own.", given=sorted(names), where="properties")
    if len(eventually) + len(sometimes) > MOST_PREDICATES:
        raise BadValueError(
            "There are too many properties for one search.",
            given=len(eventually) + len(sometimes),
            allowed=f"up to {MOST_PREDICATES} of eventually and sometimes together, any number of always",
        )
    if symmetry and (eventually or exact):
        raise BadValueError(
            "Cycles of renamed states are no cycles of runs, and full states are compared without renaming.",
            given="symmetry with " + ("eventually" if eventually else "exact"),
            hint="leave one of them out",
        )
    if budget.depth is not None and order == "depth-first":
        raise BadValueError(
            "Depth first, a state met late would hide what can be reached from it sooner.",
            given=f"depth {budget.depth}",
            hint="search breadth-first to a depth",
        )
    if symmetry and order == "random":
        raise BadValueError("A random walk does not look at symmetry.", given="symmetry", where="order = random")


def _invariant(algorithm: Algorithm, always: Mapping[str, Predicate]) -> Callable[[Any], str]:
    def violation(snapshot: Any) -> str:
        found = algorithm.violation(snapshot)
        if found:
            return found
        for name, predicate in always.items():
            if not predicate(snapshot):
                return f"{name}: does not hold"
        return ""

    return violation


def _search(
    found: Exploration,
    views: Views,
    eventually: list[str],
    sometimes: list[str],
    budget: SearchBudget,
    *,
    exact: bool,
    terminal: int,
) -> None:
    system = found.system
    search = Search(
        system,
        views,
        deep=found.order == "depth-first",
        exact=exact,
        edges=bool(eventually),
        keeps_states=bool(eventually) and system.bounds_timeouts,
        memory_bytes=budget.memory_bytes,
    )
    try:
        search.run(
            states=budget.states, seconds=budget.seconds, depth=budget.depth, stop=lambda search: bool(search.bad)
        )
        found.complete = not search.bad
    except OutOfBudget as reached:
        found.stopped_by = str(reached)
    except KeyboardInterrupt:
        found.stopped_by = "it was interrupted"
    except MemoryError:
        found.stopped_by = "the machine has no memory left"
    found.states, found.transitions = search.states, int(search.counters[core.STEPS])
    found.terminal_states, found.depth = int(search.counters[core.TERMINAL]), len(search.layers)
    found.depth = max(found.depth - 1, 0) if found.complete else found.depth
    flags = search.flags

    def path_to(state: int) -> Path:
        return follow(system, [system.action(step) for step in search.steps_to(state)])

    if search.bad:
        path = path_to(min(search.bad))
        if found.order == "depth-first":
            path = follow(system, shortened(system, path.actions, lambda path: bool(views.violation(path.rows[-1]))))
        found.judgements.append(_broken(found, views, path))
    else:
        found.judgements.append(_unbroken(found))
    found.beyond_horizon = int(search.counters[core.BEYOND])
    obliged = obliged_causes([event.kind in OBLIGED for event in system.events])
    ends = (flags & core.IS_TERMINAL) != 0
    cut = np.zeros(ends.size, np.bool_)
    if found.complete and eventually and system.bounds_timeouts:
        cut[[state for state in np.flatnonzero(ends).tolist() if system.held_timers(search.row(state))]] = True
    for place, name in enumerate(eventually, 1):
        if not found.complete:
            says = f"not every state was visited: {found.stopped_by}"
            found.judgements.append(Judgement(name, "eventually", "undecided", says))
            continue
        holds = (flags & (1 << place)) != 0
        lasso = never(search.edges, holds, ends & ~cut, obliged)
        if lasso is None and cut.any() and never(search.edges, holds, ends, obliged) is not None:
            found.judgements.append(Judgement(name, "eventually", "undecided", _cut_short(system)))
            continue
        if lasso is None:
            limits = limits_in_words(system)
            says = "on every fair run" + (f" {limits}" if limits else "")
            found.judgements.append(Judgement(name, "eventually", "holds", says))
            continue
        causes = [*lasso.steps, *lasso.cycle]
        path = follow(system, [system.action((cause % 3, cause // 3)) for cause in causes])
        if lasso.cycle and frozenset.intersection(*map(system.held_timers, path.rows[-1 - len(lasso.cycle) :])):
            found.judgements.append(Judgement(name, "eventually", "undecided", _cut_short(system)))
            continue
        says = f"never {name}: " + ("the last steps repeat for ever" if lasso.cycle else "nothing more has to happen")
        example = Counterexample(says, path, len(lasso.cycle))
        found.judgements.append(Judgement(name, "eventually", "violated", says, example))
    for place, name in enumerate(sometimes, 1 + len(eventually)):
        where = np.flatnonzero(flags & (1 << place))
        found.judgements.append(_seen(found, name, path_to(int(where[0])) if where.size else None))
    found.terminal = [path_to(int(state)) for state in np.flatnonzero(ends)[:terminal]]


def _cut_short(system: System) -> str:
    return (
        f"the runs without it end where a timer is set and all {system.environment.timeouts} time-outs are spent; "
        "allow more"
    )


def _covered(found: Exploration, every: str = "all") -> str:
    """Return which states were visited; never "all" where a bound kept runs short."""
    limits = limits_in_words(found.system)
    return f"the {found.states:,} states {limits}" if limits else f"{every} {found.states:,} states"


def _broken(found: Exploration, views: Views, path: Path) -> Judgement:
    found.stopped_by = "an invariant is broken"
    says = views.violation(path.rows[-1])
    return Judgement("invariant", "always", "violated", says, Counterexample(says, path))


def _unbroken(found: Exploration) -> Judgement:
    if found.complete:
        return Judgement("invariant", "always", "holds", f"in {_covered(found)}")
    says = f"unbroken in {found.states:,} states; {found.stopped_by}"
    return Judgement("invariant", "always", "undecided", says)


def _seen(found: Exploration, name: str, path: Path | None) -> Judgement:
    if path is not None:
        says = f"after {len(path.steps)} steps"
        return Judgement(name, "sometimes", "holds", says, Counterexample(f"{name}: {says}", path))
    if found.complete:
        return Judgement(name, "sometimes", "violated", f"{name} in none of {_covered(found, 'the')}")
    return Judgement(name, "sometimes", "undecided", f"not seen in {found.states:,} states; {found.stopped_by}")


def _walk(
    found: Exploration,
    views: Views,
    eventually: list[str],
    sometimes: list[str],
    budget: SearchBudget,
    seed: int,
    terminal: int,
) -> None:
    """Take random walks until something breaks or the budget is spent; the states visited are counted, once each."""
    system = found.system
    deadline = Deadline(budget.seconds)
    held_before_bytes = resident_bytes()
    verdicts: dict[tuple[int, ...], int] = {}
    seen_ends: set[tuple[int, ...]] = set()
    shown: dict[int, Path] = {}
    missed: dict[int, Path] = {}
    bad: Path | None = None
    visited = walk = 0

    def flags_of(row: tuple[int, ...]) -> int:
        flags = verdicts.get(row)
        if flags is None:
            views.update()
            flags = verdicts[row] = views.flags(row)
        return flags

    def replayed(steps: list[tuple[int, int]]) -> Path:
        return follow(system, [system.action(step) for step in steps])

    try:
        while bad is None and visited < budget.states and deadline.left_s > 0:
            draws = Draws(stream_key(seed, "explore", walk))
            walk += 1
            row, steps = system.initial, list[tuple[int, int]]()
            held = 0
            while True:
                visited += 1
                flags = flags_of(row)
                held |= flags
                for place in range(1 + len(eventually), 1 + len(eventually) + len(sometimes)):
                    if flags >> place & 1 and place not in shown:
                        shown[place] = replayed(steps)
                if flags & 1:
                    bad = replayed(steps)
                    break
                possible = system.actions(row)
                if not any(system.obliged(action) for action in possible):
                    if row not in seen_ends:
                        seen_ends.add(row)
                        if len(found.terminal) < terminal:
                            found.terminal.append(replayed(steps))
                    for place in (
                        () if system.held_timers(row) or system.at_horizon(row) else range(1, 1 + len(eventually))
                    ):
                        if not held >> place & 1 and place not in missed:
                            missed[place] = replayed(steps)
                if not possible or len(steps) >= (budget.depth or 100) or visited >= budget.states:
                    break
                step = possible[draws.below(len(possible))]
                row = system.after(row, step)
                found.transitions += 1
                steps.append(step)
            if resident_bytes() - held_before_bytes > budget.memory_bytes:
                found.stopped_by = f"the budget of {budget.memory_bytes / 2**20:,.0f} MiB was spent"
                break
            if eventually and len(missed) == len(eventually) and not sometimes:
                break
        found.stopped_by = found.stopped_by or "random walks never see everything"
    except KeyboardInterrupt:
        found.stopped_by = "it was interrupted"
    found.states, found.terminal_states = len(verdicts), len(seen_ends)
    if bad is not None:
        actions = shortened(system, bad.actions, lambda path: bool(views.violation(path.rows[-1])))
        path = follow(system, actions)
        found.judgements.append(_broken(found, views, path))
    else:
        found.judgements.append(_unbroken(found))
    for place, name in enumerate(eventually, 1):
        if place in missed:
            says = f"never {name}: nothing more has to happen"
            example = Counterexample(says, missed[place])
            found.judgements.append(Judgement(name, "eventually", "violated", says, example))
        else:
            found.judgements.append(Judgement(name, "eventually", "undecided", found.stopped_by))
    for place, name in enumerate(sometimes, 1 + len(eventually)):
        found.judgements.append(_seen(found, name, shown.get(place)))
