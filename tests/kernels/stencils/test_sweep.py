"""The blocked sweep: the reference's result, the same bits for every blocking, and clear errors."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from wavetank.errors import BadValueError
from wavetank.kernels.stencils import sweep as sweep_module
from wavetank.kernels.stencils.pattern import BOUNDARIES, STENCILS, Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.sweep import StencilSweep, aligned_grid, stencil
from wavetank.kernels.stencils.temporal import run_pass
from wavetank.machine import limits as machine

RNG = np.random.default_rng(7)
MIXED = Stencil.from_matrix(np.where(RNG.random((5, 5)) < 0.4, RNG.standard_normal((5, 5)) / 3, 0))
SLANTED = Stencil.box(2, np.outer([1, 2, 3, 4, 5], [2, -1, 3, 1, 7]).ravel() / 50)
PATTERNS = {"star": Stencil.heat(0.1, 2), "mirrored": Stencil.box(2), "terms": MIXED, "factors": SLANTED}


def grid_of(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(found, expected):
    scale = np.abs(expected).max() + 1e-30
    return np.abs(found - expected).max() <= (3e-6 if expected.dtype == np.float32 else 1e-14) * scale


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_it_gives_the_references_result_and_the_same_bits_however_it_is_cut(pattern, boundary):
    for shape in ((5, 5), (40, 9), (9, 70), (67, 131)):
        grid = grid_of(shape)
        for steps in (1, 2, 9):
            found = stencil(grid, pattern, steps, boundary=boundary)
            assert close(found, reference_sweep(grid, pattern, steps, boundary=boundary))
            for threads, depth, columns in ((1, 1, 7), (2, 3, 64), (3, 0, 0), (2, 9, 1)):
                other = StencilSweep(threads=threads, depth=depth, columns=columns)
                assert np.array_equal(other.sweep(grid, pattern, steps, boundary=boundary), found)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(5, 90), st.integers(5, 300), st.integers(0, 12), st.integers(1, 4), st.integers(0, 8),
    st.integers(1, 200), st.sampled_from(BOUNDARIES), st.sampled_from(list(PATTERNS)), st.booleans(),
)  # fmt: skip
def test_any_grid_and_any_cut(height, width, steps, threads, depth, columns, boundary, name, streaming):
    grid, pattern = grid_of((height, width), seed=height), PATTERNS[name]
    found = np.full_like(grid, np.nan)
    kept = sweep_module._STREAMED_BYTES
    sweep_module._STREAMED_BYTES = 0 if streaming else kept
    try:
        StencilSweep(threads=threads, depth=depth, columns=columns).sweep(
            grid, pattern, steps, boundary=boundary, out=found
        )
    finally:
        sweep_module._STREAMED_BYTES = kept
    assert np.array_equal(found, stencil(grid, pattern, steps, boundary=boundary))
    assert close(found, reference_sweep(grid, pattern, steps, boundary=boundary))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_float64_too(boundary):
    grid = grid_of((50, 77), np.float64)
    found = stencil(grid, MIXED, 5, boundary=boundary)
    assert found.dtype == np.float64
    assert close(found, reference_sweep(grid, MIXED, 5, boundary=boundary))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", STENCILS)
def test_every_named_stencil(name, dtype):
    grid = grid_of((60, 300), dtype)
    for boundary in BOUNDARIES:
        found = stencil(grid, Stencil.named(name), 7, boundary=boundary)
        assert close(found, reference_sweep(grid, Stencil.named(name), 7, boundary=boundary))


@pytest.mark.slow
def test_a_grid_beyond_the_caches_is_streamed():
    grid = grid_of((2100, 2100))
    expected = reference_sweep(grid, Stencil.star(1), 3)
    for threads in (1, 2):
        assert close(stencil(grid, Stencil.star(1), 3, threads=threads), expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_identity_leaves_the_grid_as_it_is(boundary):
    grid = grid_of((33, 70))
    assert np.array_equal(
        StencilSweep(threads=2, columns=64).sweep(grid, Stencil.identity(), 3, boundary=boundary), grid
    )


def test_a_constant_field_stays_constant_on_a_torus():
    assert np.allclose(stencil(np.full((40, 50), 3, np.float32), Stencil.box(2), 20, boundary="periodic"), 3, rtol=1e-5)


def test_a_heat_mode_decays_by_the_exact_discrete_factor():
    n, ratio, steps = 64, 0.2, 20
    y, x = np.mgrid[:n, :n] * 2 * np.pi / n
    mode = np.sin(2 * y) * np.sin(3 * x)
    factor = 1 + 2 * ratio * (np.cos(4 * np.pi / n) + np.cos(6 * np.pi / n) - 2)
    pattern = Stencil.heat(ratio)
    assert np.allclose(stencil(mode, pattern, steps, boundary="periodic"), factor**steps * mode, atol=1e-13)


def test_it_is_scipys_correlation():
    grid = grid_of((40, 60))
    for boundary, mode in (("periodic", "wrap"), ("reflect", "reflect")):
        assert close(stencil(grid, SLANTED, boundary=boundary), ndimage.correlate(grid, SLANTED.matrix(), mode=mode))


def test_steps_can_be_split_over_calls():
    grid = grid_of((60, 80))
    halfway = stencil(grid, MIXED, 4, boundary="reflect")
    assert np.array_equal(stencil(halfway, MIXED, 5, boundary="reflect"), stencil(grid, MIXED, 9, boundary="reflect"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_nan_and_infinity_spread_to_what_depends_on_them_and_no_further(pattern, value):
    grid = grid_of((60, 90))
    grid[30, 40] = value
    with np.errstate(invalid="ignore"):
        expected = reference_sweep(grid, pattern, 3)
    found = stencil(grid, pattern, 3)
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
    one = stencil(grid, pattern, 1)
    first = reference_sweep(grid, pattern, 1)
    assert np.array_equal(np.isnan(one), np.isnan(first))
    assert np.array_equal(one[np.isinf(first)], first[np.isinf(first)])


def views(grid):
    wide = np.zeros((2 * grid.shape[0], grid.shape[1] + 9), grid.dtype)
    wide[::2, 5:-4] = grid
    packed = np.zeros(grid.nbytes + 1, np.uint8)[1:].view(grid.dtype)
    packed[:] = grid.ravel()
    return {
        "rows apart": wide[::2, 5:-4],
        "columns first": np.asfortranarray(grid),
        "reversed": np.ascontiguousarray(grid[::-1, ::-1])[::-1, ::-1],
        "every other column": np.repeat(grid, 2, axis=1)[:, ::2],
        "misaligned": packed.reshape(grid.shape),
        "nested lists of a row": np.broadcast_to(grid[:1], grid.shape),
    }


def test_any_memory_layout_is_read_and_never_written():
    grid = grid_of((31, 47))
    for name, view in views(grid).items():
        expected = stencil(np.array(view, order="C"), MIXED, 2)
        kept = view.copy()
        view.flags.writeable = False
        assert np.array_equal(stencil(view, MIXED, 2), expected), name
        assert np.array_equal(view, kept), name


def test_the_result_goes_where_it_is_asked_to_go():
    grid = grid_of((31, 47))
    expected = stencil(grid, MIXED, 3)
    for place in (np.empty_like(grid), np.empty((62, 94), np.float32)[::2, ::2], np.empty((47, 31), np.float32).T):
        assert stencil(grid, MIXED, 3, out=place) is place
        assert np.array_equal(place, expected)


def test_without_steps_the_grid_is_copied():
    grid = grid_of((31, 47))
    found = stencil(grid, MIXED, 0)
    assert np.array_equal(found, grid)
    assert not np.shares_memory(found, grid)


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    grid = grid_of((20, 30))
    found = stencil(torch.from_numpy(grid), MIXED, 2)
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), stencil(grid, MIXED, 2))
    with pytest.raises(BadValueError, match="cannot be seen as an array"):
        stencil(torch.zeros((9, 9), dtype=torch.bfloat16), MIXED)
    with pytest.raises(BadValueError, match="not in main memory"):
        stencil(torch.zeros((9, 9), device="meta"), MIXED)


@pytest.mark.parametrize("steps", [-1, 1.5, True, "2"])
def test_steps_that_cannot_be_counted_are_refused(steps):
    with pytest.raises(BadValueError, match="counted from 0"):
        stencil(grid_of((9, 9)), MIXED, steps)


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_threads_that_cannot_be_had_are_refused(threads):
    with pytest.raises(BadValueError, match="number of threads is not valid"):
        stencil(grid_of((9, 9)), MIXED, threads=threads)


def test_a_place_that_does_not_fit_is_refused():
    grid = grid_of((9, 9))
    for place in (np.empty((9, 8), np.float32), np.empty((9, 9)), [[0.0] * 9] * 9):
        with pytest.raises(BadValueError, match="does not fit"):
            stencil(grid, MIXED, out=place)
    frozen = np.empty_like(grid)
    frozen.flags.writeable = False
    with pytest.raises(BadValueError, match="read-only"):
        stencil(grid, MIXED, out=frozen)
    both = np.zeros((12, 9), np.float32)
    with pytest.raises(BadValueError, match="would overwrite"):
        stencil(both[:9], MIXED, out=both[3:])
    with pytest.raises(BadValueError, match="would overwrite"):
        stencil(grid, MIXED, out=grid)


def test_wrong_grids_are_refused():
    for grid in (np.zeros(9), np.zeros((9, 9), int), np.zeros((4, 9))):
        with pytest.raises(BadValueError):
            stencil(grid, MIXED)


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(sweep_module, "aligned_grid", None)
    grid = np.broadcast_to(np.float32(1), (3000, 3000))
    with pytest.raises(BadValueError, match="Sweeping a grid of 3,000 x 3,000 cells needs more memory"):
        stencil(grid, Stencil.star(1), 100)


def test_deep_passes_are_chosen_for_many_steps_and_strips_fit_the_cache():
    for name in STENCILS:
        chosen = StencilSweep(threads=2).blocking((8192, 8192), Stencil.named(name), 32, np.float32)
        assert chosen.depth >= 8
        assert chosen.columns >= 256
    assert StencilSweep().blocking((8192, 8192), Stencil.star(1), 1, np.float32).depth == 1
    assert StencilSweep().blocking((40, 40), Stencil.star(1), 1, np.float32).threads == 1


def test_a_prepared_call_can_be_made_again():
    grid = grid_of((31, 47))
    call = StencilSweep().prepare(grid, MIXED, 3, "periodic")
    first = call().copy()
    assert np.array_equal(call(), first)
    assert np.array_equal(first, stencil(grid, MIXED, 3, boundary="periodic"))


def test_an_aligned_grid_starts_a_line():
    for shape in ((1, 1), (3, 5), (64, 64)):
        grid = aligned_grid(shape, np.float32)
        assert grid.ctypes.data % 64 == 0
        assert grid.shape == shape
        beside = np.zeros(9, np.float32)[1:]
        assert (aligned_grid(shape, np.float32, beside).ctypes.data - beside.ctypes.data) % 64 == 0
        assert grid.flags.c_contiguous


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", ["star-2", "box-4"])
def test_wherever_grid_and_result_begin_the_bits_are_the_same_and_nothing_beside_is_written(
    monkeypatch, name, boundary
):
    monkeypatch.setattr(sweep_module, "_STREAMED_BYTES", 0)
    pattern, shape = Stencil.named(name), (37, 208)
    cells = shape[0] * shape[1]
    grid = grid_of(shape)
    expected = StencilSweep(threads=1).sweep(grid, pattern, 5, boundary=boundary)
    assert close(expected, reference_sweep(grid, pattern, 5, boundary=boundary))
    for skip, other in ((0, 0), (1, 1), (5, 0), (0, 15), (12, 12), (15, 7)):
        source, room = aligned_grid((1, cells + 32), np.float32)[0], aligned_grid((1, cells + 32), np.float32)[0]
        source[skip : skip + cells] = grid.ravel()
        room[:] = 77.0
        moved, out = (flat[at : at + cells].reshape(shape) for flat, at in ((source, skip), (room, other)))
        for depth in (1, 3, 5):
            sweep = StencilSweep(threads=2, depth=depth, columns=70)
            assert np.array_equal(sweep.sweep(moved, pattern, 5, boundary=boundary, out=out), expected)
            assert (room[:other] == 77).all()
            assert (room[other + cells :] == 77).all()


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_sums_of_large_cells_do_not_overflow_where_the_result_does_not(pattern):
    total = np.abs(pattern.coefficients).sum()
    grid = np.full((40, 50), 3.2e38 / max(total, 1), np.float32)
    expected = reference_sweep(grid.astype(np.float64), pattern)
    assert np.abs(expected).max() < np.finfo(np.float32).max
    assert np.allclose(stencil(grid, pattern), expected, rtol=1e-5)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("radius", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", ["star", "box"])
def test_random_weights_of_every_radius(shape, radius, boundary):
    points = getattr(Stencil, shape)(radius).points
    pattern = getattr(Stencil, shape)(radius, np.random.default_rng(radius).random(points) / points)
    grid = grid_of((70, 150), seed=radius)
    grid[20, 30], grid[50, 100] = np.nan, np.inf
    for steps, threads, depth, columns in ((1, 1, 0, 0), (3, 2, 2, 64), (5, 2, 5, 128)):
        with np.errstate(invalid="ignore"):
            expected = reference_sweep(grid, pattern, steps, boundary=boundary)
        found = StencilSweep(threads=threads, depth=depth, columns=columns).sweep(
            grid, pattern, steps, boundary=boundary
        )
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(found), finite)
        assert close(found[finite], expected[finite])


@pytest.mark.parametrize("width", [1024, 4096, 1000, 4000, 1 << 14])
def test_a_result_lies_elsewhere_in_its_page_than_the_rows_it_comes_from(width):
    grid = aligned_grid((40, width), np.float32)
    result = aligned_grid(grid.shape, grid.dtype, grid)
    spare = aligned_grid(grid.shape, grid.dtype, result)
    assert result.ctypes.data % 64 == spare.ctypes.data % 64 == 0
    for one, other in ((grid, result), (result, spare), (grid, spare)):
        for rows in range(-9, 10):
            apart = (one.ctypes.data - other.ctypes.data + rows * width * 4) % 4096
            assert 64 <= apart <= 4096 - 64


def test_a_result_that_lies_like_the_grid_is_right_too():
    store = np.zeros((2, 200, 1024), np.float32)
    store[0] = grid_of((200, 1024))
    for steps in (1, 2):
        for threads in (1, 2):
            sweep = StencilSweep(threads=threads, depth=1)
            found = sweep.sweep(store[0], MIXED, steps, out=store[1])
            assert close(found, reference_sweep(store[0], MIXED, steps))


INTERRUPTED = """
import signal, sys, threading, time
import subprocess
import sys

