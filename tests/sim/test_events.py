from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_protocols import Counter, Flood, Value

from wavetank.errors import BadValueError
from wavetank.sim.events import simulate
from wavetank.sim.faults import Equivocation, Omission
from wavetank.sim.network import Links, Network, Partition, Topology
from wavetank.sim.node import Context, Message, Node, Snapshot
from wavetank.sim.simulation import LIVES, Request, Scheduler, counts

LINKS = st.builds(
    Links,
    delay=st.sampled_from(["constant", "uniform", "poisson", "exponential", "pareto", "uniform-real"]),
    least_delay=st.just(1.0),
    most_delay=st.sampled_from([1.0, 4.0]),
    drop=st.sampled_from([0.0, 0.3]),
    duplicate=st.sampled_from([0.0, 0.4]),
    reorder=st.sampled_from([0.0, 0.5]),
    budget=st.sampled_from([None, 1, 3]),
    queue=st.sampled_from([None, 2]),
)


class _Script(Node):
    """Does what it is told, and notes what comes."""

    def __init__(self, at: dict[float, Any]) -> None:
        self.at = at
        self.seen: list[tuple[float, int, int]] = []
        self.rang: list[tuple[float, str]] = []

    def start(self) -> None:
        for when in self.at:
            if when == 0:
                self.at[when](self.context)
            else:
                self.context.set_timer(f"at {when}", when)

    def receive(self, sender: int, message: Value) -> None:
        self.seen.append((self.context.now, sender, message.value))

    def timer(self, name: str) -> None:
        if name.startswith("at "):
            self.at[float(name[3:])](self.context)
        else:
            self.rang.append((self.context.now, name))


@dataclass(frozen=True)
class _Scripts:
    messages: ClassVar[tuple[type[Message], ...]] = (Value,)
    scripts: Any

    def node(self, index: int, size: int) -> Node:
        return _Script(dict(self.scripts.get(index, {})))

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


def burst(*values: int) -> Any:
    return lambda context: [context.send(1, Value(value)) for value in values]


def arrivals(scripts: Any, links: Links, life: str, *, seed: int = 0, **more: Any) -> list[tuple[float, int, int]]:
    network = Network(topology=Topology.complete(2), links=links)
    run = simulate(_Scripts(scripts), network=network, until=100, life=life, seed=seed, **more)
    node = run.nodes[1]
    assert isinstance(node, _Script)
    return node.seen


@pytest.mark.parametrize("life", LIVES)
def test_a_message_arrives_one_round_later(life: str) -> None:
    assert arrivals({0: {0: burst(5), 3: burst(6)}}, Links(), life) == [(1.0, 0, 5), (4.0, 0, 6)]


@pytest.mark.parametrize("life", LIVES)
def test_messages_of_a_link_keep_their_order_when_a_slow_one_is_ahead(life: str) -> None:
    links = Links(delay="uniform", most_delay=9.0)
    for seed in range(20):
        seen = arrivals({0: {0: burst(*range(10)), 1: burst(10), 2: burst(11)}}, links, life, seed=seed)
        assert [value for _, _, value in seen] == list(range(12))
        assert seen[0][0] >= 1


def test_a_budget_spreads_a_burst_over_rounds() -> None:
    scripts = {0: {0: burst(1, 2, 3, 4, 5), 2: burst(6)}}
    seen = arrivals(scripts, Links(budget=2), "rounds")
    assert seen == [(1.0, 0, 1), (1.0, 0, 2), (2.0, 0, 3), (2.0, 0, 4), (3.0, 0, 5), (3.0, 0, 6)]


def test_what_a_full_queue_refuses_uses_up_no_budget() -> None:
    scripts = {0: {0: burst(1, 2, 3, 4), 2: burst(5)}}
    seen = arrivals(scripts, Links(budget=1, queue=2), "rounds")
    # Two are taken and delivered one a round; the fifth finds the link free again.
    assert seen == [(1.0, 0, 1), (2.0, 0, 2), (3.0, 0, 5)]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(1, 3),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_budgets_counted_lazily_are_those_counted_link_by_link(
    calls: list[tuple[int, int, bool]], budget: int, sender: int
) -> None:
    # A drop probability of nearly nothing makes the simulation count every link.
    def script(context: Context) -> None:
        for place, (at, to, everyone) in enumerate(calls):
            if at == context.now:
                if everyone or to == sender:
                    context.broadcast(Value(place))
                else:
                    context.send(to, Value(place))

    found = []
    for drop in (0.0, 1e-300):
        network = Network.complete(4, budget=budget, drop=drop)
        scripts = {sender: {float(at): script for at in range(13)}}
        run = simulate(_Scripts(scripts), network=network, until=100)
        found.append([sorted(node.seen) for node in run.nodes if isinstance(node, _Script)])
    assert found[0] == found[1]
    for place, node in enumerate(found[0]):
        for now, _, _ in node:
            assert sum(each[0] == now for each in node) <= budget, place


