from __future__ import annotations

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.serving.fidelity.predictors import ProfilesWithOverheads, RooflineOnly, fit_overheads
from wavetank.serving.fidelity.recorded_runs import RecordedRun, recorded_runs
from wavetank.serving.fidelity.shipped_fit import shipped_fit


@pytest.fixture
def runs() -> tuple[RecordedRun, ...]:
    try:
        return recorded_runs()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")


def test_what_ships_names_the_runs_it_came_from() -> None:
    shipped = shipped_fit()
    assert len(shipped.runs) == len(shipped.roofline_deviations) > 1
    assert all(len(checksum) == 64 for checksum in shipped.runs.values())
    for run in shipped.runs:
        assert run in shipped.said()
        assert run in shipped.said_of_roofline()


def test_the_runs_of_the_data_set_are_those_that_were_fitted(runs: tuple[RecordedRun, ...]) -> None:
    assert dict(shipped_fit().runs) == {run.requests.name: run.checksum for run in runs}


def test_the_roofline_is_as_far_from_the_recorded_runs_as_is_said(runs: tuple[RecordedRun, ...]) -> None:
    for run in runs:
        figures = RooflineOnly().predict(run, []).figures
        found = [figures[f"{latency}_mean"] for latency in ("ttft", "tpot", "e2e")]
        said = shipped_fit().roofline_deviations[run.requests.name]
        assert [predicted / measured - 1 for measured, predicted in found] == pytest.approx(said, abs=5e-4)


@pytest.mark.slow
def test_the_coefficients_are_what_a_fit_to_the_recorded_runs_gives(runs: tuple[RecordedRun, ...]) -> None:
    predictor = ProfilesWithOverheads()
    found = fit_overheads(runs, [predictor.profile(run) for run in runs], predictor)
    shipped = shipped_fit().overheads
    assert found.step_s == pytest.approx(shipped.step_s, abs=1e-5)
    assert found.sequence_s == pytest.approx(shipped.sequence_s, abs=1e-7)
