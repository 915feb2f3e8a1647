"""Rings, exchanged heads, groups and unplanned messages, each against what it takes by hand."""

import numpy as np
import pytest
from tests.training.context.test_fcp import batch, cluster, mixed

from wavetank.errors import BadValueError
from wavetank.kernels.edge_colouring import colour_edges
from wavetank.training.context.costs import useful_flops
from wavetank.training.context.fcp import Fcp
from wavetank.training.context.interface import imbalance
from wavetank.training.context.rivals import (
    BestOfBoth,
    Grouping,
    HeadsAndRings,
    MinHeap,
    Unplanned,
    contended,
    group_s,
    grouped,
    passes_s,
    powers_of_two,
    received_bytes,
)

RING, PAPER = HeadsAndRings(heads="none"), (BestOfBoth(), MinHeap(), HeadsAndRings(heads="none"), Grouping())


def test_powers_of_two_end_at_the_most():
    assert list(powers_of_two(9)) == [1, 2, 4, 8]
    assert list(powers_of_two(0)) == []


def test_rings_and_heads_share_the_same_work():
    ranks = cluster(64, half_tokens=0.0, kernel_share=1.0)
    lengths = np.array([1e6])
    total = ranks.heads.flops_per_pair * 1e12 / 2
    for heads, ring in ((1, 16), (4, 4), (16, 1)):
        compute, around, exchanged = group_s(lengths, heads, ring, ranks, 1.0, 50e9)
        assert 16 * ring * compute[0] == pytest.approx(total, rel=1e-5)
        assert (exchanged[0] > 0) == (heads > 1)
        assert around[0] == pytest.approx(1e6 / 16 * max(1, heads / 8) * 4096 / 50e9)


def test_a_ring_hides_its_messages_behind_computing_and_heads_hide_nothing():
    one = np.ones(1)
    assert passes_s(3 * one, one, 0 * one, 4, 0.0) == pytest.approx(4 * 3 * 3.5)
    assert passes_s(one, 5 * one, 0 * one, 4, 0.0) == pytest.approx((3 * 5 + 1) + (3 * 10 + 2.5))
    assert passes_s(one, 5 * one, 2 * one, 1, 0.0) == pytest.approx(3.5 + 4)


def test_short_sequences_slow_a_long_ring_down():
    short = batch([4096] * 128, 16)
    times = [grouped(short, 1, ring).time_s for ring in (1, 4, 16)]
    assert times == sorted(times)
    assert times[2] > 4 * times[0]


def test_groups_take_the_longest_sequence_or_there_are_none():
    assert grouped(batch([200_000] + [4000] * 10, 16), 1, 4) is None
    assert grouped(mixed(16), 3, 1) is None
    assert HeadsAndRings().step(batch([200_000] + [4000] * 10, 16)).choice >= 8
    with pytest.raises(BadValueError, match="longest sequence"):
        HeadsAndRings(heads="only").step(batch([128 * 32_768], 128))


def test_one_choice_among_many_is_never_worse_than_a_part_of_them():
    for seed in range(2):
        mix = mixed(64, seed)
        usp = HeadsAndRings().step(mix).time_s
        assert usp <= min(RING.step(mix).time_s, HeadsAndRings(heads="only").step(mix).time_s)
        chosen = Grouping(spread="chosen").step(mix).time_s
        assert chosen <= Grouping().step(mix).time_s
        assert BestOfBoth().step(mix).time_s == min(RING.step(mix).time_s, Grouping().step(mix).time_s)


def test_groups_by_length_leave_long_sequences_with_more_work_per_rank():
    mix = mixed(256)
    assert imbalance(Grouping().step(mix).compute_s) > 0.7
    assert imbalance(Grouping(spread="chosen", heads=True).step(mix).compute_s) < 0.1


def test_groups_without_room_are_refused():
    with pytest.raises(BadValueError, match="no room in any group"):
        Grouping().step(batch([3000] * 3, 2, tokens_per_rank=4600, slack=0.0))


