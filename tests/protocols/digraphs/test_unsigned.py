from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.conditions import CONDITIONS
from wavetank.protocols.digraphs.unsigned import UnsignedCondition


def test_it_names_a_condition_that_can_be_decided() -> None:
    assert UnsignedCondition.condition in CONDITIONS
    with pytest.raises(BadValueError):
        UnsignedCondition(faults=-1)
