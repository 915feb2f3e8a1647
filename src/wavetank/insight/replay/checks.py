"""What is wrong with the traces of a job before anything runs: nodes, dependencies, ranks that do not fit together.

Each problem names a rank and a node.  Of a collective that ranks call differently, the culprits are those that differ
from most others; where no majority is, all are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wavetank.errors import BadTraceError, WavetankError
from wavetank.sim.steps import DeadlockError
from wavetank.workloads.chakra import (
    RECEIVE_NODE,
    SEND_NODE,
    ExecutionTrace,
    collective_of,
    group_of,
    in_order,
    is_collective,
    names_group,
    on_host,
    peer_of,
    size_of,
    step_graph,
)

LABELS = (
    "duplicate-node", "dangling-dependency", "cycle", "bad-node", "mismatched-collective", "unmatched-message",
    "deadlock",
)  # fmt: skip
_MOST = 100


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that keeps traces from being replayed.

    Parameters
    ----------
    label : str
        One of :data:`LABELS`.
    ranks : tuple of int
        Where: of a mismatch, the culprits.
    node : int
        Identity of the first node of the first rank that shows it; -1 where a rank lacks one.
    says : str
        A sentence.
    call : int
        Of a collective: which call of its group, from 0.
    group : str
        Of a collective: its group.
    """

    label: str
    ranks: tuple[int, ...]
    node: int
    says: str
    call: int = -1
    group: str = ""


def validate(traces: Sequence[ExecutionTrace]) -> tuple[Problem, ...]:
    """Return what is wrong with the traces of ranks 0, 1, ...; nothing where they can be replayed.

    Dependencies must exist and form no cycle, identities must be unique, the ranks of a group must call the same
    collectives of the same size in one order, and every message needs both sides.  What passes all of this is run with
    operations that take no time, which shows ranks that wait for each other across groups.

    Parameters
    ----------
    traces : sequence of ExecutionTrace
        Converted ones; read with ``unique=False`` to have all duplicates named.
    """
    found: list[Problem] = []
    for rank, trace in enumerate(traces):
        found += _within(rank, trace)
    if found:
        return tuple(found[:_MOST])
    try:
        found += [*_mismatches(traces), *_unmatched(traces)]
        if not found:
            graph = step_graph(traces)
            replace(graph, duration_ps=np.zeros(len(graph), np.int64)).times()
    except DeadlockError as error:
        found.append(Problem(label="deadlock", ranks=tuple(range(len(traces))), node=-1, says=str(error.problem)))
    except WavetankError as error:
        found.append(Problem(label="bad-node", ranks=(), node=-1, says=str(error.problem)))
    return tuple(found[:_MOST])


def _within(rank: int, trace: ExecutionTrace) -> Iterator[Problem]:
    """What is wrong within one rank."""
    if trace.form == "nodes":
        yield Problem(label="bad-node", ranks=(rank,), node=-1,
                      says="A host trace says which call is within which, and no order.")  # fmt: skip
        return
    times = Counter(node.id for node in trace.nodes)
    broken = False
    for identity, count in times.items():
        if count > 1:
            broken = True
            yield Problem(label="duplicate-node", ranks=(rank,), node=identity,
                          says=f"{count} nodes of rank {rank} have the identity {identity}.")  # fmt: skip
    for node in trace.nodes:
        for each in dict.fromkeys((*node.ctrl_deps, *node.data_deps)):
            if each not in times:
                broken = True
                yield Problem(
                    label="dangling-dependency", ranks=(rank,), node=node.id,
                    says=f"Node {node.id} ({node.name}) of rank {rank} depends on node {each}, which is not there.",
                )  # fmt: skip
    if not broken:
        try:
            for _ in in_order(trace):
                pass
        except BadTraceError:
            stuck = cycle_of(trace)
            yield Problem(
                label="cycle", ranks=(rank,), node=stuck[0],
                says=f"Nodes of rank {rank} wait for each other: {' -> '.join(map(str, [*stuck, stuck[0]]))}.",
            )  # fmt: skip


def cycle_of(trace: ExecutionTrace) -> list[int]:
    """Return identities of nodes of which each depends on the next, and the last on the first.

    Parameters
    ----------
    trace : ExecutionTrace
        With a cycle, and all dependencies there.
    """
    before = {node.id: {*node.ctrl_deps, *node.data_deps} for node in trace.nodes}
    after: dict[int, list[int]] = {}
    for identity, deps in before.items():
        for each in deps:
            after.setdefault(each, []).append(identity)
    left = {identity: len(deps) for identity, deps in before.items()}
    ready = [identity for identity, count in left.items() if not count]
    while ready:
        for each in after.get(ready.pop(), ()):
            left[each] -= 1
            if not left[each]:
                ready.append(each)
    # What is left waits for something that is left, so that a walk must come back to where it was.
    at = min(identity for identity, count in left.items() if count)
    seen: dict[int, None] = {}
    while at not in seen:
        seen[at] = None
        at = min(each for each in before[at] if left[each])
    walk = list(seen)
    return walk[walk.index(at) :]


