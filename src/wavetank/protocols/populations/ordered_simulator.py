"""Two exact simulators of population protocols over ordered agents.

The sequential one lets one uniform ordered pair of ranks meet after another.  The skipping one jumps from one meeting
that changes something to the next: a tree over the ranks keeps, in every node, how many agents below it are in each
state and how many ordered pairs below it could change each other, so that the number of meetings skipped is one
geometric draw and the pair that meets is found on the way down.

Source: M. Blondin, M. Cadilhac, B. Courchesne, L. Guillou, C. Mascle, I. Vialard, "Population Protocols over Ordered
Agents", arXiv 2605.09937, 2026; D. Gillespie, J. Phys. Chem. 81(25), 1977.

Differs from the source:

1. The paper has no simulator; any fair scheduler serves its theorems, ours draws ordered pairs uniformly.
2. A pair of ranks is counted in the node where their paths part.  Neighbouring ranks, which rules may treat in another
   way, have a tree of their own; a pair of neighbours drawn from the first tree is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import (
    FAR_AFTER,
    FAR_BEFORE,
    JUST_AFTER,
    JUST_BEFORE,
    PopulationProtocol,
    PopulationRun,
    consensus,
)
from wavetank.protocols.populations.sampling import below, failures_before_success
from wavetank.sim.compiled import compiled
from wavetank.sim.rng import stream_key

_MOST_TREE_CELLS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class OrderedSequential:
    """Simulates meeting after meeting of agents that stand in a row."""

    def run(self, protocol: PopulationProtocol, word: Sequence[str], *, interactions: int, seed: int) -> PopulationRun:
        """Simulate until nothing can change or ``interactions`` meetings are over.

        Parameters
        ----------
        protocol : PopulationProtocol
        word : sequence of str
            One letter per agent, in order of rank; at least two.
        interactions : int
            The most meetings.
        seed : int

        Raises
        ------
        BadValueError
        """
        agents = _start(protocol, word, interactions)
        full = protocol.with_relations()
        key = np.uint64(stream_key(seed, "population", "ordered"))
        counter, clock = np.zeros(1, np.uint64), np.array([0, 0, -1], np.int64)
        silent = False
        while clock[0] < interactions and not silent:
            steps = min(max(len(agents), 1 << 12), interactions - int(clock[0]))
            _meet_in_order(agents, full.new_initiator, full.new_responder, full.outputs, clock, key, counter, steps)
            silent = bool(_nothing_enabled(agents, full.enabled))
        return _finished(protocol, agents, clock, silent)


@dataclass(frozen=True, kw_only=True)
class OrderedSkipping:
    """Simulates agents that stand in a row, from change to change."""

    def run(self, protocol: PopulationProtocol, word: Sequence[str], *, interactions: int, seed: int) -> PopulationRun:
        """Simulate until nothing can change or ``interactions`` meetings are over.

        Parameters and errors are those of :meth:`OrderedSequential.run`; a population whose tree would need more than
        2**28 cells (twice the agents, rounded up to a power of two, times the states) is refused as well.
        """
        agents = _start(protocol, word, interactions)
        full = protocol.with_relations()
        leaves = 1 << (len(agents) - 1).bit_length()
        if 2 * leaves * len(protocol) > _MOST_TREE_CELLS:
            raise BadValueError(
                "The population is too large for the tree.",
                given=f"{len(agents)} agents of {len(protocol)} states",
                allowed=f"{_MOST_TREE_CELLS} cells",
                hint="Use OrderedSequential.",
            )
        enabled = full.enabled
        # Meetings of an agent in state p with one in state q further right, in either role.
        far = enabled[FAR_BEFORE].astype(np.int64) + enabled[FAR_AFTER].T
        near = enabled[JUST_BEFORE].astype(np.int64) + enabled[JUST_AFTER].T
        key = np.uint64(stream_key(seed, "population", "skipping"))
        clock = np.array([0, 0, -1], np.int64)
        silent = _skip_through(
            agents, full.new_initiator, full.new_responder, enabled, np.ascontiguousarray(far), near, full.outputs,
            clock, key, np.zeros(1, np.uint64), interactions, leaves,
        )  # fmt: skip
        return _finished(protocol, agents, clock, bool(silent))


def _start(protocol: PopulationProtocol, word: Sequence[str], interactions: int) -> NDArray[np.int64]:
    if len(word) < 2:
        raise BadValueError("A meeting needs two agents.", given=len(word), allowed="2 or more", where=protocol.name)
    if interactions < 0:
        raise BadValueError("The number of interactions is negative.", given=interactions, allowed="0 or more")
    return protocol.start(word).astype(np.int64)


def _finished(
    protocol: PopulationProtocol, agents: NDArray[np.int64], clock: NDArray[np.int64], silent: bool
) -> PopulationRun:
    counts = np.bincount(agents, minlength=len(protocol)).astype(np.int64)
    done, last_change, settled = (int(value) for value in clock)
    output = consensus(protocol.outputs, counts)
    if output >= 0 and settled < 0:
        settled = 0
    return PopulationRun(done, last_change, settled if output >= 0 else -1, silent, counts, output)


@compiled
def _relation(i: int, j: int) -> int:
    if j > i:
        return JUST_BEFORE if j == i + 1 else FAR_BEFORE
    return JUST_AFTER if j == i - 1 else FAR_AFTER


@compiled
def _meet_in_order(
    agents: NDArray[np.int64], first: NDArray[np.int16], second: NDArray[np.int16], outputs: NDArray[np.int8],
    clock: NDArray[np.int64], key: int, counter: NDArray[np.uint64], steps: int,
) -> None:  # fmt: skip
    """Let ``steps`` pairs meet; ``clock`` is meetings done, the last change, the start of the present consensus."""
    n = agents.size
    ones = 0
    for i in range(n):
        ones += outputs[agents[i]]
    for _ in range(steps):
        i = below(key, counter, n)
        j = below(key, counter, n - 1)
        if j >= i:
            j += 1
        clock[0] += 1
        p, q = agents[i], agents[j]
        relation = _relation(i, j)
        p_next, q_next = np.int64(first[relation, p, q]), np.int64(second[relation, p, q])
        if p_next == p and q_next == q:
            continue
        agents[i], agents[j] = p_next, q_next
        clock[1] = clock[0]
        before = ones
        ones += outputs[p_next] + outputs[q_next] - outputs[p] - outputs[q]
        if (ones == 0 or ones == n) and before != ones:
            clock[2] = clock[0]


@compiled
def _nothing_enabled(agents: NDArray[np.int64], enabled: NDArray[np.bool_]) -> bool:
    """Return whether no ordered pair of ranks can change, in O(agents x states)."""
    size, n = enabled.shape[1], agents.size
    seen = np.zeros(size, np.int64)
    # Those at least two ranks to the left are in `seen`.
    for j in range(n):
        q = agents[j]
        if j >= 2:
            seen[agents[j - 2]] += 1
        if j >= 1:
            p = agents[j - 1]
            if enabled[JUST_BEFORE, p, q] or enabled[JUST_AFTER, q, p]:
                return False
        for p in range(size):
            if seen[p] and (enabled[FAR_BEFORE, p, q] or enabled[FAR_AFTER, q, p]):
                return False
    return True


@compiled
def _skip_through(
    agents: NDArray[np.int64], first: NDArray[np.int16], second: NDArray[np.int16], enabled: NDArray[np.bool_],
    far: NDArray[np.int64], near: NDArray[np.int64], outputs: NDArray[np.int8], clock: NDArray[np.int64],
    key: int, counter: NDArray[np.uint64], interactions: int, leaves: int,
) -> bool:  # fmt: skip
    """Jump from change to change; return whether nothing can change any more."""
    n, size = agents.size, far.shape[0]
    below_node = np.zeros((2 * leaves, size), np.int32)
    pairs = np.zeros(2 * leaves, np.int64)
    # Neighbours: what the tree of pairs counts for them (to be put back), and what truly can change.
    adjacent_far = 0
    adjacent = np.zeros(2 * leaves, np.int64)
    ones = 0
    for i in range(n):
        below_node[leaves + i, agents[i]] = 1
        ones += outputs[agents[i]]
        if i + 1 < n:
            adjacent[leaves + i] = near[agents[i], agents[i + 1]]
            adjacent_far += far[agents[i], agents[i + 1]]
    for node in range(leaves - 1, 0, -1):
        adjacent[node] = adjacent[2 * node] + adjacent[2 * node + 1]
        for p in range(size):
            below_node[node, p] = below_node[2 * node, p] + below_node[2 * node + 1, p]
        pairs[node] = pairs[2 * node] + pairs[2 * node + 1] + _across(below_node, far, 2 * node)
    total = np.float64(n) * (n - 1)
    while True:
        active = pairs[1] - adjacent_far + adjacent[1]
        if active == 0:
            return True
        skipped = failures_before_success(key, counter, active / total)
        if skipped >= interactions - clock[0]:
            clock[0] = interactions
            return False
        clock[0] += int(skipped) + 1
        while True:
            ticket = below(key, counter, pairs[1] + adjacent[1])
            if ticket < adjacent[1]:
                node = 1
                while node < leaves:
                    node *= 2
                    if ticket >= adjacent[node]:
                        ticket -= adjacent[node]
                        node += 1
                i, j = node - leaves, node - leaves + 1
                forward = ticket == 0 and enabled[JUST_BEFORE, agents[i], agents[j]]
            else:
                i, j, which = _pair_of(below_node, pairs, far, leaves, ticket - adjacent[1], key, counter)
                if j == i + 1:
                    continue
                forward = which == 0 and enabled[FAR_BEFORE, agents[i], agents[j]]
            break
        if not forward:
            i, j = j, i
        relation = _relation(i, j)
        p, q = agents[i], agents[j]
        p_next, q_next = np.int64(first[relation, p, q]), np.int64(second[relation, p, q])
        clock[1] = clock[0]
        before = ones
        for rank, new in ((i, p_next), (j, q_next)):
            old = agents[rank]
            if new == old:
                continue
            ones += outputs[new] - outputs[old]
            for left in (rank - 1, rank):
                if left >= 0 and left + 1 < n:
                    adjacent_far -= far[agents[left], agents[left + 1]]
            agents[rank] = new
            for left in (rank - 1, rank):
                if left >= 0 and left + 1 < n:
                    adjacent_far += far[agents[left], agents[left + 1]]
                    _set_leaf(adjacent, leaves + left, near[agents[left], agents[left + 1]])
            _move(below_node, pairs, far, leaves + rank, old, new)
        if (ones == 0 or ones == n) and before != ones:
            clock[2] = clock[0]


@compiled
def _across(below_node: NDArray[np.int32], far: NDArray[np.int64], left: int) -> int:
    """Count the meetings between agents under two sibling nodes that change something."""
    size, found = far.shape[0], 0
    for p in range(size):
        if below_node[left, p]:
            for q in range(size):
                found += far[p, q] * below_node[left, p] * below_node[left + 1, q]
    return found


@compiled
def _set_leaf(sums: NDArray[np.int64], node: int, value: int) -> None:
    change = value - sums[node]
    while node and change:
        sums[node] += change
        node //= 2


@compiled
def _move(
    below_node: NDArray[np.int32], pairs: NDArray[np.int64], far: NDArray[np.int64], leaf: int, old: int, new: int
) -> None:
    """Change the state of one leaf: O(states) per level."""
    size = far.shape[0]
    below_node[leaf, old] -= 1
    below_node[leaf, new] += 1
    node, gained = leaf, 0
    while node > 1:
        other = node ^ 1
        if node & 1:
            for p in range(size):
                gained += below_node[other, p] * (far[p, new] - far[p, old])
        else:
            for q in range(size):
                gained += below_node[other, q] * (far[new, q] - far[old, q])
        node //= 2
        below_node[node, old] -= 1
        below_node[node, new] += 1
        pairs[node] += gained


@compiled
def _pair_of(
    below_node: NDArray[np.int32], pairs: NDArray[np.int64], far: NDArray[np.int64], leaves: int, ticket: int,
    key: int, counter: NDArray[np.uint64],
) -> tuple[int, int, int]:  # fmt: skip
    """Return the ranks i < j that the ticket names, and which of their (one or two) meetings."""
    size, node = far.shape[0], 1
    while True:
        left = 2 * node
        if ticket < pairs[left]:
            node = left
            continue
        ticket -= pairs[left]
        if ticket < pairs[left + 1]:
            node = left + 1
            continue
        ticket -= pairs[left + 1]
        break
    for p in range(size):
        if below_node[left, p] == 0:
            continue
        for q in range(size):
            weight = far[p, q] * below_node[left, p] * below_node[left + 1, q]
            if ticket < weight:
                i = _rank_of(below_node, leaves, left, p, below(key, counter, below_node[left, p]))
                j = _rank_of(below_node, leaves, left + 1, q, below(key, counter, below_node[left + 1, q]))
                return i, j, ticket % far[p, q]
            ticket -= weight
    return 0, 1, 0


@compiled
def _rank_of(below_node: NDArray[np.int32], leaves: int, node: int, state: int, number: int) -> int:
    """Return the rank of the agent with that number among those in ``state`` under ``node``."""
    while node < leaves:
        node *= 2
        if number >= below_node[node, state]:
            number -= below_node[node, state]
            node += 1
    return node - leaves
