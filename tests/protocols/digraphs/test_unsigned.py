from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.live.cluster import run_cluster
from wavetank.protocols.digraphs.conditions import holds
from wavetank.protocols.digraphs.path_adversaries import PATH_ADVERSARIES
from wavetank.protocols.digraphs.routes import links_of, members_of, reaches, small_sets
from wavetank.protocols.digraphs.unsigned import Report, UnsignedConsensus, UnsignedNode, source_of, spreads, timetable
from wavetank.sim.events import simulate
from wavetank.sim.faults import Fault
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import LIVES, Run

PAIRS = {(node, to) for node in range(5) for to in range(5) if node != to}


def incomplete() -> Topology:
    """Return five nodes that meet 3-reach for one fault; a ring of links is missing."""
    return Topology.from_edges(PAIRS - {(node, (node + 1) % 5) for node in range(5)}, size=5)


def mute() -> Topology:
    """Return five nodes that meet 3-reach for one fault, though nobody hears node 0, and it hears three."""
    return Topology.from_edges(PAIRS - {(0, 1), (0, 2), (0, 3), (0, 4), (1, 0)}, size=5)


def run(
    algorithm: UnsignedConsensus, graph: Topology, *, life: str = "rounds", seed: int = 0, faults: Sequence[Fault] = ()
) -> Run:
    until = algorithm.rounds(graph.size) + 1
    return simulate(algorithm, network=Network(topology=graph), until=until, life=life, seed=seed, faults=faults)


def broken(graph: Topology, faults: int, adversary: str, draws: Draws) -> str:
    """Return how one run with drawn inputs and faulty nodes breaks consensus, or ""."""
    members = tuple(draws.sample(range(graph.size), faults))
    inputs = (draws.below(2),) if draws.chance(0.3) else tuple(draws.below(2) for _ in range(graph.size))
    algorithm = UnsignedConsensus(faults=faults, inputs=inputs, links=links_of(graph))
    found = run(algorithm, graph, seed=draws.bits(), faults=PATH_ADVERSARIES[adversary](members, graph, draws))
    if {node for node, _ in found.decisions} < set(range(graph.size)) - set(members):
        return "a correct node did not decide"
    return algorithm.violation(found.snapshot())


def test_a_network_need_not_be_complete() -> None:
    for graph in (incomplete(), mute()):
        assert holds("reach-3", graph, 1)
        assert sum(len(graph.peers(node)) for node in range(5)) == 15


def test_a_node_refuses_to_start_in_another_network_than_its_links_describe() -> None:
    with pytest.raises(BadValueError, match="not the one that the parameter links describes"):
        run(UnsignedConsensus(), incomplete())


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("graph", [Topology.complete(4), Topology.complete(7), incomplete(), mute()])
def test_without_liars_all_decide_one_value_of_theirs(graph: Topology, life: str) -> None:
    for inputs in ((0,), (1,), (0, 1, 1), (1, 0, 0, 0)):
        algorithm = UnsignedConsensus(inputs=inputs, links=links_of(graph))
        found = run(algorithm, graph, life=life)
        assert len(found.decisions) == graph.size
        assert len(set(found.decisions.values())) == 1
        assert set(found.decisions.values()) <= set(inputs)
        assert set(found.decided_at.values()) == {algorithm.rounds(graph.size)}


def test_in_a_complete_network_a_guess_costs_a_round_and_a_message_a_link() -> None:
    for size, faults in ((4, 1), (7, 1), (7, 2)):
        guesses = [each.bit_count() for each in small_sets(range(size), faults)]
        algorithm = UnsignedConsensus(faults=faults)
        assert algorithm.rounds(size) == len(guesses)
        assert run(algorithm, Topology.complete(size)).sent == sum((size - out) * (size - out - 1) for out in guesses)


@given(
    st.integers(0, 100_000), st.integers(4, 6), st.floats(0.7, 1.0), st.sampled_from(sorted(PATH_ADVERSARIES))
)  # fmt: skip
@settings(max_examples=200)
def test_no_adversary_breaks_agreement_or_validity_where_the_condition_holds(
    seed: int, size: int, density: float, adversary: str
) -> None:
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    if holds("reach-3", graph, 1):
        assert broken(graph, 1, adversary, Draws(seed)) == ""


@pytest.mark.parametrize("adversary", PATH_ADVERSARIES)
def test_two_liars_are_borne_by_seven_nodes(adversary: str) -> None:
    draws = Draws(8)
    assert {broken(Topology.complete(7), 2, adversary, draws) for _ in range(12)} == {""}


@pytest.mark.slow
def test_ten_thousand_runs_against_the_whole_library() -> None:
    draws = Draws(12)
    runs = seed = 0
    while runs < 10_000:
        seed += 1
        size = 4 + draws.below(3)
        graph = Topology.named("random", size, probability=0.6 + 0.4 * draws.random(), directed=True, seed=seed)
        if not holds("reach-3", graph, 1):
            continue
        for adversary in PATH_ADVERSARIES:
            runs += 1
            assert broken(graph, 1, adversary, draws) == ""


