from __future__ import annotations

from wavetank.protocols.overlays.registry import Registry
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request


def test_every_question_takes_one_hop_and_two_rounds() -> None:
    requests = [Request(at=1, node=2, command=("publish", "key", "here"))]
    requests += [Request(at=10, node=node, command=("lookup", "key")) for node in range(1, 8)]
    run = simulate(Registry(), size=8, until=30, requests=requests)
    for number in range(1, 8):
        assert run.replies[number].result.hops == 1
        assert run.replies[number].at == 12.0


def test_nothing_is_maintained() -> None:
    run = simulate(Registry(), size=8, until=100)
    assert run.sent == 0


def test_the_registry_bears_no_crash() -> None:
    assert Registry().max_faults(100) == 0
