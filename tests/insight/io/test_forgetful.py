"""What a forgetful model keeps: the formula, and where the tree loses."""

import math

import numpy as np
import pytest
from tests.insight.io.jobs import draws

from wavetank.insight.io.forgetful import Forgetful, ForgettingMerge


@pytest.mark.parametrize(
    ("merge", "expected"),
    [(ForgettingMerge(flat=True), 0.449), (ForgettingMerge(summary=4), 0.368), (ForgettingMerge(summary=2), 0.607)],
)
def test_what_is_kept_follows_the_formula(merge: ForgettingMerge, expected: float) -> None:
    assert merge.expected() == pytest.approx(expected, abs=5e-4)
    many = draws()
    assert np.mean([merge.kept(many) for _ in range(300)]) == pytest.approx(expected, abs=0.03)


def test_the_tree_wins_with_short_summaries_and_loses_with_long_ones() -> None:
    flat = ForgettingMerge(flat=True).expected()
    assert ForgettingMerge(summary=2).expected() > flat > ForgettingMerge(summary=4).expected()
    # It pays where 2 s log2(n) < n: at 32 fragments up to three lines.
    assert ForgettingMerge(summary=3).expected() > flat


def test_a_model_repeats_lines_or_forgets_them_whole() -> None:
    prompt = "\n".join(["a" * 9] * 1000)
    kept = Forgetful(len(prompt), draws()).ask(prompt).split("\n")
    assert set(kept) == {"a" * 9} and len(kept) == pytest.approx(1000 / math.e, abs=60)
    assert Forgetful(1e12, draws()).ask(prompt) == prompt
