"""Bytes of weights and caches."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.tiers.sharding import check_degree, moved_bytes, moved_share, stored_slices_bytes, weight_bytes

MIB = 2**20


def test_thirteen_billion_weights_take_26_gb_and_their_slices_for_three_degrees_45_5_gb():
    assert weight_bytes(13e9) == 26e9
    assert stored_slices_bytes(13e9, (1, 2, 4)) == 45.5e9


@pytest.mark.parametrize(
    ("before", "after", "mib"), [(1, 2, 256), (1, 4, 384), (4, 2, 256), (2, 2, 0), (2, 1, 256), (8, 1, 448)]
)
def test_a_cache_of_4096_tokens_moves_the_bytes_computed_by_hand(before, after, mib):
    assert moved_bytes("Llama-3.1-8B", 4096, before, after) == mib * MIB
    assert moved_share(before, after) == moved_share(after, before)


def test_a_degree_that_does_not_divide_the_kv_heads_is_refused():
    check_degree("Llama-3.1-8B", 8)
    for degree in (16, 3, 0, True):
        with pytest.raises(BadValueError) as caught:
            check_degree("Llama-3.1-8B", degree)
        assert "KV heads" in str(caught.value)
    with pytest.raises(BadValueError):
        moved_bytes("Llama-3.1-8B", 10, 1, 16)
