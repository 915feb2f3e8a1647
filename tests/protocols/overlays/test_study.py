from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.overlays.live.library_peers import KademliaLibrary, LibraryDirectory
from wavetank.protocols.overlays.study import AgentDiscovery
from wavetank.study.study import Measurements

TINY: dict[str, Any] = {
    "nodes": 48, "small_nodes": 32, "frontier_nodes": 24, "live_nodes": 6, "keys": 12, "lookups": 32, "rounds": 80.0,
    "sessions": (60.0,), "redundancies": (4, 8), "periods": (10.0,), "live_lookups": 4,
}  # fmt: skip
SIMULATED = ("stationary", "start-at-once", "start-warmed", "churn", "continuum", "frontier")


def figures(found: Measurements, metric: str) -> dict[tuple[Any, ...], float]:
    return {tuple(at.values()): value for name, value, at in found.rows if name == metric}


@pytest.mark.parametrize(
    "name", ["chord-directory", "pastry-directory", "kademlia-directory", "central-registry", "gossip-directory"]
)
def test_every_directory_is_tried_in_every_regime(name: str) -> None:
    study = AgentDiscovery(regimes=SIMULATED, **TINY)
    found = study.measure(catalog.built_in().systems[name].build(), 1)
    success = figures(found, "success")
    assert {("stationary",), ("start-at-once",), ("start-warmed",), ("churn-60",), ("continuum",)} <= set(success)
    assert success["stationary",] == success["start-warmed",] == 1.0
    assert {(4, 10.0), (8, 10.0)} <= set(success)
    assert len(figures(found, "messages_by_purpose")) == 5
    assert figures(found, "warm_up_success_ratio")[()] >= 1.0
    assert study.stamp(name, 1, found)


def test_one_regime_can_be_tried_alone() -> None:
    study = AgentDiscovery(regimes=("stationary",), **TINY)
    found = study.measure(catalog.built_in().systems["chord-directory"].build(), 1)
    assert {at["regime"] for _, _, at in found.rows if "regime" in at} == {"stationary"}


def test_equal_seeds_give_equal_figures() -> None:
    study = AgentDiscovery(regimes=("stationary", "churn"), **TINY)
    system = catalog.built_in().systems["kademlia-directory"].build()
    assert study.measure(system, 3).rows == study.measure(system, 3).rows != study.measure(system, 4).rows


def test_a_library_takes_part_on_loopback_alone() -> None:
    pytest.importorskip("kademlia")
    found = AgentDiscovery(**TINY).measure(KademliaLibrary(), 1)
    assert figures(found, "live_success") == {("loopback",): 1.0}
    assert AgentDiscovery(regimes=("stationary",), **TINY).measure(KademliaLibrary(), 1).rows == []
    assert issubclass(KademliaLibrary, LibraryDirectory)


def test_no_regime_is_refused() -> None:
    with pytest.raises(BadValueError, match="no regime"):
        AgentDiscovery(regimes=()).check()


def test_the_notes_tell_the_periods() -> None:
    assert "every 10 rounds" in " ".join(AgentDiscovery().notes())
