"""What this machine can do: measured once, kept, and measured anew when what was kept is no good."""

import dataclasses
import math
import os

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.machine import limits as machine
from wavetank.machine import profiles
from wavetank.machine.limits import MachineProfile, cached, measure, require_memory

FIGURES = [field.name for field in dataclasses.fields(MachineProfile) if field.name.endswith("_per_s")]
KNOWN = MachineProfile(
    cpu="a", cores=2, memory_bytes=3, spreads=dict.fromkeys(FIGURES, 1.1), conditions=machine.conditions_of(),
    **{name: float(place + 4) for place, name in enumerate(FIGURES)},
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement; return the list of how often, and how, it was asked for."""
    calls = []

    def instead(quick):
        calls.append(quick)
        return dataclasses.replace(KNOWN, conditions=machine.conditions_of())

    monkeypatch.setattr(machine, "measure", instead)
    monkeypatch.setattr(machine, "_UNKEPT", {})
    monkeypatch.setattr(profiles, "_said", set())
    return calls


def kept_files(folder):
    return [path for path in folder.iterdir() if path.suffix == ".json"]


def test_measured_figures_are_positive_and_finite(monkeypatch):
    small = np.full
    monkeypatch.setattr(machine.np, "full", lambda shape, *rest: small(_smaller(shape), *rest))
    profile = measure()
    assert len(FIGURES) == 8
    assert all(math.isfinite(getattr(profile, name)) and getattr(profile, name) > 0 for name in FIGURES)
    assert profile.cores == machine.usable_cores() >= 1
    assert profile.cpu == machine.cpu_model() != ""
    assert profile.conditions == machine.conditions_of()


def _smaller(shape):
    return tuple(side // 8 for side in shape) if isinstance(shape, tuple) else shape // 64


def test_bandwidth_counts_the_bytes_of_all_arrays(monkeypatch):
    monkeypatch.setattr(machine, "_least_s", lambda call, repeats: (call(), (0.5, 1.2))[1])
    seen = []
    one, every = machine._bandwidths(lambda *parts: seen.append(parts), (np.zeros(10), np.ones(10)), 3, 1)
    assert one == every == (160 / 0.5, 1.2)
    assert sorted(part[0].size for part in seen) == [3, 3, 4, 10]


def _clock(monkeypatch, *durations):
    """Let the calls to be timed take these seconds; return the list of calls."""
    ticks = iter([tick for place, took in enumerate(durations) for tick in (100.0 * place, 100.0 * place + took)])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks))
    return []


def test_the_least_time_of_all_repetitions_after_a_warm_up_counts(monkeypatch):
    calls = _clock(monkeypatch, 3.0, 2.0, 2.5)
    assert machine._least_s(lambda: calls.append(1), 3) == (2.0, 1.25)
    assert len(calls) == 4


def test_repetitions_that_differ_are_repeated(monkeypatch):
    calls = _clock(monkeypatch, 4.0, 4.0, 1.0, 2.0, 2.2, 2.1)
    assert machine._least_s(lambda: calls.append(1), 3) == pytest.approx((1.0, 1.05))
    assert len(calls) == 7


def test_repetitions_that_never_agree_leave_their_least_spread(monkeypatch):
    _clock(monkeypatch, 1.0, 4.0, 4.0, 2.0, 4.0, 4.0, 1.0, 6.0, 6.0)
    assert machine._least_s(lambda: None, 3) == (1.0, 2.0)


def test_the_time_of_a_copy_follows_from_the_bandwidth():
    assert dataclasses.replace(KNOWN, copy_all_bytes_per_s=2e9).copy_s(1e9) == 0.5


def test_a_kept_profile_is_read_back_and_not_measured_again(measured, tmp_path):
    assert cached(folder=tmp_path) == KNOWN
    assert cached(folder=tmp_path) == KNOWN
    assert measured == [True]
    assert len(kept_files(tmp_path)) == 1


def test_thoroughness_is_passed_on(measured, tmp_path):
    cached(quick=False, folder=tmp_path)
    assert measured == [False]


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[1, 2]"])
def test_a_damaged_profile_is_measured_anew_and_replaced(damage, measured, tmp_path):
    cached(folder=tmp_path)
    (path,) = kept_files(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.warns(RuntimeWarning, match="is not used"):
        assert cached(folder=tmp_path) == KNOWN
    assert measured == [True, True]
    assert machine.kept(tmp_path) == KNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"peak_float64_per_s": "11"}, {"peak_float64_per_s": 0.0}, {"kernels": 1}, {"cpu": None, "spreads": {"a": 0.0}},
        {"spreads": {"copy_one_bytes_per_s": 9.0}},
    ],
)  # fmt: skip
def test_what_no_measurement_gives_is_measured_anew(change, measured, tmp_path):
    content = {**dataclasses.asdict(KNOWN), **change}
    content.pop("conditions")
    version, conditions = machine.MachineLimits.version, machine.conditions_of()
    profiles.keep(profiles.Profile("machine", version, conditions, content), tmp_path)
    with pytest.warns(RuntimeWarning, match="what no measurement gives"):
        assert cached(folder=tmp_path) == KNOWN
    assert len(measured) == 1


def test_a_profile_of_another_version_is_told_and_measured_anew(measured, tmp_path):
    profiles.keep(profiles.Profile("machine", machine.MachineLimits.version + 1, machine.conditions_of(), {}), tmp_path)
    with pytest.warns(RuntimeWarning, match=f"version {machine.MachineLimits.version + 1}"):
        assert cached(folder=tmp_path) == KNOWN
    assert len(measured) == 1


def test_a_busy_profile_is_refused_by_name(tmp_path):
    busy = dataclasses.replace(KNOWN, others_cores=99.0)
    with pytest.raises(BadValueError, match="busy while its limits were measured"):
        machine.keep(busy, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_a_busy_machine_is_told_and_serves_this_process_alone(monkeypatch, tmp_path):
    busy = dataclasses.replace(KNOWN, spreads={"copy_one_bytes_per_s": 1.0, "peak_float32_per_s": 2.5})
    calls = []
    monkeypatch.setattr(machine, "measure", lambda quick: (calls.append(quick), busy)[1])
    monkeypatch.setattr(machine, "_UNKEPT", {})
    assert busy.disturbed
    assert busy.spread == 2.5
    with pytest.warns(RuntimeWarning, match="busy while its limits were measured: repetitions differed by up to 2.50"):
        assert cached(folder=tmp_path) == busy
    assert cached(folder=tmp_path) is busy
    assert len(calls) == 1
    assert kept_files(tmp_path) == []


def test_work_of_others_counts_as_a_disturbance():
    assert not dataclasses.replace(KNOWN, others_cores=0.3).disturbed
    busy = dataclasses.replace(KNOWN, others_cores=0.9)
    assert busy.disturbed
    assert "others used 0.9 cores" in busy.note()


def test_what_others_use_is_what_the_system_used_less_our_own(monkeypatch, tmp_path):
    facts = tmp_path / "stat"
    facts.write_text("cpu  100 20 30 9999 5 4 3 2 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(machine, "Path", lambda name: facts)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 10)
    monkeypatch.setattr(machine.os, "times", lambda: os.times_result((1.5, 0.5, 7.0, 7.0, 9.0)))
    assert machine.others_s() == pytest.approx(15.9 - 2.0)
    facts.write_text("cpu 1 2\n")
    assert machine.others_s() is None
    facts.unlink()
    assert machine.others_s() is None


def test_a_note_tells_the_limits_and_whether_they_can_be_trusted():
    assert "measured on this machine: copy" in KNOWN.note()
    assert "differed by up to 1.10" in KNOWN.note()
    assert "busy, so too low" in dataclasses.replace(KNOWN, spreads={"a": 2.0}).note()


def test_another_blas_or_another_steering_of_it_has_a_profile_of_its_own(measured, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    cached(folder=tmp_path)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    cached(folder=tmp_path)
    assert len(measured) == len(kept_files(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_only_costs_a_measurement(measured, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(RuntimeWarning, match="serve this process alone"):
        assert cached(folder=blocked / "below") == KNOWN
    assert cached(folder=blocked / "below") == KNOWN
    assert len(measured) == 1


def test_another_number_of_cores_has_a_profile_of_its_own(measured, tmp_path, monkeypatch):
    cached(folder=tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: 999)
    cached(folder=tmp_path)
    assert len(kept_files(tmp_path)) == 2


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
