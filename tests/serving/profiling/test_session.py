"""What systems share under one seed: made once, equal for equal seeds, and accounted for by the same keys."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.profiling.models import DecoderConfig

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling import session as module  # noqa: E402
from wavetank.serving.profiling.measuring import Grid, Timing  # noqa: E402
from wavetank.serving.profiling.session import SMALL_MODELS, Session, mape  # noqa: E402

TINY = DecoderConfig(name="mini", layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, ffn=24, vocab=40)


def test_errors_are_means_over_the_requests_that_have_a_figure() -> None:
    nan = float("nan")
    assert mape(np.array([1.1, 1.8, 5.0]), np.array([1.0, 2.0, nan])) == pytest.approx(0.1)
    assert np.isnan(mape(np.array([1.0]), np.array([nan])))


def test_the_small_models_share_what_they_are_meant_to_share() -> None:
    first, deep, mixture = SMALL_MODELS
    assert (first.hidden, first.ffn) == (deep.hidden, deep.ffn)
    assert first.layers < deep.layers
    assert mixture.experts
    assert mixture.hidden == first.hidden


def test_a_session_serves_and_profiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_MODELS", (TINY,))
    found = Session(3, requests=4, threads=1, clock="processor", point_budget_s=0.01)
    found.grid = Grid.up_to(16, 2, 32)
    found.timing = Timing(warm_ups=0, runs=3, budget_s=0.001, tries=1, clock="processor")
    runs = found.held_out(TINY)
    assert found.held_out(TINY) is runs
    assert [run.name for run in runs] == ["backlog", "chat", "prompts"]
    assert all(np.isfinite(run.measured.ttft_s).all() for run in runs)
    assert (runs[0].requests.arrival_s == 0).all()
    again = found.served_again(TINY, runs[0])
    assert again.tokens == runs[0].measured.tokens
    exact = found.simulated(runs[0], FittedStepTime(overhead_s=1.0))
    # Every step takes a second, so that a latency counts the steps of the engine itself.
    assert exact[0].max() <= len(runs[0].measured.steps)
    assert float(exact[0].max()) == round(float(exact[0].max()), 6)
    table = found.shared_step_time(TINY)
    assert table == found.shared_step_time(TINY)
    by_signature = found.spent_s(lambda config, operation: operation.signature)
    assert by_signature == found.spent_s(lambda config, operation: (config.name, operation.signature)) > 0
    assert found.spent_s(lambda config, operation: 0) < by_signature
    disturbed, measured = found.disturbed
    assert 0 <= disturbed <= measured


def test_the_shape_for_the_roofline_is_the_decoders() -> None:
    found = Session(0, requests=4, threads=1, clock="processor", point_budget_s=0.01)
    for config in SMALL_MODELS:
        shape = found.shape(config)
        assert (shape.layers, shape.hidden, shape.experts) == (config.layers, config.hidden, config.experts)
        assert shape.active_parameters <= shape.parameters
