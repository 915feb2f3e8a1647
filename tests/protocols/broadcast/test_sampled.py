from __future__ import annotations

import statistics

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast.accounting import broken_totality
from wavetank.protocols.broadcast.sampled import Sampled
from wavetank.protocols.faults import SelectiveRelay
from wavetank.protocols.network import Network
from wavetank.protocols.simulation import Request, simulate

ONE = [Request(at=1.0, node=0, command=("broadcast", b"payload"))]


@pytest.mark.parametrize("size", [4, 31, 100])
def test_without_faults_all_deliver(size: int) -> None:
    run = simulate(Sampled(), size=size, until=30, requests=ONE)
    assert {run.decisions[node, (0, 1)] for node in range(size)} == {b"payload"}


def test_messages_grow_with_the_logarithm() -> None:
    per_node = []
    for size in (50, 200):
        run = simulate(Sampled(), size=size, until=30, requests=ONE)
        per_node.append(run.sent / size / Sampled().sample(size))
    # Subscriptions, gossip, echoes and readies: a constant number of samples each.
    assert max(per_node) < 7
    assert per_node[1] < 1.2 * per_node[0]


def test_few_silent_nodes_are_borne_and_a_third_are_not() -> None:
    def lost(faulty: int) -> float:
        ends = []
        for seed in range(20):
            faults = [SelectiveRelay(members=tuple(range(60 - faulty, 60)), to=())] if faulty else []
            run = simulate(Sampled(), size=60, until=40, seed=seed, requests=ONE, faults=faults)
            ends.append(bool(broken_totality(run.snapshot())))
        return statistics.mean(ends)

    assert lost(3) == 0
    assert lost(19) > 0


def test_a_late_subscriber_hears_what_was_said() -> None:
    network = Network.complete(31, delay="pareto", least_delay=0.5, reorder=0.5)
    run = simulate(Sampled(), network=network, until=5000, life="events", requests=ONE)
    assert len(run.decisions) == 31


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(BadValueError, match="out of range"):
        Sampled(echo_share=1.5)
