"""What this machine can do: measured once, kept, and measured anew when what was kept is no good."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels import machine
from wavetank.kernels.machine import MachineProfile, cached, measure, require_memory

FIGURES = [field.name for field in dataclasses.fields(MachineProfile) if field.name.endswith("_per_s")]
KNOWN = MachineProfile(
    cpu="a", cores=2, memory_bytes=3, **{name: float(place + 4) for place, name in enumerate(FIGURES)}
)


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement; return the list of how often, and how, it was asked for."""
    calls = []

    def instead(quick):
        calls.append(quick)
        return KNOWN

    monkeypatch.setattr(machine, "measure", instead)
    return calls


def test_measured_figures_are_positive_and_finite(monkeypatch):
    small = np.full
    monkeypatch.setattr(machine.np, "full", lambda shape, *rest: small(_smaller(shape), *rest))
    profile = measure()
    assert len(FIGURES) == 8
    assert all(math.isfinite(getattr(profile, name)) and getattr(profile, name) > 0 for name in FIGURES)
    assert profile.cores == machine.usable_cores() >= 1
    assert profile.cpu == machine.cpu_model() != ""
    assert profile.version == machine.PROFILE_VERSION


def _smaller(shape):
    return tuple(side // 8 for side in shape) if isinstance(shape, tuple) else shape // 64


def test_bandwidth_counts_the_bytes_of_all_arrays(monkeypatch):
    monkeypatch.setattr(machine, "_best_s", lambda call, repeats: (call(), 0.5)[1])
    seen = []
    one, every = machine._bandwidths(lambda *parts: seen.append(parts), (np.zeros(10), np.ones(10)), 3, 1)
    assert one == every == 160 / 0.5
    assert sorted(part[0].size for part in seen) == [3, 3, 4, 10]


def test_the_least_time_of_all_repetitions_after_a_warm_up_counts(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    calls = []
    assert machine._best_s(lambda: calls.append(1), 3) == 1.0
    assert len(calls) == 4


def test_the_triad_scales_and_adds():
    a, b, c = np.zeros(5), np.arange(5.0), np.full(5, 2.0)
    machine._triad(a, b, c, 3.0)
    assert a.tolist() == [6.0, 7.0, 8.0, 9.0, 10.0]


def test_the_time_of_a_copy_follows_from_the_bandwidth():
    assert dataclasses.replace(KNOWN, copy_all_bytes_per_s=2e9).copy_s(1e9) == 0.5


def test_a_kept_profile_is_read_back_and_not_measured_again(measured, tmp_path):
    assert cached(folder=tmp_path) == KNOWN
    assert cached(folder=tmp_path) == KNOWN
    assert measured == [True]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_thoroughness_is_passed_on(measured, tmp_path):
    cached(quick=False, folder=tmp_path)
    assert measured == [False]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: "{}",
        lambda text: text.replace('"version": 1', '"version": 0'),
        lambda text: text.replace('"cores"', '"kernels"'),
        lambda text: json.dumps({"version": machine.PROFILE_VERSION}),
    ],
    ids=["cut off", "empty", "a list", "no keys", "older", "an unknown key", "missing keys"],
)
def test_a_damaged_profile_is_measured_anew_and_replaced(damage, measured, tmp_path):
    cached(folder=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert cached(folder=tmp_path) == KNOWN
    assert measured == [True, True]
    assert path.read_text() == whole


def test_bytes_that_are_no_text_are_measured_anew(measured, tmp_path):
    cached(folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"\xff\xfe\x00")
    assert cached(folder=tmp_path) == KNOWN
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_only_costs_a_measurement(measured, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cached(folder=blocked / "below") == KNOWN
    assert cached(folder=blocked / "below") == KNOWN
    assert len(measured) == 2


def test_another_number_of_cores_has_a_profile_of_its_own(measured, tmp_path, monkeypatch):
    cached(folder=tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: 999)
    cached(folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_cache_lies_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "wavetank"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(machine.Path, "home", lambda: tmp_path)
    assert machine.cache_folder() == tmp_path / ".cache" / "wavetank"


def test_work_that_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 20_000_000)
    with pytest.raises(BadValueError, match="Weighing elephants needs more memory than is available") as caught:
        require_memory(40_000_000, "Weighing elephants")
    assert caught.value.given.startswith("40")
    assert caught.value.allowed.startswith("at most 20")
    assert caught.value.hint == "take a smaller case, or free memory first"
    with pytest.raises(BadValueError) as caught:
        require_memory(40_000_000, "Weighing elephants", "weigh calves")
    assert caught.value.hint == "weigh calves"


@pytest.mark.parametrize(("need", "available"), [(20_000_000, 20_000_000), (1000, 10), (1 << 60, None)])
def test_work_that_fits_or_cannot_be_judged_is_let_through(need, available, monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: available)
    assert require_memory(need, "It") is None


def test_memory_is_read_from_the_system_and_unknown_elsewhere(monkeypatch, tmp_path):
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal:  2000 kB\nMemFree: 5 kB\nMemAvailable:  1000 kB\n")
    real = machine.Path
    monkeypatch.setattr(machine, "Path", lambda name: facts if name == "/proc/meminfo" else real(name))
    assert (machine.memory_bytes(), machine.available_bytes()) == (2000 * 1024, 1000 * 1024)
    facts.unlink()
    assert (machine.memory_bytes(), machine.available_bytes()) == (0, None)


def test_the_processor_is_named_even_where_the_system_does_not_list_it(monkeypatch, tmp_path):
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor : 0\nmodel name\t: Abacus 3000\n")
    monkeypatch.setattr(machine, "Path", lambda name: facts)
    assert machine.cpu_model() == "Abacus 3000"
    facts.unlink()
    monkeypatch.setattr(machine.platform, "processor", lambda: "abacus")
    assert machine.cpu_model() == "abacus"


def test_without_affinity_all_cores_are_usable(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert machine.usable_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1
