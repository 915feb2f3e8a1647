"""Chunks by hand, work that is all done, and mixes that slow every stage alike."""

from dataclasses import replace

import numpy as np
import pytest
from tests.training.sections.test_placement import job

from wavetank.training.sections.omni import MegaScaleOmni, encoder_chunks
from wavetank.training.sections.placement_rivals import FirstStage


def tiny(image_ps, bins, **words):
    given = job(stages=2, stage_gpus=2, microbatches=2, replicas=1)
    image_ps = np.array(image_ps, np.int64)
    words = {"exchange_ps": np.full(image_ps.size, 3), "image_bytes": np.ones(image_ps.size)} | words
    return replace(given, image_ps=image_ps, bin=np.array(bins, np.int64), **words)


def test_long_images_are_shared_and_short_ones_go_where_least_is():
    # 100 is above the mean of 120 / 4: half on each GPU of a stage, and 3 to exchange.
    assert encoder_chunks(tiny([100, 10, 10], [0, 0, 0]))[0, :, 0].tolist() == [53, 10]
    assert encoder_chunks(tiny([100, 10, 10], [0, 0, 0]), shared=False)[0, :, 0].tolist() == [100, 10]
    # As much for each GPU: nothing is long.
    assert encoder_chunks(tiny([10] * 4, [0] * 4))[0, :, 0].tolist() == [10, 10]
    # Texts have no chunk, and the next micro-batch goes where less has been.
    assert encoder_chunks(tiny([100], [1]))[0, :, 0].tolist() == [0, 0]
    assert encoder_chunks(tiny([100, 60], [0, 1]))[0].tolist() == [[53, 0], [0, 33]]


def test_sharing_costs_nothing_where_it_would_take_longer():
    slow = tiny([100], [0], exchange_ps=np.array([1000]))
    assert encoder_chunks(slow)[0].max() == 100


def test_chunks_have_all_the_work_and_no_more_than_exchanges_beside():
    given = job()
    chunks = encoder_chunks(given)
    assert chunks.shape == (2, 4, 12)
    gpus = given.stages * given.stage_gpus
    assert np.all(chunks.sum(1) * given.stage_gpus >= given.work_ps - gpus * given.image_ps.size)
    assert np.all(chunks.max(1) >= given.work_ps // gpus)


def test_more_images_slow_it_down_as_much_as_their_work_and_a_first_stage_in_proportion():
    ours, first, oracle = [], [], []
    for images in (0.1, 0.5, 0.9):
        given = job(images=images, microbatches=96, replicas=1)
        ours.append(MegaScaleOmni().step(given, given).time_ps)
        first.append(FirstStage().step(given, given).time_ps)
        oracle.append(given.oracle_ps)
    assert all(each <= 1.12 * least for each, least in zip(ours, oracle, strict=True))
    # In the first stage each step of the share adds as much.
    assert first[2] - first[1] == pytest.approx(first[1] - first[0], rel=0.05)
    assert first[2] / first[0] > 1.15 * ours[2] / ours[0]


def test_texts_alone_take_what_the_model_takes():
    texts = job(images=0.0)
    took = MegaScaleOmni().step(texts, texts)
    assert took.time_ps == (12 + 3) * 3 * 20 * texts.layer_ps
    assert took == replace_gpus(FirstStage().step(texts, texts), took)


def replace_gpus(one, other):
    return one._replace(gpus=other.gpus, held=other.held)


def test_a_group_is_never_larger_than_there_are_replicas():
    given = job(replicas=2)
    assert MegaScaleOmni(group=64).step(given, given) == MegaScaleOmni(group=2).step(given, given)
