"""Definitions by enumeration, independent of the engine, for histories of a few operations or transactions."""

from __future__ import annotations

import itertools
import math

from wavetank.protocols.history import History, Operation
from wavetank.rng import stream

INITIAL = 0


def steps(operation):
    """Return (action, key, value) of an operation or transaction."""
    if operation.action == "transaction":
        return operation.result if isinstance(operation.result, list) else operation.value
    value = operation.result if operation.action == "read" else operation.value
    return [[operation.action, operation.key, value]]


def is_read(operation):
    return all(action == "read" for action, _, _ in steps(operation))


def returned(operation):
    return math.inf if operation.returned is None else operation.returned


def legal(order, operations, checked=None, held=None):
    """Return whether one copy that applies operations in this order gives what was read."""
    held = dict(held or {})
    for at in order:
        operation = operations[at]
        known = operation.returned is not None and (checked is None or at in checked)
        for action, key, value in steps(operation):
            if action == "read":
                if known and held.get(key, INITIAL) != value:
                    return False
            else:
                held[key] = value
    return True


def session(operations):
    """Return pairs of one process, the first returned."""
    return {
        (a, b)
        for a, b in itertools.combinations(range(len(operations)), 2)
        if operations[a].process == operations[b].process and operations[a].returned is not None
    }


def real_time(operations, tails=lambda op: True, heads=lambda op: True, delta=0.0):
    n = len(operations)
    return {
        (a, b)
        for a, b in itertools.permutations(range(n), 2)
        if returned(operations[a]) < operations[b].invoked - delta and tails(operations[a]) and heads(operations[b])
    }


def respects(order, edges):
    place = {at: number for number, at in enumerate(order)}
    return all(place[a] < place[b] for a, b in edges if a in place and b in place)


def orders(operations, edges, must=None):
    """Yield the orders of everything that returned and of any of the rest."""
    n = len(operations)
    optional = [at for at in range(n) if operations[at].returned is None]
    fixed = [at for at in range(n) if operations[at].returned is not None and (must is None or at in must)]
    for size in range(len(optional) + 1):
        for some in itertools.combinations(optional, size):
            for order in itertools.permutations(fixed + list(some)):
                if respects(order, edges):
                    yield order


def single(operations, edges):
    return any(legal(order, operations) for order in orders(operations, edges))


def reads_from(operations):
    """Return (reader, writer) pairs; written values are unlike each other."""
    writer = {value: at for at, op in enumerate(operations) for action, _, value in steps(op) if action == "write"}
    return {
        (writer[value], at)
        for at, op in enumerate(operations)
        if op.returned is not None
        for action, _, value in steps(op)
        if action == "read" and value != INITIAL
    }


def closed(edges, n):
    found = set(edges)
    for middle, one, two in itertools.product(range(n), repeat=3):
        if (one, middle) in found and (middle, two) in found:
            found.add((one, two))
    return found


def replay(operations, edges):
    """PRAM and causal memory: each process has an order of all writes and of its own reads."""
    for process in {op.process for op in operations}:
        mine = {at for at, op in enumerate(operations) if op.process == process}
        wanted = {at for at, op in enumerate(operations) if at in mine or not is_read(op)}
        if not any(legal(order, operations, checked=mine) for order in orders(operations, edges, must=wanted)):
            return False
    return True


