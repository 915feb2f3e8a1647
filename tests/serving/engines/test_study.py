"""The study compares the lives it says it compares, and counts orders as it says it does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="the study replays over HTTP")

from wavetank.errors import WavetankError
from wavetank.ledger import catalog
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.engines import study as module
from wavetank.serving.engines.profile import Profile
from wavetank.serving.engines.study import RealEngines, saturation_per_s
from wavetank.study.study import Measurements

DECODE = {(n, c): 1e-3 + 5e-4 * n + 1e-6 * n * c for n in (1, 8) for c in (64, 512)}
PREFILL = {(p, o): 1e-3 + 1e-4 * p for p in (8, 512) for o in (0, 384)}
PROFILE = Profile(
    step_time=TableStepTime.from_probes("x", decode_s=DECODE, prefill_s=PREFILL, shared_s=1e-3),
    request_s=2e-3, decode_s=DECODE, prefill_s=PREFILL, probes=1, took_s=1.0,
)  # fmt: skip
needs_llamacpp = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="llama.cpp's server needs xllamacpp and gguf (the extra engines)",
)


def values(found: Measurements) -> dict[str, float]:
    return {metric: value for metric, value, at in found.rows if not at}


def test_policies_of_a_trial_run_on_the_same_processes_and_take_turns_in_being_first() -> None:
    trials = RealEngines().trials(["a", "b", "c"], [0, 1, 2, 3])
    assert [trial.systems for trial in trials] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]
    assert [trial.seed for trial in trials] == [0, 1, 2, 3]


def test_requests_share_the_prefixes_that_the_settings_say() -> None:
    study = RealEngines(groups=3, shared_prefix=1.0)
    trace = study.requests_of(1, 50.0)
    assert len(trace) == 300
    assert trace.block_ids is not None
    firsts = {int(trace.block_ids[start]) for start in trace.block_offsets[:-1]}
    assert len(firsts) == 3
    assert study.requests_of(1, 50.0) == trace
    assert study.requests_of(2, 50.0) != trace
    # Every request fits into a slot.
    assert (trace.prompt_tokens + trace.output_tokens).max() <= study.server().slot_tokens


class TestRecordings:
    """A file in place of generated requests."""

    def file(self, folder: Path, prompt: int = 100) -> str:
        rows = "\n".join(f"{50 + i / 10},{prompt + i},{5 + i % 3}" for i in range(80))
        (folder / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
        return str(folder / "t.csv")

    def test_its_requests_come_at_their_own_times_or_at_a_share_of_the_rate(self, tmp_path: Path) -> None:
        study = RealEngines(trace=self.file(tmp_path), load=0, duration_s=3.0)
        own = study.requests_of(0, 0.0)
        assert (len(own), own.arrival_s[0], own.prompt_tokens[5]) == (31, 50.0, 105)
        assert len(study.requests_of(0, 20.0)) == 61
        assert study.data().keys() == {study.trace}
        assert "at their own times" in study.assumed()
        assert RealEngines().data() == {}

    def test_requests_without_room_are_refused_before_anything_starts(self, tmp_path: Path) -> None:
        with pytest.raises(WavetankError, match="no room"):
            RealEngines(trace=self.file(tmp_path, 2000), load=0).requests_of(0, 0.0)

    def test_generated_requests_have_no_times_of_their_own(self) -> None:
        with pytest.raises(WavetankError, match="no rate of their own"):
            RealEngines(load=0).check()


@pytest.mark.parametrize("engine", ["llamacpp", "transformers"])
def test_no_prompt_that_is_probed_is_longer_than_a_step(engine: str) -> None:
    study = RealEngines(engine=engine)
    plan, server = study.plan(), study.server()
    assert max(plan.chunks) <= plan.batch_tokens == server.batch_tokens
    assert plan.cached == server.reports_cached
    assert plan.beside in plan.sequences


def test_the_saturation_rate_is_what_full_engines_finish() -> None:
    study = RealEngines()
    rate = saturation_per_s(study, PROFILE)
    trace = study.requests_of(3, 3 * rate, 600)
    (overloaded,) = RealEngines(phases=1).predicted(trace, catalog.system("round-robin").build(), PROFILE)
    done = np.sort(overloaded.finish_s)
    # Arrivals at three times the rate change nothing about what comes out.
    assert 300 / (done[450] - done[150]) == pytest.approx(rate, rel=0.2)
    # Twice the engines, twice the rate.
    assert saturation_per_s(RealEngines(workers=4), PROFILE) == pytest.approx(2 * rate, rel=0.1)


def test_errors_are_shares_of_what_was_measured_and_request_times_count_once() -> None:
    study = RealEngines(phases=1)
    run = study.predicted(study.requests_of(0, 5.0), catalog.system("round-robin").build(), PROFILE)
    theirs = run[0].metrics()
    found = Measurements({f"{latency}_{figure}_s": 0.5 for latency in module.LATENCIES for figure in module.FIGURES})
    found.put("throughput_tokens_per_s", 2 * theirs["throughput_tokens_per_s"])
    module._compare(found, run, 2e-3)
    found_values = values(found)
    assert found_values["ttft_mean_predicted_s"] == pytest.approx(theirs["ttft_mean_s"] + 2e-3)
    assert found_values["e2e_p99_predicted_s"] == pytest.approx(theirs["e2e_p99_s"] + 2e-3)
    assert found_values["tpot_mean_predicted_s"] == pytest.approx(theirs["tpot_mean_s"])
    assert found_values["ttft_mean_error"] == pytest.approx(abs(theirs["ttft_mean_s"] + 2e-3 - 0.5) / 0.5)
    assert found_values["throughput_error"] == pytest.approx(0.5)
    assert found_values["cached_predicted_share"] == theirs["prefix_hit_share"] > 0


@pytest.mark.parametrize(
    ("measured", "predicted", "opposed", "same"),
    [
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), (0, 0, 0), (1.0, 1.0, 1.0)),
        # The first two are the other way round, and far apart in both lives.
        ((1.0, 2.0, 3.0), (2.0, 1.0, 3.0), (1, 1, 0), (0.5, 0.5, 1.0)),
        # The other way round, but hardly apart in one life: no choice hangs on it.
        ((1.0, 1.01, 3.0), (2.0, 1.0, 3.0), (0, 0, 0), (0.5, 0.5, 1.0)),
        ((3.0, 2.0, 1.0), (1.0, 2.0, 3.0), (2, 2, 2), (0.0, 0.0, 0.0)),
    ],
)
def test_opposed_pairs_are_those_that_are_far_apart_in_both_lives(
    measured: tuple[float, ...], predicted: tuple[float, ...], opposed: tuple[int, ...], same: tuple[float, ...]
) -> None:
    found = {
        name: Measurements({"ttft_mean_s": ours, "ttft_mean_predicted_s": theirs})
        for name, ours, theirs in zip("abc", measured, predicted, strict=True)
    }
    module._order(found)
    assert tuple(values(each)["opposed_pairs"] for each in found.values()) == opposed
    assert tuple(values(each)["same_order_share"] for each in found.values()) == same


def test_one_policy_alone_has_no_order() -> None:
    alone = Measurements({"ttft_mean_s": 1.0, "ttft_mean_predicted_s": 1.0})
    module._order({"a": alone})
    assert "opposed_pairs" not in values(alone)


def test_an_engine_that_is_not_installed_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, missing in (("llamacpp", "xllamacpp"), ("transformers", "uvicorn")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, gone=missing: None if name == gone else name)
        with pytest.raises(WavetankError, match=missing) as caught:
            RealEngines(engine=engine).check()
        assert "engines" in str(caught.value.hint)


class Ended:
    """A process that is gone."""

    name, running, returncode, pid = "LlamaCpp 1", False, -9, 0

    def cpu_s(self) -> float:
        return 0.0

    def output(self) -> str:
        return "GGML_ASSERT: out of memory"


def test_an_engine_that_dies_in_the_middle_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    from wavetank.serving.proxy import fleet as fleets
    from wavetank.serving.proxy.replay import Outcome, Replay

    process = Ended()
    policy = fleets.Policy("round-robin")

    @contextlib.contextmanager
    def routed(*given: Any) -> Any:
        yield SimpleNamespace(url="http://x", processes=(process,), policy=lambda: policy, fallbacks=lambda: 0)

    monkeypatch.setattr(fleets, "routed", routed)
    lost = Replay((Outcome(number=0, arrival_s=0.0, failure="cut off"),), False, False)
    monkeypatch.setattr(module, "_replayed", lambda trace, options: lost)
    study = RealEngines()
    engines = [SimpleNamespace(url="http://127.0.0.1:1", process=process)]
    system = catalog.system("round-robin").build()
    with pytest.raises(WavetankError, match=r"1 of 20 requests got .*: LlamaCpp 1 ended with code -9") as caught:
        study.served(study.requests_of(0, 1.0), "round-robin", system, engines, 1, 0)
    assert caught.value.given == "GGML_ASSERT: out of memory"
    process.running = True
    with pytest.raises(WavetankError, match=r"no whole answer\.\n") as caught:
        study.served(study.requests_of(0, 1.0), "round-robin", system, engines, 1, 0)
    assert caught.value.given == "1 x cut off"


@needs_llamacpp
@pytest.mark.slow
def test_a_run_measures_and_predicts_every_policy_on_real_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    study = RealEngines(duration_s=2.0, repeats=1, phases=2, load=0.3)
    study.check()
    names = ("round-robin", "vllm-default")
    (trial,) = study.trials(names, [0])
    records = study.run(trial, {name: catalog.system(name).build() for name in names})
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for record in records:
        if not record.at:
            found[record.system][record.metric] = record.value
    wanted = {metric.name for metric in study.metrics} - {"step_s", "prompt_s"}
    for figures in found.values():
        assert set(figures) == wanted
        assert figures["short_answers"] == 0
        assert 0 < figures["cached_share"] < 1
        assert 0 < figures["ttft_mean_s"] <= figures["e2e_mean_s"]
        assert 0 < figures["ttft_mean_predicted_s"] <= figures["e2e_mean_predicted_s"]
        assert figures["engine_cores"] > 0
    assert found["round-robin"]["requests"] == found["vllm-default"]["requests"]
