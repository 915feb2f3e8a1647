"""The libraries and rivals compute what the reference computes."""

import builtins

import numpy as np
import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.kernels.stencils import rivals as peers
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep

SYSTEMS = {
    "numpy": peers.NumpySlices, "scipy": peers.ScipyCorrelate, "numba": peers.NumbaRows, "im2row": peers.Im2Row,
    "convstencil": peers.ConvStencilRows, "torch": peers.TorchConv2d, "devito": peers.Devito,
    "opencv": peers.OpenCV,
}  # fmt: skip
LIBRARIES = {"torch": "torch", "devito": "devito", "opencv": "cv2"}
SLANTED = Stencil.box(2, np.arange(25.0) / 300)
PATTERNS = {"star": Stencil.heat(0.1, 2), "box": SLANTED, "custom": Stencil(((1, -1), (0, 1)), (0.25, 0.5)),
            "equal": Stencil.box(2), "heavier": Stencil.box(1, [0.2] * 9),
            "factors": Stencil.box(2, np.outer([1, 2, 3, 4, 5], [2, -1, 3, 1, 7]).ravel() / 150)}  # fmt: skip


def grid_of(shape, dtype=np.float32):
    return np.random.default_rng(0).random(shape).astype(dtype)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_system_gives_the_references_result(name, pattern, monkeypatch):
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    # So few cells at a time that the row layouts take several turns, the last one shorter.
    monkeypatch.setattr(peers, "_LAYOUT_CELLS", 4000)
    grid = grid_of((43, 61))
    grid.flags.writeable = False
    kept = grid.copy()
    for steps in (1, 2, 3):
        found = SYSTEMS[name]().prepare(grid, pattern, steps, "dirichlet")()
        assert np.allclose(found, reference_sweep(grid, pattern, steps), atol=2e-6)
    assert np.array_equal(grid, kept)


@pytest.mark.parametrize("name", ["numpy", "scipy", "numba", "im2row", "convstencil"])
def test_a_second_call_gives_the_same(name):
    grid = grid_of((20, 30), np.float64)
    call = SYSTEMS[name]().prepare(grid, SLANTED, 3, "dirichlet")
    first = call().copy()
    assert np.array_equal(call(), first)
    assert np.allclose(first, reference_sweep(grid, SLANTED, 3), atol=1e-15)


def test_numpy_adds_as_the_reference_does():
    grid = grid_of((20, 30))
    found = peers.NumpySlices().prepare(grid, SLANTED, 3, "dirichlet")()
    assert np.array_equal(found, reference_sweep(grid, SLANTED, 3))


@pytest.mark.parametrize("kind", [peers.GridStream, peers.GridTriad])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_other_copies_write_the_whole_grid(kind, dtype):
    grid = grid_of((37, 51), dtype)
    call = kind().prepare(grid, SLANTED, 5, "dirichlet")
    found = call()
    assert np.allclose(found, grid * (4 if kind is peers.GridTriad else 1), rtol=1e-6)
    found[...] = 0
    assert np.count_nonzero(call()) == np.count_nonzero(grid)


def test_the_copy_is_a_copy():
    grid = grid_of((20, 30))
    found = peers.GridCopy().prepare(grid, SLANTED, 5, "periodic")()
    assert np.array_equal(found, grid)
    assert not np.shares_memory(found, grid)


@pytest.mark.parametrize("radius", [1, 4])
def test_the_two_products_share_the_weights_as_triangles(radius):
    pattern = Stencil.box(radius, np.arange(1.0, (2 * radius + 1) ** 2 + 1))
    side = 2 * radius + 1
    first, second = (half.reshape(side, side, side + 1) for half in peers._tessellation(pattern.matrix()))
    for row in range(side):
        assert np.array_equal(first[row], np.tril(first[row]))
        assert np.array_equal(second[row], np.triu(second[row], 1))
    assert np.allclose((first + second).sum(axis=(0, 1)), pattern.matrix().sum())


@pytest.mark.parametrize("name", ["numpy", "devito"])
def test_other_boundaries_are_refused(name):
    with pytest.raises(BadValueError, match="fixed rim"):
        SYSTEMS[name]().prepare(grid_of((20, 30)), SLANTED, 1, "periodic")


@pytest.mark.parametrize("name", ["torch", "devito"])
def test_a_missing_library_is_named_with_what_installs_it(name, monkeypatch):
    real = builtins.__import__

    def refuse(module, *rest, **more):
        if module == name:
            raise ImportError
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=name):
        SYSTEMS[name]().prepare(grid_of((21, 33)), SLANTED, 1, "dirichlet")


def least_number():
    """Return the smallest positive number, computed; 0 where the mode of arithmetic drops subnormal numbers."""
    return float(np.float64(5e-324) * np.float64(1.0))


def test_a_library_that_drops_subnormal_numbers_does_so_only_while_it_is_loaded():
    torch = pytest.importorskip("torch")
    with peers.kept_float_mode():
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor has no such mode")
        assert least_number() == 0.0
    assert least_number() == 5e-324


def test_devito_leaves_subnormal_numbers_alone():
    pytest.importorskip("devito", reason="Devito is not installed")
    SYSTEMS["devito"]().prepare(grid_of((25, 37)), SLANTED, 1, "dirichlet")()
    assert least_number() == 5e-324
