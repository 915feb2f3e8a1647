"""The study: what it records, what it refuses, and that a whole budget is full attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.run.comparison import compare
from wavetank.serving.attention.ab_sparse import ABSparse
from wavetank.serving.attention.rivals import UniformBlocks
from wavetank.serving.attention.study import SparseAttentionStudy

SMALL: dict[str, Any] = {
    "tokens": (8192,), "key_heads": 4, "group": 2, "dim": 32, "steps": 3, "calibration_tokens": 8192, "rounds": 1,
}  # fmt: skip
SYSTEMS = ("dense-attention", "ab-sparse", "quest-32", "quest-32-int4", "arkvale", "sink-recent", "token-oracle")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compare(
        "sparse-attention", **SMALL, seeds=1, systems=SYSTEMS, out=tmp_path_factory.mktemp("runs"), on="here"
    )


def figure(result: Any, system: str, metric: str, **at: str) -> float:
    """Return the one figure of a system."""
    place = {"tokens": "8192", **at}
    (only,) = {r.value for r in result.records if (r.system, r.metric, dict(r.at)) == (system, metric, place)}
    return float(only)


def test_figures_stand_in_the_order_in_which_they_must(result: Any) -> None:
    assert result.failures == ()
    recall = {system: figure(result, system, "recall") for system in SYSTEMS}
    assert recall["dense-attention"] == pytest.approx(1)
    assert recall["token-oracle"] == max(v for k, v in recall.items() if k != "dense-attention")
    assert recall["sink-recent"] < 0.2 < 0.5 < recall["quest-32"]
    assert figure(result, "dense-attention", "output_error") < 1e-5 < figure(result, "token-oracle", "output_error")
    assert figure(result, "dense-attention", "mass_per_byte") == pytest.approx(1)
    assert figure(result, "token-oracle", "mass_per_byte") == pytest.approx(recall["token-oracle"] * 8192 / 328)
    assert figure(result, "ab-sparse", "summary_bytes") <= 1.03 * figure(result, "quest-32-int4", "summary_bytes")
    assert figure(result, "quest-32", "summary_bytes") == 4 * 256 * 64 * 4
    assert 0.8 < figure(result, "quest-32-int4", "overlap") <= 1
    assert 0.97 < figure(result, "ab-sparse", "allocation_share") <= 1
    assert figure(result, "dense-attention", "top_share") == 1
    for system in SYSTEMS:
        assert figure(result, system, "share_of_bound") > 0


def test_a_whole_budget_is_full_attention() -> None:
    study = SparseAttentionStudy(**{**SMALL, "tokens": (512,), "calibration_tokens": 512}, budget_share=1.0)
    study.check()
    case = study.case("512", 0)
    for name, system in (("ab-sparse", ABSparse()), ("quest-32", UniformBlocks())):
        done = study.prepared_call(system, case)()
        study.verify(case, name, done)
        found = {metric: value for metric, value, at in study.result_figures(case, name, system, done).rows if not at}
        assert found["recall"] == pytest.approx(1)
        assert found["output_error"] < 1e-6


def test_a_wrong_answer_and_a_token_too_many_are_refused() -> None:
    study = SparseAttentionStudy(**{**SMALL, "tokens": (8192,)})
    case = study.case("8192", 0)
    ready, answers = study.prepared_call(UniformBlocks(), case)()  # type: ignore[misc]
    wrong = [each.copy() for each in answers]
    wrong[-1][-1, -1] += 1e-3
    with pytest.raises(WavetankError, match="did not compute attention"):
        study.verify(case, "quest-32", (ready, wrong))
    short = case.data._replace(budget=100)
    with pytest.raises(WavetankError, match="more than the budget"):
        study.verify(type(case)("8192", short), "quest-32", (ready, answers))
    assert np.array_equal(case.data.cache.keys, study.case("8192", 0).data.cache.keys)


def test_budgets_without_two_blocks_and_other_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="two blocks"):
        SparseAttentionStudy(tokens=(4096,)).check()
    SparseAttentionStudy(tokens=(512,), budget_share=1).check()
    SparseAttentionStudy(heads="decoder").check()
    with pytest.raises(BadValueError, match="heads of its own"):
        SparseAttentionStudy(heads="decoder", group=2).check()
    with pytest.raises(BadValueError, match="single head"):
        SparseAttentionStudy(heads="drifting", key_heads=1).check()
    assert "256 of 512 tokens" in SparseAttentionStudy(calibration_tokens=512).notes()[0]
    assert len(SparseAttentionStudy(calibration_tokens=512, budget_share=0.6).notes()) == 4
    assert SparseAttentionStudy(tokens=(512, 8192)).case_names(0) == ("512", "8192")
    assert len(SparseAttentionStudy().notes()) == 4
    with pytest.raises(BadValueError):
        compare("sparse-attention", heads="mixt", out=tmp_path)
