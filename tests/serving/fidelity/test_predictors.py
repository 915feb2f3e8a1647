from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.platforms import TableStepTime
from wavetank.platforms.calibration import calibration
from wavetank.platforms.engine_overheads import EngineOverheads, vllm_graph_sizes
from wavetank.platforms.links import Link
from wavetank.platforms.pipeline import PipelinedStepTime
from wavetank.platforms.roofline_fit import FittedEfficiencies
from wavetank.serving.fidelity import predictors as run_predictors
from wavetank.serving.fidelity.predictors import (
    CalibratedRoofline,
    LinearTokens,
    ProfilesOnly,
    ProfilesWithOverheads,
    PublishedPrediction,
    RooflineOnly,
    context_variation,
    fit_overheads,
    simulate_engine,
    simulate_plainly,
)
from wavetank.serving.fidelity.recorded_runs import EngineSettings, RecordedRun, recorded_runs
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.sim.rng import stream
from wavetank.workloads.requests import RequestTrace

TRUE = EngineOverheads(step_s=1.5e-3, sequence_s=2e-5)


def made_profile() -> TableStepTime:
    """A profile in closed form: 8 ms of weights, 60 us a token, attention that grows with its tokens."""
    tokens, rows = (1.0, 64.0, 4096.0), (1.0, 256.0)
    chunks, prompts, decodes, contexts = (16.0, 2048.0), (0.0, 4096.0), (1.0, 256.0), (16.0, 4096.0)
    values: list[float] = [3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, math.inf, 1]
    values += [*tokens, *(8e9 + 6e7 * n for n in tokens)]
    values += [*rows, *(1e9 + 1e6 * n for n in rows)]
    values += [*chunks, *prompts, *(1e4 * c * (p + c / 2) for c in chunks for p in prompts)]
    values += [*decodes, *contexts, *(5e4 * d * c for d in decodes for c in contexts)]
    values += [*chunks, *prompts, *decodes, *contexts]
    values += [1e4 * c * (p + c / 2) + 5e4 * d * k for c in chunks for p in prompts for d in decodes for k in contexts]
    return TableStepTime(source="made", layout="all-layers", values=tuple(map(float, values)), context_slope_ps=-1)


def made_run(seed: int, profile: TableStepTime, overheads: EngineOverheads = TRUE, noise: float = 0.0) -> RecordedRun:
    """What an engine with these overheads would have recorded."""
    rng = stream(seed, "made run")
    n = 80
    prompts = rng.integers(50, 900, n)
    blocks = -(-prompts // 16)
    requests = RequestTrace(
        arrival_s=np.concatenate([[0.0], np.cumsum(rng.exponential(0.2, n - 1))]),
        prompt_tokens=prompts,
        output_tokens=rng.integers(40, 160, n),
        block_ids=np.arange(blocks.sum()),
        block_offsets=np.concatenate([[0], np.cumsum(blocks)]),
        block_tokens=16,
    )
    engine = EngineSettings(max_running=32, kv_capacity_tokens=100_000)
    blank = RecordedRun(
        hardware="RTX4090", model="Llama-3.1-8B", engine=engine, requests=requests,
        first_token_s=requests.arrival_s + 1, last_token_s=requests.arrival_s + 2, published={},
    )  # fmt: skip
    step_time = profile.with_overheads(replace(overheads, graph_sizes=vllm_graph_sizes(32)))
    served = simulate_engine(blank, step_time)
    decode_s = (served.finish_s - served.first_token_s) * np.exp(noise * rng.standard_normal(n))
    return replace(blank, first_token_s=served.first_token_s, last_token_s=served.first_token_s + decode_s)


@pytest.fixture(scope="module")
def profile() -> TableStepTime:
    return made_profile()


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch, profile: TableStepTime) -> None:
    """Let every run have the made profile."""
    monkeypatch.setattr(run_predictors, "profile_of", lambda *_: profile)


def test_the_fit_finds_the_overheads_that_a_run_was_made_with(profile: TableStepTime) -> None:
    runs = [made_run(seed, profile) for seed in (1, 2)]
    found = fit_overheads(runs, [profile] * 2)
    assert found.step_s == pytest.approx(TRUE.step_s, rel=0.03)
    assert found.sequence_s == pytest.approx(TRUE.sequence_s, rel=0.1)
    assert found.graph_sizes == ()


