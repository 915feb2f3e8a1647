"""MARLaaS shares everything, and bounds how old answers may be."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.training.tenants.interface import Rules
from wavetank.training.tenants.marlaas import Marlaas


def test_all_tasks_run_at_once_mixed_without_a_barrier():
    assert Marlaas().rules() == Rules(s_max=1, at_once=0, adapters=0, barrier=False, divided=False)
    assert Marlaas(s_max=4, adapters=8).rules() == Rules(s_max=4, adapters=8)


@pytest.mark.parametrize("s_max", [-1, 65])
def test_an_age_out_of_range_is_refused(s_max):
    with pytest.raises(BadValueError):
        Marlaas(s_max=s_max)
