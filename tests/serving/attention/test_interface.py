"""What a cache says of its shape."""

from __future__ import annotations

import numpy as np

from wavetank.serving.attention.interface import Cache


def test_a_group_is_the_heads_that_share_keys() -> None:
    keys = np.zeros((2, 5, 4), np.float32)
    assert Cache(keys, keys, np.zeros((3, 8, 4), np.float32)).group == 4