def test_the_fit_stands_noise_and_a_few_wild_requests(profile: TableStepTime) -> None:
    run = made_run(3, profile, noise=0.02)
    last_token_s = run.last_token_s.copy()
    last_token_s[:4] += 30.0
    found = fit_overheads([replace(run, last_token_s=last_token_s)], [profile])
    # A sequence costs as much as a step at about 20 of them; together they are known better than either alone.
    assert found.step_s + 15 * found.sequence_s == pytest.approx(TRUE.step_s + 15 * TRUE.sequence_s, rel=0.1)


def test_an_engine_without_overheads_is_found_to_have_none(profile: TableStepTime) -> None:
    found = fit_overheads([made_run(4, profile, EngineOverheads())], [profile])
    assert found.step_s < 5e-5
    assert found.sequence_s < 2e-6


def test_a_fit_needs_a_run_and_a_profile_for_each(profile: TableStepTime) -> None:
    with pytest.raises(BadValueError):
        fit_overheads([], [])
    with pytest.raises(BadValueError):
        fit_overheads([made_run(1, profile)], [])


@pytest.mark.usefixtures("profiled")
def test_a_run_like_the_others_is_predicted_almost_exactly(profile: TableStepTime) -> None:
    runs = [made_run(seed, profile) for seed in (5, 6, 7)]
    prediction = ProfilesWithOverheads().predict(runs[0], runs[1:])
    assert {name: predicted / measured for name, (measured, predicted) in prediction.figures.items()} == pytest.approx(
        dict.fromkeys(prediction.figures, 1.0), abs=0.02
    )
    assert prediction.coefficients["step_s"] == pytest.approx(TRUE.step_s, rel=0.05)


@pytest.mark.usefixtures("profiled")
def test_what_is_predicted_never_looks_at_the_run_that_is_judged(profile: TableStepTime) -> None:
    run, *others = (made_run(seed, profile) for seed in (5, 6))
    liar = replace(run, first_token_s=run.first_token_s + 9, last_token_s=run.last_token_s + 99)
    for predictor in (ProfilesWithOverheads(), ProfilesOnly(), RooflineOnly(), LinearTokens()):
        honest, lied = predictor.predict(run, others), predictor.predict(liar, others)
        assert [p for _, p in honest.figures.values()] == [p for _, p in lied.figures.values()]
        assert honest.figures != lied.figures


@pytest.mark.usefixtures("profiled")
def test_profiles_alone_are_too_fast_by_what_they_lack(profile: TableStepTime) -> None:
    run = made_run(8, profile)
    prediction = ProfilesOnly().predict(run, [])
    assert prediction.figures["tpot_mean"][1] < 0.95 * prediction.figures["tpot_mean"][0]
    assert prediction.figures["ttft_p50"][1] < 0.8 * prediction.figures["ttft_p50"][0]
    assert prediction.coefficients == {}


@pytest.mark.usefixtures("profiled")
def test_without_other_runs_the_shipped_coefficients_count(profile: TableStepTime) -> None:
    shipped = shipped_fit().overheads
    prediction = ProfilesWithOverheads().predict(made_run(8, profile), [])
    assert prediction.coefficients == {"step_s": shipped.step_s, "sequence_s": shipped.sequence_s}
    assert set(ProfilesWithOverheads(fits=False).predict(made_run(8, profile), []).coefficients.values()) == {0.0}


def test_the_link_of_the_run_counts_unless_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(run_predictors, "_profile", lambda *given: asked.append(given) or made_profile())
    link = Link(bytes_per_s=1e9, latency_s=0.0)
    run = made_run(8, made_profile())
    run = replace(run, engine=replace(run.engine, tensor_parallel=2, link=link))
    for predictor in (ProfilesOnly(), LinearTokens(), ProfilesWithOverheads(), ProfilesWithOverheads(own_link=False)):
        predictor.predict(run, [])
    assert [given[2] for given in asked] == [2] * 4
    assert [given[-1] for given in asked] == [link, link, link, None]
    slow, fast = (
        RooflineOnly().predict(replace(run, engine=replace(run.engine, link=each)), []).figures["tpot_mean"][1]
        for each in (link, None)
    )
    assert slow > 1.5 * fast


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize("term", ["fits", "schedules_ahead", "keeps_prefixes", "pads_graphs"])
def test_each_term_can_be_left_out_and_is_missed(profile: TableStepTime, term: str) -> None:
    runs = [made_run(seed, profile) for seed in (11, 12)]
    tight = [replace(run, engine=replace(run.engine, kv_capacity_tokens=4000)) for run in runs]
    whole = ProfilesWithOverheads().predict(tight[0], tight[1:])
    without = ProfilesWithOverheads(**{term: False}).predict(tight[0], tight[1:])
    assert without.figures["ttft_mean"][1] != whole.figures["ttft_mean"][1]
    assert (set(without.coefficients.values()) == {0.0}) == (term == "fits")


