"""What is no cluster and no batch, and how imbalance is counted."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.context.interface import Batch, Cluster, Heads, imbalance

ONES = np.ones(4)


def cluster(**changes):
    words = {"flops_per_s": ONES, "network_bytes_per_s": ONES, "link_bytes_per_s": ONES} | changes
    return Cluster(**words)


def test_the_heads_of_llama_3_70b_keep_4096_bytes_of_keys_and_values_per_token():
    assert Heads().kv_bytes == 2 * 8 * 128 * 2
    assert Heads().qo_bytes == 8 * Heads().kv_bytes
    assert Heads(queries=2, dim=3).flops_per_pair == 24


@pytest.mark.parametrize(
    "changes",
    [
        {"flops_per_s": np.array([1.0, 0.0, 1.0, 1.0])},
        {"network_bytes_per_s": np.ones(3)},
        {"link_bytes_per_s": np.array([1.0, np.nan, 1.0, 1.0])},
        {"latency_s": np.nan},
        {"kernel_share": 0.0},
        {"half_tokens": -1.0},
        {"node": 0},
    ],
)
def test_ranks_without_speeds_are_refused(changes):
    with pytest.raises(BadValueError):
        cluster(**changes)


def test_a_batch_needs_tokens_and_room_for_them():
    assert Batch(lengths=np.array([3, 5]), cluster=cluster(), room_tokens=2).tokens == 8
    with pytest.raises(BadValueError, match="more tokens than"):
        Batch(lengths=np.array([3, 6]), cluster=cluster(), room_tokens=2)
    for lengths in ([], [3, 0]):
        with pytest.raises(BadValueError, match="a token or more"):
            Batch(lengths=np.array(lengths, np.int64), cluster=cluster(), room_tokens=2)


def test_imbalance_is_how_much_the_most_is_above_the_mean():
    assert imbalance(np.array([1.0, 2.0, 3.0])) == pytest.approx(0.5)
    assert imbalance(np.zeros(3)) == 0.0
    assert imbalance(np.full(3, 0.1)) == 0.0


@pytest.mark.parametrize("lengths", [[2.5, 3.0], [np.nan]])
def test_parts_of_tokens_are_refused(lengths):
    one = Cluster(flops_per_s=np.ones(1), network_bytes_per_s=np.ones(1), link_bytes_per_s=np.ones(1))
    with pytest.raises(BadValueError, match="whole numbers"):
        Batch(lengths=np.array(lengths), cluster=one, room_tokens=100)
