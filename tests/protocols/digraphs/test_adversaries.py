from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.adversaries import ADVERSARIES, TwoFaced, attack, signed_chain
from wavetank.protocols.digraphs.conditions import holds
from wavetank.protocols.digraphs.flooding import CrashFlooding
from wavetank.protocols.digraphs.signed_consensus import Chain, Denial, SignedConsensus
from wavetank.sim.events import simulate
from wavetank.sim.network import Network, Topology
from wavetank.sim.rng import Draws


def broken_runs(graph: Topology, faults: int, seed: int = 0) -> list[int]:
    """Return which runs of the attack break consensus."""
    broken = []
    for place, each in enumerate(attack(graph, faults)):
        algorithm = SignedConsensus(faults=faults, inputs=each.inputs)
        until = algorithm.rounds(graph.size) + 1
        found = simulate(algorithm, network=Network(topology=graph), until=until, seed=seed, faults=each.faults)
        assert sum(len(fault.members) for fault in each.faults) <= faults
        if algorithm.violation(found.snapshot()):
            broken.append(place)
    return broken


@given(st.integers(0, 100_000), st.integers(2, 7), st.integers(1, 2), st.floats(0.1, 1.0))
@settings(max_examples=120)
def test_the_attack_breaks_every_network_that_misses_the_condition_and_no_other(
    seed: int, size: int, faults: int, density: float
) -> None:
    faults = min(faults, size - 1)
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    assert bool(attack(graph, faults)) != holds("signed", graph, faults)
    if attack(graph, faults):
        assert broken_runs(graph, faults) != []


def test_two_halves_of_a_small_complete_network_cannot_be_distinguished() -> None:
    for size in (2, 4):
        assert broken_runs(Topology.complete(size), size // 2) != []


def test_each_run_says_why() -> None:
    chain = Topology.named("chain", 4)
    assert [each.says for each in attack(chain, 1)] == [
        "{0} must decide 0",
        "{2, 3} must decide 1",
        "{0} and {2, 3} hear nobody else, as in the runs before",
    ]


@pytest.mark.parametrize("name", ADVERSARIES)
def test_every_adversary_does_something_else_than_a_correct_node(name: str) -> None:
    graph = Topology.complete(5)
    algorithm = SignedConsensus(faults=2, inputs=(1, 0))
    until = algorithm.rounds(5) + 1
    liars = ADVERSARIES[name]((1, 3), graph, Draws(3))
    honest = simulate(algorithm, network=Network(topology=graph), until=until, log=True)
    faulty = simulate(algorithm, network=Network(topology=graph), until=until, log=True, faults=liars)
    heard = [
        [each for each in run.log if each.kind == "message" and each.sender in (1, 3) and each.node not in (1, 3)]
        for run in (honest, faulty)
    ]
    assert heard[0] != heard[1]


def test_a_two_faced_node_signs_both_values() -> None:
    graph = Topology.complete(7)
    found = simulate(
        SignedConsensus(faults=2), network=Network(topology=graph), until=3, log=True, faults=[TwoFaced(members=(0,))]
    )
    said = {
        each.what.value
        for each in found.log
        if isinstance(each.what, Chain) and each.what.signers == (0,) and each.sender == 0
    }
    assert said == {0, 1}


def test_false_denials_differ_from_neighbour_to_neighbour() -> None:
    graph = Topology.complete(5)
    algorithm = SignedConsensus(faults=1)
    faults = ADVERSARIES["false-denials"]((2,), graph, Draws(0))
    found = simulate(algorithm, network=Network(topology=graph), until=algorithm.rounds(5), log=True, faults=faults)
    said = {
        each.what.lacks for each in found.log if isinstance(each.what, Denial) and each.sender == each.what.node == 2
    }
    assert len(said) > 1


def test_a_chain_of_the_adversary_verifies() -> None:
    algorithm = SignedConsensus(faults=2)
    node = algorithm.node(0, 5)
    found = simulate(algorithm, size=5, until=0)
    node.context = found.nodes[0].context
    assert node._is_good(signed_chain(algorithm, 1, (3, 1)))  # type: ignore[attr-defined]


def test_liars_know_their_algorithm_alone() -> None:
    with pytest.raises(BadValueError):
        simulate(
            CrashFlooding(), size=4, until=9, faults=ADVERSARIES["late-chains"]((0,), Topology.complete(4), Draws(0))
        )
