"""Rivals and variants."""

import numpy as np
from tests.insight.io.jobs import log_of, phase

from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.labels import KINDS
from wavetank.insight.io.planted import make_traces
from wavetank.insight.io.rivals import (
    BoostedCounters,
    FittedAgent,
    FlatAgent,
    ReportEverything,
    _best_least,
    totals,
)
from wavetank.workloads.darshan import DarshanLog


def test_reporting_everything_reports_everything() -> None:
    assert ReportEverything().fitted([], []).said(log_of(phase())) == frozenset(KINDS)


def test_totals_are_of_one_length_and_finite_for_any_log() -> None:
    empty = DarshanLog(version="3.41", processes=4, run_time_s=0.0)
    rows = [totals(each) for each in (empty, log_of(phase()), log_of(phase(interface="stdio")),
                                      log_of(phase(interface="collective")))]  # fmt: skip
    assert len({len(row) for row in rows}) == 1 and np.isfinite(rows).all()
    assert not np.array_equal(rows[1], rows[3])


def test_trees_learn_what_they_were_shown() -> None:
    bad = [log_of(phase(size_bytes=4096, requests=100 + number, pattern="strided")) for number in range(12)]
    good = [log_of(phase(requests=10 + number)) for number in range(12)]
    kinds = [frozenset({"SML"})] * 12 + [frozenset()] * 12
    fitted = BoostedCounters().fitted(bad + good, kinds)
    assert BoostedCounters().said(bad[0]) == frozenset()
    assert fitted.said(log_of(phase(size_bytes=4096, requests=150, pattern="strided"))) == {"SML"}
    assert fitted.said(log_of(phase(requests=15))) == frozenset()
    assert dict(fitted.models)["RLIM"] is False


def test_trees_say_a_kind_from_the_probability_with_the_best_f1_on_unseen_folds() -> None:
    """At a half they missed half of what is true: a rival below its best."""
    chances = np.zeros((4, len(KINDS)))
    chances[:, 0] = (0.05, 0.2, 0.3, 0.9)
    first = next(iter(KINDS))
    kinds = [frozenset(), frozenset({first}), frozenset({first}), frozenset({first})]
    assert 0.05 < _best_least(chances, kinds) <= 0.2
    assert _best_least(chances, [frozenset()] * 4) == 0.5
    traces, held_out = make_traces(100, tuning=60, held_out=20)
    logs, true = [each.log for each in traces], [each.kinds for each in traces]
    chosen, half = BoostedCounters().fitted(logs, true), BoostedCounters(folds=1).fitted(logs, true)
    assert half.least == 0.5 > chosen.least
    assert sum(len(chosen.said(each.log)) for each in held_out) > sum(len(half.said(each.log)) for each in held_out)


def test_fitted_thresholds_are_the_best_of_each_kind() -> None:
    bad = log_of(phase(size_bytes=4096, requests=2000, pattern="strided"))
    never = FittedAgent().fitted([bad, bad], [frozenset(), frozenset()])
    always = FittedAgent().fitted([bad, bad], [frozenset({"SML"}), frozenset({"SML"})])
    assert "SML" in always.said(bad) and always.thresholds[list(KINDS).index("SML")] < 0.05
    assert len(never.thresholds) == len(KINDS)


def test_flat_and_tree_agree_where_nothing_is_forgotten() -> None:
    _, traces = make_traces(100, tuning=20, held_out=12)
    for each in traces:
        assert FlatAgent().said(each.log) == IoAgent().said(each.log)
    assert FlatAgent().joined([]) == IoAgent().joined([]) == ()
