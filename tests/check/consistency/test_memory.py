"""The set of fingerprints."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.consistency.memory import knows, larger, memory_of, remember

pairs = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=60)


@given(met=pairs)
def test_it_remembers_exactly_what_it_met_also_when_it_grew(met):
    memory = np.zeros((128, 2), np.uint64)
    known = set()
    for number, (one, two) in enumerate(met):
        assert remember(memory, np.uint64(one), np.uint64(two)) == ((one, two) not in known)
        known.add((one, two))
        if number == 20:
            memory = larger(memory)
    assert np.count_nonzero(memory.any(axis=1)) == len(known)


@given(met=pairs, asked=pairs)
def test_it_knows_what_it_was_made_of_and_nothing_else(met, asked):
    memory = memory_of(np.array(met, np.uint64).reshape(len(met), 2))
    assert all(knows(memory, np.uint64(one), np.uint64(two)) for one, two in met)
    assert [knows(memory, np.uint64(one), np.uint64(two)) for one, two in asked] == [pair in met for pair in asked]
