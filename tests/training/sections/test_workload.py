"""The samples: shares and work as asked for, times by hand, and noise that leaves texts without an encoder."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.training.sections.workload import critical_ps, disturbed, draw


def batch(seed=0, **words):
    chosen = {"ranks": 2, "per_rank": 16, "images": 0.5, "work": 0.5, "stages": 8, "stage_gpus": 8, "encoder_gpus": 8}
    chosen |= {"queue": 4, "model": model("Llama-3.1-70B"), "device": device("H100-SXM")}
    return draw(seed, **(chosen | words))


def test_a_sample_takes_its_operations_over_those_of_the_gpus():
    llama, h100 = model("Llama-3.1-70B"), device("H100-SXM")
    (found,) = critical_ps(np.array([1000]), llama, h100, 64, 0.5)
    flops = 6 * llama.parameters * 1000 + 3 * llama.prefill_flops_per_pair * 1000**2 / 2
    assert found == pytest.approx(flops / (64 * 9.89e14 * 0.5) * 1e12, rel=1e-9)


def test_shares_of_images_and_work_are_as_asked_for():
    for images, work in ((0.25, 0.5), (0.5, 1.25), (1.0, 1.0)):
        found = batch(images=images, work=work)
        with_image = found.forward_ps > 0
        assert with_image.sum() == round(images * 32)
        assert 3 * found.forward_ps.sum() / found.critical_ps.sum() == pytest.approx(work, rel=1e-6)
        assert np.array_equal(found.backward_ps, 2 * found.forward_ps)
    assert batch(images=0.0).forward_ps.max() == 0
    assert (batch(images=0.001).forward_ps > 0).sum() == 1


def test_equal_seeds_give_equal_samples_whatever_the_share_of_images():
    one, same, other = batch(1), batch(1), batch(2)
    assert np.array_equal(one.tokens, same.tokens)
    assert not np.array_equal(one.tokens, other.tokens)
    fewer = batch(1, images=0.25)
    assert set(np.flatnonzero(fewer.forward_ps)) < set(np.flatnonzero(one.forward_ps))


def test_documents_are_no_longer_than_the_longest():
    found = batch(lengths="documents", longest_tokens=5000, images=0.0)
    assert 1 <= found.tokens.min() <= found.tokens.max() <= 5000


def test_noise_changes_times_and_nothing_else():
    given = batch()
    assert disturbed(given, 0, 0.0) is given
    found = disturbed(given, 0, 0.2)
    assert np.array_equal(found.forward_ps > 0, given.forward_ps > 0)
    image = given.forward_ps > 0
    ratio = found.forward_ps[image] / given.forward_ps[image]
    assert ratio == pytest.approx(found.backward_ps[image] / given.backward_ps[image], rel=1e-6)
    assert 0.1 < np.log(found.critical_ps / given.critical_ps).std() < 0.3
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(BadValueError, match="Noise"):
            disturbed(given, 0, wrong)


WRONG = [{"stages": 7}, {"images": 1.5}, {"work": -1.0}, {"work": float("nan")}, {"ranks": 0}]


@pytest.mark.parametrize("words", WRONG)
def test_a_batch_that_cannot_be_is_refused(words):
    with pytest.raises(BadValueError):
        batch(**words)
