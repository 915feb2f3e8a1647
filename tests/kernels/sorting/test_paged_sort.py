"""Pages: one partition of memory and the parts it is made of."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.sorting import paged_sort
from wavetank.kernels.sorting.key_codec import codec_for, decoded, encoded, identity
from wavetank.kernels.sorting.paged_sort import (
    WORD_COPIES,
    copy_if_falling,
    copy_if_rising,
    expand,
    sample_of,
    sort_wide,
    wide_scratch_bytes,
)
from wavetank.machine.thread_pool import thread_pool

PLAIN = identity(codec_for(np.uint32))


def sorted_by_pages(keys, threads, ids=None):
    raw = keys.view(f"u{keys.itemsize}")
    out = np.empty_like(raw)
    out_ids = None if ids is None else np.empty_like(ids)
    pool = thread_pool(threads)
    sort_wide(raw, out, codec_for(keys.dtype), pool, threads, ids, out_ids)
    return out.view(keys.dtype), out_ids


@pytest.mark.parametrize("dtype", ["uint32", "int64", "float64"])
@pytest.mark.parametrize(
    "distribution", ["uniform", "zipf", "sorted", "reversed", "constant", "two-valued", "close together", "one hot"]
)
def test_pages_of_any_filling_are_sorted(dtype, distribution, make_keys, small_parts):
    keys = make_keys(distribution, 30_001, dtype)
    for threads in (1, 3):
        found, _ = sorted_by_pages(keys, threads)
        assert np.array_equal(encoded(found), np.sort(encoded(keys)))


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "constant", "two-valued", "one hot", "reversed"])
def test_ids_stay_with_their_keys_in_the_order_given(distribution, make_keys, small_parts):
    keys = make_keys(distribution, 30_001, np.uint32)
    ids = np.arange(keys.size)[::-1].copy()
    found, moved = sorted_by_pages(keys, 2, ids)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(found, keys[order])
    assert np.array_equal(moved, ids[order])


@pytest.mark.parametrize("levels", [1, 3])
def test_pages_within_pages_are_partitioned_again(levels, small_parts):
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 1 << 12, 20_000).astype(np.uint64)
    for level in range(levels):
        keys[level] = np.uint64(1) << np.uint64(20 * (level + 1))
    found, ids = sorted_by_pages(keys, 2, np.arange(keys.size))
    assert np.array_equal(found, np.sort(keys))
    assert np.array_equal(ids, np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("distance", [1 << 16, (1 << 32) - 1])
def test_a_single_key_far_from_all_others_is_sorted(distance, small_parts):
    keys = np.full(20_000, 0, np.uint32)
    keys[123] = distance
    found, ids = sorted_by_pages(keys, 1, np.arange(keys.size))
    assert (found[-1], ids[-1], int(found[:-1].max())) == (distance, 123, 0)
    assert np.array_equal(ids[:-1], np.delete(np.arange(20_000), 123))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_parts_of_an_expansion_fit_together_and_touch_nothing_else(dtype):
    values = np.array([9, 2, 200, 7, 50], dtype)
    counts = np.array([3, 0, 1500, 0, 700])
    ends = counts.cumsum(dtype=np.uint64)
    expected = np.repeat(values, counts)
    for cut in (0, 2, 3, 777, 1503, 2203):
        room = np.full(2203 + 16, 111, dtype)
        out = room[8:-8]
        expand(out, values, ends, cut, 2203, WORD_COPIES[out.itemsize])
        assert (room[: 8 + cut] == 111).all()
        expand(out, values, ends, 0, cut, WORD_COPIES[out.itemsize])
        assert np.array_equal(out, expected)
        assert (room[-8:] == 111).all()


@pytest.mark.parametrize(
    ("keys", "rises", "falls"),
    [
        ([1, 2, 2, 9], True, False),
        ([9, 2, 2, 1], False, True),
        ([4, 4, 4], True, True),
        ([4], True, True),
        ([1, 3, 2], False, False),
    ],
)
def test_keys_in_order_are_copied_and_others_told(keys, rises, falls):
    keys = np.array(keys, np.uint32)
    out = np.zeros_like(keys)
    pool = thread_pool(1)
    assert copy_if_rising(keys, out, PLAIN, pool, 1) == rises
    assert not rises or np.array_equal(out, keys)
    assert copy_if_falling(keys, out, PLAIN, pool, 1) == falls
    assert not falls or np.array_equal(out, keys[::-1])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 10_007])
def test_copies_by_parts_and_blocks_are_whole(threads, n, small_parts):
    keys = np.sort(np.random.default_rng(n).integers(0, n, n, dtype=np.uint64))
    pool = thread_pool(threads)
    out = np.zeros_like(keys)
    assert copy_if_rising(keys, out, codec_for(np.uint64), pool, threads)
    assert np.array_equal(out, keys)
    out[:] = 0
    assert copy_if_falling(keys[::-1].copy(), out, codec_for(np.uint64), pool, threads)
    assert np.array_equal(out, keys)


@pytest.mark.parametrize("at", [1, 2047, 2048, 2049, 4999, 5000, 5001, 9999])
def test_one_step_the_other_way_is_seen_in_a_block_and_between_parts_and_blocks(at, small_parts):
    keys = np.arange(10_000, dtype=np.uint32) + 1
    keys[at] = 0
    for threads in (1, 2):
        pool = thread_pool(threads)
        assert not copy_if_rising(keys, np.empty_like(keys), PLAIN, pool, threads)
        assert not copy_if_falling((20_000 - keys), np.empty_like(keys), PLAIN, pool, threads)


def test_a_step_between_the_parts_of_two_threads_is_seen(small_parts):
    keys = np.concatenate((np.arange(500, 1000), np.arange(500))).astype(np.uint32)
    pool = thread_pool(2)
    assert not copy_if_rising(keys, np.empty_like(keys), PLAIN, pool, 2)
    assert not copy_if_falling(keys[::-1].copy(), np.empty_like(keys), PLAIN, pool, 2)


def test_signed_keys_rise_by_their_values():
    keys = np.array([-5, -1, 0, 7], np.int32)
    out = np.empty(4, np.uint32)
    pool = thread_pool(1)
    assert copy_if_rising(keys.view(np.uint32), out, codec_for(np.int32), pool, 1)
    assert out.view(np.int32).tolist() == [-5, -1, 0, 7]


@pytest.mark.parametrize("n", [60, 100, 127, 2000, 3000, 4095])
@pytest.mark.parametrize("with_ids", [False, True])
def test_pages_of_keys_that_differ_only_far_below_their_leading_bits_are_sorted(n, with_ids):
    # Their lowest digits are sorted last by a shift close to the width of a word.
    for far in (60, 61, 62):
        keys = np.random.default_rng(n).integers(0, 1 << 40, n, dtype=np.uint64)
        keys[3] = np.uint64(1) << np.uint64(far)
        ids = np.arange(n) if with_ids else None
        found, moved = sorted_by_pages(keys, 1, ids)
        assert np.array_equal(found, np.sort(keys))
        assert moved is None or np.array_equal(moved, np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_page_for_every_key_and_lines_of_our_own_give_the_same(with_ids, monkeypatch, make_keys):
    keys = make_keys("uniform", 60_001, np.uint64)
    ids = np.arange(keys.size) if with_ids else None
    few = sorted_by_pages(keys, 3, ids)
    monkeypatch.setattr(paged_sort, "_FEW_PAGES", 0)
    many = sorted_by_pages(keys, 3, ids)
    assert np.array_equal(few[0], many[0])
    assert np.array_equal(few[0], np.sort(keys))
    assert not with_ids or np.array_equal(few[1], many[1])


def test_pages_in_pages_take_turns_with_one_copy(monkeypatch):
    monkeypatch.setattr(paged_sort, "_LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(paged_sort, "PAGE_BYTES", 1 << 14)
    # Nearly all keys lie in one page, and of that page in one page again.
    keys = np.random.default_rng(1).integers(0, 1 << 17, 1_000_000, dtype=np.uint64)
    for level, far in enumerate((62, 45, 29)):
        keys[level::1000] = np.uint64(1) << np.uint64(far)
    sorted_by_pages(keys, 1)
    tracemalloc.start()
    found, _ = sorted_by_pages(keys, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, np.sort(keys))
    # The result, one copy, and tables of prefixes and counters.
    assert peak < 2 * keys.nbytes + (7 << 20)


def test_insertion_that_gives_up_loses_no_key():
    page = np.arange(200, dtype=np.uint32)[::-1].copy()
    ids = np.arange(200)
    assert not paged_sort._insert(page, ids, 50)
    assert np.array_equal(np.sort(page), np.arange(200))
    assert np.array_equal(page + ids, np.full(200, 199))
    assert paged_sort._insert(page, ids, 200 * 200)
    assert np.array_equal(page, np.arange(200))


@pytest.mark.parametrize(
    "page",
    [
        np.arange(24)[::-1],
        np.full(300, 5),
        np.arange(1000) % 77,
        (np.arange(1000) * 7919) % 65_521,
        (np.arange(5000) * 2_654_435_761) % (1 << 32),
        np.concatenate((np.arange(3000)[::-1], [1 << 31])),
    ],
    ids=["short", "equal", "dense", "two passes", "leading bits", "crowded leading bits"],
)
@pytest.mark.parametrize("with_ids", [False, True])
def test_a_page_of_any_kind_is_sorted_in_cache(page, with_ids):
    page = page.astype(np.uint32)
    expected, order = np.sort(page), np.argsort(page, kind="stable")
    ids, spare_ids = (np.arange(page.size), np.empty(page.size, np.int64)) if with_ids else (None, None)
    paged_sort._sort_page(page, ids, np.empty_like(page), spare_ids, np.empty(1 << 16, np.uint32))
    assert np.array_equal(page, expected)
    if with_ids:
        assert np.array_equal(ids, order)


def test_codes_of_pages_become_keys_again():
    keys = np.random.default_rng(2).integers(-100, 100, 5000).astype(np.int32)
    found, _ = sorted_by_pages(keys, 1)
    assert np.array_equal(found, np.sort(keys))
    assert np.array_equal(decoded(encoded(found), np.int32), found)


def test_scratch_is_a_copy_and_a_fixed_part_for_every_thread():
    many = 2 * 10**6
    assert wide_scratch_bytes(2 * many, 4, 2) - wide_scratch_bytes(many, 4, 2) == 4 * many
    assert wide_scratch_bytes(2 * many, 4, 2, 8) - wide_scratch_bytes(many, 4, 2, 8) == 12 * many
    assert wide_scratch_bytes(0, 8, 4) > wide_scratch_bytes(0, 8, 1)


def test_lines_of_pages_begin_at_lines_of_the_cache():
    for buckets in (1, 5, 4096):
        lines = paged_sort._line_per_page(buckets, np.dtype(np.uint32))
        assert lines.ctypes.data % 64 == 0
        assert lines.nbytes == 64 * buckets


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("spread", [1, 1000, 1 << 20, 1 << 31])
def test_keys_of_any_spread_are_sorted_with_the_thresholds_as_shipped(dtype, spread):
    keys = np.random.default_rng(spread).integers(0, spread, 300_001, dtype=dtype)
    assert np.array_equal(sorted_by_pages(keys, 2)[0], np.sort(keys))


def test_a_page_that_holds_nearly_all_keys_is_split_again_with_the_thresholds_as_shipped():
    rng = np.random.default_rng(0)
    keys = np.concatenate([rng.integers(0, 1 << 16, 2_000_000), rng.integers(0, 1 << 62, 100)]).astype(np.uint64)
    assert np.array_equal(sorted_by_pages(keys, 2)[0], np.sort(keys))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), st.integers(1, 200))
def test_pages_are_runs_of_prefixes_no_fuller_than_twice_the_goal_unless_one_prefix_is(sizes, wanted):
    sizes = np.array(sizes)
    first, page_of = paged_sort._pages(sizes, wanted)
    assert first[0] == 0
    assert np.array_equal(page_of, np.searchsorted(first, np.arange(sizes.size), side="right") - 1)
    for page in range(first.size):
        inside = sizes[page_of == page]
        assert inside.sum() < 2 * wanted or (inside > 0).sum() == 1


def test_uneven_keys_get_a_full_table_of_prefixes_and_even_ones_no_more_than_pages():
    rng = np.random.default_rng(3)
    codec, n = codec_for(np.uint32), 1 << 20
    even = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    shift, each_a_page = paged_sort._prefix_shift(even, codec, np.uint64(0), (1 << 32) - 1)
    assert (32 - int(shift), each_a_page) == ((even.nbytes // paged_sort.PAGE_BYTES).bit_length(), True)
    uneven = even >> rng.integers(0, 32, n, dtype=np.uint32)
    shift, each_a_page = paged_sort._prefix_shift(uneven, codec, np.uint64(0), (1 << 32) - 1)
    assert (32 - int(shift), each_a_page) == (16, False)


@pytest.mark.parametrize("period", [2, 4, 8, 1000, 4096])
def test_a_sample_meets_no_period_of_the_keys(period):
    keys = np.resize(np.arange(period), 1 << 18)
    sample = sample_of(keys, 4096)
    assert sample.shape == (4096,)
    assert np.bincount(sample * 2 // period) == pytest.approx([2048, 2048], rel=0.1)


def test_a_sample_of_a_short_array_is_all_of_it():
    keys = np.arange(7)
    assert np.array_equal(sample_of(keys, 7), keys)


@pytest.mark.parametrize("at", [1, 3, 4, 7, 8])
def test_a_run_ends_where_the_key_changes(at):
    keys = np.array([9, 9, 9, 5, 5, 5, 5, 2], np.uint32)
    assert paged_sort._run_end(keys, at) == {1: 3, 3: 3, 4: 7, 7: 7, 8: 8}[at]
