"""Breadth-first and depth-first search over the states of a system, around the compiled loop.

The loop expands states as long as it knows the steps of their nodes; this module takes the steps it asks for, judges
what predicates see of new states (once for each distinct view), makes room, and ends the search when a budget runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.check.deadline import Deadline, resident_bytes
from wavetank.check.explore import core
from wavetank.check.explore.environment import CHANNELS, COUNTED
from wavetank.check.explore.parts import COST, OBLIGED, TIMEOUTS, Kind
from wavetank.check.explore.system import System
from wavetank.check.explore.views import Views
from wavetank.errors import BadValueError

# The arrays of the loop's tables that grow at their ends.
_COLUMNS = (
    "event_node", "event_cost", "event_channel", "event_obliged", "event_ready", "event_later", "local_idle",
    "menu_start", "menu", "views", "step_local", "step_replies", "sends_start", "sends",
)  # fmt: skip

# States in one call of the loop: short enough to look at the clock, long enough to forget the call.
_CHUNK = 8192

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

    def __init__(self, dtype: Any = np.int64) -> None:
        self.keys: NDArray[Any] = np.zeros(1024, dtype)
        self.values: NDArray[np.int32] = np.full(1024, -1, np.int32)
        self.count = 0

    def put(self, keys: Sequence[int] | NDArray[np.uint64], values: Sequence[int]) -> None:
        self.count += len(keys)
        core.put_keys(self.keys, self.values, np.asarray(keys, self.keys.dtype), np.array(values, np.int32))

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys: the loop enters what it asks for before there is a value."""
        if 2 * (self.count + more) > self.keys.size:
            old = self.values >= 0
            kept = self.keys[old], self.values[old]
            size = 1 << (4 * (self.count + more)).bit_length()
            self.keys = np.zeros(size, self.keys.dtype)
            self.values = np.full(size, -1, np.int32)
            core.put_keys(self.keys, self.values, *kept)


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
        self._columns = {name: Column(np.int32) for name in _COLUMNS}
        self._columns["menu_start"].extend([0])
        self._columns["sends_start"].extend([0])
        self._steps, self._merges, self._judged_keys = _Hashed(), _Hashed(), _Hashed(np.uint64)
        # Verdicts by view itself; only where states are compared exactly.
        self._judged: dict[tuple[int, ...], int] = {}
        self._version = views.version
        count = len(system.permutations)
        self._local_images = np.zeros((count, 64), np.int32)
        self._event_images = np.zeros((count, 64), np.int32)
        self._known_locals = self._known_events = 0
        self._permutations = np.array(system.permutations, np.int32)
        self._longest = 2 * len(system.initial) + 16
        self._scratch = np.zeros(self._longest, np.int32)
        self._found = core.Store(
            counters=np.zeros(13, np.int64), keys=np.zeros((4096, 2), np.uint64), places=np.zeros(4096, np.int32),
            parents=np.zeros(2048, np.int32), causes=np.zeros(2048, np.int32), flags=np.zeros(2048, np.uint8),
            starts=np.zeros(2048, np.int64), numbers=np.zeros(1 << 15, np.int32), base=np.zeros(2, np.int64),
            edges=np.zeros((8192 if edges else 0, 3), np.int32), missing=np.zeros((4096, 2), np.int64),
            unseen=np.zeros(1 << 16, np.int64), again=np.zeros(_CHUNK, np.int32),
            judged_keys=self._judged_keys.keys, judged_values=self._judged_keys.values,
        )  # fmt: skip
        self.counters, self._base = self._found.counters, self._found.base
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
        return self._found.edges[: self.counters[core.EDGES]]

    @property
    def flags(self) -> NDArray[np.uint8]:
        """Return the verdicts on each state as bits, uint8 (states,)."""
        return self._found.flags[: self.states]

    def steps_to(self, state: int) -> list[tuple[int, int]]:
        """Return the steps, as :class:`System` takes them, by which a state was first reached."""
        found = []
        while state:
            event, how = divmod(int(self._found.causes[state]), 3)
            found.append((how, event))
            state = int(self._found.parents[state])
        return found[::-1]

    # The search

    def run(self, *, states: int, seconds: float, depth: int | None, stop: Callable[[Search], bool]) -> None:
        """Search until everything was found, ``stop`` says so or a budget runs out.

        Raises
        ------
        OutOfBudget
        """
        ends = Deadline(seconds)
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

    def _check(self, states: int, ends: Deadline) -> None:
        if self.states >= states:
            raise OutOfBudget(f"the budget of {states:,} states was spent")
        if ends.left_s < 0:
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
        self._steps.reserve(self._found.missing.shape[0])
        self._merges.reserve(self._found.missing.shape[0])
        answer = core.expand(todo, first, last, self.shape, self._tables(), self._store(), self._scratch)
        rest = todo[self.counters[core.EXPANDED] :] if not self.shape.deep else todo
        if not self.shape.deep:
            rest = np.concatenate([rest, self._found.again[: self.counters[core.AGAIN]]])
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
        columns = {name: column.array for name, column in self._columns.items()}
        return core.Tables(
            **columns, step_keys=self._steps.keys, step_values=self._steps.values, merge_keys=self._merges.keys,
            merge_values=self._merges.values, local_images=self._local_images, event_images=self._event_images,
            permutations=self._permutations,
        )  # fmt: skip

    def _store(self) -> core.Store:
        return self._found._replace(judged_keys=self._judged_keys.keys, judged_values=self._judged_keys.values)

    # What the loop leaves to its caller

    def _take_missing_steps(self) -> None:
        system, columns = self.system, self._columns
        steps: list[tuple[int, int]] = []
        merges: list[tuple[int, int]] = []
        for key, kind in self._found.missing[: self.counters[core.MISSING]].tolist():
            one, other = key >> 32, key & 0xFFFFFFFF
            if kind:
                merges.append((key, system.merged(one, other)))
                continue
            step = system.transition(one, other)
            if len(system.permutations) > 1 and columns["step_local"].size < _CHECKED_STEPS:
                wrong = system.asymmetry(one, other)
                if wrong:
                    raise BadValueError(
                        f"The nodes are not interchangeable: {wrong}.",
                        where=f"{type(system.algorithm).__name__}, symmetry",
                        hint="name every field that holds ids in Symmetry.ids, or leave symmetry out",
                    )
            steps.append((key, columns["step_local"].size))
            columns["step_local"].extend([step.local])
            columns["step_replies"].extend([step.replies])
            columns["sends"].extend(step.sends)
            columns["sends_start"].extend([columns["sends"].size])
            self.counters[core.MOST_SENDS] = max(self.counters[core.MOST_SENDS], len(step.sends))
        self._sync()
        for table, found in ((self._steps, steps), (self._merges, merges)):
            if found:
                table.put([key for key, _ in found], [value for _, value in found])

    def _sync(self) -> None:
        """Enter events and local states that are new into the tables of the loop."""
        system, columns = self.system, self._columns
        least = 0 if system.clock is None else system.clock.least_delay
        columns["event_later"].extend(system.later[self._known_events :])
        for event in system.events[self._known_events :]:
            message = event.kind == Kind.RECEIVE
            columns["event_node"].extend([event.node])
            columns["event_cost"].extend([COST.get(event.kind, -1)])
            columns["event_channel"].extend([event.sender * system.size + event.node if message else -1])
            columns["event_obliged"].extend([int(event.kind in OBLIGED)])
            columns["event_ready"].extend([int(not message or event.age >= least)])
        for number in range(self._known_locals, len(system.locals)):
            columns["menu"].extend(system.menus[number])
            columns["menu_start"].extend([columns["menu"].size])
            columns["local_idle"].extend([int(system.idle(number))])
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
        start, end = self._found.starts[at : at + 2] - self._base[0]
        return tuple(self._found.numbers[start:end].tolist())

    def _judge_new(self) -> None:
        """Pass judgement on new states, once for each view."""
        unseen = self._found.unseen[: self.counters[core.UNSEEN]]
        if not unseen.size:
            return
        version = -1
        while version != self._views.version:
            version = self._views.version
            self._renew_views()
            if self.shape.exact:
                self._judge_exactly(unseen)
                continue
            keys = core.view_keys(self.shape, self._tables(), self._store())
            news, places = np.unique(keys, return_index=True)
            self._judged_keys.reserve(news.size)
            self._judged_keys.put(news, [self._views.flags(self.row(state)) for state in unseen[places].tolist()])
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
            self._found.flags[state] |= verdict
            if verdict & 1:
                self.bad.append(state)

    def _renew_views(self) -> None:
        """Forget all verdicts when a predicate read a field for the first time."""
        self._views.update()
        if self._version != self._views.version:
            self._version = self._views.version
            self._columns["views"] = Column(np.int32)
            self._judged.clear()
            self._judged_keys = _Hashed(np.uint64)
        ids = self._columns["views"]
        ids.extend(self._views.ids[ids.size :])

    # Room

    def _make_room(self) -> None:
        most = int(self.counters[core.MOST]) + 1
        states, numbers = self.states, int(self.counters[core.NUMBERS] - self._base[0])
        longest = int(self._base_longest() + self.counters[core.MOST_SENDS]) + 8
        if longest > self._longest:
            self._longest = 2 * longest
            self._scratch = np.zeros(self._longest, np.int32)
        self._grow(2 * most + 64, 0, "missing", "unseen")
        found = self._found
        if states + most >= found.parents.size:
            self._afford(states * 9)
            self._grow(2 * (states + most), states, "parents", "causes", "flags")
        window = states - int(self._base[1])
        if window + most + 1 >= found.starts.size:
            self._afford(window * 8)
            self._grow(2 * (window + most + 1), window + 1, "starts")
        if numbers + most * self._longest >= found.numbers.size:
            self._afford(found.numbers.nbytes)
            self._grow(2 * (numbers + most * self._longest), numbers, "numbers")
        filled = int(self.counters[core.EDGES])
        if self.shape.edges and filled + most >= found.edges.shape[0]:
            self._afford(found.edges.nbytes)
            self._grow(2 * (filled + most), filled, "edges")
        top = int(self.counters[core.TOP])
        if self.shape.deep and top + most >= self._stack.size:
            self._stack = _grown(self._stack, 2 * (top + most), top)
        if 2 * (states + most) >= found.keys.shape[0]:
            size = 1 << (4 * (states + most)).bit_length()
            self._afford(size * 20)
            keys, places = np.zeros((size, 2), np.uint64), np.zeros(size, np.int32)
            core.rehash(found.keys, found.places, keys, places)
            self._found = self._found._replace(keys=keys, places=places)

    def _grow(self, wanted: int, filled: int, *names: str) -> None:
        grown = {name: _grown(getattr(self._found, name), wanted, filled) for name in names}
        self._found = self._found._replace(**grown)

    def _base_longest(self) -> int:
        """Return the length of the longest state that is kept."""
        window = self.states - int(self._base[1])
        return int(np.diff(self._found.starts[: window + 1]).max(initial=self.system.fixed_width))

    def _afford(self, more: int) -> None:
        held = max(0, resident_bytes() - self._held_before_bytes)
        if more > 2**20 and held + more > self.memory_bytes:
            raise OutOfBudget(
                f"the budget of {self.memory_bytes / 2**20:,.0f} MiB was spent ({held / 2**20:,.0f} MiB in use, "
                f"{more / 2**20:,.0f} MiB more needed)"
            )

    def _give_up_states_before(self, first: int) -> None:
        """Forget the numbers of states that were expanded; their fingerprints and parents stay."""
        starts, kept = self._found.starts, self._found.numbers
        gone = first - int(self._base[1])
        start = int(starts[gone] - self._base[0])
        if start < kept.size // 4:
            return
        numbers = int(self.counters[core.NUMBERS] - self._base[0])
        window = self.states - int(self._base[1])
        kept[: numbers - start] = kept[start:numbers].copy()
        starts[: window - gone + 1] = starts[gone : window + 1].copy()
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
