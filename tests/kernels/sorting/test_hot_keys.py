"""Hot keys: found by a sample, counted apart, woven between the cold ones."""

import numpy as np
import pytest

from wavetank.kernels.sorting import hot_keys as module
from wavetank.kernels.sorting.fractal_sort import FractalSort
from wavetank.kernels.sorting.hot_keys import hot_keys, sort_with_hot_keys
from wavetank.kernels.sorting.key_codec import codec_for, decoded, encoded
from wavetank.machine.thread_pool import thread_pool

DTYPES = ("uint32", "int32", "float32", "uint64", "int64", "float64")


def raw(keys):
    return keys.view(f"u{keys.itemsize}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", ["zipf", "one hot"])
@pytest.mark.parametrize("threads", [1, 3])
def test_columns_with_hot_keys_are_sorted_bit_for_bit(dtype, distribution, threads, make_keys, small_parts):
    keys = make_keys(distribution, 150_001, dtype)
    codec, out = codec_for(dtype), np.empty_like(raw(keys))
    hot = hot_keys(raw(keys), codec)
    assert hot is not None
    pool = thread_pool(threads)
    sort_with_hot_keys(raw(keys), out, hot, codec, pool, threads)
    assert np.array_equal(out, raw(decoded(np.sort(encoded(keys)), dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sort_takes_hot_keys_out_and_gives_the_same_result_without(dtype, make_keys):
    keys = make_keys("zipf", 150_001, dtype)
    results = [raw(FractalSort(threads=2, fast_paths=fast).sort(keys)) for fast in (True, False)]
    assert np.array_equal(*results)
    assert np.array_equal(results[0], raw(decoded(np.sort(encoded(keys)), dtype)))


def test_a_column_of_hot_keys_alone_has_nothing_to_partition():
    keys = np.resize(np.arange(40, dtype=np.uint32) * 1_000_003, 200_000)
    codec, out = codec_for(np.uint32), np.empty_like(keys)
    hot = hot_keys(keys, codec)
    # Forty keys recur a hundred times each in a sample, so all are hot unless two meet in a slot.
    assert hot.taken.size >= 30
    pool = thread_pool(2)
    sort_with_hot_keys(keys, out, hot, codec, pool, 2)
    assert np.array_equal(out, np.sort(keys))


def test_hot_keys_come_in_the_order_of_their_type():
    keys = np.resize(np.array([-5, 7, -1, 0], np.int32), 1 << 17)
    hot = hot_keys(raw(keys), codec_for(np.int32))
    assert hot.slots[hot.taken].view(np.int32).tolist() == [-5, -1, 0, 7]


def test_an_empty_slot_matches_no_key():
    keys = np.resize(np.array([0, 12345], np.uint64), 1 << 17)
    hot = hot_keys(keys, codec_for(np.uint64))
    for slot in set(range(hot.slots.size)) - set(hot.taken.tolist()):
        assert module._slot_of(hot.slots[slot : slot + 1])[0] != slot


def test_keys_that_do_not_recur_and_short_columns_have_no_hot_ones(make_keys):
    codec = codec_for(np.uint32)
    assert hot_keys(make_keys("uniform", 1 << 18, np.uint32), codec) is None
    assert hot_keys(np.zeros((1 << 17) - 1, np.uint32), codec) is None
    few = make_keys("uniform", 1 << 18, np.uint32)
    few[::4] = 5
    assert hot_keys(few, codec) is None
    few[::2] = 5
    assert hot_keys(few, codec) is not None


def test_of_two_keys_that_meet_in_a_slot_the_more_frequent_one_is_hot():
    slots = module._slot_of(np.arange(5000, dtype=np.uint64))
    rare, often = np.flatnonzero(slots == slots[1])[:2].astype(np.uint64)
    keys = np.where(np.random.default_rng(1).random(1 << 17) < 0.2, rare, often)
    hot = hot_keys(keys, codec_for(np.uint64))
    assert hot.slots[hot.taken].tolist() == [often]
