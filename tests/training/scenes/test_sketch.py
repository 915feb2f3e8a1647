"""Sketches: budgets that hold, prefixes that decode, and errors that only fall with more bytes."""

import itertools

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.scenes.interface import Scene
from wavetank.training.scenes.places import generated
from wavetank.training.scenes.sketch import HEAD_BYTES, Guess, Sketch, cut

CODEC = Sketch()


@pytest.fixture(scope="module")
def place():
    return generated(1, side=48)


@pytest.fixture(scope="module")
def parts(place):
    # Without any cloud: the transform keeps lengths of whole scenes.
    scene = next(place.archive.scene(date) for date in place.coded if place.archive.clear[date].all())
    return scene, CODEC.fit(place.archive.before(3 * 365))


def error(scene, decoded):
    return float(((decoded.values.astype(np.float64) - scene.values)[scene.clear] ** 2).sum())


@pytest.mark.parametrize("history", ["own", "none"])
def test_budgets_hold_and_more_bytes_are_never_worse(place, parts, history):
    codec = Sketch(history=history)
    scene, prior = parts[0], codec.fit(place.archive.before(3 * 365))
    errors = []
    for budget in (4, 8, 16, 40, 100, 300, 1000, 4000):
        stream = codec.encode(scene, prior, budget)
        assert HEAD_BYTES <= len(stream) <= budget
        errors.append(error(scene, codec.decode(stream, prior)))
    assert all(after <= before * 1.02 for before, after in itertools.pairwise(errors))
    assert errors[-1] < 1e-3 * errors[0]


def test_four_bytes_are_the_guess(parts):
    scene, prior = parts
    decoded = CODEC.decode(CODEC.encode(scene, prior, 4), prior)
    assert (decoded.values == CODEC.guess(prior)).all()
    assert np.allclose(CODEC.guess(prior), prior.planes[0])


def test_every_beginning_is_a_sketch_and_a_longer_one_is_never_worse(parts):
    scene, prior = parts
    stream = CODEC.encode(scene, prior, 600)
    errors = [error(scene, CODEC.decode(cut(stream, prior, size), prior)) for size in range(4, len(stream) + 1)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.1 * errors[0]
    assert cut(stream, prior, 10_000) == stream


def test_the_past_helps_where_bytes_are_few(place, parts):
    scene, prior = parts
    alone = Sketch(history="none")
    nothing = alone.fit(place.archive.before(3 * 365))
    assert np.ptp(nothing.planes) == 0
    for budget in (40, 200):
        with_past = error(scene, CODEC.decode(CODEC.encode(scene, prior, budget), prior))
        without = error(scene, alone.decode(alone.encode(scene, nothing, budget), nothing))
        assert with_past < 0.7 * without


def test_damage_cuts_and_other_priors_are_refused(place, parts):
    scene, prior = parts
    stream = CODEC.encode(scene, prior, 100)
    for at in range(len(stream)):
        damaged = bytearray(stream)
        damaged[at] ^= 2
        with pytest.raises(BadFileError):
            CODEC.decode(bytes(damaged), prior)
    for size in (0, 3, 50):
        with pytest.raises(BadFileError):
            CODEC.decode(stream[:size], prior)
    with pytest.raises(BadFileError, match="another prior"):
        CODEC.decode(stream, CODEC.fit(place.archive))


def test_budgets_without_room_and_other_shapes_are_refused(parts):
    scene, prior = parts
    stream = CODEC.encode(scene, prior, 60)
    for call in (lambda: CODEC.encode(scene, prior, 3), lambda: cut(stream, prior, 3)):
        with pytest.raises(BadValueError, match="does not hold the head"):
            call()
    with pytest.raises(BadValueError, match="another shape"):
        CODEC.encode(Scene(scene.values[1:], scene.clear[1:]), prior, 60)


def test_impossible_side_information_is_refused(parts):
    from wavetank.training.scenes.sketch import _sealed

    _, prior = parts
    for body in (b"\x09", b"\x02\x00", b"\x01\xff\x00\x00\x00\x3c", b"\x01\x00\x00\x7e\x00\x3c"):
        with pytest.raises(BadFileError, match="impossible"):
            CODEC.decode(_sealed(body, prior), prior)


def test_clouds_are_neither_seen_nor_counted(parts):
    scene, prior = parts
    clear = scene.clear.copy()
    clear[10:20, 10:40] = False
    hidden = Scene(np.where(clear, scene.values, np.float32(np.nan)), clear)
    decoded = CODEC.decode(CODEC.encode(hidden, prior, 400), prior)
    assert np.isfinite(decoded.values).all()
    assert error(hidden, decoded) < 2 * error(scene, CODEC.decode(CODEC.encode(scene, prior, 400), prior))


def test_a_guess_is_four_bytes_at_any_budget(parts):
    scene, prior = parts
    stream = Guess().encode(scene, prior, 500)
    assert len(stream) == HEAD_BYTES
    assert (Guess().decode(stream, prior).values == Guess().guess(prior)).all()
