"""Rivals compute the same step, each in its own way."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains.ways import outcome

from wavetank.training.domains.rivals import DTensorWay, GatherComputeScatter, OneProcess


@pytest.mark.parametrize("way", [GatherComputeScatter(), DTensorWay(), OneProcess()])
def test_a_rivals_step_is_the_step_of_one_process(way):
    worst, parts = outcome(way, (8, 8))
    assert worst < 1e-12
    assert parts[0]["loss"] > 0


def test_who_asks_for_other_cuts_gets_them():
    assert OneProcess().sizes(16, 3, (4, 4, 8)) == (16, 0, 0)
    assert DTensorWay().sizes(12, 3, (4, 2, 6)) == (4, 4, 4)
