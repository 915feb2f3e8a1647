from __future__ import annotations

import statistics

import pytest
from scripted_faults import Scripted

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast.accounting import Echo, Ready, broken_totality, digest_of
from wavetank.protocols.broadcast.sampled import Gossip, Sampled, SampledNode
from wavetank.sim.events import simulate
from wavetank.sim.faults import SelectiveRelay
from wavetank.sim.network import Network
from wavetank.sim.simulation import Request

ONE = [Request(at=1.0, node=0, command=("broadcast", b"payload"))]
TWO = [Request(at=5.0, node=2, command=("broadcast", b"payload"))]


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


def test_a_liar_that_is_ready_for_everything_does_not_keep_others_from_delivering() -> None:
    script = tuple(Ready(2, 1, digest_of(b"%d" % number)) for number in range(100))
    script += (Ready(2, 1, b""), Echo(2, 1, b""))
    # Echoes come late, so that the lies are there first.
    run = simulate(Sampled(), size=6, until=40, requests=TWO, faults=[Scripted(members=(0,), script=script)])
    assert {run.decisions.get((node, (2, 1))) for node in range(1, 6)} == {b"payload"}
    assert run.total("rejected") == 10
    for node in run.nodes[1:]:
        assert isinstance(node, SampledNode)
        assert len(node.instances[2, 1].readies) <= 3


def test_a_number_that_cannot_be_signed_is_rejected() -> None:
    script = (Gossip(2, -1, b"x", bytes(16)), Gossip(2, 2**70, b"x", bytes(16)))
    run = simulate(Sampled(), size=4, until=40, faults=[Scripted(members=(0,), script=script)])
    assert run.total("rejected") == 6
