from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from wavetank.check.explore import (
    AnyOf,
    Environment,
    SearchBudget,
    Symmetry,
    explore,
    explorer,
    replay,
    violation_of,
)
from wavetank.errors import BadValueError
from wavetank.protocols.consensus.raft import Raft
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit
from wavetank.sim.faults import Crash, Equivocation
from wavetank.sim.node import Message, Node, Snapshot, disagreement
from wavetank.sim.simulation import Request

PERSISTENT = Environment(channels="set")


class Value(Message, frozen=True):
    """What node 0 says."""

    value: int


class Echo(Message, frozen=True):
    """What a node heard from node 0."""

    value: int


class Echoing(Node):
    """Decides a value that a quorum echoed."""

    def __init__(self, quorum: int) -> None:
        self.quorum = quorum
        self.echoed = False
        self.heard: dict[int, int] = {}

    def start(self) -> None:
        if self.context.id == 0:
            self.context.broadcast(Value(1))
            self.receive(0, Value(1))

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Value):
            if sender == 0 and not self.echoed:
                self.echoed = True
                self.context.broadcast(Echo(message.value))
                self.receive(self.context.id, Echo(message.value))
            return
        self.heard.setdefault(sender, message.value)
        votes = list(self.heard.values())
        for value in sorted({*votes}):
            if votes.count(value) >= self.quorum:
                self.context.decide(value)
                return


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Consistent broadcast: no two correct nodes decide differently, as long as quorums are large enough."""

    quorum: int = 3
    messages: ClassVar[tuple[type[Message], ...]] = (Value, Echo)
    symmetry: ClassVar[Symmetry] = Symmetry(ids={Echoing: {"heard": "keys"}}, fixed=(0,))

    def node(self, index: int, size: int) -> Node:
        return Echoing(self.quorum)

    def max_faults(self, size: int) -> int:
        return (size - 1) // 3

    def violation(self, snapshot: Snapshot) -> str:
        return disagreement(snapshot)


class Ask(Message, frozen=True):
    """A request on its way to the primary."""

    number: int


class Done(Message, frozen=True):
    """The primary did it."""

    number: int


class Replica(Node):
    """Passes requests to the primary of its view."""

    def __init__(self, changes_view: bool) -> None:
        self.changes_view = changes_view
        self.view = 0
        self.waiting: list[int] = []

    def request(self, number: int, command: Any) -> None:
        self.waiting.append(number)
        self._ask()

    def _ask(self) -> None:
        for number in self.waiting:
            if self.view == self.context.id:
                self.context.reply(number, "done")
            else:
                self.context.send(self.view, Ask(number))
        if self.view == self.context.id:
            self.waiting.clear()
        else:
            self.context.set_timer("slow", 10)

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Ask):
            self.context.send(sender, Done(message.number))
        elif message.number in self.waiting:
            self.waiting.remove(message.number)
            self.context.cancel_timer("slow")
            self.context.reply(message.number, "done")

    def timer(self, name: str) -> None:
        if self.changes_view:
            self.view = (self.view + 1) % self.context.size
        self._ask()


@dataclass(frozen=True, kw_only=True)
class Primary:
    """A primary serves; when it is silent, the view may change."""

    changes_view: bool = True
    messages: ClassVar[tuple[type[Message], ...]] = (Ask, Done)

    def node(self, index: int, size: int) -> Node:
        return Replica(self.changes_view)

    def max_faults(self, size: int) -> int:
        return 1

    def violation(self, snapshot: Snapshot) -> str:
        return ""


class Add(Message, frozen=True):
    """Add one."""

    number: int


class Added(Message, frozen=True):
    """One was added."""

    number: int


class Account(Node):
    """Node 0 counts; the others ask it to, again when they hear nothing."""

    def __init__(self, idempotent: bool) -> None:
        self.idempotent = idempotent
        self.total = 0
        self.seen: set[int] = set()
        self.asked: list[int] = []

    def request(self, number: int, command: Any) -> None:
        self.asked.append(number)
        self.timer("again")

    def timer(self, name: str) -> None:
        for number in self.asked:
            self.context.send(0, Add(number))
        self.context.set_timer("again", 5)

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Add):
            if not (self.idempotent and message.number in self.seen):
                self.total += 1
            self.seen.add(message.number)
            self.context.send(sender, Added(message.number))
        elif message.number in self.asked:
            self.asked.remove(message.number)
            self.context.cancel_timer("again")
            self.context.reply(message.number, None)


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A counter that is incremented once a request, if retries are recognised."""

    idempotent: bool = True
    messages: ClassVar[tuple[type[Message], ...]] = (Add, Added)

    def node(self, index: int, size: int) -> Node:
        return Account(self.idempotent)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        total = snapshot.nodes[0].total  # type: ignore[attr-defined]
        return f"{total} additions for 1 request" if total > 1 else ""