@pytest.mark.usefixtures("profiled")
def test_a_calibrated_roofline_finds_the_overheads_of_other_runs_and_never_looks_at_the_judged_one() -> None:
    predictor = CalibratedRoofline()
    runs = [roofline_run(seed, predictor, TRUE) for seed in range(3)]
    prediction = predictor.predict(runs[0], runs[1:])
    assert prediction.coefficients["step_s"] == pytest.approx(TRUE.step_s, rel=0.2)
    measured, predicted = prediction.figures["e2e_mean"]
    assert predicted == pytest.approx(measured, rel=0.01)
    other = replace(runs[0], first_token_s=runs[0].first_token_s + 1.0, last_token_s=runs[0].last_token_s * 2)
    assert predictor.predict(other, runs[1:]).coefficients == prediction.coefficients


def test_a_calibrated_roofline_without_other_runs_has_what_ships() -> None:
    run = roofline_run(0, CalibratedRoofline(), EngineOverheads())
    shipped = calibration().shared
    assert CalibratedRoofline().predict(run, []).coefficients == {
        "step_s": shipped["overhead_s"], "sequence_s": shipped["sequence_s"]
    }  # fmt: skip


def test_on_an_unknown_device_its_own_runs_and_layers_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def without(device: str) -> FittedEfficiencies:
        asked.append(device)
        return FittedEfficiencies(shared={"overlap": 0.5}, families={"x": {
            "flops_efficiency": 0.5, "bandwidth_efficiency": 0.5, "kv_bandwidth_efficiency": 0.5}})  # fmt: skip

    monkeypatch.setattr(run_predictors, "_efficiencies", without)
    run = roofline_run(0, CalibratedRoofline(), TRUE)
    alike = roofline_run(1, CalibratedRoofline(), TRUE)
    elsewhere = CalibratedRoofline(knows_device=False)
    # The other run is of the same device, so that what ships counts.
    assert elsewhere.predict(run, [alike]).coefficients["step_s"] == calibration().shared["overhead_s"]
    assert asked == [run.hardware]
    assert elsewhere.roofline(run, run.hardware).bandwidth_efficiency == 0.5
    assert elsewhere.step_time("H100-SXM", "Llama-3.1-8B", 1) is None
    assert CalibratedRoofline().step_time("H100-SXM", "Llama-3.1-8B", 2) is not None


def roofline_run(seed: int, predictor: CalibratedRoofline, overheads: EngineOverheads) -> RecordedRun:
    """What an engine whose steps are the calibrated roofline's would have recorded."""
    run = made_run(seed, made_profile())
    step_time = replace(predictor.roofline(run), overhead_s=overheads.step_s, sequence_s=overheads.sequence_s)
    served = simulate_plainly(run, step_time)
    return replace(run, first_token_s=served.first_token_s, last_token_s=served.finish_s)


def test_a_pipeline_of_profiles_is_fitted_and_predicted_as_one() -> None:
    layers = made_profile()
    half = replace(layers, values=half_as_long(layers.values))
    staged = PipelinedStepTime(
        whole=layers, shallow=half, layers=32, shallow_layers=16, stages=2, micro_batch_tokens=2048,
        link=Link(bytes_per_s=1e10, latency_s=1e-5), sent_bytes_per_token=16384.0,
    )  # fmt: skip
    engine = EngineSettings(pipeline_parallel=2, max_running=32, max_batched_tokens=2048, kv_capacity_tokens=100_000)
    run = replace(made_run(0, layers), engine=engine)
    served = simulate_engine(run, staged.with_overheads(replace(TRUE, graph_sizes=vllm_graph_sizes(32))))
    run = replace(run, first_token_s=served.first_token_s, last_token_s=served.finish_s)
    found = fit_overheads([run], [staged])
    assert found.step_s == pytest.approx(TRUE.step_s, rel=0.1)
    # The same requests on one stage, without what the engine adds: the pipeline has to have been simulated.
    bare = simulate_engine(replace(run, engine=replace(engine, pipeline_parallel=1)), layers)
    assert not np.allclose(bare.finish_s, simulate_engine(run, staged).finish_s, rtol=1e-3)


def half_as_long(values: tuple[float, ...]) -> tuple[float, ...]:
    """The made profile with half of its layers: all times but those of rows are halved."""
    sizes = [int(value) for value in values[:10]]
    tokens, rows, chunks, prompts, decodes, contexts, *mixed = sizes
    found, at = list(values), 13
    for axes, times, factor in (
        (tokens, tokens, 0.5), (rows, rows, 1.0), (chunks + prompts, chunks * prompts, 0.5),
        (decodes + contexts, decodes * contexts, 0.5), (sum(mixed), math.prod(mixed), 0.5),
    ):  # fmt: skip
        at += axes
        found[at : at + times] = [value * factor for value in found[at : at + times]]
        at += times
    return tuple(found)


