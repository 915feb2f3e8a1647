"""Kernels: array functions that are judged by the share of a hardware limit they reach.

A kernel takes arrays and returns arrays.  Beside each fast implementation stands a readable reference one, and each
declares the bytes it moves (and the operations it does), so that a time can be stated as a share of the copy bandwidth
or of the peak speed that :mod:`wavetank.machine.limits` measures on the machine at hand.  What is here:

* :func:`sort` and :func:`sort_pairs` (:class:`FractalSort`) - integers and floats sorted by counting;
* :func:`matmul` - matrix products planned among the library, our own product and schemes of fewer multiplications;
* :func:`spmv`, :class:`SpMVPlan`, :func:`pagerank` - sparse products from segments of equal work;
* :func:`solve_spd` (:class:`HeteroSolver`) - positive definite systems on two devices at once;
* :func:`stencil` with :class:`Stencil` - sweeps that stay in the caches; the same on two machines, executed and
  modelled: :class:`WaferStencil`, :class:`WormholeStencil`;
* :class:`Layout`, :class:`LinearLayouts` - tensor layouts as linear maps over bits, conversions, a warp machine;
* :class:`DecoderConfig`, :mod:`wavetank.kernels.decoder` - a language model to hold shortcuts of serving against;
* :mod:`wavetank.kernels.sorting.rivals` - the sorts of other libraries and two textbook ones behind the same interface;
* :mod:`wavetank.machine.limits` - cores, memory, copy bandwidth, peak flops.

Importing this package imports no compiler: names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.kernels.decoder import DecoderConfig, DecoderWeights
    from wavetank.kernels.decoder_training import trained
    from wavetank.kernels.layouts import Layout, LinearLayouts, WarpMachine, layout_of
    from wavetank.kernels.products.decision import ProductPlan
    from wavetank.kernels.products.product import PreparedMatrix, matmul, prepare
    from wavetank.kernels.products.schemes import Scheme, read_schemes
    from wavetank.kernels.solvers import BlockTriangle, HeteroSolver, NotPositiveDefiniteError, kernel_matrix, solve_spd
    from wavetank.kernels.sorting.fractal_sort import FractalSort, reference_sort, sort, sort_pairs
    from wavetank.kernels.sorting.interface import PairSorter, Sorter
    from wavetank.kernels.sparse.pagerank import pagerank
    from wavetank.kernels.sparse.products import SpMVPlan, spmv
    from wavetank.kernels.stencils.pattern import Stencil
    from wavetank.kernels.stencils.sweep import StencilSweep, stencil
    from wavetank.kernels.stencils.wafer import WaferStencil
    from wavetank.kernels.stencils.wormhole import WormholeStencil
    from wavetank.machine.limits import MachineProfile

__getattr__, __dir__, __all__ = lazy_names(__name__)
