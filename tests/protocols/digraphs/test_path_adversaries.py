from __future__ import annotations

import math

import pytest
from scripted_faults import SlowNodes

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.approximate import ApproximateConsensus, Choice, Interval
from wavetank.protocols.digraphs.flooding import CrashFlooding
from wavetank.protocols.digraphs.path_adversaries import PATH_ADVERSARIES, with_value
from wavetank.protocols.digraphs.unsigned import Report, UnsignedConsensus
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import LogEntry


def heard(algorithm: UnsignedConsensus | ApproximateConsensus, adversary: str, size: int = 5) -> list[LogEntry]:
    """Return what correct nodes hear from node 1, which is faulty."""
    faults = PATH_ADVERSARIES[adversary]((1,), Topology.complete(size), Draws(3)) if adversary else []
    found = simulate(algorithm, size=size, until=algorithm.rounds(size), log=True, faults=faults)
    return [each for each in found.log if each.kind == "message" and each.sender == 1]


@pytest.mark.parametrize("algorithm", [UnsignedConsensus(), ApproximateConsensus()])
@pytest.mark.parametrize("adversary", PATH_ADVERSARIES)
def test_every_adversary_but_the_pretending_one_does_something_else_than_a_correct_node(
    algorithm: UnsignedConsensus | ApproximateConsensus, adversary: str
) -> None:
    assert (heard(algorithm, adversary) == heard(algorithm, "")) == (adversary == "pretending")


def test_the_two_faced_say_to_each_node_one_thing_and_not_all_the_same() -> None:
    said: dict[int, set[int]] = {}
    for each in heard(UnsignedConsensus(), "two-faced"):
        said.setdefault(each.node, set()).add(each.what.value)
    assert all(len(values) == 1 for values in said.values())
    assert set.union(*said.values()) == {0, 1}


def test_the_two_faced_say_both_ends_of_the_range() -> None:
    heard_first = [each.what for each in heard(ApproximateConsensus(), "two-faced") if each.what.round == 0]
    assert {each.low for each in heard_first if isinstance(each, Interval)} == {0, 100}


@pytest.mark.parametrize("algorithm", [UnsignedConsensus(), ApproximateConsensus()])
def test_invented_paths_end_at_the_inventor(algorithm: UnsignedConsensus | ApproximateConsensus) -> None:
    graph = Topology.named("random", 6, probability=0.9, directed=True, seed=5)
    faults = PATH_ADVERSARIES["invented-paths"]((1,), graph, Draws(3))
    found = simulate(algorithm, size=6, until=algorithm.rounds(6), log=True, faults=faults)
    paths = {each.what.path for each in found.log if each.kind == "message" and each.sender == 1}
    assert paths
    assert {path[-1] for path in paths} == {1}


def test_a_value_is_replaced_wherever_it_stands() -> None:
    assert with_value(Report(3, (1,), 0), 1) == Report(3, (1,), 1)
    assert with_value(Choice(3, (1,), 0), 7) == Choice(3, (1,), 7)
    assert with_value(Interval(3, (1,), 0, 9), 7) == Interval(3, (1,), 7, 7)


def test_liars_know_their_algorithms_alone() -> None:
    for adversary in ("two-faced", "invented-paths", "random-lies"):
        faults = PATH_ADVERSARIES[adversary]((0,), Topology.complete(4), Draws(0))
        with pytest.raises(BadValueError, match="unsigned algorithms"):
            simulate(CrashFlooding(), size=4, until=9, faults=faults)


def test_slow_nodes_are_heard_late() -> None:
    slow = SlowNodes(members=(2,), extra_rounds=9.0)
    message = Report(0, (2,), 1)
    assert [slow.extra_delay(sender, to, message, 0.0) for sender, to in ((2, 0), (0, 2), (0, 1))] == [9.0, 0.0, 0.0]
    deaf = SlowNodes(members=(2,), extra_rounds=math.inf, receiving=True)
    assert deaf.extra_delay(0, 2, message, 0.0) == math.inf
