from __future__ import annotations

import sys

import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.protocols.overlays.live.library_peers import (
    KademliaLibrary,
    Libp2pDht,
    LibraryDirectory,
    loopback_workload,
)


def test_the_workload_is_the_same_for_all() -> None:
    assert loopback_workload(10, 20, 1) == loopback_workload(10, 20, 1) != loopback_workload(10, 20, 2)
    assert all(0 <= each.publisher < 10 and 0 <= each.asker < 10 for each in loopback_workload(10, 20, 1))


def test_the_library_kademlia_finds_what_was_published() -> None:
    pytest.importorskip("kademlia")
    success, latency_s = KademliaLibrary().try_out(8, loopback_workload(8, 8, 1))
    assert success == 1.0
    assert latency_s >= 0


@pytest.mark.slow
def test_the_dht_of_libp2p_finds_what_was_published() -> None:
    pytest.importorskip("libp2p")
    success, _ = Libp2pDht(most_nodes=4).try_out(4, loopback_workload(4, 4, 1))
    assert success == 1.0


@pytest.mark.parametrize(("kind", "module"), [(KademliaLibrary, "kademlia.network"), (Libp2pDht, "libp2p")])
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    kind: type[LibraryDirectory], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(MissingExtraError, match="not installed"):
        kind().try_out(4, loopback_workload(4, 4, 1))


@pytest.mark.parametrize(("nodes", "lookups"), [(1, 4), (4, 0)])
def test_a_trial_without_nodes_or_records_is_refused(nodes: int, lookups: int) -> None:
    pytest.importorskip("kademlia")
    with pytest.raises(BadValueError, match="2 nodes and 1 record"):
        KademliaLibrary().try_out(nodes, loopback_workload(4, lookups, 1))
