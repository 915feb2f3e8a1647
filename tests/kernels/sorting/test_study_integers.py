"""The study sort-integers: its keys, its records, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.sorting.study_integers import (
    DISTRIBUTIONS,
    LIBRARIES,
    ONE_THREAD,
    Column,
    SortIntegers,
    keys_of,
)
from wavetank.ledger import catalog
from wavetank.machine import limits as machine
from wavetank.machine.clocks import WallClock
from wavetank.run.comparison import compare
from wavetank.study.study import Trial, build_study
from wavetank.study.timing import Case

SYSTEMS = tuple(name for name in catalog.built_in().plain_run(SortIntegers.name) if name != "pyarrow-sort")
ROUNDS = 2


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return compare("sort-integers", size_mb=1, rounds=ROUNDS, seeds=1, systems=SYSTEMS, out=folder, on="here")


@pytest.fixture(scope="module")
def figures(result):
    """Return (system, round, metric, case) to value."""
    found = {(r.system, r.seed, r.metric, r.at.get("keys")): r.value for r in result.records}
    assert len(found) == len(result.records)
    return found


def test_every_system_has_a_time_for_every_case_and_round(result, figures):
    assert result.failures == ()
    for metric in ("time_s", "time_ratio", "share_of_copy", "copies"):
        wanted = {(s, n, metric, case) for s in SYSTEMS for n in range(ROUNDS) for case in DISTRIBUTIONS}
        assert {key for key in figures if key[2] == metric} == wanted
        assert all(figures[key] > 0 for key in wanted)


def test_records_are_measured_and_carry_the_unit_of_their_metric(result):
    metrics = {metric.name: metric for metric in SortIntegers.metrics}
    assert {record.metric for record in result.records} == set(metrics)
    for record in result.records:
        assert (record.kind, record.unit) == ("measured", metrics[record.metric].unit)


def test_ratios_are_to_numpys_time_of_the_same_round(figures):
    for (system, number, metric, case), value in figures.items():
        if metric == "time_ratio":
            base = figures["numpy-sort", number, "time_s", case]
            assert value == pytest.approx(figures[system, number, "time_s", case] / base)


def test_copies_are_the_inverse_of_the_share_of_a_copy(figures):
    for (system, number, metric, case), value in figures.items():
        if metric == "copies":
            assert value * figures[system, number, "share_of_copy", case] == pytest.approx(1.0)


def test_the_lead_is_over_the_fastest_library_of_the_same_round(figures):
    found = {key: value for key, value in figures.items() if key[2] == "ahead_of_best_peer"}
    assert {key[0] for key in found} == set(SYSTEMS) - set(LIBRARIES)
    for (system, number, _, case), value in found.items():
        rivals = ONE_THREAD if system == "fractal-sort-one" else LIBRARIES
        best = min(figures[peer, number, "time_s", case] for peer in rivals if peer in SYSTEMS)
        assert value == pytest.approx(best / figures[system, number, "time_s", case])


def test_the_spread_over_distributions_is_slowest_over_fastest(figures):
    found = {key: value for key, value in figures.items() if key[2] == "worst_over_best"}
    assert len(found) == len(SYSTEMS) * ROUNDS
    for (system, number, _, case), value in found.items():
        times = [figures[system, number, "time_s", each] for each in DISTRIBUTIONS]
        assert case is None
        assert value == pytest.approx(max(times) / min(times))


def test_the_share_of_the_limit_is_held_against_a_copy_by_all_cores(figures):
    limit_s = machine.cached().copy_s(2_000_000)
    for (system, number, metric, case), value in figures.items():
        if metric == "share_of_limit":
            assert value == pytest.approx(limit_s / figures[system, number, "time_s", case])
    assert sum(key[2] == "share_of_limit" for key in figures) == len(SYSTEMS) * ROUNDS * len(DISTRIBUTIONS)


def test_figures_are_derived_from_times_and_copies(monkeypatch):
    limits = SimpleNamespace(copy_s=lambda moved: moved / 1_024_000_000)
    monkeypatch.setattr(machine, "cached", lambda: limits)
    times = {
        "fractal-sort": {"uniform": 2.0, "sorted": 1.0},
        "numpy-sort": {"uniform": 8.0, "sorted": 3.0},
        "duckdb-sort": {"uniform": 6.0, "sorted": 9.0},
    }
    study, copies = SortIntegers(size_mb=256), {"uniform": 0.5, "sorted": 1.0}

    def figures(name):
        rows = []
        for keys, copy in copies.items():
            case = Case(keys, None, bytes_moved=2.0)
            limits = {"share_of_copy": copy, "share_of_limit": study.limits(case, WallClock())["share_of_limit"]()}
            of_case = {each: by_case[keys] for each, by_case in times.items()}
            rows += study.figures_of_case(case, name, of_case, limits).rows
        return [row for row in rows + study.figures_of_round(name, times).rows if not row[0].startswith("time")]

    assert figures("fractal-sort") == [
        ("share_of_copy", 0.25, {"keys": "uniform"}),
        ("share_of_limit", 0.25, {"keys": "uniform"}),
        ("ahead_of_best_peer", 3.0, {"keys": "uniform"}),
        ("copies", 4.0, {"keys": "uniform"}),
        ("share_of_copy", 1.0, {"keys": "sorted"}),
        ("share_of_limit", 0.5, {"keys": "sorted"}),
        ("ahead_of_best_peer", 3.0, {"keys": "sorted"}),
        ("copies", 1.0, {"keys": "sorted"}),
        ("worst_over_best", 2.0, {}),
    ]
    rows = [row[0] for row in figures("duckdb-sort")]
    assert rows == ["share_of_copy", "share_of_limit", "copies"] * 2 + ["worst_over_best"]
    # One thread against one thread: DuckDB's all threads are no peer of it.
    one = study.figures_of_case(
        Case("sorted", None), "fractal-sort-one", {"fractal-sort-one": 1.0, "numpy-sort": 3.0, "duckdb-sort": 0.5},
        {"share_of_copy": 1.0},
    )  # fmt: skip
    assert ("ahead_of_best_peer", 3.0, {"keys": "sorted"}) in one.rows


def test_its_cases_are_named_without_making_any(monkeypatch):
    monkeypatch.setattr("wavetank.kernels.sorting.study_integers.keys_of", None)
    assert tuple(SortIntegers().case_names(0)) == DISTRIBUTIONS
    trials = SortIntegers(distributions=("zipf",)).trials(("numpy-sort",), [0, 1])
    assert [(trial.seed, trial.case) for trial in trials] == [(0, "zipf"), (1, "zipf")]


def test_without_libraries_there_is_no_lead():
    for name in ("radix-sort", "fractal-sort-one"):
        found = SortIntegers().figures_of_case(Case("uniform", None), name, {name: 2.0}, {"share_of_copy": 1.0})
        assert [row[0] for row in found.rows] == ["time_s", "share_of_copy", "copies"]


@pytest.mark.parametrize("bits", [8, 64])
def test_other_widths_run(bits, tmp_path):
    names = ("fractal-sort", "numpy-sort")
    found = compare(
        "sort-integers", size_mb=1, rounds=1, bits=bits, distributions=("uniform",), systems=names, out=tmp_path,
        on="here",
    )  # fmt: skip
    assert {record.system for record in found.records if record.metric == "time_s"} == set(names)


def test_a_column_has_the_size_asked_for_and_cannot_be_written():
    for bits in (8, 16, 32, 64):
        cases = list(SortIntegers(size_mb=1, bits=bits).cases(0))
        assert [case.name for case in cases] == list(DISTRIBUTIONS)
        for case in cases:
            assert case.data.keys.nbytes == 1_000_000
            assert case.data.keys.dtype == np.dtype(f"uint{bits}")
            assert case.bytes_moved == 2_000_000
            assert not case.data.keys.flags.writeable
            assert np.array_equal(case.data.expected, np.sort(case.data.keys))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_distributions_are_what_their_names_say(bits):
    keys = {name: keys_of(name, 100_000, bits, 1) for name in DISTRIBUTIONS}
    assert (keys["sorted"][:-1] <= keys["sorted"][1:]).all()
    assert (keys["reversed"][:-1] >= keys["reversed"][1:]).all()
    assert keys["sorted"][0] < keys["sorted"][-1]
    assert keys["reversed"][0] > keys["reversed"][-1]
    assert np.unique(keys["constant"]).size == 1
    assert np.unique(keys["two-valued"]).size == 2
    assert np.unique(keys["uniform"]).size > 60_000 if bits > 16 else np.unique(keys["uniform"]).size > 255
    shares = np.sort(np.unique(keys["zipf"], return_counts=True)[1])[::-1] / 100_000
    assert 0.2 < shares[0] < 0.35
    assert shares[0] > shares[1] > shares[2]
    assert np.bincount((keys["uniform"] >> np.uint64(bits - 2)).astype(int)) == pytest.approx(25_000, rel=0.05)


def test_frequent_zipf_keys_are_no_neighbours():
    values, counts = np.unique(keys_of("zipf", 100_000, 32, 1), return_counts=True)
    top = np.sort(values[np.argsort(counts)[-8:]].astype(np.int64))
    assert np.diff(top).min() > 1 << 16


def test_keys_depend_on_the_seed_and_on_nothing_else():
    for name in DISTRIBUTIONS:
        assert np.array_equal(keys_of(name, 1000, 32, 5), keys_of(name, 1000, 32, 5))
        assert not np.array_equal(keys_of(name, 1000, 32, 5), keys_of(name, 1000, 32, 6))


def test_a_width_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(BadValueError, match="not one of the allowed numbers") as caught:
        compare("sort-integers", bits=24, out=tmp_path, on="here")
    assert (caught.value.given, caught.value.allowed) == (24, ("8", "16", "32", "64"))
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_does_not_fit_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "available_bytes", lambda: 100_000_000)
    with pytest.raises(BadValueError, match="sort-integers needs more memory than is available"):
        compare("sort-integers", size_mb=64, out=tmp_path, on="here")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_distribution_is_refused_with_the_nearest():
    with pytest.raises(BadValueError, match="not one of the allowed words") as caught:
        build_study(SortIntegers, {"distributions": ("unifrom",)})
    assert caught.value.nearest == "uniform"


def test_a_single_wrong_word_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(BadValueError, match="nearest: uniform"):
        compare("sort-integers", distributions="unifrom", out=tmp_path, on="here")
    assert list(tmp_path.iterdir()) == []


class Idle:
    """A system that returns the keys as they came."""

    def prepare(self, keys):
        return lambda: keys


def test_a_system_that_does_not_sort_is_refused():
    study = SortIntegers(size_mb=1, rounds=1, distributions=("uniform",))
    with pytest.raises(WavetankError, match="idle did not sort uniform keys"):
        study.run(Trial(systems=("idle",), seed=0), {"idle": Idle()})


def test_a_system_that_loses_a_key_is_refused():
    keys = np.array([1, 2, 2], np.uint16)
    case = Case("sorted", Column(keys, np.sort(keys)))
    with pytest.raises(WavetankError, match="short did not sort sorted keys"):
        SortIntegers().verify(case, "short", keys[1:])
    assert SortIntegers().verify(case, "whole", keys.copy()) is None


def test_notes_say_against_which_copy_times_are_held():
    assert any("same round" in note for note in SortIntegers().notes())
