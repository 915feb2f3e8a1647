"""Blocks of keys, merged in any order, against all keys at once."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.block_attention import attend_block, block_gradients, merge, nothing


def arrays(seed=0, heads=4, key_heads=2, queries=7, keys=11, dim=5, scale=1.0):
    draws = np.random.default_rng(seed)
    q = scale * draws.normal(size=(heads, queries, dim))
    k, v = draws.normal(size=(2, key_heads, keys, dim))
    return q, k, v


def dense(q, k, v, ahead=None):
    k, v = (np.repeat(each, q.shape[0] // each.shape[0], axis=0) for each in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
    if ahead is not None:
        scores[:, np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + ahead] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("ahead", [None, 0, 4, 20])
def test_one_block_is_dense_attention(ahead):
    q, k, v = arrays()
    assert attend_block(q, k, v, ahead).out == pytest.approx(dense(q, k, v, ahead), abs=1e-14)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_parts_merge_to_the_whole_in_any_order(scale):
    q, k, v = arrays(scale=scale)
    parts = [attend_block(q, k[:, a:b], v[:, a:b], 4 - a) for a, b in ((0, 3), (3, 8), (8, 11))]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        found = nothing(q)
        for each in order:
            found = merge(found, parts[each])
        assert found.out == pytest.approx(dense(q, k, v, 4), abs=1e-12)


def test_keys_that_nobody_may_see_change_nothing():
    q, k, v = arrays()
    unseen = attend_block(q, k, v, -100)
    assert np.all(unseen.out == 0)
    assert np.all(np.isneginf(unseen.log_sum))
    seen = attend_block(q, k, v, 3)
    for both in (merge(seen, unseen), merge(unseen, seen)):
        assert both.out == pytest.approx(seen.out, abs=1e-15)
    assert np.all(merge(unseen, nothing(q)).out == 0)


def test_gradients_of_blocks_sum_to_those_of_the_whole():
    q, k, v = arrays(queries=3, keys=4, dim=2)
    weight = np.random.default_rng(1).normal(size=q.shape)
    whole = attend_block(q, k, v, 1)
    found = [np.zeros_like(each) for each in (q, k, v)]
    for a, b in ((0, 2), (2, 4)):
        q_grad, k_grad, v_grad = block_gradients(q, k[:, a:b], v[:, a:b], whole, weight, 1 - a)
        found[0] += q_grad
        found[1][:, a:b], found[2][:, a:b] = k_grad, v_grad
    step = 1e-6
    for place, array in enumerate((q, k, v)):
        for index in np.ndindex(array.shape):
            kept = array[index]
            values = []
            for sign in (1, -1):
                array[index] = kept + sign * step
                values.append(float((dense(q, k, v, 1) * weight).sum()))
            array[index] = kept
            assert found[place][index] == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("words", [{"key_heads": 3}, {"key_heads": 8}])
def test_heads_that_do_not_divide_are_refused(words):
    with pytest.raises(BadValueError, match="go together"):
        attend_block(*arrays(**words))


def test_keys_of_another_width_are_refused():
    q, k, v = arrays()
    with pytest.raises(BadValueError, match="go together"):
        attend_block(q, k[:, :, :4], v[:, :, :4])
    with pytest.raises(BadValueError, match="go together"):
        attend_block(q, k, v[:, :3])
    for empty in ((q[0], k, v), (q, k[:0], v[:0]), (q[:, :, :0], k[:, :, :0], v[:, :, :0])):
        with pytest.raises(BadValueError, match="go together"):
            attend_block(*empty)


def test_queries_that_see_nothing_have_and_give_no_gradient():
    q, k, v = arrays()
    weight = np.random.default_rng(1).normal(size=q.shape)
    # The first two queries stand before all keys.
    whole = attend_block(q, k, v, -2)
    found = block_gradients(q, k, v, whole, weight, -2)
    seeing = q[:, 2:], k, v
    rest = block_gradients(*seeing, attend_block(*seeing, 0), weight[:, 2:], 0)
    assert np.all(found[0][:, :2] == 0)
    assert np.all(found[0][:, 2] == pytest.approx(rest[0][:, 0], abs=1e-14))
    for each, other in zip(found[1:], rest[1:], strict=True):
        assert each == pytest.approx(other, abs=1e-14)


def test_a_block_without_keys_is_nothing():
    q, k, v = arrays()
    none = attend_block(q, k[:, :0], v[:, :0], 0)
    assert np.all(none.out == 0)
    assert np.all(np.isneginf(none.log_sum))
    gradients = block_gradients(q, k[:, :0], v[:, :0], attend_block(q, k, v), q, 0)
    assert [each.shape for each in gradients] == [q.shape, k[:, :0].shape, v[:, :0].shape]
    assert np.all(gradients[0] == 0)
