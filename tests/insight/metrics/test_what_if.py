"""Replays: with links as they were every kernel starts when it did; with faster ones what follows comes earlier."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.metrics.what_if import makespan_ns, replay_graph

KERNELS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 3), st.booleans()), min_size=1, max_size=30
)


def arrays(drawn):
    start = np.array([each[0] for each in drawn], np.int64)
    took = np.array([each[1] for each in drawn], np.int64)
    return start, start + took, np.array([each[2] for each in drawn], np.int64), np.array([each[3] for each in drawn])


@given(drawn=KERNELS)
def test_with_unchanged_links_every_kernel_ends_when_it_did(drawn):
    start, end, lane, talks = arrays(drawn)
    times = replay_graph(start, end, lane, talks).times()
    order = np.lexsort((end, start))
    assert (times.end_ps[1::2] == (end[order] - start.min()) * 1000).all()


@given(drawn=KERNELS)
def test_faster_links_never_delay_and_never_more_than_halve(drawn):
    start, end, lane, talks = arrays(drawn)
    before = makespan_ns(start, end, lane, talks)
    after = makespan_ns(start, end, lane, talks, faster=2.0)
    assert before / 2 - 1e-3 * len(drawn) <= after <= before
    if not talks.any():
        assert after == before


def test_what_follows_a_collective_comes_earlier_by_what_it_saves():
    start, end = np.array([0, 10, 35]), np.array([10, 30, 45])
    # The last starts 5 ns after the collective; 20 ns become 10.
    given_ = (start, end, np.array([0, 1, 0]), np.array([False, True, False]))
    assert makespan_ns(*given_) == 45
    assert makespan_ns(*given_, faster=2.0) == 35


def test_a_collective_that_is_hidden_saves_nothing():
    given_ = (np.array([0, 0]), np.array([50, 30]), np.array([0, 1]), np.array([False, True]))
    assert makespan_ns(*given_, faster=10.0) == 50


@pytest.mark.parametrize("faster", [0.0, -1.0, float("nan"), float("inf")])
def test_only_a_positive_number_makes_links_faster(faster):
    one = np.array([0])
    with pytest.raises(BadValueError, match="faster"):
        replay_graph(one, one + 1, one, one == 0, faster=faster)


def test_nothing_and_what_is_too_long_are_not_replayed():
    none = np.zeros(0, np.int64)
    with pytest.raises(BadValueError, match="nothing"):
        replay_graph(none, none, none, none == 0)
    far = np.array([0, 2**61])
    with pytest.raises(BadValueError, match="too long"):
        replay_graph(far, far + 1, far * 0, far == 1)
