"""HexiSeq's checks: equal devices, known optima, brute force, memory, and more bandwidth."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tests.training.context.test_shards import problem

from wavetank.errors import BadValueError
from wavetank.training.context.hexiseq import (
    EqualShares,
    HexiSeq,
    TokensBySpeed,
    even_shares,
    filled,
    groupings,
)
from wavetank.training.context.shards import Layer, Shards, layer_s

LAYER = Layer(heads=8, head_dim=16, ffn=512, layers=2)


def slowest(case, shards):
    shards.check(case)
    return float(layer_s(case, shards).max())


@pytest.mark.parametrize("tokens", [2048, 65_536])
def test_equal_devices_get_equal_shares_and_the_time_of_the_best_of_them(tokens):
    case = problem([1e12] * 16, tokens=tokens, network=1e9, link=1e10, layer=LAYER)
    found = HexiSeq().shards(case)
    assert slowest(case, found) == pytest.approx(slowest(case, EqualShares().shards(case)), rel=1e-9)
    assert np.ptp(found.tokens) < 1e-6 * tokens


@pytest.mark.parametrize(("fast", "slow"), [(2.0, 1.0), (3.0, 1.0), (7.0, 2.0)])
def test_two_devices_that_only_compute_share_by_their_speeds(fast, slow):
    case = problem([fast, slow], tokens=8192, layer=LAYER, node=1)
    work = 3 * (2 * LAYER.parameters * 8192 + 4 * 16 * 8 * 8192**2 / 2)
    quantum = 2 / 2048
    assert slowest(case, HexiSeq().shards(case)) <= work / (fast + slow) * (1 + 2 * quantum)
    assert slowest(case, TokensBySpeed().shards(case)) == pytest.approx(work / (fast + slow))
    assert slowest(case, EqualShares().shards(case)) == pytest.approx(work / 2 / slow)


@pytest.mark.parametrize("network", [1e9, 1e30])
def test_small_cases_are_within_five_hundredths_of_all_shares_on_a_grid(network):
    case = problem([3.0, 1.0, 1.0], tokens=1200, network=network / 1e9, link=10.0, layer=LAYER, node=2)
    best = np.inf
    groups = [np.array(each) for each in ([0, 1, 2], [0, 0, 1], [0, 1, 1], [0, 0, 0])]
    grid = range(0, 1201, 60)
    for group in groups:
        splits = [
            each for each in product(range(LAYER.heads + 1), repeat=3)
            if all(sum(h for h, g in zip(each, group, strict=True) if g == k) == LAYER.heads for k in set(group))
        ]  # fmt: skip
        for a, b in product(grid, grid):
            if a + b <= 1200:
                for heads in splits:
                    tokens = np.array([a, b, 1200 - a - b], float)
                    shards = Shards(group=group, tokens=tokens, heads=np.array(heads, float))
                    best = min(best, float(layer_s(case, shards).max()))
    assert slowest(case, HexiSeq().shards(case)) <= 1.05 * best


def test_steps_downhill_never_rise():
    case = problem([3e12] * 4 + [1e12] * 4, tokens=16_384, network=1e8, link=1e9, layer=LAYER, node=4)
    for group in groupings(case):
        for power in (0.0, 1.0):
            start = even_shares(case, group, power)
            after = HexiSeq().descend(case, start)
            assert slowest(case, after) <= float(layer_s(case, start).max())


def test_ranks_of_a_group_are_neighbours_in_a_node_or_groups_are_equal():
    case = problem([3.0] * 16 + [1.0] * 16, layer=replace(LAYER, heads=16))
    found = [each.tolist() for each in groupings(case)]
    assert len(found) == 4 * 4 + 1
    assert [0] * 16 + [1] * 16 in found
    assert [*([0] * 8), *([1] * 8), *range(2, 18)] in found


def test_more_bandwidth_is_never_slower():
    times = []
    for network in (1e7, 1e8, 1e9, 1e10):
        case = problem([3e12] * 8 + [1e12] * 8, tokens=32_768, network=network, link=1e10, layer=LAYER)
        times.append(slowest(case, HexiSeq().shards(case)))
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_unequal_devices_gain_over_equal_shares():
    case = problem([3e12] * 8 + [1e12] * 8, tokens=32_768, network=1e9, link=1e10, layer=LAYER)
    ratio = slowest(case, EqualShares().shards(case)) / slowest(case, HexiSeq().shards(case))
    assert 1.3 < ratio <= 2.0


def test_tokens_by_speed_in_groups_are_between_a_ring_of_them_and_a_search():
    case = problem([3e12] * 8 + [1e12] * 8, tokens=8192, network=1e9, link=1e10, layer=LAYER)
    ring, groups = (slowest(case, TokensBySpeed(heads=each).shards(case)) for each in ("none", "any"))
    assert slowest(case, HexiSeq().shards(case)) <= groups < ring


def test_memory_limits_what_a_fast_rank_is_given_and_what_does_not_fit_is_refused():
    assert filled(10.0, np.array([9.0, 1.0, 0.5]), np.array([4.0, 5.0, 5.0])) == pytest.approx([4.0, 4.0, 2.0])
    assert filled(6.0, np.ones(2), np.array([1.0, 5.0])).tolist() == [1.0, 5.0]
    with pytest.raises(BadValueError, match="does not fit"):
        filled(7.0, np.ones(2), np.array([1.0, 5.0]))
    room = problem([3.0, 1.0], tokens=2000, memory=2.6e7, layer=LAYER).room_tokens
    small = problem([3.0, 1.0], tokens=int(1.5 * room[0]), memory=2.6e7, layer=LAYER)
    assert HexiSeq().shards(small).tokens.max() <= room[0] * (1 + 1e-9)
    large = problem([3.0, 1.0], tokens=int(2.5 * room[0]), memory=2.6e7, layer=LAYER)
    for each in (HexiSeq(), EqualShares(), TokensBySpeed()):
        with pytest.raises(BadValueError, match="fit"):
            each.shards(large)


def test_equal_shares_need_heads_that_ranks_divide():
    with pytest.raises(BadValueError, match="divide"):
        EqualShares(heads="only").shards(problem([1.0] * 3, layer=LAYER))
    assert EqualShares(heads="only").shards(problem([1.0] * 4, layer=LAYER)).heads.tolist() == [2.0] * 4
    assert EqualShares(heads="none").shards(problem([1.0] * 4, layer=LAYER)).group.tolist() == [0, 1, 2, 3]
