"""FCP's blocks, their places and their rounds: the checks of its source, and what is no plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.context.costs import whole, work
from wavetank.training.context.fcp import Fcp, coalescing, cut, distribute, planned_step, rounds
from wavetank.training.context.interface import Batch, Cluster, imbalance
from wavetank.training.context.rivals import grouped
from wavetank.training.context.workload import sequence_lengths

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=25)


def cluster(ranks, **changes):
    words = {
        "flops_per_s": np.full(ranks, 989e12), "network_bytes_per_s": np.full(ranks, 50e9),
        "link_bytes_per_s": np.full(ranks, 450e9),
    }  # fmt: skip
    return Cluster(**(words | changes))


def batch(lengths, ranks, tokens_per_rank=32_768, slack=0.05, **changes):
    return Batch(
        lengths=np.asarray(lengths, np.int64), cluster=cluster(ranks, **changes),
        room_tokens=int(tokens_per_rank * (1 + slack)),
    )  # fmt: skip


def mixed(ranks, seed=0):
    lengths = sequence_lengths(32_768 * ranks, seed, mix="lognormal", longest=524_288, median=1500, sigma=1.8)
    return batch(lengths, ranks)


@given(LENGTHS, st.integers(1, 99))
def test_blocks_cover_every_token_once_and_are_as_equal_as_can_be(lengths, block):
    sequence, first, tokens = cut(np.array(lengths), block)
    assert tokens.max() <= block
    for number, length in enumerate(lengths):
        of = sequence == number
        assert first[of].tolist() == np.concatenate([[0], np.cumsum(tokens[of])[:-1]]).tolist()
        assert tokens[of].sum() == length
        assert tokens[of].max() - tokens[of].min() <= 1
        assert of.sum() == -(-length // block)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 9))
def test_every_need_is_met_once_and_in_as_many_rounds_as_the_busiest_rank_has_messages(lengths, ranks):
    plan = distribute(np.array(lengths), ranks, block=64)
    needs = set()
    for q in range(plan.sequence.size):
        for k in range(q):
            if plan.sequence[k] == plan.sequence[q] and plan.owner[k] != plan.owner[q]:
                needs.add((k, int(plan.owner[q])))
    blocks, targets = plan.edges
    assert sorted(needs) == sorted(zip(blocks.tolist(), targets.tolist(), strict=True))
    colours, senders = rounds(plan), plan.owner[blocks]
    if not needs:
        assert colours.size == 0
        return
    degree = max(np.bincount(senders).max(), np.bincount(targets).max())
    assert np.unique(colours).tolist() == list(range(degree))
    for side in (senders, targets):
        assert len(set(zip(side.tolist(), colours.tolist(), strict=True))) == side.size


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 6))
def test_ranks_together_compute_all_that_attends(lengths, ranks):
    even = cluster(ranks, half_tokens=0.0, kernel_share=1.0)
    plan = distribute(np.array(lengths), ranks, block=50, cluster=even)
    local, given_work = plan.works(even)
    assert local.sum() + given_work.sum() == pytest.approx(whole(np.array(lengths, float), even).sum())
    assert given_work.min(initial=1.0) > 0


def test_sequences_of_one_block_cause_no_traffic_at_all():
    step = Fcp(block_tokens=4096).step(batch([4096, 17, 1, 3000] * 20, 8))
    assert step.rounds == step.degree == 0
    assert step.sent_bytes.sum() == step.received_bytes.sum() == 0


def test_equal_long_sequences_have_the_traffic_and_the_time_of_a_zigzag_ring():
    ranks, block = 16, 4096
    one = batch([2 * ranks * block], ranks, tokens_per_rank=2 * block, half_tokens=0.0)
    plan = distribute(one.lengths, ranks, block=block, room_tokens=one.room_tokens, cluster=one.cluster)
    assert all(plan.owner[j] == plan.owner[2 * ranks - 1 - j] for j in range(ranks))
    assert np.bincount(plan.owner).tolist() == [2] * ranks
    step, ring = planned_step(plan, rounds(plan), one, 1), grouped(one, 1, ranks)
    kv_block = block * one.cluster.heads.kv_bytes
    assert step.received_bytes.max() == pytest.approx(ring.received_bytes.max())
    assert step.received_bytes.sum() <= ring.received_bytes.sum()
    assert step.compute_s == pytest.approx(ring.compute_s, rel=1e-3)
    # One block's way, and what is computed on it.
    one_block_s = 2 * kv_block / 50e9 + 2 * 2.5 * one.cluster.heads.flops_per_pair * block**2 / (0.65 * 989e12)
    assert abs(step.time_s - ring.time_s) < 2 * one_block_s


def test_ranks_compute_within_five_hundredths_of_each_other_and_hold_what_they_may():
    for ranks in (16, 64, 256):
        mix = mixed(ranks)
        step = Fcp().step(mix)
        assert imbalance(step.compute_s) < 0.05
        plan = Fcp().plan(mix, int(step.choice))
        assert np.bincount(plan.owner, plan.tokens, ranks).max() <= mix.room_tokens


def test_pairs_of_a_sequence_are_exchanged_to_even_out_what_is_received():
    mix = mixed(64)
    plan = Fcp().plan(mix, 2048)
    received = imbalance(planned_step(plan, rounds(plan), mix, 1).received_bytes)
    pairs = distribute(mix.lengths, 64, block=2048, room_tokens=mix.room_tokens, cluster=mix.cluster)
    owner = pairs.owner.copy()
    # As they lie without the exchange: the first pairs of every sequence, which receive most, come first to the ranks.
    for begin, end in pairs.cut_sequences:
        half = (end - begin) // 2
        owner[begin : begin + half] = np.sort(owner[begin : begin + half])
        owner[end - half : end] = owner[begin : begin + half][::-1]
    worse = replace(pairs, owner=owner)
    assert received < imbalance(planned_step(worse, rounds(worse), mix, 1).received_bytes)


def test_a_faster_rank_gets_more_work():
    speeds = np.array([2.0, 1.0, 1.0, 1.0]) * 300e12
    plan = distribute(np.full(400, 1000), 4, block=512, cluster=cluster(4, flops_per_s=speeds))
    assert np.bincount(plan.owner, plan.tokens)[0] == pytest.approx(400_000 * 2 / 5, rel=0.02)


def test_coalesced_blocks_of_one_sequence_make_less_work_and_no_more_than_whole_rows():
    mix = mixed(16)
    plan = Fcp().plan(mix, 1024)
    colours = rounds(plan)
    assert coalescing(plan, colours, 1, mix.cluster).tolist() == [1.0] * colours.size
    share = coalescing(plan, colours, 16, mix.cluster)
    assert share.max() <= 1.0
    assert share.min() < 0.75
    # A half at one block of 1024 tokens; at most 16 of them are one kernel.
    assert share.min() >= 0.5


def test_equal_lengths_give_equal_plans():
    one, same = (distribute(mixed(16).lengths, 16) for _ in range(2))
    assert one.owner.tolist() == same.owner.tolist()
    assert rounds(one).tolist() == rounds(same).tolist()


@pytest.mark.parametrize(
    ("lengths", "words"),
    [([], {}), ([3, 0], {}), ([[3]], {}), ([3], {"block": 0}), ([9, 9], {"room_tokens": 5, "block": 4})],
)
def test_what_cannot_be_placed_is_refused(lengths, words):
    with pytest.raises(BadValueError):
        distribute(np.array(lengths, np.int64), 2, **words)
    with pytest.raises(BadValueError, match="another number"):
        distribute(np.array([3]), 2, cluster=cluster(3))
    for parts in ([3.9, 2.0], [np.nan]):
        with pytest.raises(BadValueError, match="whole numbers"):
            distribute(np.array(parts), 2)


def test_shorter_blocks_are_tried_where_longer_ones_find_no_room():
    # Three sequences of 8000 tokens on two ranks: one of them must be cut.
    tight = batch([8000] * 3, 2, tokens_per_rank=12_000, slack=0.0)
    assert Fcp().step(tight).choice < 8192
    with pytest.raises(BadValueError, match="no room"):
        Fcp(block_tokens=8192).step(tight)


def test_a_processor_that_rounds_otherwise_makes_the_same_plan(monkeypatch):
    mix = mixed(64)
    plan = Fcp().plan(mix, 2048)

    def rounded_up_or_down(*given):
        found = work(*given)
        odd = np.arange(found.size).reshape(found.shape) % 2
        return np.nextafter(found, np.where(odd, np.inf, 0.0))

    monkeypatch.setattr("wavetank.training.context.fcp.work", rounded_up_or_down)
    assert Fcp().plan(mix, 2048).owner.tolist() == plan.owner.tolist()
