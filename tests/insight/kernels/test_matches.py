"""Matches with intervals: clear ones, ambiguous ones, and how much of the time they cover."""

import numpy as np
import pytest
from tests.insight.kernels.test_interface import made, real

from wavetank.errors import BadValueError
from wavetank.insight.kernels.kernel_similarity import KernelSimilarity
from wavetank.insight.kernels.matches import Matches, coverage, matches, order_of_display
from wavetank.insight.kernels.rivals import OverlapOfLeaves
from wavetank.sim.rng import stream


def of(similarity, low, high):
    count = len(similarity[0])
    return Matches(
        queries=("q",), candidates=tuple("abcdef"[:count]), similarity=np.array(similarity, float),
        low=np.array(low, float), high=np.array(high, float),
    )  # fmt: skip


def test_a_match_is_clear_when_no_other_interval_reaches_it():
    clear = of([[0.5, 0.9]], [[0.4, 0.8]], [[0.7, 1.0]])
    assert clear.answer(0).tolist() == [1]
    ambiguous = of([[0.5, 0.9, 0.1]], [[0.4, 0.7, 0.1]], [[0.7, 1.0, 0.2]])
    assert ambiguous.answer(0).tolist() == [1, 0]
    assert ambiguous.ranked(0).tolist() == [1, 0, 2]


def test_pairs_that_must_not_be_compared_are_no_answer():
    assert of([[np.nan, 0.2]], [[np.nan, 0.1]], [[np.nan, 0.3]]).answer(0).tolist() == [1]
    assert of([[np.nan]], [[np.nan]], [[np.nan]]).answer(0).size == 0


def kernels(noise, seed=0, runs=9):
    draw = stream(seed, "planted")
    shares = {name: 0.1 + np.abs(np.array(base) + noise * draw.standard_normal((runs, 9)))
              for name, base in (("A", [1, 0, 0, 0, 0, 0, 0, 0, 0]), ("B", [0, 1, 0, 0, 0, 0, 0, 0, 0]),
                                 ("C", [0, 0, 1, 0, 0, 0, 0, 0, 0]))}  # fmt: skip
    return made(shares)


def test_quiet_runs_give_clear_matches_and_loud_ones_sets():
    compare = OverlapOfLeaves().fitted(kernels(0.0), 0)
    quiet = matches(compare, kernels(0.001), kernels(0.001, 1), rounds=50, seed=0)
    assert [quiet.answer(at).tolist() for at in range(3)] == [[0], [1], [2]]
    assert (quiet.low <= quiet.similarity).all()
    assert (quiet.similarity <= quiet.high).all()
    loud = matches(compare, kernels(2.0), kernels(2.0, 1), rounds=50, seed=0)
    assert sum(loud.answer(at).size for at in range(3)) > 3
    assert (loud.high - loud.low).mean() > 10 * (quiet.high - quiet.low).mean()


def test_a_kernel_is_left_out_of_its_own_candidates():
    every = kernels(0.01)
    compare = OverlapOfLeaves().fitted(every, 0)
    found = matches(compare, every, every, rounds=5, seed=0, others=True)
    assert np.isnan(np.diag(found.similarity)).all()
    assert all(at not in found.answer(at) for at in range(3))
    with pytest.raises(BadValueError, match="rounds"):
        matches(compare, every, every, rounds=0, seed=0)


def test_the_ambiguous_set_holds_the_true_kernel_in_95_per_cent_of_draws():
    every = real()
    halves = [every.of_runs(np.arange(5)), every.of_runs(np.arange(5, 10))]
    found = matches(KernelSimilarity().compare, *halves, rounds=40, seed=0)
    held = [at in found.answer(at) for at in range(len(every.names))]
    assert np.mean(held) >= 0.95
    # And it is no empty promise: most of the suite is not in it.
    assert np.mean([found.answer(at).size for at in range(len(every.names))]) < 4


def test_coverage_is_the_share_of_time_in_kernels_with_a_counterpart():
    found = Matches(queries=("a", "b", "c"), candidates=("x",), similarity=np.array([[0.95], [0.5], [np.nan]]),
                    low=np.zeros((3, 1)), high=np.ones((3, 1)))  # fmt: skip
    assert coverage(found, np.array([3.0, 1.0, 1.0]), 0.9) == pytest.approx(0.6)
    assert coverage(found, np.array([3.0, 1.0, np.nan]), 0.9) == pytest.approx(0.75)
    assert np.isnan(coverage(found, np.full(3, np.nan), 0.9))


def test_alike_kernels_stand_together_in_the_order_of_display():
    similarity = np.array([[1, 0.1, 0.9, 0.2], [0.1, 1, 0.2, 0.8], [0.9, 0.2, 1, 0.1], [0.2, 0.8, 0.1, 1]])
    order = order_of_display(similarity).tolist()
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}
    assert order_of_display(np.ones((1, 1))).tolist() == [0]
