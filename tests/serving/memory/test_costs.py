"""What a request costs, by hand."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.memory.costs import Node


def test_operations_and_sizes_by_hand():
    assert Node().kv_bytes_per_token == 2 * 8 * 256 * 2
    assert Node().compute_s(256, 8192) == pytest.approx(8 * (8 * 256 * 256**2 + 4 * 256 * 8192 * 256) / 60e12)
    with pytest.raises(BadValueError):
        Node(memory_bytes=-1.0)
