"""Rivals sum as they say, and their errors are those of their kind."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.frames import BadFrameError
from wavetank.training.compression.interface import Task, Work
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.ring import play
from wavetank.training.compression.rivals import Bfloat16, EightBitHops, LossyCompressor, PlainRing, QuantisedHops

ALL = [PlainRing(), Bfloat16(), QuantisedHops(), EightBitHops()]


def waves(size, rows=40, columns=64):
    x, y = np.meshgrid(np.linspace(0, 6, columns), np.linspace(0, 4, rows))
    return [(10 * np.sin(x + i) * np.cos(y) + 30).astype(np.float32).reshape(-1) for i in range(size)]


def errors(system, given, task):
    played = play(system, given, task)
    exact = np.sum(given, axis=0, dtype=np.float64)
    assert all(np.array_equal(each, played.sums[0]) for each in played.sums)
    return np.abs(played.sums[0] - exact).max(), played


@pytest.mark.parametrize("system", ALL, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("size", "shape"), [(1, (5,)), (2, (0,)), (3, (7,)), (4, (6, 11))])
def test_all_ranks_have_the_same_sum_of_every_shape(system, size, shape):
    given = [np.random.default_rng(i).normal(size=int(np.prod(shape))).astype(np.float32) for i in range(size)]
    error, _ = errors(system, given, Task(size=size, shape=shape, bound=1e-3)) if np.prod(shape) else (0.0, None)
    assert error < 0.1


def test_bfloat16_halves_the_bytes_and_rounds_to_eight_bits():
    given, task = waves(4), Task(size=4, shape=(40, 64), bound=1e-3)
    error, played = errors(Bfloat16(), given, task)
    assert 2 * played.sent_bytes == play(PlainRing(), given, task).sent_bytes
    # Half a unit of 2^-8 of a sum of 160, a few times.
    assert 0.01 < error < 4 * 160 / 256
    coded = Bfloat16().encode(np.array([1.0, 1.00390625, 3e38, np.inf, np.nan, -2.5], np.float32), slice(0, 6), task,
                              Work(), last=False)  # fmt: skip
    back = Bfloat16().decode(coded, slice(0, 6), task, Work(), when="before")
    # A tie goes to the even one.
    assert back[0] == back[1] == 1.0
    assert back[2] == pytest.approx(3e38, rel=0.004)
    assert np.isinf(back[3])
    assert np.isnan(back[4])
    assert back[5] == -2.5


def test_quantising_at_every_hop_on_one_grid_sums_the_same_integers_as_quantising_once():
    # Multiples of the step stay multiples: rounding a number plus a multiple is the number's rounding plus it.
    given, task = waves(6), Task(size=6, shape=(40, 64), bound=0.013)
    hops, once = (play(each, given, task).sums[0] for each in (QuantisedHops(), Ncclz()))
    # But for ties of the sums in single precision.
    assert np.mean(hops != once) < 0.01


def test_eight_bits_at_every_hop_have_errors_that_grow_faster_than_ranks():
    found = []
    for size in (2, 4, 8, 16):
        given = list(np.random.default_rng(size).uniform(20, 40, (size, 2560)).astype(np.float32))
        found.append(errors(EightBitHops(), given, Task(size=size, shape=(40, 64), bound=1.0))[0] / size)
    assert found[3] > 1.5 * found[0]


def test_eight_bits_refuse_what_is_not_finite_and_damaged_messages():
    task = Task(size=2, shape=(300,), bound=1.0)
    with pytest.raises(BadValueError, match="not finite"):
        EightBitHops().encode(np.full(300, np.inf, np.float32), slice(0, 300), task, Work(), last=False)
    data = EightBitHops().encode(np.ones(300, np.float32), slice(0, 300), task, Work(), last=False)
    assert len(data) == 300 + 8
    for system in (*ALL[:2], EightBitHops(), QuantisedHops()):
        with pytest.raises(BadFrameError):
            system.decode(data[:-1], slice(0, 300), task, Work(), when="before")


@pytest.mark.parametrize("library", ["sz3", "zfp"])
@pytest.mark.parametrize("where", ["ends", "hops"])
def test_whole_compressors_keep_their_bound_and_take_fewer_bytes(library, where):
    pytest.importorskip({"sz3": "pysz", "zfp": "zfpy"}[library], reason="needs the extra codecs")
    given, task = waves(4), Task(size=4, shape=(40, 64), bound=0.02)
    error, played = errors(LossyCompressor(library=library, where=where), given, task)
    assert error <= 4 * 0.02 + 1e-4
    assert error > 0
    assert played.sent_bytes < play(PlainRing(), given, task).sent_bytes / 2
    assert [each.distance for each in played.rounds] == ([1, 2, 3] * 2 if where == "ends" else [1] * 6)


@pytest.mark.parametrize("library", ["sz3", "zfp"])
def test_whole_compressors_are_not_given_damaged_or_foreign_messages(library):
    pytest.importorskip({"sz3": "pysz", "zfp": "zfpy"}[library], reason="needs the extra codecs")
    task, whole = Task(size=2, shape=(40, 64), bound=0.02), slice(0, 40 * 64)
    system = LossyCompressor(library=library)
    data = system.encode(waves(1)[0], whole, task, Work(), last=False)
    assert np.abs(system.decode(data, whole, task, Work(), when="after") - waves(1)[0]).max() <= 0.02
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        for wrong in (bytes(damaged), data[:place]):
            with pytest.raises(BadFrameError):
                system.decode(wrong, whole, task, Work(), when="after")
    with pytest.raises(BadFrameError, match="another task"):
        system.decode(data, whole, dataclasses.replace(task, bound=0.03), Work(), when="after")


def test_whole_compressors_send_a_few_numbers_as_they_are_and_refuse_nan():
    pytest.importorskip("pysz", reason="needs the extra codecs")
    system, task = LossyCompressor(), Task(size=3, shape=(20,), bound=0.1)
    given = [np.arange(20, dtype=np.float32)] * 3
    assert errors(system, given, task)[0] == 0
    with pytest.raises(BadValueError, match="not finite"):
        system.encode(np.full(100, np.nan, np.float32), slice(0, 100), task, Work(), last=False)
    with pytest.raises(BadValueError, match="bound"):
        system.encode(np.ones(100, np.float32), slice(0, 100), Task(size=3, shape=(300,), bound=0.0), Work(),
                      last=False)  # fmt: skip
    for wrong in ({"library": "gzip"}, {"where": "middle"}):
        with pytest.raises(BadValueError, match="compressor"):
            LossyCompressor(**wrong)
