"""The triad of the STREAM benchmark, apart from what measures with it: to import it is to import a compiler."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from wavetank.sim.compiled import compiled


@compiled(nogil=True, fastmath=True)
def triad(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], scale: float) -> None:
    """Set ``a = b + scale * c``, element by element."""
    for i in range(a.size):
        a[i] = b[i] + scale * c[i]
