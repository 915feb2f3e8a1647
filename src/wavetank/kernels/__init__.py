"""Kernels: array functions that are judged by the share of a hardware limit they reach.

A kernel takes arrays and returns arrays.  Beside each fast implementation stands a readable reference one, and each
declares the bytes it moves (and the operations it does), so that a time can be told as a share of the copy bandwidth
or of the peak speed that :mod:`wavetank.kernels.machine` measures on the machine at hand.  What is here:

* :class:`FractalSort` with :func:`sort` and :func:`sort_pairs` - integers and floats sorted by counting;
* :mod:`wavetank.kernels.peers` - the sorts of other libraries and two textbook ones behind the same interface;
* :mod:`wavetank.kernels.layouts` - tensor layouts as linear maps over bits, conversions between them, a warp machine;
* :mod:`wavetank.kernels.machine` - cores, memory, copy bandwidth, peak flops.

Importing this package imports no compiler: names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavetank.kernels.fractal_sort import FractalSort, reference_sort, sort, sort_pairs
    from wavetank.kernels.interfaces import PairSorter, Sorter
    from wavetank.kernels.layouts import Layout, LinearLayouts, WarpMachine, layout_of
    from wavetank.kernels.machine import MachineProfile

_HOMES = {
    "FractalSort": "fractal_sort",
    "reference_sort": "fractal_sort",
    "sort": "fractal_sort",
    "sort_pairs": "fractal_sort",
    "PairSorter": "interfaces",
    "Sorter": "interfaces",
    "Layout": "layouts",
    "LinearLayouts": "layouts",
    "WarpMachine": "layouts",
    "layout_of": "layouts",
    "MachineProfile": "machine",
}

__all__ = [
    "FractalSort",
    "Layout",
    "LinearLayouts",
    "MachineProfile",
    "PairSorter",
    "Sorter",
    "WarpMachine",
    "layout_of",
    "reference_sort",
    "sort",
    "sort_pairs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
