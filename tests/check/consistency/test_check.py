"""The checker behind ``wavetank check``."""

from __future__ import annotations

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.files import write_history
from wavetank.check.consistency.generate import kv_history
from wavetank.check.report import Budget
from wavetank.errors import BadFileError, BadValueError
from wavetank.ledger import catalog
from wavetank.settings import check_parameters
from wavetank.sim.history import History, Operation

# Includes compiling, once, on a busy machine.
BUDGET = Budget(seconds=300.0)


@pytest.fixture
def stale(tmp_path):
    path = tmp_path / "stale.jsonl"
    rows = (
        Operation(process="a", action="write", key="x", value=1, invoked=0.0, returned=1.0),
        Operation(process="b", action="read", key="x", result=0, invoked=2.0, returned=3.0),
        Operation(process="a", action="write", key="x", value=2, invoked=4.0),
    )
    write_history(path, History(operations=rows, initial=0))
    return path


def test_it_is_the_checker_of_its_kind():
    assert catalog.commands("check")["history"].load() is HistoryCheck


def test_a_violation_comes_with_its_culprit_the_good_prefix_and_a_page(stale):
    report = HistoryCheck().check(stale, BUDGET)
    (verdict,) = report.verdicts
    assert (verdict.name, verdict.outcome) == ("linearizable", "violated")
    assert "longest good prefix: 1 of 2 returns" in verdict.evidence
    assert "1: process b, read x -> 0" in verdict.evidence
    assert report.page.count("<svg") == 1
    assert dict(report.facts)["operations"] == "3, 1 of them never returned"
    assert dict(report.facts)["processes"] == "2"
    assert dict(report.facts)["keys"] == "1"


def test_what_holds_needs_no_page(tmp_path):
    path = tmp_path / "good.jsonl.gz"
    write_history(path, kv_history(clients=3, operations=40, keys=2, seed=0))
    report = HistoryCheck(models=("linearizable", "causal")).check(path, BUDGET)
    assert [verdict.outcome for verdict in report.verdicts] == ["holds", "holds"]
    assert report.page == ""
    assert dict(report.facts)["strongest that hold"] == "linearizable"


def test_all_models_are_asked_by_one_word(stale):
    report = HistoryCheck(models=("all",), delta_s=5.0).check(stale, BUDGET)
    found = {verdict.name: verdict.outcome for verdict in report.verdicts}
    assert len(found) >= 30
    assert found["sequential"] == "holds"
    assert found["bounded-staleness"] == "holds"
    assert found["strict-serializable"] == "violated"


def test_settings_are_checked():
    given = check_parameters(HistoryCheck, {"models": "causal,pram", "delta_s": "200ms"}, where="check")
    assert HistoryCheck(**given).models == ("causal", "pram")
    assert HistoryCheck(**given).delta_s == 0.2
    with pytest.raises(BadValueError) as caught:
        check_parameters(HistoryCheck, {"models": "casual"}, where="check")
    assert caught.value.nearest == "causal"


def test_operations_that_fit_no_store_are_the_files_fault(tmp_path):
    path = tmp_path / "odd.jsonl"
    write_history(path, History(operations=(Operation(process="a", action="fetch", invoked=0.0, returned=1.0),)))
    with pytest.raises(BadFileError, match="No store") as caught:
        HistoryCheck().check(path, BUDGET)
    assert caught.value.where == str(path)


def test_a_check_that_asks_nothing_is_refused():
    with pytest.raises(BadValueError, match="No model"):
        HistoryCheck(models=())
