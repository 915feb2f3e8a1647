"""Sums of integers: exact, within ranks times the bound whatever the data, the same in every order of ranks."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.compression.frames import RAW, BadFrameError, Speeds, encode_frame
from wavetank.training.compression.interface import Task, Work
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.quantise import quantised, step_of
from wavetank.training.compression.ring import play

SLOW = Speeds(link_bytes_per_s=1e6)


def smooth(size, shape, seed=0):
    draws = np.random.default_rng(seed)
    return [np.cumsum(draws.normal(size=shape), axis=-1).astype(np.float32).reshape(-1) for _ in range(size)]


def held_to_the_bound(played, given, bound):
    exact = np.sum(given, axis=0, dtype=np.float64)
    for each in played.sums:
        assert np.all(np.abs(each - exact) <= len(given) * bound + np.spacing(np.abs(each)) / 2)
        assert np.array_equal(each, played.sums[0])


@pytest.mark.parametrize("mode", ["chosen", "raw", "fixed", "rans", "blocks"])
@pytest.mark.parametrize("predictor", ["differences", "none"])
@pytest.mark.parametrize(
    ("size", "shape"), [(1, (3, 4)), (2, (7,)), (3, (2, 5, 9)), (5, (3,)), (4, (0,)), (8, (40, 50))]
)
def test_sums_are_those_of_the_integers_and_within_the_bound(mode, predictor, size, shape):
    given, bound = smooth(size, shape), 0.01
    task = Task(size=size, shape=shape, bound=bound, speeds=SLOW)
    played = play(Ncclz(mode=mode, predictor=predictor), given, task)
    held_to_the_bound(played, given, bound)
    whole = sum((quantised(each, bound).astype(np.int64) for each in given), np.zeros(task.count, np.int64))
    assert np.array_equal(played.sums[0], (whole * step_of(bound)).astype(np.float32))


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 6), count=st.integers(1, 40), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**32 - 1))
def test_the_bound_holds_for_any_data_and_the_order_of_ranks_does_not_matter(size, count, scale, seed):
    draws = np.random.default_rng(seed)
    given = list((scale * draws.standard_t(1.5, (size, count))).astype(np.float32))
    bound = scale * 10.0 ** draws.uniform(-3, 1)
    task = Task(size=size, shape=(count,), bound=bound, speeds=SLOW)
    played = play(Ncclz(), given, task)
    held_to_the_bound(played, given, bound)
    order = draws.permutation(size)
    again = play(Ncclz(mode="rans"), [given[i] for i in order], task)
    assert np.array_equal(again.sums[0], played.sums[0])


def test_errors_that_all_add_up_reach_the_bound_and_do_not_pass_it():
    # Planted: every rank's number lies just under the middle between two multiples.
    size, bound = 8, 0.25
    given = [np.full(100, 0.4999 * step_of(bound), np.float32)] * size
    played = play(Ncclz(), given, Task(size=size, shape=(100,), bound=bound))
    error = np.abs(played.sums[0] - np.sum(given, axis=0, dtype=np.float64)).max() / (size * bound)
    assert 0.99 < error <= 1.0


def test_a_field_of_neighbours_alike_takes_few_bytes_and_noise_no_more_than_raw():
    task = Task(size=4, shape=(100, 500), bound=0.05, speeds=SLOW)
    given = smooth(4, (100, 500))
    chosen, raw = (play(Ncclz(mode=mode), given, task).sent_bytes for mode in ("chosen", "raw"))
    assert chosen < raw / 3
    noise = [np.random.default_rng(i).uniform(-1, 1, 50_000).astype(np.float32) for i in range(4)]
    task = Task(size=4, shape=(50_000,), bound=1e-9, speeds=SLOW)
    chosen, raw = (play(Ncclz(mode=mode), noise, task).sent_bytes for mode in ("chosen", "raw"))
    assert chosen <= raw


def test_small_frames_are_raw_where_the_source_says_so():
    given, task = smooth(2, (60, 60)), Task(size=2, shape=(60, 60), bound=0.05, speeds=SLOW)
    raw = play(Ncclz(mode="raw"), given, task).sent_bytes
    assert play(Ncclz(raw_below_bytes=65536), given, task).sent_bytes == raw
    assert play(Ncclz(), given, task).sent_bytes < raw / 2


def test_integers_by_chance_sum_without_a_bias_and_within_a_unit_for_each_rank():
    size, count = 4, 6000
    draws = np.random.default_rng(7)
    given = list((draws.normal(size=(size, count)) * np.repeat([1e-3, 1.0, 50.0], 2000)).astype(np.float32))
    exact = np.sum(given, axis=0, dtype=np.float64)
    task = Task(size=size, shape=(count,), bound=1.0, levels=31, bucket=2000, speeds=SLOW)
    sums = []
    for seed in range(40):
        played = play(Ncclz(), given, dataclasses.replace(task, seed=seed))
        assert all(np.array_equal(each, played.sums[0]) for each in played.sums)
        sums.append(played.sums[0])
    units = np.repeat(np.abs(given).reshape(size, 3, 2000).max(axis=(0, 2)) / 31, 2000)
    error = (np.array(sums) - exact) / units
    assert np.abs(error).max() <= size * 1.001
    assert np.abs(error.mean()) < 4 * error.std() / np.sqrt(error.size)
    assert not np.array_equal(sums[0], sums[1])


def test_what_cannot_be_summed_is_refused():
    given = smooth(2, (10,))
    with pytest.raises(BadValueError, match="bound"):
        play(Ncclz(), given, Task(size=2, shape=(10,), bound=0.0))
    with pytest.raises(BadValueError, match="too large"):
        play(Ncclz(), given, Task(size=2, shape=(10,), bound=1e-12))
    with pytest.raises(BadValueError, match="not finite"):
        play(Ncclz(), [given[0], np.full(10, np.nan, np.float32)], Task(size=2, shape=(10,), bound=1.0))
    with pytest.raises(BadValueError, match="levels overflow"):
        play(Ncclz(), given, Task(size=2, shape=(10,), bound=1.0, levels=2**30))
    for wrong in ({"mode": "best"}, {"predictor": "x"}, {"raw_below_bytes": -1}):
        with pytest.raises(BadValueError):
            Ncclz(**wrong)


def test_damaged_short_and_long_messages_are_errors():
    task = Task(size=2, shape=(4, 50), bound=0.1)
    running = Ncclz().rounds(smooth(1, (4, 50))[0], 0, task, Work())
    data = next(running).data
    damaged = bytearray(data)
    damaged[-1] ^= 1
    empty = encode_frame(np.zeros(0, np.int32), RAW, Ncclz()._key(task))
    for wrong in (bytes(damaged), data[:-3], data + data, b"", data + empty, empty + data):
        again = Ncclz().rounds(smooth(1, (4, 50))[0], 0, task, Work())
        next(again)
        with pytest.raises(BadFrameError):
            again.send(wrong)
    # Units of another rank that are no numbers.
    chance = Ncclz().rounds(smooth(1, (4, 50))[0], 0, dataclasses.replace(task, levels=7), Work())
    next(chance)
    with pytest.raises(BadFrameError, match="buckets"):
        chance.send(np.array([np.nan], np.float32).tobytes())


@pytest.mark.parametrize("other", [{"bound": 0.2}, {"shape": (2, 100)}, {"levels": 7}, {"bucket": 8}])
def test_a_rank_with_another_task_is_refused_before_anything_is_summed(other):
    task = Task(size=2, shape=(4, 50), bound=0.1)
    values = smooth(1, (4, 50))[0]
    foreign, own = Ncclz().rounds(values, 1, dataclasses.replace(task, **other), Work()), Ncclz().rounds(
        values, 0, task, Work())  # fmt: skip
    next(own)
    data = next(foreign).data
    if "levels" in other:
        data = foreign.send(data).data
    with pytest.raises(BadFrameError):
        own.send(data)
    flat = Ncclz(predictor="none").rounds(values, 1, task, Work())
    own = Ncclz().rounds(values, 0, task, Work())
    next(own)
    with pytest.raises(BadFrameError, match="another task"):
        own.send(next(flat).data)


def test_very_small_numbers_have_no_more_multiples_than_levels_and_one():
    # Overflow is ruled out by the levels: a unit that is rounded would let seven of five through.
    values = (np.arange(-7, 8) * 1.4e-45).astype(np.float32)
    task = Task(size=1, shape=(15,), bound=1.0, levels=5, bucket=15, speeds=SLOW)
    with pytest.raises(StopIteration) as ended:
        next(Ncclz().begin(values, 0, task, Work()))
    integers = ended.value.value.integers
    assert 5 <= np.abs(integers).max() <= 6
    unit = float(values.max()) / 5
    assert np.abs(integers * unit - values.astype(np.float64)).max() <= unit


def test_a_choice_is_work_and_single_modes_have_none():
    values, task = smooth(1, (40, 50))[0], Task(size=2, shape=(40, 50), bound=0.01, speeds=SLOW)
    chosen, given = Work(), Work()
    next(Ncclz().rounds(values, 0, task, chosen))
    next(Ncclz(mode="rans").rounds(values, 0, task, given))
    assert chosen.before["choose"] == 20 * 50
    assert given.before["choose"] == 0
    assert given.before["rans-encode"] == 20 * 50


def test_parts_longer_than_a_frame_are_several_frames():
    count = (1 << 20) + 1000
    given = [np.zeros(2 * count, np.float32)] * 2
    task = Task(size=2, shape=(2 * count,), bound=0.5)
    part = given[0][:count].astype(np.int32)
    system, work = Ncclz(mode="rans"), Work()
    data = system.encode(part, slice(0, count), task, work, last=False)
    assert data.count(b"wz\x02") == 2
    assert work.before["rans-encode"] == count
    assert np.array_equal(system.decode(data, slice(0, count), task, work, when="after"), part)
    assert work.after["rans-decode"] == count
