"""What is planted is there, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import UnknownNameError
from wavetank.serving.attention.recall import full_attention, top_tokens
from wavetank.serving.attention.workload import LONGEST, Ways, planted, ways


def test_kinds_of_heads_are_what_they_are_called() -> None:
    for seed in range(5):
        learned, used = ways("mixed", 8, seed)
        assert np.array_equal(learned.runs, used.runs)
        assert 1 <= used.runs.min() < used.runs.max() <= LONGEST
        assert len(set(used.heights)) == 8
        one, other = ways("alike", 8, seed)
        assert len(set(one.runs)) == len(set(other.shares)) == 1
        before, after = ways("drifting", 8, seed)
        assert np.array_equal(before.runs, learned.runs)
        assert np.array_equal(after.runs, np.roll(before.runs, 4))
        assert np.array_equal(after.heights, np.roll(before.heights, 4))
    assert not np.array_equal(ways("mixed", 8, 1)[0].runs, ways("mixed", 8, 2)[0].runs)
    with pytest.raises(UnknownNameError, match="mixed"):
        ways("mixt", 8, 0)


def test_lengths_of_runs_know_nothing_of_powers_of_two() -> None:
    runs = np.concatenate([ways("mixed", 64, seed)[0].runs for seed in range(20)])
    assert len(set(runs.tolist())) > 90
    # As many below 12 as above, by the logarithm.
    assert 0.4 < (runs < 12).mean() < 0.6


@pytest.mark.parametrize("run", [1, 40])
def test_queries_look_at_runs_of_the_planted_length(run: int) -> None:
    of = Ways(np.array([run, run]), np.array([0.02, 0.02]), np.array([9.0, 9.0]))
    given = planted(of, tokens=4000, dim=32, group=2, steps=3, seed=0, text="use")
    for head in range(2):
        shares = full_attention(given, head).shares
        top = top_tokens(shares, 60)
        assert np.take_along_axis(shares, top, 2).sum(2).min() > 0.6
        neighbours = np.isin(top[1, 0] + 1, top[1, 0]).mean()
        assert neighbours > 0.5 if run == 40 else neighbours < 0.2


def test_texts_of_one_model_differ_and_share_its_topics() -> None:
    of, _ = ways("mixed", 2, 3)
    shape = {"tokens": 600, "dim": 16, "group": 2, "steps": 2, "seed": 3}
    one, again, other = (planted(of, text=text, **shape) for text in ("use", "use", "calibration"))
    assert np.array_equal(one.keys, again.keys)
    assert np.array_equal(one.queries, again.queries)
    assert not np.array_equal(one.keys, other.keys)
    alike = np.einsum("shd,shd->sh", one.queries, other.queries) / 16
    # 0.8 of a query's direction is its topic's.
    assert alike.mean() == pytest.approx(0.64, abs=0.15)
