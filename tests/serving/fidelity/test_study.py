"""Study serving-fidelity: on runs made here, and on the recorded ones where they are."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wavetank
from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.ledger import catalog
from wavetank.platforms import FittedStepTime, TableStepTime
from wavetank.serving.fidelity import predictors as run_predictors
from wavetank.serving.fidelity import study as serving_fidelity
from wavetank.serving.fidelity.recorded_runs import recorded_runs
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.fidelity.study import ALL, SEEN, SEVERAL, ServingFidelity
from wavetank.sim.rng import stream

SETTINGS = {"seeds": 1, "on": "here", "points": 10}
PLACES = ("RTX4090/Llama-3.1-8B", "RTXPRO6000/Llama-3.1-8B")


def write_run(root: Path, place: str, seed: int, token_s: float = 0.02) -> None:
    """Twenty-five requests, one a second, whose first token takes 0.1 s and every other ``token_s``."""
    rng = stream(seed, "run")
    folder = root / place
    folder.mkdir(parents=True)
    lines = []
    for number in range(25):
        outputs = int(rng.integers(20, 40))
        first = 100.0 + number + 0.1
        lines.append(
            json.dumps(
                {
                    "request_id": str(number), "input_toks": int(rng.integers(100, 900)), "output_toks": outputs,
                    "arrival_time": 1e9 + number, "queued_ts": 100.0 + number, "scheduled_ts": 100.0 + number,
                    "first_token_ts": first, "last_token_ts": first + token_s * (outputs - 1),
                }
            )
        )  # fmt: skip
    (folder / "requests.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "meta.json").write_text(json.dumps({"engine_kwargs": {"max_num_seqs": 64}}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, place in enumerate(PLACES):
        write_run(tmp_path / "recorded", place, seed)
    return tmp_path / "recorded"


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every model the same small profile: 10 ms a step and 50 us a token."""
    line = [1.0, 64.0, 4096.0, *(1e10 + 5e7 * n for n in (1.0, 64.0, 4096.0))]
    flat = [1.0, 256.0, 0.0, 0.0]
    square = [1.0, 256.0, 1.0, 4096.0, 0.0, 0.0, 0.0, 0.0]
    four = [1.0, 256.0, 1.0, 4096.0, 1.0, 256.0, 1.0, 4096.0, *([0.0] * 16)]
    values = (3.0, *([2.0] * 9), 0.0, math.inf, 1.0, *line, *flat, *square, *square, *four)
    profile = TableStepTime(source="made", layout="all-layers", values=values, context_slope_ps=-1)
    monkeypatch.setattr(run_predictors, "profile_of", lambda *_: profile)


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., Any]:
    def run(**settings: Any) -> Any:
        return wavetank.compare("serving-fidelity", out=tmp_path / "runs", **{**SETTINGS, **settings})

    return run


@pytest.fixture
def data() -> None:
    try:
        recorded_runs()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")


def value(result: Any, system: str, metric: str, **at: Any) -> float:
    (found,) = [r.value for r in result.records if (r.system, r.metric, r.at) == (system, metric, at)]
    return found


@pytest.mark.usefixtures("profiled")
def test_errors_of_every_run_and_the_worst_of_all_are_recorded(compare: Callable[..., Any], folder: Path) -> None:
    result = compare(folder=str(folder), systems=("profiles-only", "profiles-with-overheads", "roofline"))
    names = ("RTX4090 Llama-3.1-8B", "RTXPRO6000 Llama-3.1-8B")
    for system in ("profiles-only", "profiles-with-overheads", "roofline"):
        for latency in ("ttft", "tpot", "e2e"):
            deviations = [
                [value(result, system, f"{latency}_{s}_deviation", configuration=name) for s in ("mean", "p50", "p99")]
                for name in names
            ]
            errors = [max(map(abs, of_run)) for of_run in deviations]
            assert [value(result, system, f"{latency}_error", configuration=name) for name in names] == errors
            assert value(result, system, f"{latency}_error", configuration=ALL) == max(errors)
            of_means = [value(result, system, f"{latency}_mean_error", configuration=name) for name in names]
            assert of_means == [abs(of_run[0]) for of_run in deviations]
            assert value(result, system, f"{latency}_mean_error", configuration=ALL) == pytest.approx(np.mean(of_means))
    # The engine took 20 ms a token, the profile knows 10 ms: what is missing is found on the other run.
    assert value(result, "profiles-only", "tpot_mean_deviation", configuration=names[0]) < -0.4
    assert value(result, "profiles-with-overheads", "tpot_error", configuration=ALL) < 0.05
    assert value(result, "profiles-with-overheads", "fitted_step_s", configuration=names[0]) > 5e-3


