"""Fragments of a log and what rules show in each."""

import pytest
from tests.insight.io.jobs import log_of, phase

from wavetank.insight.io.fragments import fragments, judged, one_issue
from wavetank.insight.io.labels import CODES, KINDS
from wavetank.insight.io.quantities import DarshanSource

LEAST = dict.fromkeys(KINDS, 0.05)


def source_of(**change: object) -> DarshanSource:
    return DarshanSource.of(log_of(phase(**change)))


def test_a_module_without_requests_has_no_fragment() -> None:
    found = {(each.module, each.about) for each in fragments(source_of())}
    assert ("POSIX", "write requests") in found and ("POSIX", "read requests") not in found
    assert not any(module in ("MPI-IO", "STDIO") for module, _ in found)
    assert {code for each in fragments(source_of()) for code in each.codes} <= set(CODES)


def test_a_fragment_is_read_as_lines_of_named_facts() -> None:
    posix = next(each for each in fragments(source_of(size_bytes=4096)) if each.about == "write requests")
    assert "- {small_share}: 100 %" in posix.text and len(posix.text.splitlines()) == len(posix.facts)


def test_rules_show_what_costs_enough() -> None:
    source = source_of(size_bytes=4096, requests=2000, pattern="strided")
    parts = {each.about: each for each in fragments(source)}
    (issue,) = [each for each in judged(source, parts["write requests"], LEAST, "", 2) if each.code == "SML-W"]
    assert issue.shown_by == ("POSIX",) and len(issue.citations) == 2
    assert {each.key for each in issue.evidence} >= {"small_share", "saves_share", "family"}
    high = dict.fromkeys(KINDS, 1.0)
    assert judged(source, parts["write requests"], high, "", 2) == ()
    assert one_issue(source, parts["write requests"], "RDA-R", "", 0) is None


def test_large_calls_that_become_small_requests_are_kept_as_a_contradiction() -> None:
    source = source_of(interface="collective", pattern="strided")
    log = source.facts["log"].log if "log" in source.facts else next(iter(source.facts.values())).log
    posix = log.modules["POSIX"].counters
    posix["POSIX_SIZE_WRITE_1K_10K"][:], posix["POSIX_CONSEC_WRITES"][:] = posix["POSIX_WRITES"] * 100, 0
    posix["POSIX_WRITES"][:] *= 100
    source = DarshanSource.of(log)
    calls = next(each for each in fragments(source) if each.module == "MPI-IO" and each.about == "write calls")
    (issue,) = [each for each in judged(source, calls, LEAST, "", 0) if each.code == "SML-W"]
    assert issue.not_shown_by == ("MPI-IO",) and not issue.shown_by


@pytest.mark.parametrize("code", CODES)
def test_sentences_of_rules_have_no_figures_of_their_own(code: str) -> None:
    from wavetank.insight.io.fragments import _ADVICE, _SAYS

    assert not any(letter.isdigit() for letter in _SAYS[code] + _ADVICE[code.partition("-")[0]])
