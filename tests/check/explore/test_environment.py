from __future__ import annotations

import pytest

from wavetank.check.explore.environment import AnyOf, Environment, Symmetry
from wavetank.errors import BadValueError
from wavetank.protocols.exploration.two_phase_commit import Abort, Commit


def test_bounds_are_counters_and_unlimited_is_minus_one() -> None:
    environment = Environment(drops=2, crashes="unlimited", timeouts=5)
    assert environment.bounds() == (2, 0, -1, 0, 5)
    assert Environment().bounds() == (0, 0, 0, 0, -1)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"channels": "lifo"}, "channels"),
        ({"timers": "sometimes"}, "timers"),
        ({"draws": "none"}, "draws"),
        ({"drops": -1}, "drops"),
        ({"crashes": 1000}, "crashes"),
        ({"crashes": True}, "crashes"),
        ({"drops": "many"}, "drops"),
        ({"channels": "set", "duplicates": 1}, "duplicates"),
        ({"recoveries": 1}, "recoveries"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(given: dict[str, object], where: str) -> None:
    with pytest.raises(BadValueError) as caught:
        Environment(**given)  # type: ignore[arg-type]
    assert caught.value.where == where


def test_a_role_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadValueError):
        Symmetry(ids={int: {"x": "values"}})


def test_a_menu_of_nothing_and_no_sends_are_refused() -> None:
    with pytest.raises(BadValueError):
        AnyOf(members=(0,))
    with pytest.raises(BadValueError):
        AnyOf(members=(0,), menu=(Commit(), Abort()), sends=0)
