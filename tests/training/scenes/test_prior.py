"""The prior: exactly what the archive holds, kept and read back, with nothing of what came later."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.scenes.interface import Archive
from wavetank.training.scenes.places import generated
from wavetank.training.scenes.prior import Prior


@pytest.fixture(scope="module")
def archive():
    place = generated(5, side=24)
    return place.archive


def test_a_prior_holds_the_clear_scenes_and_their_median(archive):
    prior = Prior.fit(archive, step=0.01)
    clear = np.flatnonzero(archive.clouded <= 0.02)
    assert len(prior.whole) == clear.size
    whole = archive.clear[clear].all((1, 2))
    kept = prior.planes[1:][whole]
    assert np.abs(kept - archive.values[clear][whole]).max() <= 0.0051
    assert np.allclose(prior.planes[0], np.median(prior.planes[1:], 0))


def test_what_clouds_hide_gets_what_is_typical(archive):
    clear = archive.clear.copy()
    clear[:] = True
    clear[2, 0, 0] = False
    values = archive.values.copy()
    values[2, 0, 0] = np.nan
    prior = Prior.fit(Archive(values, clear, archive.days), step=0.001)
    others = np.delete(values[:, 0, 0].astype(np.float64), 2)
    assert prior.planes[3, 0, 0] == pytest.approx(np.median(others), abs=0.001)


def test_a_prior_comes_back_from_its_bytes(archive):
    prior = Prior.fit(archive, scenes=3)
    stream = prior.to_bytes()
    again = Prior.from_bytes(stream)
    assert (again.whole == prior.whole).all()
    assert again.identity == prior.identity
    assert len(stream) < prior.whole.size * 2
    for place in range(0, len(stream), 97):
        damaged = bytearray(stream)
        damaged[place] ^= 16
        with pytest.raises(BadFileError):
            Prior.from_bytes(bytes(damaged))
    with pytest.raises(BadFileError, match="damaged or cut off"):
        Prior.from_bytes(stream[:-1])


def test_the_last_scenes_are_kept(archive):
    few, all_of_them = Prior.fit(archive, scenes=2), Prior.fit(archive)
    assert (few.whole == all_of_them.whole[-2:]).all()
    assert few.identity != all_of_them.identity


def test_a_value_planted_later_is_in_no_prior_made_before(archive):
    day = int(archive.days[20])
    planted = archive.values.copy()
    planted[20:] = 0.123
    later = Archive(planted, archive.clear, archive.days)
    assert Prior.fit(later.before(day)).identity == Prior.fit(archive.before(day)).identity
    assert Prior.fit(later).identity != Prior.fit(archive).identity


@pytest.mark.parametrize("wrong", [{"step": 0.0}, {"step": np.nan}, {"step": -1.0}, {"step": 1e-7}, {"scenes": 0}])
def test_steps_and_numbers_that_are_none_are_refused(archive, wrong):
    with pytest.raises(BadValueError):
        Prior.fit(archive, **wrong)


def test_an_archive_under_clouds_has_no_prior(archive):
    with pytest.raises(BadValueError, match="clear enough"):
        Prior.fit(Archive(archive.values, np.zeros_like(archive.clear), archive.days))
    with pytest.raises(BadValueError, match="clear enough"):
        Prior.fit(archive.before(int(archive.days[0])))
