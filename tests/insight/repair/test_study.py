"""The study: split by seed, equal coverage, the oracle, figures of both gates."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.repair.aurora import Aurora
from wavetank.insight.repair.rivals import RandomRepair, RepairOracle, ThresholdRules
from wavetank.insight.repair.study import GreyFailures, afterwards, decided, drawn

SMALL = GreyFailures(train=1500, judged=800, mixings=(1.0,), wrong=(3,), timed=20)


def rows(system, seed=901):
    found = {}
    for metric, value, at in SMALL.measure(system, seed).rows:
        found[(metric, *sorted(at.items()))] = value
    return found


def test_shares_add_up_and_random_repair_acts_always():
    found = rows(RandomRepair())
    assert found[("coverage",)] == 1.0
    assert found[("accuracy_all",)] + found[("destructive_rate",)] == pytest.approx(1.0)
    assert found[("escalated_share",)] == 0.0
    assert found[("risk", ("coverage", 1.0))] == pytest.approx(found[("destructive_rate",)])


def test_rivals_are_compared_at_the_coverage_of_aurora():
    of = drawn(901, 0.25, 0, 1500, 800, (0.5, 4.0))
    own = decided(Aurora().fitted(of.learning), of.cases)
    found = rows(ThresholdRules())
    theirs = decided(ThresholdRules().fitted(of.learning), of.cases)
    count = int(own.acts.sum())
    surest = np.argsort(-theirs.sure, kind="stable")[:count]
    wrong = ~of.cases.present[surest, theirs.action[surest]]
    assert found[("risk_equal",)] == pytest.approx(wrong.mean(), abs=1e-9)
    mine = rows(Aurora())
    assert mine[("risk_equal",)] == pytest.approx(mine[("destructive_rate",)] / mine[("coverage",)])


def test_the_oracle_does_no_harm_and_takes_no_time():
    found = rows(RepairOracle())
    assert found[("destructive_rate",)] == 0.0
    assert ("decision_p50_s",) not in found


def test_two_gates_say_what_they_stop_and_abstain_where_all_look_alike():
    found = rows(Aurora())
    assert 0 <= found[("unknown_stopped",)] <= 1
    assert found[("fog_right",)] >= found[("accuracy_all",)]
    assert found[("coverage", ("mixing", 1.0))] < 0.02
    assert found[("coverage", ("mixing", 0.25))] == found[("coverage",)]
    assert ("unknown_stopped",) not in rows(Aurora(gates="causal"))


def test_what_is_waited_for_takes_back_some_destructive_actions_and_few_right_ones():
    found = rows(RandomRepair())
    kept = [found[("destructive_kept", ("after", windows))] for windows in (1, 3, 5)]
    assert found[("destructive_kept",)] == kept[-1]
    # A third of random actions are restarts, which stay.
    assert found[("destructive_rate",)] / 3 - 0.05 < min(kept) and max(kept) < 0.7 * found[("destructive_rate",)]
    assert found[("right_undone",)] <= found[("right_undone", ("after", 1))] < 0.3
    of = drawn(901, 0.25, 0, 1500, 800, (0.5, 4.0))
    decisions = decided(RandomRepair().fitted(of.learning), of.cases)
    right = of.cases.present[np.arange(len(decisions.action)), decisions.action]
    after = afterwards(of, 901, 0.25, (0.5, 4.0), decisions)
    assert (after.present.sum(axis=1) == of.cases.present.sum(axis=1) - right).all()
    assert after.slo_ok[right].mean() > 0.8 > after.slo_ok[~right].mean()


def test_nobody_learns_from_what_judges():
    of = drawn(901, 0.25, 0, 1500, 800, (0.5, 4.0))
    judged = {each.tobytes() for each in of.cases.readings}
    for part in of.learning[:4]:
        assert not judged & {each.tobytes() for each in part.readings}
    assert not of.learning.train.unknown.any()
    assert of.unknown.unknown.all()
    assert of.cases.unknown.any()


def test_severities_in_the_wrong_order_are_refused():
    for severity in ((4.0, 0.5), (1.0,)):
        with pytest.raises(BadValueError, match="least and a largest"):
            GreyFailures(severity=severity).check()
    with pytest.raises(BadValueError, match="so faint"):
        drawn(901, 0.25, 0, 200, 10, (0.0, 0.0))
    assert any("Destructive" in each for each in SMALL.notes())
