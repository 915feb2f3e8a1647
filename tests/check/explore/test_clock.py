"""Time in the explorer: what depends on it is undecided without a clock, and explored with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from wavetank.check.explore import Clock, Environment, SearchBudget, explore, replay, violation_of
from wavetank.errors import BadValueError
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.node import Message, Node, Snapshot
from wavetank.sim.simulation import Request


class Ask(Message, frozen=True):
    """May I have the lock?"""


class Grant(Message, frozen=True):
    """Yes, for a lease."""


class Beat(Message, frozen=True):
    """I am alive."""


class _Plain:
    messages: ClassVar[tuple[type[Message], ...]] = (Ask, Grant, Beat)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


class Ageing(Node):
    """Looks at the clock each round and breaks after time 5."""

    def __init__(self) -> None:
        self.broken = False

    def start(self) -> None:
        self.context.set_timer("look", 1)

    def timer(self, name: str) -> None:
        if self.context.now > 5:
            self.broken = True
        else:
            self.context.set_timer("look", 1)


@dataclass(frozen=True, kw_only=True)
class BreaksAfterFive(_Plain):
    def node(self, index: int, size: int) -> Node:
        return Ageing()

    def violation(self, snapshot: Snapshot) -> str:
        return "a node broke" if any(node.broken for node in snapshot.nodes) else ""  # type: ignore[attr-defined]


class Lease(Node):
    """Node 0 grants a lock for some rounds; the others hold it as long as they think it is theirs."""

    def __init__(self, rule: LeaseLock) -> None:
        self.rule = rule
        self.free = True
        self.queue: list[int] = []
        self.asked = False
        self.holding = False
        self.since = 0.0

    def request(self, number: int, command: Any) -> None:
        if self.asked:
            return
        self.asked = True
        if self.rule.reads_clock:
            self.since = self.context.now
        elif self.rule.from_asking:
            self.context.set_timer("lease", self.rule.lease)
        self.context.send(0, Ask())

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Ask):
            self.queue.append(sender)
            self._grant()
        elif self.rule.reads_clock:
            since = self.since if self.rule.from_asking else self.context.now
            left = since + self.rule.lease - self.context.now
            if left > 0:
                self.holding = True
                self.context.set_timer("lease", left)
        elif not self.rule.from_asking:
            self.holding = True
            self.context.set_timer("lease", self.rule.lease)
        elif self.asked:
            self.holding = True

    def _grant(self) -> None:
        if self.free and self.queue:
            self.free = False
            self.context.send(self.queue.pop(0), Grant())
            self.context.set_timer("free", self.rule.granted)

    def timer(self, name: str) -> None:
        if name == "lease":
            self.holding = self.asked = False
        else:
            self.free = True
            self._grant()


@dataclass(frozen=True, kw_only=True)
class LeaseLock(_Plain):
    """No two nodes hold the lock; right when the lease counts from the asking."""

    from_asking: bool = True
    reads_clock: bool = False
    lease: int = 5
    granted: int = 5

    def node(self, index: int, size: int) -> Node:
        return Lease(self)

    def violation(self, snapshot: Snapshot) -> str:
        holding = [index for index, node in enumerate(snapshot.nodes) if node.holding]  # type: ignore[attr-defined]
        return f"nodes {holding} hold the lock" if len(holding) > 1 else ""


TWO_ASK = (Request(at=0, node=1, command="lock"), Request(at=0, node=2, command="lock"))


class Candidate(Node):
    """Leads when it hears nothing for longer than the others before it need."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.leads = False
        self.follows = -1

    def start(self) -> None:
        self.context.set_timer("patience", self.patience)

    def receive(self, sender: int, message: Any) -> None:
        self.context.cancel_timer("patience")
        self.follows = sender

    def timer(self, name: str) -> None:
        self.leads = True
        self.follows = self.context.id
        self.context.broadcast(Beat())


