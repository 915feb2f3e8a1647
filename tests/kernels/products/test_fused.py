"""How a fused product is cut into strips and shares, and what it packs."""

import threading
import time

import numpy as np
import pytest

from wavetank.kernels.products import fused
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN, WINOGRAD
from wavetank.machine import threads as threads_module


@pytest.fixture
def small_blocks(monkeypatch):
    """Let small matrices take the paths of large ones: several row blocks, chunks and strips."""
    monkeypatch.setattr(fused, "_BLOCK", {4: (42, 32), 8: (42, 16)})
    monkeypatch.setattr(fused, "_STRIP_BYTES", {False: 256, True: 512})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("shape", [(200, 170, 330), (90, 33, 31), (43, 65, 129)])
def test_many_blocks_chunks_and_strips_give_the_product(small_blocks, dtype, turn_a, turn_b, shape):
    rng = np.random.default_rng(0)
    a = np.asarray(rng.integers(-4, 5, shape[:2]), dtype, order="F" if turn_a else "C")
    b = np.asarray(rng.integers(-4, 5, shape[1:]), dtype, order="F" if turn_b else "C")
    for scheme in (CLASSICAL, STRASSEN, WINOGRAD.power(2)):
        for threads in (1, 2, 3):
            out = np.full((shape[0], shape[2]), np.nan, dtype)
            fused.fused_product(a, b, out, scheme, threads)
            assert np.array_equal(out, a @ b)
            out[:] = np.nan
            fused.fused_product(a, None, out, scheme, threads, fused.PackedRight(b, scheme, threads))
            assert np.array_equal(out, a @ b)


def test_threads_share_the_longer_side():
    assert fused.layout_of(100, 10, 5000, "float32", CLASSICAL, 2).by_columns
    assert not fused.layout_of(5000, 10, 100, "float32", CLASSICAL, 2).by_columns
    assert fused.layout_of(3, 3, 3, "float32", STRASSEN, 8).threads == 1


def test_the_workspace_does_not_grow_with_rows_and_grows_with_threads():
    small, tall = (fused.workspace_bytes(m, 1000, 1000, "float32", STRASSEN, 1) for m in (5000, 50_000))
    assert small == tall
    assert fused.workspace_bytes(5000, 1000, 1000, "float32", STRASSEN, 2) > 1.5 * small


def test_the_workspace_is_bounded_however_long_the_inner_side():
    for dtype, item in (("float32", 4), ("float64", 8)):
        sizes = [fused.workspace_bytes(5000, k, 9000, dtype, CLASSICAL, 1) for k in (10, 1000, 9000, 100_000)]
        assert max(sizes) < 24 * 2**20
        # A left block, the right panels and the tiles of a row block, for a product that fits one of each.
        tile = fused.blocking_of(dtype)
        room = (tile.rows + tile.lanes) * (tile.depth + 64 // item) + tile.tile_rows * 4 * tile.tile_columns
        room += 4 * (tile.lanes * tile.tile_columns + fused.PANEL_GAP_BYTES // item)
        need = fused.workspace_bytes(tile.tile_rows, tile.lanes, 4 * tile.tile_columns, dtype, CLASSICAL, 1)
        assert 0 <= need - room * item <= 4 * 64


@pytest.mark.parametrize("scheme", [CLASSICAL, STRASSEN, WINOGRAD.power(2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_how_a_product_is_cut_into_calls_changes_no_bit(scheme, threads, monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((701, 90)), rng.standard_normal((90, 333))
    found = []
    for flops, rows, packed_in_a_call in ((1 << 33, 2048, 1 << 25), (1 << 16, 1, 1 << 9)):
        monkeypatch.setattr(fused, "_FLOPS_OF_A_CALL", flops)
        monkeypatch.setattr(fused, "_LEAST_ROWS", max(rows, fused.blocking_of(a.dtype).rows))
        monkeypatch.setattr(fused, "_PACKED_IN_A_CALL", packed_in_a_call)
        for packed in (None, fused.PackedRight(b, scheme, threads)):
            out = np.full((701, 333), np.nan)
            fused.fused_product(a, None if packed else b, out, scheme, threads, packed)
            found.append(out)
    for other in found[1:]:
        assert np.array_equal(found[0], other)


@pytest.mark.parametrize("products", [1, 7, 343])
@pytest.mark.parametrize("row_flops", [2 * 16, 2 * 10**6, 2 * 10**9])
def test_no_call_of_a_product_takes_long(products, row_flops):
    blocking = fused.blocking_of(np.float64)
    calls = list(fused._calls((28, 50_000), row_flops, products, blocking))
    longest = max((high - low) * row_flops * (others - some) for low, high, some, others in calls)
    assert longest <= max(fused._FLOPS_OF_A_CALL, fused._LEAST_ROWS * row_flops)
    done = np.zeros(products, int)
    for low, high, some, others in calls:
        done[some:others] += high - low
    # Every product of a row follows the one before.
    assert (done == 50_000 - 28).all()
    assert calls == sorted(calls)


def test_an_interrupt_of_the_caller_halts_the_helpers(monkeypatch):
    made, caller = [], threading.current_thread()
    helping = threading.Event()

    def multiply(*of):
        made.append(threading.current_thread())
        if threading.current_thread() is caller:
            helping.wait(20)
            raise KeyboardInterrupt
        helping.set()
        while not interrupted.is_set():
            time.sleep(0.001)

    interrupted = threading.Event()
    wait_of_batch = threads_module._Batch.wait

    def wait(batch):
        interrupted.set()
        wait_of_batch(batch)

    monkeypatch.setattr(fused, "multiply_fused", multiply)
    monkeypatch.setattr(fused, "_FLOPS_OF_A_CALL", 1 << 10)
    monkeypatch.setattr(threads_module._Batch, "wait", wait)
    a = np.ones((4000, 64))
    with pytest.raises(KeyboardInterrupt):
        fused.fused_product(a, np.ones((64, 4000)), np.empty((4000, 4000)), STRASSEN, 2)
    # The caller's one call, and the one that the helper was at: its other calls were not begun.
    assert len(made) == 2
