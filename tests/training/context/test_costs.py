"""What blocks and messages take, by hand."""

import numpy as np
import pytest

from wavetank.training.context.costs import (
    PASSES,
    efficiency,
    exchange_s,
    pair_bytes_per_s,
    per_rank,
    useful_flops,
    whole,
    work,
)
from wavetank.training.context.interface import Cluster, Heads


def cluster(ranks=4, **changes):
    words = {
        "flops_per_s": np.ones(ranks), "network_bytes_per_s": np.ones(ranks), "link_bytes_per_s": np.full(ranks, 10.0),
        "latency_s": 0.0, "node": 2, "kernel_share": 1.0, "half_tokens": 0.0,
    }  # fmt: skip
    return Cluster(**(words | changes))


def test_a_kernel_has_a_quarter_a_half_and_nine_tenths_of_its_speed_where_the_source_has_them():
    assert efficiency(np.array([512.0, 1024.0, 4096.0]), 1024.0) == pytest.approx([0.25, 0.5, 0.9])
    assert efficiency(np.array([1.0]), 0.0) == 1.0


def test_a_whole_sequence_is_its_diagonal_and_all_before_it():
    ranks = cluster(heads=Heads(queries=1, keys=1, dim=1))
    assert whole(np.array([3.0]), ranks) == pytest.approx([4 * 6])
    assert work(np.array([6.0]), np.array([2.0]), np.array([3.0]), ranks) == pytest.approx([4 * 6])
    assert useful_flops(np.array([3, 1]), ranks) == pytest.approx(3.5 * 4 * (6 + 1))
    slow = cluster(heads=Heads(queries=1, keys=1, dim=1), kernel_share=0.5, half_tokens=6.0**0.5)
    assert work(np.array([6.0]), np.array([2.0]), np.array([3.0]), slow) == pytest.approx([4 * 6 / 0.5 / 0.5])


def test_a_message_has_its_nodes_link_or_the_slower_of_two_network_cards():
    ranks = cluster(network_bytes_per_s=np.array([4.0, 4.0, 1.0, 4.0]))
    assert pair_bytes_per_s(ranks, np.array([0, 0, 1]), np.array([1, 2, 3])).tolist() == [10.0, 1.0, 4.0]


def ends(*messages):
    senders, receivers, sizes, works = zip(*messages, strict=True)
    return np.array(senders), np.array(receivers), np.array(sizes, float), np.array(works, float)


def test_a_rank_computes_while_the_next_block_travels():
    # Between nodes, 3 s and 3 s of travel; 1 s of work at hand, then 2 s and 2 s.
    found = exchange_s(cluster(), ends((0, 2, 3, 2), (1, 2, 3, 2)), np.array([0, 1]), np.array([0, 0, 1.0, 0]), (1, 1))
    assert found == pytest.approx(3 + 3 + 2)
    # With more work at hand than travel nothing shows of it.
    found = exchange_s(cluster(), ends((0, 2, 3, 2), (1, 2, 3, 2)), np.array([0, 1]), np.array([0, 0, 9.0, 0]), (1, 1))
    assert found == pytest.approx(9 + 2 + 2)


def test_messages_of_one_round_travel_at_once_and_a_busy_end_delays_the_next_round():
    messages = ends((0, 2, 3, 0), (1, 3, 1, 1), (1, 2, 1, 1))
    assert exchange_s(cluster(), messages, np.array([0, 0, 1]), np.zeros(4), (1, 1)) == pytest.approx(3 + 1 + 1)


def test_coalesced_rounds_are_computed_on_when_the_last_has_come():
    messages = ends((0, 2, 3, 2), (1, 2, 3, 2))
    assert exchange_s(cluster(), messages, np.array([0, 1]), np.zeros(4), (1, 1), 2) == pytest.approx(6 + 4)
    assert exchange_s(cluster(), messages, np.array([0, 1]), np.zeros(4), (1, 1), 1) == pytest.approx(3 + 3 + 2)


def test_the_backward_pass_multiplies_computing_and_messages():
    messages = ends((0, 2, 3, 2))
    assert exchange_s(cluster(), messages, np.array([0]), np.zeros(4), PASSES[1]) == pytest.approx(2 * 3 + 2.5 * 2)
    assert exchange_s(cluster(), ends((0, 2, 3, 2)), np.array([0]), np.zeros(4), (0, 0)) == 0.0


def test_no_messages_take_what_is_computed_at_hand():
    none = np.array([], np.int64), np.array([], np.int64), np.array([]), np.array([])
    assert exchange_s(cluster(), none, np.array([], np.int64), np.array([1.0, 4, 0, 0]), (1, 1)) == 4.0


def test_sums_by_rank_keep_ranks_without_anything():
    assert per_rank(3, np.array([0, 2, 2]), np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 0.0, 5.0]
