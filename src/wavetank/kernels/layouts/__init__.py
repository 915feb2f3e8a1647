"""Layouts of tensors as linear maps over bits, and the cheapest way from one layout to another.

* :class:`Layout` - the algebra: product, composition, inverse, quotient, reshape, picture;
* :mod:`~wavetank.kernels.layouts.families` - blocked, MMA, WGMMA, MFMA, slice, swizzled and padded layouts;
* :mod:`~wavetank.kernels.layouts.shapes` - what transpose, reshape, join, split, expand, broadcast, reduce do to them;
* :class:`LinearLayouts` - plans a conversion: registers, shuffles, or shared memory with the optimal swizzle;
* :mod:`~wavetank.kernels.layouts.gather` - plans a gather along an axis: the same three ways;
* :mod:`~wavetank.kernels.layouts.matrices` - when ldmatrix and stmatrix can serve an access;
* :class:`WarpMachine` - executes a plan on real arrays and counts instructions, wavefronts and bytes;
* :mod:`~wavetank.kernels.layouts.rivals` - naive, padded, classic swizzle, one formula per pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.kernels.layouts.algebra import Layout
    from wavetank.kernels.layouts.conversion import LinearLayouts, Plan
    from wavetank.kernels.layouts.describe import layout_of
    from wavetank.kernels.layouts.warp_machine import WarpMachine

__getattr__, __dir__, __all__ = lazy_names(__name__)
