"""The codec: bounds that hold, gains that are the place's own, and streams that nothing else can read."""

import contextlib
import zlib

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.scenes.earth_compression import EarthCompression
from wavetank.training.scenes.interface import Archive, Scene
from wavetank.training.scenes.places import generated, is_here, observed
from wavetank.training.scenes.prior import Prior

CODEC = EarthCompression()


@pytest.fixture(scope="module")
def place():
    return generated(1, side=48)


def parts(place):
    return place.archive.scene(place.coded[0]), CODEC.fit(place.archive.before(int(place.archive.days[24])))


@pytest.mark.parametrize("bound", [0.0005, 0.005, 0.02, 0.3])
def test_every_value_is_decoded_within_the_bound_from_the_stream_and_the_prior_alone(place, bound):
    scene, prior = parts(place)
    clear = scene.clear.copy()
    clear[5:9, 7:30] = False
    hidden = Scene(np.where(clear, scene.values, np.float32(np.nan)), clear)
    for each in (scene, hidden):
        for known in (prior, None):
            # What decodes has read the prior from its own bytes.
            other = None if known is None else Prior.from_bytes(known.to_bytes())
            decoded = EarthCompression().decode(CODEC.encode(each, known, bound), other)
            assert (decoded.clear == each.clear).all()
            error = np.abs(decoded.values.astype(np.float64) - each.values)[each.clear]
            assert error.max() <= bound
            assert np.isnan(decoded.values[~each.clear]).all()


def test_a_finer_bound_never_takes_fewer_bytes(place):
    scene, prior = parts(place)
    for known in (prior, None):
        sizes = [len(CODEC.encode(scene, known, bound)) for bound in (0.08, 0.02, 0.005, 0.001)]
        assert sizes == sorted(sizes)


def test_the_past_of_the_place_gains_and_that_of_another_place_does_not(place):
    scene, prior = parts(place)
    alone = len(CODEC.encode(scene, None, 0.02))
    assert alone / len(CODEC.encode(scene, prior, 0.02)) > 1.2
    for other in (EarthCompression(history="mirrored").fit(place.archive.before(3 * 365)),
                  CODEC.fit(generated(2, side=48).archive.before(3 * 365))):  # fmt: skip
        # Another past costs its side information, and the mixture finds out that it says nothing.
        assert 0.9 < alone / len(CODEC.encode(scene, other, 0.02)) < 1.01


