"""The compiled inner loop: expands states that are rows of numbers, and remembers fingerprints.

A state's fingerprint is the sum of a hash of each of its components, twice with different hashes (128 bits), so that
the fingerprint of a successor follows from its parent's in a few additions and a known state costs no copy.  What the
loop does not know (a step of a node that was never taken) it lists and leaves to the caller, and goes on with other
states meanwhile.

Sources: A. Zobrist, "A New Hashing Method with Application for Game Playing", 1970 (incremental hashes of positions);
P. Wolper, D. Leroy, "Reliable Hashing without Collision Detection", CAV 1993 (fingerprints in place of states).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled
from wavetank.sim.streams import mix

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

# How messages travel.
ANY_ORDER, FIFO, SET = range(3)

# Why the loop came back.
DONE, NEEDS_ROOM, NEEDS_STEPS = range(3)

# Places in the array of counters.
(
    STATES, NUMBERS, EDGES, STEPS, TERMINAL, MISSING, UNSEEN, AGAIN, TOP, EXPANDED, MOST, MOST_SENDS, BEYOND,
) = range(13)  # fmt: skip

# A state that nothing but faults and choices can leave, in its flags; the lower bits are the caller's.
IS_TERMINAL = np.uint8(128)

_ASKED = -2

_FIRST = np.uint64(0x8C3F5A0D9B1E6C47)
_SECOND = np.uint64(0x51ED270B9F3A7D85)
_RANK = np.uint64(44)


class Tables(NamedTuple):
    """What is known of the system; the caller adds to it.

    Parameters
    ----------
    event_node, event_cost, event_channel, event_obliged : int32 array (events,)
        Whom an event happens to, the counter it draws on (-1: none), its link (-1: no message), whether it must happen.
    event_ready, event_later : int32 array (events,)
        Whether a message may arrive by now; the same message one round later, -1 when it must arrive first.
    local_idle : int32 array (locals,)
        Whether a local state waits for no time to come.
    menu_start : int32 array (locals + 1,)
    menu : int32 array
        The events of local state i are ``menu[menu_start[i]:menu_start[i + 1]]``.
    views : int32 array (locals,)
        What predicates see of a local state.
    step_keys, step_values : int64 array, int32 array (a power of two,)
        Hash table from ``local << 32 | event`` to a step; -2 for one that was asked for.
    step_local, step_replies : int32 array (steps,)
        Of the clock's step, -1 where time may not pass and -2 where the horizon was reached.
    sends_start : int32 array (steps + 1,)
    sends : int32 array
    merge_keys, merge_values : int64 array, int32 array
        Hash table from ``known << 32 | given`` to replies.
    local_images, event_images : int32 array (permutations, locals), (permutations, events)
        One row, the identity, without symmetry.
    permutations : int32 array (permutations, nodes)
    """

    event_node: Int32s
    event_cost: Int32s
    event_channel: Int32s
    event_obliged: Int32s
    event_ready: Int32s
    event_later: Int32s
    local_idle: Int32s
    menu_start: Int32s
    menu: Int32s
    views: Int32s
    step_keys: Int64s
    step_values: Int32s
    step_local: Int32s
    step_replies: Int32s
    sends_start: Int32s
    sends: Int32s
    merge_keys: Int64s
    merge_values: Int32s
    local_images: Int32s
    event_images: Int32s
    permutations: Int32s


class Store(NamedTuple):
    """What was found; written by the loop.

    Parameters
    ----------
    counters : int64 array (13,)
        By the places above: how much was found, what the state at hand needs (``MOST`` successors), and in how many
        states only the horizon kept time from passing (``BEYOND``).
    keys : uint64 array (a power of two, 2)
        Fingerprints; (0, 0) is an empty place.
    places : int32 array
        The state of each fingerprint.
    parents, causes : int32 array (states,)
        The state it was first reached from, and the step: ``event * 3 + how``.
    flags : uint8 array (states,)
    starts : int64 array (states + 1,)
        Where the numbers of a state begin, less ``base[0]``.
    numbers : int32 array
    base : int64 array (2,)
        Numbers that were given up at the front, and the states they belonged to.
    edges : int32 array (edges, 3)
        From, to, step; empty unless they are kept.
    missing : int64 array (room, 2)
        Steps asked for: ``local << 32 | event`` and 0, or ``known << 32 | given`` and 1.
    unseen : int64 array (states of one call,)
        New states whose view is new, or known to be bad.
    again : int32 array
        States that could not be expanded yet.
    judged_keys, judged_values : uint64 array, int32 array
        Hash table from what predicates see to their verdict.
    """

    counters: Int64s
    keys: UInt64s
    places: Int32s
    parents: Int32s
    causes: Int32s
    flags: NDArray[np.uint8]
    starts: Int64s
    numbers: Int32s
    base: Int64s
    edges: Int32s
    missing: Int64s
    unseen: Int64s
    again: Int32s
    judged_keys: UInt64s
    judged_values: Int32s


class Shape(NamedTuple):
    """Numbers that do not change during a search.

    Parameters
    ----------
    nodes : int
    counters : int
        Bounded misfortunes in a state.
    channels : int
        :data:`ANY_ORDER`, :data:`FIFO` or :data:`SET`.
    when_quiet : int
        1 when timers wait until no message is in transit.
    timeouts : int
        Counter of timers.
    exact : int
        1 to compare states where fingerprints are equal.
    edges : int
        1 to keep all edges.
    deep : int
        1 for depth first: ``todo`` is a stack.
    tick : int
        The event that lets a round pass; -1 without a clock.
    """

    nodes: int
    counters: int
    channels: int
    when_quiet: int
    timeouts: int
    exact: int
    edges: int
    deep: int
    tick: int


@compiled(uint64(int64, int64, int64))
def _first(part: int, number: int, rank: int) -> Any:
    """Return one hash of a component of a state: what it is, its number, its place."""
    return mix((np.uint64(part) << np.uint64(60)) + (np.uint64(rank) << _RANK) + np.uint64(number) + _FIRST)


@compiled(uint64(int64, int64, int64))
def _second(part: int, number: int, rank: int) -> Any:
    """Return the other."""
    bits = (np.uint64(part) << np.uint64(60)) + (np.uint64(rank) << _RANK) + np.uint64(number)
    return mix((bits ^ _SECOND) * _FIRST + np.uint64(1))


@compiled
def find_key(keys: Int64s, values: Int32s, key: int) -> int:
    """Return the value of a key in an open hash table, -1 when there is none."""
    mask = keys.size - 1
    place = np.int64(mix(np.uint64(key)) & np.uint64(mask))
    while values[place] != -1:
        if keys[place] == key:
            return int(values[place])
        place = (place + 1) & mask
    return -1


@compiled
def put_key(keys: Int64s, values: Int32s, key: int, value: int) -> None:
    """Set the value of a key in an open hash table with room."""
    mask = keys.size - 1
    place = np.int64(mix(np.uint64(key)) & np.uint64(mask))
    while values[place] != -1 and keys[place] != key:
        place = (place + 1) & mask
    keys[place] = key
    values[place] = value


@compiled
def put_keys(keys: Int64s, values: Int32s, more: Int64s, news: Int32s) -> None:
    """Set many."""
    for at in range(more.size):
        put_key(keys, values, more[at], news[at])


@compiled
def rehash(old: UInt64s, old_places: Int32s, keys: UInt64s, places: Int32s) -> None:
    """Move all fingerprints into a larger table."""
    mask = keys.shape[0] - 1
    for at in range(old.shape[0]):
        if old[at, 0] == 0 and old[at, 1] == 0:
            continue
        place = np.int64(old[at, 0] & np.uint64(mask))
        while keys[place, 0] != 0 or keys[place, 1] != 0:
            place = (place + 1) & mask
        keys[place, 0] = old[at, 0]
        keys[place, 1] = old[at, 1]
        places[place] = old_places[at]


@compiled
def _fingerprint(row: Int32s, length: int, shape: Shape, tables: Tables, image: int) -> tuple[Any, Any]:
    """Return the fingerprint of a state renamed by one permutation."""
    fixed = shape.nodes + shape.counters + 1
    one = np.uint64(0)
    two = np.uint64(0)
    for node in range(shape.nodes):
        number = tables.local_images[image, row[node]]
        one += _first(1, number, 0)
        two += _second(1, number, 0)
    for at in range(shape.nodes, fixed):
        one += _first(2, row[at] + 1, at)
        two += _second(2, row[at] + 1, at)
    for at in range(fixed, length):
        rank = 0
        if shape.channels == 1:
            link = tables.event_channel[row[at]]
            before = at - 1
            while before >= fixed and tables.event_channel[row[before]] == link:
                rank += 1
                before -= 1
        number = tables.event_images[image, row[at]]
        one += _first(3, number, rank)
        two += _second(3, number, rank)
    return one, two


@compiled
def fingerprint(row: Int32s, length: int, shape: Shape, tables: Tables) -> tuple[Any, Any]:
    """Return the fingerprint of a state: the least of those of all its renamings.

    Parameters
    ----------
    row : int32 array
        The state; messages in canonical order.
    length : int
        Numbers of it that count.
    """
    one, two = _fingerprint(row, length, shape, tables, 0)
    for image in range(1, tables.permutations.shape[0]):
        other, another = _fingerprint(row, length, shape, tables, image)
        if other < one or (other == one and another < two):
            one = other
            two = another
    if one == 0 and two == 0:
        two = np.uint64(1)
    return one, two


@compiled
def _insert(row: Int32s, fixed: int, length: int, event: int, shape: Shape, tables: Tables) -> int:
    """Put a message in its place among those of a row; return the new length."""
    if shape.channels == 2:
        for at in range(fixed, length):
            if row[at] == event:
                return length
    at = length
    if shape.channels == 1:
        link = tables.event_channel[event]
        while at > fixed and tables.event_channel[row[at - 1]] > link:
            row[at] = row[at - 1]
            at -= 1
    else:
        while at > fixed and row[at - 1] > event:
            row[at] = row[at - 1]
            at -= 1
    row[at] = event
    return length + 1


@compiled
def view_key(row: Int32s, shape: Shape, tables: Tables) -> Any:
    """Return the key of what predicates see of a state."""
    key = _first(4, row[shape.nodes + shape.counters], 0)
    for node in range(shape.nodes):
        key += _first(5, tables.views[row[node]], 0)
    return key


@compiled
def view_keys(shape: Shape, tables: Tables, store: Store) -> UInt64s:
    """Return the keys of the views of all states in ``store.unseen``."""
    found = np.empty(store.counters[UNSEEN], np.uint64)
    for at in range(found.size):
        start = store.starts[store.unseen[at] - store.base[1]] - store.base[0]
        found[at] = view_key(store.numbers[start : start + shape.nodes + shape.counters + 1], shape, tables)
    return found


@compiled
def settle(keys: UInt64s, store: Store) -> int:
    """Put the verdicts on the states in ``store.unseen`` into their flags; return the first bad one, or -1."""
    bad = -1
    for at in range(keys.size):
        verdict = find_key(store.judged_keys, store.judged_values, keys[at])
        state = store.unseen[at]
        store.flags[state] |= np.uint8(verdict)
        if verdict & 1 and (bad < 0 or state < bad):
            bad = state
    return bad


@compiled
def _same(row: Int32s, length: int, state: int, store: Store) -> bool:
    start = store.starts[state - store.base[1]] - store.base[0]
    if store.starts[state - store.base[1] + 1] - store.base[0] - start != length:
        return False
    return bool(np.array_equal(store.numbers[start : start + length], row[:length]))


@compiled
def enter(
    row: Int32s, length: int, one: Any, two: Any, parent: int, cause: int, shape: Shape, tables: Tables, store: Store
) -> tuple[int, bool]:
    """Look a state up and add it when it is new; return its number and whether it is.

    The caller has made sure that there is room.
    """
    counters = store.counters
    mask = store.keys.shape[0] - 1
    place = np.int64(one & np.uint64(mask))
    while store.keys[place, 0] != 0 or store.keys[place, 1] != 0:
        if store.keys[place, 0] == one and store.keys[place, 1] == two:
            known = store.places[place]
            if shape.exact == 0 or _same(row, length, known, store):
                return int(known), False
        place = (place + 1) & mask
    state = counters[STATES]
    store.keys[place, 0] = one
    store.keys[place, 1] = two
    store.places[place] = state
    store.parents[state] = parent
    store.causes[state] = cause
    store.flags[state] = 0
    start = counters[NUMBERS] - store.base[0]
    for at in range(length):
        store.numbers[start + at] = row[at]
    counters[NUMBERS] += length
    counters[STATES] += 1
    store.starts[state - store.base[1] + 1] = counters[NUMBERS]
    verdict = -1
    if shape.exact == 0:
        verdict = find_key(store.judged_keys, store.judged_values, view_key(row, shape, tables))
    if verdict >= 0:
        store.flags[state] = verdict
    if verdict < 0 or verdict & 1:
        store.unseen[counters[UNSEEN]] = state
        counters[UNSEEN] += 1
    return state, True


@compiled
def _keep_edge(state: int, target: int, cause: int, store: Store) -> None:
    at = store.counters[EDGES]
    store.edges[at, 0], store.edges[at, 1], store.edges[at, 2] = state, target, cause
    store.counters[EDGES] = at + 1


@compiled
def _reach(
    row: Int32s, length: int, one: Any, two: Any, state: int, cause: int, todo: Int32s, shape: Shape, tables: Tables,
    store: Store,
) -> None:  # fmt: skip
    """Enter what follows from a state; depth first, put it on the stack if it is new."""
    target, new = enter(row, length, one, two, state, cause, shape, tables, store)
    if shape.edges == 1:
        _keep_edge(state, target, cause, store)
    if new and shape.deep == 1:
        todo[store.counters[TOP]] = target
        store.counters[TOP] += 1


@compiled
def _pair(high: int, low: int) -> int:
    return int((np.int64(high) << 32) | np.int64(low))


@compiled
def _ask(store: Store, key: int, kind: int) -> None:
    at = store.counters[MISSING]
    if at < store.missing.shape[0]:
        store.missing[at, 0] = key
        store.missing[at, 1] = kind
        store.counters[MISSING] = at + 1


@compiled
def _known(high: int, low: int, kind: int, keys: Int64s, values: Int64s, store: Store) -> int:
    """Return what a table has of a pair of numbers; a negative number, after it was asked for once, when nothing."""
    key = _pair(high, low)
    found = find_key(keys, values, key)
    if found == -1:
        put_key(keys, values, key, _ASKED)
        _ask(store, key, kind)
    return found


@compiled
def _passes(row: Int32s, fixed: int, length: int, possible: bool, shape: Shape, tables: Tables, store: Store) -> int:
    """Return 1 when a round may pass, 0 when not, -1 when steps are not known yet, 2 when only the horizon forbids it.

    Where nothing can ever happen any more, and where a round changes nothing, it does not pass.
    """
    changes = False
    for at in range(fixed, length):
        later = tables.event_later[row[at]]
        if later < 0:
            return 0
        changes |= later != row[at]
    moves = possible or length > fixed
    known = True
    due = False
    beyond = False
    for node in range(shape.nodes):
        step = _known(row[node], shape.tick, 0, tables.step_keys, tables.step_values, store)
        if step < 0:
            known = False
            continue
        after = tables.step_local[step]
        due |= after == -1
        beyond |= after == -2
        changes |= after != row[node]
        moves |= tables.local_idle[row[node]] == 0
    if not known:
        return -1
    if due or not moves:
        return 0
    if beyond:
        return 2
    return int(changes)


@compiled
def _pass(row: Int32s, fixed: int, length: int, shape: Shape, tables: Tables, scratch: Int32s) -> int:
    """Write the state one round later; return its length."""
    size = fixed
    for node in range(shape.nodes):
        step = find_key(tables.step_keys, tables.step_values, _pair(row[node], shape.tick))
        scratch[node] = tables.step_local[step]
    for at in range(shape.nodes, fixed):
        scratch[at] = row[at]
    for at in range(fixed, length):
        size = _insert(scratch, fixed, size, tables.event_later[row[at]], shape, tables)
    return size


@compiled
def expand(todo: Int32s, first: int, last: int, shape: Shape, tables: Tables, store: Store, scratch: Int32s) -> int:
    """Expand states and enter what follows from them.

    Parameters
    ----------
    todo : int32 array
        States, or with ``shape.deep`` a stack of them with ``counters[TOP]`` entries.
    first, last : int
        Which of ``todo``; depth first, ``last`` is how many states may be expanded.
    scratch : int32 array
        Longer than any state.

    Returns
    -------
    int
        :data:`DONE`, :data:`NEEDS_ROOM` (for the state at ``first + counters[EXPANDED]``) or, depth first,
        :data:`NEEDS_STEPS`.
    """
    counters = store.counters
    nodes = shape.nodes
    fixed = nodes + shape.counters + 1
    replies_at = fixed - 1
    longest = scratch.size
    symmetric = tables.permutations.shape[0] > 1
    row = np.empty(longest, np.int32)
    counters[EXPANDED] = 0
    # Steps of the state at hand: event, how, step.
    plan = np.empty((3, 64), np.int64)
    while True:
        if shape.deep == 1:
            if counters[TOP] == 0 or counters[EXPANDED] >= last:
                return 0
            state = np.int64(todo[counters[TOP] - 1])
        else:
            if first + counters[EXPANDED] >= last:
                return 0
            state = np.int64(todo[first + counters[EXPANDED]])
        start = store.starts[state - store.base[1]] - store.base[0]
        length = store.starts[state - store.base[1] + 1] - store.base[0] - start
        # Room for all that can follow.
        most = 3 * (length - fixed) + 1 + nodes
        for node in range(nodes):
            local = store.numbers[start + node]
            most += tables.menu_start[local + 1] - tables.menu_start[local]
        if plan.shape[1] < most:
            plan = np.empty((3, 2 * most), np.int64)
        if (
            counters[STATES] + most >= store.parents.size
            or 2 * (counters[STATES] + most) >= store.keys.shape[0]
            or counters[STATES] + most - store.base[1] + 1 >= store.starts.size
            or counters[NUMBERS] - store.base[0] + most * longest >= store.numbers.size
            or (shape.edges == 1 and counters[EDGES] + most >= store.edges.shape[0])
            or counters[UNSEEN] + most >= store.unseen.size
            or (shape.deep == 1 and counters[TOP] + most >= todo.size)
            or length + counters[MOST_SENDS] + 2 >= longest
            or counters[MISSING] + 2 * most >= store.missing.shape[0]
        ):
            counters[MOST] = most
            return 1
        for at in range(length):
            row[at] = store.numbers[start + at]
        # Which steps there are, and whether all of them are known.
        count = 0
        known = True
        obliged = 0
        previous = -1
        for at in range(fixed, length + nodes):
            if at < length:
                event = row[at]
                mark = tables.event_channel[event] if shape.channels == 1 else event
                if mark == previous:
                    continue
                previous = mark
                if tables.event_ready[event] == 0:
                    continue
                begin = 0
                end = 1
            else:
                local = row[at - length]
                begin = tables.menu_start[local]
                end = tables.menu_start[local + 1]
            for item in range(begin, end):
                if at >= length:
                    event = tables.menu[item]
                    cost = tables.event_cost[event]
                    if cost >= 0 and row[nodes + cost] == 0:
                        continue
                    if cost == shape.timeouts and shape.when_quiet == 1 and length > fixed:
                        continue
                local = row[tables.event_node[event]]
                step = _known(local, event, 0, tables.step_keys, tables.step_values, store)
                if step < 0:
                    known = False
                    continue
                given = tables.step_replies[step]
                # The answers that a state holds together with this one.
                if given != 0 and _known(row[replies_at], given, 1, tables.merge_keys, tables.merge_values, store) < 0:
                    known = False
                    continue
                obliged += tables.event_obliged[event]
                plan[0, count] = event
                plan[1, count] = 0
                plan[2, count] = step
                count += 1
                if at < length:
                    for how in range(1, 3):
                        if row[nodes + how - 1] != 0:
                            plan[0, count] = event
                            plan[1, count] = how
                            count += 1
        passes = 0
        if shape.tick >= 0:
            passes = _passes(row, fixed, length, count > 0, shape, tables, store)
            known &= passes >= 0
        if not known:
            if shape.deep == 1:
                return 2
            counters[EXPANDED] += 1
            store.again[counters[AGAIN]] = state
            counters[AGAIN] += 1
            continue
        counters[EXPANDED] += 1
        if shape.deep == 1:
            counters[TOP] -= 1
        # Where only the horizon ends a run, it does not end.
        obliged += passes
        counters[BEYOND] += int(passes == 2)
        if passes == 1:
            counters[STEPS] += 1
            size = _pass(row, fixed, length, shape, tables, scratch)
            one, two = fingerprint(scratch, size, shape, tables)
            _reach(scratch, size, one, two, state, shape.tick * 3, todo, shape, tables, store)
        if obliged == 0:
            store.flags[state] |= IS_TERMINAL
            counters[TERMINAL] += 1
        base_one, base_two = _fingerprint(row, length, shape, tables, 0)
        for at in range(count):
            counters[STEPS] += 1
            event = plan[0, at]
            how = plan[1, at]
            step = plan[2, at]
            quick = not symmetric and shape.channels != 1 and shape.exact == 0
            one = base_one
            two = base_two
            is_message = tables.event_channel[event] >= 0
            gone = is_message and (how == 1 or (how == 0 and shape.channels != 2))
            cost = np.int64(how - 1) if how > 0 else np.int64(tables.event_cost[event])
            spends = cost >= 0 and row[nodes + cost] > 0
            merged = np.int64(row[replies_at])
            if how == 0 and tables.step_replies[step] != 0:
                key = _pair(row[replies_at], tables.step_replies[step])
                merged = find_key(tables.merge_keys, tables.merge_values, key)
            if quick:
                if gone:
                    one -= _first(3, event, 0)
                    two -= _second(3, event, 0)
                if how == 2:
                    one += _first(3, event, 0)
                    two += _second(3, event, 0)
                if spends:
                    left = row[nodes + cost]
                    one += _first(2, left, nodes + cost) - _first(2, left + 1, nodes + cost)
                    two += _second(2, left, nodes + cost) - _second(2, left + 1, nodes + cost)
                if how == 0:
                    old = row[tables.event_node[event]]
                    new = tables.step_local[step]
                    if old != new:
                        one += _first(1, new, 0) - _first(1, old, 0)
                        two += _second(1, new, 0) - _second(1, old, 0)
                    if merged != row[replies_at]:
                        one += _first(2, merged + 1, replies_at)
                        one -= _first(2, row[replies_at] + 1, replies_at)
                        two += _second(2, merged + 1, replies_at)
                        two -= _second(2, row[replies_at] + 1, replies_at)
                    for item in range(tables.sends_start[step], tables.sends_start[step + 1]):
                        sent = tables.sends[item]
                        if shape.channels == 2:
                            twice = False
                            for other in range(fixed, length):
                                twice |= row[other] == sent
                            for other in range(tables.sends_start[step], item):
                                twice |= tables.sends[other] == sent
                            if twice:
                                continue
                        one += _first(3, sent, 0)
                        two += _second(3, sent, 0)
                if one == 0 and two == 0:
                    two = np.uint64(1)
                # A known state costs no copy.
                mask = store.keys.shape[0] - 1
                place = np.int64(one & np.uint64(mask))
                seen = -1
                while store.keys[place, 0] != 0 or store.keys[place, 1] != 0:
                    if store.keys[place, 0] == one and store.keys[place, 1] == two:
                        seen = int(store.places[place])
                        break
                    place = (place + 1) & mask
                if seen >= 0:
                    if shape.edges == 1:
                        _keep_edge(state, seen, event * 3 + how, store)
                    continue
            # The successor, in canonical order.
            size = fixed
            for each in range(fixed):
                scratch[each] = row[each]
            removed = not gone
            for each in range(fixed, length):
                if not removed and row[each] == event:
                    removed = True
                    continue
                scratch[size] = row[each]
                size += 1
                if how == 2 and row[each] == event:
                    scratch[size] = event
                    size += 1
                    how = 3
            if spends:
                scratch[nodes + cost] -= 1
            if how == 0:
                scratch[tables.event_node[event]] = tables.step_local[step]
                scratch[replies_at] = merged
                for item in range(tables.sends_start[step], tables.sends_start[step + 1]):
                    size = _insert(scratch, fixed, size, tables.sends[item], shape, tables)
            if not quick:
                one, two = fingerprint(scratch, size, shape, tables)
            _reach(scratch, size, one, two, state, event * 3 + min(how, 2), todo, shape, tables, store)
