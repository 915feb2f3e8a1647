"""FractalSort gives numpy's order for every type and distribution, counts exactly and leaves its input alone."""

import subprocess
import sys
import tracemalloc

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.sorting import fractal_sort, hot_keys, paged_sort
from wavetank.kernels.sorting.fractal_sort import FractalSort, reference_sort, sort, sort_pairs
from wavetank.kernels.sorting.key_codec import decoded, encoded
from wavetank.machine import limits as machine
from wavetank.machine.thread_pool import thread_pool

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS)
NARROW = ("bool", "int8", "uint8", "int16", "uint16", "float16")
DISTRIBUTIONS = (
    "uniform", "zipf", "sorted", "reversed", "constant", "two-valued", "every value", "runs", "close together",
    "one hot", "late surprise",
)  # fmt: skip


def bits(keys):
    return keys.view(f"u{keys.itemsize}")


def by_numpy(keys):
    """Return numpy's stable sort: its default one misplaces float16 keys among NaNs (seen in numpy 2.4)."""
    return np.sort(keys, kind="stable")


def in_order(keys):
    """Return what is expected, bit for bit; codes are held against numpy's order in test_key_codec.py."""
    return decoded(np.sort(encoded(keys)), keys.dtype)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sorting_agrees_with_numpy(dtype, distribution, make_keys, small_parts):
    keys = make_keys(distribution, 40_001, dtype)
    before = keys.copy()
    expected = in_order(keys)
    np.testing.assert_array_equal(expected, by_numpy(keys))
    for fast_paths in (True, False):
        found = FractalSort(threads=2, fast_paths=fast_paths).sort(keys)
        assert found.dtype == keys.dtype
        assert np.array_equal(bits(found), bits(expected))
    assert np.array_equal(bits(keys), bits(before))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 1023, 1025])
def test_short_inputs_agree_with_numpy(dtype, n, make_keys):
    keys = make_keys("uniform", max(n, 1), dtype)[:n]
    found = sort(keys, threads=1)
    assert found.shape == (n,)
    assert np.array_equal(bits(found), bits(in_order(keys)))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "float64"])
@pytest.mark.parametrize("distribution", ["uniform", "zipf", "one hot"])
def test_the_result_does_not_depend_on_the_number_of_threads(dtype, distribution, make_keys, small_parts):
    for n in (33_333, 70_001):
        keys = make_keys(distribution, n, dtype)
        results = [FractalSort(threads=threads).sort(keys) for threads in (1, 2, 7)]
        pairs = [FractalSort(threads=threads).sort_pairs(keys)[1] for threads in (1, 2, 7)]
        assert np.array_equal(bits(results[0]), bits(in_order(keys)))
        for result, ids in zip(results, pairs, strict=True):
            assert np.array_equal(bits(result), bits(results[0]))
            assert np.array_equal(ids, pairs[0])


def test_long_arrays_are_sorted_with_the_thresholds_as_shipped(make_keys):
    for dtype in ("uint16", "uint32"):
        keys = make_keys("zipf", 700_001, dtype)
        assert np.array_equal(FractalSort(threads=2).sort(keys), np.sort(keys))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("distribution", ["uniform", "zipf", "constant"])
def test_the_histogram_counts_every_key_in_order(dtype, distribution, make_keys, small_parts):
    keys = make_keys(distribution, 40_003, dtype)
    counts = FractalSort(threads=3).histogram(keys)
    assert counts.sum() == keys.size
    assert np.array_equal(counts, np.bincount(encoded(keys), minlength=1 << 8 * keys.itemsize))


def test_the_histogram_of_signed_keys_begins_with_the_smallest():
    counts = FractalSort(threads=1).histogram(np.array([-128, 127, 127, -1], np.int8))
    assert [int(counts[place]) for place in (0, 127, 128, 255)] == [1, 1, 0, 2]


def test_the_histogram_of_nothing_is_all_zero():
    counts = FractalSort(threads=2).histogram(np.empty(0, np.uint16))
    assert counts.shape == (1 << 16,)
    assert not counts.any()


def test_wide_keys_have_no_dense_histogram():
    with pytest.raises(BadValueError, match="up to 16 bits only") as caught:
        FractalSort().histogram(np.zeros(3, np.int32))
    assert caught.value.given == "int32"