import numpy as np
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.sweep import stencil
small = np.ones((64, 64), np.float32)
stencil(small, Stencil.heat(0.1), 2, threads=THREADS)
grid = np.ones((6000, 6000), np.float32)
threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
start = time.perf_counter()
try:
    stencil(grid, Stencil.heat(0.1), 100_000, threads=THREADS)
except KeyboardInterrupt:
    took = time.perf_counter() - start - 1.0
    used = time.process_time()
    time.sleep(0.5)
    idle = time.process_time() - used
    again = stencil(small, Stencil.heat(0.1), 2, threads=THREADS, boundary="periodic")
    print(took, idle, np.allclose(again, 1.0, rtol=1e-5))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_a_long_sweep_and_leaves_nothing_behind(threads):
    script = INTERRUPTED.replace("THREADS", str(threads))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    took, idle, right = ended.stdout.split()
    # Many times less than the sweep, whatever else the machine does; a quiet one takes a tenth of a second.
    assert float(took) < 30
    assert float(idle) < 0.1
    assert right == "True"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", [1, 7])
def test_no_call_does_more_than_an_interrupt_may_wait_for(threads, steps, monkeypatch):
    limit, seen = 1 << 13, []

    def recorded(*given):
        top, bottom, left, right, depth = given[8:13]
        seen.append((bottom - top) * (right - left) * depth)
        run(*given)

    run = sweep_module.run_pass
    monkeypatch.setattr(sweep_module, "_CALL_UPDATES", limit)
    monkeypatch.setattr(sweep_module, "run_pass", recorded)
    grid = grid_of((300, 64))
    found = stencil(grid, MIXED, steps, threads=threads)
    # A band is as many whole rows as come nearest.
    assert max(seen) <= limit + 64 * steps
    assert close(found, reference_sweep(grid, MIXED, steps))


def test_patterns_share_one_compiled_pass():
    before = len(run_pass.signatures)
    grid = grid_of((40, 70))
    for number in range(6):
        weights = np.random.default_rng(number).random((5, 5)) * (np.random.default_rng(number).random((5, 5)) < 0.6)
        pattern = Stencil.from_matrix(weights / 9)
        assert close(stencil(grid, pattern, 2), reference_sweep(grid, pattern, 2))
    assert len(run_pass.signatures) <= before + 1


def test_a_result_that_overlaps_itself_is_refused():
    out = np.lib.stride_tricks.as_strided(np.empty(100, np.float32), (8, 8), (4, 4))
    with pytest.raises(BadValueError, match="share memory"):
        stencil(grid_of((8, 8)), Stencil.star(1), out=out)


def test_a_tensor_that_requires_its_gradient_is_refused():
    torch = pytest.importorskip("torch")
    grid = torch.ones(8, 8, requires_grad=True)
    with pytest.raises(BadValueError, match="gradient"):
        stencil(grid, Stencil.star(1))
    with torch.no_grad():
        assert stencil(grid, Stencil.star(1)).shape == (8, 8)