def test_the_gain_over_the_papers_rivals_grows_with_the_ranks_and_passes_the_papers_least():
    gains = []
    for ranks in (16, 256):
        each = [
            min(rival.step(mixed(ranks, seed)).time_s for rival in PAPER) / Fcp().step(mixed(ranks, seed)).time_s
            for seed in range(3)
        ]
        gains.append(np.exp(np.mean(np.log(each))))
    assert gains[0] < gains[1]
    assert gains[1] >= 1.13


def test_senders_that_agree_on_nothing_keep_receivers_waiting():
    # Both senders begin with the next rank, 2 for both of them: of four messages two take turns.
    senders, receivers = np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3])
    found = contended(senders, receivers, 4)
    assert sorted(found.tolist()) == [0, 1, 1, 2]
    assert colour_edges(senders, receivers).max() == 1


def test_unplanned_messages_get_through_one_at_a_time_and_never_sooner_than_planned():
    mix = mixed(64)
    plan = Fcp().plan(mix, 2048)
    blocks, targets = plan.edges
    colours = Unplanned().rounds(plan)
    for side in (plan.owner[blocks], targets):
        assert len(set(zip(side.tolist(), colours.tolist(), strict=True))) == side.size
    assert colours.max() > Fcp().rounds(plan).max() * 1.1


def test_planned_rounds_pay_where_messages_are_slow():
    mix = mixed(64)
    slow = batch(mix.lengths, 64, network_bytes_per_s=np.full(64, 6e9))
    assert Unplanned().step(slow).time_s > 1.05 * Fcp().step(slow).time_s


def test_chunks_of_a_min_heap_keep_their_room():
    mix = mixed(64)
    plan = MinHeap().plan(mix, 2048)
    assert np.bincount(plan.owner, plan.tokens).max() <= mix.room_tokens
    assert imbalance(MinHeap().step(mix).compute_s) < 0.1
    with pytest.raises(BadValueError, match="no room"):
        MinHeap().plan(batch([3000] * 3, 2, tokens_per_rank=4600, slack=0.0), 4096)


@pytest.mark.parametrize(
    "sharer",
    [
        Fcp(), Fcp(coalesced=1), Unplanned(), MinHeap(), HeadsAndRings(), RING, HeadsAndRings(heads="only"), Grouping(),
        Grouping(spread="chosen", heads=True), BestOfBoth(),
    ],
)  # fmt: skip
def test_every_sharer_computes_exactly_what_attends(sharer):
    mix = batch(mixed(64).lengths, 64, half_tokens=0.0)
    done = float((sharer.step(mix).compute_s * mix.cluster.flops_per_s).sum())
    assert done == pytest.approx(useful_flops(mix.lengths, mix.cluster) / mix.cluster.kernel_share, rel=1e-12)


def test_keys_that_are_copied_go_around_as_often():
    ranks = cluster(64)
    lengths = np.array([1e6])
    few, many = (group_s(lengths, heads, 2, ranks, 1.0, 50e9)[1][0] for heads in (8, 32))
    # A head of keys and values of half of the tokens is the least that a rank has.
    assert many == few == pytest.approx(1e6 / 2 * 4096 / 8 / 50e9)


def test_what_a_rank_receives_is_counted_by_hand():
    heads = cluster(64).heads
    tokens = np.array([100.0])
    assert received_bytes(tokens, 1, 4, cluster(64)) == pytest.approx(100 * 3 * heads.kv_bytes)
    assert received_bytes(tokens, 4, 1, cluster(64)) == pytest.approx(75 * (heads.qo_bytes + heads.kv_bytes))
    # 32 ranks on 8 heads of keys: four copies.
    wide = 100 * 31 / 32 * (heads.qo_bytes + 4 * heads.kv_bytes) + 100 * 4 * heads.kv_bytes
    assert received_bytes(tokens, 32, 2, cluster(64)) == pytest.approx(wide)
    assert received_bytes(tokens, 1, 1, cluster(64)) == 0
