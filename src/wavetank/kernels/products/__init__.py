"""Dense matrix products that need fewer multiplications than the library's.

:func:`~wavetank.kernels.products.product.matmul` plans each product among the libraries that are present, a product of
our own (:mod:`~wavetank.kernels.products.microkernel`) and schemes of fewer multiplications
(:mod:`~wavetank.kernels.products.schemes`); :mod:`~wavetank.kernels.products.decision` chooses by measured or shipped
profiles, :mod:`~wavetank.kernels.products.rivals` holds what other libraries and other papers do.
"""