def answered(snapshot: Snapshot) -> bool:
    return len(snapshot.replies) == 1


ASK_NODE_1: Sequence[Request] = (Request(at=0, node=1, command="go"),)
# The primary may crash at any moment, and stays down.
PRIMARY_CRASHES = (Crash(members=(0,), at=1.0),)


@pytest.mark.parametrize("order", ["breadth-first", "depth-first", "random"])
def test_a_quorum_of_f_plus_1_lets_correct_nodes_disagree(order: str) -> None:
    faults = (Equivocation(members=(0,)),)
    found = explore(Broadcast(quorum=2), 4, faults=faults, order=order)
    assert found.outcome == "violated"
    assert "decided" in found.violation
    assert found.counterexample is not None
    assert violation_of(replay(found, found.counterexample.actions)) == found.violation


def test_a_quorum_of_2f_plus_1_does_not() -> None:
    found = explore(Broadcast(), 4, faults=(Equivocation(members=(0,)),), budget=SearchBudget(states=2_000_000))
    assert (found.outcome, found.complete) == ("holds", True)


def test_two_orders_and_exact_states_agree_on_counts_and_verdicts() -> None:
    counts = set()
    for keywords in ({}, {"order": "depth-first"}, {"exact": True}, {"order": "depth-first", "exact": True}):
        found = explore(Broadcast(quorum=2), 3, environment=Environment(drops=1), **keywords)  # type: ignore[arg-type]
        assert found.complete
        counts.add((found.outcome, found.states, found.transitions, found.terminal_states))
    assert len(counts) == 1


def test_symmetry_finds_the_same_verdicts_with_fewer_states() -> None:
    plain, symmetric = (explore(Broadcast(quorum=2), 4, symmetry=symmetry) for symmetry in (False, True))
    assert plain.outcome == symmetric.outcome == "holds"
    assert plain.depth == symmetric.depth
    # At most as many renamings as three nodes have.
    assert plain.states / 6 <= symmetric.states < plain.states / 3


def test_a_byzantine_node_that_may_say_anything_splits_small_quorums_only() -> None:
    menu = (Value(1), Value(2), Echo(1), Echo(2))
    liar = (AnyOf(members=(0,), menu=menu, sends=-1),)
    small = explore(Broadcast(quorum=2), 4, faults=liar, environment=PERSISTENT)
    assert small.outcome == "violated"
    assert "decided" in small.violation
    large = explore(Broadcast(), 4, faults=liar, environment=PERSISTENT, budget=SearchBudget(states=300_000))
    assert large.outcome != "violated"
    with pytest.raises(BadValueError):
        explore(Broadcast(), 4, faults=liar, symmetry=True)


def test_without_a_view_change_a_request_is_never_answered_after_the_primary_crashed() -> None:
    found = explore(
        Primary(changes_view=False),
        3,
        requests=ASK_NODE_1,
        faults=PRIMARY_CRASHES,
        environment=Environment(timers="when-quiet"),
        eventually={"answered": answered},
    )
    assert found.outcome == "violated"
    assert found.violation.startswith("never answered")
    example = found.counterexample
    assert example is not None
    # It asks a node that is down, again and again.
    assert example.cycle > 0
    before = len(example.path.steps) - example.cycle
    assert example.path.rows[before] == example.path.rows[-1]
    assert not any(answered(example.path.snapshot(at)) for at in range(len(example.path.rows)))


def test_with_a_view_change_it_is_always_answered() -> None:
    found = explore(
        Primary(),
        3,
        requests=ASK_NODE_1,
        faults=PRIMARY_CRASHES,
        environment=Environment(timers="when-quiet"),
        eventually={"answered": answered},
    )
    assert (found.outcome, found.complete) == ("holds", True)


