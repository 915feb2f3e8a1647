"""Clients who wait for their answers."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.histories.stores import PrimaryStore
from wavetank.sim.clients import Door
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request


class Counting:
    """Writes 0, 1, 2, ... through one node, each after the answer to the one before, with a pause."""

    def __init__(self, pause: float, most: int) -> None:
        self.pause, self.left = pause, most
        self.heard: list[tuple[float, int]] = []

    def start(self, door: Door) -> None:
        self.door = door
        self.door.later(1.0, self.ask)

    def ask(self) -> None:
        self.left -= 1
        self.number = self.door.ask(1, ("write", "x", self.left), "counting")

    def answered(self, number: int, result: Any) -> None:
        if number != self.number:
            return
        self.heard.append((self.door.now, number))
        if self.left:
            self.door.later(self.pause, self.ask)


def test_a_client_asks_again_when_it_was_answered_and_has_paused() -> None:
    clients = Counting(pause=3.0, most=4)
    run = simulate(PrimaryStore(), size=3, until=100, life="events", clients=clients)
    # To the primary and back takes two rounds.
    assert clients.heard == [(3.0, 0), (8.0, 1), (13.0, 2), (18.0, 3)]
    assert [request.at for request in run.requests] == [1.0, 6.0, 11.0, 16.0]
    assert run.history().operations[2].value == 1
    assert all(run.replies[number].at == at for at, number in clients.heard)


def test_numbers_of_clients_follow_those_of_fixed_requests() -> None:
    fixed = [Request(at=at, node=2, command=("read", "x"), client="fixed") for at in (2.0, 50.0)]
    clients = Counting(pause=3.0, most=2)
    run = simulate(PrimaryStore(), size=3, until=100, life="events", requests=fixed, clients=clients)
    assert [number for _, number in clients.heard] == [2, 3]
    assert [request.client for request in run.requests] == ["fixed", "fixed", "counting", "counting"]
    assert run.replies[1].result == 0
    stopped = simulate(
        PrimaryStore(), size=3, until=100, life="events", clients=Counting(3.0, 4),
        stop=lambda run: len(run.replies) == 2,
    )  # fmt: skip
    assert len(stopped.requests) == 2


def test_a_client_may_go_on_at_the_instant_of_its_answer() -> None:
    clients = Counting(pause=0.0, most=3)
    simulate(PrimaryStore(), size=3, until=100, life="events", clients=clients)
    assert [at for at, _ in clients.heard] == [3.0, 5.0, 7.0]


def test_equal_seeds_give_equal_runs() -> None:
    runs = [simulate(PrimaryStore(), size=3, until=60, life="events", clients=Counting(3.0, 5), log=True) for _ in "ab"]
    assert runs[0].digest() == runs[1].digest()


def test_they_are_for_events_and_ask_nodes_that_exist() -> None:
    with pytest.raises(BadValueError, match="run as events"):
        simulate(PrimaryStore(), size=3, until=9, clients=Counting(1.0, 1))

    class Lost(Counting):
        def ask(self) -> None:
            self.door.ask(3, ("read", "x"))

    with pytest.raises(BadValueError, match="goes to a node"):
        simulate(PrimaryStore(), size=3, until=9, life="events", clients=Lost(1.0, 1))
