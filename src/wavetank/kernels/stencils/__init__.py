"""Stencils in two dimensions: what a point takes from its neighbours, and sweeps that stay in the caches.

:class:`~wavetank.kernels.stencils.pattern.Stencil` is the pattern, :func:`~wavetank.kernels.stencils.sweep.stencil` the
fast sweep, :mod:`~wavetank.kernels.stencils.reference` the readable one, :mod:`~wavetank.kernels.stencils.rivals` what
others use; ``wafer*`` and ``wormhole*`` model the same sweeps on two machines without shared memory.
"""
