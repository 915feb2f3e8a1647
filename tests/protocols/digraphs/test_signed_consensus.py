from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_faults import Scripted

from wavetank.errors import BadValueError
from wavetank.live.cluster import run_cluster
from wavetank.protocols.digraphs.adversaries import ADVERSARIES
from wavetank.protocols.digraphs.conditions import holds
from wavetank.protocols.digraphs.signed_consensus import Chain, Denial, SignedConsensus, denial_content
from wavetank.protocols.digraphs.signing import scheme
from wavetank.sim.events import simulate
from wavetank.sim.faults import Corruption, Replay
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import LIVES, Run

CLIQUES = Topology.from_edges([(0, 1), (1, 0), (2, 3), (3, 2), (3, 0), (3, 1), (1, 2), (1, 3)], size=4)


def run(
    algorithm: SignedConsensus, graph: Topology, *, life: str = "rounds", seed: int = 0, faults: object = ()
) -> Run:
    until = algorithm.rounds(graph.size) + 1
    return simulate(algorithm, network=Network(topology=graph), until=until, life=life, seed=seed, faults=faults)  # type: ignore[arg-type]


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("graph", [Topology.complete(5), CLIQUES, Topology.complete(3)])
def test_without_liars_the_majority_is_decided(graph: Topology, life: str) -> None:
    for inputs in ((0,), (1,), (0, 1, 1), (1, 0, 0)):
        found = run(SignedConsensus(inputs=inputs), graph, life=life)
        values = [inputs[node % len(inputs)] for node in range(graph.size)]
        expected = 1 if sum(values) * 2 > graph.size else 0
        assert set(found.decisions.values()) == {expected}
        assert len(found.decisions) == graph.size
        assert found.total("rejected chains") == 0


def test_a_tie_is_decided_as_zero() -> None:
    assert set(run(SignedConsensus(inputs=(0, 1)), Topology.complete(4)).decisions.values()) == {0}


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_two_cliques_agree_whatever_one_node_does(adversary: str) -> None:
    draws = Draws(5)
    for seed in range(40):
        member = (seed % 4,)
        inputs = tuple(draws.below(2) for _ in range(4))
        algorithm = SignedConsensus(inputs=inputs)
        faults = ADVERSARIES[adversary](member, CLIQUES, draws)
        found = run(algorithm, CLIQUES, seed=seed, faults=faults)
        assert algorithm.violation(found.snapshot()) == ""
        assert {node for node, _ in found.decisions} >= set(range(4)) - set(member)


@given(
    seed=st.integers(0, 100_000),
    size=st.integers(4, 7),
    faults=st.integers(1, 2),
    density=st.floats(0.5, 1.0),
    adversary=st.sampled_from(sorted(ADVERSARIES)),
    same=st.booleans(),
)
@settings(max_examples=100)
def test_no_adversary_breaks_agreement_or_validity_where_the_condition_holds(
    seed: int, size: int, faults: int, density: float, adversary: str, same: bool
) -> None:
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    if not holds("signed", graph, faults):
        return
    draws = Draws(seed)
    members = tuple(draws.sample(range(size), faults))
    inputs = (draws.below(2),) if same else tuple(draws.below(2) for _ in range(size))
    algorithm = SignedConsensus(faults=faults, inputs=inputs)
    found = run(algorithm, graph, seed=seed, faults=ADVERSARIES[adversary](members, graph, draws))
    assert algorithm.violation(found.snapshot()) == ""
    assert {node for node, _ in found.decisions} >= set(range(size)) - set(members)


@pytest.mark.slow
def test_ten_thousand_runs_against_the_whole_library() -> None:
    draws = Draws(11)
    runs = seed = 0
    while runs < 10_000:
        seed += 1
        size = 4 + draws.below(4)
        faults = 1 + (draws.below(2) if size > 4 else 0)
        graph = Topology.named("random", size, probability=0.4 + 0.6 * draws.random(), directed=True, seed=seed)
        if not holds("signed", graph, faults):
            continue
        for adversary in ADVERSARIES.values():
            runs += 1
            members = tuple(draws.sample(range(size), faults))
            inputs = (draws.below(2),) if draws.chance(0.4) else tuple(draws.below(2) for _ in range(size))
            algorithm = SignedConsensus(faults=faults, inputs=inputs)
            found = run(algorithm, graph, seed=seed, faults=adversary(members, graph, draws))
            assert algorithm.violation(found.snapshot()) == ""


def test_forged_and_damaged_signatures_are_rejected() -> None:
    draws = Draws(1)
    graph = Topology.complete(5)
    forged = run(SignedConsensus(), graph, faults=ADVERSARIES["forger"]((1,), graph, draws))
    assert forged.total("rejected chains") > 0
    damaged = run(SignedConsensus(), graph, faults=[Corruption(members=(1,))])
    assert damaged.total("rejected chains") + damaged.total("rejected denials") > 0
    for found in (forged, damaged):
        assert SignedConsensus().violation(found.snapshot()) == ""


