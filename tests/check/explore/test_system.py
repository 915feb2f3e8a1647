from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from wavetank.check.explore import explore
from wavetank.check.explore.environment import Environment, Symmetry
from wavetank.check.explore.parts import ACT, DROP, DUPLICATE, Action, Kind
from wavetank.check.explore.system import System
from wavetank.errors import BadValueError
from wavetank.protocols.exploration.two_phase_commit import Prepared, TransactionManager, TwoPhaseCommit
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology
from wavetank.sim.node import Message, Node, Snapshot
from wavetank.sim.simulation import LIVES, Request


class Note(Message, frozen=True):
    """A number."""

    number: int


class Clerk(Node):
    """Saves, decides, replies and draws on request."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def start(self) -> None:
        self.heard.append(self.context.load("kept", 0))

    def request(self, number: int, command: Any) -> None:
        if command == "keep":
            self.context.save("kept", 7)
        elif command == "draw":
            self.heard.append(self.context.rng.below(10))
        elif command == "decide":
            self.context.decide(len(self.heard))
        elif command == "reply":
            self.context.reply(0, self.context.id)
        elif command == "send":
            self.context.broadcast(Note(1))
            self.context.broadcast(Note(2))

    def receive(self, sender: int, message: Any) -> None:
        self.heard.append(message.number)
        self.context.decide(len(self.heard))


@dataclass(frozen=True, kw_only=True)
class Office:
    """Clerks."""

    messages: ClassVar[tuple[type[Message], ...]] = (Note,)

    def node(self, index: int, size: int) -> Node:
        return Clerk()

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


def office(*commands: str, size: int = 2, **environment: Any) -> System:
    requests = [Request(at=number, node=0, command=command) for number, command in enumerate(commands)]
    return System(Office(), size, requests=requests, environment=Environment(**environment))


def walked(system: System, *kinds: str) -> tuple[int, ...]:
    row = system.initial
    for kind in kinds:
        step = next(step for step in system.actions(row) if system.action(step).kind == kind)
        row = system.after(row, step)
    return row


def test_a_node_that_recovers_is_new_and_has_what_it_saved() -> None:
    system = office("keep", crashes=1, recoveries=1)
    row = walked(system, "request", "crash")
    assert [system.action(step).kind for step in system.actions(row)] == ["recover"]
    row = walked(system, "request", "crash", "recover")
    assert system.snapshot(row).nodes[0].heard == [7]  # type: ignore[attr-defined]
    assert system.actions(row) == []


def test_a_handler_runs_once_for_each_local_state_and_event() -> None:
    system = office("keep", "reply")
    first = walked(system, "request", "request")
    calls = system.handler_calls
    assert walked(system, "request", "request") == first
    assert system.handler_calls == calls


def test_draws_are_part_of_a_state_unless_they_are_fresh() -> None:
    counted, fresh = office("draw", "draw"), office("draw", "draw", draws="fresh")
    drawn = [system.snapshot(walked(system, "request", "request")).nodes[0].heard for system in (counted, fresh)]  # type: ignore[attr-defined]
    assert drawn[1][1] == drawn[1][2]
    assert counted.locals[walked(counted, "request", "request")[0]].draws == 2
    assert fresh.locals[walked(fresh, "request", "request")[0]].draws == 0


def test_the_first_answer_to_a_request_stays() -> None:
    requests = [Request(at=0, node=node, command="reply") for node in (0, 1)]
    system = System(Office(), 2, requests=requests)
    results = set()
    for order in ((0, 1), (1, 0)):
        row = system.initial
        for node in order:
            step = next(step for step in system.actions(row) if system.action(step).node == node)
            row = system.after(row, step)
        results.add((order[0], system.snapshot(row).replies[0]))
    assert results == {(0, 0), (1, 1)}


def test_deciding_twice_differently_breaks_a_node() -> None:
    system = office("decide", "draw", "decide")
    row = walked(system, "request", "request", "request")
    assert system.broken(row) == "node 0 decided 1, then 2 in instance 0"
    assert system.snapshot(row).decisions == {(0, 0): 1}


def test_messages_of_a_link_keep_their_order_only_with_fifo() -> None:
    for channels, firsts in (("fifo", [1]), ("any-order", [1, 2]), ("set", [1, 2])):
        system = office("send", channels=channels)
        row = walked(system, "request")
        found = [system.action(step) for step in system.actions(row)]
        assert [action.what.number for action in found if action.kind == "deliver"] == firsts
        after = walked(system, "request", "deliver")
        assert len(system.network_of(after)) == (2 if channels == "set" else 1)


def test_losses_and_doubles_are_counted_down() -> None:
    system = office("send", drops=1, duplicates=1)
    row = walked(system, "request", "drop")
    assert len(system.network_of(row)) == 1
    assert {how for how, _ in system.actions(row)} == {ACT, DUPLICATE}
    row = walked(system, "request", "duplicate")
    assert len(system.network_of(row)) == 3
    assert {how for how, _ in system.actions(row)} == {ACT, DROP}


def test_what_arrives_at_a_node_that_is_down_is_lost() -> None:
    system = office("send", crashes=1)
    row = walked(system, "request")
    step = system.step(Action("crash", 1))
    assert step in system.actions(row)
    row = system.after(row, step)  # type: ignore[arg-type]
    before = row[1]
    for _ in range(2):
        row = system.after(row, next(each for each in system.actions(row) if system.action(each).kind == "deliver"))
    assert (row[1], system.network_of(row)) == (before, [])


def test_an_action_and_its_numbers_are_the_same_thing() -> None:
    system = office("send", drops=1, duplicates=1)
    row = walked(system, "request")
    for step in system.actions(row):
        assert system.step(system.action(step)) == step
    assert system.step(Action("deliver", 1, 0, Note(9))) is None
    assert str(Action("deliver", 1, 0, Note(2))) == "deliver 0 -> 1: Note(number=2)"
    assert str(Action("crash", 1)) == "crash at 1"


def test_only_what_must_happen_is_obliged() -> None:
    system = office("send", crashes=1, drops=1)
    row = walked(system, "request")
    kinds = {system.action(step).kind: system.obliged(step) for step in system.actions(row)}
    assert kinds == {"deliver": True, "drop": False, "crash": False}
    assert system.events[0].kind == Kind.REQUEST


@pytest.mark.parametrize(
    ("keywords", "where"),
    [({"size": 0}, "size"), ({"size": 3, "topology": Topology.complete(4)}, None)],
)
def test_an_instance_that_makes_no_sense_is_refused(keywords: dict[str, Any], where: str | None) -> None:
    with pytest.raises(BadValueError) as caught:
        System(Office(), **keywords)
    assert caught.value.where == where


def test_a_message_to_no_neighbour_breaks_its_sender() -> None:
    system = System(TwoPhaseCommit(), 3, topology=Topology.from_edges([(0, 1), (0, 2), (1, 0)], size=3))
    step = system.step(Action("timer", 2, -1, "prepare"))
    row = system.after(system.initial, step)  # type: ignore[arg-type]
    assert "node 2 has no link to node 0" in system.broken(row).lower()


@dataclass(frozen=True, kw_only=True)
class _Careless(TwoPhaseCommit):
    """Forgets to say that one field is indexed by node."""

    symmetry: ClassVar[Symmetry] = Symmetry(ids={}, fixed=(0,))


@dataclass(frozen=True, kw_only=True)
class _Blind(TwoPhaseCommit):
    """Takes the manager for one of the others."""

    symmetry: ClassVar[Symmetry] = Symmetry(ids={TransactionManager: {"prepared": "index"}})


def test_a_wrong_declaration_of_symmetry_shows() -> None:
    system = System(_Careless(), 3, symmetry=True)
    row = system.after(system.initial, system.step(Action("timer", 1, -1, "prepare")))  # type: ignore[arg-type]
    _, event = system.step(Action("deliver", 0, 1, Prepared()))  # type: ignore[misc]
    assert "react differently" in system.asymmetry(row[0], event)
    with pytest.raises(BadValueError):
        System(_Blind(), 3, symmetry=True)


def test_symmetry_must_be_declared_and_small_and_complete() -> None:
    with pytest.raises(BadValueError) as caught:
        System(Office(), 3, symmetry=True)
    assert "Symmetry(ids=" in (caught.value.hint or "")
    with pytest.raises(BadValueError):
        System(TwoPhaseCommit(), 9, symmetry=True)
    with pytest.raises(BadValueError):
        System(TwoPhaseCommit(), 3, symmetry=True, topology=Topology.from_edges([(0, 1), (1, 2)], size=3))


def test_a_renaming_of_a_renaming_is_a_renaming() -> None:
    system = System(TwoPhaseCommit(), 4, symmetry=True)
    row = system.initial
    for _ in range(4):
        images = {system.image(row, place) for place in range(len(system.permutations))}
        for image in images:
            assert {system.image(image, place) for place in range(len(system.permutations))} == images
        row = system.after(row, system.actions(row)[-1])


class Hello(Message, frozen=True):
    """Here I am."""


class FirstCome(Node):
    """Decides, in instance 0, whom it heard first."""

    def __init__(self) -> None:
        self.done = False

    def start(self) -> None:
        self.context.broadcast(Hello())

    def receive(self, sender: int, message: Any) -> None:
        if not self.done:
            self.done = True
            self.context.decide(sender)


class DecidesAnId:
    messages: ClassVar[tuple[type[Message], ...]] = (Hello,)
    symmetry: ClassVar[Symmetry] = Symmetry(ids={}, decisions="ids")

    def node(self, index: int, size: int) -> Node:
        return FirstCome()

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        wrong = [instance for _, instance in snapshot.decisions if instance != 0]
        return f"instances {wrong}" if wrong else ""


def test_symmetry_renames_what_was_decided_and_not_in_which_instance() -> None:
    plain, symmetric = (explore(DecidesAnId(), 3, symmetry=symmetry) for symmetry in (False, True))
    assert plain.outcome == symmetric.outcome == "holds"
    # Orbits counted by hand: the images of every state under all renamings, each state once.
    system = System(DecidesAnId(), 3, symmetry=True)
    rows, todo = {system.initial}, [system.initial]
    while todo:
        row = todo.pop()
        for action in system.actions(row):
            after = system.after(row, action)
            if after not in rows:
                rows.add(after)
                todo.append(after)
    orbits = {min(system.image(row, place) for place in range(len(system.permutations))) for row in rows}
    assert plain.states == len(rows)
    assert symmetric.states == len(orbits) < plain.states


class Unlisted(DecidesAnId):
    messages: ClassVar[tuple[type[Message], ...]] = ()


def test_a_message_whose_kind_is_not_listed_is_refused_in_every_life() -> None:
    with pytest.raises(BadValueError, match="lists") as caught:
        explore(Unlisted(), 2)
    assert "Hello" in str(caught.value)
    for life in LIVES:
        with pytest.raises(BadValueError, match="lists"):
            simulate(Unlisted(), size=2, until=5, life=life)
    with pytest.raises(BadValueError, match="lists"):
        QuantasRounds().simulate(Unlisted(), rounds=5, size=2)
