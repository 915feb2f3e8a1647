"""Every plan computes dense attention, forward and backward, whoever holds which block."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.block_attention import attend_block, block_gradients
from wavetank.training.context.attend import attend, schedule
from wavetank.training.context.fcp import distribute, rounds
from wavetank.training.context.rivals import contended

LENGTHS = [37, 3, 1, 20, 8, 5]


def arrays(lengths, seed=0, heads=4, key_heads=2, dim=3):
    draws = np.random.default_rng(seed)
    tokens = int(np.sum(lengths))
    q, grad = draws.normal(size=(2, heads, tokens, dim))
    k, v = draws.normal(size=(2, key_heads, tokens, dim))
    return q, k, v, grad


def dense(q, k, v, grad, lengths):
    """Attention of each sequence by itself, and its gradients."""
    found = [np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)]
    ends = np.cumsum(lengths)
    for end, length in zip(ends, lengths, strict=True):
        at = (slice(None), slice(end - length, end))
        whole = attend_block(q[at], k[at], v[at], 0)
        found[0][at] = whole.out
        for place, each in enumerate(block_gradients(q[at], k[at], v[at], whole, grad[at], 0), start=1):
            found[place][at] = each
    return found


def assert_equal(found, expected):
    for name, each in zip(("out", "query_grad", "key_grad", "value_grad"), expected, strict=True):
        assert np.abs(getattr(found, name) - each).max() < 1e-12


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 20))
def test_forward_and_backward_are_those_of_dense_attention(lengths, ranks, block):
    q, k, v, grad = arrays(lengths)
    plan = distribute(np.array(lengths), ranks, block=block)
    assert_equal(attend(q, k, v, plan, out_grad=grad), dense(q, k, v, grad, lengths))


def test_any_placement_and_any_rounds_give_the_same():
    q, k, v, grad = arrays(LENGTHS)
    plan = distribute(np.array(LENGTHS), 4, block=4)
    scattered = replace(plan, owner=np.random.default_rng(3).integers(0, 4, plan.owner.size))
    blocks, targets = scattered.edges
    colours = contended(scattered.owner[blocks], targets, 4)
    assert_equal(attend(q, k, v, scattered, out_grad=grad, colours=colours), dense(q, k, v, grad, LENGTHS))


def test_without_a_gradient_there_is_no_backward_pass():
    q, k, v, grad = arrays(LENGTHS)
    found = attend(q, k, v, distribute(np.array(LENGTHS), 3, block=8))
    assert np.abs(found.out - dense(q, k, v, grad, LENGTHS)[0]).max() < 1e-12
    assert found.query_grad is found.key_grad is found.value_grad is None


def test_a_lost_message_is_a_wrong_result():
    q, k, v, grad = arrays(LENGTHS)
    plan = distribute(np.array(LENGTHS), 4, block=4)
    deaf = replace(plan, sequence=plan.sequence.copy())
    blocks, targets = plan.edges
    # The plan's messages without the first one.
    deaf.__dict__["edges"] = (blocks[1:], targets[1:])
    assert np.abs(attend(q, k, v, deaf).out - dense(q, k, v, grad, LENGTHS)[0]).max() > 1e-3


def test_two_messages_of_a_rank_in_one_round_are_refused():
    plan = distribute(np.array(LENGTHS), 4, block=4)
    colours = rounds(plan)
    assert schedule(plan, colours, 0).count == colours.max() + 1
    with pytest.raises(BadValueError, match="one message each way"):
        attend(*arrays(LENGTHS)[:3], plan, colours=np.zeros_like(colours))


def test_arrays_of_other_tokens_are_refused():
    q, k, v, grad = arrays(LENGTHS)
    plan = distribute(np.array([5, 6]), 2)
    with pytest.raises(BadValueError, match="other tokens"):
        attend(q, k, v, plan)
    plan = distribute(np.array(LENGTHS), 2)
    with pytest.raises(BadValueError, match="another shape"):
        attend(q, k, v, plan, out_grad=grad[:2])


def test_a_message_without_a_round_is_refused_and_not_lost():
    plan = distribute(np.array(LENGTHS), 4, block=4)
    colours = rounds(plan)
    never = colours.copy()
    never[0] = -1
    for wrong in (never, colours[:-1], np.append(colours, 0)):
        with pytest.raises(BadValueError, match="Every message"):
            attend(*arrays(LENGTHS)[:3], plan, colours=wrong)


def test_whole_numbers_are_numbers():
    ones = np.ones((2, sum(LENGTHS), 3), int)
    found = attend(ones, ones, ones, distribute(np.array(LENGTHS), 3, block=4), out_grad=np.ones(ones.shape))
    assert found.out == pytest.approx(np.ones(ones.shape))
    assert np.abs(found.query_grad).max() < 1e-12
