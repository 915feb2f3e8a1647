"""Processes that stand for two nodes hold what a flat exchange would have given them."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.plans.test_exchange import blocks_of

from wavetank.errors import BadValueError
from wavetank.training.plans.live import exchange_on_ranks


@pytest.mark.parametrize(
    ("size", "node", "lanes"), [*(pytest.param(4, 2, each, marks=pytest.mark.slow) for each in (1, 2)), (4, 1, 1)]
)
def test_processes_hold_the_blocks_of_a_flat_exchange(size, node, lanes):
    blocks = blocks_of(size, 3)
    assert any(content.size == 0 for content in blocks.values())
    found = exchange_on_ranks(blocks, size=size, node=node, lanes=lanes)
    assert found.keys() == blocks.keys()
    assert all(np.array_equal(found[pair], content) for pair, content in blocks.items())


def test_nodes_that_do_not_divide_the_processes_are_refused():
    with pytest.raises(BadValueError, match="fill its nodes"):
        exchange_on_ranks({}, size=4, node=3, lanes=1)
