"""What a layer takes with given shares, by hand, and shares that do not add up."""

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.context.interface import Cluster
from wavetank.training.context.shards import Layer, LongSequence, Shards, layer_s, step_s


def problem(speeds, tokens=1024, memory=1e15, network=1e30, link=1e30, layer=None, node=8):
    speeds = np.array(speeds, float)
    return LongSequence(
        tokens=tokens, memory_bytes=np.full(speeds.size, memory), linear_share=1.0,
        layer=layer or Layer(heads=8, head_dim=2, ffn=4, layers=3),
        cluster=Cluster(
            flops_per_s=speeds, network_bytes_per_s=np.full(speeds.size, network), latency_s=0.0, kernel_share=1.0,
            link_bytes_per_s=np.full(speeds.size, link), node=node,
        ),
    )  # fmt: skip


def equal(ranks, group, tokens=1024, heads=8):
    group = np.array(group)
    return Shards(group=group, tokens=np.full(ranks, tokens / ranks), heads=heads / np.bincount(group)[group])


def test_computing_is_that_of_all_tokens_however_they_are_grouped():
    one = problem([1.0] * 4)
    layer = one.layer
    total = 2 * layer.parameters * 1024 + 4 * 2 * 8 * 1024**2 / 2
    assert layer.parameters == 4 * 16**2 + 2 * 16 * 4
    for group in ([0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]):
        assert layer_s(one, equal(4, group)) == pytest.approx([3 * total / 4] * 4)
        assert step_s(one, equal(4, group)) == pytest.approx(3 * 3 * total / 4)


def test_exchanged_heads_are_waited_for_and_what_comes_around_hides_behind_attention():
    fast = problem([1e30] * 2, network=10.0, link=100.0, node=1)
    # 4 tensors of 2 bytes: 512 tokens of half the heads, over the network as each node has one rank.
    assert layer_s(fast, equal(2, [0, 0])) == pytest.approx([3 * 4 * 2 * 2 * 4 * 512 / 10.0] * 2)
    # Keys and values of 512 tokens.
    assert layer_s(fast, equal(2, [0, 1])) == pytest.approx([3 * 2 * 2 * 2 * 8 * 512 / 10.0] * 2)
    inside = replace(fast, cluster=replace(fast.cluster, node=2))
    assert layer_s(inside, equal(2, [0, 0])) == pytest.approx(layer_s(fast, equal(2, [0, 0])) / 10)
    slow = problem([1.0] * 2, network=10.0, node=1)
    assert layer_s(slow, equal(2, [0, 1])) == pytest.approx(layer_s(problem([1.0] * 2), equal(2, [0, 1])))


def test_shares_that_do_not_add_up_or_do_not_fit_are_refused():
    one = problem([1.0] * 2)
    equal(2, [0, 1]).check(one)
    for wrong in (
        replace(equal(2, [0, 1]), tokens=np.array([512.0, 500.0])),
        replace(equal(2, [0, 0]), heads=np.array([4.0, 3.0])),
        replace(equal(2, [0, 0]), heads=np.array([9.0, -1.0])),
    ):
        with pytest.raises(BadValueError, match="add up"):
            wrong.check(one)
    with pytest.raises(BadValueError, match="memory holds"):
        equal(2, [0, 1]).check(problem([1.0] * 2, memory=1e5))


def test_memory_holds_states_first_and_tokens_in_the_rest():
    one = problem([1.0] * 2, memory=1e6)
    states = 16 * one.layer.parameters * 3 / 2
    assert one.room_tokens == pytest.approx([(0.9e6 - states) / (2 * 16 * 19)] * 2)
    assert problem([1.0] * 2, memory=1.0).room_tokens.tolist() == [0.0, 0.0]


def test_a_sequence_shorter_than_its_ranks_is_refused():
    with pytest.raises(BadValueError, match="token for each rank"):
        problem([1.0] * 4, tokens=3)
