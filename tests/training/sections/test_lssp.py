"""Ranks that share long samples against one rank, differences, and an attention written out in loops."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.sections.lssp import Layer, encoded, owners

DRAWS = np.random.default_rng(0)
SAMPLES = [DRAWS.normal(size=(rows, 5)) for rows in (1, 17, 4, 30, 9, 3)]
GRADS = [DRAWS.normal(size=each.shape) for each in SAMPLES]
LAYER = Layer(qkv=DRAWS.normal(size=(3, 5, 4, 3)), out=DRAWS.normal(size=(4, 3, 5)))


def flat(found):
    return [*found[0], *found[1], *found[2:]]


def in_loops(rows, layer):
    out = np.zeros_like(rows)
    for h in range(layer.heads):
        q, k, v = (rows @ layer.qkv[c, :, h] for c in range(3))
        for i in range(len(rows)):
            scores = np.array([np.exp(q[i] @ k[j] / np.sqrt(3)) for j in range(len(rows))])
            out[i] += (scores @ v / scores.sum()) @ layer.out[h]
    return out


def test_one_rank_computes_attention_and_its_gradients():
    outputs, inputs, of_qkv, of_out = encoded(SAMPLES, GRADS, LAYER, 1, np.inf)
    for found, rows in zip(outputs, SAMPLES, strict=True):
        assert np.abs(found - in_loops(rows, LAYER)).max() < 1e-12

    def loss(samples, layer):
        return sum(float((in_loops(s, layer) * g).sum()) for s, g in zip(samples, GRADS, strict=True))

    for name, grad, at in (("qkv", of_qkv, (0, 2, 1, 2)), ("qkv", of_qkv, (1, 0, 3, 0)), ("out", of_out, (2, 1, 4))):
        ends = []
        for change in (1e-6, -1e-6):
            weights = getattr(LAYER, name).copy()
            weights[at] += change
            parts = {"qkv": LAYER.qkv, "out": LAYER.out} | {name: weights}
            ends.append(loss(SAMPLES, Layer(**parts)))
        assert grad[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)
    ends = []
    for change in (1e-6, -1e-6):
        moved = [each.copy() for each in SAMPLES]
        moved[1][3, 2] += change
        ends.append(loss(moved, LAYER))
    assert inputs[1][3, 2] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("threshold", [0.0, 1.0, 9.0, 29.0, np.inf])
def test_any_threshold_and_any_number_of_ranks_gives_the_same(ranks, threshold):
    whole = flat(encoded(SAMPLES, GRADS, LAYER, 1, np.inf))
    found = flat(encoded(SAMPLES, GRADS, LAYER, ranks, threshold))
    assert max(float(np.abs(a - b).max()) for a, b in zip(found, whole, strict=True)) < 1e-12


def test_single_precision_differs_by_its_rounding():
    samples, grads = ([each.astype(np.float32) for each in given] for given in (SAMPLES, GRADS))
    layer = Layer(qkv=LAYER.qkv.astype(np.float32), out=LAYER.out.astype(np.float32))
    whole, found = (flat(encoded(samples, grads, layer, ranks, 9.0)) for ranks in (1, 4))
    for one, other in zip(found, whole, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * max(1.0, float(np.abs(other).max()))


def test_short_samples_have_one_rank_and_long_ones_none():
    lengths = np.array([1, 17, 4, 30, 9, 3])
    assert owners(lengths, 2, 9.0).tolist() == [1, -1, 1, -1, 0, 1]
    assert set(owners(lengths, 4, 0.0)) == {-1}
    assert owners(lengths, 4, np.inf).min() >= 0
    for ranks, threshold in ((0, 1.0), (2, -1.0), (2, float("nan"))):
        with pytest.raises(BadValueError, match="threshold"):
            owners(lengths, ranks, threshold)