Call = tuple[str, int]
"""A collective and its bytes."""


def calls_by_group(traces: Sequence[ExecutionTrace]) -> dict[str, dict[int, list[tuple[Call, int]]]]:
    """Return what each rank calls of each group, in its order, with the identity of the node.

    Parameters
    ----------
    traces : sequence of ExecutionTrace

    Raises
    ------
    BadTraceError
        For a node without what a collective needs.
    """
    found: dict[str, dict[int, list[tuple[Call, int]]]] = {}
    for rank, trace in enumerate(traces):
        for node in in_order(trace):
            if is_collective(node):
                group = found.setdefault(group_of(node), {})
                if not names_group(node):
                    # A collective of all: who does not call it is one to wait for.
                    for each in range(len(traces)):
                        group.setdefault(each, [])
                call = (collective_of(node, trace.where), size_of(node, trace.where))
                group.setdefault(rank, []).append((call, node.id))
    return found


def _mismatches(traces: Sequence[ExecutionTrace]) -> Iterator[Problem]:
    for group, called in calls_by_group(traces).items():
        most = max(map(len, called.values()))
        for k in range(most):
            at = {rank: calls[k][0] if k < len(calls) else None for rank, calls in called.items()}
            if len(set(at.values())) == 1:
                continue
            yield _mismatch(group, called, at, k)
            # What comes behind the first is most often only shifted.
            break


def _mismatch(
    group: str, called: dict[int, list[tuple[Call, int]]], at: dict[int, Call | None], k: int
) -> Problem:  # fmt: skip
    wanted, votes = Counter(at.values()).most_common(1)[0]
    if 2 * votes <= len(at):
        ranks = tuple(sorted(at))
        says = "; ".join(f"rank {rank} calls {_called(at[rank])}" for rank in ranks[:4])
        says = f"The ranks of group {group} disagree on call {k}: {says}."
    else:
        ranks = tuple(sorted(rank for rank, call in at.items() if call != wanted))
        model = next(calls for rank, calls in called.items() if at[rank] == wanted)
        how = _how([call for call, _ in called[ranks[0]][k:]], [call for call, _ in model[k:]])
        says = (
            f"Rank {ranks[0]} {how}: {_called(at[ranks[0]])} as call {k} of group {group}, "
            f"where {votes} of {len(at)} ranks call {_called(wanted)}."
        )
    calls = called[ranks[0]]
    node = calls[k][1] if k < len(calls) else -1
    return Problem(label="mismatched-collective", ranks=ranks, node=node, says=says, call=k, group=group)


def _called(call: Call | None) -> str:
    if call is None:
        return "nothing"
    return call[0] if call[1] < 0 else f"{call[0]} of {call[1]} bytes"


def _how(calls: Sequence[Call], model: Sequence[Call]) -> str:
    """How a rank's calls differ from those of the others, from the first that differs."""
    if not calls:
        return "has no further calls"
    if calls == model[1:]:
        return "leaves a call out"
    if calls[1:] == model:
        return "has a call too many"
    if calls[:2] == [*reversed(model[:2])] and calls[2:] == model[2:]:
        return "has two calls in another order"
    if not model:
        return "goes on after the others"
    return "calls another size" if calls[0][0] == model[0][0] else "calls another collective"


def _unmatched(traces: Sequence[ExecutionTrace]) -> Iterator[Problem]:
    sent: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for rank, trace in enumerate(traces):
        for node in in_order(trace):
            if node.type in (SEND_NODE, RECEIVE_NODE) and not on_host(node):
                peer, tag = peer_of(node, trace.where)
                sends = node.type == SEND_NODE
                key = (rank, peer, tag) if sends else (peer, rank, tag)
                (sent if sends else received).setdefault(key, []).append((size_of(node, trace.where), node.id))
    for key in sorted({*sent, *received}):
        sender, receiver, tag = key
        out, into = sent.get(key, []), received.get(key, [])
        way = f"from rank {sender} to rank {receiver} with tag {tag}"
        if len(out) != len(into):
            fewer = receiver if len(out) > len(into) else sender
            more = max(out, into, key=len)
            yield Problem(
                label="unmatched-message", ranks=(fewer,), node=more[min(len(out), len(into))][1],
                says=f"There are {len(out)} sends and {len(into)} receives {way}.",
            )  # fmt: skip
            continue
        for (size, identity), (other, _) in zip(out, into, strict=True):
            if size != other:
                yield Problem(
                    label="unmatched-message", ranks=(sender, receiver), node=identity,
                    says=f"A message {way} has {size} bytes where it is sent and {other} where it is received.",
                )  # fmt: skip
                break
