"""Rivals: what each asks of real ranks, and who waits for what in the model."""

from __future__ import annotations

from wavetank.serving.rank_failures.modelled import WideInstance
from wavetank.serving.rank_failures.rivals import FullRestart, GroupRestart, MaskOnly


def test_each_repairs_what_its_name_says() -> None:
    assert [each.repair for each in (FullRestart, MaskOnly, GroupRestart)] == ["restart", "nothing", "group"]
    assert [each.build for each in (FullRestart, MaskOnly, GroupRestart)] == ["fixed", "table", "constant"]


def test_less_that_is_made_anew_pauses_less() -> None:
    wide = WideInstance()
    pauses = [each.downtime(wide).pause_s for each in (MaskOnly(), GroupRestart(), FullRestart())]
    assert pauses == sorted(pauses) and pauses[0] * 10 < pauses[1] < pauses[2]
