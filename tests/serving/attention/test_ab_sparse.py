"""Lengths that are learned from planted heads: short where tokens stand alone, and worth it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.attention.ab_sparse import ABSparse
from wavetank.serving.attention.recall import block_recalls
from wavetank.serving.attention.workload import Ways, planted

SHAPE = {"tokens": 8192, "dim": 32, "group": 2, "steps": 2, "seed": 0}
ALONE_AND_IN_RUNS = Ways(np.array([1, 128, 2, 100]), np.array([0.004, 0.015] * 2), np.array([8.0] * 4))


def test_heads_whose_tokens_stand_alone_get_short_blocks_and_find_more() -> None:
    learn, use = (planted(ALONE_AND_IN_RUNS, text=text, **SHAPE) for text in ("calibration", "use"))
    system = ABSparse(bits=32)
    kept = system.build(use, 328, learn)
    blocks = kept.blocks
    assert max(blocks[0], blocks[2]) < min(blocks[1], blocks[3])
    assert float((1 / blocks).sum()) <= 4 / 32
    # On the text that was not learned from, with as many tokens.
    recalls = block_recalls(use, 0.04, system.lengths, "box", "sum", 1.0)
    chosen = [recalls[head, system.lengths.index(block)] for head, block in enumerate(blocks.tolist())]
    assert np.mean(chosen) > recalls[:, 1].mean() + 0.03


def test_both_searches_keep_to_the_summaries() -> None:
    recalls = np.sort(np.random.default_rng(0).random((8, 4)), 1)[:, ::-1]
    for search in ("exact", "greedy"):
        for average in (16, 32, 64):
            blocks = ABSparse(search=search, average=average).blocks(recalls)
            assert float((1 / blocks).sum()) <= 8 / average
            assert set(blocks.tolist()) <= {16, 32, 64, 128}


def test_systems_are_equal_by_their_parameters_and_refuse_others() -> None:
    system = ABSparse(lengths=(8, 64), average=32)
    assert pickle.loads(pickle.dumps(system)) == system != ABSparse()
    for wrong in ({"average": 0}, {"reach": 2.0}, {"threads": 0}):
        with pytest.raises(BadValueError):
            ABSparse(**wrong)
    # Before anything is learned.
    for odd in ({"average": 48}, {"lengths": ()}, {"lengths": (64, 16)}, {"lengths": (48, 64)}):
        with pytest.raises(BadValueError, match="divide"):
            ABSparse(**odd)
