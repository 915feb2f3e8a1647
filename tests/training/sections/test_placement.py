"""The job by hand, images in every micro-batch once, and dealing that keeps to LPT's bound."""

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms.catalog import device
from wavetank.training.sections.placement import SHAPES, Network, draw_job, regrouped, shape, stage_layers


def job(seed=0, **words):
    chosen = {"name": "B", "images": 0.5, "replicas": 2, "microbatches": 12, "stages": 4, "stage_gpus": 4}
    return draw_job(seed, **(chosen | {"device": device("H100-SXM"), "share": 0.5} | words))


def test_shapes_have_the_weights_of_the_source():
    weights = {name: [12 * each.layers * each.hidden**2 / 1e9 for each in (s.encoder, s.model)]
               for name, s in SHAPES.items()}  # fmt: skip
    wanted = {"A": [1, 12], "B": [2.4, 70], "C": [10, 70], "D": [10, 175]}
    for name, found in weights.items():
        assert found == pytest.approx(wanted[name], rel=0.1)
    with pytest.raises(UnknownNameError):
        shape("E")


def test_operations_are_those_of_weights_and_of_pairs():
    tokens = np.array([100.0])
    assert Network(layers=3, hidden=10).flops(tokens)[0] == 3 * (24 * 100 * 100 + 4 * 10 * 100 * 100)
    assert Network(layers=3, hidden=10, causal=True).flops(tokens)[0] == 3 * (24 * 100 * 100 + 4 * 10 * 5000)


def test_a_job_has_the_share_of_images_and_the_work_of_both():
    given = job()
    assert given.tokens == 2 * 12 * 16_384
    assert given.work_ps.shape == (2, 12)
    assert given.work_ps.sum() == given.image_ps.sum()
    model = 3 * given.layers * given.layer_ps * 12 / 4
    encoder = 3 * given.image_ps.sum() / (2 * 4 * 4)
    assert given.oracle_ps == pytest.approx(model + encoder, rel=1e-9)
    flops = 80 * (24 * 8192**2 * 16_384 + 4 * 8192 * 16_384**2 / 2)
    assert given.layers * given.layer_ps == pytest.approx(flops / (9.89e14 * 0.5 * 4) * 1e12, rel=1e-6)
    assert job(images=0.0).image_ps.size == 0
    assert job(images=0.9).image_ps.sum() == pytest.approx(9 * job(images=0.1).image_ps.sum(), rel=0.2)


def test_a_skewed_loader_has_more_images_on_some_replicas_until_they_are_dealt():
    skewed = job(replicas=4, skew=1.0, images=0.3)
    loads = skewed.work_ps.sum(1)
    assert loads.max() > 1.3 * loads.mean()
    dealt = regrouped(skewed, 4).work_ps.sum(1)
    assert dealt.max() < 1.02 * dealt.mean()


def test_dealing_keeps_every_image_in_its_group_once_and_within_the_bound_of_lpt():
    given = job(replicas=4, microbatches=6)
    for group in (1, 2, 4):
        dealt = regrouped(given, group)
        assert np.array_equal(dealt.image_ps, given.image_ps)
        assert np.array_equal(dealt.bin // 6 // group, given.bin // 6 // group)
        bins = 6 * group
        for first in range(0, 4, group):
            work = dealt.work_ps[first : first + group].ravel()
            assert given.image_ps.max() < work.mean()
            assert work.max() / work.mean() <= 4 / 3 - 1 / (3 * bins)
    assert regrouped(given, 4).work_ps.max() < given.work_ps.max()
    for group in (0, 3):
        with pytest.raises(BadValueError, match="divide"):
            regrouped(given, group)


def test_a_group_looks_at_its_own_images_alone():
    given = job(replicas=4, microbatches=6)
    mine = given.bin < 12
    # Other images in the other group change nothing here.
    other = replace(given, image_ps=np.where(mine, given.image_ps, 7 * given.image_ps))
    assert np.array_equal(regrouped(given, 2).bin[mine], regrouped(other, 2).bin[mine])


def test_layers_of_stages_are_all_there():
    given = job()
    assert stage_layers(given, 20).tolist() == [20, 20, 20, 20]
    assert stage_layers(given, 0).tolist() == [0, 26, 27, 27]
    assert stage_layers(given, 11).sum() == 80
    for first in (-1, 21):
        with pytest.raises(BadValueError):
            stage_layers(given, first)


@pytest.mark.parametrize("words", [{"images": 1.0}, {"images": -0.1}, {"stages": 3}])
def test_jobs_that_cannot_be_are_refused(words):
    with pytest.raises(BadValueError):
        job(**words)


def test_images_without_a_micro_batch_are_refused():
    given = job()
    for change in ({"bin": given.bin + 24}, {"image_ps": given.image_ps[1:]}, {"layers": 3}):
        with pytest.raises(BadValueError):
            replace(given, **change)
