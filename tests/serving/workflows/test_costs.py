"""What a stage takes: shares that end together, ranks, and transfers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.workflows.conftest import application, platform

from wavetank.serving.workflows.costs import Split, Times, ends_s
from wavetank.serving.workflows.dispatcher import Dispatcher
from wavetank.serving.workflows.rivals import LeastCost
from wavetank.serving.workflows.watch import Watch

parts = st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 50)), min_size=2, max_size=4)


@given(parts)
@settings(deadline=None)
def test_shares_make_up_the_stage_and_end_together(given_parts):
    fixed, rest = zip(*given_parts, strict=True)
    found = Split(fixed, rest, 0.25)
    assert sum(found.shares) == pytest.approx(1.0)
    if min(found.shares) <= 0:
        assert found.end_s == math.inf
        return
    ends = [f + share * r for f, r, share in zip(fixed, rest, found.shares, strict=True)]
    assert ends == pytest.approx([ends[0]] * len(ends))
    assert found.end_s == pytest.approx(ends[0] + 0.25 * (len(ends) - 1))


def test_one_device_takes_the_whole_stage():
    assert (Split([2.0], [3.0], 9.0).end_s, Split([2.0], [3.0], 9.0).shares) == (5.0, (1.0,))


def test_a_stage_may_be_shared_by_the_devices_on_which_it_would_end_first():
    """Speeds 1, 2 and 4: alone 6, 3 and 1.5 s; the best two share it, then all three, 0.05 s to merge for each more."""
    made = application(((),), (6.0,), most_shards=3)
    devices = platform((1.0, 2.0, 4.0))
    watch, books = Watch(devices), Dispatcher(platform=devices, scheduler=LeastCost())
    books.arrive(made)
    view = books.view(0.0)
    caches = watch.see(view)
    found = ends_s(view, watch.times[0], (0, 0), (0, 1, 2), caches)
    assert found == {
        (0,): pytest.approx(6.0), (1,): pytest.approx(3.0), (2,): pytest.approx(1.5),
        (2, 1): pytest.approx(6 / 6 + 0.05), (2, 1, 0): pytest.approx(6 / 7 + 0.1),
    }  # fmt: skip
    assert list(ends_s(view, watch.times[0], (0, 0), (0, 1), caches, shards=False)) == [(0,), (1,)]


def test_the_parts_of_a_time_by_hand():
    chain, handed = ((), (0,)), ((), (4e9,))
    made = application(chain, (2.0, 3.0), models=("a", "b"), edge_bytes=handed, prefix="p", prefix_tokens=500)
    times = Times(application=made, platform=platform((1.0, 2.0), load_s=7.0, network=1e9))
    assert times.load_s.tolist() == [[pytest.approx(7.0)] * 2] * 2
    assert times.prefix_s.tolist() == [[0.5, 0.25]] * 2
    assert times.rest_s.tolist() == [[1.5, 0.75], [2.5, 1.25]]
    assert times.mean_s.tolist() == [1.5, 2.25]
    # The mean way to the other device: half of the pairs are one device with itself.
    assert times.rank_s.tolist() == [pytest.approx(1.5 + 2.0 + 2.25), pytest.approx(2.25)]
