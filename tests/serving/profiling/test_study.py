"""Study ``profiling-reuse``: what it counts without measuring, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import WavetankError
from wavetank.serving.profiling import study as module
from wavetank.serving.profiling.predictors import FullProfiles, MachineRoofline, ReusedOperations
from wavetank.serving.profiling.study import ALL_RUNS, ProfilingReuse

pytest.importorskip("torch", reason="torch is not installed")

COUNTED = ProfilingReuse(measures=False, models="Llama-3.1-8B,Mistral-7B-v0.3")


def figures(study: ProfilingReuse, system: Any) -> dict[str, float]:
    return {metric: value for metric, value, at in study.measure(system, 0).rows if not at}


def test_counting_needs_no_measurement_and_has_no_chance() -> None:
    found = figures(COUNTED, ReusedOperations())
    assert found == figures(COUNTED, ReusedOperations())
    assert set(found) == {"measurements_saved", "measurements", "gpu_time_saved"}
    # They differ in their vocabulary and in nothing else: all but embedding and output head is shared.
    assert 0.45 < found["measurements_saved"] < 0.5
    assert figures(COUNTED, FullProfiles())["measurements_saved"] == 0.0
    assert figures(COUNTED, MachineRoofline()) == {}


def test_predictions_are_judged_run_by_run_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from wavetank.serving.profiling import session
    from wavetank.serving.profiling.served import MeasuredRun
    from wavetank.serving.profiling.session import HeldOut
    from wavetank.workloads.requests import RequestTrace

    one = np.ones(3)
    requests = RequestTrace(arrival_s=np.zeros(3), prompt_tokens=np.full(3, 4), output_tokens=np.full(3, 4))

    class Planted:
        def held_out(self, config: Any) -> list[HeldOut]:
            return [HeldOut(name, requests, MeasuredRun(one, 2 * one, (), ())) for name in ("a", "b")]

    class Off:
        def predict(self, where: Any, config: Any, run: HeldOut) -> Any:
            return (1.1 if run.name == "a" else 1.3) * one, 2 * one

    monkeypatch.setattr(module, "_session", lambda *_: Planted())
    monkeypatch.setattr(session, "SMALL_MODELS", session.SMALL_MODELS[:2])
    rows = {(metric, at["case"]): value for metric, value, at in ProfilingReuse().measure(Off(), 0).rows}
    assert rows["ttft_mape", "mini, a"] == pytest.approx(0.1)
    assert rows["ttft_mape", ALL_RUNS] == pytest.approx(0.2)
    assert rows["tpot_mape", ALL_RUNS] == 0.0


@pytest.mark.parametrize(
    "settings", [{"models": "Llama-3.1-9B"}, {"tensor_parallel": 3}, {"models": "Qwen2.5-7B", "tensor_parallel": 8}]
)
def test_models_that_cannot_be_counted_are_refused_before_any_trial(settings: dict[str, Any]) -> None:
    with pytest.raises(WavetankError):
        ProfilingReuse(**settings).check()


def test_the_zoo_is_counted_where_no_model_is_named() -> None:
    assert len(ProfilingReuse().data()) == 12
    assert list(COUNTED.data()) == ["Llama-3.1-8B", "Mistral-7B-v0.3"]
    assert any("another choice" in note for note in COUNTED.notes())
