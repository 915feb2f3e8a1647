"""Study ``ai-ran``."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.sharing.controllers import AgentAndCritic, Still
from wavetank.serving.sharing.study import AIRAN

SMALL = AIRAN(seconds=200.0, loads=(0.4,))


def figures(system, seed=0, study=SMALL):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


def test_radio_functions_are_met_by_deadline_shares_and_not_by_equal_ones():
    deadline, equal = figures(Still()), figures(Still(rule="equal"))
    assert deadline["radio_fulfilment"] > 0.999 > 0.95 > equal["radio_fulfilment"]
    assert deadline["fulfilment"] > equal["fulfilment"]
    assert deadline["moves"] == 0 and "decision_s" not in deadline


def test_every_load_has_its_figure_and_less_is_easier():
    rows = {at["load"]: value for metric, value, at in SMALL.measure(Still(), 0).rows if metric == "fulfilment_at"}
    assert set(rows) == {0.4, 0.75} and rows[0.4] > rows[0.75]


def test_equal_seeds_are_equal():
    measured = ("decision_s", "shares_s")
    a, b, c = (figures(AgentAndCritic(), seed) for seed in (0, 0, 1))
    for each in (a, b, c):
        for name in measured:
            each.pop(name, None)
    assert a == b != c


def test_services_beyond_the_memory_are_refused():
    with pytest.raises(BadValueError, match="no memory"):
        AIRAN(nodes=2, ai_services=60, seconds=120.0).check()
    SMALL.check()


def test_the_notes_say_that_no_language_model_was_asked():
    assert "no language model" in " ".join(SMALL.notes())
