from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.adversaries import ADVERSARIES
from wavetank.protocols.digraphs.conditions import holds
from wavetank.protocols.digraphs.flooding import CrashFlooding, DolevStrong, FloodingNode, Input
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.network import Network, Topology
from wavetank.sim.rng import Draws


@given(
    st.integers(0, 100_000), st.integers(3, 7), st.integers(1, 3), st.sampled_from(sorted(ADVERSARIES)), st.booleans()
)
@settings(max_examples=80)
def test_signed_broadcasts_agree_on_complete_networks(
    seed: int, size: int, faults: int, adversary: str, same: bool
) -> None:
    faults = min(faults, (size - 1) // 2)
    draws = Draws(seed)
    graph = Topology.complete(size)
    members = tuple(draws.sample(range(size), faults))
    inputs = (draws.below(2),) if same else tuple(draws.below(2) for _ in range(size))
    algorithm = DolevStrong(faults=faults, inputs=inputs)
    found = simulate(
        algorithm,
        network=Network(topology=graph),
        until=algorithm.rounds(size) + 1,
        seed=seed,
        faults=ADVERSARIES[adversary](members, graph, draws),
    )
    assert algorithm.violation(found.snapshot()) == ""
    assert {node for node, _ in found.decisions} >= set(range(size)) - set(members)


def test_it_takes_one_round_more_than_there_are_faults() -> None:
    algorithm = DolevStrong(faults=2, inputs=(1,))
    found = simulate(algorithm, size=5, until=10)
    assert set(found.decided_at.values()) == {3.0}
    assert set(found.decisions.values()) == {1}


@given(st.integers(0, 100_000), st.integers(2, 8), st.integers(1, 2), st.floats(0.2, 1.0))
@settings(max_examples=80)
def test_flooding_agrees_where_one_source_is_left(seed: int, size: int, faults: int, density: float) -> None:
    faults = min(faults, size - 1)
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    if not holds("reach-1", graph, faults):
        return
    draws = Draws(seed)
    members = tuple(draws.sample(range(size), draws.below(faults + 1)))
    algorithm = CrashFlooding(faults=faults, inputs=tuple(draws.below(2) for _ in range(size)))
    found = simulate(
        algorithm, network=Network(topology=graph), until=size + 1, seed=seed, faults=[Crash(members=members)]
    )
    assert algorithm.violation(found.snapshot()) == ""
    assert len(found.decisions) == size - len(members)


def test_flooding_costs_a_message_a_link_and_origin() -> None:
    found = simulate(CrashFlooding(inputs=(1,)), size=6, until=7)
    assert found.sent == 6 * 6 * 5
    assert set(found.decisions.values()) == {1}


def test_what_is_said_of_nobody_is_passed_over() -> None:
    node = CrashFlooding().node(0, 3)
    assert isinstance(node, FloodingNode)
    node.context = SimpleNamespace(size=3, broadcast=lambda message: None)  # type: ignore[assignment]
    for origin in (-1, 3, 2**40):
        node.receive(1, Input(origin, 1, ()))
    assert node.known == {}


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(BadValueError):
        CrashFlooding(inputs=(3,))
    with pytest.raises(BadValueError):
        DolevStrong(faults=-1)