@pytest.mark.usefixtures("profiled")
def test_requests_are_shown_predicted_against_measured(compare: Callable[..., Any], folder: Path) -> None:
    result = compare(folder=str(folder), systems=("profiles-only",))
    points = [record for record in result.records if record.metric == "predicted_e2e_s"]
    assert len(points) == 2 * 10
    for place in {record.at["configuration"] for record in points}:
        measured = [record.at["measured_s"] for record in points if record.at["configuration"] == place]
        assert measured == sorted(measured)
    assert result.rows
    assert "predicted against measured" in (result.folder / "report.html").read_text()


@pytest.mark.usefixtures("profiled")
def test_the_worst_cases_are_named(folder: Path) -> None:
    notes = "\n".join(ServingFidelity(folder=str(folder)).notes())
    for name in ("RTX4090 Llama-3.1-8B", "RTXPRO6000 Llama-3.1-8B"):
        assert f"Worst of profiles-with-overheads, as the catalog builds it, on {name}: " in notes
    assert "tokenisation included" in notes


@pytest.mark.usefixtures("profiled")
def test_a_system_without_figures_has_no_errors(compare: Callable[..., Any], folder: Path) -> None:
    result = compare(folder=str(folder), systems=("profiles-only", "llmservingsim"))
    assert not [record for record in result.records if record.system == "llmservingsim"]


@pytest.mark.usefixtures("profiled")
def test_nothing_is_random_so_one_seed_is_run(compare: Callable[..., Any], folder: Path) -> None:
    result = compare(folder=str(folder), systems=("profiles-only",), seeds=3)
    assert {record.seed for record in result.records} == {0}


def test_checksums_name_the_runs(folder: Path) -> None:
    sums = ServingFidelity(folder=str(folder)).data()
    assert sorted(sums) == sorted(PLACES)
    assert all(len(each) == 64 for each in sums.values())


def test_step_times_are_held_against_another_tools_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    from wavetank.platforms.step_estimates import StepEstimate
    from wavetank.study.study import Measurements

    class Constant:
        def step_time(self, device: str, model: str, tensor_parallel: int) -> FittedStepTime | None:
            return None if device == "L40S" else FittedStepTime(overhead_s=0.01)

    estimates = [
        StepEstimate(
            device=device, model="Qwen3-32B", phase="prefill", tensor_parallel=t, batch=1, context_tokens=9, seconds=s
        )
        for device, t, s in (
            ("H100-SXM", 1, 0.01), ("H100-SXM", 1, 0.02), ("H100-SXM", 1, 0.04), ("H100-SXM", 2, 0.04),
            ("L40S", 1, 0.01),
        )
    ]  # fmt: skip
    monkeypatch.setattr(serving_fidelity, "_estimates", lambda: tuple(estimates))
    found = Measurements()
    serving_fidelity._put_estimates(found, Constant())
    where = {"device": "H100-SXM", "phase": "prefill"}
    assert found.rows == [
        ("step_estimate_ratio", 0.5, {**where, "tensor_parallel": 1}),
        ("step_estimate_ratio", 0.25, {**where, "tensor_parallel": 2}),
    ]
    serving_fidelity._put_estimates(found, object())
    assert len(found.rows) == 2


