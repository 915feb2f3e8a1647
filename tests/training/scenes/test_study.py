"""The study: bytes counted in full, equal bounds, and no scene that a prior could have seen."""

import dataclasses

import numpy as np
import pytest

from wavetank.training.scenes import places
from wavetank.training.scenes.earth_compression import EarthCompression
from wavetank.training.scenes.rivals import Predicted
from wavetank.training.scenes.study import EarthCodec

STUDY = EarthCodec(place="generated", sweep=())


def figures(study, system, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_figures_are_those_of_the_stream():
    found = figures(STUDY, Predicted(), 1)
    scene, _ = STUDY.scene(1, 0.02)
    size = len(Predicted().encode(scene, None, 0.02))
    assert found["factor",] == scene.raw_bytes / size
    assert found["bits_per_value",] == pytest.approx(32 / found["factor",])
    assert found["factor_of_12_bits",] == pytest.approx(found["factor",] * 12 / 32)
    assert found["values_beyond_bound",] == 0
    assert 0.9 < found["error_over_bound",] <= 1
    assert found["rmse",] == pytest.approx(0.04 / 12**0.5, rel=0.05)
    assert found["prior_bytes",] == 0


@dataclasses.dataclass(frozen=True)
class Cheat(Predicted):
    """Decodes with an error beyond the bound on three pixels, and hides a fourth."""

    def decode(self, stream, prior):
        scene = super().decode(stream, prior)
        scene.values[0, :3] += np.float32(0.05)
        scene.clear[1, 1] = False
        scene.values[1, 1] = np.nan
        return scene


def test_values_beyond_the_bound_and_hidden_ones_are_counted():
    # The hidden one is wrong twice: it has no value, and the mask is another one.
    assert figures(STUDY, Cheat())["values_beyond_bound",] == 5


def test_each_bound_of_the_sweep_has_a_factor():
    found = figures(EarthCodec(place="generated", sweep=(0.08, 0.02)), Predicted())
    assert found["factor_by_bound", 0.08] > found["factor_by_bound", 0.02] == found["factor",]


@pytest.mark.parametrize("past", ["fixed", "received"])
def test_the_past_ends_before_the_scene(past):
    study = EarthCodec(place="generated", past=past)
    for seed in range(4):
        place = study._place(seed)
        scene, known = study.scene(seed, 0.02)
        day = place.archive.days[place.coded[0] if past == "received" else place.first_later]
        assert known.days.max() < day
        assert not any(np.array_equal(scene.values, each) for each in known.values)


def test_received_scenes_are_known_within_the_bound_and_their_prior_is_free():
    study = EarthCodec(place="generated", past="received", sweep=())
    _, known = study.scene(0, 0.02)
    exact = study._place(0).archive.values[: len(known.days)]
    error = np.abs(known.values.astype(np.float64) - exact)[known.clear]
    assert 0.019 < error.max() <= 0.0201
    found = figures(study, EarthCompression())
    assert found["prior_bytes",] == 0
    fixed = figures(STUDY, EarthCompression())
    assert fixed["prior_bytes",] == len(EarthCompression().fit(STUDY.scene(0, 0.02)[1]).to_bytes())


def test_a_prior_pays_after_its_bytes_by_those_it_saves():
    records = []
    for name, system in (("with", EarthCompression()), ("alone", Predicted())):
        for seed in (0, 1):
            records += STUDY.stamp(name, seed, STUDY.measure(system, seed))
    found = {each.seed: each.value for each in STUDY.conclude(records)}
    for seed in (0, 1):
        of = {(each.system, each.metric): each.value for each in records if each.seed == seed}
        raw = STUDY.scene(seed, 0.02)[0].raw_bytes
        saved = raw / of["alone", "factor"] - raw / of["with", "factor"]
        assert found[seed] == pytest.approx(of["with", "prior_bytes"] / saved)
    received = dataclasses.replace(STUDY, past="received")
    assert received.conclude(records) == []
    assert STUDY.conclude([]) == []
    assert STUDY.conclude([each for each in records if each.system == "with"]) == []


def test_seeds_are_the_later_dates_of_the_real_place():
    if not places.is_here():
        pytest.skip("the data set eo-timeseries is not on this machine")
    study = EarthCodec()
    assert study.real
    place = places.observed()
    for seed, date in enumerate(place.coded):
        assert (study.scene(seed, 0.02)[0].values == place.archive.values[date]).all()
    assert study.data()
    assert "Sentinel-2" in study.notes()[0]


def test_without_the_data_set_places_are_generated(tmp_path, monkeypatch):
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("WAVETANK_CACHE", str(tmp_path))
    study = EarthCodec()
    if places.is_here():
        pytest.skip("the data set eo-timeseries lies in a cache that cannot be taken away")
    assert not study.real
    assert study.data() == {}
    assert "10% of whose parcels" in study.notes()[0]
    study.check()
    assert study.scene(0, 0.02)[0].values.shape == (96, 96)
