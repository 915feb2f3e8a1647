"""The profile: interpolation on its grid, a real measurement of a tiny one, and damaged files."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from wavetank.kernels.products import profile
from wavetank.kernels.products.profile import ProductProfile


def made(rates):
    return ProductProfile(dtype="float32", threads=1, grid=(16, 1024), rates=rates, term_s=1e-10, pass_s=1e-10)


def test_grid_points_give_their_rate_and_the_middle_the_geometric_mean():
    table = np.full((2, 2, 2), 1e9)
    table[1] = 4e9
    known = made({"own": table.tolist()})
    assert known.product_s("own", 1024, 1024, 1024) == pytest.approx(2 * 1024**3 / 4e9)
    assert known.product_s("own", 16, 1024, 16) == pytest.approx(2 * 16 * 1024 * 16 / 1e9)
    assert known.product_s("own", 128, 1024, 1024) == pytest.approx(2 * 128 * 1024**2 / 2e9)
    assert known.product_s("own", 4096, 4096, 4096) == pytest.approx(2 * 4096**3 / 4e9)
    assert known.product_s("own", 1, 1024, 1024) == known.product_s("own", 16, 1024, 1024)


def test_a_measurement_knows_every_way_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "_least_s", lambda call, *_: (call(), 1e-3)[1])
    small = profile.measure("float64", 1, ("numpy",), grid=(16, 96))
    assert set(small.rates) == {"own", "numpy"}
    assert small.rates["own"][1][1][1] == pytest.approx(2 * 96**3 / 1e-3)
    assert small.term_s > 0
    assert small.pass_s > 0
    monkeypatch.setattr(profile, "measure", lambda *_: small)
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile.libraries, "available", lambda: ("numpy",))
    assert profile.cached("float64", 1, tmp_path) == small
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile, "measure", lambda *_: pytest.fail("measured again"))
    assert profile.cached("float64", 1, tmp_path).product_s("own", 50, 60, 70) == small.product_s("own", 50, 60, 70)


@pytest.mark.parametrize("change", [{"version": 99}, {"grid": [1]}, {"term_s": -1}, {"rates": {}}, None])
def test_a_damaged_file_only_costs_a_new_measurement(tmp_path, monkeypatch, change):
    fresh = made({"own": np.ones((2, 2, 2)).tolist(), "numpy": np.ones((2, 2, 2)).tolist()})
    monkeypatch.setattr(profile, "measure", lambda *_: fresh)
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile.libraries, "available", lambda: ("numpy",))
    profile.cached("float32", 1, tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{" if change is None else json.dumps({**asdict(fresh), **change}))
    assert profile._read(path, ("numpy",)) is None
    monkeypatch.setattr(profile, "_KEPT", {})
    assert profile.cached("float32", 1, tmp_path) is fresh
