"""The places: the real one is as recorded, the generated ones are frozen and change as they are asked to."""

import hashlib

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.scenes import places
from wavetank.training.scenes.places import generated, observed


def test_the_real_place_has_seven_clear_later_dates():
    if not places.is_here():
        pytest.skip("the data set eo-timeseries is not on this machine")
    place = observed()
    assert place.archive.values.shape == (51, 101, 100)
    assert place.coded == (37, 39, 41, 44, 45, 46, 48)
    clouded = place.archive.clouded[: place.first_later]
    assert ((clouded < 0.5).sum(), (clouded < 0.02).sum()) == (20, 14)


def test_a_damaged_file_of_the_real_place_is_named(tmp_path, monkeypatch):
    (tmp_path / places.DATA).mkdir()
    (tmp_path / places.DATA / places.FILE).write_bytes(b"no archive")
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    with pytest.raises(BadFileError, match="cannot be read"):
        observed.__wrapped__()


def test_generated_places_are_frozen():
    place = generated(0)
    # Coarse enough that the last digit of a sine decides nothing.
    coarse = np.rint(np.abs(place.archive.values.astype(np.float64)).mean((1, 2)) * 1e4).astype(np.int64)
    facts = coarse.tobytes() + np.packbits(place.archive.clear).tobytes() + place.cover.tobytes()
    assert hashlib.sha256(facts).hexdigest()[:16] == "ae57c7984077111f"


def test_every_place_is_another_and_most_have_clear_later_dates():
    made = [generated(number, side=32) for number in range(places.PLACES)]
    assert len({each.archive.values.tobytes() for each in made}) == places.PLACES
    assert sum(bool(each.coded) for each in made) >= 60
    for each in made:
        assert each.archive.days.size == 32
        assert each.first_later == 24
        assert (np.diff(each.archive.days) > 0).all()
        assert all(each.archive.clouded[date] < 0.05 for date in each.coded)


def likeness(change, number=3):
    """Return how alike the first and the last year are where parcels and texture show, beyond the season."""
    values = generated(number, change=change).archive.values.astype(np.float64)
    years = values.reshape(4, 8, -1)
    years = (years - years.mean(2, keepdims=True)).mean(1)
    return float(np.corrcoef(years[0], years[3])[0, 1])


def test_a_year_resembles_the_first_the_less_the_more_is_replaced():
    found = [likeness(each) for each in (0.0, 0.1, 0.3, 1.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.8
    assert abs(found[3]) < 0.2


@pytest.mark.parametrize("wrong", [{"number": -1}, {"number": 64}, {"change": 1.5}, {"change": np.nan}, {"side": 8}])
def test_what_is_no_place_is_refused(wrong):
    with pytest.raises(BadValueError, match="no such place"):
        generated(**{"number": 0, **wrong})
