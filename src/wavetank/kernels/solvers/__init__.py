"""Solvers of symmetric positive definite systems that two unequal devices work on at once.

* :func:`solve_spd` - the call to use; :class:`HeteroSolver` - the same with every parameter, and what the run cost;
* :class:`BlockTriangle` - the lower triangle in blocks, the only form in which the matrix is kept;
* :class:`CpuWorker`, :class:`TorchDevice` - the devices; :class:`LinkModel` - a slower link between them;
* :class:`StaticSplit`, :class:`RuntimeSplit`, :class:`PowerSplit` - who gets how many rows;
* :func:`kernel_matrix`, :func:`kernel_triangle` - the covariance matrices that ask for all this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.kernels.solvers.balance import PowerSplit, RuntimeSplit, StaticSplit
    from wavetank.kernels.solvers.covariance import kernel_matrix, kernel_triangle
    from wavetank.kernels.solvers.cpu_device import CpuWorker
    from wavetank.kernels.solvers.link import LinkModel
    from wavetank.kernels.solvers.solve import (
        HeteroSolver,
        NotConvergedError,
        NotPositiveDefiniteError,
        Solution,
        relative_residual,
        solve_spd,
    )
    from wavetank.kernels.solvers.torch_device import TorchDevice
    from wavetank.kernels.solvers.triangle import BlockTriangle

__getattr__, __dir__, __all__ = lazy_names(__name__)
