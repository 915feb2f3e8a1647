from __future__ import annotations

from wavetank.protocols.overlays.gossip import Gossip, GossipNode
from wavetank.protocols.overlays.identifiers import key_of
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.simulation import Request


def test_a_record_reaches_everybody_in_time() -> None:
    requests = [Request(at=1, node=5, command=("publish", "key", "here"))]
    run = simulate(Gossip(stabilize_rounds=2), size=60, until=200, requests=requests)
    assert all(key_of("key") in node.store for node in run.nodes if isinstance(node, GossipNode))


def test_most_hear_of_it_within_a_few_times_log_n_rounds() -> None:
    requests = [Request(at=1, node=5, command=("publish", "key", "here"))]
    run = simulate(Gossip(stabilize_rounds=100), size=256, until=30, requests=requests)
    told = sum(key_of("key") in node.store for node in run.nodes if isinstance(node, GossipNode))
    assert told > 0.9 * 256


def test_rumours_grow_cold() -> None:
    requests = [Request(at=1, node=5, command=("publish", "key", "here"))]
    run = simulate(Gossip(stabilize_rounds=100, republish_rounds=100), size=30, until=60, requests=requests)
    assert all(not node.hot for node in run.nodes if isinstance(node, GossipNode))


def test_lookups_succeed_while_most_are_down() -> None:
    requests = [
        Request(at=1, node=5, command=("publish", "key", "here")),
        Request(at=60, node=39, command=("lookup", "key")),
    ]
    down = tuple(range(30))
    run = simulate(
        Gossip(stabilize_rounds=2), size=40, until=120, requests=requests, faults=[Crash(members=down, at=50.0)]
    )
    assert run.replies[1].result.endpoints == ("here",)


def test_all_but_one_may_crash() -> None:
    assert Gossip().max_faults(10) == 9
