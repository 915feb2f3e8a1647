"""Copies, places and sums against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.serving.exchange.moves import copy_rows, quantise, take_places, weighted_sums

RNG = np.random.default_rng(0)


def test_rows_go_where_they_belong_and_skipped_ones_nowhere() -> None:
    source, target = RNG.integers(0, 99, (4, 3)), np.full((5, 3), -7)
    copy_rows(source, np.array([3, 0, -1, 1]), target, np.array([0, 4, 1, -1]))
    assert target[0].tolist() == source[3].tolist()
    assert target[4].tolist() == source[0].tolist()
    assert (target[1:4] == -7).all()


def test_each_key_gets_the_next_place_of_its_kind() -> None:
    keys, following, places = np.array([1, 0, 1, -1, 1]), np.array([10, 20]), np.empty(5, np.int64)
    take_places(keys, following, places)
    assert places.tolist() == [20, 10, 21, -1, 22]
    assert following.tolist() == [11, 23]


def test_sums_are_those_of_a_plain_loop_to_the_last_digit() -> None:
    outputs, gates = RNG.standard_normal((6, 5), np.float32), RNG.random((4, 3), np.float32)
    places, sums = RNG.integers(-1, 6, (4, 3)), np.full((4, 5), np.nan, np.float32)
    weighted_sums(outputs, places, gates, sums)
    for token in range(4):
        wanted = np.zeros(5, np.float32)
        for choice in range(3):
            if places[token, choice] >= 0:
                wanted = wanted + gates[token, choice] * outputs[places[token, choice]]
        assert sums[token].tolist() == wanted.tolist()


def test_quantised_rows_are_within_half_a_unit_and_zero_stays_zero() -> None:
    values = RNG.standard_normal((3, 8), np.float32)
    values[1] = 0.0
    room = np.zeros((3, 2), np.int64)
    quantise(values, room.view(np.int8), room.view(np.float64))
    whole, units = room.view(np.int8)[:, :8], room.view(np.float64)[:, 1:]
    assert np.abs(whole * units - values).max() <= units.max() / 2 * (1 + 1e-6)
    assert np.abs(whole[[0, 2]]).max(axis=1).tolist() == [127, 127]
    assert not room[1].any()
    assert units[0, 0] == pytest.approx(np.abs(values[0]).max() / 127)


@pytest.mark.parametrize("largest", [1e-45, 1e-38, 3.4e38])
def test_the_smallest_and_largest_rows_are_quantised_as_all_others(largest: float) -> None:
    values = np.full((1, 8), largest, np.float32)
    values[0, 1] = -values[0, 0]
    room = np.zeros((1, 2), np.int64)
    quantise(values, room.view(np.int8), room.view(np.float64))
    assert room.view(np.int8)[0, :8].tolist() == [127, -127] + [127] * 6
    assert room.view(np.float64)[0, 1] == float(values[0, 0]) / 127
