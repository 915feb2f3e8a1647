"""Profiles and the rule of the deepest exit."""

import pytest
from tests.serving.edge.conftest import profile_of

from wavetank.errors import BadValueError
from wavetank.serving.edge.interface import ExitProfile, deepest


def test_the_deepest_exit_within_the_deadline_is_taken_and_else_the_shallowest():
    profile = profile_of((0.01, 0.02, 0.04))
    assert [deepest(profile, 0, 2, waited, 0.05) for waited in (0.0, 0.01, 0.011, 0.031, 0.06)] == [2, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("latency_s", "accuracy"),
    [
        ((), ()),
        ((((1.0,),),), ((0.5, 0.6),)),
        ((((0.0,),),), ((0.5,),)),
        ((((1.0,),), ((1.0, 2.0),)), ((0.5,), (0.5,))),
        ((((1.0,),),), ((1.5,),)),
        ((((1.0,),),), ((float("nan"),),)),
    ],
)
def test_tables_that_do_not_agree_and_times_that_are_none_are_refused(latency_s, accuracy):
    with pytest.raises(BadValueError):
        ExitProfile(models=tuple("m" for _ in latency_s), latency_s=latency_s, accuracy=accuracy)
