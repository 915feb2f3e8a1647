from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_faults import SlowNodes

from wavetank.errors import BadValueError
from wavetank.live.cluster import run_cluster
from wavetank.protocols.digraphs.approximate import ApproximateConsensus, ApproximateNode, Choice, Interval, ways
from wavetank.protocols.digraphs.conditions import holds
from wavetank.protocols.digraphs.path_adversaries import EXTREME, PATH_ADVERSARIES, with_value
from wavetank.protocols.digraphs.routes import links_of
from wavetank.sim.events import simulate
from wavetank.sim.faults import Behaviour, Equivocation, Fault, FaultyNode, Sends
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.node import Message
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import LIVES, Run, Scheduler

PAIRS = {(node, to) for node in range(5) for to in range(5) if node != to}


def incomplete() -> Topology:
    """Return five nodes that meet 3-reach for one fault; a ring of links is missing."""
    return Topology.from_edges(PAIRS - {(node, (node + 1) % 5) for node in range(5)}, size=5)


def mute() -> Topology:
    """Return five nodes that meet 3-reach for one fault, though nobody hears node 0, and it hears three."""
    return Topology.from_edges(PAIRS - {(0, 1), (0, 2), (0, 3), (0, 4), (1, 0)}, size=5)


def _on(graph: Topology, *, inputs: tuple[int, ...]) -> ApproximateConsensus:
    return ApproximateConsensus(inputs=inputs, links=links_of(graph))


def ranges(found: Run, correct: frozenset[int]) -> list[float]:
    """Return the range of the correct nodes' values before each round and after the last."""
    values: dict[int, list[float]] = {}
    for _, node, value in found.recorded["value"]:
        if node in correct:
            values.setdefault(node, []).append(value)
    return [max(each) - min(each) for each in zip(*values.values(), strict=True)]


def check(
    algorithm: ApproximateConsensus, graph: Topology, members: tuple[int, ...], *, life: str, seed: int,
    faults: list[Fault], scheduler: Scheduler | None = None,
) -> Run:  # fmt: skip
    """Run with random delays where life allows; all that is promised must hold."""
    links = Links(delay="exponential") if life == "events" else Links()
    until = 1e9 if life == "events" or scheduler is not None else algorithm.rounds(graph.size)
    found = simulate(
        algorithm, network=Network(topology=graph, links=links), until=until, life=life, seed=seed, faults=faults,
        scheduler=scheduler,
    )  # fmt: skip
    correct = frozenset(range(graph.size)) - set(members)
    assert {node for node, _ in found.decisions} >= correct
    assert algorithm.violation(found.snapshot()._replace(correct=correct)) == ""
    assert found.contradictions == []
    assert all(2 * after <= before for before, after in pairwise(ranges(found, correct)))
    return found


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("faults", [0, 1, 2])
def test_without_liars_all_end_close_together(faults: int, life: str) -> None:
    size = 3 * faults + 1
    inputs = (0, 100, 30, 77, 12, 50, 99)[:size]
    check(ApproximateConsensus(faults=faults, inputs=inputs), Topology.complete(size), (), life=life, seed=1, faults=[])


def test_seven_rounds_bring_a_hundred_below_one() -> None:
    assert [ApproximateConsensus(spread=spread).halvings() for spread in (0, 1, 2, 100, 128, 129)] == [0, 0, 1, 7, 7, 8]
    assert ApproximateConsensus(spread=1, epsilon=0.25).halvings() == 2


def test_who_is_close_already_decides_at_once() -> None:
    found = simulate(ApproximateConsensus(inputs=(3, 4), spread=1), size=4, until=0)
    assert found.decisions == {(0, 0): 3.0, (1, 0): 4.0, (2, 0): 3.0, (3, 0): 4.0}
    assert found.sent == 0


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("adversary", PATH_ADVERSARIES)
def test_links_may_be_missing_and_a_node_may_be_heard_by_nobody(adversary: str, life: str) -> None:
    for graph in (incomplete(), mute()):
        for member in range(5):
            faults = PATH_ADVERSARIES[adversary]((member,), graph, Draws(member))
            check(_on(graph, inputs=(0, 100, 50)), graph, (member,), life=life, seed=member, faults=faults)


