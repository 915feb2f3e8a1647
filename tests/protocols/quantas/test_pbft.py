"""Tests of QUANTAS's PBFT."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.pbft import (
    Checkpoint,
    Payload,
    Prepare,
    QuantasPBFT,
    SplitVotes,
    Submit,
    other_version,
    splitters,
)
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.simulation import Run


def run(size: int, rounds: int, equivocators: int = 0, **parameters: int) -> Run:
    faults = (splitters(range(equivocators), range(size)),) if equivocators else ()
    return QuantasRounds(budget=10).simulate(QuantasPBFT(**parameters), rounds=rounds, size=size, faults=faults)


@pytest.mark.parametrize(
    ("size", "rounds", "equivocators", "throughput", "latency"),
    [
        (20, 60, 1, 15.0, 3.8),
        (20, 200, 2, 58.0, 3.4310344827586206),
        (20, 200, 6, 40.0, 4.925),
        (20, 200, 7, 0.5, 93.0),
        (19, 500, 6, 0.5263157894736842, 80.0),
        (100, 50, 0, 16.0, 3.0),
        (100, 90, 5, 8.0, 11.0),
    ],
)
def test_the_figures_are_those_of_quantas(
    size: int, rounds: int, equivocators: int, throughput: float, latency: float
) -> None:
    # Nothing here is random: what QUANTAS's own program writes in the last round.
    series = QuantasPBFT().series(run(size, rounds, equivocators), rounds)
    assert (series["throughput"][-1], series["latency"][-1]) == (throughput, latency)
    assert len(series["throughput"]) == rounds


def test_a_request_costs_a_submission_and_three_phases() -> None:
    # Submit and proposal to all, prepares of all but the leader, commits of all; nothing is in flight after 4 rounds
    # but the leader's next request.
    n = 7
    assert run(n, 4).sent == (n - 1) * (2 + (n - 1) + n + 2)


@given(st.integers(min_value=4, max_value=13), st.integers(min_value=1, max_value=4), st.data())
@settings(max_examples=25, deadline=None)
def test_tolerated_equivocators_never_make_correct_nodes_confirm_different_requests(
    size: int, patience: int, data: st.DataObject
) -> None:
    algorithm = QuantasPBFT(patience=patience * 5)
    members = data.draw(st.sets(st.integers(0, size - 1), max_size=algorithm.max_faults(size)))
    other = data.draw(st.sets(st.integers(0, size - 1)))
    fault = SplitVotes(members=tuple(sorted(members)), other=tuple(sorted(other)))
    seed = data.draw(st.integers(0, 1000))
    rules = QuantasRounds(budget=10, most_delay=data.draw(st.integers(1, 3)))
    found = rules.simulate(algorithm, rounds=150, size=size, seed=seed, faults=(fault,))
    assert algorithm.violation(found.snapshot()) == ""


def test_two_quorums_of_six_need_not_share_a_correct_node() -> None:
    # 2f + 1 = 3 of 6: the leader of the fourth view splits the others, although f = 1.
    assert [QuantasPBFT().max_faults(size) for size in (4, 5, 6, 7, 19, 20, 21)] == [1, 0, 0, 2, 6, 5, 4]
    assert QuantasPBFT(votes=4).max_faults(6) == 1
    rules, fault = QuantasRounds(budget=10, most_delay=2), SplitVotes(members=(3,), other=(0, 2, 5))
    for votes, split in ((0, True), (4, False)):
        algorithm = QuantasPBFT(patience=5, votes=votes)
        found = rules.simulate(algorithm, rounds=150, size=6, seed=63, faults=(fault,))
        assert ("decided" in algorithm.violation(found.snapshot())) is split


def test_a_quorum_of_f_plus_one_lets_an_equivocator_split_the_others() -> None:
    weak = QuantasPBFT(votes=3)
    found = run(7, 60, 2, votes=3)
    assert "decided" in weak.violation(found.snapshot())


def test_more_equivocators_than_it_tolerates_split_it_and_are_not_hidden() -> None:
    found = run(20, 200, 9)
    assert QuantasPBFT().violation(found.snapshot()) != ""
    series = QuantasPBFT().series(found, 200)
    # QUANTAS's own figures.
    assert (series["throughput"][-1], series["faultyConfirmed"][-1]) == (66.0, 0.5)


def test_a_silent_leader_is_replaced_where_there_is_one_node_more_than_needed() -> None:
    rules = QuantasRounds(budget=10)
    silent = (Crash(members=(0,)),)
    found = rules.simulate(QuantasPBFT(), rounds=60, size=5, faults=silent)
    assert QuantasPBFT().series(found, 60)["throughput"][-1] > 5
    nodes: list[Any] = found.nodes
    assert nodes[1].view == 1
    # The new leader does not prepare either, so with 3f + 1 nodes too few prepares are left.
    assert rules.simulate(QuantasPBFT(), rounds=60, size=4, faults=silent).decisions == {}


def test_checkpoints_bound_what_is_kept() -> None:
    found = run(4, 400)
    nodes: list[Any] = found.nodes
    assert nodes[0].seq > 100
    assert nodes[0].stable > nodes[0].seq - 20
    assert min(nodes[0].slots) >= nodes[0].stable


def test_an_equivocator_flips_votes_and_digests_and_nothing_else() -> None:
    payload = Payload(1, 2, 3.0, False)
    flipped = Payload(1, 2, 3.0, True)
    assert other_version(Prepare(4, 5, payload), True) == Prepare(4, 5, flipped)
    assert other_version(Prepare(4, 5, flipped), False) == Prepare(4, 5, payload)
    assert other_version(Checkpoint(1, 2, "ab"), True) == Checkpoint(1, 2, "ab#flip")
    assert other_version(Checkpoint(1, 2, "ab#flip"), False) == Checkpoint(1, 2, "ab")
    assert other_version(Submit(payload), True) == Submit(payload)
    assert QuantasPBFT().conflicting(Prepare(4, 5, payload)) == Prepare(4, 5, flipped)


def test_it_runs_as_events_and_says_the_same() -> None:
    abstract, events = run(4, 60), simulate(QuantasPBFT(), size=4, until=60, life="events")
    common = abstract.decisions.keys() & events.decisions.keys()
    assert len(common) >= 70
    assert all(abstract.decisions[key] == events.decisions[key] for key in common)
    faulty = simulate(QuantasPBFT(), size=7, until=60, faults=(splitters((0,), range(7)),))
    assert QuantasPBFT().violation(faulty.snapshot()) == ""


def test_parameters_are_checked() -> None:
    for wrong in ({"patience": 0}, {"votes": -1}, {"window": 0}):
        with pytest.raises(BadValueError):
            QuantasPBFT(**wrong)
    assert [QuantasPBFT().max_faults(size) for size in (3, 4, 100)] == [0, 1, 33]
