"""A product whose sums are carried in two numbers each, to judge those that are not.

Source: T. Ogita, S. Rump, S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26(6), 2005 (Dot2).

Differs from the source:
1. One row of the result at a time, column by column, so that neighbours in memory are used together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

# 2^27 + 1: cuts a float64 into halves whose products are exact.
_SPLITTER = 134217729.0


@compiled(nogil=True)
def _add_row(row, b, high, low):  # type: ignore[no-untyped-def]
    for k in range(row.size):
        x = row[k]
        cut = _SPLITTER * x
        x_high = cut - (cut - x)
        x_low = x - x_high
        for j in range(b.shape[1]):
            y = b[k, j]
            cut_y = _SPLITTER * y
            y_high = cut_y - (cut_y - y)
            y_low = y - y_high
            product = x * y
            lost = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
            total = high[j] + product
            back = total - high[j]
            low[j] += ((high[j] - (total - back)) + (product - back)) + lost
            high[j] = total


def compensated_product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the product of two float64 matrices as if computed with twice the digits and then rounded.

    Parameters
    ----------
    a, b : arrays of float64, shapes (m, k) and (k, n)
        Entries below 1e292, which can be cut into halves.
    """
    high, low = (np.zeros((a.shape[0], b.shape[1])) for _ in range(2))
    for i in range(a.shape[0]):
        _add_row(a[i], b, high[i], low[i])
    return high + low