@pytest.mark.parametrize("life", LIVES)
def test_a_timer_rings_once_unless_it_is_replaced_or_cancelled(life: str) -> None:
    def set_all(context: Context) -> None:
        context.set_timer("once", 3)
        context.set_timer("replaced", 2)
        context.set_timer("replaced", 5)
        context.set_timer("cancelled", 4)
        context.cancel_timer("never set")

    run = simulate(
        _Scripts({0: {0: set_all, 2: lambda context: context.cancel_timer("cancelled")}}),
        size=1,
        until=20,
        life=life,
    )
    node = run.nodes[0]
    assert isinstance(node, _Script)
    assert node.rang == [(3.0, "once"), (5.0, "replaced")]


def test_rounds_round_timers_up_and_events_do_not() -> None:
    scripts = {0: {0: lambda context: context.set_timer("short", 0.25)}}
    for life, time in (("rounds", 1.0), ("events", 0.25)):
        node = simulate(_Scripts(scripts), size=1, until=5, life=life).nodes[0]
        assert isinstance(node, _Script)
        assert node.rang == [(time, "short")]


@given(st.integers(2, 9), st.integers(0, 99))
@settings(max_examples=20)
def test_with_constant_delays_rounds_and_events_are_one_and_the_same(size: int, seed: int) -> None:
    requests = [Request(at=at, node=at % size, command=at) for at in (0, 3, 3, 5)]
    logs = [
        simulate(Counter(), size=size, until=12, life=life, seed=seed, log=True, requests=requests) for life in LIVES
    ]
    # A request made before anything can have arrived is made in the first round.
    first, second = ([each for each in run.log if each.kind != "request" or each.what] for run in logs)
    assert first == second
    assert counts(logs[0]) == counts(logs[1])


@pytest.mark.parametrize("life", LIVES)
@given(links=LINKS, seed=st.integers(0, 99))
@settings(max_examples=25)
def test_every_message_is_delivered_dropped_or_under_way(life: str, links: Links, seed: int) -> None:
    network = Network(topology=Topology.named("ring", 6), links=links)
    run = simulate(Counter(), network=network, until=15, life=life, seed=seed)
    assert run.sent + run.duplicated == run.delivered + run.dropped + run.under_way
    assert run.sent == 6 * 2 * 15
    assert (run.dropped > 0) >= (links.drop > 0)


@pytest.mark.parametrize("life", LIVES)
@given(links=LINKS, seed=st.integers(0, 99))
@settings(max_examples=10)
def test_the_same_seed_gives_the_same_log(life: str, links: Links, seed: int) -> None:
    network = Network(topology=Topology.complete(5), links=links)
    digests = {simulate(Flood(), network=network, until=15, life=life, seed=seed, log=True).digest() for _ in range(2)}
    assert len(digests) == 1


def test_other_seeds_give_other_logs() -> None:
    network = Network.complete(5, drop=0.5)
    assert len({simulate(Flood(), network=network, until=15, seed=seed, log=True).digest() for seed in range(8)}) == 8


@pytest.mark.parametrize("life", LIVES)
def test_loss_and_duplication_have_their_probability(life: str) -> None:
    network = Network.complete(20, drop=0.2, duplicate=0.25)
    run = simulate(Counter(), network=network, until=50, life=life)
    assert run.dropped / run.sent == pytest.approx(0.2, abs=0.01)
    assert run.duplicated / (run.sent - run.dropped) == pytest.approx(0.25 / 0.75, abs=0.02)


@pytest.mark.parametrize("life", LIVES)
def test_a_partition_divides_what_is_known(life: str) -> None:
    cut = Partition(start=0, stop=50, groups=((0, 1, 2), (3, 4)))
    network = Network.complete(5, partitions=(cut,))
    run = simulate(Flood(), network=network, until=20, life=life)
    greatest = [index * 7 % 5 for index in range(5)]
    assert [run.decisions[node, 0] for node in range(5)] == [max(greatest[:3])] * 3 + [max(greatest[3:])] * 2
    assert Flood().violation(run.snapshot()).startswith("nodes 0 and ")