def test_a_lost_request_without_a_retry_ends_unanswered() -> None:
    found = explore(
        Primary(changes_view=False),
        3,
        requests=ASK_NODE_1,
        environment=Environment(drops=1, timeouts=0),
        eventually={"answered": answered},
    )
    assert found.outcome == "violated"
    assert found.counterexample is not None
    assert [action.kind for action in found.counterexample.actions] == ["request", "drop"]
    assert found.counterexample.cycle == 0


def test_a_retry_that_is_not_recognised_is_applied_twice() -> None:
    environment = Environment(timeouts=1)
    found = explore(Counter(idempotent=False), 2, requests=ASK_NODE_1, environment=environment)
    assert found.violation == "2 additions for 1 request"
    assert found.counterexample is not None
    assert [action.kind for action in found.counterexample.actions] == ["request", "timer", "deliver", "deliver"]
    fine = explore(Counter(), 2, requests=ASK_NODE_1, environment=environment, eventually={"answered": answered})
    assert fine.outcome == "holds"


def test_what_can_happen_is_shown_and_what_cannot_is_said() -> None:
    def committed(snapshot: Snapshot) -> bool:
        return all(node.state == "committed" for node in snapshot.nodes)  # type: ignore[attr-defined]

    found = explore(TwoPhaseCommit(), 4, environment=PERSISTENT, sometimes={"committed": committed})
    shown = found.judgements[1]
    assert shown.outcome == "holds"
    assert shown.example is not None
    assert committed(shown.example.path.snapshot())
    nobody = explore(TwoPhaseCommit(), 4, environment=PERSISTENT, sometimes={"bored": lambda snapshot: False})
    assert nobody.outcome == "violated"
    assert nobody.counterexample is None


def test_a_predicate_of_the_user_is_an_invariant() -> None:
    def nobody_aborts(snapshot: Snapshot) -> bool:
        return all(node.state != "aborted" for node in snapshot.nodes)  # type: ignore[attr-defined]

    found = explore(TwoPhaseCommit(), 3, always={"nobody aborts": nobody_aborts})
    assert found.violation == "nobody aborts: does not hold"
    assert found.counterexample is not None
    assert len(found.counterexample.actions) == 1


@dataclass(frozen=True)
class _Failing(Counter):
    def node(self, index: int, size: int) -> Node:
        return _Stumbling(True)


class _Stumbling(Account):
    def timer(self, name: str) -> None:
        super().timer(name)
        raise ZeroDivisionError("on purpose") if name == "again" and self.total else ValueError("too early")


def test_a_handler_that_raises_is_a_finding_with_the_way_to_it() -> None:
    found = explore(_Failing(), 2, requests=ASK_NODE_1)
    assert found.violation == "node 1 raised ValueError: too early"
    assert found.counterexample is not None
    assert [action.kind for action in found.counterexample.actions] == ["request"]


@pytest.mark.parametrize(
    "budget", [SearchBudget(states=3000), SearchBudget(seconds=1e-9), SearchBudget(depth=5)], ids=repr
)
def test_a_budget_that_runs_out_leaves_it_undecided_and_says_what_was_covered(budget: SearchBudget) -> None:
    never = {"done": lambda snapshot: False}
    found = explore(TwoPhaseCommit(), 6, environment=PERSISTENT, budget=budget, eventually=never)
    assert found.outcome == "undecided"
    assert not found.complete
    assert found.stopped_by
    assert 1 <= found.states < 8832
    assert f"{found.states:,}" in found.judgements[0].says


def test_memory_that_is_spent_ends_a_search_before_it_is_taken() -> None:
    found = explore(TwoPhaseCommit(), 8, environment=PERSISTENT, budget=SearchBudget(memory_bytes=2**20))
    assert found.outcome == "undecided"
    assert "MiB" in found.stopped_by
    assert found.states > 1000


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = explorer.Search._check

    def check(self: Any, states: int, ends: float) -> None:
        if self.states > 2000:
            raise KeyboardInterrupt
        real(self, states, ends)

    monkeypatch.setattr(explorer.Search, "_check", check)
    found = explore(TwoPhaseCommit(), 6, environment=PERSISTENT)
    assert (found.outcome, found.stopped_by) == ("undecided", "it was interrupted")
    assert found.states > 2000


def test_random_walks_find_but_never_prove() -> None:
    found = explore(TwoPhaseCommit(), 3, order="random", budget=SearchBudget(states=2000))
    assert found.outcome == "undecided"
    again = explore(TwoPhaseCommit(), 3, order="random", budget=SearchBudget(states=2000))
    assert (found.states, found.transitions) == (again.states, again.transitions)
    other = explore(TwoPhaseCommit(), 3, order="random", budget=SearchBudget(states=2000), seed=1)
    assert other.transitions != found.transitions


