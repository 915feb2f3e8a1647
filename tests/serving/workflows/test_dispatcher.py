"""Decisions that cannot be carried out are refused, and schedulers that decide nothing end in an error."""

from __future__ import annotations

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import BadValueError, GaveUpError
from wavetank.serving.workflows.interface import Dispatch
from wavetank.serving.workflows.simulate import simulate


class Stubborn:
    """Decides what it is told to."""

    def __init__(self, *decisions):
        self.decisions = decisions

    def session(self, platform):
        return self

    def decide(self, view):
        return self.decisions


@pytest.mark.parametrize(
    "decisions, said",
    [
        ((Dispatch((0, 1), (0,)),), "not ready"),
        ((Dispatch((0, 0), ()),), "needs different devices"),
        ((Dispatch((0, 0), (0, 0)),), "needs different devices"),
        ((Dispatch((0, 0), (0, 1)),), "needs different devices"),
        ((Dispatch((0, 0), (7,)),), "cannot compute"),
        ((Dispatch((0, 0), (0,)), Dispatch((0, 2), (0,))), "busy device"),
    ],
)
def test_decisions_that_cannot_be_carried_out_are_refused(decisions, said):
    made = application(((), (0,), ()), (1.0, 1.0, 1.0))
    with pytest.raises(BadValueError, match=said):
        simulate([made], platform(), Stubborn(*decisions))


def test_a_scheduler_that_begins_nothing_ends_in_an_error_instead_of_a_loop():
    with pytest.raises(GaveUpError, match="lets stages wait although nothing runs"):
        simulate([application(((),), (1.0,))], platform(), Stubborn())