def test_chains_that_are_not_well_formed_are_rejected() -> None:
    algorithm = SignedConsensus()
    found = run(algorithm, Topology.complete(3))
    node = found.nodes[0]
    good = next(iter(node.accepted.values()))  # type: ignore[attr-defined]
    for broken in (
        Chain(good.origin, 2, good.signers, good.signatures),
        Chain(good.origin, good.value, (), ()),
        Chain(good.origin, good.value, good.signers * 2, good.signatures * 2),
        Chain(good.origin, good.value, (9,), good.signatures[:1]),
        Chain(good.origin + 1, good.value, good.signers, good.signatures),
        Chain(good.origin, good.value, good.signers, ()),
    ):
        assert not node._is_good(broken)  # type: ignore[attr-defined]


def denial(lacks: tuple[tuple[int, int], ...], node: int = 1) -> Denial:
    return Denial(node, lacks, scheme("keyed-hash", 0).sign(1, denial_content(node, lacks)))


def test_a_liar_denies_values_of_nodes_alone_and_each_once() -> None:
    unheard = tuple(
        denial(lacks)
        for lacks in (((7, 0),), ((-1, 0),), ((2, 5),), ((2, 0), (2, 0)), tuple((n, 0) for n in range(99)))
    )
    script = (*unheard, denial(((2, 0),)), denial(((2, 1),), node=9))
    found = run(SignedConsensus(), Topology.complete(4), faults=[Scripted(members=(1,), script=script)])
    for node in (0, 2, 3):
        denied = found.nodes[node].denied  # type: ignore[attr-defined]
        assert {key for key, liars in denied.items() if 1 in liars} == {(2, 0)}
        assert all(0 <= origin < 4 and value in (0, 1) for origin, value in denied)
    assert found.total("rejected denials") == 3 * 6


def test_a_liar_that_denies_endlessly_is_heard_no_more() -> None:
    every = [(origin, value) for origin in range(4) for value in (0, 1)]
    script = tuple(
        denial(tuple(each for place, each in enumerate(every) if code >> place & 1)) for code in range(1, 200)
    )
    found = run(SignedConsensus(), Topology.complete(4), faults=[Scripted(members=(1,), script=script)])
    for node in (0, 2, 3):
        heard = [each for each, _ in found.nodes[node].heard]  # type: ignore[attr-defined]
        assert heard.count(1) == 2 * 4
    assert SignedConsensus().violation(found.snapshot()) == ""


@pytest.mark.parametrize("graph", [CLIQUES, Topology.complete(5)])
def test_random_changes_and_repetitions_break_nothing(graph: Topology) -> None:
    for seed in range(60):
        member = (seed % graph.size,)
        faults = [Corruption(members=member, probability=0.5), Replay(members=member, probability=0.5)]
        algorithm = SignedConsensus(inputs=tuple(seed >> node & 1 for node in range(graph.size)))
        found = run(algorithm, graph, seed=seed, faults=faults)
        assert algorithm.violation(found.snapshot()) == ""
        assert {node for node, _ in found.decisions} >= set(range(graph.size)) - set(member)


def test_slow_links_are_borne_when_the_step_is_long_enough() -> None:
    algorithm = SignedConsensus(inputs=(1,), step_rounds=4.0)
    links = Links(delay="uniform", most_delay=4.0)
    network = Network(topology=Topology.complete(5), links=links)
    for life in LIVES:
        found = simulate(algorithm, network=network, until=algorithm.rounds(5) + 1, life=life)
        assert set(found.decisions.values()) == {1}


def test_real_nodes_with_real_signatures_decide_what_the_simulation_decides() -> None:
    algorithm = SignedConsensus(inputs=(1, 0, 1, 1), signatures="ed25519", step_rounds=1.0)
    expected = run(algorithm, CLIQUES).decisions
    found = run_cluster(
        algorithm, 4, network=Network(topology=CLIQUES), duration_s=20.0, round_s=0.03,
        stop=lambda found: len(found.decisions) == 4,
    )  # fmt: skip
    assert found.decisions == expected


def test_violations_are_named() -> None:
    found = run(SignedConsensus(inputs=(1,)), Topology.complete(3))
    found.decisions[0, 0] = 0
    assert SignedConsensus(inputs=(1,)).violation(found.snapshot()) == "nodes 0 and 1 decided 0 and 1 in instance 0"
    for node in range(3):
        found.decisions[node, 0] = 0
    assert SignedConsensus(inputs=(1,)).violation(found.snapshot()).endswith("though every correct node began with 1")


def test_bad_parameters_are_refused() -> None:
    for wrong in ({"inputs": (2,)}, {"faults": -1}, {"signatures": "none"}, {"step_rounds": 0.0}):
        with pytest.raises(BadValueError):
            SignedConsensus(**wrong)  # type: ignore[arg-type]
