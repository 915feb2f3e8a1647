"""The profile: interpolation on its grid, a real measurement of a tiny one, and damaged files."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.products import profile
from wavetank.kernels.products.profile import ProductProfile
from wavetank.machine import profiles


def made(rates):
    return ProductProfile(
        dtype="float32", threads=1, grid=(16, 1024), rates=rates, term_s=1e-10, pass_s=1e-10,
        conditions=profile.conditions_of(1), versions={"numpy": np.__version__},
    )  # fmt: skip


TABLES = {way: np.ones((2, 2, 2)).tolist() for way in ("own", "block", "numpy")}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """Let every test begin as a process does that has looked for no profile."""
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile, "_ANY", {})
    monkeypatch.setattr(profiles, "_said", set())


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
    small = dataclasses.replace(small, others_cores=0.0)
    assert profile.kept("float64", 1, tmp_path) is None
    assert profile.keep(small, tmp_path).parent == tmp_path
    found = profile.kept("float64", 1, tmp_path)
    assert found == small
    assert profile.kept("float64", 1, tmp_path) is found
    assert found.product_s("own", 50, 60, 70) == small.product_s("own", 50, 60, 70)
    assert profile.kept("float32", 1, tmp_path) is None
    assert profile.kept("float64", 2, tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"grid": [1]}, {"grid": [1024, 16]}, {"grid": [16, 16]}, {"term_s": -1}, {"pass_s": 0}, {"rates": {}},
        {"spread": -1}, {"spread": None}, {"spread": 0.2}, {"surprise": 1}, {"versions": 3},
        {"rates": {**TABLES, "own": [[1.0]]}}, {"rates": {**TABLES, "numpy": np.zeros((2, 2, 2)).tolist()}},
    ],
)  # fmt: skip
def test_what_no_measurement_gives_counts_as_nothing_kept(tmp_path, change):
    fresh = made(TABLES)
    content = {**dataclasses.asdict(fresh), **change}
    content.pop("conditions")
    kept = profiles.Profile("products-float32", profile.ProductCosts.version, profile.conditions_of(1), content)
    profiles.keep(kept, tmp_path)
    assert profile.kept("float32", 1, tmp_path) is None


def test_a_profile_of_another_version_or_damaged_counts_as_none_with_a_note(tmp_path):
    path = profile.keep(made(TABLES), tmp_path)
    whole = path.read_text()
    for text in (whole[:100], whole.replace('"version": 3', '"version": 4')):
        path.write_text(text)
        profile.forget()
        profiles._said.clear()
        with pytest.warns(RuntimeWarning, match="is not used"):
            assert profile.kept("float32", 1, tmp_path) is None


@pytest.mark.parametrize("busy", [{"spread": 0.101}, {"others_cores": 1e3}])
def test_a_profile_of_a_busy_machine_is_refused_and_what_was_kept_stays(tmp_path, busy):
    calm = made(TABLES)
    profile.keep(calm, tmp_path)
    disturbed = dataclasses.replace(calm, term_s=5.0, **busy)
    assert disturbed.disturbed
    with pytest.raises(BadValueError, match="busy while products were measured"):
        profile.keep(disturbed, tmp_path)
    profile.forget()
    assert profile.kept("float32", 1, tmp_path) == calm
    assert not dataclasses.replace(calm, spread=0.1).disturbed


def test_where_nothing_can_be_written_a_profile_serves_this_process(tmp_path):
    (tmp_path / "file").write_text("")
    within = tmp_path / "file" / "below"
    with pytest.warns(RuntimeWarning, match="serve this process alone"):
        assert profile.keep(made(TABLES), within) is None
    assert profile.kept("float32", 1, within) == made(TABLES)


@pytest.mark.parametrize("variable", ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS"])
def test_a_profile_made_under_other_blas_kernels_is_not_used(tmp_path, monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    profile.keep(made(TABLES), tmp_path)
    monkeypatch.setenv(variable, "512")
    profile.forget()
    assert profile.kept("float32", 1, tmp_path) is None
    profile.keep(dataclasses.replace(made(TABLES), term_s=7.0), tmp_path)
    assert profile.kept("float32", 1, tmp_path).term_s == 7.0
    monkeypatch.delenv(variable)
    profile.forget()
    assert profile.kept("float32", 1, tmp_path).term_s == 1e-10


def test_libraries_are_judged_only_in_the_version_that_was_measured():
    known = made(TABLES)
    assert known.covers("numpy")
    assert not known.covers("torch")
    assert not dataclasses.replace(known, versions={"numpy": "0.1"}).covers("numpy")


def test_nobody_asks_libraries_what_they_are_where_nothing_was_ever_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profile, "conditions_of", lambda *_: pytest.fail("asked"))
    assert profile.kept("float32", 1) is None
    assert not profile.is_any_kept("float32")


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
