"""Each rival differs from MARLaaS by what its name says."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.training.tenants.interface import Rules, check_rules
from wavetank.training.tenants.rivals import Divided, LockStep, OneByOne, OutOfPhase


def test_rules_are_what_the_names_say():
    assert OneByOne().rules() == Rules(at_once=1)
    assert OneByOne(s_max=1).rules() == Rules(at_once=1, s_max=1)
    assert Divided().rules() == Rules(divided=True)
    assert LockStep().rules() == Rules(barrier=True)
    assert OutOfPhase().rules() == Rules()
    assert OutOfPhase(adapters=1).rules() == Rules(adapters=1)
    for each in (OneByOne(), Divided(), LockStep(), OutOfPhase()):
        check_rules(each.rules())


@pytest.mark.parametrize("kind", [OneByOne, Divided])
def test_an_age_out_of_range_is_refused(kind):
    with pytest.raises(BadValueError):
        kind(s_max=-1)


def test_fewer_than_no_adapters_are_refused():
    with pytest.raises(BadValueError):
        OutOfPhase(adapters=-1)
