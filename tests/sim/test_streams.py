"""Counter-based random draws."""

import numpy as np
import pytest

from wavetank.sim.streams import mix, next_below, next_uniform

GOLDEN = 0x9E3779B97F4A7C15


def draws(key, n, counter=0):
    stream = np.array([key, counter], np.float64)
    return np.array([next_uniform(stream) for _ in range(n)])


@pytest.mark.parametrize(
    ("number", "output"), [(1, 0xE220A8397B1DCDAF), (2, 0x6E789E6AA1B965F4), (3, 0x06C45D188009454F)]
)
def test_the_mixer_is_that_of_splitmix64(number, output):
    # The first outputs of SplitMix64 with seed 0.
    assert mix(np.uint64(number * GOLDEN % 2**64)) == output


def test_a_draw_depends_on_key_and_counter_alone():
    assert draws(7, 20)[12] == draws(7, 1, counter=12)[0]


def test_each_draw_advances_the_counter_by_one_and_keeps_the_key():
    stream = np.array([42.0, 0.0])
    for _ in range(5):
        next_uniform(stream)
    assert stream.tolist() == [42.0, 5.0]
    next_below(stream, 10)
    assert stream.tolist() == [42.0, 6.0]


def test_draws_fill_the_unit_interval_evenly():
    drawn = draws(3, 20_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # Nine degrees of freedom: 99.99 % of fair draws stay below 33.7.
    counts = np.histogram(drawn, 10, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 33.7


def test_neighbouring_keys_and_neighbouring_counters_are_unrelated():
    first, second = draws(1, 20_000), draws(2, 20_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_whole_numbers_stay_below_their_bound_and_reach_all_of_it(bound):
    stream = np.array([9.0, 0.0])
    drawn = [next_below(stream, bound) for _ in range(20 * bound)]
    assert min(drawn) == 0
    assert max(drawn) == bound - 1


def test_a_whole_number_is_the_uniform_draw_scaled():
    stream = np.array([9.0, 4.0])
    assert next_below(stream, 1000) == int(draws(9, 1, counter=4)[0] * 1000)
