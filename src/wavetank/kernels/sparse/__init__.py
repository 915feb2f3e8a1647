"""Sparse products: matrices laid out as segments of equal work with bit fields for row ends, and PageRank on top.

:mod:`~wavetank.kernels.sparse.products` holds what users call; :mod:`~wavetank.kernels.sparse.merge_path` the idea in
readable form, :mod:`~wavetank.kernels.sparse.lanes` the form that processors with vector registers run,
:mod:`~wavetank.kernels.sparse.gpu` the one for GPUs.
"""
