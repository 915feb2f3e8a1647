"""Layouts of tensors as linear maps over bits, and the cheapest way from one layout to another.

* :class:`Layout` - the algebra: product, composition, inverse, quotient, reshape, picture;
* :mod:`~wavetank.kernels.layouts.families` - blocked, MMA, WGMMA, MFMA, slice, swizzled and padded layouts;
* :mod:`~wavetank.kernels.layouts.shapes` - what transpose, reshape, join, split, expand, broadcast, reduce do to them;
* :class:`LinearLayouts` - plans a conversion: registers, shuffles, or shared memory with the optimal swizzle;
* :class:`WarpMachine` - executes a plan on real arrays and counts instructions, wavefronts and bytes;
* :mod:`~wavetank.kernels.layouts.rivals` - naive, padded, classic swizzle, one formula a pair.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavetank.kernels.layouts.algebra import Layout
    from wavetank.kernels.layouts.conversion import LinearLayouts, Plan
    from wavetank.kernels.layouts.describe import layout_of
    from wavetank.kernels.layouts.warp_machine import WarpMachine

_HOMES = {
    "Layout": "algebra",
    "LinearLayouts": "conversion",
    "Plan": "conversion",
    "WarpMachine": "warp_machine",
    "layout_of": "describe",
}

__all__ = ["Layout", "LinearLayouts", "Plan", "WarpMachine", "layout_of"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
