import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.sessions.reachability import Steps


def test_what_leads_to_a_good_one_is_found_however_far():
    count = 500
    steps = Steps(np.arange(count), np.arange(1, count, dtype=np.int32), count)
    good = np.zeros(count, bool)
    good[400] = True
    assert steps.can_reach(good).tolist() == [True] * 401 + [False] * 99


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.sets(st.integers(0, 9)))
def test_it_is_the_closure(edges, good):
    found = set(good)
    while any(target in found and source not in found for source, target in edges):
        found |= {source for source, target in edges if target in found}
    start = np.zeros(10, bool)
    start[list(good)] = True
    edges.sort()
    starts = np.searchsorted([source for source, _ in edges], np.arange(11)).astype(np.int64)
    targets = np.array([target for _, target in edges], np.int32)
    assert set(np.flatnonzero(Steps(starts, targets, 10).can_reach(start)).tolist()) == found