def test_equal_inputs_stay_as_they_are() -> None:
    found = check(_on(incomplete(), inputs=(42,)), incomplete(), (), life="rounds", seed=0, faults=[])
    assert set(found.decisions.values()) == {42.0}


@given(
    st.integers(0, 100_000), st.integers(1, 2), st.sampled_from(sorted(PATH_ADVERSARIES)), st.sampled_from(LIVES)
)  # fmt: skip
@settings(max_examples=80)
def test_complete_networks_of_three_f_plus_one_withstand_every_adversary(
    seed: int, faults: int, adversary: str, life: str
) -> None:
    draws = Draws(seed)
    graph = Topology.complete(3 * faults + 1)
    members = tuple(draws.sample(range(graph.size), faults))
    algorithm = ApproximateConsensus(faults=faults, inputs=tuple(draws.between(-50, 50) for _ in range(graph.size)))
    check(algorithm, graph, members, life=life, seed=seed, faults=PATH_ADVERSARIES[adversary](members, graph, draws))


@given(
    st.integers(0, 100_000),
    st.integers(4, 7),
    st.floats(0.6, 1.0),
    st.sampled_from(sorted(PATH_ADVERSARIES)),
    st.sampled_from(LIVES),
    st.sampled_from([0.0, 7.0, 1000.0]),
)
@settings(max_examples=80)
def test_no_adversary_breaks_it_where_the_condition_holds_with_any_slow_node(
    seed: int, size: int, density: float, adversary: str, life: str, hold_rounds: float
) -> None:
    graph = Topology.named("random", size, probability=density, directed=True, seed=seed)
    if not holds("reach-3", graph, 1):
        return
    draws = Draws(seed)
    members = (draws.below(size),)
    slow = SlowNodes(members=(draws.below(size),), extra_rounds=hold_rounds, receiving=draws.chance(0.5))
    inputs = tuple(draws.between(-50, 50) for _ in range(size))
    algorithm = ApproximateConsensus(inputs=inputs, links=links_of(graph))
    faults = PATH_ADVERSARIES[adversary](members, graph, draws)
    check(algorithm, graph, members, life=life, seed=seed, faults=faults, scheduler=slow if hold_rounds else None)


@pytest.mark.slow
def test_three_thousand_runs_against_the_whole_library() -> None:
    draws = Draws(21)
    runs = seed = 0
    while runs < 3000:
        seed += 1
        size = 4 + draws.below(3)
        graph = Topology.named("random", size, probability=0.6 + 0.4 * draws.random(), directed=True, seed=seed)
        if not holds("reach-3", graph, 1):
            continue
        for adversary in PATH_ADVERSARIES.values():
            runs += 1
            members = (draws.below(size),)
            slow = SlowNodes(members=(draws.below(size),), extra_rounds=draws.choice((5.0, 100.0)))
            inputs = tuple(draws.choice((0, 100, draws.below(100))) for _ in range(size))
            algorithm = ApproximateConsensus(inputs=inputs, links=links_of(graph))
            faults = adversary(members, graph, draws)
            check(algorithm, graph, members, life=draws.choice(LIVES), seed=seed, faults=faults, scheduler=slow)


def test_nobody_waits_for_the_slow_and_the_slow_catch_up() -> None:
    algorithm = ApproximateConsensus(inputs=(0, 100, 40, 60))
    slow = SlowNodes(members=(3,), extra_rounds=1000.0, receiving=True)
    found = check(algorithm, Topology.complete(4), (), life="rounds", seed=0, faults=[], scheduler=slow)
    assert all(found.decided_at[node, 0] < 100 for node in range(3))
    assert found.decided_at[3, 0] > 1000


def test_what_is_far_outside_moves_nobody() -> None:
    graph = Topology.complete(4)
    algorithm = ApproximateConsensus(inputs=(10, 20, 30, 0))
    faults = PATH_ADVERSARIES["extreme-values"]((3,), graph, Draws(0))
    found = check(algorithm, graph, (3,), life="rounds", seed=0, faults=faults)
    assert all(10 <= found.decisions[node, 0] <= 30 for node in range(3))


class _OneForEach(Fault):
    def behaviour(self, index: int, pool: dict[str, object]) -> Behaviour:
        return _Agreeing()


class _Agreeing(Behaviour):
    """Says to each what the other's input is not: that it thinks the same."""

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        assert isinstance(message, Interval | Choice)
        return ((to, with_value(message, 100 * to * 2**message.round)),)


