"""One checker in a process of its own."""

from __future__ import annotations

import json

import pytest

from wavetank.protocols.threshold.acs import IntervalBackward
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.worker import answer_to, method_named
from wavetank.protocols.threshold.writer import write_automaton
from wavetank.protocols.threshold.zero_counters import ZeroCounters


def asked(automaton, method: str, **more: object) -> dict[str, object]:
    return {
        "automaton": write_automaton(automaton), "property": "agreement", "query": 0, "method": method,
        "parameters": {}, "seconds": 30.0, "memory_bytes": 2**31, **more,
    }  # fmt: skip


def test_methods_have_short_names() -> None:
    assert method_named("acs", {"most_elements": 5}) == IntervalBackward(most_elements=5)
    assert method_named("zcs", {}) == ZeroCounters()
    assert method_named("smt", {}) == SmtReachability()


@pytest.mark.parametrize("method", ["smt", "acs", "zcs"])
def test_a_question_is_answered_in_json(voting, method: str) -> None:
    answer = json.loads(answer_to(asked(voting("N > 3 * T"), method)))
    assert (answer["outcome"], answer["by"], answer["run"]) == ("holds", method, None)
    answer = json.loads(answer_to(asked(voting("N > 2 * T"), method)))
    assert answer["outcome"] == "violated"
    assert set(answer["run"]) == {"parameters", "initial", "steps"}


def test_time_that_is_up_is_an_answer_too(voting) -> None:
    assert json.loads(answer_to(asked(voting("N > 3 * T"), "smt", seconds=-1.0)))["outcome"] == "undecided"