def test_raft_keeps_its_promises_as_far_as_it_is_looked_at() -> None:
    environment = Environment(timeouts=3, draws="fresh")
    request = (Request(at=0, node=0, command=("write", "x", 1)),)
    found = explore(Raft(), 3, requests=request, environment=environment, budget=SearchBudget(states=150_000))
    assert found.outcome in ("holds", "undecided")
    assert found.states > 10_000


def test_terminal_states_are_listed_with_the_way_there() -> None:
    found = explore(TwoPhaseCommit(), 3, terminal=2)
    assert found.terminal_states >= 2
    assert len(found.terminal) == 2
    for path in found.terminal:
        assert found.system.actions(path.rows[-1]) == []


@pytest.mark.parametrize(
    "keywords",
    [
        {"order": "sideways"},
        {"symmetry": True, "exact": True},
        {"symmetry": True, "eventually": {"x": answered}},
        {"symmetry": True, "order": "random"},
        {"order": "depth-first", "budget": SearchBudget(depth=3)},
        {"always": {"x": answered}, "sometimes": {"x": answered}},
        {"sometimes": {str(number): answered for number in range(7)}},
        {"requests": (Request(at=0, node=7, command=1),)},
        {"faults": (Equivocation(members=(9,)),)},
    ],
    ids=lambda keywords: ",".join(keywords),
)
def test_what_makes_no_sense_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        explore(TwoPhaseCommit(), 4, **keywords)


@pytest.mark.parametrize("name", ["states", "seconds", "memory_bytes", "depth"])
def test_a_budget_is_more_than_nothing(name: str) -> None:
    with pytest.raises(BadValueError):
        SearchBudget(**{name: 0})


def test_a_predicate_that_fails_is_named() -> None:
    with pytest.raises(BadValueError) as caught:
        explore(TwoPhaseCommit(), 3, sometimes={"odd": lambda snapshot: snapshot.nodes[0].nothing})  # type: ignore[attr-defined]
    assert "odd" in str(caught.value)


def test_a_run_that_only_the_bound_on_timeouts_ends_is_no_violation() -> None:
    # One request and one retry are lost; a second retry would be answered.
    keywords: dict[str, Any] = {"requests": ASK_NODE_1, "eventually": {"answered": answered}}
    for order in ("breadth-first", "depth-first", "random"):
        budget = SearchBudget(states=3000)
        few = explore(
            Counter(), 2, environment=Environment(drops=2, timeouts=1), order=order, budget=budget, **keywords
        )
        judged = few.judgements[-1]
        assert (judged.name, judged.outcome, judged.example) == ("answered", "undecided", None), order
        if order != "random":
            assert few.complete
            assert "all 1 time-outs are spent" in judged.says
    assert explore(Counter(), 2, environment=Environment(drops=2, timeouts=3), **keywords).outcome == "holds"


class Rally(Node):
    """Node 0 plays with node 1 for ever, and answers when its timer ran out twice."""

    def __init__(self) -> None:
        self.late = 0

    def request(self, number: int, command: Any) -> None:
        self.context.set_timer("late", 5)
        self.context.send(1, Add(number))

    def receive(self, sender: int, message: Any) -> None:
        self.context.send(sender, message)

    def timer(self, name: str) -> None:
        self.late += 1
        if self.late < 2:
            self.context.set_timer("late", 5)
        else:
            self.context.reply(0, None)


@dataclass(frozen=True, kw_only=True)
class Rallies(Counter):
    def node(self, index: int, size: int) -> Node:
        return Rally()

    def violation(self, snapshot: Snapshot) -> str:
        return ""


@pytest.mark.parametrize(("timeouts", "outcome"), [(0, "violated"), (1, "undecided"), (2, "holds")])
def test_a_cycle_in_which_only_the_bound_holds_a_timer_back_is_no_violation(timeouts: int, outcome: str) -> None:
    found = explore(
        Rallies(),
        2,
        requests=[Request(at=0, node=0, command="go")],
        environment=Environment(timeouts=timeouts),
        eventually={"answered": answered},
    )
    assert found.complete
    assert found.judgements[-1].outcome == outcome
