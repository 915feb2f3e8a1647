"""Scenes and archives: what is refused, and what an archive shows of its past."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.scenes.interface import Archive, Scene

CLEAR = np.ones((3, 4), np.bool_)


def test_what_clouds_hide_may_be_anything_and_is_not_counted():
    values = np.zeros((3, 4), np.float32)
    values[1, 2] = np.nan
    clear = CLEAR.copy()
    clear[1, 2] = False
    assert Scene(values, clear).raw_bytes == 4 * 11


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_clear_pixel_that_is_not_finite_is_named(bad):
    values = np.zeros((3, 4), np.float32)
    values[2, 1] = bad
    with pytest.raises(BadValueError, match="row 2, column 1"):
        Scene(values, CLEAR)


@pytest.mark.parametrize(
    ("values", "clear"),
    [
        (np.zeros((3, 4)), CLEAR),
        (np.zeros((3, 4), np.float32), CLEAR.astype(np.uint8)),
        (np.zeros((3, 5), np.float32), CLEAR),
        (np.zeros(12, np.float32), np.ones(12, np.bool_)),
        (np.zeros((0, 4), np.float32), np.ones((0, 4), np.bool_)),
        (np.zeros((1, 70_000), np.float32), np.ones((1, 70_000), np.bool_)),
    ],
)
def test_other_types_and_shapes_are_refused(values, clear):
    with pytest.raises(BadValueError):
        Scene(values, clear)


def test_an_archive_shows_earlier_days_alone():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    archive = Archive(values, np.stack([CLEAR, ~CLEAR]), np.array([5, 9]))
    assert archive.before(9).days.tolist() == [5]
    assert archive.before(5).days.size == 0
    assert archive.clouded.tolist() == [0.0, 1.0]
    assert archive.scene(0).values[2, 3] == 11


@pytest.mark.parametrize("days", [np.array([9, 5]), np.array([5])])
def test_days_that_fall_or_lack_are_refused(days):
    with pytest.raises(BadValueError, match="day for each scene"):
        Archive(np.zeros((2, 3, 4), np.float32), np.stack([CLEAR, CLEAR]), days)


def test_an_archive_of_one_table_is_refused():
    with pytest.raises(BadValueError, match="stack of scenes"):
        Archive(np.zeros((3, 4), np.float32), CLEAR, np.array([5]))
