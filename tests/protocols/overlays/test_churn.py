from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.chord import Chord
from wavetank.protocols.overlays.churn import Presence, Sessions, record_traffic
from wavetank.protocols.overlays.directory import inner_node
from wavetank.sim.events import simulate
from wavetank.sim.node import Node


def test_nodes_are_up_when_the_schedule_says_so() -> None:
    sessions = Sessions(members=tuple(range(20)), mean_up=15, mean_down=10, until=60, seed=3)
    presence = Presence(sessions, 20)
    seen = []
    simulate(
        Chord(),
        size=20,
        until=60,
        faults=[sessions],
        stop=lambda run: bool(seen.append([not node.down for node in run.nodes])),  # type: ignore[attr-defined,func-returns-value]
    )
    run = simulate(Chord(), size=20, until=37, faults=[sessions])
    assert [not node.down for node in run.nodes] == [presence.up(node, 37) for node in range(20)]  # type: ignore[attr-defined]
    assert any(not all(states) for states in seen)


def test_mean_times_are_those_asked_for() -> None:
    sessions = Sessions(members=tuple(range(300)), mean_up=40, mean_down=10, until=2000, seed=1)
    presence = Presence(sessions, 300)
    shares = [sum(presence.up(node, at) for node in range(300)) / 300 for at in range(500, 2000, 50)]
    assert math.isclose(sum(shares) / len(shares), 0.8, abs_tol=0.02)


def test_who_stays_has_no_break() -> None:
    sessions = Sessions(members=(0,), mean_up=10, mean_down=10, until=200, seed=2)
    presence = Presence(sessions, 2)
    up, changes = sessions.schedule(0)
    assert presence.up(0, 0) == up
    assert not presence.stays(0, changes[0] - 1, changes[0] + 1)
    assert presence.stays(1, 0, 1e9)
    assert presence.up(0, changes[0]) != presence.up(0, changes[0] - 0.5)


def test_what_a_node_sent_before_a_crash_is_counted() -> None:
    sessions = Sessions(members=tuple(range(1, 20)), mean_up=20, mean_down=10, until=100, seed=5)
    run = simulate(Chord(stabilize_rounds=2), size=20, until=100, faults=[sessions])
    kept = sum(sum(inner_node(node).sent) for node in run.nodes if not getattr(node, "down", False))
    told = sum(run.total(name) for name in run.recorded if name.startswith("messages "))
    assert told > 0
    assert kept + told == run.sent


def test_another_node_tells_nothing() -> None:
    record_traffic(Node())


def test_sessions_take_time() -> None:
    with pytest.raises(BadValueError, match="take time"):
        Sessions(members=(0,), mean_up=0)
