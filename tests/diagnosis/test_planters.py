"""Planted faults: the departure that was asked for, where it was asked for, alike in one piece and in chunks."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.diagnosis.planters import KINDS, Plant, common_mode, plant
from wavetank.errors import BadValueError
from wavetank.sim.rng import stream


def test_a_level_multiplies_and_adds_within_its_span_alone() -> None:
    values = np.full((2, 3, 10), 4.0)
    plant(values, [Plant("level", (1, 2), 3, 6, factor=0.5, size=1.0)])
    expected = np.full((2, 3, 10), 4.0)
    expected[1, 2, 3:6] = 3.0
    assert np.array_equal(values, expected)


def test_a_drift_reaches_its_size_at_its_last_sample() -> None:
    values = np.zeros((1, 5))
    plant(values, [Plant("drift", (0,), 1, 5, size=8.0)], strength=0.5)
    assert values[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_frozen_series_repeats_the_value_before_its_span() -> None:
    values = np.arange(8.0).reshape(1, 8)
    plant(values, [Plant("freeze", (0,), 3, 6)])
    assert values[0].tolist() == [0, 1, 2, 2, 2, 2, 6, 7]


def test_a_series_that_drops_out_is_missing_in_the_share_of_its_strength() -> None:
    values = np.ones((1, 4000))
    plant(values, [Plant("drop-out", (0,), 0, 4000)], strength=0.25)
    assert 0.2 < np.isnan(values).mean() < 0.3
    plant(values, [Plant("drop-out", (0,), 0, 4000)])
    assert np.isnan(values).all()


def test_spikes_strike_some_samples_and_all_of_a_short_span() -> None:
    values = np.zeros((1, 1000))
    plant(values, [Plant("spike", (0,), 100, 900, size=5.0), Plant("spike", (0,), 950, 952, size=2.0)])
    assert 150 < (values[0, 100:900] == 5.0).sum() < 350
    assert values[0, 950:952].tolist() == [2.0, 2.0] and not values[0, 900:950].any()


def test_a_change_of_all_peers_is_the_same_for_all() -> None:
    values = np.ones((2, 4, 6))
    plant(values, [common_mode(2, 0, 2, 4, factor=3.0)])
    assert (values[0, :, 2:4] == 3.0).all() and values.sum() == 2 * 4 * 6 + 2 * 4 * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.4, 1.0])
def test_chunks_of_a_stream_get_what_the_whole_gets(kind: str, strength: float) -> None:
    whole = stream(1, "series").normal(size=(2, 60))
    faults = [Plant(kind, (1,), 13, 47, factor=1.5, size=2.0)]
    pieces = [piece.copy() for piece in np.split(whole, [20, 25, 40], axis=1)]
    plant(whole, faults, strength=strength, seed=7)
    first, before = 0, None
    for piece in pieces:
        plant(piece, faults, strength=strength, first=first, before=before, seed=7)
        # What was frozen stays frozen at the value before the fault.
        before = whole[:, 12] if first else piece[:, 12].copy()
        first += piece.shape[1]
    assert np.array_equal(np.concatenate(pieces, axis=1), whole, equal_nan=True)


def test_no_strength_changes_nothing() -> None:
    values = np.ones((1, 9))
    plant(values, [Plant(kind, (0,), 0, 9, factor=2.0, size=1.0) for kind in KINDS], strength=0.0)
    assert (values == 1).all()


@pytest.mark.parametrize(
    ("fault", "strength"),
    [
        (Plant("level", (2,), 0, 4), 1.0),
        (Plant("level", (0, 0), 0, 4), 1.0),
        (Plant("level", (0,), 4, 4), 1.0),
        (Plant("level", (0,), 0, 4, size=float("nan")), 1.0),
        (Plant("level", (0,), 0, 4, factor=-1.0), 1.0),
        (Plant("wobble", (0,), 0, 4), 1.0),
        (Plant("level", (0,), 0, 4), -0.5),
        (Plant("level", (0,), 0, 4), float("nan")),
    ],
)
def test_what_is_no_fault_is_refused(fault: Plant, strength: float) -> None:
    with pytest.raises(BadValueError):
        plant(np.ones((2, 9)), [fault], strength=strength)
