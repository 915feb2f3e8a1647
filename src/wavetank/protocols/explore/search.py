"""Breadth-first and depth-first search over the states of a system, around the compiled loop.

The loop expands states as long as it knows the steps of their nodes; this module takes the steps it asks for, judges
what predicates see of new states (once for each distinct view), makes room, and ends the search when a budget runs out.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.explore import core
from wavetank.protocols.explore.environment import CHANNELS, COUNTED
from wavetank.protocols.explore.parts import COST, OBLIGED, TIMEOUTS, Kind
from wavetank.protocols.explore.system import System
from wavetank.protocols.explore.views import Views

# States in one call of the loop: short enough to look at the clock, long enough to forget the call.
_CHUNK = 8192

_PAGE_BYTES = 4096

# A search may always grow by this much: what Python keeps for later is no matter of the search.
_LEAST_GROWTH_BYTES = 32 * 2**20

# Steps that are held against their own renamings, to find a wrong declaration of symmetry.
_CHECKED_STEPS = 200


class Column:
    """An array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self.array: NDArray[Any] = np.zeros(64, dtype)
        self.size = 0

    def extend(self, values: Sequence[int]) -> None:
        """Add values."""
        end = self.size + len(values)
        if end > self.array.size:
            grown = np.zeros(max(end, 2 * self.array.size), self.array.dtype)
            grown[: self.size] = self.array[: self.size]
            self.array = grown
        self.array[self.size : end] = values
        self.size = end


class _Hashed:
    """A hash table of the compiled loop, never more than half full."""

    def __init__(self) -> None:
        self.keys: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.values: NDArray[np.int32] = np.full(1024, -1, np.int32)
        self.count = 0

    def put(self, keys: Sequence[int], values: Sequence[int]) -> None:
        self.count += len(keys)
        core.put_keys(self.keys, self.values, np.array(keys, np.int64), np.array(values, np.int32))

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys: the loop enters what it asks for before there is a value."""
        if 2 * (self.count + more) > self.keys.size:
            old = self.values >= 0
            kept = self.keys[old], self.values[old]
            size = 1 << (4 * (self.count + more)).bit_length()
            self.keys = np.zeros(size, np.int64)
            self.values = np.full(size, -1, np.int32)
            core.put_keys(self.keys, self.values, *kept)


def resident_bytes() -> int:
    """Return the memory this process takes now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


class OutOfBudget(Exception):  # noqa: N818 - it ends a search, it is no error
    """A budget ran out; the message says which."""


