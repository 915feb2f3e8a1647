from __future__ import annotations

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.platforms.calibration import calibration, said_of
from wavetank.serving.fidelity.predictors import (
    CalibratedRoofline,
    ProfilesWithOverheads,
    RooflineOnly,
    fit_overheads,
    fit_roofline_overheads,
)
from wavetank.serving.fidelity.recorded_runs import RecordedRun, recorded_runs
from wavetank.serving.fidelity.shipped_fit import BARE, DEVICE_LEFT_OUT, ROOFLINES, RUN_LEFT_OUT, shipped_fit


@pytest.fixture
def runs() -> tuple[RecordedRun, ...]:
    try:
        return recorded_runs()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")


def test_what_ships_names_the_runs_it_came_from() -> None:
    shipped = shipped_fit()
    assert all(set(shipped.roofline_deviations[which]) == set(shipped.runs) for which in ROOFLINES)
    assert len(shipped.runs) > 1
    assert all(len(checksum) == 64 for checksum in shipped.runs.values())
    for run in shipped.runs:
        assert run in shipped.said()
        assert all(run in shipped.said_of_roofline("H100-SXM", calibrated=each) for each in (True, False))


def test_what_is_said_of_a_roofline_depends_on_the_device_and_on_its_being_fitted() -> None:
    shipped = shipped_fit()
    fitted = shipped.said_of_roofline("B200-SXM", calibrated=True)
    assert said_of("B200-SXM") in fitted
    assert "none on B200-SXM" in fitted
    assert "none on" not in shipped.said_of_roofline("RTX4090", calibrated=True)
    bare = shipped.said_of_roofline("B200-SXM", calibrated=False)
    assert "fitted to nothing" in bare
    (ttft, _, _) = shipped.roofline_deviations[BARE]["RTX4090/Llama-3.1-8B"]
    assert f"{ttft:+.0%}" in bare
    (ttft, _, _) = shipped.roofline_deviations[DEVICE_LEFT_OUT]["RTX4090/Llama-3.1-8B"]
    assert f"{ttft:+.0%}" in fitted


def test_the_fit_halves_every_error_of_the_bare_roofline_and_helps_on_unknown_devices_but_one() -> None:
    deviations = shipped_fit().roofline_deviations
    for run, bare in deviations[BARE].items():
        fitted = deviations[RUN_LEFT_OUT][run]
        assert all(abs(ours) < abs(plain) / 2 for ours, plain in zip(fitted, bare, strict=True))
    worse = [run for run, bare in deviations[BARE].items() if abs(deviations[DEVICE_LEFT_OUT][run][2]) > abs(bare[2])]
    assert worse == ["RTX4090/Llama-3.1-8B"]


def test_the_runs_of_the_data_set_are_those_that_were_fitted(runs: tuple[RecordedRun, ...]) -> None:
    assert dict(shipped_fit().runs) == {run.requests.name: run.checksum for run in runs}


def test_the_bare_roofline_is_as_far_from_the_recorded_runs_as_is_said(runs: tuple[RecordedRun, ...]) -> None:
    check_deviations(RooflineOnly(), BARE, runs)


def check_deviations(predictor: RooflineOnly | CalibratedRoofline, which: str, runs: tuple[RecordedRun, ...]) -> None:
    for run in runs:
        figures = predictor.predict(run, [other for other in runs if other is not run]).figures
        found = [figures[f"{latency}_mean"] for latency in ("ttft", "tpot", "e2e")]
        said = shipped_fit().roofline_deviations[which][run.requests.name]
        assert [predicted / measured - 1 for measured, predicted in found] == pytest.approx(said, abs=2e-3)


@pytest.mark.slow
def test_the_calibrated_roofline_is_as_far_from_the_recorded_runs_as_is_said(runs: tuple[RecordedRun, ...]) -> None:
    check_deviations(CalibratedRoofline(), RUN_LEFT_OUT, runs)
    check_deviations(CalibratedRoofline(knows_device=False), DEVICE_LEFT_OUT, runs)


@pytest.mark.slow
def test_the_overheads_of_the_roofline_are_what_a_fit_to_the_recorded_runs_gives(runs: tuple[RecordedRun, ...]) -> None:
    found, shipped = fit_roofline_overheads(runs, CalibratedRoofline()), calibration().shared
    assert found.step_s == pytest.approx(shipped["overhead_s"], abs=1e-5)
    assert found.sequence_s == pytest.approx(shipped["sequence_s"], abs=1e-7)


@pytest.mark.slow
def test_the_coefficients_are_what_a_fit_to_the_recorded_runs_gives(runs: tuple[RecordedRun, ...]) -> None:
    predictor = ProfilesWithOverheads()
    found = fit_overheads(runs, [predictor.profile(run) for run in runs], predictor)
    shipped = shipped_fit().overheads
    assert found.step_s == pytest.approx(shipped.step_s, abs=1e-5)
    assert found.sequence_s == pytest.approx(shipped.sequence_s, abs=1e-7)
