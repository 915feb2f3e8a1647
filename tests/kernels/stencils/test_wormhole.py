"""The card's account: bytes over the link, seconds that sum up, energy, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.wormhole import WormholeStencil

FIVE = Stencil.star(1)
MAPPINGS = ("axpy", "matmul", "banded", "resident")


def card(mapping, **options):
    return WormholeStencil(mapping=mapping, **options)


@pytest.mark.parametrize(("mapping", "sent", "received"), [("axpy", 5, 1), ("matmul", 32, 32), ("banded", 1, 1)])
def test_bytes_over_the_link_are_multiples_of_the_grid(mapping, sent, received):
    grid_bytes = 2 * 256 * 512
    link = card(mapping).link_bytes(256, 512, FIVE)
    assert link.sweep_sent == sent * grid_bytes
    assert link.sweep_received == received * grid_bytes
    assert link.total(10) == 10 * (sent + received) * grid_bytes + link.once_sent


def test_a_resident_grid_crosses_once_each_way():
    link = card("resident").link_bytes(256, 512, FIVE)
    assert (link.sweep_sent, link.sweep_received) == (0, 0)
    assert link.once_received == 2 * 256 * 512
    assert link.once_sent == link.once_received + 6 * 2048


def test_whole_tiles_cross_the_link():
    assert card("axpy").link_bytes(33, 1, FIVE).sweep_sent == 5 * 2 * 2048
    # 49 neighbours fill two tiles of columns.
    assert card("matmul").link_bytes(32, 32, Stencil.box(3)).sweep_sent == 2 * 32 * 2048


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_parts_sum_to_the_total(mapping):
    spent = card(mapping).breakdown(1024, 1024, FIVE, 10, pack_s=0.01, unpack_s=0.002)
    turns = 1 if mapping == "resident" else 10
    link = card(mapping).link_bytes(1024, 1024, FIVE)
    parts = (
        1.5, turns * 0.01, turns * 0.002, 10 * card(mapping).kernel_s(1024, 1024, FIVE), link.total(10) / 20e9,
    )  # fmt: skip
    assert spent.total_s == pytest.approx(sum(parts), rel=1e-12)
    assert spent.host_s == pytest.approx(turns * 0.012)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_free_link_and_no_start_leave_the_kernel(mapping):
    times = []
    for rate in (1e9, 1e11, 1e14, math.inf):
        fast = replace(card(mapping), link_bytes_per_s=rate, start_s=0.0)
        times.append(fast.breakdown(512, 512, FIVE, 20, pack_s=0.0, unpack_s=0.0).total_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(20 * card(mapping).kernel_s(512, 512, FIVE))


def test_the_kernel_takes_memory_or_arithmetic():
    axpy = card("axpy")
    assert axpy.kernel_s(4096, 4096, FIVE) == pytest.approx(6 * 2 * 4096**2 / 288e9)
    slow = card("axpy", elementwise_cycles=1 << 20)
    assert slow.kernel_s(1024, 1024, FIVE) == pytest.approx(-(-1024 // 72) * 5 * (1 << 20) / 1e9)


def test_a_grid_that_fits_the_cores_needs_no_memory_of_the_card():
    small, large = (card("resident").kernel_s(side, side, FIVE) for side in (2048, 16_384))
    rows = -(-2048 // 32 // 64)
    assert small == pytest.approx(rows * 64 * 6 * 64 / 1e9 + 2 * 2048 * 2 / 32 / 1e9)
    assert large > 2 * 2 * 16_384**2 / 288e9
    # One stripe has no neighbours.
    assert card("resident", cores=1).kernel_s(64, 64, FIVE) == pytest.approx(2 * 2 * 6 * 64 / 1e9)


def test_energy_is_idle_watts_for_all_and_more_for_who_works():
    axpy = card("axpy", card_idle_w=10, card_active_w=100, host_idle_w=20, host_active_w=220, start_s=1.0)
    spent = axpy.breakdown(512, 512, FIVE, 4, pack_s=0.5, unpack_s=0.25)
    expected = 30 * spent.total_s + 200 * 3.0 + 90 * spent.kernel_s
    assert axpy.energy_joules(spent) == pytest.approx(expected)
    assert axpy.card_joules(spent) == pytest.approx(10 * spent.total_s + 90 * spent.kernel_s)
    assert axpy.processor_joules(2.0) == 440.0


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("accumulate", ["fp32", "bf16"])
def test_sweeps_stay_near_the_plain_sweep(mapping, accumulate):
    grid = np.random.default_rng(0).random((70, 101)).astype(np.float32) + 1
    before = grid.copy()
    swept = card(mapping, accumulate=accumulate).sweep(grid, FIVE, 4)
    expected = reference_sweep(grid, FIVE, 4)
    assert swept.dtype == np.float32
    a_step = (3 if accumulate == "fp32" else 7) * 2.0**-8
    assert np.max(np.abs(swept - expected) / expected) <= (1 + a_step) ** 4 - 1
    np.testing.assert_array_equal(grid, before)


def test_exact_float64_is_the_plain_sweep():
    grid = np.random.default_rng(0).random((50, 60))
    for mapping in ("axpy", "matmul"):
        swept = card(mapping, accumulate="exact").sweep(grid, Stencil.heat(0.2), 3)
        np.testing.assert_array_equal(swept, reference_sweep(grid, Stencil.heat(0.2), 3))


def test_no_steps_give_a_copy():
    grid = np.ones((40, 40), np.float32)
    swept = card("axpy").sweep(grid, FIVE, 0)
    np.testing.assert_array_equal(swept, grid)
    assert not np.shares_memory(swept, grid)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_hosts_part_runs_and_leaves_the_grid(mapping, threads):
    grid = np.random.default_rng(0).random((200, 300)).astype(np.float32)
    before = grid.copy()
    part = card(mapping).host(grid, FIVE, threads)
    part.pack()
    part.unpack()
    np.testing.assert_array_equal(grid, before)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_bad_grids_are_refused(mapping):
    with pytest.raises(BadValueError, match="bfloat16, which is rounded from float32"):
        card(mapping).sweep(np.zeros((40, 40)), FIVE)
    with pytest.raises(BadValueError, match="fixed rim"):
        card(mapping).sweep(np.zeros((40, 40), np.float32), FIVE, boundary="periodic")
    with pytest.raises(BadValueError, match="Steps"):
        card(mapping).sweep(np.zeros((40, 40), np.float32), FIVE, -1)
    with pytest.raises(BadValueError, match="reaches beyond"):
        card(mapping).host(np.zeros((40, 2), np.float32), FIVE)


@pytest.mark.parametrize("mapping", ["banded", "resident"])
def test_banded_products_refuse_what_would_spread_over_tiles(mapping):
    grid = np.zeros((40, 40), np.float32)
    grid[7, 30] = np.inf
    with pytest.raises(BadValueError, match="spread") as caught:
        card(mapping).sweep(grid, FIVE)
    assert caught.value.where == "grid, row 7, column 30"
    with pytest.raises(BadValueError, match="off both"):
        card(mapping).sweep(np.zeros((40, 40), np.float32), Stencil.box(1))
