"""Definitions by enumeration, independent of the engine, for histories of a few operations or transactions."""

from __future__ import annotations

import itertools
import math

from wavetank.sim.history import History, Operation
from wavetank.sim.rng import stream

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


def is_noisy(operation, operations):
    """Return whether a write of what the operation read was under way beside it."""
    keys = {key for action, key, _ in steps(operation) if action == "read"}
    return any(
        one.result is not False
        and one is not operation
        and one.invoked <= returned(operation)
        and returned(one) >= operation.invoked
        and keys & {key for action, key, _ in steps(one) if action != "read"}
        for one in operations
    )


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
    # Whoever knows of real time sees nothing that began after it had returned.
    if name in ("prefix-linearizable", "regular", "delta-atomic") and any(
        ops[w].invoked > ops[r].returned for w, r in reads_from(ops)
    ):
        return False
    if name == "prefix-linearizable":
        both = {(a, b) for a, b in so if write(ops[a]) and write(ops[b])}
        return single(ops, real_time(ops, write, write) | both)
    if name == "regular":
        return single(ops, real_time(ops, write))
    if name == "safe":
        quiet = [op for op in ops if not (read(op) and is_noisy(op, ops))]
        return allowed("regular", History(operations=tuple(quiet), initial=INITIAL))
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


def repeated_history(seed, *, largest=6):
    """Return a random history of a register or two whose values come again, with swaps and lost operations."""
    rng = stream(seed, "repeated-history")
    n, processes, keys = int(rng.integers(3, largest + 1)), int(rng.integers(2, 4)), int(rng.integers(1, 3))
    free = rng.random(processes)
    made = []
    for _ in range(n):
        process, key = int(rng.integers(processes)), "xy"[int(rng.integers(keys))]
        invoked = float(free[process])
        ends = invoked + 3 * float(rng.random())
        free[process] = ends + 0.01 + 0.5 * float(rng.random())
        draw, lost = rng.random(), bool(rng.random() < 0.15)
        one, two = int(rng.integers(3)), int(rng.integers(3))
        facts = {"process": str(process), "key": key, "invoked": invoked, "returned": None if lost else ends}
        if draw < 0.4:
            made.append(Operation(action="write", value=one, **facts))
        elif draw < 0.75:
            made.append(Operation(action="read", result=None if lost else one, **facts))
        else:
            made.append(Operation(action="cas", value=[one, two], result=None if lost else bool(draw < 0.9), **facts))
    return History(operations=tuple(sorted(made, key=lambda op: op.invoked)), initial=INITIAL)


def repeated_transactions(seed):
    """Return a few random transactions of two registers whose values come again."""
    rng = stream(seed, "repeated-transactions")
    free = rng.random(3)
    made = []
    for _ in range(int(rng.integers(2, 5))):
        process = int(rng.integers(3))
        invoked = float(free[process])
        ends = invoked + 3 * float(rng.random())
        free[process] = ends + 0.01
        done = [
            [("write", "read")[int(rng.random() < 0.5)], key, int(rng.integers(2))]
            for key in list(map(str, rng.permutation(["x", "y"])))[: int(rng.integers(1, 3))]
        ]
        asked = [[action, key, value if action == "write" else None] for action, key, value in done]
        made.append(
            Operation(
                process=str(process), action="transaction", value=asked, result=done, invoked=invoked, returned=ends
            )
        )
    return History(operations=tuple(sorted(made, key=lambda op: op.invoked)), initial=INITIAL)


def relabelled(history):
    """Yield the history with unlike values, once for each way in which what was read may have been written.

    A failed swap becomes a read of another value; a lost swap did not happen, or found its value.
    """
    ops = history.operations
    lost = [at for at, op in enumerate(ops) if op.action == "cas" and op.result is None]
    for size in range(len(lost) + 1):
        for gone in itertools.combinations(lost, size):
            yield from _labels(history, [at for at in range(len(ops)) if at not in gone])


