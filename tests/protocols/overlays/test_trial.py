from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.chord import Chord
from wavetank.protocols.overlays.churn import Presence, Sessions
from wavetank.protocols.overlays.directory import Directory, inner_node
from wavetank.protocols.overlays.gossip import Gossip
from wavetank.protocols.overlays.kademlia import Kademlia
from wavetank.protocols.overlays.pastry import Pastry
from wavetank.protocols.overlays.registry import Registry
from wavetank.protocols.overlays.trial import Conditions, try_directory, workload_of

ALL = (Chord, Pastry, Kademlia, Registry, Gossip)
SMALL = Conditions(nodes=64, keys=20, lookups=64)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("tables", ["exact", "cold"])
def test_without_churn_all_lookups_succeed_after_the_warm_up(kind: type[Directory], tables: str) -> None:
    found = try_directory(kind(stabilize_rounds=4, refresh_rounds=4), dataclasses.replace(SMALL, tables=tables), 1)
    assert found.success == 1.0
    assert found.run.sent == found.run.delivered + found.run.dropped + found.run.under_way


@pytest.mark.parametrize("kind", ALL)
def test_every_message_is_counted_under_one_purpose(kind: type[Directory]) -> None:
    churn = dataclasses.replace(SMALL, mean_session_rounds=30.0)
    for conditions in (SMALL, churn):
        found = try_directory(kind(), conditions, 2)
        assert sum(found.messages.values()) * 64 * found.run.time == pytest.approx(found.run.sent)


def test_churn_costs_chord_lookups_and_gossip_hardly_any() -> None:
    churn = dataclasses.replace(SMALL, mean_session_rounds=15.0, nodes=128, lookups=128)
    quick: dict[str, Any] = {"stabilize_rounds": 4.0, "deadline_rounds": 30.0}
    chord, gossip = (try_directory(kind(**quick), churn, 1).success for kind in (Chord, Gossip))
    assert chord < 0.8 < 0.9 < gossip


@pytest.mark.parametrize("kind", [Chord, Pastry, Kademlia])
def test_nodes_find_their_way_back_in_under_short_sessions(kind: type[Directory]) -> None:
    conditions = Conditions(nodes=192, keys=64, lookups=192, mean_session_rounds=30.0)
    quick = kind(stabilize_rounds=4, refresh_rounds=4, deadline_rounds=30)
    found = try_directory(quick, conditions, 1)
    live = [inner_node(node) for node in found.run.nodes if not getattr(node, "down", False)]
    assert sum(node.joined for node in live) > 0.75 * len(live)
    assert found.success > 0.8


def test_all_systems_get_the_same_questions() -> None:
    presence = Presence(Sessions(members=tuple(range(64)), until=100, seed=1), 64)
    one, other = (workload_of(SMALL, presence, 60.0, 1) for _ in range(2))
    assert one == other
    for request in one.requests:
        assert presence.up(request.node, request.at)


def test_delays_of_the_continuum_make_lookups_shorter_than_rounds() -> None:
    found = try_directory(Registry(), dataclasses.replace(SMALL, continuum=True), 1)
    assert 0 < found.latency(0.5) < 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tables": "warm"}, "exact or cold"),
        ({"nodes": 1}, "nodes, keys and lookups"),
        ({"rounds": 20.0}, "ends before its lookups"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValueError, match=says):
        try_directory(Chord(), dataclasses.replace(SMALL, **change), 1)
