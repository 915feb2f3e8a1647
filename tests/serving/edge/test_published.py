"""The published profile."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.edge.published import published_profile


def test_a_batch_of_five_has_the_published_latency_and_others_grow_with_the_batch():
    profile = published_profile()
    assert profile.seconds(2, 2, 5) == pytest.approx(0.01261)
    assert profile.seconds(0, 0, 1) == pytest.approx(0.00165 * 0.68)
    assert profile.seconds(0, 3, 10) == pytest.approx(0.00506 * 1.4)
    assert profile.accuracy[1] == (0.5990, 0.7497, 0.8135, 0.8134)
    assert published_profile(fixed=1.0).seconds(0, 0, 1) == pytest.approx(0.00165)


@pytest.mark.parametrize("wrong", [{"fixed": 1.1}, {"fixed": -0.1}, {"fixed": float("nan")}, {"max_batch": 0}])
def test_profiles_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadValueError):
        published_profile(**wrong)
