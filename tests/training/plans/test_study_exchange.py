"""The study of exchanges: all cases, latencies that are swept, and an exchange that loses a block."""

import pytest

from wavetank.errors import BadValueError
from wavetank.training.plans.halo import FlatExchange, HaloExchange
from wavetank.training.plans.study_exchange import TokenExchange, wrong_blocks

STUDY = TokenExchange(nodes=(2, 4), sizes_mib=(1.0, 64.0), latencies=(0.0,))


def figures(system):
    return {(name, *at.values()): value for name, value, at in STUDY.measure(system, 0).rows}


def test_means_are_those_of_the_cases():
    found = figures(HaloExchange())
    cases = [found["bandwidth_by_case", nodes, mib] for nodes in (2, 4) for mib in (1.0, 64.0)]
    assert found["bandwidth_bytes_per_s",] == pytest.approx((cases[0] * cases[1] * cases[2] * cases[3]) ** 0.25)
    assert found["bandwidth_by_nodes", 2] == pytest.approx((cases[0] * cases[1]) ** 0.5)
    assert found["bandwidth_by_latency", 1.0] == found["bandwidth_bytes_per_s",]


def test_the_gain_is_that_of_fewer_messages_but_for_rounds_of_a_flat_exchange_that_wait_for_the_network():
    flat, halo = figures(FlatExchange()), figures(HaloExchange())
    assert halo["bandwidth_bytes_per_s",] > 1.1 * flat["bandwidth_bytes_per_s",]
    gains = [halo["bandwidth_by_latency", factor] / flat["bandwidth_by_latency", factor] for factor in (0.0, 1.0)]
    assert 1 < gains[0] < 1.25
    assert gains[1] > 1.2 * gains[0]
    assert halo["messages",] == 3 * 4
    assert flat["messages",] == 8 * 24


def test_an_exchange_that_loses_or_changes_a_block_is_wrong():
    class Lossy(HaloExchange):
        def exchanged(self, blocks, size, node):
            found = super().exchanged(blocks, size, node)
            del found[0, 5]
            found[3, 4] = found[3, 4] + 1 if found[3, 4].size else [1.0]
            return found

    assert wrong_blocks(HaloExchange(), 0) == wrong_blocks(FlatExchange(), 0) == 0
    assert wrong_blocks(Lossy(), 0) == 2


@pytest.mark.parametrize("words", [{"nodes": ()}, {"sizes_mib": ()}, {"nodes": (17,)}])
def test_no_nodes_or_sizes_and_cut_units_are_refused(words):
    with pytest.raises(BadValueError):
        TokenExchange(**words).check()
    assert "assumed" in TokenExchange().notes()[1]
