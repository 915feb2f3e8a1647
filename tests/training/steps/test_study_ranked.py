"""The study of ranks: correlation and pairs against definitions, and figures of rows that are made."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from wavetank.errors import DataUnavailableError
from wavetank.training.steps.gpu_rows import read_gpu_rows
from wavetank.training.steps.row_steps import FlopsOverPeak, RowSteps
from wavetank.training.steps.study_ranked import RankedSteps, misordered, rank_correlation

STUDY = RankedSteps(resamples=100)


@pytest.fixture(scope="module")
def rows():
    try:
        return read_gpu_rows()
    except DataUnavailableError as error:
        pytest.skip(error.problem)


def figures(system):
    return {(name, *at.values()): value for name, value, at in STUDY.measure(system, 0).rows}


def test_the_correlation_is_spearmans_with_mean_ranks():
    draws = np.random.default_rng(0)
    for _ in range(20):
        one, other = draws.integers(0, 6, 15).astype(float), draws.integers(0, 6, 15).astype(float)
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)
    assert np.isnan(rank_correlation(np.ones(5), one[:5]))


def test_misordered_pairs_are_counted_one_by_one():
    predicted, measured = np.array([1.0, 2.0, 2.0, 5.0]), np.array([1.0, 3.0, 2.0, 0.5])
    wrong = total = 0.0
    for i, j in itertools.combinations(range(4), 2):
        total += 1
        if predicted[i] == predicted[j]:
            wrong += 0.5
        else:
            wrong += (predicted[i] < predicted[j]) != (measured[i] < measured[j])
    assert misordered(predicted, measured) == wrong / total
    assert misordered(measured, measured) == 0.0
    assert misordered(-measured, measured) == 1.0


def test_a_predictor_that_knows_the_answer_is_right_and_one_that_turns_it_is_wrong(rows):
    known = {row.configuration: row.step_s for row in rows}

    class Knows:
        def seconds(self, row):
            return known[row.configuration]

    class Turns:
        def seconds(self, row):
            return 1.0 / known[row.configuration]

    assert figures(Knows())["rank_correlation",] > 0.97
    assert figures(Knows())["misordered",] < 0.05
    assert figures(Turns())["rank_correlation",] < -0.97


def test_the_interval_holds_the_figure_and_rows_of_each_model_have_their_own(rows):
    found = figures(RowSteps())
    assert found["rank_correlation_low",] < found["rank_correlation",] < found["rank_correlation_high",]
    assert found["rows",] == len(rows) > found["configurations",] > 10
    assert found["rows", "Llama-3.1-8B"] + found["rows", "DeepSeek-V2-Lite"] == len(rows) - 1
    assert found == figures(RowSteps())


def test_one_prediction_for_all_has_no_order(rows):
    class Same:
        def seconds(self, row):
            return 1.0

    found = figures(Same())
    assert ("rank_correlation",) not in found
    assert found["misordered",] == 0.5


def test_real_steps_are_slower_than_the_peak(rows):
    # What the rows say of themselves: 2 to 9 % of the peak.
    assert figures(FlopsOverPeak())["measured_over_predicted",] > 8
    STUDY.check()
    assert STUDY.data()
    assert "no licence" in STUDY.notes()[0]
