"""A bench without noise whose best settings are known."""

import functools

import pytest

from wavetank.platforms.power import power_table
from wavetank.serving.power.dvfs import GpuModel
from wavetank.serving.power.harness import Harness
from wavetank.serving.power.interface import Cell, SimulatedBench
from wavetank.serving.power.simulated_gpu import SimulatedGpu
from wavetank.sim.rng import stream

TABLE = power_table("H200-SXM")
CELLS = (Cell("gqa", 1, 1024), Cell("gqa", 8, 4096), Cell("mamba2", 8, 4096))


def make_bench(*, loss_limit=0.05, noise=0.0, excursions=0.0, cells=CELLS, seed=0, **model):
    return SimulatedBench(
        gpu=SimulatedGpu(model=GpuModel(table=TABLE, **model), noise=noise, excursions=excursions), table=TABLE,
        cells=cells, caps_w=(600.0, 500.0, 400.0, 300.0, 200.0), loss_limit=loss_limit, harness=Harness(),
        draws=functools.partial(stream, seed, "runs"),
    )  # fmt: skip


@pytest.fixture
def bench():
    return make_bench()