@pytest.mark.parametrize("counter_bits", [16, 32])
@pytest.mark.parametrize("times", [70_000, (1 << 17) + 3])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_counters_do_not_overflow(dtype, times, counter_bits):
    sorter = FractalSort(threads=1, counter_bits=counter_bits, fast_paths=False)
    keys = np.full(times + 2, 201, dtype)
    keys[0], keys[-1] = 7, 255
    counts = sorter.histogram(keys)
    assert {int(key): int(counts[key]) for key in np.flatnonzero(counts)} == {7: 1, 201: times, 255: 1}
    assert np.array_equal(sorter.sort(keys), np.sort(keys))


@pytest.mark.parametrize("counter_bits", [16, 32])
def test_counters_do_not_overflow_in_long_runs(counter_bits):
    keys = np.repeat(np.arange(9, dtype=np.uint16) * 7001, 70_000)
    found = FractalSort(threads=1, counter_bits=counter_bits).sort(keys[::-1])
    assert np.array_equal(found, keys)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1 << 8, 1 << 16])
@pytest.mark.parametrize("kept", [0, 70_000])
def test_a_block_in_which_a_counter_wraps_is_counted_again(rows, size, kept):
    keys = np.full(600_003 // 8 * 8 * 4, 77, np.uint8 if size == 256 else np.uint16)
    keys[:kept] = np.arange(kept)
    tables, totals = np.zeros((rows, size + 8), np.uint16), np.zeros(size, np.uint32)
    again = fractal_sort._count_part(keys.view(np.uint64), tables, 0xFFFF, totals)
    assert np.array_equal(totals, np.bincount(keys, minlength=size))
    assert again > 0
    assert not tables.any()


def test_counters_that_cannot_wrap_are_counted_once_and_words_beyond_the_quarters_too():
    keys = np.tile(np.array([5, 5, 9, 65_535], np.uint16), 10_003)
    tables, totals = np.zeros((4, 1 << 16), np.uint32), np.zeros(1 << 16, np.uint32)
    assert fractal_sort._count_part(keys.view(np.uint64), tables, (1 << 32) - 1, totals) == 0
    assert (totals[5], totals[9], totals[65_535], totals.sum()) == (20_006, 10_003, 10_003, keys.size)


def test_keys_that_turn_from_spread_to_equal_are_counted_exactly():
    spread = np.random.default_rng(4).permutation(np.arange(1 << 16, dtype=np.uint16))
    keys = np.concatenate((np.tile(spread, 20), np.full(1_500_000, 40_000, np.uint16)))
    for counter_bits in (16, 32, None):
        found = FractalSort(threads=1, counter_bits=counter_bits, fast_paths=False).histogram(keys)
        assert np.array_equal(found, np.bincount(keys, minlength=1 << 16))


@pytest.mark.parametrize("fast_paths", [True, False])
@pytest.mark.parametrize("counter_bits", [16, 32, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_more_scratch_is_taken_than_reported(dtype, counter_bits, fast_paths, make_keys):
    sorter = FractalSort(threads=2, counter_bits=counter_bits, fast_paths=fast_paths)
    for n in (900, 150_001):
        keys = make_keys("uniform", n, dtype)
        sorter.sort(keys)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        result = sorter.sort(keys)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        assert result.nbytes <= peak <= result.nbytes + sorter.scratch_bytes(n, dtype)


def test_scratch_for_narrow_keys_does_not_grow_with_their_number():
    sorter = FractalSort(threads=3)
    assert sorter.scratch_bytes(10, np.uint16) == sorter.scratch_bytes(10**10, np.uint16) < 10 << 20
    assert sorter.scratch_bytes(10, np.uint8) < 1 << 18


def test_scratch_for_wide_keys_is_bounded_by_a_copy_and_a_part_for_every_thread():
    for dtype in (np.uint32, np.int64):
        scratch = [FractalSort(threads=2).scratch_bytes(n, dtype) for n in (0, 10**9, 3 * 10**9)]
        assert scratch[2] - scratch[1] == 2 * 10**9 * np.dtype(dtype).itemsize
        assert scratch[0] < 10 << 20
        assert scratch[1] - 10**9 * np.dtype(dtype).itemsize < 20 << 20


def test_wider_counters_take_more_scratch():
    sizes = [FractalSort(threads=1, counter_bits=width).scratch_bytes(1, np.uint16) for width in (16, 32, None)]
    assert sizes[0] < sizes[1] == sizes[2]


def test_bytes_moved_are_a_read_and_a_write_up_to_16_bits_and_three_of_each_beyond():
    assert FractalSort().bytes_moved(1000, np.uint8) == 2000
    assert FractalSort().bytes_moved(1000, np.int16) == 4000
    assert FractalSort().bytes_moved(1000, np.uint32) == 24_000


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [9, 90_000])
def test_floats_keep_minus_zero_and_infinities_and_put_nans_last(dtype, n):
    keys = np.resize(np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1.5, -1.5, -np.nan, 0.0], dtype), n)
    for fast_paths in (True, False):
        found = FractalSort(threads=1, fast_paths=fast_paths).sort(keys)
        each = n // 9
        assert np.isneginf(found[:each]).all()
        assert (found[each : 2 * each] == -1.5).all()
        zeros = found[2 * each : 5 * each]
        assert (zeros == 0).all()
        assert np.signbit(zeros).tolist() == [True] * each + [False] * 2 * each
        assert (found[5 * each : 6 * each] == 1.5).all()
        assert np.isposinf(found[6 * each : 7 * each]).all()
        assert np.isnan(found[7 * each :]).all()
        assert np.array_equal(np.sort(bits(found)), np.sort(bits(keys)))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_are_sorted_stably(dtype, distribution, make_keys, small_parts):
    keys = make_keys(distribution, 20_001, dtype)
    order = np.argsort(keys, kind="stable")
    for fast_paths in (True, False):
        found, ids = FractalSort(threads=2, fast_paths=fast_paths).sort_pairs(keys)
        assert ids.dtype == np.int64
        assert np.array_equal(ids, order)
        assert np.array_equal(bits(found), bits(keys[order]))


