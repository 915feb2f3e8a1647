"""The limits of the machine at hand."""

import dataclasses
import json
import math

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels import machine

PROFILE = machine.MachineProfile(
    cpu="a processor",
    cores=2,
    memory_bytes=1 << 30,
    copy_one_bytes_per_s=1e9,
    copy_all_bytes_per_s=2e9,
    triad_one_bytes_per_s=1e9,
    triad_all_bytes_per_s=2e9,
    fill_one_bytes_per_s=1e9,
    fill_all_bytes_per_s=2e9,
    peak_float32_per_s=1e11,
    peak_float64_per_s=5e10,
)


@pytest.fixture
def measured(monkeypatch):
    calls = []
    monkeypatch.setattr(machine, "measure", lambda quick=True: calls.append(quick) or PROFILE)
    return calls


def test_every_measured_limit_is_positive_and_finite():
    profile = machine.measure(quick=True)
    for name, value in dataclasses.asdict(profile).items():
        if name.endswith("_per_s"):
            assert 0 < value < math.inf, name
    assert profile.cores == machine.usable_cores() >= 1
    assert profile.cpu


def test_a_copy_of_two_gigabytes_takes_a_second_at_two_gigabytes_a_second():
    assert PROFILE.copy_s(2e9) == 1.0


def test_a_profile_is_measured_once(measured, tmp_path):
    assert machine.cached(folder=tmp_path) == machine.cached(folder=tmp_path) == PROFILE
    assert measured == [True]


@pytest.mark.parametrize("damage", ["{", "[]", '{"version": -1}', json.dumps({"version": machine.PROFILE_VERSION})])
def test_a_damaged_or_old_profile_is_measured_again(measured, tmp_path, damage):
    machine.cached(folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(damage)
    assert machine.cached(folder=tmp_path) == PROFILE
    assert len(measured) == 2
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_written_costs_only_a_measurement(measured, tmp_path):
    (tmp_path / "file").write_text("")
    assert machine.cached(folder=tmp_path / "file" / "below") == PROFILE


def test_the_cache_follows_the_users_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "wavetank"


def test_work_that_does_not_fit_is_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 10**9)
    machine.require_memory(10**9, "This")
    with pytest.raises(BadValueError) as caught:
        machine.require_memory(3 * 10**9, "Sorting 5 keys")
    assert "Sorting 5 keys needs more memory" in str(caught.value)
    assert "3 GB" in str(caught.value)
    assert "1 GB" in str(caught.value)


def test_little_work_is_never_refused(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 0)
    machine.require_memory(1000, "This")
