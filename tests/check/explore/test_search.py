from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from wavetank.check.explore import explore
from wavetank.check.explore.environment import Environment, Symmetry
from wavetank.check.explore.search import Column, OutOfBudget, Search
from wavetank.check.explore.system import System
from wavetank.check.explore.views import Views
from wavetank.errors import BadValueError
from wavetank.protocols.exploration.two_phase_commit import TransactionManager, TwoPhaseCommit
from wavetank.sim.node import Message, Node, Snapshot


class Letter(Message, frozen=True):
    """From one of two."""

    kind: int


class Passing(Node):
    """Nodes 2 and 3 write to node 1, which passes both letters on at once, in the order in which they came."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.read: list[int] = []

    def start(self) -> None:
        if self.context.id >= 2:
            self.context.send(1, Letter(self.context.id))

    def receive(self, sender: int, message: Any) -> None:
        if self.context.id == 0:
            self.read.append(message.kind)
            return
        self.held.append(message.kind)
        if len(self.held) == 2:
            for kind in self.held:
                self.context.send(0, Letter(kind))
            self.held.clear()


class PassesOn:
    messages: ClassVar[tuple[type[Message], ...]] = (Letter,)

    def node(self, index: int, size: int) -> Node:
        return Passing()

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


@pytest.mark.parametrize("order", ["breadth-first", "depth-first"])
@pytest.mark.parametrize("exact", [False, True])
def test_with_fifo_links_the_order_on_a_link_tells_states_apart(order: str, exact: bool) -> None:
    # Two states differ in nothing but which of two letters is first on the link from node 1 to node 0.
    first: dict[str, Any] = {
        f"{kind} first": lambda snapshot, kind=kind: snapshot.nodes[0].read == [kind, 5 - kind] for kind in (2, 3)
    }
    found = explore(PassesOn(), 4, environment=Environment(channels="fifo"), sometimes=first, order=order, exact=exact)
    assert [each.outcome for each in found.judgements] == ["holds", "holds", "holds"]
    # Start, one letter at node 1 (two ways); both passed on, one read, both read, in two orders each.
    assert (found.states, found.terminal_states) == (1 + 2 + 2 + 2 + 2, 2)


def search_of(algorithm: TwoPhaseCommit, size: int, *, symmetry: bool = False, **keywords: bool) -> Search:
    system = System(algorithm, size, environment=Environment(channels="set"), symmetry=symmetry)
    return Search(system, Views(system, (), algorithm.violation), **keywords)


def run(search: Search, **limits: int) -> Search:
    search.run(states=limits.get("states", 10**7), seconds=60.0, depth=limits.get("depth"), stop=lambda search: False)
    return search


@pytest.mark.parametrize("exact", [False, True])
def test_the_way_to_every_state_leads_there(exact: bool) -> None:
    search = run(search_of(TwoPhaseCommit(), 4, exact=exact))
    assert search.states == 288
    reached = set()
    for state in range(search.states):
        row = search.system.initial
        steps = search.steps_to(state)
        assert sum(end <= state for end in search.layers) == len(steps)
        for step in steps:
            assert step in search.system.actions(row)
            row = search.system.after(row, step)
        reached.add(row)
        if exact:
            assert search.row(state) == row
    assert len(reached) == 288


def test_edges_are_all_steps_and_lead_where_they_lead() -> None:
    search = run(search_of(TwoPhaseCommit(), 3, edges=True, exact=True))
    system = search.system
    rows = [search.row(state) for state in range(search.states)]
    wanted = {
        (rows.index(row), rows.index(system.after(row, step)), step[1] * 3 + step[0])
        for row in rows
        for step in system.actions(row)
    }
    assert {tuple(edge) for edge in search.edges.tolist()} == wanted
    assert len(search.edges) == len(wanted)


def test_a_budget_ends_a_search() -> None:
    with pytest.raises(OutOfBudget, match="1,000 states"):
        run(search_of(TwoPhaseCommit(), 6), states=1000)
    with pytest.raises(OutOfBudget, match="depth of 3"):
        run(search_of(TwoPhaseCommit(), 6), depth=3)


class _Wrong(TwoPhaseCommit):
    symmetry = Symmetry(ids={TransactionManager: {}}, fixed=(0,))


def test_a_wrong_declaration_of_symmetry_is_found_while_searching() -> None:
    with pytest.raises(BadValueError, match="not interchangeable"):
        run(search_of(_Wrong(), 4, symmetry=True))


def test_a_column_grows_and_keeps_what_it_holds() -> None:
    column = Column(np.int32)
    for start in range(0, 1000, 50):
        column.extend(range(start, start + 50))
    assert column.array[: column.size].tolist() == list(range(1000))


def test_memory_that_python_objects_take_ends_a_search_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search_of(TwoPhaseCommit(), 6)
    monkeypatch.setattr("wavetank.check.explore.search.resident_bytes", lambda: 2**50)
    with pytest.raises(OutOfBudget, match="MiB in use"):
        run(found)


def test_what_the_process_held_before_is_no_matter_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavetank.check.explore.search.resident_bytes", lambda: 2**50)
    assert run(search_of(TwoPhaseCommit(), 6)).states == 8832


def test_rows_of_all_states_are_kept_where_they_are_asked_for() -> None:
    search = run(search_of(TwoPhaseCommit(), 6, keeps_states=True))
    assert search.row(0) == search.system.initial
    assert len({search.row(state) for state in range(search.states)}) == 8832
