"""The memory of prefixes against an ordered dictionary for each worker."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.routing.prefix_memory import empty_memory, forget, held_tokens, matched_blocks, remember


def blocks(*numbers):
    return np.array(numbers, np.int64)


class Plain:
    """The same in plain Python: a block of a worker to its tokens, in the order of use."""

    def __init__(self, workers, limit):
        self.held = [OrderedDict() for _ in range(workers)]
        self.limit = limit

    def remember(self, worker, prompt):
        held = self.held[worker]
        for block in reversed(prompt[: self.limit]):
            if block not in held and len(held) == self.limit:
                held.popitem(last=False)
            held[block] = True
            held.move_to_end(block)

    def forget(self, worker, count):
        while len(self.held[worker]) > count:
            self.held[worker].popitem(last=False)

    def matched(self, worker, prompt):
        held = self.held[worker]
        return next((i for i, block in enumerate(prompt) if block not in held), len(prompt))


def prefix(path):
    """Return the identities of a prompt's blocks: each stands for all up to it."""
    found, name = [], 0
    for step in path:
        name = 5 * name + step
        found.append(name)
    return found


@given(
    limit=st.integers(1, 12),
    actions=st.lists(
        st.tuples(
            st.integers(0, 2), st.lists(st.integers(1, 3), min_size=1, max_size=6), st.none() | st.integers(0, 12)
        ),
        max_size=60,
    ),
)
def test_it_is_a_least_recently_used_memory_of_each_worker(limit, actions):
    memory, plain = empty_memory(3, limit), Plain(3, limit)
    for worker, path, count in actions:
        prompt = prefix(path)
        assert matched_blocks(memory, worker, blocks(*prompt)) == plain.matched(worker, prompt)
        if count is None:
            remember(memory, worker, blocks(*prompt), 16.0)
            plain.remember(worker, prompt)
        else:
            forget(memory, worker, 16.0 * count)
            plain.forget(worker, count)
        for each in range(3):
            assert held_tokens(memory, each) == 16.0 * len(plain.held[each])
            for block in range(1, 400):
                known = matched_blocks(memory, each, blocks(block)) == 1
                assert known == (block in plain.held[each])


def test_forgetting_never_leaves_a_gap_in_a_prefix():
    memory = empty_memory(1, 100)
    remember(memory, 0, blocks(1, 2, 3, 4), 10.0)
    remember(memory, 0, blocks(1, 2, 9), 10.0)
    forget(memory, 0, 40.0)
    # The end of the prefix that was used first is gone, and what both share stays.
    assert [matched_blocks(memory, 0, blocks(*row)) for row in ((1, 2, 3, 4), (1, 2, 9))] == [3, 3]
    forget(memory, 0, 30.0)
    assert [matched_blocks(memory, 0, blocks(*row)) for row in ((1, 2, 3, 4), (1, 2, 9))] == [2, 3]


def test_a_prompt_longer_than_the_memory_leaves_its_beginning():
    memory = empty_memory(2, 3)
    remember(memory, 1, blocks(1, 2, 3, 4, 5), 10.0)
    assert matched_blocks(memory, 1, blocks(1, 2, 3, 4, 5)) == 3
    assert matched_blocks(memory, 0, blocks(1)) == 0


@pytest.mark.parametrize("ids", [[-1, -2], [2**62, 2**62 + 1], [0, 0]])
def test_any_whole_number_names_a_block(ids):
    memory = empty_memory(2, 8)
    remember(memory, 0, blocks(*ids), 1.0)
    assert matched_blocks(memory, 0, blocks(*ids)) == len(ids)
    assert matched_blocks(memory, 1, blocks(*ids)) == 0
    assert held_tokens(memory, 0) == len(set(ids))


def test_a_prompt_without_blocks_is_no_match():
    memory = empty_memory(1, 8)
    remember(memory, 0, blocks(), 1.0)
    assert matched_blocks(memory, 0, blocks()) == 0
    assert held_tokens(memory, 0) == 0
