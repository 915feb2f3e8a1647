"""What checkers answer."""

from __future__ import annotations

import inspect

import pytest

from wavetank.protocols.threshold.acs import IntervalBackward
from wavetank.protocols.threshold.answers import Answer, Method
from wavetank.protocols.threshold.explicit import ExplicitSearch
from wavetank.protocols.threshold.portfolio import Portfolio
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.zero_counters import ZeroCounters


@pytest.mark.parametrize("kind", [SmtReachability, IntervalBackward, ZeroCounters, ExplicitSearch, Portfolio])
def test_every_checker_decides_in_the_same_way(kind: type) -> None:
    assert list(inspect.signature(kind.decide).parameters) == list(inspect.signature(Method.decide).parameters)


def test_an_answer_without_a_run_is_no_violation_with_one() -> None:
    assert Answer("undecided").run is None
    assert Answer("holds", "so it is", by="smt") == Answer("holds", "so it is", by="smt")
