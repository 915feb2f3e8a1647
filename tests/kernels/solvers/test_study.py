"""The study spd-solve: its systems, its records, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.solvers.rivals import Found
from wavetank.kernels.solvers.study import PEERS, SpdSolve
from wavetank.ledger import catalog
from wavetank.machine import limits as machine
from wavetank.run.comparison import compare
from wavetank.study.study import build_study
from wavetank.study.timing import Case

SIZES = ("150", "300")


def derived(study: SpdSolve, name: str, times: dict[str, dict[str, float]], size: str) -> list[Any]:
    """Return the figures of one system and size."""
    of_case = {each: by_size[size] for each, by_size in times.items()}
    return study.figures_of_case(Case(size, None), name, of_case, {}).rows


ROUNDS = 2


@pytest.fixture(scope="module", params=["cholesky", "conjugate-gradient"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("runs")
    return compare("spd-solve", sizes="150,300", rounds=ROUNDS, seeds=1, method=request.param, out=folder, on="here")


@pytest.fixture(scope="module")
def figures(result: Any) -> dict[tuple[Any, ...], float]:
    found = {(r.system, r.seed, r.metric, r.at.get("size"), r.at.get("phase") or r.at.get("purpose")): r.value
             for r in result.records}  # fmt: skip
    assert len(found) == len(result.records)
    return found


def test_every_system_has_a_time_for_every_size_and_round(result: Any, figures: dict[tuple[Any, ...], float]) -> None:
    assert result.failures == ()
    for system in catalog.built_in().plain_run(SpdSolve.name):
        if catalog.system(system).lacks():
            continue
        for size in SIZES:
            assert all(figures[system, number, "time_s", size, None] > 0 for number in range(ROUNDS))
            assert figures[system, 0, "iterations", size, None] >= 1


def test_the_gain_is_over_the_accelerator_alone(figures: dict[tuple[Any, ...], float]) -> None:
    for (system, number, metric, size, _), value in figures.items():
        if metric == "gain":
            alone = figures["accelerator-only", number, "time_s", size, None]
            host = figures["host-only", number, "time_s", size, None]
            own = figures[system, number, "time_s", size, None]
            assert value == pytest.approx(alone / own)
            share = figures[system, number, "share_of_bound", size, None]
            assert share == pytest.approx(value / (1 + alone / host))
    assert figures["accelerator-only", 0, "gain", "150", None] == 1.0


def test_peers_of_the_same_method_are_held_against(result: Any, figures: dict[tuple[Any, ...], float]) -> None:
    method = result.settings["method"] if hasattr(result, "settings") else None
    for (system, number, metric, size, _), value in figures.items():
        if metric == "ahead_of_best_peer":
            places = [(peer, number, "time_s", size, None) for peer in PEERS]
            best = {figures[place] for place in places if place in figures}
            own = figures[system, number, "time_s", size, None]
            assert any(value == pytest.approx(time / own) for time in best)
    assert method in (None, "cholesky", "conjugate-gradient")


def test_a_device_alone_moves_nothing_but_the_vectors(figures: dict[tuple[Any, ...], float]) -> None:
    purposes: dict[str, set[Any]] = {}
    for system, _, metric, _, purpose in figures:
        if metric == "moved_bytes":
            purposes.setdefault(system, set()).add(purpose)
    assert purposes["accelerator-only"] == {"vectors"}
    assert "host-only" not in purposes
    assert purposes["half-split"] - {"vectors"} <= {"diagonal", "column", "direction", "product"}
    assert len(purposes["half-split"]) > 1


def test_the_break_even_is_a_size_from_which_on_it_wins() -> None:
    study = SpdSolve()
    times = {
        "accelerator-only": {"10": 1.0, "20": 2.0, "40": 4.0},
        "host-only": {"10": 3.0, "20": 6.0, "40": 12.0},
        "hetero-solvers": {"10": 0.9, "20": 2.1, "40": 3.5},
        "half-split": {"10": 2.0, "20": 3.0, "40": 5.0},
        "scipy-cho-solve": {"10": 1.8, "20": 1.0, "40": 7.0},
    }
    found = {
        name: {
            (metric, at.get("size")): value
            for size in times[name]
            for rows in (derived(study, name, times, size), study.figures_of_round(name, times).rows)
            for metric, value, at in rows
        }
        for name in times
    }
    assert found["hetero-solvers"]["break_even_size", None] == 40
    assert ("break_even_size", None) not in found["half-split"]
    assert found["hetero-solvers"]["share_of_bound", "40"] == pytest.approx(4 / 3.5 / (4 / 3))
    assert found["hetero-solvers"]["ahead_of_best_peer", "10"] == pytest.approx(2.0)
    assert ("gain", "10") not in found["scipy-cho-solve"]


def test_a_wrong_solution_takes_no_part() -> None:
    study = SpdSolve(sizes=(40,))
    case = study.case("40", 0)
    right = np.linalg.solve(case.data.a, case.data.b)
    study.verify(case, "scipy-cho-solve", Found(right, 1))
    with pytest.raises(WavetankError, match="did not solve"):
        study.verify(case, "scipy-cho-solve", Found(right * (1 + 1e-8), 1))
    study.verify(case, "scipy-cg", Found(right * (1 + 1e-8), 1))
    with pytest.raises(WavetankError, match="did not solve"):
        study.verify(case, "hetero-solvers", Found(right * np.nan, 1))


def test_equal_seeds_give_equal_systems() -> None:
    study = SpdSolve(sizes=(40,))
    one, other = study.case("40", 3).data, study.case("40", 3).data
    assert np.array_equal(one.a, other.a)
    assert not np.array_equal(one.b, study.case("40", 4).data.b)


def test_sizes_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 26)
    with pytest.raises(BadValueError, match="memory"):
        SpdSolve(sizes=(4096,)).check()
    with pytest.raises(BadValueError):
        build_study(SpdSolve, {"sizes": "1"})


def test_the_notes_say_what_the_devices_are() -> None:
    assert "3 times" in SpdSolve(accelerator="worker").notes()[0]
    assert "GPU" in SpdSolve(accelerator="cuda").notes()[0]


def test_what_cannot_be_computed_without_a_system_is_left_out() -> None:
    study = SpdSolve(method="conjugate-gradient")
    times = {"hetero-solvers": {"64": 1.0}, "accelerator-only": {"64": 2.0}}
    found = {metric: value for metric, value, _ in derived(study, "hetero-solvers", times, "64")}
    assert "share_of_bound" not in found
    assert found["gain"] == 2.0
    rows = derived(study, "hetero-solvers", {**times, "host-only": {"64": 4.0}}, "64")
    assert {metric: value for metric, value, _ in rows}["share_of_bound"] == 2.0 / 1.5
    alone = {"hetero-solvers": {"64": 1.0}}
    assert derived(study, "hetero-solvers", alone, "64") == [("time_s", 1.0, {"size": "64"})]
    assert study.figures_of_round("hetero-solvers", alone).rows == []
