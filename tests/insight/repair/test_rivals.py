"""Rivals: rules by hand, trees whose threshold lets no harm through on validation cases, chance, the oracle."""

import numpy as np
import pytest
from tests.insight.repair.made import small

from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import ACTIONS, READINGS, cuts_of
from wavetank.insight.repair.rivals import BoostedTrees, RandomRepair, RepairOracle, ThresholdRules, seen
from wavetank.insight.repair.scoring import harmful, scored
from wavetank.insight.repair.study import decided


def test_rules_follow_the_plainest_indicator_and_restart_otherwise():
    rules = ThresholdRules().fitted(small().learning)
    readings = np.zeros((4, len(READINGS)))
    readings[0, READINGS.index("run_queue")] = 5.0
    readings[1, READINGS.index("rtt")] = 5.0
    readings[1, READINGS.index("run_queue")] = 4.0
    readings[3, READINGS.index("rss_slope")] = np.nan
    decisions = rules.decide(readings, np.zeros(4, np.bool_))
    assert [ACTIONS[each] for each in decisions.action] == [
        "limit-neighbour", "lower-rate", "restart-worker", "restart-worker",
    ]  # fmt: skip
    assert decisions.acts.all()


def test_trees_do_no_harm_on_the_cases_that_tuned_them_and_repair_others():
    learning = small().learning
    trees = BoostedTrees().fitted(learning)
    tuned = learning.validation.chosen(np.arange(len(learning.validation.present)) % 2 == 1)
    decisions = decided(trees, tuned)
    assert not (decisions.acts & harmful(tuned, decisions.action)).any()
    everywhere = decided(trees, small().cases)
    score = scored(small().cases, everywhere._replace(acts=np.ones_like(everywhere.acts)))
    assert score.right / score.cases > 0.7
    assert everywhere.sure.max() <= 1.0


def test_trees_without_cases_of_a_fault_are_refused():
    learning = small().learning
    for part in ("train", "validation"):
        some = getattr(learning, part)
        without = learning._replace(**{part: some.chosen(~some.present[:, 1])})
        with pytest.raises(BadValueError, match="leak"):
            BoostedTrees().fitted(without)


def test_trees_on_levels_see_no_more_than_low_normal_and_high():
    learning = small().learning
    readings, slo_ok = small().cases.shown()
    shown = seen("levels", readings, slo_ok, cuts_of(learning.healthy))
    assert set(np.unique(shown)) == {0.0, 1.0, 2.0}
    trees = BoostedTrees(sees="levels").fitted(learning)
    far = readings + np.where(readings > cuts_of(learning.healthy).high, 5.0, 0.0)
    np.testing.assert_array_equal(trees.decide(readings, slo_ok).sure, trees.decide(far, slo_ok).sure)


def test_chance_is_right_in_a_third_of_single_faults_and_repeats():
    cases = small().cases
    decisions = decided(RandomRepair().fitted(small().learning), cases)
    single = cases.present.sum(axis=1) == 1
    right = ~harmful(cases, decisions.action)
    assert right[single].mean() == pytest.approx(1 / 3, abs=0.06)
    again = decided(RandomRepair().fitted(small().learning), cases)
    np.testing.assert_array_equal(decisions.action, again.action)


def test_the_oracle_repairs_what_can_be_and_is_shown_the_truth_by_studies_alone():
    cases = small().cases
    oracle = RepairOracle().fitted(small().learning)
    score = scored(cases, decided(oracle, cases))
    assert (score.destructive, score.right) == (0, int(cases.present.any(axis=1).sum()))
    with pytest.raises(BadValueError, match="study"):
        oracle.decide(*cases.shown())
