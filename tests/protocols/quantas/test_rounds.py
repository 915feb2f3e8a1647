"""Tests of QUANTAS's rounds and channels."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.rounds import Pauses, QuantasRounds, geometric
from wavetank.sim.faults import Omission
from wavetank.sim.network import Topology
from wavetank.sim.node import Message, Node, Snapshot
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import Request


class Word(Message, frozen=True):
    number: int


class Speaker(Node):
    """Node 0 sends what it is given in round 1; everybody writes down what is heard."""

    def __init__(self, script: Sequence[tuple[str, int]]) -> None:
        self.script = script
        self.heard: list[tuple[float, int, int]] = []

    def start(self) -> None:
        if self.context.id == 0:
            self.context.set_timer("speak", 1)

    def timer(self, name: str) -> None:
        for number, (kind, to) in enumerate(self.script):
            context: Any = self.context
            if kind == "all":
                self.context.broadcast(Word(number))
            elif kind == "three":
                context.send_all(to, [Word(number), Word(number), Word(number)])
            elif kind == "three one by one":
                for _ in range(3):
                    self.context.send(to, Word(number))
            else:
                self.context.send(to, Word(number))

    def receive(self, sender: int, message: Any) -> None:
        self.heard.append((self.context.now, sender, message.number))

    def request(self, number: int, command: Any) -> None:
        self.context.reply(number, self.context.now)
        self.context.broadcast(Word(command))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speech:
    script: tuple[tuple[str, int], ...] = ()
    messages = (Word,)

    def node(self, index: int, size: int) -> Node:
        return Speaker(self.script)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


def heard(script: Sequence[tuple[str, int]], node: int, *, rounds: int = 50, **rules: Any) -> list[tuple[float, int]]:
    run = QuantasRounds(**rules).simulate(Speech(script=tuple(script)), rounds=rounds, size=4)
    found: Any = run.nodes[node]
    return [(at, number) for at, _, number in found.heard]


def test_a_message_takes_one_round() -> None:
    assert heard([("one", 2)], 2) == [(2.0, 0)]
    assert heard([("one", 2)], 1) == []


def test_a_channel_delivers_one_message_a_round_by_default() -> None:
    assert heard([("all", 0), ("all", 0), ("one", 1), ("all", 0)], 1) == [(2, 0), (3, 1), (4, 2), (5, 3)]
    assert heard([("all", 0), ("all", 0), ("one", 1), ("all", 0)], 2) == [(2, 0), (3, 1), (4, 3)]


@given(
    st.lists(st.sampled_from([("all", 0), ("one", 1), ("one", 2)]), max_size=8),
    st.integers(min_value=1, max_value=3),
)
@settings(max_examples=60, deadline=None)
def test_shared_broadcasts_arrive_as_single_messages_would(script: list[tuple[str, int]], per_round: int) -> None:
    # A capacity that never binds makes the loop keep every channel as a queue of its own.
    for node in (1, 2, 3):
        quick = heard(script, node, budget=per_round)
        assert quick == heard(script, node, budget=per_round, queue=10_000)
        assert [number for _, number in quick] == sorted(number for _, number in quick)


@given(
    st.lists(st.sampled_from([("all", 0), ("one", 1), ("one", 2), ("three", 1)]), max_size=8),
    st.integers(min_value=1, max_value=4),
)
@settings(max_examples=100, deadline=None)
def test_a_burst_on_a_channel_arrives_as_single_messages_would(script: list[tuple[str, int]], per_round: int) -> None:
    singly = [("three one by one", to) if kind == "three" else (kind, to) for kind, to in script]
    for node in (1, 2, 3):
        quick = heard(script, node, budget=per_round)
        assert quick == heard(singly, node, budget=per_round)
        assert quick == heard(script, node, budget=per_round, queue=10_000)


def test_what_waits_on_a_channel_goes_on_while_new_messages_come() -> None:
    class Again(Speaker):
        def timer(self, name: str) -> None:
            super().timer(name)
            if self.context.now < 6:
                self.context.set_timer("speak", 1)

    class Speeches(Speech):
        def node(self, index: int, size: int) -> Node:
            return Again(self.script)

    def arrivals(kind: str, per_round: int) -> list[tuple[float, int, int]]:
        speech = Speeches(script=((kind, 1), ("all", 0), ("one", 1), (kind, 1), ("one", 2)))
        run = QuantasRounds(budget=per_round).simulate(speech, rounds=40, size=3)
        found: Any = run.nodes[1]
        assert (run.sent, run.under_way) == (60, max(48 - 39 * per_round, 0))
        return found.heard

    for per_round in (1, 2, 3, 5):
        assert arrivals("three", per_round) == arrivals("three one by one", per_round)


def test_a_broadcast_waits_behind_a_burst_of_an_earlier_round() -> None:
    class Later(Speaker):
        def timer(self, name: str) -> None:
            if name == "speak":
                super().timer(name)
                self.context.set_timer("later", 1)
            else:
                self.context.broadcast(Word(9))

    class Speeches(Speech):
        def node(self, index: int, size: int) -> Node:
            return Later(self.script)

    run = QuantasRounds().simulate(Speeches(script=(("three", 1), ("three", 1))), rounds=40, size=3)
    nodes: list[Any] = run.nodes
    assert nodes[1].heard == [(2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 1), (6, 0, 1), (7, 0, 1), (8, 0, 9)]
    assert nodes[2].heard == [(3, 0, 9)]


def test_a_slow_message_holds_up_those_behind_it() -> None:
    arrivals = heard([("one", 1)] * 10, 1, most_delay=5, budget=10)
    assert [number for _, number in arrivals] == list(range(10))
    assert max(at for at, _ in arrivals) > 2


def test_a_channel_that_shuffles_breaks_the_order_and_loses_nothing() -> None:
    numbers = [number for _, number in heard([("one", 1)] * 20, 1, reorder=1.0)]
    assert numbers != sorted(numbers)
    assert sorted(numbers) == list(range(20))


def test_drops_copies_and_full_queues_are_counted() -> None:
    speech = Speech(script=(("one", 1),) * 200)
    for rules in ({"drop": 0.5}, {"duplicate": 0.5}, {"queue": 3}, {"drop": 0.1, "duplicate": 0.3, "most_delay": 4}):
        run = QuantasRounds(**rules).simulate(speech, rounds=20, size=2)  # type: ignore[arg-type]
        assert run.sent == 200
        assert run.sent + run.duplicated == run.delivered + run.dropped + run.under_way
        assert run.dropped + run.duplicated > 0
    assert QuantasRounds(queue=3).simulate(speech, rounds=20, size=2).delivered == 3


def test_a_channel_takes_no_more_in_its_life_than_it_can_deliver() -> None:
    run = QuantasRounds(most_delay=2).simulate(Speech(script=(("one", 1),) * 50), rounds=20, size=2)
    assert run.dropped == 30


def test_requests_come_at_the_end_of_their_round() -> None:
    asked = [Request(at=3, node=1, command=7)]
    run = QuantasRounds().simulate(Speech(script=(("all", 0),)), rounds=9, size=3, requests=asked, log=True)
    assert run.replies[0].at == 3
    assert [(each.at, each.node) for each in run.log if each.kind == "message" and each.what == Word(7)] == [
        (4.0, 0),
        (4.0, 2),
    ]


def test_a_node_that_stands_still_reads_its_inbox_when_it_goes_on() -> None:
    speech = Speech(script=(("all", 0), ("all", 0)))
    run = QuantasRounds().simulate(speech, rounds=50, size=3, pauses=Pauses(stopped=(2,), until=9))
    nodes: list[Any] = run.nodes
    assert nodes[1].heard == [(2, 0, 0), (3, 0, 1)]
    assert nodes[2].heard == [(9, 0, 0), (9, 0, 1)]
    assert run.delivered == 4
    forever = QuantasRounds().simulate(speech, rounds=50, size=3, pauses=Pauses(stopped=(2,)))
    nodes = forever.nodes
    assert nodes[2].heard == []


def test_a_request_to_a_paused_node_waits_until_it_goes_on() -> None:
    asked = [Request(at=3, node=1, command=7), Request(at=9, node=1, command=8)]
    pauses = Pauses(stopped=(1,), until=9)
    run = QuantasRounds().simulate(Speech(), rounds=20, size=2, pauses=pauses, requests=asked)
    assert [run.replies[number].at for number in (0, 1)] == [9, 9]
    nodes: list[Any] = run.nodes
    assert [number for _, _, number in nodes[0].heard] == [7, 8]


def test_a_timer_of_a_paused_node_runs_out_when_it_goes_on() -> None:
    speech = Speech(script=(("one", 1),))
    run = QuantasRounds().simulate(speech, rounds=50, size=2, pauses=Pauses(stopped=(0,), until=5))
    nodes: list[Any] = run.nodes
    assert nodes[1].heard == [(6, 0, 0)]


def test_nodes_that_crash_by_chance_are_down_as_often_as_the_odds_say() -> None:
    class Clock(Speaker):
        def start(self) -> None:
            self.context.set_timer("tick", 1)

        def timer(self, name: str) -> None:
            self.context.record("up")
            self.context.set_timer("tick", 1)

    class Clocks(Speech):
        def node(self, index: int, size: int) -> Node:
            return Clock(())

    rules = QuantasRounds()
    run = rules.simulate(Clocks(), rounds=2000, size=10, pauses=Pauses(odds=0.1, rounds=10))
    # Up for (1 - p) / p rounds on average, down for 10.
    assert run.total("up") / 20_000 == pytest.approx(9 / 19, abs=0.04)


def test_the_same_seed_gives_the_same_log() -> None:
    rules = QuantasRounds(most_delay=4, drop=0.1, duplicate=0.1, reorder=0.3)
    speech = Speech(script=(("all", 0),) * 10)
    digests = {rules.simulate(speech, rounds=30, size=4, seed=3, log=True).digest() for _ in range(3)}
    assert len(digests) == 1
    assert rules.simulate(speech, rounds=30, size=4, seed=4, log=True).digest() not in digests


def test_links_follow_the_topology() -> None:
    ring = Topology.named("ring", 4)
    run = QuantasRounds().simulate(Speech(script=(("all", 0),)), rounds=5, topology=ring)
    nodes: list[Any] = run.nodes
    assert [len(node.heard) for node in nodes] == [0, 1, 0, 1]
    with pytest.raises(BadValueError, match="no link"):
        QuantasRounds().simulate(Speech(script=(("one", 2),)), rounds=5, topology=ring)


def test_the_faults_of_the_area_work_here() -> None:
    faults = [Omission(members=(0,), sending=1.0)]
    run = QuantasRounds().simulate(Speech(script=(("all", 0),)), rounds=5, size=3, faults=faults)
    assert run.sent == 0
    faults = [Omission(members=(1,), sending=0.0, receiving=1.0)]
    run = QuantasRounds().simulate(Speech(script=(("all", 0),)), rounds=5, size=3, faults=faults)
    inner: Any = run.nodes[1]
    assert inner.inner.heard == []


def test_idle_rounds_cost_nothing() -> None:
    run = QuantasRounds().simulate(Speech(), rounds=10**9, size=2)
    assert (run.time, run.sent, run.timers) == (10**9, 0, 1)


def test_delays_stay_in_their_interval() -> None:
    for rules in (
        QuantasRounds(delay="poisson", least_delay=2, most_delay=6, mean_delay=3),
        QuantasRounds(least_delay=2, most_delay=6),
    ):
        draws = Draws(1)
        found = {rules.sampled_delay(draws.random()) for _ in range(500)}
        assert found == {2, 3, 4, 5, 6}


def test_tries_until_a_success_have_the_mean_of_the_geometric_distribution() -> None:
    draws = Draws(5)
    found = [geometric(draws, 0.1) for _ in range(5000)]
    assert min(found) == 1
    assert sum(found) / 5000 == pytest.approx(10, rel=0.06)
    assert geometric(draws, 1.0) == 1


def test_parameters_are_checked() -> None:
    for wrong in ({"most_delay": 2, "least_delay": 3}, {"drop": 1.5}, {"budget": 0}, {"delay": "slow"}):
        with pytest.raises(BadValueError):
            QuantasRounds(**wrong)  # type: ignore[arg-type]
    with pytest.raises(BadValueError):
        Pauses(odds=2.0)
    with pytest.raises(BadValueError):
        Pauses(stopped=(1,), until=0)
    with pytest.raises(BadValueError):
        QuantasRounds().simulate(Speech(), rounds=5, size=2, pauses=Pauses(stopped=(2,)))
    with pytest.raises(BadValueError):
        QuantasRounds().simulate(Speech(), rounds=-1, size=2)
    with pytest.raises(BadValueError):
        QuantasRounds().simulate(Speech(), rounds=5, size=2, requests=[Request(at=1, node=2, command=1)])


def test_rules_survive_pickling() -> None:
    rules = QuantasRounds(drop=0.25, budget=3)
    assert pickle.loads(pickle.dumps(rules)) == rules