@pytest.mark.parametrize("life", LIVES)
def test_everyone_floods_to_the_greatest(life: str) -> None:
    for kind in ("complete", "chain", "grid", "star"):
        network = Network(topology=Topology.named(kind, 9))
        run = simulate(Flood(), network=network, until=20, life=life)
        assert set(run.decisions.values()) == {8}
        assert set(run.decided_at.values()) == {10.0}
        assert Flood().violation(run.snapshot()) == ""


@pytest.mark.parametrize("life", LIVES)
def test_requests_are_answered_and_timed(life: str) -> None:
    requests = [Request(at=4, node=1, command="how many?"), Request(at=9, node=0, command="and now?")]
    run = simulate(Counter(), size=3, until=20, life=life, requests=requests)
    assert [(answer.at, answer.node, answer.result) for answer in run.replies.values()] == [
        (4.0, 1, ("how many?", 4)),
        (9.0, 0, ("and now?", 14)),
    ]
    assert run.snapshot().replies == {0: ("how many?", 4), 1: ("and now?", 14)}


@pytest.mark.parametrize("life", LIVES)
def test_a_scheduler_may_hold_a_message_to_the_end(life: str) -> None:
    class Hold(Scheduler):
        def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
            return float("inf") if sender == 0 else 2.0

    run = simulate(Counter(), size=3, until=10, life=life, scheduler=Hold())
    assert [node.seen for node in run.nodes] == [14, 7, 7]  # type: ignore[attr-defined]
    assert run.sent == run.delivered + run.under_way


def test_what_idles_costs_nothing() -> None:
    run = simulate(_Scripts({0: {1e9: burst(1)}}), size=2, until=2e9)
    assert (run.delivered, run.time, run.timers) == (1, 2e9, 1)


def test_a_message_that_takes_long_costs_nothing_on_its_way() -> None:
    network = Network.complete(2, least_delay=1e9, budget=1)
    run = simulate(_Scripts({0: {0: burst(1), 3: burst(2)}}), network=network, until=2e9)
    assert (run.delivered, run.timers) == (2, 1)
    node = run.nodes[1]
    assert isinstance(node, _Script)
    assert [at for at, _, _ in node.seen] == [1e9, 1e9 + 3]


def test_a_link_that_leaves_its_order_shuffles_what_waits_before_a_round() -> None:
    seen = arrivals({0: {0: burst(*range(20))}}, Links(reorder=1.0, budget=2), "rounds")
    assert [at for at, _, _ in seen] == [1 + place // 2 for place in range(20)]
    values = [value for _, _, value in seen]
    assert values != sorted(values) == list(range(20))
    assert arrivals({0: {0: burst(*range(20))}}, Links(reorder=1.0), "rounds", seed=1)[-1][0] == 1


def test_what_arrives_in_a_round_is_in_order_of_sender_and_link() -> None:
    scripts = {2: {0: burst(1, 2), 1: burst(3)}, 0: {1: burst(4)}}
    run = simulate(_Scripts(scripts), network=Network.complete(3, budget=1), until=9)
    node = run.nodes[1]
    assert isinstance(node, _Script)
    assert node.seen == [(1.0, 2, 1), (2.0, 0, 4), (2.0, 2, 2), (3.0, 2, 3)]


def test_a_run_stops_when_it_is_told_to() -> None:
    run = simulate(Flood(rounds=5), size=4, until=1000, stop=lambda run: len(run.decisions) == 4)
    assert run.time == 5
    assert simulate(Flood(rounds=5), size=4, until=1000, life="events", stop=lambda run: True).time == 1.0


def test_a_second_different_decision_is_a_contradiction() -> None:
    def twice(context: Context) -> None:
        context.decide(1)
        context.decide(1)
        context.decide(2)
        context.decide(3, "other")

    run = simulate(_Scripts({0: {2: twice}}), size=1, until=5)
    assert run.decisions == {(0, 0): 1, (0, "other"): 3}
    assert run.decided_at == {(0, 0): 2.0, (0, "other"): 2.0}
    assert run.contradictions == ["node 0 decided 1, then 2 in instance 0"]


def test_recorded_figures_are_kept_with_time_and_node() -> None:
    run = simulate(Flood(), size=3, until=5)
    assert run.total("received") == run.delivered
    assert run.recorded["received"][0][:2] == (1.0, 0)
    assert run.total("nothing") == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: simulate(Flood(), size=3, until=5, life="turns"),
        lambda: simulate(Flood(), size=0, until=5),
        lambda: simulate(Flood(), size=3, until=-1),
        lambda: simulate(Flood(), size=3, until=float("nan")),
        lambda: simulate(Flood(), size=4, network=Network.complete(3), until=5),
        lambda: simulate(Flood(), size=3, until=5, requests=[Request(at=1, node=3, command=None)]),
        lambda: simulate(Flood(), size=3, until=5, requests=[Request(at=float("inf"), node=0, command=None)]),
        lambda: simulate(Flood(), size=3, until=5, faults=[Omission(members=(3,))]),
        lambda: simulate(_Scripts({0: {0: burst(1)}}), size=1, until=5),
        lambda: simulate(_Scripts({1: {0: burst(1)}}), size=2, until=5),
        lambda: simulate(_Scripts({0: {0: lambda context: context.set_timer("zero", 0)}}), size=2, until=5),
        lambda: simulate(
            _Scripts({0: {0: burst(1)}}), network=Network(topology=Topology.from_edges([(1, 0)])), until=5
        ),
    ],
)
def test_what_cannot_be_run_is_refused(call: Any) -> None:
    with pytest.raises(BadValueError):
        call()