class Search:
    """The states found so far, and the search for more.

    Parameters
    ----------
    system : System
    views : Views
        The predicates, and what they see.
    deep : bool
        Depth first.
    exact : bool
        Keep full states and compare them where fingerprints are equal.
    edges : bool
        Keep all edges.
    keeps_states : bool
        Keep the rows of all states for :meth:`row`, also breadth first.
    memory_bytes : int
        The process may not grow by more while it searches.
    """

    def __init__(
        self,
        system: System,
        views: Views,
        *,
        deep: bool = False,
        exact: bool = False,
        edges: bool = False,
        keeps_states: bool = False,
        memory_bytes: int = 2 * 2**30,
    ) -> None:
        self.system = system
        self._views = views
        self.memory_bytes = memory_bytes
        # What the process takes already is not the search's doing.
        self._held_before_bytes = resident_bytes()
        self._keeps_states = deep or exact or keeps_states
        environment = system.environment
        self.shape = core.Shape(
            nodes=system.size,
            counters=len(COUNTED),
            channels=CHANNELS.index(environment.channels),
            when_quiet=int(environment.timers == "when-quiet"),
            timeouts=TIMEOUTS,
            exact=int(exact),
            edges=int(edges),
            deep=int(deep),
            tick=system.tick,
        )
        self._events = {name: Column(np.int32) for name in ("node", "cost", "channel", "obliged", "ready", "later")}
        self._idle = Column(np.int32)
        self._menu_start, self._menu = Column(np.int32), Column(np.int32)
        self._menu_start.extend([0])
        self._step_local, self._step_replies = Column(np.int32), Column(np.int32)
        self._sends_start, self._sends = Column(np.int32), Column(np.int32)
        self._sends_start.extend([0])
        self._steps, self._merges = _Hashed(), _Hashed()
        self._judged_keys: NDArray[np.uint64] = np.zeros(1024, np.uint64)
        self._judged_values: NDArray[np.int32] = np.full(1024, -1, np.int32)
        self._judged_count = 0
        # Verdicts by view itself; only where states are compared exactly.
        self._judged: dict[tuple[int, ...], int] = {}
        self._view_ids = Column(np.int32)
        self._version = views.version
        count = len(system.permutations)
        self._local_images = np.zeros((count, 64), np.int32)
        self._event_images = np.zeros((count, 64), np.int32)
        self._known_locals = self._known_events = 0
        self._permutations = np.array(system.permutations, np.int32)
        self._longest = 2 * len(system.initial) + 16
        self._scratch = np.zeros(self._longest, np.int32)
        self.counters = np.zeros(13, np.int64)
        self._keys = np.zeros((4096, 2), np.uint64)
        self._places = np.zeros(4096, np.int32)
        self.parents = np.zeros(2048, np.int32)
        self.causes = np.zeros(2048, np.int32)
        self.flags: NDArray[np.uint8] = np.zeros(2048, np.uint8)
        self._starts = np.zeros(2048, np.int64)
        self._numbers = np.zeros(1 << 15, np.int32)
        self._base = np.zeros(2, np.int64)
        self._edges = np.zeros((8192 if edges else 0, 3), np.int32)
        self._missing = np.zeros((4096, 2), np.int64)
        self._unseen = np.zeros(1 << 16, np.int64)
        self._again = np.zeros(_CHUNK, np.int32)
        self._stack = np.zeros(4096 if deep else 0, np.int32)
        # State numbers at which the layers of a breadth-first search end.
        self.layers: list[int] = []
        self.bad: list[int] = []
        self._sync()
        self._enter_first()

    # What is known so far

    @property
    def states(self) -> int:
        """Distinct states."""
        return int(self.counters[core.STATES])

    @property
    def edges(self) -> NDArray[np.int32]:
        """Return from, to and step of every edge, int32 (edges, 3)."""
        return self._edges[: self.counters[core.EDGES]]

    def steps_to(self, state: int) -> list[tuple[int, int]]:
        """Return the steps, as :class:`System` takes them, by which a state was first reached."""
        found = []
        while state:
            event, how = divmod(int(self.causes[state]), 3)
            found.append((how, event))
            state = int(self.parents[state])
        return found[::-1]

    def depth_of(self, state: int) -> int:
        """Return how many steps led to a state."""
        if self.layers:
            return bisect_right(self.layers, state)
        return len(self.steps_to(state))

    # The search

    def run(self, *, states: int, seconds: float, depth: int | None, stop: Callable[[Search], bool]) -> None:
        """Search until everything was found, ``stop`` says so or a budget runs out.

        Raises
        ------
        OutOfBudget
        """
        ends = time.monotonic() + seconds
        if self.shape.deep:
            self._stack[0] = 0
            self.counters[core.TOP] = 1
            while self.counters[core.TOP]:
                self._work(self._stack, 0, _CHUNK)
                if stop(self):
                    return
                self._check(states, ends)
            return
        first, last = 0, 1
        while first < last:
            if depth is not None and len(self.layers) >= depth:
                raise OutOfBudget(f"the depth of {depth} steps was reached")
            self.layers.append(last)
            for begin in range(first, last, _CHUNK):
                todo = np.arange(begin, min(begin + _CHUNK, last), dtype=np.int32)
                while todo.size:
                    todo = self._work(todo, 0, todo.size)
                    if stop(self):
                        return
                    self._check(states, ends)
            first, last = last, self.states
            if not self._keeps_states:
                self._give_up_states_before(first)

    def _check(self, states: int, ends: float) -> None:
        if self.states >= states:
            raise OutOfBudget(f"the budget of {states:,} states was spent")
        if time.monotonic() > ends:
            raise OutOfBudget("the time was up")
        # Nodes' states, messages and judgements are Python objects, which no growth of an array announces.
        held = resident_bytes() - self._held_before_bytes
        if held > max(self.memory_bytes, _LEAST_GROWTH_BYTES):
            raise OutOfBudget(
                f"the budget of {self.memory_bytes / 2**20:,.0f} MiB was spent ({held / 2**20:,.0f} MiB in use)"
            )

    def _work(self, todo: NDArray[np.int32], first: int, last: int) -> NDArray[np.int32]:
        """Expand states, and do what the loop left undone; return the states that are to be expanded again."""
        for name in (core.MISSING, core.UNSEEN, core.AGAIN):
            self.counters[name] = 0
        self._steps.reserve(self._missing.shape[0])
        self._merges.reserve(self._missing.shape[0])
        answer = core.expand(todo, first, last, self.shape, self._tables(), self._store(), self._scratch)
        rest = todo[self.counters[core.EXPANDED] :] if not self.shape.deep else todo
        if not self.shape.deep:
            rest = np.concatenate([rest, self._again[: self.counters[core.AGAIN]]])
        self._judge_new()
        self._take_missing_steps()
        if answer == core.NEEDS_ROOM:
            self._make_room()
        return rest

    def _enter_first(self) -> None:
        row = np.array(self.system.initial, np.int32)
        self._scratch[: row.size] = row
        tables, store = self._tables(), self._store()
        one, two = core.fingerprint(self._scratch, row.size, self.shape, tables)
        core.enter(self._scratch, row.size, np.uint64(one), np.uint64(two), 0, 0, self.shape, tables, store)
        self._judge_new()

    def _tables(self) -> core.Tables:
        return core.Tables(
            event_node=self._events["node"].array,
            event_cost=self._events["cost"].array,
            event_channel=self._events["channel"].array,
            event_obliged=self._events["obliged"].array,
            event_ready=self._events["ready"].array,
            event_later=self._events["later"].array,
            local_idle=self._idle.array,
            menu_start=self._menu_start.array,
            menu=self._menu.array,
            views=self._view_ids.array,
            step_keys=self._steps.keys,
            step_values=self._steps.values,
            step_local=self._step_local.array,
            step_replies=self._step_replies.array,
            sends_start=self._sends_start.array,
            sends=self._sends.array,
            merge_keys=self._merges.keys,
            merge_values=self._merges.values,
            local_images=self._local_images,
            event_images=self._event_images,
            permutations=self._permutations,
        )

    def _store(self) -> core.Store:
        return core.Store(
            counters=self.counters,
            keys=self._keys,
            places=self._places,
            parents=self.parents,
            causes=self.causes,
            flags=self.flags,
            starts=self._starts,
            numbers=self._numbers,
            base=self._base,
            edges=self._edges,
            missing=self._missing,
            unseen=self._unseen,
            again=self._again,
            judged_keys=self._judged_keys,
            judged_values=self._judged_values,
        )

    # What the loop leaves to its caller

    def _take_missing_steps(self) -> None:
        system = self.system
        steps: list[tuple[int, int]] = []
        merges: list[tuple[int, int]] = []
        for key, kind in self._missing[: self.counters[core.MISSING]].tolist():
            one, other = key >> 32, key & 0xFFFFFFFF
            if kind:
                merges.append((key, system.merged(one, other)))
                continue
            step = system.transition(one, other)
            if len(system.permutations) > 1 and self._step_local.size < _CHECKED_STEPS:
                wrong = system.asymmetry(one, other)
                if wrong:
                    raise BadValueError(
                        f"The nodes are not interchangeable: {wrong}.",
                        where=f"{type(system.algorithm).__name__}, symmetry",
                        hint="name every field that holds ids in Symmetry.ids, or leave symmetry out",
                    )
            steps.append((key, self._step_local.size))
            self._step_local.extend([step.local])
            self._step_replies.extend([step.replies])
            self._sends.extend(step.sends)
            self._sends_start.extend([self._sends.size])
            self.counters[core.MOST_SENDS] = max(self.counters[core.MOST_SENDS], len(step.sends))
        self._sync()
        for table, found in ((self._steps, steps), (self._merges, merges)):
            if found:
                table.put([key for key, _ in found], [value for _, value in found])

    def _sync(self) -> None:
        """Tell the loop of events and local states that are new."""
        system = self.system
        least = 0 if system.clock is None else system.clock.least_delay
        self._events["later"].extend(system.later[self._known_events :])
        for event in system.events[self._known_events :]:
            message = event.kind == Kind.RECEIVE
            self._events["node"].extend([event.node])
            self._events["cost"].extend([COST.get(event.kind, -1)])
            self._events["channel"].extend([event.sender * system.size + event.node if message else -1])
            self._events["obliged"].extend([int(event.kind in OBLIGED)])
            self._events["ready"].extend([int(not message or event.age >= least)])
        for number in range(self._known_locals, len(system.locals)):
            self._menu.extend(system.menus[number])
            self._menu_start.extend([self._menu.size])
            self._idle.extend([int(system.idle(number))])
        self._renew_views()
        self._local_images = _with_images(
            self._local_images, system.local_images, self._known_locals, len(system.locals)
        )
        self._event_images = _with_images(
            self._event_images, system.event_images, self._known_events, len(system.events)
        )
        self._known_locals, self._known_events = len(system.locals), len(system.events)

    def row(self, state: int) -> tuple[int, ...]:
        """Return a state whose numbers are still kept."""
        at = state - self._base[1]
        start, end = self._starts[at] - self._base[0], self._starts[at + 1] - self._base[0]
        return tuple(self._numbers[start:end].tolist())

    def _judge_new(self) -> None:
        """Pass judgement on new states, once for each view."""
        unseen = self._unseen[: self.counters[core.UNSEEN]]
        if not unseen.size:
            return
        version = -1
        while version != self._views.version:
            version = self._views.version
            self._renew_views()
            tables, store = self._tables(), self._store()
            if self.shape.exact:
                self._judge_exactly(unseen)
                continue
            keys = core.view_keys(self.shape, tables, store)
            news, places = np.unique(keys, return_index=True)
            self._remember(news, [self._views.flags(self.row(state)) for state in unseen[places].tolist()])
        if not self.shape.exact:
            bad = core.settle(keys, self._store())
            if bad >= 0:
                self.bad.append(int(bad))

    def _judge_exactly(self, unseen: NDArray[np.int64]) -> None:
        """As :meth:`_judge_new`, with views compared and not their keys."""
        system, views, version = self.system, self._views, self._views.version
        for state in unseen.tolist():
            row = self.row(state)
            key = (*[views.ids[number] for number in row[: system.size]], row[system.fixed_width - 1])
            verdict = self._judged.get(key)
            if verdict is None:
                verdict = self._judged[key] = views.flags(row)
                if views.version != version:
                    return
            self.flags[state] |= verdict
            if verdict & 1:
                self.bad.append(state)

    def _renew_views(self) -> None:
        """Forget all verdicts when a predicate read a field for the first time."""
        self._views.update()
        if self._version != self._views.version:
            self._version = self._views.version
            self._view_ids = Column(np.int32)
            self._judged.clear()
            self._judged_count = 0
            self._judged_values[:] = -1
        self._view_ids.extend(self._views.ids[self._view_ids.size :])

    def _remember(self, keys: NDArray[np.uint64], verdicts: list[int]) -> None:
        self._judged_count += keys.size
        if 2 * self._judged_count > self._judged_keys.size:
            old = self._judged_values != -1
            kept = self._judged_keys[old], self._judged_values[old]
            size = 1 << (4 * self._judged_count).bit_length()
            self._judged_keys = np.zeros(size, np.uint64)
            self._judged_values = np.full(size, -1, np.int32)
            core.put_judgements(self._judged_keys, self._judged_values, *kept)
        core.put_judgements(self._judged_keys, self._judged_values, keys, np.array(verdicts, np.int32))

    # Room

    def _make_room(self) -> None:
        most = int(self.counters[core.MOST]) + 1
        states, numbers = self.states, int(self.counters[core.NUMBERS] - self._base[0])
        longest = int(self._base_longest() + self.counters[core.MOST_SENDS]) + 8
        if longest > self._longest:
            self._longest = 2 * longest
            self._scratch = np.zeros(self._longest, np.int32)
        self._missing = _grown(self._missing, 2 * most + 64, 0)
        self._unseen = _grown(self._unseen, 2 * most + 64, 0)
        if states + most >= self.parents.size:
            self._afford(states * 9)
            wanted = 2 * (states + most)
            self.parents = _grown(self.parents, wanted, states)
            self.causes = _grown(self.causes, wanted, states)
            self.flags = _grown(self.flags, wanted, states)
        window = states - int(self._base[1])
        if window + most + 1 >= self._starts.size:
            self._afford(window * 8)
            self._starts = _grown(self._starts, 2 * (window + most + 1), window + 1)
        if numbers + most * self._longest >= self._numbers.size:
            self._afford(self._numbers.nbytes)
            self._numbers = _grown(self._numbers, 2 * (numbers + most * self._longest), numbers)
        if self.shape.edges and self.counters[core.EDGES] + most >= self._edges.shape[0]:
            self._afford(self._edges.nbytes)
            filled = int(self.counters[core.EDGES])
            self._edges = _grown(self._edges, 2 * (filled + most), filled)
        if self.shape.deep and self.counters[core.TOP] + most >= self._stack.size:
            self._stack = _grown(self._stack, 2 * int(self.counters[core.TOP] + most), int(self.counters[core.TOP]))
        if 2 * (states + most) >= self._keys.shape[0]:
            size = 1 << (4 * (states + most)).bit_length()
            self._afford(size * 20)
            keys, places = np.zeros((size, 2), np.uint64), np.zeros(size, np.int32)
            core.rehash(self._keys, self._places, keys, places)
            self._keys, self._places = keys, places

    def _base_longest(self) -> int:
        """Return the length of the longest state that is kept."""
        window = self.states - int(self._base[1])
        return int(np.diff(self._starts[: window + 1]).max(initial=self.system.fixed_width))

    def _afford(self, more: int) -> None:
        held = max(0, resident_bytes() - self._held_before_bytes)
        if more > 2**20 and held + more > self.memory_bytes:
            raise OutOfBudget(
                f"the budget of {self.memory_bytes / 2**20:,.0f} MiB was spent ({held / 2**20:,.0f} MiB in use, "
                f"{more / 2**20:,.0f} MiB more needed)"
            )

    def _give_up_states_before(self, first: int) -> None:
        """Forget the numbers of states that were expanded; their fingerprints and parents stay."""
        gone = first - int(self._base[1])
        start = int(self._starts[gone] - self._base[0])
        if start < self._numbers.size // 4:
            return
        numbers = int(self.counters[core.NUMBERS] - self._base[0])
        window = self.states - int(self._base[1])
        self._numbers[: numbers - start] = self._numbers[start:numbers].copy()
        self._starts[: window - gone + 1] = self._starts[gone : window + 1].copy()
        self._base[0] += start
        self._base[1] = first


def _grown(array: NDArray[Any], wanted: int, filled: int) -> NDArray[Any]:
    if wanted <= array.shape[0]:
        return array
    grown = np.zeros((wanted, *array.shape[1:]), array.dtype)
    grown[:filled] = array[:filled]
    return grown


def _with_images(table: NDArray[np.int32], images: list[list[int]], known: int, count: int) -> NDArray[np.int32]:
    """Return the table of renamings with those of new numbers; the identity where there are none."""
    if count > table.shape[1]:
        grown = np.zeros((table.shape[0], 2 * count), np.int32)
        grown[:, :known] = table[:, :known]
        table = grown
    if table.shape[0] == 1:
        table[0, known:count] = np.arange(known, count)
    else:
        for number in range(known, count):
            table[:, number] = images[number]
    return table
