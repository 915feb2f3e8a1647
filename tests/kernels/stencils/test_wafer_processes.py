"""Two processes that share only a cut sweep the mesh to the same bits."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_processes import sweep_in_two_processes

WAFER = WaferStencil(mesh_rows=5, mesh_columns=6)


@pytest.mark.parametrize(("boundary", "shape"), [("dirichlet", (45, 70)), ("reflect", (45, 66))])
def test_two_processes_give_the_bits_of_the_plain_sweep(boundary, shape):
    grid, pattern = np.random.default_rng(0).random(shape).astype(np.float32), Stencil.box(2)
    swept = sweep_in_two_processes(WAFER, grid, pattern, 4, boundary=boundary)
    np.testing.assert_array_equal(swept, reference_sweep(grid, pattern, 4, boundary=boundary))


def test_what_cannot_be_shared_is_refused():
    grid = np.zeros((20, 20), np.float32)
    with pytest.raises(BadValueError, match="joined edges"):
        sweep_in_two_processes(WAFER, grid, Stencil.star(1), boundary="periodic")
    with pytest.raises(BadValueError, match="one row"):
        sweep_in_two_processes(WaferStencil(mesh_rows=1, mesh_columns=4), grid, Stencil.star(1))


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_steps_that_cannot_be_counted_are_refused(steps):
    grid = np.ones((8, 8), np.float32)
    with pytest.raises(BadValueError, match="counted from 0"):
        sweep_in_two_processes(WaferStencil(mesh_rows=2, mesh_columns=2), grid, Stencil.star(1), steps)
