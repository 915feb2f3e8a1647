"""Exchanges of tokens among the ranks that divide experts: flat, or in three phases through the nodes.

In the flat exchange every rank sends to every other, in as many rounds as there are others.  HALO goes through the
network cards: the members of a node first give each other what leaves, so that one of them holds all that goes through
one card to one other node (phase I); it sends that in one message (phase II); its receiver distributes it in its node
(phase III).  The members that share a card take turns, by the other node's number.

:func:`route` says which way a block goes; what is executed (:func:`exchange_blocks`, and real processes in
:mod:`~wavetank.training.plans.live`) and what is priced (:func:`halo_s`) both follow it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Round
from wavetank.platforms.step_time import PS_PER_S

Blocks = dict[tuple[int, int], NDArray[np.float64]]
"""What rank ``source`` has for rank ``target``, by both."""


def route(source: int, target: int, node: int, lanes: int) -> tuple[int, int, int]:
    """Return where a block is after each phase.

    Parameters
    ----------
    source, target : int
        Members of the group.
    node : int
        Members of a node, neighbours in number.
    lanes : int
        Network cards that they share; a divisor of them.
    """
    here, there = source // node, target // node
    if here == there:
        return target, target, target
    sharing = node // lanes
    first = target % node // sharing * sharing
    return here * node + first + there % sharing, there * node + first + here % sharing, target


def partners(phase: int, size: int, node: int, lanes: int) -> list[tuple[int, int]]:
    """Return who sends to whom in a phase, each pair once.

    Parameters
    ----------
    phase : int
        0 to 2.
    size : int
        Members of the group.
    node, lanes : int
        As for :func:`route`.
    """
    found = set()
    for source in range(size):
        for target in range(size):
            stops = (source, *route(source, target, node, lanes))
            if stops[phase] != stops[phase + 1]:
                found.add((stops[phase], stops[phase + 1]))
    return sorted(found)


def check_group(size: int, node: int, lanes: int) -> None:
    """Refuse a group that does not fill nodes, or whose nodes do not fill lanes.

    Parameters
    ----------
    size, node, lanes : int
        As for :func:`partners`.

    Raises
    ------
    BadValueError
        For such a group.
    """
    if min(size, node, lanes) < 1 or size % node or node % lanes:
        raise BadValueError(
            "The members of a group fill its nodes, and those of a node share its network cards evenly.",
            given=f"{size} members, {node} a node, {lanes} lanes", allowed="each a divisor of the one before",
        )  # fmt: skip


def exchange_blocks(blocks: Blocks, *, size: int, node: int, lanes: int) -> Blocks:
    """Return the blocks that each rank holds after the three phases; keys are (source, rank that holds it).

    Parameters
    ----------
    blocks : dict of (int, int) to float64 array
        One for each pair of members, of any lengths.
    size, node, lanes : int
        As for :func:`partners`.

    Raises
    ------
    BadValueError
        For a group as :func:`check_group`, and blocks of no members.
    """
    check_group(size, node, lanes)
    wrong = [pair for pair in blocks if not (0 <= pair[0] < size and 0 <= pair[1] < size)]
    if wrong:
        raise BadValueError("A block is of no members of the group.", given=wrong[0], allowed=f"0 to {size - 1}")
    held = {(source, (source, target)): content for (source, target), content in blocks.items()}
    for phase in range(3):
        held = {(route(*pair, node, lanes)[phase], pair): content for (_, pair), content in held.items()}
    return {(pair[0], at): content for (at, pair), content in held.items()}


@lru_cache(maxsize=1 << 16)
def flat_s(fabric: Fabric, size: int, stride: int, n_bytes: int) -> float:
    """Return what a flat exchange takes, s; all groups of the machine's first ranks do the same at once.

    Parameters
    ----------
    fabric : Fabric
    size : int
        Members of a group.
    stride : int
        How far their numbers are apart; the groups in between share links with it.
    n_bytes : int
        That a member has for all, itself included.
    """
    ranks = np.arange(size * stride)
    took_ps = 0
    for shift in range(1, size):
        one = Round(ranks, (ranks + shift * stride) % ranks.size, -(-n_bytes // size))
        took_ps += fabric.round_ps(one)
    return took_ps / PS_PER_S


@lru_cache(maxsize=1 << 16)
def halo_phases_s(fabric: Fabric, size: int, stride: int, n_bytes: int, lanes: int) -> tuple[float, float, float]:
    """Return what the three phases take, s, one after the other.

    Parameters
    ----------
    fabric, size, stride, n_bytes
        As for :func:`flat_s`.
    lanes : int
        Network cards that the members of a node share.

    Raises
    ------
    BadValueError
        As :func:`check_group`, and for a stride that does not divide nodes.
    """
    per_node = fabric.levels[0].size
    if per_node % stride:
        raise BadValueError("A node holds no whole tensor shards.", given=stride, allowed=f"a divisor of {per_node}")
    node = per_node // stride
    check_group(size, node, lanes)
    nodes, sharing = size // node, node // lanes
    block = -(-n_bytes // size)
    ranks = np.arange(size * stride)
    at, own = ranks // stride % node, ranks // per_node
    # Phase I: of the other nodes a member serves every one whose number leaves its place as the rest.
    served = max(
        sum(1 for b in range(nodes) if b % sharing == c and b != a) for a in range(nodes) for c in range(sharing)
    )
    first = 0
    for shift in range(1, node):
        to = own * per_node + (at + shift) % node * stride + ranks % stride
        first += fabric.round_ps(Round(ranks, to, block * (served * sharing + 1)))
    second = 0
    for ahead in range(1, nodes):
        there = (own + ahead) % nodes
        sends = at % sharing == there % sharing
        to = there * per_node + (at // sharing * sharing + own % sharing) * stride + ranks % stride
        second += fabric.round_ps(Round(ranks[sends], to[sends], block * node * sharing))
    third = 0
    for shift in range(1, sharing):
        to = own * per_node + (at // sharing * sharing + (at + shift) % sharing) * stride + ranks % stride
        third += fabric.round_ps(Round(ranks, to, block * node * served))
    return first / PS_PER_S, second / PS_PER_S, third / PS_PER_S


def halo_s(fabric: Fabric, size: int, stride: int, n_bytes: int, lanes: int) -> float:
    """Return what the exchange in three phases takes, s.

    The network and the links of nodes work at once: what goes to one node is on the network while what goes to the
    next is gathered.  The first node's part is gathered, or the last one's distributed, with nothing beside it.

    Parameters
    ----------
    fabric, size, stride, n_bytes, lanes
        As for :func:`halo_phases_s`.
    """
    first, second, third = halo_phases_s(fabric, size, stride, n_bytes, lanes)
    inside, nodes = first + third, size * stride // fabric.levels[0].size
    return max(inside, second) + min(inside, second) / max(nodes - 1, 1)


def lanes_of(nics: int, per_node: int, stride: int) -> int:
    """Return how many lanes the members of a group have in a node, where groups in between have theirs.

    Members share lanes evenly: where cards do not divide them, some cards go without.

    Parameters
    ----------
    nics : int
        Network cards of a node.
    per_node : int
        Its ranks.
    stride : int
        Groups in between.
    """
    members = per_node // stride
    return max(each for each in range(1, max(nics // stride, 1) + 1) if members % each == 0)
