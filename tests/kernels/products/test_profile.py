"""The profile: interpolation on its grid, a real measurement of a tiny one, and damaged files."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from wavetank.kernels.products import profile
from wavetank.kernels.products.profile import ProductProfile


def made(rates):
    return ProductProfile(
        dtype="float32", threads=1, grid=(16, 1024), rates=rates, term_s=1e-10, pass_s=1e-10,
        conditions=profile.conditions_of(("numpy",)),
    )  # fmt: skip


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
    monkeypatch.setattr(
        profile, "_rounds", lambda calls, _: {name: (call(), np.full(5, 1e-3))[1] for name, call in calls.items()}
    )
    small = profile.measure("float64", 1, ("numpy",), grid=(16, 96))
    assert set(small.rates) == {"own", "block", "numpy"}
    assert small.rates["own"][1][1][1] == pytest.approx(2 * 96**3 / 1e-3)
    # Eight products of this size in one call.
    assert small.rates["block"][1][1][1] == pytest.approx(8 * 2 * 96**3 / 1e-3)
    assert small.term_s > 0
    assert small.pass_s > 0
    assert small.spread == 0
    monkeypatch.setattr(profile, "measure", lambda *_: small)
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile.libraries, "available", lambda: ("numpy",))
    assert profile.cached("float64", 1, tmp_path) == small
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile, "measure", lambda *_: pytest.fail("measured again"))
    assert profile.cached("float64", 1, tmp_path).product_s("own", 50, 60, 70) == small.product_s("own", 50, 60, 70)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99}, {"grid": [1]}, {"term_s": -1}, {"rates": {}}, {"spread": -1}, {"spread": None},
        {"conditions": {}}, None,
    ],
)  # fmt: skip
def test_a_damaged_file_only_costs_a_new_measurement(tmp_path, monkeypatch, change):
    fresh = made({way: np.ones((2, 2, 2)).tolist() for way in ("own", "block", "numpy")})
    monkeypatch.setattr(profile, "measure", lambda *_: fresh)
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile.libraries, "available", lambda: ("numpy",))
    profile.cached("float32", 1, tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{" if change is None else json.dumps({**asdict(fresh), **change}))
    assert profile._read(path, ("numpy",), profile.conditions_of(("numpy",))) is None
    monkeypatch.setattr(profile, "_KEPT", {})
    assert profile.cached("float32", 1, tmp_path) is fresh


@pytest.mark.parametrize("variable", ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS"])
def test_a_profile_made_under_other_blas_kernels_is_not_used(tmp_path, monkeypatch, variable):
    table = np.ones((2, 2, 2)).tolist()
    measured = []

    def measure(*_):
        measured.append(made({"own": table, "block": table, "numpy": table}))
        return measured[-1]

    monkeypatch.setattr(profile, "measure", measure)
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile.libraries, "available", lambda: ("numpy",))
    monkeypatch.delenv(variable, raising=False)
    before = profile.cached("float32", 1, tmp_path)
    monkeypatch.setenv(variable, "512")
    other = profile.cached("float32", 1, tmp_path)
    assert len(measured) == 2
    assert other.conditions[variable] == "512"
    assert variable not in before.conditions
    monkeypatch.setattr(profile, "_KEPT", {})
    assert profile.cached("float32", 1, tmp_path) == other
    monkeypatch.delenv(variable)
    assert profile.cached("float32", 1, tmp_path) == before
    assert len(measured) == 2


def test_the_spread_is_that_of_ratios_and_leaves_the_two_outermost_rounds_aside():
    slow = np.array([1.0, 2.0, 1.0, 3.0, 1.0])
    assert profile.spread_of({"numpy": slow, "own": 2 * slow}) == 0
    assert profile.spread_of({"own": np.array([1.0, 1.0, 9.0, 1.0, 0.1])}) == 0
    assert profile.spread_of({"numpy": np.ones(5), "own": np.array([1.0, 1.1, 1.2, 1.3, 1.0])}) == pytest.approx(
        0.2 / 1.1
    )


def test_a_measurement_disturbed_is_made_again_and_the_calmest_counts(monkeypatch):
    wild, calm = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 1.0, 1.03, 1.03, 1.0])
    found = [wild, wild, calm, pytest.fail]
    monkeypatch.setattr(profile, "_rounds", lambda *_: {"own": found.pop(0)})
    clock = profile._Clock(1)
    assert clock.times({}, counts=True)["own"] is calm
    assert clock.spread == pytest.approx(0.03)
    found[:] = [calm, pytest.fail]
    monkeypatch.setattr(profile, "_rounds", lambda *_: {"numpy": np.ones(5), "torch": wild, "own": found.pop(0)})
    assert set(clock.times({}, counts=True, aside=("torch",))) == {"numpy", "torch", "own"}
    monkeypatch.setattr(profile, "_rounds", lambda *_: {"own": found.pop(0)})
    monkeypatch.setattr(profile, "_BUDGET_S", -1.0)
    found[:] = [wild, pytest.fail]
    hurried = profile._Clock(1)
    assert hurried.times({}, counts=False)["own"] is wild
    assert hurried.spread == 0
