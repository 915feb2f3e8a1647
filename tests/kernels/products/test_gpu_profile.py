"""What a GPU's profile predicts, what is timed for it, and how it is kept."""

import dataclasses
import math
import types

import numpy as np
import pytest

from wavetank.kernels.products import gpu_profile
from wavetank.kernels.products.gpu_profile import GRID, WAYS, GpuProfile
from wavetank.machine import profiles


def made(grid=(256, 1024, 4096), rate=lambda way, m, k, n: 1e12, **other):
    rates = {
        way: [[[rate(way, m, k, n) for n in grid] for k in grid] for m in grid] for way in WAYS
    }  # fmt: skip
    given = {
        "device": "made", "torch": "2", "dtype": "float32", "tf32": False, "grid": grid, "rates": rates,
        "pass_bytes_per_s": 1e12, "launch_s": 1e-5,
    }  # fmt: skip
    return GpuProfile(**{**given, **other})


def measured_calls(grid):
    """Run in the interpreter: the profile that a made-up clock gives, and how often it was asked."""
    import torch

    asked = []

    def timer(call):
        call()
        asked.append(call)
        return 1e-3 * len(asked)

    profile = gpu_profile.measure(torch.device("cpu"), "float32", False, grid, timer)
    return profile, len(asked)


def test_times_at_grid_points_are_those_measured():
    profile = made(rate=lambda way, m, k, n: 1e9 * (m + 2 * k + 3 * n))
    for sides in ((256, 1024, 4096), (4096, 256, 256)):
        rate = 1e9 * (sides[0] + 2 * sides[1] + 3 * sides[2])
        assert profile.product_s("library", *sides) == pytest.approx(2 * math.prod(sides) / rate)


def test_between_grid_points_the_logarithm_of_the_rate_is_interpolated():
    profile = made(rate=lambda way, m, k, n: float(m * k**2))
    assert profile.product_s("own", 512, 700, 333) == pytest.approx(2 * 512 * 700 * 333 / (512 * 700**2))


def test_beyond_the_grid_the_rate_stays_and_below_it_a_side_costs_as_the_least():
    profile = made()
    assert profile.product_s("library", 8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 1e12)
    assert profile.product_s("library", 1, 1024, 1024) == profile.product_s("library", 256, 1024, 1024)


def test_measuring_times_every_way_on_every_shape_and_both_passes(interpreter):
    profile, asked = interpreter(measured_calls, (16, 32))
    # Eight shapes four ways, a pass of each kind, and a small one.
    assert asked == 8 * 4 + 3
    assert profile.device == "interpreter"
    assert all(np.asarray(profile.rates[way]).shape == (2, 2, 2) for way in WAYS)
    # The first call took 1 ms, the second, of sides less by one, 2 ms, the third, of seven products, 3 ms.
    assert profile.rates["library"][0][0][0] == pytest.approx(2 * 16**3 / 1e-3)
    assert profile.rates["unaligned"][0][0][0] == pytest.approx(2 * 15**3 / 2e-3)
    assert profile.rates["batched"][0][0][0] == pytest.approx(7 * 2 * 16**3 / 3e-3)
    assert profile.pass_bytes_per_s == pytest.approx(2 * 11 * 16**2 * 4 / (33e-3 + 34e-3))
    assert profile.launch_s == pytest.approx(35e-3)


@pytest.fixture
def device(monkeypatch):
    """Return a device of which a made profile may be kept."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(gpu_profile, "_KEPT", {})
    monkeypatch.setattr(gpu_profile, "device_name", lambda _: "made")
    monkeypatch.setattr(gpu_profile, "torch_version", lambda: "2")
    return types.SimpleNamespace(type="cuda")


def test_a_profile_is_kept_by_type_and_never_measured_on_the_way(device, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_profile, "measure", lambda *_: pytest.fail("measured"))
    assert gpu_profile.kept(device, "float32", False, tmp_path) is None
    gpu_profile.forget()
    gpu_profile.keep(made(), tmp_path)
    gpu_profile.forget()
    assert gpu_profile.kept(device, "float32", False, tmp_path) == made()
    assert gpu_profile.kept(device, "float32", True, tmp_path) is None
    assert gpu_profile.kept(device, "float64", False, tmp_path) is None


@pytest.mark.parametrize("change", [{"rates": {}}, {"grid": [256, 1024]}, {"pass_bytes_per_s": 0}, {"surprise": 1}])
def test_what_no_measurement_gives_counts_as_nothing_kept(device, tmp_path, change):
    conditions = gpu_profile._conditions(device, "float32", False)
    content = {**dataclasses.asdict(made()), **change}
    profiles.keep(profiles.Profile("gpu-products", gpu_profile.GpuProductCosts.version, conditions, content), tmp_path)
    assert gpu_profile.kept(device, "float32", False, tmp_path) is None


def test_a_folder_that_cannot_be_written_costs_nothing_else(device, tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "_said", set())
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="serve this process alone"):
        assert gpu_profile.keep(made(), tmp_path / "file") is None
    assert gpu_profile.kept(device, "float32", False, tmp_path / "file") == made()


def test_the_grid_ascends_from_blocks_below_any_scheme():
    assert list(GRID) == sorted(GRID)
    assert GRID[0] < 512 < GRID[-1]
