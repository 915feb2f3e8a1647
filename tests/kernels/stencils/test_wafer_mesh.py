"""The mesh simulated word by word agrees with the closed form and with the plain sweep."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_mesh import simulate_mesh

MESHES = [(8, 8), (1, 1), (1, 5), (2, 2), (3, 1), (2, 7)]
TILES = [((8, 8), "star-1"), ((5, 9), "box-2"), ((4, 4), "heat-4"), ((15, 3), "box-1")]
# A stencil must not be wider than the grid.
CASES = [
    (mesh, tile, name)
    for mesh in MESHES
    for tile, name in TILES
    if min(mesh[0] * tile[0], mesh[1] * tile[1]) > 2 * Stencil.named(name).radius
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("mesh", "tile", "name"), CASES)
def test_cycles_words_and_cells_agree(overlap, mesh, tile, name):
    (rows, columns), pattern = mesh, Stencil.named(name)
    grid = np.random.default_rng(3).random((rows * tile[0], columns * tile[1])).astype(np.float32)
    wafer = WaferStencil(mesh_rows=rows, mesh_columns=columns, overlap=overlap)
    found, run = simulate_mesh(wafer, grid, pattern, 2), wafer.run(grid, pattern, 2)
    assert found.cycles == run.cycles
    assert found.traffic == run.traffic
    np.testing.assert_array_equal(found.grid, reference_sweep(grid, pattern, 2))


@pytest.mark.parametrize("hop_cycles", [1, 3, 9])
@pytest.mark.parametrize("start_cycles", [0, 25])
def test_hops_and_starts_take_the_cycles_of_the_closed_form(hop_cycles, start_cycles):
    wafer = WaferStencil(mesh_rows=5, mesh_columns=4, hop_cycles=hop_cycles, start_cycles=start_cycles)
    grid = np.random.default_rng(4).random((30, 24)).astype(np.float32)
    assert simulate_mesh(wafer, grid, Stencil.star(2), 3).cycles == wafer.run(grid, Stencil.star(2), 3).cycles


def test_mirrored_edges_send_nothing():
    wafer = WaferStencil(mesh_rows=3, mesh_columns=4)
    grid = np.random.default_rng(5).random((18, 24)).astype(np.float32)
    mesh = simulate_mesh(wafer, grid, Stencil.box(2), 3, boundary="reflect")
    np.testing.assert_array_equal(mesh.grid, reference_sweep(grid, Stencil.box(2), 3, boundary="reflect"))
    assert mesh.traffic == wafer.run(grid, Stencil.box(2), 3, boundary="reflect").traffic


def test_filled_up_tiles_are_swept_as_well():
    wafer = WaferStencil(mesh_rows=4, mesh_columns=4)
    grid = np.random.default_rng(6).random((29, 30)).astype(np.float32)
    np.testing.assert_array_equal(
        simulate_mesh(wafer, grid, Stencil.box(1), 3).grid, reference_sweep(grid, Stencil.box(1), 3)
    )


def test_a_router_never_holds_more_than_it_has_room_for():
    wafer = WaferStencil(mesh_rows=4, mesh_columns=4, hop_cycles=2)
    grid = np.zeros((80, 12), np.float32)
    assert 1 <= simulate_mesh(wafer, grid, Stencil.star(1), 2).most_waiting <= 4 + 2


def test_joined_edges_and_large_meshes_are_refused():
    grid = np.zeros((40, 40), np.float32)
    with pytest.raises(BadValueError, match="routes of one hop"):
        simulate_mesh(WaferStencil(mesh_rows=4, mesh_columns=4), grid, Stencil.star(1), boundary="periodic")
    with pytest.raises(BadValueError, match="too large") as caught:
        simulate_mesh(WaferStencil(mesh_rows=40, mesh_columns=40), grid, Stencil.star(1))
    assert caught.value.given == "40 x 40 elements"


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_steps_that_cannot_be_counted_are_refused(steps):
    grid = np.ones((8, 8), np.float32)
    with pytest.raises(BadValueError, match="counted from 0"):
        simulate_mesh(WaferStencil(mesh_rows=2, mesh_columns=2), grid, Stencil.star(1), steps)
