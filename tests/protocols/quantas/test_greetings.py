"""Tests of QUANTAS's example."""

from __future__ import annotations

from wavetank.protocols.quantas.greetings import Greetings
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.network import Topology


def test_everyone_greets_every_neighbour_in_every_round() -> None:
    run = QuantasRounds(budget=10).simulate(Greetings(), rounds=5, size=5)
    series = Greetings().series(run, 5)
    assert series["sentMessages"] == [20, 40, 60, 80, 100]
    assert series["finalMessageCount"] == [100]
    assert series["performs computation"][:6] == [0, 1, 2, 3, 4, 0]
    assert len(series["receivedMessages"]) == 80


def test_the_log_says_who_heard_what_when() -> None:
    links = Topology.from_edges([(0, 1), (0, 2), (1, 2)], size=3)
    run = QuantasRounds().simulate(Greetings(), rounds=3, topology=links)
    first, *_ = Greetings().series(run, 3)["receivedMessages"]
    assert first == {
        "to": 1,
        "from": 0,
        "receivedRound": 2,
        "contents": {
            "type": "greeting",
            "from": 0,
            "roundSent": 1,
            "message": "Message: Hello From 0. Sent on round: 1",
            "sequence": 0,
        },
    }


def test_the_second_kind_greets_five_times() -> None:
    run = QuantasRounds(budget=10).simulate(Greetings(second=True), rounds=2, size=2)
    series = Greetings().series(run, 2)
    assert run.sent == 20
    assert [entry["contents"]["repeatIndex"] for entry in series["receivedMessages"][:5]] == [0, 1, 2, 3, 4]
    assert [entry["contents"]["sequence"] for entry in series["receivedMessages"][:5]] == [0, 1, 2, 3, 4]
    assert "finalMessageCount" not in Greetings(second=True).series(run, 2)


def test_nothing_can_go_wrong() -> None:
    run = QuantasRounds(drop=1.0).simulate(Greetings(), rounds=2, size=3)
    assert Greetings().max_faults(3) == 3
    assert Greetings().violation(run.snapshot()) == ""
    assert "receivedMessages" not in Greetings().series(run, 2)