def allowed(name, history):
    """Return whether a model allows a history of reads and writes, by definition."""
    ops = history.operations
    n = len(ops)
    so = session(ops)
    write = lambda op: not is_read(op)  # noqa: E731
    read = is_read
    if name == "sequential":
        return single(ops, so)
    if name in ("linearizable", "strict-serializable"):
        return single(ops, real_time(ops))
    if name == "serializable":
        return single(ops, set())
    if name == "prefix-sequential":
        return single(ops, {(a, b) for a, b in so if write(ops[a]) and write(ops[b])})
    if name == "prefix-linearizable":
        both = {(a, b) for a, b in so if write(ops[a]) and write(ops[b])}
        return single(ops, real_time(ops, write, write) | both)
    if name == "regular":
        return single(ops, real_time(ops, write))
    if name == "delta-atomic":
        return single(ops, real_time(ops, write, write) | real_time(ops, write, read, 1.0))
    if name == "cache":
        keys = {key for op in ops for _, key, _ in steps(op)}
        return all(
            allowed("sequential", History(operations=tuple(op for op in ops if op.key == key), initial=INITIAL))
            for key in keys
        )
    if name == "pram":
        return replay(ops, so)
    hb = closed(so | reads_from(ops), n)
    if any((at, at) in hb for at in range(n)):
        return False
    if name == "causal":
        return replay(ops, hb)
    writes = [at for at in range(n) if write(ops[at])]

    def past(at, key):
        return [w for w in writes if (w, at) in hb and any(step[1] == key for step in steps(ops[w]))]

    if name == "weak-causal":
        for at, op in enumerate(ops):
            if op.action == "read" and op.returned is not None:
                seen = past(at, op.key)
                last = [w for w in seen if not any((w, other) in hb for other in seen)]
                if op.result not in ({ops[w].value for w in last} or {INITIAL}):
                    return False
        return True
    if name == "causal-convergence":
        return any(
            respects(order, hb)
            and all(
                op.result == (ops[max(past(at, op.key), key=order.index)].value if past(at, op.key) else INITIAL)
                for at, op in enumerate(ops)
                if op.action == "read" and op.returned is not None
            )
            for order in itertools.permutations(writes)
        )
    raise ValueError(name)


def snapshot_isolation(history):
    """Begins and ends in one order; reads at the begin, writes at the end, no two writers of a key overlap."""
    ops = history.operations
    n = len(ops)
    for order in itertools.permutations(range(2 * n)):
        place = {node: number for number, node in enumerate(order)}
        if any(place[at] > place[at + n] for at in range(n)):
            continue
        keys = [{key for action, key, _ in steps(op) if action == "write"} for op in ops]
        if any(
            keys[a] & keys[b] and place[a] < place[b + n] and place[b] < place[a + n]
            for a, b in itertools.combinations(range(n), 2)
        ):
            continue
        held, snapshots, good = {}, {}, True
        for node in order:
            if node < n:
                snapshots[node] = dict(held)
                continue
            mine = snapshots[node - n]
            for action, key, value in steps(ops[node - n]):
                if action == "write":
                    mine[key] = held[key] = value
                elif mine.get(key, INITIAL) != value:
                    good = False
        if good:
            return True
    return False


def small_history(seed, *, transactions=False, largest=5, open_share=0.1):
    """Return a random history of a few operations whose reads see something that was written, or nothing."""
    rng = stream(seed, "small-history")
    n, processes = int(rng.integers(2, largest + 1)), int(rng.integers(2, 4))
    free = rng.random(processes)
    written = {"x": [INITIAL], "y": [INITIAL]}
    rows = []
    for _ in range(n):
        process = int(rng.integers(processes))
        invoked = float(free[process])
        ends = invoked + 3 * float(rng.random())
        free[process] = ends + 0.01 + 0.5 * float(rng.random())
        made = []
        keys = list(rng.permutation(["x", "y"]))[: int(rng.integers(1, 3)) if transactions else 1]
        for key in map(str, keys):
            if rng.random() < 0.5:
                value = sum(map(len, written.values()))
                written[key].append(value)
                made.append(["write", key, value])
            else:
                made.append(["read", key, None])
        rows.append((invoked, ends, str(process), made, bool(rng.random() < open_share)))
    operations = []
    for invoked, ends, process, made, lost in sorted(rows):
        done = [[a, k, v if a == "write" else int(rng.choice(written[k]))] for a, k, v in made]
        back = None if lost else ends
        if transactions:
            operations.append(
                Operation(process=process, action="transaction", value=made, result=None if lost else done,
                          invoked=invoked, returned=back)
            )  # fmt: skip
        else:
            ((action, key, value),) = done
            is_write = action == "write"
            operations.append(
                Operation(process=process, action=action, key=key, value=value if is_write else None,
                          result=None if is_write or lost else value, invoked=invoked, returned=back)
            )  # fmt: skip
    return History(operations=tuple(operations), initial=INITIAL)
