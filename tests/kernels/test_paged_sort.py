"""The sort of wide keys by adaptive pages."""

import numpy as np
import pytest

from wavetank.kernels.crew import crew_of
from wavetank.kernels.key_codec import codec_for
from wavetank.kernels.paged_sort import WORD_COPIES, expand, sort_wide, trend, wide_scratch_bytes


def wide(keys, threads=2):
    out = np.empty_like(keys)
    with crew_of(threads) as crew:
        sort_wide(keys, out, codec_for(keys.dtype), crew, threads)
    return out


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("spread", [1, 1000, 1 << 20, 1 << 31])
def test_clustered_and_scattered_keys_are_sorted(dtype, spread):
    keys = np.random.default_rng(spread).integers(0, spread, 300_001, dtype=dtype)
    np.testing.assert_array_equal(wide(keys), np.sort(keys))


def test_a_page_that_holds_nearly_all_keys_is_split_again():
    rng = np.random.default_rng(0)
    keys = np.concatenate([rng.integers(0, 1 << 16, 2_000_000), rng.integers(0, 1 << 62, 100)]).astype(np.uint64)
    np.testing.assert_array_equal(wide(keys), np.sort(keys))


def test_expansion_fills_runs_across_the_parts_of_threads():
    values = np.array([3, 5, 9], np.uint16)
    ends = np.array([100, 101, 1000], np.uint64)
    out = np.zeros(1000, np.uint16)
    for start, stop in ((0, 7), (7, 333), (333, 1000)):
        expand(out, values, ends, start, stop, WORD_COPIES[2])
    np.testing.assert_array_equal(out, np.repeat(values, [100, 1, 899]))


@pytest.mark.parametrize(
    ("keys", "found"),
    [([1, 2, 2], (True, False)), ([3, 2, 1], (False, True)), ([1, 3, 2], (False, False)), ([4], (True, True))],
)
def test_a_trend_is_seen(keys, found):
    array = np.array(keys, np.uint32)
    with crew_of(1) as crew:
        assert trend(array, codec_for(array.dtype), crew, 1) == found


def test_a_trend_that_breaks_between_two_parts_is_seen():
    array = np.arange(400_000, dtype=np.uint32)
    array[200_000:] -= 100_000
    with crew_of(2) as crew:
        assert trend(array, codec_for(array.dtype), crew, 2) == (False, False)


def test_scratch_grows_with_row_ids():
    assert wide_scratch_bytes(10**6, 4, 2, 8) > wide_scratch_bytes(10**6, 4, 2) > 0