@pytest.mark.parametrize("dtype", ["uint16", "float64"])
@pytest.mark.parametrize("fast_paths", [True, False])
def test_pairs_with_a_key_that_fills_a_page_too_large_for_the_cache_are_sorted(dtype, fast_paths):
    keys = np.resize(np.array([5, 3], dtype), 1_200_001)
    ids = FractalSort(threads=2, fast_paths=fast_paths).sort_pairs(keys)[1]
    assert np.array_equal(ids, np.concatenate((np.arange(1, keys.size, 2), np.arange(0, keys.size, 2))))


def test_row_ids_of_the_callers_travel_with_their_keys():
    found, ids = sort_pairs([3, -1, 3, 2], [10, 20, 30, 40])
    assert found.tolist() == [-1, 2, 3, 3]
    assert ids.tolist() == [20, 40, 10, 30]


def test_row_ids_and_keys_given_for_pairs_are_not_modified(make_keys):
    for keys in (make_keys("zipf", 5000, np.int32), make_keys("sorted", 5000, np.int32)):
        ids = np.arange(5000)[::-1].copy()
        given_keys, given_ids = keys.copy(), ids.copy()
        found, moved = FractalSort(threads=1).sort_pairs(keys, ids)
        found[:], moved[:] = 0, 0
        assert np.array_equal(keys, given_keys)
        assert np.array_equal(ids, given_ids)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_pairs_of_nothing_are_nothing(dtype):
    found, ids = sort_pairs(np.empty(0, dtype))
    assert (found.dtype, found.size, ids.dtype, ids.size) == (np.dtype(dtype), 0, np.int64, 0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float64"])
@pytest.mark.parametrize("distribution", ["uniform", "reversed", "two-valued"])
def test_the_output_may_be_given_and_may_take_the_inputs_place(dtype, distribution, make_keys, small_parts):
    keys = make_keys(distribution, 40_001, dtype)
    expected = in_order(keys)
    elsewhere = np.empty_like(keys)
    assert sort(keys, threads=2, out=elsewhere) is elsewhere
    assert np.array_equal(bits(elsewhere), bits(expected))
    assert sort(keys, threads=2, out=keys) is keys
    assert np.array_equal(bits(keys), bits(expected))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_the_output_may_overlap_the_input(dtype, make_keys, small_parts):
    room = make_keys("uniform", 40_002, dtype)
    expected = np.sort(room[:-1])
    sort(room[:-1], threads=2, out=room[1:])
    assert np.array_equal(room[1:], expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_scattered_and_reversed_views_are_sorted_and_left_alone(dtype, make_keys):
    room = make_keys("uniform", 100_001, dtype)
    before = room.copy()
    for keys in (room[::2], room[::-1], room[3:-5]):
        assert np.array_equal(sort(keys, threads=1), np.sort(keys))
        assert np.array_equal(sort_pairs(keys, threads=1)[1], np.argsort(keys, kind="stable"))
    assert np.array_equal(room, before)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_keys_that_must_not_be_written_are_sorted(dtype, make_keys):
    keys = make_keys("uniform", 40_001, dtype)
    keys.flags.writeable = False
    found = sort(keys, threads=1)
    assert np.array_equal(found, np.sort(keys))
    assert found.flags.writeable


def test_keys_off_the_boundaries_of_their_type_are_sorted():
    room = np.random.default_rng(3).integers(0, 256, 100_001, np.uint8)
    keys = room[1:].view(np.uint16)
    assert not keys.flags.aligned
    assert np.array_equal(sort(keys, threads=1), np.sort(keys))
    assert np.array_equal(sort_pairs(keys, threads=1)[1], np.argsort(keys, kind="stable"))
    assert np.array_equal(FractalSort(threads=1).histogram(keys), np.bincount(keys, minlength=1 << 16))


def test_plain_lists_are_sorted():
    assert sort([3, 1, 2]).tolist() == [1, 2, 3]
    assert sort([0.5, -0.5]).tolist() == [-0.5, 0.5]


def test_the_prepared_call_sorts_and_can_be_repeated():
    keys = np.array([3, 1, 2], np.uint16)
    call = FractalSort(threads=1).prepare(keys)
    first, second = call(), call()
    assert first.tolist() == second.tolist() == [1, 2, 3]
    assert not np.shares_memory(first, second)


any_keys = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 60)))