@dataclass(frozen=True, kw_only=True)
class Election(_Plain):
    """The time-outs of nodes are ``apart`` rounds apart."""

    apart: int = 3

    def node(self, index: int, size: int) -> Node:
        return Candidate(2 + index * self.apart)

    def violation(self, snapshot: Snapshot) -> str:
        leaders = [index for index, node in enumerate(snapshot.nodes) if _leads(node)]
        return f"nodes {leaders} lead" if len(leaders) > 1 else ""


def _leads(node: Any) -> bool:
    """Return whether a node leads, also one with a fault around it."""
    return bool(getattr(node, "inner", node).leads)


def _led(snapshot: Snapshot) -> bool:
    return any(_leads(node) for node in snapshot.nodes)


def _second_leads(snapshot: Snapshot) -> bool:
    return _leads(snapshot.nodes[1])


@dataclass(frozen=True, kw_only=True)
class Careless(Election):
    """Asks for some leader only."""

    def violation(self, snapshot: Snapshot) -> str:
        return ""


class Timers(Node):
    """Sets two timers and keeps the order in which they run out."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def start(self) -> None:
        self.context.set_timer("nine", 9)
        self.context.set_timer("five", 5)

    def timer(self, name: str) -> None:
        self.order.append(name)


@dataclass(frozen=True, kw_only=True)
class FiveBeforeNine(_Plain):
    def node(self, index: int, size: int) -> Node:
        return Timers()

    def violation(self, snapshot: Snapshot) -> str:
        order = snapshot.nodes[0].order  # type: ignore[attr-defined]
        return "nine before five" if order[:1] == ["nine"] else ""


# Without a clock


def test_a_node_that_breaks_after_time_5_is_undecided_without_a_clock() -> None:
    found = explore(BreaksAfterFive(), 1)
    assert found.outcome == "undecided"
    assert "depends on time" in found.judgements[0].says
    assert "node 0" in found.judgements[0].says
    broken = simulate(BreaksAfterFive(), size=1, until=10)
    assert BreaksAfterFive().violation(broken.snapshot()) == "a node broke"


@pytest.mark.parametrize("order", ["breadth-first", "depth-first", "random"])
def test_a_right_lease_lock_is_not_called_violated_without_a_clock(order: str) -> None:
    found = explore(LeaseLock(reads_clock=True), 3, requests=TWO_ASK, order=order)
    assert found.outcome == "undecided"
    says = found.judgements[0].says
    assert "depends on time" in says
    assert "hold the lock" in says
    # What was found stays to be looked at.
    assert found.judgements[0].example is not None


class Looker(Node):
    """Node 0 looks at the clock when asked; node 1 fails when asked."""

    def request(self, number: int, command: Any) -> None:
        if self.context.id == 1:
            raise ValueError("on purpose")
        assert self.context.now >= 0


@dataclass(frozen=True, kw_only=True)
class Looks(_Plain):
    def node(self, index: int, size: int) -> Node:
        return Looker()


def test_a_violation_on_a_way_that_never_reads_the_time_stands() -> None:
    found = explore(Looks(), 2, requests=[Request(at=0, node=0, command=1), Request(at=0, node=1, command=1)])
    assert found.outcome == "violated"
    assert found.counterexample is not None
    assert [action.node for action in found.counterexample.actions] == [1]
    alone = explore(Looks(), 2, requests=[Request(at=0, node=0, command=1)])
    assert alone.outcome == "undecided"


def test_what_a_predicate_reads_of_the_time_is_undecided_and_with_a_clock_refused() -> None:
    def early(snapshot: Snapshot) -> bool:
        return snapshot.nodes[0].context.now < 3

    found = explore(Election(), 2, always={"early": early})
    assert found.outcome == "undecided"
    assert "a predicate reads context.now" in found.judgements[0].says
    with pytest.raises(BadValueError, match="predicate"):
        explore(Election(), 2, always={"early": early}, clock=Clock())


def test_what_reads_no_time_is_decided_as_ever() -> None:
    assert explore(FiveBeforeNine(), 1).outcome == "violated"
    assert explore(LeaseLock(), 2, requests=TWO_ASK[:1]).outcome == "holds"


# With one


@pytest.mark.parametrize("order", ["breadth-first", "depth-first", "random"])
def test_a_node_that_breaks_after_time_5_is_found_with_a_clock(order: str) -> None:
    found = explore(BreaksAfterFive(), 2, clock=Clock(), order=order)
    assert found.outcome == "violated"
    assert found.counterexample is not None
    ticks = [action.kind for action in found.counterexample.actions].count("tick")
    assert ticks == 6
    assert violation_of(replay(found, found.counterexample.actions)) == "a node broke"
    chart = found.counterexample.chart()
    assert "time 6" in chart
    assert "time 6" in found.counterexample.svg()


def test_what_lies_beyond_the_horizon_is_not_vouched_for() -> None:
    found = explore(BreaksAfterFive(), 2, clock=Clock(horizon=5))
    assert found.outcome == "undecided"
    assert found.judgements[0].says.startswith("bounded by the horizon")
    assert "all" not in found.judgements[0].says
    exact = explore(BreaksAfterFive(), 2, clock=Clock(horizon=6))
    assert exact.outcome == "violated"


@pytest.mark.parametrize("reads_clock", [False, True])
@pytest.mark.parametrize("most_delay", [1, 3])
def test_a_right_lease_lock_holds_and_one_that_counts_from_the_grant_does_not(
    reads_clock: bool, most_delay: int
) -> None:
    # Where the time is a part of the states, requests at any time would come at any of infinitely many.
    requests = "on-time" if reads_clock else "any-time"
    clock = Clock(most_delay=most_delay, requests=requests)
    right = explore(LeaseLock(reads_clock=reads_clock), 3, requests=TWO_ASK, clock=clock)
    assert (right.outcome, right.complete) == ("holds", True), right.judgements[0].says
    assert "in all" not in right.judgements[0].says
    assert "clock" in right.judgements[0].says
    wrong = LeaseLock(from_asking=False, reads_clock=reads_clock)
    late = explore(wrong, 3, requests=TWO_ASK, clock=clock)
    # With one delay for all, a grant that is counted when it comes ends as the next one comes, at the same instant.
    assert late.outcome == "violated"
    assert late.violation == "nodes [1, 2] hold the lock"


def test_the_chart_of_a_wrong_lease_is_the_shortest_one() -> None:
    found = explore(LeaseLock(from_asking=False), 3, requests=TWO_ASK, clock=Clock(most_delay=3))
    assert found.counterexample is not None
    kinds = [action.kind for action in found.counterexample.actions]
    # Two requests, two questions, two answers, one end of a lease at node 0, and the rounds between.
    assert kinds.count("deliver") == 4
    assert kinds.count("request") == 2
    assert kinds.count("timer") == 1
    assert kinds.count("tick") == 1 + 5 + 1


def test_a_lease_with_a_margin_bears_the_drift_it_was_made_for_and_no_more() -> None:
    rule = LeaseLock(lease=8, granted=12)
    assert explore(rule, 3, requests=TWO_ASK, clock=Clock(drift=0.1)).outcome == "holds"
    beyond = explore(rule, 3, requests=TWO_ASK, clock=Clock(drift=0.4))
    assert beyond.violation == "nodes [1, 2] hold the lock"


def test_drift_of_clocks_that_are_read_is_not_vouched_for() -> None:
    found = explore(LeaseLock(reads_clock=True), 3, requests=TWO_ASK, clock=Clock(drift=0.2, requests="on-time"))
    assert found.outcome == "undecided"
    assert "drift" in found.judgements[0].says


def test_an_election_with_time_outs_is_right_when_they_are_further_apart_than_a_message_takes() -> None:
    leads = {"led": _led}
    right = explore(Election(apart=3), 3, clock=Clock(most_delay=2), eventually=leads)
    assert [each.outcome for each in right.judgements] == ["holds", "holds"]
    wrong = explore(Election(apart=2), 3, clock=Clock(most_delay=2))
    assert wrong.violation == "nodes [0, 1] lead"
    # Without a clock any timer may run out first.
    assert explore(Election(apart=3), 3).outcome == "violated"
    # One that crashed does not lead, and the next one does.
    crashed = explore(Election(apart=3), 3, clock=Clock(most_delay=2), eventually=leads, faults=[Crash(members=(0,))])
    assert crashed.outcome == "holds"


def test_a_timer_of_five_runs_out_before_one_of_nine_unless_drift_is_allowed() -> None:
    found = explore(FiveBeforeNine(), 1, clock=Clock())
    assert found.outcome == "holds"
    assert found.states == 12
    assert found.terminal_states == 1
    assert explore(FiveBeforeNine(), 1, clock=Clock(drift=0.25)).outcome == "holds"
    assert explore(FiveBeforeNine(), 1, clock=Clock(drift=0.35)).outcome == "violated"


def test_a_fault_strikes_at_its_time() -> None:
    # Node 0 leads in round 2; when it is down by then, node 1 does in round 5.
    at_1 = explore(Election(), 2, clock=Clock(), faults=[Crash(members=(0,), at=1)], sometimes={"led": _second_leads})
    at_4 = explore(Election(), 2, clock=Clock(), faults=[Crash(members=(0,), at=4)], sometimes={"led": _second_leads})
    assert (at_1.outcome, at_4.outcome) == ("holds", "violated")


def test_messages_without_a_greatest_delay_may_take_for_ever_but_arrive() -> None:
    def settled(snapshot: Snapshot) -> bool:
        return all(node.follows >= 0 for node in snapshot.nodes)  # type: ignore[attr-defined]

    slow = Clock(most_delay="unlimited")
    found = explore(Careless(apart=3), 2, clock=slow, eventually={"settled": settled})
    assert (found.outcome, found.complete) == ("holds", True)
    assert explore(Election(apart=30), 2, clock=slow).violation == "nodes [0, 1] lead"


class Peeks(Node):
    """Keeps what the clock says when it is asked."""

    def __init__(self) -> None:
        self.saw = -1.0

    def request(self, number: int, command: Any) -> None:
        self.saw = self.context.now


@dataclass(frozen=True, kw_only=True)
class Peeking(_Plain):
    def node(self, index: int, size: int) -> Node:
        return Peeks()


def test_clocks_may_be_ahead_of_each_other_and_requests_on_time() -> None:
    asked = [Request(at=3, node=0, command=1), Request(at=3, node=1, command=1)]
    clock = Clock(offsets=(0, 2), requests="on-time")
    saw = {"saw": lambda snapshot: [node.saw for node in snapshot.nodes] == [3.0, 5.0]}
    found = explore(Peeking(), 2, requests=asked, clock=clock, eventually=saw)
    assert found.outcome == "holds"
    # At any time: there is no last one, so the horizon ends it.
    later = explore(Peeking(), 2, requests=asked, clock=Clock(horizon=20))
    assert later.outcome == "undecided"
    assert "after round 20" in later.judgements[0].says
    assert later.beyond_horizon > 0


@pytest.mark.parametrize(
    ("environment", "keywords"),
    [
        (Environment(channels="set"), {}),
        (Environment(timers="when-quiet"), {}),
        (Environment(timers="never"), {}),
        (Environment(timeouts=3), {}),
        (Environment(draws="fresh"), {}),
        (Environment(), {"symmetry": True}),
        (Environment(), {"clock": Clock(offsets=(1, 2, 3))}),
    ],
    ids=repr,
)
def test_what_contradicts_a_clock_is_refused(environment: Environment, keywords: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        explore(Election(), 2, environment=environment, **{"clock": Clock(), **keywords})


@pytest.mark.parametrize(
    "values",
    [
        {"least_delay": -1},
        {"least_delay": 2},
        {"most_delay": 1.5},
        {"drift": 1.0},
        {"horizon": 0},
        {"requests": "sometimes"},
        {"offsets": (0.5,)},
        {"most_delay": "never"},
    ],
    ids=repr,
)
def test_a_clock_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Clock(**values)


def test_a_budget_still_ends_a_search_with_a_clock() -> None:
    found = explore(LeaseLock(), 3, requests=TWO_ASK, clock=Clock(most_delay=3), budget=SearchBudget(states=20))
    assert found.outcome == "undecided"
    assert not found.complete
