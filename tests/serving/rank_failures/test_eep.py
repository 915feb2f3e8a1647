"""Partial recovery: what it asks of real ranks, and its place in the model."""

from __future__ import annotations

from wavetank.serving.rank_failures.eep import PartialRecovery
from wavetank.serving.rank_failures.modelled import WideInstance


def test_it_repairs_experts_through_tables_and_pauses_twice() -> None:
    system = PartialRecovery()
    assert (system.repair, system.build, system.host, system.replicas) == ("experts", "table", True, 0)
    down = system.downtime(WideInstance(failed=2))
    assert 0 < down.rejoin_s < down.pause_s < down.recovered_s
