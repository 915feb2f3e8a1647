"""Counterexamples as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from wavetank.check.deadline import Deadline
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise
from wavetank.protocols.threshold.page import Violation, counterexample_page
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import SmtReachability


def page(voting) -> str:
    automaton = voting("N > 2 * T")
    item = safety_properties(automaton)[0]
    system = counter_system(automaton, item.queries[0])
    run = SmtReachability().decide(system, Deadline(30)).run
    assert isinstance(run, AbstractRun)
    return counterexample_page(automaton, [Violation(item.name, item.queries[0], concretise(system, run))])


def test_the_page_stands_alone_and_is_well_formed(voting) -> None:
    text = page(voting)
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "link"):
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            """A tag that closes itself leaves nothing open."""

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(text)
    assert open_tags == []
    assert re.findall(r'(?:src|href)="([^"]*)', text) == ["data:,"]
    assert text.startswith("<!doctype html>")


def test_it_shows_rules_locations_and_counters_of_the_run(voting) -> None:
    text = page(voting)
    for shown in ("Voting", "agreement is violated", "rule 2: sent &rarr; d0", ">d1<", ">x0<", "aria-label"):
        assert shown in text


def test_without_a_violation_there_is_no_page(voting) -> None:
    assert counterexample_page(voting("N > 3 * T"), []) == ""