def _parts(operation):
    """Return (action, key, value) of an operation; a read of ("not", value) is one of anything else."""
    if operation.action != "cas":
        return steps(operation) if operation.action == "transaction" or operation.action == "write" else [
            ["read", operation.key, operation.result]
        ]  # fmt: skip
    old, new = operation.value
    if operation.result is False:
        return [["read", operation.key, ("not", old)]]
    return [["read", operation.key, old], ["write", operation.key, new]]


def _labels(history, kept):
    ops = history.operations
    parts = {at: _parts(ops[at]) for at in kept}
    writers = {}
    for at in kept:
        for action, key, value in parts[at]:
            if action == "write":
                writers.setdefault(key, []).append((at, value))
    slots, options = [], []
    for at in kept:
        if ops[at].action == "read" and ops[at].returned is None:
            continue
        for which, (action, key, value) in enumerate(parts[at]):
            if action == "read":
                negated = isinstance(value, tuple)
                wanted = value[1] if negated else value
                choices = [(-1, INITIAL), *(one for one in writers.get(key, []) if one[0] != at)]
                slots.append((at, which))
                options.append([who for who, held in choices if (held == wanted) != negated])
    for sources in itertools.product(*options):
        source = dict(zip(slots, sources, strict=True))
        rows = []
        for at in kept:
            label = [
                [action, key, f"w{at}{key}" if action == "write" else _label(source.get((at, which)), key)]
                for which, (action, key, _) in enumerate(parts[at])
            ]
            facts = {"process": ops[at].process, "invoked": ops[at].invoked, "returned": ops[at].returned}
            if ops[at].action == "transaction":
                rows.append(Operation(action="transaction", value=ops[at].value, result=label, **facts))
            elif len(label) == 2:
                rows.append(
                    Operation(action="cas", key=ops[at].key, value=[label[0][2], label[1][2]], result=True, **facts)
                )
            elif label[0][0] == "write":
                rows.append(Operation(action="write", key=ops[at].key, value=label[0][2], **facts))
            else:
                rows.append(Operation(action="read", key=ops[at].key, result=label[0][2], **facts))
        yield History(operations=tuple(rows), initial=INITIAL)


def _label(source, key):
    return None if source is None else INITIAL if source < 0 else f"w{source}{key}"


def update_serializable(history):
    """Adya's PL-3U: one version order; updates, and updates with any one reader, have an acyclic graph."""
    ops = history.operations
    n = len(ops)
    writers = {}
    for at, op in enumerate(ops):
        for action, key, _ in steps(op):
            if action == "write" and at not in writers.setdefault(key, []):
                writers[key].append(at)
    updates = {at for at in range(n) if not is_read(ops[at])}
    for versions in itertools.product(*(itertools.permutations(each) for each in writers.values())):
        place = {
            key: {at: number for number, at in enumerate(order)} for key, order in zip(writers, versions, strict=True)
        }
        edges, good = set(), True
        for order in versions:
            edges |= set(itertools.pairwise(order))
        for at, op in enumerate(ops):
            own = set()
            for action, key, value in steps(op):
                if action == "write":
                    own.add(key)
                elif key not in own:
                    wrote = {
                        v: w for w in writers.get(key, []) for a, k, v in steps(ops[w]) if a == "write" and k == key
                    }
                    if value != INITIAL and value not in wrote:
                        good = False
                        continue
                    seen = place[key][wrote[value]] if value != INITIAL else -1
                    if seen >= 0:
                        edges.add((wrote[value], at))
                    edges |= {(at, w) for w, number in place.get(key, {}).items() if number > seen and w != at}
        readers = [at for at in range(n) if at not in updates] or [None]
        for reader in readers:
            inside = updates | {reader}
            found = closed({(a, b) for a, b in edges if a in inside and b in inside}, n)
            good &= not any((at, at) in found for at in range(n))
        if good:
            return True
    return False