@pytest.mark.usefixtures("profiled")
def test_one_run_alone_is_judged_by_what_ships(compare: Callable[..., Any], tmp_path: Path) -> None:
    write_run(tmp_path / "own", PLACES[0], 1)
    result = compare(folder=str(tmp_path / "own"), systems=("profiles-only", "profiles-with-overheads"))
    name = "RTX4090 Llama-3.1-8B"
    shipped = shipped_fit().overheads.step_s
    assert value(result, "profiles-with-overheads", "fitted_step_s", configuration=name) == shipped
    errors = {case: value(result, "profiles-with-overheads", "tpot_error", configuration=case) for case in (ALL, SEEN)}
    # Seen, the missing 10 ms a token are found; the shipped time per step is far less.
    assert errors[SEEN] < 0.05 < 0.3 < errors[ALL]
    notes = "\n".join(ServingFidelity(folder=str(tmp_path / "own")).notes())
    assert shipped_fit().said() in notes
    assert "The run is none of these." in notes


@pytest.mark.usefixtures("profiled")
def test_a_run_that_the_shipped_fit_has_seen_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, PLACES[0], 1)
    (run,) = recorded_runs(tmp_path)
    known = replace(shipped_fit(), runs={"the very same": run.checksum})
    monkeypatch.setattr(serving_fidelity, "shipped_fit", lambda: known)
    assert "The run is the very same of these: it was seen." in "\n".join(ServingFidelity(folder=str(tmp_path)).notes())


@pytest.mark.usefixtures("profiled")
def test_runs_on_several_devices_are_left_out_together(compare: Callable[..., Any], tmp_path: Path) -> None:
    root = tmp_path / "parallel"
    for seed, (place, token_s, degree) in enumerate(
        (("RTX4090/Llama-3.1-8B", 0.02, 1), ("RTXPRO6000/Llama-3.1-8B", 0.02, 2), ("RTXPRO6000/Qwen3-32B", 0.04, 2))
    ):
        write_run(root, place, seed, token_s)
        kwargs = {"max_num_seqs": 64, "tensor_parallel_size": degree}
        (root / place / "meta.json").write_text(json.dumps({"engine_kwargs": kwargs}))
    result = compare(folder=str(root), systems=("profiles-only", "profiles-with-overheads"))

    def error(case: str) -> float:
        return value(result, "profiles-with-overheads", "tpot_error", configuration=case)

    # Runs on one device take 20 ms a token, one of those on two takes 40: from one device it is half of that.
    assert error("tensor parallel 2 left out") == pytest.approx(0.5, abs=0.05)
    assert error(SEVERAL) == error("tensor parallel 2 left out")
    assert {r.at["configuration"] for r in result.records if r.metric == "tpot_error"} == {
        "RTX4090 Llama-3.1-8B", "RTXPRO6000 Llama-3.1-8B, tensor parallel 2", "RTXPRO6000 Qwen3-32B, tensor parallel 2",
        ALL, SEEN, SEVERAL, "tensor parallel 1 left out", "tensor parallel 2 left out",
    }  # fmt: skip


@pytest.mark.usefixtures("profiled")
def test_what_was_assumed_of_a_run_is_a_note(folder: Path) -> None:
    assert "RTX4090/Llama-3.1-8B has no cluster_config.json" in "\n".join(ServingFidelity(folder=str(folder)).notes())


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="no recorded run"):
        ServingFidelity(folder=str(tmp_path)).check()


def test_without_the_data_set_the_next_step_is_named(
    compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WAVETANK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    serving_fidelity._recorded.cache_clear()
    with pytest.raises(DataUnavailableError) as caught:
        compare()
    assert caught.value.hint == "wavetank data fetch vllm-layer-profiles"


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_the_recorded_runs_are_judged_whole(compare: Callable[..., Any]) -> None:
    result = compare()
    table = [metric.name for metric in ServingFidelity.metrics if metric.table]
    for system in catalog.built_in().plain_run(ServingFidelity.name):
        for metric in table:
            if (system, metric) != ("llmservingsim", "throughput_error"):
                assert math.isfinite(value(result, system, metric, configuration=ALL))
    ours = value(result, "profiles-with-overheads", "ttft_error", configuration=ALL)
    assert ours < value(result, "profiles-only", "ttft_error", configuration=ALL)
    assert value(result, "llmservingsim", "ttft_p50_deviation", configuration="RTXPRO6000 Qwen3-30B-A3B") == (
        pytest.approx(108.6 / 138.8 - 1)
    )
