"""The exchange in three phases: every block arrives, few messages leave a node, and what is priced is what is sent."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.platforms.machines import machine
from wavetank.training.plans.exchange import (
    exchange_blocks,
    flat_s,
    halo_phases_s,
    halo_s,
    lanes_of,
    partners,
    route,
)

GROUPS = [(4, 2, 1), (4, 2, 2), (8, 4, 2), (12, 4, 4), (12, 4, 1), (16, 4, 2), (24, 8, 4), (6, 2, 1), (4, 4, 2)]


def blocks_of(size, seed):
    draws = np.random.default_rng(seed)
    return {
        (a, b): draws.normal(size=int(draws.integers(0, 5))) for a in range(size) for b in range(size)
        if draws.random() < 0.9
    }  # fmt: skip


@given(group=st.sampled_from(GROUPS), seed=st.integers(0, 2**32 - 1))
def test_every_block_arrives_at_its_target_as_in_a_flat_exchange(group, seed):
    size, node, lanes = group
    blocks = blocks_of(size, seed)
    found = exchange_blocks(blocks, size=size, node=node, lanes=lanes)
    assert found.keys() == blocks.keys()
    for pair, content in blocks.items():
        assert found[pair].tolist() == content.tolist()


@pytest.mark.parametrize("group", GROUPS)
def test_only_the_second_phase_leaves_nodes_and_only_through_one_member_of_a_lane(group):
    size, node, lanes = group
    nodes, sharing = size // node, node // lanes
    for phase in range(3):
        crossing = [(a, b) for a, b in partners(phase, size, node, lanes) if a // node != b // node]
        assert bool(crossing) == (phase == 1 and nodes > 1)
        if phase == 1:
            # Flat, sharing members of a card send to node members of each other node.
            by_card = Counter(a // sharing for a, _ in crossing)
            assert set(by_card.values()) <= {nodes - 1}
            assert len(crossing) == nodes * lanes * (nodes - 1)
            assert len({(a // sharing, b // node) for a, b in crossing}) == len(crossing)


def counted(size, node, lanes):
    """The most blocks that one message of each phase holds, and messages of the busiest member, block by block."""
    most, sent = [], []
    for phase in range(3):
        load = Counter()
        for source in range(size):
            for target in range(size):
                stops = (source, *route(source, target, node, lanes))
                if stops[phase] != stops[phase + 1]:
                    load[stops[phase], stops[phase + 1]] += 1
        most.append(max(load.values(), default=0))
        sent.append(max(Counter(of for of, _ in load).values(), default=0))
    return most, sent


@pytest.mark.parametrize("group", [each for each in GROUPS if each[0] > each[1]])
def test_the_price_is_that_of_the_blocks_on_their_way(group):
    size, node, lanes = group
    # A second for a block and nothing else: times are blocks.
    levels = (
        Level(name="node", size=node, alpha_s=0.0, bytes_per_s=1.0),
        Level(name="system", size=size // node, alpha_s=0.0, bytes_per_s=1.0),
    )
    found = halo_phases_s(Fabric(levels=levels), size, 1, size, lanes)
    most, _ = counted(size, node, lanes)
    rounds = (node - 1, size // node - 1, node // lanes - 1)
    assert found == tuple(count * blocks for count, blocks in zip(rounds, most, strict=True))


def test_a_small_exchange_by_hand():
    levels = (
        Level(name="node", size=4, alpha_s=1.0, bytes_per_s=10.0),
        Level(name="system", size=2, alpha_s=5.0, bytes_per_s=8.0, shared=True),
    )
    fabric = Fabric(levels=levels)
    # Flat: of 8 ranks with 10 bytes for each, all rounds cross nodes for at most 4 members of each.
    flat = sum(5 + min(shift, 8 - shift, 4) * 10 / 8 for shift in range(1, 8))
    assert flat_s(fabric, 8, 1, 80) == pytest.approx(flat)
    # Four lanes: 3 rounds of two blocks in the node, one of four blocks of four members over the shared link.
    assert halo_phases_s(fabric, 8, 1, 80, 4) == pytest.approx((3 * (1 + 2), 5 + 4 * 40 / 8, 0))
    # One lane: members take turns by node, so one of four serves the other node, with all of 16 blocks.
    assert halo_phases_s(fabric, 8, 1, 80, 1) == pytest.approx((3 * (1 + 5), 5 + 160 / 8, 3 * (1 + 4)))
    assert halo_s(fabric, 8, 1, 80, 4) == pytest.approx(25 + 9)


def test_a_group_inside_of_a_node_does_not_see_how_many_nodes_there_are():
    frontier = machine("Frontier")
    found = {flat_s(frontier.fabric(ranks), 8, 1, 10**6) for ranks in (8, 64, 1024)}
    assert len(found) == 1
    assert flat_s(frontier.fabric(1024), 16, 1, 10**6) > 2 * found.pop()


def test_groups_in_between_share_the_network():
    frontier = machine("Frontier").fabric(64)
    # Next to each other, one member of a card or two send across in a round; four apart, groups in between do, too.
    by_hand = sum(4e-6 + (2 if 2 <= shift <= 14 else 1) * 1e6 / 25e9 for shift in range(1, 16))
    assert flat_s(frontier, 16, 1, 16 * 10**6) == pytest.approx(by_hand)
    assert flat_s(frontier, 16, 4, 16 * 10**6) == pytest.approx(15 * (4e-6 + 2 * 1e6 / 25e9))


def test_few_bytes_gain_by_fewer_messages_and_many_bytes_gain_nothing():
    frontier = machine("Frontier").fabric(1024)
    gains = [flat_s(frontier, 1024, 1, n) / halo_s(frontier, 1024, 1, n, 4) for n in (2**20, 2**26, 2**32)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 3
    assert gains[2] < 1.3


def test_lanes_are_shared_by_groups_in_between():
    assert [lanes_of(4, 8, stride) for stride in (1, 2, 4, 8)] == [4, 2, 1, 1]
    assert lanes_of(8, 4, 1) == 4
    # Of cards that do not divide the members some go without, so that a group has a price.
    assert [lanes_of(8, 12, 1), lanes_of(4, 6, 1), lanes_of(4, 6, 2), lanes_of(3, 8, 1)] == [6, 3, 1, 2]


@pytest.mark.parametrize("group", [(6, 4, 2), (8, 4, 3), (0, 1, 1), (4, 2, 0)])
def test_groups_that_do_not_fill_nodes_are_refused(group):
    size, node, lanes = group
    with pytest.raises(BadValueError, match="fill its nodes"):
        exchange_blocks({}, size=size, node=node, lanes=lanes)
    with pytest.raises(BadValueError):
        exchange_blocks({(0, 9): np.ones(1)}, size=4, node=2, lanes=1)
    with pytest.raises(BadValueError, match="tensor shards"):
        halo_phases_s(machine("Frontier").fabric(64), 16, 3, 100, 1)