def test_a_run_tells_its_history() -> None:
    requests = [
        Request(at=5, node=1, command=("write", "x", 1), client="b"),
        Request(at=3, node=0, command=("read", "x"), client="a"),
        Request(at=90, node=0, command=("read", "x")),
    ]
    run = simulate(Counter(), size=2, until=50, requests=requests)
    first, second, third = run.history().operations
    assert (first.process, first.action, first.key, first.invoked, first.returned) == ("a", "read", "x", 3, 3)
    assert (second.process, second.value, second.returned) == ("b", 1, 5)
    assert (third.process, third.returned) == ("request 2", None)
    with pytest.raises(BadValueError):
        simulate(Counter(), size=2, until=50, requests=[Request(at=1, node=0, command="x")]).history()


class Holder(Node):
    """Holds something from its turn to the next round but one, though another one may begin meanwhile."""

    def __init__(self, begins: float, ends: float) -> None:
        self.begins, self.ends = begins, ends
        self.holds = False

    def start(self) -> None:
        self.context.set_timer("begin", self.begins)
        self.context.set_timer("end", self.ends)

    def timer(self, name: str) -> None:
        self.holds = name == "begin"


@dataclass(frozen=True)
class Holders:
    overlap: float
    messages: ClassVar[tuple[type[Message], ...]] = ()

    def node(self, index: int, size: int) -> Node:
        return Holder(2 + 3 * index, 5 + self.overlap + 3 * index)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        held = [index for index, node in enumerate(snapshot.nodes) if node.holds]  # type: ignore[attr-defined]
        return f"nodes {held} hold it" if len(held) > 1 else ""


@pytest.mark.parametrize("life", LIVES)
def test_what_is_broken_for_a_moment_is_seen_with_its_time(life: str) -> None:
    run = simulate(Holders(overlap=1.0), size=3, until=30, life=life)
    assert (run.violation, run.violated_at) == ("nodes [0, 1] hold it", 5.0)
    assert Holders(overlap=1.0).violation(run.snapshot()) == ""
    late = simulate(Holders(overlap=1.0), size=3, until=30, life=life, invariant="at-the-end")
    assert (late.violation, late.violated_at) == ("", None)
    ended = simulate(Holders(overlap=1.0), size=3, until=5.5, life=life, invariant="at-the-end")
    assert ended.violation == "nodes [0, 1] hold it"
    right = simulate(Holders(overlap=-1.0), size=3, until=30, life=life)
    assert (right.violation, right.violated_at) == ("", None)


class Fickle(Node):
    """Decides twice."""

    def start(self) -> None:
        self.context.set_timer("change", 3)
        self.context.decide("one")

    def timer(self, name: str) -> None:
        self.context.decide("another")


@dataclass(frozen=True)
class Fickles(Holders):
    def node(self, index: int, size: int) -> Node:
        return Fickle()

    def violation(self, snapshot: Snapshot) -> str:
        return ""


@pytest.mark.parametrize("life", LIVES)
def test_a_correct_node_that_decides_twice_breaks_an_invariant(life: str) -> None:
    run = simulate(Fickles(0.0), size=1, until=9, life=life)
    assert "decided 'one', then 'another'" in run.violation
    assert run.violated_at == 3.0
    lies = simulate(Fickles(0.0), size=1, until=9, life=life, faults=[Equivocation(members=(0,))])
    assert lies.violation == ""
    with pytest.raises(BadValueError):
        simulate(Fickles(0.0), size=1, until=9, life=life, invariant="sometimes")
