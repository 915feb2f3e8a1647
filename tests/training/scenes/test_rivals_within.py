"""Image codecs within a budget: it holds, more bytes are no worse, and without room the mean is sent, or nothing."""

import numpy as np
import pytest

from wavetank.errors import BadFileError
from wavetank.training.scenes.interface import Scene
from wavetank.training.scenes.places import generated
from wavetank.training.scenes.rivals_within import ImageWithin


@pytest.mark.parametrize("name", ["jpeg-xl", "jpeg-2000"])
def test_budgets_hold_and_more_bytes_are_no_worse(name):
    pytest.importorskip("imagecodecs", reason="the library imagecodecs is not installed")
    place, codec = generated(1, side=48), ImageWithin(codec=name)
    scene, prior = place.archive.scene(place.coded[0]), codec.fit(place.archive.before(3 * 365))
    errors = []
    for budget in (4, 8, 150, 400, 1500, 6000):
        stream = codec.encode(scene, prior, budget)
        assert len(stream) <= budget
        errors.append(float(np.abs(codec.decode(stream, prior).values - scene.values)[scene.clear].mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[1]
    assert codec.encode(scene, prior, 4) == b""
    assert np.ptp(codec.decode(codec.encode(scene, prior, 8), prior).values) == 0
    assert (codec.decode(b"", prior).values == codec.guess(prior)).all()


def test_an_image_of_another_shape_is_refused_and_a_hidden_scene_is_nothing():
    pytest.importorskip("imagecodecs", reason="the library imagecodecs is not installed")
    small, large = generated(1, side=24), generated(1, side=32)
    codec = ImageWithin()
    priors = [codec.fit(each.archive.before(3 * 365)) for each in (small, large)]
    scene = small.archive.scene(small.coded[0])
    stream = codec.encode(scene, priors[0], 3000)
    with pytest.raises(BadFileError, match="another shape"):
        codec.decode(stream, priors[1])
    assert codec.encode(Scene(scene.values, np.zeros_like(scene.clear)), priors[0], 3000) == b""
