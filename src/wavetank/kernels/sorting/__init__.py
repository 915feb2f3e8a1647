"""Sorting integers and floats by counting.

:func:`~wavetank.kernels.sorting.fractal_sort.sort` and :func:`~wavetank.kernels.sorting.fractal_sort.sort_pairs` sort
numpy arrays; :mod:`~wavetank.kernels.sorting.rivals` holds the sorts of other libraries and two textbook ones behind
the same interface, :mod:`~wavetank.kernels.sorting.interface`.
"""