def test_a_past_in_random_order_keeps_a_part_of_the_gain(place):
    scene, prior = parts(place)
    shuffled = EarthCompression(history="shuffled").fit(place.archive.before(3 * 365))
    assert np.allclose(shuffled.planes[0], prior.planes[0])
    sizes = [len(CODEC.encode(scene, each, 0.02)) for each in (prior, shuffled, None)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_the_gain_falls_with_what_changes_and_is_gone_when_everything_did():
    gains = []
    for change in (0.0, 0.1, 0.3, 1.0):
        sizes = np.zeros(2)
        for number in (1, 2):
            made = generated(number, change=change, side=64)
            prior = CODEC.fit(made.archive.before(int(made.archive.days[made.first_later])))
            for date in made.coded[:2]:
                scene = made.archive.scene(date)
                sizes += [len(CODEC.encode(scene, None, 0.02)), len(CODEC.encode(scene, prior, 0.02))]
        gains.append(sizes[0] / sizes[1])
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.4
    assert gains[-1] == pytest.approx(1.0, abs=0.02)


def test_a_stream_names_its_prior_and_refuses_every_other(place):
    scene, prior = parts(place)
    stream = CODEC.encode(scene, prior, 0.02)
    later = CODEC.fit(place.archive)
    with pytest.raises(BadValueError, match="another prior") as caught:
        CODEC.decode(stream, later)
    assert prior.identity.hex() in str(caught.value)
    with pytest.raises(BadFileError, match="another kind"):
        CODEC.decode(stream, None)
    with pytest.raises(BadFileError, match="another kind"):
        CODEC.decode(CODEC.encode(scene, None, 0.02), prior)


def test_damaged_and_truncated_streams_are_refused(place):
    scene, prior = parts(place)
    for known in (prior, None):
        stream = CODEC.encode(scene, known, 0.02)
        for place_ in range(0, len(stream), 41):
            damaged = bytearray(stream)
            damaged[place_] ^= 4
            with pytest.raises(BadFileError):
                CODEC.decode(bytes(damaged), known)
            with pytest.raises(BadFileError):
                CODEC.decode(stream[:place_], known)


def test_forged_streams_end_with_an_error_or_a_scene(place):
    """A checksum is no signature: who forges one gets an error or a wrong scene, and no endless loop."""
    scene, prior = parts(place)
    rng = np.random.default_rng(0)
    for known in (prior, None):
        stream = CODEC.encode(scene, known, 0.02)
        # All of the header, which is what could send a decoder astray, and some of the rest.
        for at in [*range(8, 48), *rng.integers(48, len(stream), 5)]:
            forged = bytearray(stream)
            forged[at] ^= int(rng.integers(1, 256))
            forged[3:7] = zlib.crc32(forged[7:]).to_bytes(4, "little")
            with contextlib.suppress(BadFileError, BadValueError, MemoryError):
                assert CODEC.decode(bytes(forged), known).values.ndim == 2


def test_a_scene_of_another_shape_is_refused(place):
    scene, prior = parts(place)
    with pytest.raises(BadValueError, match="another shape"):
        CODEC.encode(Scene(scene.values[1:], scene.clear[1:]), prior, 0.02)


@pytest.mark.parametrize("bound", [0.0, -0.1, np.nan, np.inf, 1e-12])
def test_bounds_that_are_none_are_refused(place, bound):
    scene, prior = parts(place)
    with pytest.raises(BadValueError):
        CODEC.encode(scene, prior, bound)


@pytest.mark.parametrize("bound", [1e-45, 1e-40, 5e-39, 1e-37])
def test_what_is_encoded_with_the_finest_bounds_is_decoded(bound):
    """A step that the decoder's header refuses is refused by the encoder."""
    values = (np.arange(12).reshape(3, 4) * 5 * bound).astype(np.float32)
    scene = Scene(values, np.ones(values.shape, np.bool_))
    if bound < 1e-38:
        with pytest.raises(BadValueError, match="finer than the values"):
            CODEC.encode(scene, None, bound)
        return
    decoded = CODEC.decode(CODEC.encode(scene, None, bound), None)
    assert np.abs(decoded.values.astype(np.float64) - values).max() <= bound


def test_a_bound_that_is_too_fine_for_the_largest_float32_is_refused():
    largest = np.full((2, 2), np.finfo(np.float32).max)
    with pytest.raises(BadValueError, match="finer than the values"):
        CODEC.encode(Scene(largest, np.ones((2, 2), np.bool_)), None, 9e29)


@pytest.mark.parametrize("wrong", [{"planes": 0}, {"planes": 16}, {"step": 0.0}, {"step": np.inf}, {"scenes": 0}])
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(BadValueError):
        EarthCompression(**wrong)


def test_constant_scenes_hidden_scenes_and_constant_pasts_come_back(place):
    _, prior = parts(place)
    shape = prior.shape
    all_clear = np.ones(shape, np.bool_)
    flat = Prior(np.full_like(prior.whole, 7), prior.step)
    for values, clear in (
        (np.full(shape, 0.25, np.float32), all_clear), (np.zeros(shape, np.float32), all_clear),
        (np.full(shape, np.nan, np.float32), ~all_clear),
    ):  # fmt: skip
        for known in (prior, flat, None):
            stream = CODEC.encode(Scene(values, clear), known, 0.02)
            assert len(stream) < 80
            decoded = CODEC.decode(stream, known)
            assert (decoded.clear == clear).all()
            assert np.abs(decoded.values - values)[clear].max(initial=0) <= 0.02


def test_later_dates_are_in_no_stream(place):
    """Whatever happens after the scene, its stream stays the same, and decodes where nothing later is known."""
    archive, date = place.archive, place.coded[0]
    day = int(archive.days[date])
    planted = archive.values.copy()
    planted[date + 1 :] = 0.777
    other = Archive(planted, archive.clear, archive.days)
    streams = [CODEC.encode(each.scene(date), CODEC.fit(each.before(day)), 0.02) for each in (archive, other)]
    assert streams[0] == streams[1]
    early = Archive(archive.values[:date], archive.clear[:date], archive.days[:date])
    decoded = CODEC.decode(streams[1], CODEC.fit(early))
    assert np.abs(decoded.values - archive.values[date])[decoded.clear].max() <= 0.0201


def test_the_rates_on_the_real_place():
    """Known answers of our own, as measured: bits per value of one later scene with and without the past."""
    if not is_here():
        pytest.skip("the data set eo-timeseries is not on this machine")
    place = observed()
    scene = place.archive.scene(48)
    prior = CODEC.fit(place.archive.before(int(place.archive.days[36])))
    rates = [8 * len(CODEC.encode(scene, each, 0.02)) / scene.values.size for each in (prior, None)]
    assert rates == pytest.approx([1.03, 1.53], abs=0.02)
