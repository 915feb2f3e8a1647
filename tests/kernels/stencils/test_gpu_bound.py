"""The roofline of stencils on a graphics processor."""

import pytest

from wavetank.kernels.stencils.gpu_bound import GpuBound
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.wafer import WaferStencil


def test_one_sweep_streams_eight_bytes_a_cell():
    # The dossier: 0.19 T updates a second.
    assert GpuBound().bound_updates_per_s(Stencil.star(1)) == pytest.approx(1.555e12 / 8)


def test_wide_boxes_are_bound_by_arithmetic():
    gpu = GpuBound()
    assert gpu.bound_updates_per_s(Stencil.box(4)) == pytest.approx(1.95e13 / (2 * 81))
    assert gpu.flops_per_byte(Stencil.box(4)) > gpu.peak_flops_per_s() / gpu.memory_bytes_per_s


def test_three_fused_steps_cross_memory_once():
    conv = GpuBound(layout="convstencil")
    assert conv.bound_updates_per_s(Stencil.star(1)) == pytest.approx(3 * 1.555e12 / 8)
    # A fused square of 7 x 7, two products, three steps.
    assert conv.flops_per_update(Stencil.star(1)) == pytest.approx(4 * 49 / 3)
    assert conv.fused_steps(Stencil.star(2)) == 1
    assert conv.bound_updates_per_s(Stencil.box(4)) == pytest.approx(1.555e12 / 8)


def test_the_wafers_bound_is_about_a_thousand_times_one_sweep_a_pass():
    ratio = WaferStencil().bound_updates_per_s(Stencil.star(1)) / GpuBound().bound_updates_per_s(Stencil.star(1))
    assert 900 < ratio < 1100