def test_three_nodes_cannot_withstand_a_liar_when_messages_between_the_others_are_slow() -> None:
    graph = Topology.complete(3)
    assert not holds("reach-3", graph, 1)

    class Apart(Scheduler):
        def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
            return 0.0 if 2 in (sender, to) else 1000.0

    algorithm = ApproximateConsensus(inputs=(0, 100, 0))
    found = simulate(algorithm, size=3, until=2000, faults=[_OneForEach(members=(2,))], scheduler=Apart())
    assert algorithm.violation(found.snapshot()) == "nodes 0 and 1 decided 0.0 and 100.0, further apart than 1.0"


def test_a_node_refuses_to_start_in_another_network_than_its_links_describe() -> None:
    with pytest.raises(BadValueError, match="not the one that the parameter links describes"):
        simulate(ApproximateConsensus(), network=Network(topology=incomplete()), until=1)


def test_in_a_complete_network_values_take_the_links() -> None:
    for size, faults in ((4, 1), (7, 2)):
        found = ways((), size, faults)
        assert found.hops == 1
        assert all(len(each.paths) == size for each in found.listening)


def test_all_that_passes_through_a_node_is_heard_by_it() -> None:
    found = ways(links_of(incomplete()), 5, 1)
    for path in found.onward:
        assert path in found.listening[path[-1]].paths
        assert found.listening[path[-1]].paths[found.places[path]] == path


def test_what_came_another_way_or_cannot_be_is_not_heard() -> None:
    node = simulate(ApproximateConsensus(inputs=(0,)), size=4, until=0).nodes[0]
    assert isinstance(node, ApproximateNode)
    before = repr(node.rounds)
    for wrong in (
        Interval(0, (2,), 1, 1),
        Interval(0, (), 1, 1),
        Interval(0, (2, 1), 1, 1),
        Interval(7, (1,), 1, 1),
        Interval(-1, (1,), 1, 1),
        Interval(0, (1,), 1, 2**70),
        Choice(0, (1,), -(2**70)),
    ):
        node.receive(1, wrong)
    assert repr(node.rounds) == before
    node.receive(1, Choice(0, (1,), 5))
    node.receive(1, Choice(0, (1,), 6))
    assert node.rounds[0].choice == [None, 5, None, None]


def test_real_nodes_end_close_together_though_one_lies() -> None:
    graph = incomplete()
    algorithm = ApproximateConsensus(inputs=(0, 100, 30, 60, 90), links=links_of(graph))
    found = run_cluster(
        algorithm, 5, network=Network(topology=graph), duration_s=20.0, round_s=0.01,
        faults=[Equivocation(members=(1,))],
        stop=lambda found: {node for node, _ in found.decisions} >= {0, 2, 3, 4},
    )  # fmt: skip
    decided = [found.decisions[node, 0] for node in (0, 2, 3, 4)]
    assert max(decided) - min(decided) <= 1
    assert min(decided) >= 0
    assert max(decided) <= 90


def test_violations_are_named() -> None:
    algorithm = ApproximateConsensus(inputs=(0, 100))
    found = simulate(algorithm, size=4, until=algorithm.rounds(4))
    assert algorithm.violation(found.snapshot()) == ""
    found.decisions[2, 0] = 3.0
    assert algorithm.violation(found.snapshot()) == "nodes 2 and 0 decided 3.0 and 50.0, further apart than 1.0"
    found.decisions[2, 0] = -EXTREME
    assert algorithm.violation(found.snapshot()).startswith("node 2 decided -")
    found.decisions.clear()
    assert algorithm.violation(found.snapshot()) == ""


def test_inputs_further_apart_than_was_said_still_bound_the_decisions() -> None:
    algorithm = ApproximateConsensus(inputs=(0, 1000), spread=4)
    found = simulate(algorithm, size=4, until=algorithm.rounds(4))
    assert algorithm.violation(found.snapshot()) == ""
    assert len(found.decisions) == 4


def test_bad_parameters_are_refused() -> None:
    for wrong in ({"inputs": (2_000_000,)}, {"faults": -1}, {"links": ("x",)}, {"epsilon": 0.0}, {"spread": -1}):
        with pytest.raises(BadValueError):
            ApproximateConsensus(**wrong)
