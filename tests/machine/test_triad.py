"""The triad."""

import numpy as np

from wavetank.machine.triad import triad


def test_it_scales_and_adds():
    a, b, c = np.zeros(5), np.arange(5.0), np.full(5, 2.0)
    triad(a, b, c, 3.0)
    assert a.tolist() == [6.0, 7.0, 8.0, 9.0, 10.0]