@given(any_keys, st.sampled_from([1, 3]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_sort_and_reference_agree_on_any_keys(keys, threads, fast_paths):
    sorter = FractalSort(threads=threads, fast_paths=fast_paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fractal_sort, "_KEYS_WORTH_A_TABLE", {1: 1, 2: 1})
        found = sorter.sort(keys)
    assert np.array_equal(bits(found), bits(reference_sort(keys)))
    np.testing.assert_array_equal(found, by_numpy(keys))
    assert np.array_equal(sorter.sort_pairs(keys)[1], np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_agrees_with_numpy_on_pages_of_any_length(dtype, make_keys):
    for distribution in ("uniform", "one hot", "close together"):
        keys = make_keys(distribution, 5000, dtype)
        np.testing.assert_array_equal(reference_sort(keys), by_numpy(keys))


@pytest.mark.parametrize(
    ("keys", "problem", "told"),
    [
        (np.array([1, "a"], object), "cannot be sorted by counting", "object"),
        (np.array([1j]), "cannot be sorted by counting", "complex128"),
        (np.array(["a", "b"]), "cannot be sorted by counting", "<U1"),
        (np.array(["2026-01-01"], "M8[D]"), "cannot be sorted by counting", "datetime64[D]"),
        (np.zeros((2, 3)), "sorted as a vector", "an array of shape (2, 3)"),
        (np.float64(1.0), "sorted as a vector", "an array of shape ()"),
        (np.zeros(3, np.dtype(np.int32).newbyteorder("S")), "foreign byte order", None),
    ],
    ids=["object", "complex", "strings", "dates", "two dimensions", "a number", "byte order"],
)
def test_what_cannot_be_sorted_is_refused(keys, problem, told):
    for call in (sort, sort_pairs, FractalSort().histogram):
        with pytest.raises(BadValueError, match=problem) as caught:
            call(keys)
        assert caught.value.hint
        assert caught.value.given == (told or keys.dtype.str)


def test_longer_floats_than_8_bytes_are_refused():
    keys = np.zeros(2, np.longdouble)
    if keys.itemsize <= 8:
        pytest.skip("this machine has no longer floats")
    with pytest.raises(BadValueError, match="cannot be sorted by counting"):
        sort(keys)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_less_than_one_thread_is_refused(threads):
    with pytest.raises(BadValueError, match="number of threads, at least one") as caught:
        sort([1], threads=threads)
    assert (caught.value.given, caught.value.where) == (threads, "FractalSort.threads")


def test_counters_of_unknown_width_are_refused():
    with pytest.raises(BadValueError, match="no counters of this width") as caught:
        FractalSort(counter_bits=12)
    assert caught.value.allowed == "16, 32, or None to choose by the keys"


def _fixed(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ([0, 0, 0, 0], "list"),
        (np.zeros(3, np.uint16), "uint16 of shape (3,)"),
        (np.zeros(4, np.int16), "int16 of shape (4,)"),
        (np.zeros(8, np.uint16)[::2], "uint16 of shape (4,)"),
        (_fixed(np.zeros(4, np.uint16)), "uint16 of shape (4,)"),
        (np.zeros(9, np.uint8)[1:].view(np.uint16), "uint16 of shape (4,)"),
    ],
    ids=["a list", "too short", "another type", "scattered", "read-only", "off its boundaries"],
)
def test_an_output_that_does_not_fit_is_refused(out, told):
    with pytest.raises(BadValueError, match="output array does not fit") as caught:
        sort(np.array([4, 3, 2, 1], np.uint16), out=out)
    assert caught.value.given == told


@pytest.mark.parametrize("row_ids", [[1, 2], [[1, 2, 3]], [1.0, 2.0, 3.0], 5], ids=["short", "2-D", "floats", "number"])
def test_row_ids_that_do_not_go_with_the_keys_are_refused(row_ids):
    with pytest.raises(BadValueError, match="do not go with the keys") as caught:
        sort_pairs([3, 2, 1], row_ids)
    assert caught.value.allowed == "integers of shape (3,), each below 2^63"


def test_row_ids_that_do_not_fit_are_refused_and_none_go_with_no_keys():
    with pytest.raises(BadValueError, match="do not go with the keys") as caught:
        sort_pairs([2, 1], np.array([1, 1 << 63], np.uint64))
    assert caught.value.given == "uint64 of shape (2,), values of 2^63 and more"
    assert sort_pairs([2, 1], np.array([1, (1 << 63) - 1], np.uint64))[1].tolist() == [(1 << 63) - 1, 1]
    keys, ids = sort_pairs([], [])
    assert (keys.size, ids.size, ids.dtype) == (0, 0, np.int64)


@pytest.mark.parametrize("call", [sort, sort_pairs, FractalSort().histogram])
@pytest.mark.parametrize("keys", [[[1, 2], [3]], ["1", 2, [3]]], ids=["ragged", "mixed"])
def test_lists_that_are_no_array_are_refused(call, keys):
    with pytest.raises(BadValueError, match="cannot be seen as an array"):
        call(keys)


def test_masked_keys_are_refused_and_a_mask_that_hides_nothing_is_not():
    hidden = np.ma.array([3, 1, 2], mask=[False, True, False])
    for call in (sort, sort_pairs, lambda given: sort_pairs([1, 2, 3], given)):
        with pytest.raises(BadValueError, match="Masked values cannot be computed with") as caught:
            call(hidden)
        assert caught.value.given == "1 masked of 3"
    assert sort(np.ma.array([3, 1, 2], mask=False)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fast_paths", [True, False])
def test_pairs_keep_the_bits_of_zeros_and_nans_in_the_order_given(dtype, fast_paths):
    rng = np.random.default_rng(8)
    keys = rng.choice(np.array([-2, -0.0, 0.0, 3, np.inf, -np.inf, np.nan, -np.nan], dtype), 5001)
    ids = rng.permutation(keys.size) + 7
    found, moved = FractalSort(threads=2, fast_paths=fast_paths).sort_pairs(keys, ids)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(bits(found), bits(keys[order]))
    assert np.array_equal(moved, ids[order])


def test_tensors_of_a_subclass_are_tensors():
    torch = pytest.importorskip("torch")

    class Column(torch.Tensor):
        pass

    found = sort(torch.tensor([2.0, 1.0]).as_subclass(Column))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [1.0, 2.0]


def test_columns_of_a_few_keys_are_counted_in_eight_tables(monkeypatch):
    monkeypatch.setattr(fractal_sort, "_KEYS_WORTH_MANY_TABLES", 1)
    for dtype in (np.uint8, np.uint16):
        keys = np.random.default_rng(3).choice(np.array([3, 77, 200], dtype), 300_007)
        for counter_bits in (16, 32, None):
            sorter = FractalSort(threads=2, counter_bits=counter_bits, fast_paths=False)
            assert np.array_equal(sorter.histogram(keys), np.bincount(keys, minlength=1 << 8 * keys.itemsize))
            assert np.array_equal(sorter.sort(keys), np.sort(keys))


def test_a_sort_that_does_not_fit_into_memory_is_refused_before_it_begins(monkeypatch):
    keys = np.zeros(3_000_000, np.uint64)
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 23)
    for call in (sort, sort_pairs, lambda given: sort(given, out=given), lambda given: sort(given[::2])):
        with pytest.raises(BadValueError, match="needs more memory than is available"):
            call(keys)
    assert sort(keys[:1000]).size == 1000


def test_scattered_keys_and_keys_in_place_are_charged_for_their_copy(monkeypatch):
    asked = []
    monkeypatch.setattr(fractal_sort, "require_memory", lambda need, purpose, hint: asked.append(need))
    keys = np.arange(4000, dtype=np.uint32)
    sorter = FractalSort(threads=1)
    for given_keys, out in ((keys[:2000], np.empty(2000, np.uint32)), (keys[:2000], keys[:2000]), (keys[:2000], None)):
        sorter.sort(given_keys, out=out)
    sorter.sort(keys[::2])
    scratch = sorter.scratch_bytes(2000, np.uint32)
    assert [need - scratch for need in asked] == [0, 8000, 8000, 16000]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_a_tensor_is_sorted_to_a_tensor(dtype, make_keys):
    torch = pytest.importorskip("torch")
    keys = make_keys("uniform", 3001, dtype)
    tensor = torch.from_numpy(keys.copy())
    found, ids = sort_pairs(tensor)
    for result in (sort(tensor), found):
        assert isinstance(result, torch.Tensor)
        assert result.dtype == tensor.dtype
        np.testing.assert_array_equal(result.numpy(), by_numpy(keys))
    assert np.array_equal(ids.numpy(), np.argsort(keys, kind="stable"))
    assert np.array_equal(bits(tensor.numpy()), bits(keys))


def test_a_tensor_may_be_the_output_and_tensors_of_row_ids_travel():
    torch = pytest.importorskip("torch")
    keys = torch.tensor([3, 1, 2, 1], dtype=torch.int16)
    out = torch.empty_like(keys)
    assert sort(keys, out=out) is out
    assert out.tolist() == [1, 1, 2, 3]
    assert sort_pairs(keys, torch.tensor([7, 8, 9, 10]))[1].tolist() == [8, 10, 9, 7]
    assert sort_pairs([2, 1], torch.tensor([7, 8]))[1].tolist() == [8, 7]
    with torch.no_grad():
        assert sort(torch.tensor([2.0, 1.0], requires_grad=True)).tolist() == [1.0, 2.0]
    assert sort(torch.arange(8)[::2]).tolist() == [0, 2, 4, 6]
    assert FractalSort().histogram(torch.tensor([1, 1], dtype=torch.uint8))[1] == 2


def test_tensors_that_numpy_cannot_see_are_refused():
    torch = pytest.importorskip("torch")
    for tensor, told in (
        (torch.zeros(3, dtype=torch.bfloat16), "torch.bfloat16, strided"),
        (torch.zeros(3, device="meta"), "meta"),
        (torch.zeros(3).to_sparse(), "torch.float32, sparse_coo"),
    ):
        for call in (sort, sort_pairs, FractalSort().histogram, lambda given: sort_pairs([1, 2, 3], given)):
            with pytest.raises(BadValueError, match=r"cannot be seen as an array|not in main memory") as caught:
                call(tensor)
            assert caught.value.given == told


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
@pytest.mark.parametrize("repeats", [1, 7, 9000])
def test_falling_pairs_are_turned_with_equal_keys_in_the_order_given(dtype, repeats, small_parts):
    keys = np.repeat(np.arange(-20_000 // repeats, 20_000 // repeats)[::-1], repeats).astype(dtype)
    for ids in (None, np.arange(keys.size) * 3):
        found, moved = FractalSort(threads=3).sort_pairs(keys, ids)
        order = np.argsort(keys, kind="stable")
        assert np.array_equal(found, keys[order])
        assert np.array_equal(moved, order if ids is None else ids[order])


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize(("first", "second"), [(3, 3), (0, 1), (1, 0x80), (0x7F, 0xFF), (0, 0xFF), (0xAA, 0x55)])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_one_or_two_keys_are_counted_word_by_word(bits, first, second, skip):
    dtype = np.dtype(f"uint{bits}")
    pair = np.array([first, second], dtype) * dtype.type(1 if bits == 8 else 257 if bits == 16 else 65537)
    keys = pair[np.random.default_rng(bits).integers(0, 2, 40_009)][skip:]
    distinct = np.unique(pair)
    pool = thread_pool(1)
    found = fractal_sort._count_two(keys, distinct, pool, 2)
    assert np.array_equal(found, [np.count_nonzero(keys == key) for key in distinct])
    for place in (0, 17, 20_000, keys.size - 1):
        other = keys.copy()
        other[place] ^= dtype.type(1 << (bits - 2))
        if other[place] not in distinct:
            assert fractal_sort._count_two(other, distinct, pool, 2) is None


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "sorted", "reversed", "constant", "two-valued", "one hot"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float64])
@pytest.mark.parametrize("fast_paths", [True, False])
def test_no_call_handles_more_keys_than_an_interrupt_may_wait_for(
    dtype, distribution, fast_paths, make_keys, monkeypatch, small_parts
):
    limit, seen = 20_000, []
    monkeypatch.setattr(paged_sort, "_KEYS_OF_A_CALL", limit)
    monkeypatch.setattr(fractal_sort, "_KEYS_WORTH_A_TABLE", {1: 1, 2: 1})

    def recording(threads):
        pool = thread_pool(threads)

        def run(function, calls):
            listed = list(calls)
            for call in listed:
                if function is paged_sort.expand:
                    seen.append(call[4] - call[3])
                elif function is hot_keys._weave:
                    seen.append(call[6] - call[5])
                elif function is paged_sort._sort_pages:
                    seen.append(0)
                else:
                    seen.append(next(each for each in call if isinstance(each, np.ndarray)).size - 1)
            return pool(function, listed)

        return run

    monkeypatch.setattr(fractal_sort, "thread_pool", recording)
    keys = make_keys(distribution, 150_000, dtype)
    sorter = FractalSort(threads=2, fast_paths=fast_paths)
    np.testing.assert_array_equal(sorter.sort(keys), by_numpy(keys))
    assert max(seen) <= limit
    assert np.array_equal(sorter.sort_pairs(keys)[1], np.argsort(keys, kind="stable"))
    assert max(seen) <= limit


INTERRUPTED = """
import signal, threading, time
import numpy as np
from wavetank.kernels.sorting.fractal_sort import FractalSort
sorter = FractalSort(threads=THREADS, fast_paths=False)
small = np.random.default_rng(0).integers(0, 2**63, 300_000, dtype=np.uint64)
sorter.sort(small)
large = np.resize(small * np.uint64(0x9E3779B97F4A7C15), 60_000_000)
threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    while True:
        sorter.sort(large)
except KeyboardInterrupt:
    used = time.process_time()
    time.sleep(0.5)
    print(time.process_time() - used, np.array_equal(sorter.sort(small), np.sort(small)))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_after_an_interrupt_nothing_works_on_and_the_next_sort_is_right(threads):
    script = INTERRUPTED.replace("THREADS", str(threads))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    idle, right = ended.stdout.split()
    assert float(idle) < 0.1
    assert right == "True"
