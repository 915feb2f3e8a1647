"""``wavetank check`` of threshold automata."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wavetank.check.deadline import Deadline
from wavetank.check.report import Budget, CheckReport
from wavetank.errors import BadFileError, UnknownNameError
from wavetank.ledger import catalog
from wavetank.protocols.threshold import check
from wavetank.protocols.threshold.check import METHODS, FormulaFirst, OneMethod, ThresholdCheck
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.writer import write_automaton


def report(tmp_path: Path, automaton, budget: Budget | None = None, **more: object) -> CheckReport:
    path = tmp_path / "model.ta"
    path.write_text(write_automaton(automaton))
    return ThresholdCheck(**more).check(path, budget or Budget())


def test_it_is_the_checker_of_its_kind_of_file() -> None:
    assert catalog.commands("check")["threshold"].load() is ThresholdCheck


def test_a_safe_model_holds_for_every_number_of_processes(tmp_path: Path, broadcast) -> None:
    found = report(tmp_path, broadcast())
    assert [(verdict.name, verdict.outcome) for verdict in found.verdicts] == [("unforg", "holds")]
    assert "every number of processes" in found.verdicts[0].says
    facts = dict(found.facts)
    assert "8 rules, 4 locations, 1 counters" in facts["automaton"]
    assert "corr" in facts["not checked"]
    assert found.page == ""


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_bug_comes_with_a_replayed_run(tmp_path: Path, broadcast, method: str) -> None:
    found = report(tmp_path, broadcast("N > 3 * T", "T"), method=method)
    (verdict,) = found.verdicts
    assert verdict.outcome == "violated"
    assert "replayed" in verdict.says
    assert verdict.evidence.startswith("parameters  N = ")
    assert "rule 3: loc0 -> locSE" in verdict.evidence
    assert verdict.seconds > 0
    assert "<svg" in found.page


def test_two_faults_of_five_break_agreement(tmp_path: Path, voting) -> None:
    found = report(tmp_path, voting("N > 2 * T"))
    assert {verdict.name: verdict.outcome for verdict in found.verdicts} == {
        "agreement": "violated", "validity": "holds",
    }  # fmt: skip
    assert report(tmp_path, voting("N > 3 * T")).verdicts[0].outcome == "holds"


def test_single_properties_can_be_asked_for(tmp_path: Path, voting) -> None:
    found = report(tmp_path, voting("N > 2 * T"), properties=("validity",))
    assert [verdict.name for verdict in found.verdicts] == ["validity"]
    with pytest.raises(UnknownNameError) as caught:
        report(tmp_path, voting("N > 2 * T"), properties=("validty",))
    assert caught.value.nearest == "validity"


def test_a_budget_that_runs_out_leaves_undecided_and_keeps_what_was_decided(tmp_path: Path, voting) -> None:
    found = report(tmp_path, voting("N > 3 * T"), Budget(seconds=1e-9))
    outcomes = {verdict.name: verdict.outcome for verdict in found.verdicts}
    assert set(outcomes) == {"agreement", "validity"}
    assert set(outcomes.values()) <= {"undecided", "holds"}
    assert "undecided" in outcomes.values()


def test_extended_automata_say_so(tmp_path: Path, rounds) -> None:
    found = report(tmp_path, rounds("N - F"))
    assert "reset" in dict(found.facts)["extended"]
    assert found.verdicts[0].outcome == "violated"


def test_a_file_without_safety_properties_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.ta.gz"
    text = "skel P { parameters N; locations (0) { a: [0]; } rules (0) { } specifications (0) { l: <>(a != 0); } }"
    path.write_bytes(gzip.compress(text.encode()))
    found = ThresholdCheck().check(path, Budget())
    assert found.verdicts == []
    assert "no safety property" in dict(found.facts)["verdicts"]


def test_a_broken_file_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "model.eta"
    path.write_text("skel P {\n  shared x\n}")
    with pytest.raises(BadFileError) as caught:
        ThresholdCheck().check(path, Budget())
    assert caught.value.where == f"{path}, line 3, column 1"


def test_one_method_alone_runs_in_a_process_of_its_own(voting) -> None:
    automaton = voting("N > 3 * T")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    answer = OneMethod(name="zcs").decide(system, Deadline(30))
    assert (answer.outcome, answer.by) == ("holds", "zcs")
    assert "memory" in OneMethod(name="zcs", memory_bytes=2.0**20).decide(system, Deadline(30)).says


def test_large_questions_are_asked_in_a_process_whose_memory_is_limited(monkeypatch, voting) -> None:
    automaton = voting("N > 3 * T")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    few = FormulaFirst(memory_bytes=2.0**20)
    assert few.decide(system, Deadline(30)).outcome == "holds"
    monkeypatch.setattr(check, "_MOST_FIRINGS_ASKED_HERE", 1)
    answer = few.decide(system, Deadline(30))
    assert answer.outcome == "undecided"
    assert "memory" in answer.says
    assert FormulaFirst().decide(system, Deadline(30)).outcome == "holds"


@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [2**24, 2**27])
def test_memory_that_is_spent_ends_in_undecided_never_in_a_crash(models: Path, memory_bytes: int) -> None:
    path = models / "ta" / "isola18" / "promela" / "cc_case3.ta.gz"
    found = ThresholdCheck().check(path, Budget(seconds=20, memory_bytes=memory_bytes))
    assert "undecided" in {verdict.outcome for verdict in found.verdicts}