@pytest.mark.parametrize("predictor", [RooflineOnly(), CalibratedRoofline()])
def test_a_full_pipeline_of_rooflines_ends_sooner_than_one_device(
    predictor: RooflineOnly | CalibratedRoofline,
) -> None:
    run = made_run(0, made_profile())
    # All at once, and long prompts: what limits is arithmetic, of which four stages have four times as much.
    requests = RequestTrace(
        arrival_s=np.zeros(80), prompt_tokens=np.full(80, 1500), output_tokens=np.full(80, 8), block_tokens=16
    )
    engine = replace(run.engine, max_running=64, kv_capacity_tokens=10**6, pipeline_parallel=1)
    alone = replace(run, requests=requests, engine=engine)
    staged = replace(alone, engine=replace(engine, pipeline_parallel=4))
    (_, one), (_, four) = (predictor.predict(each, []).figures["throughput"] for each in (alone, staged))
    assert 2 * one < four < 4 * one


def test_tokens_alone_make_one_line(profile: TableStepTime) -> None:
    prediction = LinearTokens().predict(made_run(8, profile), [])
    assert 5e-3 < prediction.coefficients["step_s"] < 2e-2
    assert 2e-5 < prediction.coefficients["token_s"] < 2e-4


def test_contexts_vary_with_prompts_and_with_progress() -> None:
    def trace(prompts: list[int], outputs: list[int]) -> RequestTrace:
        return RequestTrace(
            arrival_s=np.zeros(2), prompt_tokens=np.array(prompts), output_tokens=np.array(outputs)
        )  # fmt: skip

    assert context_variation(trace([100, 100], [1, 1])) < 0.003
    assert context_variation(trace([99, 299], [2, 2])) == pytest.approx(0.5, rel=1e-2)
    assert context_variation(trace([100, 100], [400, 400])) == pytest.approx(400 / np.sqrt(12) / 300)


def test_a_batch_decided_ahead_costs_a_light_load_a_step(profile: TableStepTime) -> None:
    run = made_run(9, profile, EngineOverheads())
    plainly, engine = simulate_plainly(run, profile), simulate_engine(run, profile)
    late_s = float(np.median(engine.ttft_s - plainly.ttft_s))
    assert 0.5 * profile.seconds(1, 500) < late_s < 3 * profile.seconds(20, 10_000)


def test_a_kept_prefix_saves_a_preempted_request_its_prompt(profile: TableStepTime) -> None:
    run = made_run(10, profile)
    tight = replace(run, engine=replace(run.engine, kv_capacity_tokens=4000, schedules_ahead=False))
    forgetful = replace(tight, engine=replace(tight.engine, prefix_caching=False))
    kept, forgot = (simulate_engine(each, profile) for each in (tight, forgetful))
    assert forgot.preemptions.sum() > 0
    assert kept.makespan_s < forgot.makespan_s


def test_a_published_prediction_is_passed_on(profile: TableStepTime) -> None:
    run = replace(made_run(1, profile), published={"ttft_mean": (1.0, 1.1)})
    prediction = PublishedPrediction().predict(run, [])
    assert prediction.figures == {"ttft_mean": (1.0, 1.1)}
    assert prediction.e2e_s is None


def test_step_times_are_given_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    roofline = RooflineOnly().step_time("L40S", "Llama-3.1-8B", 2)
    assert roofline.seconds(8, 8000) > 0
    try:
        assert ProfilesOnly().step_time("RTX4090", "Llama-3.1-8B", 1) is not None
    except DataUnavailableError as error:
        pytest.skip(f"the profiles are not on this machine: {error.problem}")
    assert ProfilesOnly().step_time("H100-SXM", "Llama-3.1-8B", 1) is None


@pytest.mark.slow
def test_on_the_recorded_runs_named_terms_at_least_halve_the_largest_error() -> None:
    try:
        runs = recorded_runs()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")
    worst = []
    for predictor in (ProfilesOnly(), ProfilesWithOverheads()):
        prediction = [predictor.predict(run, [other for other in runs if other is not run]) for run in runs]
        worst.append(max(abs(p / m - 1) for each in prediction for m, p in each.figures.values()))
    assert all(map(math.isfinite, worst))
    assert worst[1] < worst[0] / 2
