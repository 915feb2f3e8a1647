"""Rotary positions and the rules that slow them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.rotary import SCALINGS, frequencies, magnitude, rotated

RULES = [{"scaling": name, "factor": 1.0 if name == "none" else 8.0} for name in SCALINGS]


def as_complex(rows):
    half = rows.shape[-1] // 2
    return rows[..., :half] + 1j * rows[..., half:]


@pytest.mark.parametrize("rule", RULES, ids=SCALINGS)
@given(position=st.integers(0, 100_000), by=st.integers(-100_000, 100_000), seed=st.integers(0, 99))
def test_a_moved_row_is_the_one_computed_there(rule, position, by, seed):
    turns = frequencies(64, **rule)
    row = np.random.default_rng(seed).normal(size=(1, 64)).astype(np.float32)
    moved = rotated(rotated(row, [position], turns), [by], turns)
    assert moved.dtype == np.float32
    # The oracle multiplies complex numbers in float64.
    expected = as_complex(row.astype(float)) * np.exp(1j * (position + by) * turns)
    assert np.allclose(as_complex(moved), expected, atol=1e-6 * np.abs(expected).max())
    assert np.allclose(rotated(moved, [-by - position], turns), row, atol=2e-6)


@pytest.mark.parametrize(("width", "base", "window"), [(16, 1e4, 1 << 17), (8, 50.0, 64), (64, 1e4, 2048), (6, 3.0, 8)])
def test_yarn_slows_each_pair_by_its_place_between_two_counts_of_turns(width, base, window):
    # After the paper's equations, pair by pair: where it turns 32 times in the window, and where once.
    place = [width * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
    low, high = max(math.floor(place[0]), 0), min(math.ceil(place[1]), width - 1)
    for pair, got in enumerate(frequencies(width, base=base, scaling="yarn", factor=5.0, original_window=window)):
        share = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
        plain = base ** (-2 * pair / width)
        assert got == pytest.approx(plain * (1 - share) + plain / 5 * share, rel=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=SCALINGS)
def test_scores_depend_on_differences_of_positions_alone(rule):
    turns, draws = frequencies(32, **rule), np.random.default_rng(3)
    query, key = draws.normal(size=(2, 1, 32))
    scores = [(rotated(query, [p + 9], turns) @ rotated(key, [p], turns).T).item() for p in (0, 1, 77, 50_000)]
    assert np.ptp(scores) < 1e-9
    other = (rotated(query, [8], turns) @ rotated(key, [0], turns).T).item()
    assert abs(other - scores[0]) > 1e-6


def test_tensors_are_turned_as_arrays_are():
    torch = pytest.importorskip("torch")
    turns, rows = frequencies(8), np.random.default_rng(0).normal(size=(3, 5, 8))
    by = np.array([3, -1, 0, 1000, 7])
    assert np.allclose(rotated(torch.from_numpy(rows), by, turns).numpy(), rotated(rows, by, turns), atol=1e-14)


def test_each_rule_slows_what_it_says():
    plain = frequencies(64)
    assert np.allclose(plain, 10_000.0 ** (-np.arange(32) / 32))
    assert np.allclose(frequencies(64, scaling="linear", factor=4.0), plain / 4)
    aware = frequencies(64, scaling="ntk", factor=4.0)
    assert aware[0] == 1.0 and aware[-1] == pytest.approx(plain[-1] / 4) and np.all(np.diff(aware / plain) < 0)
    yarn = frequencies(64, scaling="yarn", factor=4.0, original_window=2_048)
    often = 2_048 * plain / (2 * math.pi)
    assert np.allclose(yarn[often > 40], plain[often > 40]) and np.allclose(yarn[often < 0.9], plain[often < 0.9] / 4)
    between = (often < 20) & (often > 2)
    assert np.all(yarn[between] < plain[between]) and np.all(yarn[between] > plain[between] / 4)


def test_only_yarn_has_a_magnitude():
    assert [magnitude(name, 16.0) for name in ("none", "linear", "ntk")] == [1.0] * 3
    assert magnitude("yarn", 16.0) == pytest.approx(1.0 + 0.1 * math.log(16.0))


def test_an_unknown_rule_and_odd_numbers_are_refused():
    with pytest.raises(UnknownNameError, match=r"(?s)scaling rule named 'yarm'.*nearest: yarn"):
        frequencies(8, scaling="yarm")
    for wrong in ({"width": 7}, {"width": 0}, {"base": 1.0}, {"base": math.nan}, {"factor": 0.5}, {"factor": math.inf},
                  {"original_window": 0}):  # fmt: skip
        with pytest.raises(BadValueError):
            frequencies(**{"width": 8, **wrong})


def test_rows_of_another_width_or_number_are_refused():
    turns = frequencies(8)
    for rows, by in ((np.zeros((2, 6)), [0, 1]), (np.zeros((2, 8)), [0, 1, 2])):
        with pytest.raises(BadValueError, match="cannot be turned"):
            rotated(rows, by, turns)
