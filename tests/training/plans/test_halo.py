"""Exchanges as systems: the times of their phases, their messages, and blocks where they belong."""

import pytest
from tests.training.plans.test_exchange import blocks_of

from wavetank.platforms.machines import machine
from wavetank.training.plans.exchange import flat_s, halo_phases_s, halo_s, partners
from wavetank.training.plans.halo import FlatExchange, HaloExchange

FRONTIER = machine("Frontier")


def test_times_are_those_of_the_phases_with_and_without_overlap():
    fabric = FRONTIER.fabric(64)
    assert HaloExchange().time_s(FRONTIER, 64, 10**6) == halo_s(fabric, 64, 1, 10**6, 4)
    in_turn = HaloExchange(overlapped=False).time_s(FRONTIER, 64, 10**6)
    assert in_turn == sum(halo_phases_s(fabric, 64, 1, 10**6, 4)) > HaloExchange().time_s(FRONTIER, 64, 10**6)
    assert FlatExchange().time_s(FRONTIER, 64, 10**6) == flat_s(fabric, 64, 1, 10**6)


def test_messages_are_counted_one_by_one():
    for system, lanes in ((HaloExchange(), 4), (HaloExchange(lanes="members"), 8)):
        crossing = [pair for pair in partners(1, 32, 8, lanes) if pair[0] < 8]
        assert system.messages(FRONTIER, 32) == len(crossing)
    flat = sum(source // 8 != target // 8 for source in range(8) for target in range(32))
    assert FlatExchange().messages(FRONTIER, 32) == flat


@pytest.mark.parametrize("system", [HaloExchange(), HaloExchange(lanes="members"), FlatExchange()], ids=repr)
def test_blocks_end_at_their_targets(system):
    blocks = blocks_of(8, 2)
    found = system.exchanged(blocks, 8, 4)
    assert {pair: content.tolist() for pair, content in found.items()} == {
        pair: content.tolist() for pair, content in blocks.items()
    }
