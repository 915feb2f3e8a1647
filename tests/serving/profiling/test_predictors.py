"""Rivals: what each reuses, and what each says about a planted machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wavetank.platforms.step_time import FittedStepTime, StepTime
from wavetank.serving.profiling.database import Point
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.profiling.operations import Operation, canonical
from wavetank.serving.profiling.predictors import (
    ForestProfiles,
    FullProfiles,
    LineInTokens,
    ReusedOperations,
    ShapeProfiles,
)

SMALL = DecoderConfig(name="small", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=50)
TOKENS = Operation("aten.linear.default", canonical({"a": [{"t": "float32", "d": [{"NUM_TOKS": 1}, 8]}]}))
ROWS = Operation("aten.linear.default", canonical({"a": [{"t": "float32", "d": [{"NUM_REQS": 1}, 8]}]}))
ATTENTION = Operation("wavetank.cached_attention.default", TOKENS.structure)


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"name": "deep", "layers": 9}, {"tokens", "requests", "attention"}),
        ({"name": "wide", "ffn": 80}, {"requests", "attention"}),
        ({"name": "words", "vocab": 60}, {"tokens", "attention"}),
        ({"name": "hidden", "hidden": 64}, {"attention"}),
    ],
)
def test_a_layers_profile_serves_models_of_its_widths(change: dict[str, Any], shared: set[str]) -> None:
    other = replace(SMALL, **change)
    same = {
        each.kind for each in (TOKENS, ROWS, ATTENTION)
        if ShapeProfiles().reuse_key(SMALL, each) == ShapeProfiles().reuse_key(other, each)
    }  # fmt: skip
    assert same == shared
    for each in (TOKENS, ROWS, ATTENTION):
        assert ReusedOperations().reuse_key(SMALL, each) == ReusedOperations().reuse_key(other, each)
        assert FullProfiles().reuse_key(SMALL, each) != FullProfiles().reuse_key(other, each)


class Planted:
    """A session whose model is a known line."""

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time

    def shared_step_time(self, config: DecoderConfig) -> StepTime:
        return self._step_time


def test_a_line_in_tokens_finds_a_line_and_misses_contexts() -> None:
    line = FittedStepTime(overhead_s=1e-3, per_request_s=2e-5, per_prefill_token_s=2e-5)
    found = LineInTokens().step_time(Planted(line), SMALL)  # type: ignore[arg-type]
    for batch in ((1, 128), (16, 2048), (0, 0, 64, 2080)):
        assert found.seconds(*batch) == pytest.approx(line.seconds(*batch), rel=1e-6)
    contexts = replace(line, per_context_token_s=1e-5)
    blind = LineInTokens().step_time(Planted(contexts), SMALL)  # type: ignore[arg-type]
    assert blind.seconds(4, 4000) == blind.seconds(4, 4)


def test_a_forest_lies_between_what_it_has_seen_and_depends_on_its_seed_alone() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    measured = {Point(tokens=n): 1e-6 * n for n in (1, 2, 4, 8, 16, 32, 64)}
    one, same, other = (ForestProfiles(seed=seed).fitted(measured) for seed in (0, 0, 1))
    asked = [Point(tokens=n) for n in range(1, 65)]
    assert all(1e-6 <= one(point) <= 64e-6 for point in asked)
    assert [one(point) for point in asked] == [same(point) for point in asked]
    assert [one(point) for point in asked] != [other(point) for point in asked]
    assert one(Point(tokens=64)) > one(Point(tokens=2))
