"""Samples out of fields of the atmosphere, and how they are cut."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.training.domains import fields
from wavetank.training.domains.fields import months, sample, uneven_cuts, waves
from wavetank.workloads import datasets


def test_recorded_fields_are_those_of_the_file():
    try:
        path = datasets.find("science-fields")
    except WavetankError:
        pytest.skip("the data set science-fields is not here")
    found = months()
    assert found.shape == (2, 9, 241, 480)
    assert np.abs(found.mean((2, 3))).max() < 1e-9
    assert np.abs(found.std((2, 3)) - 1).max() < 1e-9
    # Before the two months' numbers the file ends with the last row of the last variable, packed with a negative scale.
    raw = (path / "eraint_uvz.nc").read_bytes()
    tail = np.frombuffer(raw[-480 * 2 - 8 : -8], ">i2").astype(float)
    last = found[-1, -1, -1]
    assert np.corrcoef(tail, last)[0, 1] < -0.999999


def test_a_sample_is_a_window_of_one_month_and_the_aim_patches_of_the_other():
    given, aim = sample("waves", 3, 16, 24, 4)
    assert (given.shape, aim.shape) == ((1, 9, 16, 24), (1, 9, 4, 6))
    both = waves(3)
    where = [
        (month, top, left)
        for month in range(2)
        for top in range(241 - 15)
        for left in range(480)
        if both[month, 0, top, left] == given[0, 0, 0, 0]
    ]
    ((month, top, left),) = where
    other = np.roll(both[1 - month], -left, 2)[:, top : top + 16, :24]
    assert aim[0, 2, 1, 3] == pytest.approx(other[2, 4:8, 12:16].mean())
    assert not np.array_equal(sample("waves", 4, 16, 24, 4)[0], given)


def test_windows_that_do_not_fit_are_refused():
    for rows, columns in ((244, 24), (16, 484), (15, 24), (0, 24)):
        with pytest.raises(BadValueError, match="within the fields"):
            sample("waves", 0, rows, columns, 4)


def test_cuts_are_uneven_whole_patches_and_leave_nobody_without_one():
    seen = set()
    for seed in range(40):
        for processes in (1, 2, 4, 6):
            cuts = uneven_cuts(seed, 24, processes, 4)
            assert len(cuts) == processes
            assert sum(cuts) == 24
            assert all(each >= 4 and each % 4 == 0 for each in cuts)
            seen.add(cuts)
    assert len(seen) > 8
    with pytest.raises(BadValueError, match="Every process has a patch"):
        uneven_cuts(0, 24, 7, 4)


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / fields.FILE).write_bytes(b"CDF\x01 and then nothing")
    monkeypatch.setattr(datasets, "find", lambda name: tmp_path)
    months.cache_clear()
    try:
        with pytest.raises(BadFileError, match="no fields of two months"):
            months()
    finally:
        months.cache_clear()
