"""The tasks: balanced answers, by definition, and accuracies that a constant answer cannot raise."""

import numpy as np
import pytest

from wavetank.training.scenes.mixing import decode_grid, encode_grid, mixture
from wavetank.training.scenes.places import is_here, observed
from wavetank.training.scenes.tasks import TASKS, Known, balanced_accuracy, change, green

RNG = np.random.default_rng(4)


def known(clear=None):
    typical, previous = RNG.random((2, 20, 25))
    return Known(typical, previous, np.ones((20, 25), np.bool_) if clear is None else clear)


@pytest.mark.parametrize("name", TASKS)
def test_half_of_the_answers_are_yes_and_the_scene_itself_answers_right(name):
    about, scene = known(), RNG.random((20, 25))
    truth = TASKS[name](scene, about)
    assert truth.mean() == pytest.approx(0.5, abs=0.03)
    assert balanced_accuracy(truth, truth) == 1.0
    assert balanced_accuracy(np.ones_like(truth), truth) == 0.5
    assert balanced_accuracy(~truth, truth) == 0.0
    # More light everywhere changes no answer.
    assert (TASKS[name](scene + 0.25, about) == truth).all()


def test_accuracy_is_the_mean_over_both_answers():
    truth = np.array([True] * 9 + [False])
    assert balanced_accuracy(np.ones(10, np.bool_), truth) == 0.5
    assert balanced_accuracy(np.array([True] * 6 + [False] * 4), truth) == pytest.approx((6 / 9 + 1) / 2)
    assert balanced_accuracy(np.ones(3, np.bool_), np.ones(3, np.bool_)) == 1.0


def test_fields_are_squares_of_which_clouds_take_their_part():
    clear = np.ones((12, 13), np.bool_)
    clear[:5, :5] = False
    clear[5, 5:10] = False
    about = Known(np.zeros((12, 13)), np.zeros((12, 13)), clear)
    scene = np.zeros((12, 13))
    scene[5:10, 5:10] = 1.0
    scene[5, 5:10] = np.nan
    # Four fields fit; one is hidden, one rose.
    assert change(scene, about).tolist() == [False, False, True]


def test_a_guess_without_a_byte_scores_958_per_cent_on_the_unbalanced_question():
    if not is_here():
        pytest.skip("the data set eo-timeseries is not on this machine")
    place = observed()
    green_everywhere, masks = [], []
    for date in place.coded:
        scene = place.archive.scene(date)
        truth = green(scene.values.astype(np.float64), Known(scene.values, scene.values, scene.clear))
        green_everywhere.append(truth.mean())
        # The answer itself, coded without loss, is right everywhere.
        whole = truth.reshape(scene.values.shape).astype(np.int64)
        data = encode_grid(whole, scene.clear, 0, 2, np.zeros((0, *whole.shape)), mixture(0))
        again, _ = decode_grid(data, whole.shape, False, 0, 2, np.zeros((0, *whole.shape)), mixture(0))
        assert (again == whole).all()
        masks.append(len(data))
    assert np.mean(green_everywhere) == pytest.approx(0.958, abs=0.001)
    assert sorted(green_everywhere)[1] > 0.965
    # About 366 times smaller than float32, as measured before.
    assert 4 * 10_100 / np.mean(masks) > 250