@pytest.mark.slow
def test_all_networks_of_five_nodes_that_meet_the_condition_are_borne() -> None:
    draws = Draws(31)
    graphs = 0
    # With a sixth link missing some node hears fewer than three.
    for count in range(6):
        for missing in combinations(sorted(PAIRS), count):
            graph = Topology.from_edges(PAIRS - set(missing), size=5)
            if holds("reach-3", graph, 1):
                graphs += 1
                assert broken(graph, 1, draws.choice(sorted(PATH_ADVERSARIES)), draws) == ""
    assert graphs == 2885


def test_where_the_condition_fails_the_library_breaks_it() -> None:
    draws = Draws(2)
    tried = 0
    for seed in range(40):
        graph = Topology.named("random", 5, probability=0.8, directed=True, seed=seed)
        if holds("reach-3", graph, 1):
            continue
        tried += 1
        assert any(broken(graph, 1, adversary, draws) for _ in range(60) for adversary in PATH_ADVERSARIES)
    assert tried > 5
    assert any(broken(Topology.complete(3), 1, "two-faced", draws) for _ in range(20))


@given(st.integers(0, 100_000), st.integers(4, 7), st.floats(0.6, 1.0), st.data())
@settings(max_examples=100)
def test_one_side_of_every_split_of_the_source_spreads_and_the_source_to_all(
    seed: int, size: int, density: float, data: st.DataObject
) -> None:
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    if not holds("reach-3", graph, 1):
        return
    known = reaches(links_of(graph), size)
    for guess in small_sets(range(size), 1):
        source = source_of(known, guess)
        rest = (2**size - 1) & ~guess & ~source
        assert spreads(known, 1, guess, source, rest)
        zeros = data.draw(st.integers(0, 2**size - 1)) & source
        assert spreads(known, 1, guess, zeros, source & ~zeros) or spreads(known, 1, guess, source & ~zeros, zeros)


def test_all_nodes_agree_on_the_timetable_and_nobody_listens_to_the_guessed() -> None:
    graph = incomplete()
    for step in timetable(links_of(graph), 5, 1):
        for node, listening in step.listening.items():
            assert bool(step.source >> node & 1) == step.settles
            for path in listening.paths:
                assert not set(path) & set(members_of(step.guess))
                assert len(path) - 1 <= step.hops


def test_a_message_over_another_path_than_it_says_is_not_heard() -> None:
    algorithm = UnsignedConsensus(inputs=(0,))
    found = simulate(algorithm, size=4, until=0)
    node = found.nodes[0]
    assert isinstance(node, UnsignedNode)
    for wrong in (
        Report(0, (2,), 1),
        Report(0, (), 1),
        Report(0, (2, 1), 1),
        Report(0, (1,), 2),
        Report(99, (1,), 1),
        Report(-1, (1,), 1),
    ):
        node.receive(1, wrong)
    assert node.heard == {}
    node.receive(1, Report(0, (1,), 1))
    node.receive(1, Report(0, (1,), 0))
    assert node.heard == {0: {(1, 0): 1}}


def test_slow_links_are_borne_when_the_step_is_long_enough() -> None:
    graph = incomplete()
    algorithm = UnsignedConsensus(inputs=(1,), step_rounds=4.0, links=links_of(graph))
    network = Network(topology=graph, links=Links(delay="uniform", most_delay=4.0))
    for life in LIVES:
        found = simulate(algorithm, network=network, until=algorithm.rounds(5) + 1, life=life)
        assert list(found.decisions.values()) == [1] * 5


def test_real_nodes_decide_what_the_simulation_decides() -> None:
    graph = incomplete()
    algorithm = UnsignedConsensus(inputs=(1, 0, 1, 1, 0), links=links_of(graph), step_rounds=3.0)
    expected = run(algorithm, graph).decisions
    found = run_cluster(
        algorithm, 5, network=Network(topology=graph), duration_s=20.0, round_s=0.03,
        stop=lambda found: len(found.decisions) == 5,
    )  # fmt: skip
    assert found.decisions == expected


def test_a_node_alone_decides_its_input() -> None:
    assert run(UnsignedConsensus(faults=0, inputs=(1,)), Topology.complete(1)).decisions == {(0, 0): 1}


def test_violations_are_named() -> None:
    found = run(UnsignedConsensus(inputs=(1,)), Topology.complete(4))
    assert UnsignedConsensus(inputs=(1,)).violation(found.snapshot()) == ""
    found.decisions[0, 0] = 0
    assert UnsignedConsensus(inputs=(1,)).violation(found.snapshot()) == "nodes 0 and 1 decided 0 and 1 in instance 0"
    for node in range(4):
        found.decisions[node, 0] = 0
    assert UnsignedConsensus(inputs=(1,)).violation(found.snapshot()).endswith("though every correct node began with 1")


def test_bad_parameters_are_refused() -> None:
    for wrong in ({"inputs": (2,)}, {"faults": -1}, {"links": ("0-1",)}, {"step_rounds": 0.0}):
        with pytest.raises(BadValueError):
            UnsignedConsensus(**wrong)
    with pytest.raises(BadValueError):
        UnsignedConsensus(links=("0>9",)).rounds(4)
