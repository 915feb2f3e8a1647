import itertools

import pytest

from wavetank.check.report import Budget
from wavetank.errors import BadFileError
from wavetank.protocols.sessions.check import SessionCheck
from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.syntax import IllFormedError

LEFT_ONLY = """protocol P(role p, role q, role s) {
  mix m { data from p to q; note from p to s; } or interrupt by q { stop from q to p; }
}"""


@pytest.fixture
def checked(tmp_path):
    def check(text, budget=None, **parameters):
        path = tmp_path / "p.nuscr"
        path.write_text(text)
        return SessionCheck(**parameters).check(path, budget or Budget())

    return check


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_hold(checked, name):
    report = checked(example(name))
    assert {each.outcome for each in report.verdicts} == {"holds"}
    assert any(each.name.endswith(": agreement") for each in report.verdicts)
    assert report.kind == "session"


def test_a_broken_rule_is_a_verdict_with_its_place(checked):
    (verdict,) = checked(LEFT_ONLY).verdicts
    assert (verdict.name, verdict.outcome, verdict.by) == ("P: well-formed", "violated", "reach (a)")
    assert "p.nuscr, line 2, column 3" in verdict.evidence


def test_without_the_rules_the_trace_is_shown(checked):
    found = {each.name: each for each in checked(LEFT_ONLY, reach_rule=False).verdicts}
    assert found["P: agreement"].outcome == "violated"
    assert "|--data-->|" in found["P: agreement"].evidence
    found = {each.name: each for each in checked(example("race"), drop_stale=False).verdicts}
    assert found["Race: messages"].outcome == "violated"
    assert found["Race: progress"].outcome == "holds"


def test_one_bad_protocol_leaves_the_others_their_verdict(checked):
    report = checked("protocol P(role A, role B) { m from A to C; } protocol Q(role A, role B) { m from A to B; }")
    assert [each.outcome for each in report.verdicts] == ["violated", "holds", "holds", "holds"]


def test_only_what_is_asked_for_is_checked(checked):
    text = "protocol P(role A, role B) { m from A to B; } aux protocol Q(role A, role B) { n from A to B; }"
    assert [each.name for each in checked(text).verdicts] == [
        "P: well-formed",
        "P: progress",
        "P: messages",
        "Q: well-formed",
    ]
    assert [each.name for each in checked(text, protocol="Q").verdicts] == [
        "Q: well-formed",
        "Q: progress",
        "Q: messages",
    ]


def test_the_local_type_of_a_role_is_reported(checked):
    assert ("Race, p", "{ q!data(int).end > q?stop().end }") in checked(example("race"), role="p").facts


def test_names_that_do_not_exist_come_with_the_nearest(checked):
    with pytest.raises(IllFormedError) as caught:
        checked(example("race"), protocol="Rice")
    assert caught.value.nearest == "Race"
    with pytest.raises(IllFormedError) as caught:
        checked(example("stream"), role="writter")
    assert caught.value.nearest == "writer"


def test_clashing_names_are_one_verdict(checked):
    (verdict,) = checked("protocol P(role A) { } protocol P(role A) { }").verdicts
    assert (verdict.name, verdict.outcome) == ("names", "violated")


def test_what_breaks_the_grammar_is_an_error(checked):
    with pytest.raises(BadFileError, match="line 1, column 1"):
        checked("nonsense")


def test_a_file_without_a_protocol_is_an_error(tmp_path):
    path = tmp_path / "empty.nuscr"
    path.write_text("// nothing yet\n")
    with pytest.raises(BadFileError, match="no protocol"):
        SessionCheck().check(path, Budget())


def test_oddities_are_facts(checked):
    report = checked("protocol P(role A, role B) { choice at A { m from A to B; } n from B to A; }")
    assert ("odd", "a choice with one branch, p.nuscr, line 1, column 30") in report.facts


def test_a_budget_that_runs_out_leaves_undecided(checked, monkeypatch):
    outcomes = {each.name: each.outcome for each in checked(example("stream"), Budget(seconds=0.0)).verdicts}
    assert outcomes["Stream: well-formed"] == "holds"
    assert outcomes["Stream: progress"] == "undecided"
    held = itertools.count(2**40, 2**20)
    monkeypatch.setattr("wavetank.protocols.sessions.check.resident_bytes", lambda: next(held))
    verdict = checked(example("stream"), Budget(memory_bytes=1)).verdicts[1]
    assert verdict.outcome == "undecided"
    assert "1 bytes" in verdict.says


def test_one_place_a_queue_is_enough_for_three_roles(checked):
    text = """protocol P(role p, role q, role s) {
      mix m { a from p to q; b from p to s; c from q to p; d from s to p; e from s to q; }
      or interrupt by q { x from q to p; y from q to s; }
    }"""
    assert {each.outcome for each in checked(text, queue_bound=1).verdicts} == {"holds"}


def test_refinements_are_checked_where_a_file_asks_for_them(checked):
    (verdict,) = checked("(*# RefinementTypes #*) protocol P(role A, role B) { m(x: int{42}) from A to B; }").verdicts
    assert (verdict.outcome, verdict.by) == ("violated", "refinement")
