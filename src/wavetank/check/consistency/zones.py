"""Linearizability without a search, where every written value is unlike the others.

Then a read names the write it saw, and an observed string or list names the order of its appends.  A write with its
reads, and everything chained to it by appends or compare-and-sets, is one block that nothing else may interrupt.  A
block has a zone between the first return and the last invocation of its operations; the blocks can be put in order
unless two zones conflict, which sorting finds in O(n log n).

Source: P. Gibbons, E. Korach, "Testing Shared Memories", SIAM Journal on Computing 26(4), 1997.

Differs from the source:
1. Blocks are chains of writes, not single ones, so that appends and compare-and-sets are decided as well.
2. What never returned counts only if somebody saw it; what was appended and never seen is a block of its own.
3. The longest good prefix is found by bisection, for every prefix of a good history is good.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from wavetank.check.consistency.linearize import Linearization, known_at
from wavetank.check.consistency.objects import Sequential, end_of, frozen
from wavetank.sim.history import Operation

# In place of the operation that another one builds on.
INITIAL, NONE, NEVER = -1, -2, -3


class Sources(NamedTuple):
    """What the unlike values of one object say.

    Parameters
    ----------
    parent : list of int
        For each operation that writes: the one whose value it was applied to, ``INITIAL``, ``NONE`` where it does not
        matter (a plain write, an append that nobody saw), ``NEVER`` where it cannot have happened.  For reads: the
        operation whose value it saw, or ``INITIAL``.
    writes : list of bool
    impossible : int or None
        An operation whose result nobody can have written.
    """

    parent: list[int]
    writes: list[bool]
    impossible: int | None


def sources(kind: Sequential, operations: Sequence[Operation], initial: Any) -> Sources | None:
    """Return who saw whose value, or None where values are alike and this cannot be said.

    Parameters
    ----------
    kind : Sequential
        ``register``, ``kv`` or ``list``; others have no answer.
    operations : sequence of Operation
        Of one object.
    initial : object
    """
    if kind.name == "register":
        return _register_sources(operations, initial)
    if kind.name in ("kv", "list") and not initial:
        return _text_sources(operations, kind.name == "kv")
    return None


def _register_sources(operations: Sequence[Operation], initial: Any) -> Sources | None:
    by_value: dict[Hashable, int] = {frozen(initial): INITIAL}
    writes = [operation.action != "read" for operation in operations]
    for at, operation in enumerate(operations):
        if not writes[at]:
            continue
        if operation.action == "cas":
            # A failed or an unclear one says what the value was not.
            if operation.result is not True:
                return None
            value = frozen(operation.value[1])
        else:
            value = frozen(operation.value)
        if value in by_value:
            return None
        by_value[value] = at
    parent = [NONE] * len(operations)
    impossible: int | None = None
    for at, operation in enumerate(operations):
        if operation.action == "write":
            continue
        seen = frozen(operation.result if operation.action == "read" else operation.value[0])
        if operation.action == "read" and operation.returned is None:
            continue
        if seen in by_value:
            parent[at] = by_value[seen]
        elif operation.returned is None:
            # An open compare-and-set of what nobody wrote cannot have happened.
            parent[at] = NEVER
        elif impossible is None or end_of(operation) < end_of(operations[impossible]):
            impossible = at
    return Sources(parent, writes, impossible)


def _text_sources(operations: Sequence[Operation], strings: bool) -> Sources | None:
    tokens: dict[Hashable, int] = {}
    for at, operation in enumerate(operations):
        if operation.action == "read":
            continue
        # A list is put as a whole, and its items look like appended ones.
        if (operation.action == "write" and not strings) or operation.value == "":
            return None
        name = frozen(operation.value)
        if name in tokens:
            return None
        tokens[name] = at
    lengths: list[int] = []
    if strings:
        names = sorted(str(name) for name in tokens)
        # Only where no value begins another one does a text fall apart in one way alone.
        if any(two.startswith(one) for one, two in itertools.pairwise(names)):
            return None
        lengths = sorted({len(name) for name in names})
    return _decoded(operations, tokens, lengths, strings)


def _decoded(
    operations: Sequence[Operation], tokens: dict[Hashable, int], lengths: list[int], strings: bool
) -> Sources:
    n = len(operations)
    writes = [operation.action != "read" for operation in operations]
    is_put = [operation.action == "write" for operation in operations]
    parent = [NONE] * n
    impossible: int | None = None
    # Texts seen, each with the last operation of its chain, so that a longer one is decoded from where it differs.
    known: dict[Any, int] = {}
    longest: tuple[Any, list[int], list[int]] = ("" if strings else (), [], [])
    reads = [at for at in range(n) if not writes[at] and operations[at].returned is not None]
    for at in sorted(reads, key=lambda at: end_of(operations[at])):
        result = operations[at].result
        text: Any = (result or "") if strings else tuple(frozen(item) for item in result or ())
        if text in known:
            parent[at] = known[text]
            continue
        before, chain, ends = longest
        good = 0
        if len(text) >= len(before) and text[: len(before)] == before:
            good = len(chain)
        chain, ends = chain[:good], ends[:good]
        position = ends[-1] if ends else 0
        broken = False
        while position < len(text):
            found = None
            if strings:
                for length in lengths:
                    found = tokens.get(text[position : position + length])
                    if found is not None:
                        position += length
                        break
            else:
                found = tokens.get(text[position])
                position += 1
            last = chain[-1] if chain else INITIAL
            # A put begins a text, and an operation has one place in all texts.
            if found is None or (is_put[found] and chain) or (not is_put[found] and parent[found] not in (NONE, last)):
                broken = True
                break
            if not is_put[found]:
                parent[found] = last
            chain.append(found)
            ends.append(position)
        if broken or len(set(chain)) != len(chain):
            impossible = at
            break
        parent[at] = known[text] = chain[-1] if chain else INITIAL
        if len(text) > len(before) or not good:
            longest = (text, chain, ends)
    return Sources(parent, writes, impossible)


def _arrange(operations: Sequence[Operation], found: Sources) -> list[int] | None:
    """Put all that returned, and what it builds on, into an order; return None if there is none."""
    n = len(operations)
    parent, writes = found.parent, found.writes
    returns = [end_of(operation) for operation in operations]
    needed = [returned < math.inf for returned in returns]
    for at in range(n):
        if needed[at]:
            up = parent[at]
            while up >= 0 and not needed[up]:
                needed[up] = True
                up = parent[up]
    after: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    heads = []
    for at in range(n):
        if not needed[at]:
            continue
        up = parent[at]
        if not writes[at]:
            readers.setdefault(up, []).append(at)
        elif up == NONE:
            heads.append(at)
        elif up == NEVER or up in after:
            # Two were applied to the same value, and neither brings it back.
            return None
        else:
            after[up] = at
    blocks = []
    placed = 0
    for head in (-1, *heads):
        block: list[int] = []
        node: int | None = head
        latest = -math.inf
        while node is not None:
            cluster = ([node] if node >= 0 else []) + sorted(
                readers.get(node, ()), key=lambda at: operations[at].invoked
            )
            if node >= 0:
                if returns[node] < latest:
                    return None
                latest = max(latest, operations[node].invoked)
            if any(returns[at] < latest for at in cluster):
                return None
            latest = max([latest, *(operations[at].invoked for at in cluster)])
            block += cluster
            node = after.get(node)
        placed += len(block)
        first_return = min((returns[at] for at in block), default=math.inf)
        blocks.append((latest, first_return, block))
    if placed != sum(needed):
        # Some hang together in a circle, apart from any beginning.
        return None
    return _sorted_blocks(blocks)


def _sorted_blocks(blocks: list[tuple[float, float, list[int]]]) -> list[int] | None:
    """Order blocks of (last invocation, first return, operations); the first of them holds the initial value."""
    order = list(blocks[0][2])
    if any(first_return < blocks[0][0] for _, first_return, _ in blocks[1:]):
        return None
    by_return = sorted(range(1, len(blocks)), key=lambda b: blocks[b][1])
    by_invocation = sorted(range(1, len(blocks)), key=lambda b: blocks[b][0])
    done = [False] * len(blocks)
    r = v = 0
    for _ in range(len(blocks) - 1):
        while done[by_return[r]]:
            r += 1
        while done[by_invocation[v]]:
            v += 1
        returning = by_return[r]
        second = r + 1
        while second < len(by_return) and done[by_return[second]]:
            second += 1
        next_return = blocks[by_return[second]][1] if second < len(by_return) else math.inf
        early = by_invocation[v]
        # One may go first when none of the others returned before the last of it was invoked.
        if blocks[early][0] <= (next_return if early == returning else blocks[returning][1]):
            chosen = early
        elif blocks[returning][0] <= next_return:
            chosen = returning
        else:
            return None
        done[chosen] = True
        order += blocks[chosen][2]
    return order


def linearize_unlike(kind: Sequential, operations: Sequence[Operation], initial: Any) -> Linearization | None:
    """Decide linearizability of one object whose written values are unlike each other.

    Parameters
    ----------
    kind : Sequential
    operations : sequence of Operation
        In the order of their invocation.
    initial : object

    Returns
    -------
    Linearization or None
        None where values are alike, or the object is of another kind, so that a search must decide.
    """
    found = sources(kind, operations, initial)
    if found is None:
        return None
    if found.impossible is None:
        whole = _arrange(operations, found)
        if whole is not None:
            return Linearization(outcome="holds", order=tuple(whole), steps=len(operations))
    returns = sorted(operation.returned for operation in operations if operation.returned is not None)
    low, high = 0, len(returns)
    best: list[int] = []
    # A prefix that ends before the impossible result is judged without it.
    while low + 1 < high:
        middle = (low + high) // 2
        tried = _prefix(kind, operations, initial, returns[middle - 1])
        if tried is None:
            high = middle
        else:
            low, best = middle, tried
    ends = returns[high - 1]
    culprit = next(at for at, operation in enumerate(operations) if operation.returned == ends)
    return Linearization(outcome="violated", order=tuple(best), culprit=culprit, steps=len(operations))


def _prefix(kind: Sequential, operations: Sequence[Operation], initial: Any, until: float) -> list[int] | None:
    """Arrange what had happened by a time, with the results known then."""
    at_that_time = [known_at(operation, until) for operation in operations if operation.invoked <= until]
    found = sources(kind, at_that_time, initial)
    if found is None or found.impossible is not None:
        return None
    return _arrange(at_that_time, found)
