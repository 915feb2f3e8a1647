"""The study times real processes, and refuses what it cannot execute."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import BadValueError
from wavetank.training.layouts.rivals import Fsdp1, Fsdp2
from wavetank.training.layouts.study_steps import FsdpSteps
from wavetank.training.layouts.vescale import VescaleFsdp

SMALL = FsdpSteps(layers=2, width=16, experts=(3,), block_rows=4, rounds=2)


def test_figures_of_both_systems():
    ours = {metric: value for metric, value, _ in SMALL.measure(VescaleFsdp(unit=1), 0).rows}
    assert ours["difference"] < 1e-12
    assert ours["time_over_fsdp2"] > 0
    # Three experts of sixteen rows; FSDP2 holds four of them.
    assert 1040 <= ours["buffer_elements"] < 1200
    theirs = {metric: value for metric, value, _ in SMALL.measure(Fsdp2(), 0).rows}
    assert "difference" not in theirs
    assert theirs["buffer_elements"] >= 1040
    assert SMALL.notes()


def test_what_cannot_be_executed_is_refused():
    with pytest.raises(BadValueError, match="no such executed system"):
        SMALL.measure(Fsdp1(), 0)
    with pytest.raises(BadValueError, match="numbers of experts"):
        FsdpSteps(experts=()).check()
