from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_protocols import Counter, Flood, Value

from wavetank.errors import BadValueError
from wavetank.sim.events import simulate
from wavetank.sim.faults import (
    FAULTS,
    Behaviour,
    Corruption,
    Crash,
    Delay,
    Equivocation,
    Fault,
    FaultyContext,
    FaultyNode,
    Omission,
    RandomCrashes,
    Replay,
    SelectiveRelay,
    Sends,
    altered,
    byzantine_members,
)
from wavetank.sim.node import Message
from wavetank.sim.simulation import LIVES, Request, Run


def counters(faults: Sequence[Fault], *, life: str = "rounds", until: float = 10, seed: int = 0) -> Run:
    return simulate(Counter(), size=3, until=until, life=life, faults=faults, seed=seed, log=True)


def received(run: Run, sender: int) -> list[tuple[float, int]]:
    """Return time and value of what node 2 got from ``sender``."""
    return [
        (each.at, each.what.value)
        for each in run.log
        if each.kind == "message" and each.node == 2 and each.sender == sender
    ]


@pytest.mark.parametrize("life", LIVES)
def test_a_crashed_node_falls_silent(life: str) -> None:
    run = counters([Crash(members=(1,), at=4)], life=life)
    # Its timer of round 4 comes before or after the crash by name order alone: it was set first.
    assert max(at for at, _ in received(run, 1)) <= 5
    assert len(received(run, 0)) == 9
    assert run.correct == {0, 1, 2}


@pytest.mark.parametrize("life", LIVES)
def test_a_node_that_recovers_has_what_it_saved(life: str) -> None:
    run = counters([Crash(members=(1,), at=4, down_for=3)], life=life, until=20)
    times = [at for at, _ in received(run, 1)]
    assert not [at for at in times if 5 < at <= 8]
    values = [value for at, value in received(run, 1) if at > 8]
    # Four rounds of messages from two nodes before the crash; what came while it was down is lost.
    assert values[0] in range(6, 11)
    assert values == sorted(values)


def test_a_node_may_crash_again_and_again() -> None:
    run = counters([Crash(members=(1,), at=3, down_for=2, every=10)], until=40)
    times = {at for at, _ in received(run, 1)}
    for start in (3, 13, 23, 33):
        assert not {start + 2.0} & times
        assert {start + 4.0} & times


def test_a_node_that_never_starts_sends_nothing_and_answers_nothing() -> None:
    requests = [Request(at=5, node=node, command="?") for node in (0, 1)]
    faults = [Crash(members=(1,))]
    run = simulate(Counter(), size=3, until=10, faults=faults, requests=requests)
    assert list(run.replies) == [0]
    assert run.sent == 2 * 2 * 10


def test_random_crashes_follow_the_seed_and_their_odds() -> None:
    fault = RandomCrashes(members=(1,), odds=0.2, down_for=3)
    runs = [counters([fault], until=400, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].digest() == runs[1].digest() != runs[2].digest()
    # Up 5 rounds, down 3 on average.
    assert 0.45 < len(received(runs[0], 1)) / 400 < 0.75


def test_omission_loses_what_is_sent_or_received() -> None:
    assert received(counters([Omission(members=(1,))]), 1) == []
    run = counters([Omission(members=(2,), sending=0.0, receiving=1.0)])
    node = run.nodes[2]
    assert isinstance(node, FaultyNode)
    assert node.inner.seen == 0  # type: ignore[attr-defined]
    part = counters([Omission(members=(1,), sending=0.5)], until=400)
    assert 0.4 < len(received(part, 1)) / 400 < 0.6


@pytest.mark.parametrize("life", LIVES)
def test_a_slow_node_sends_everything_later(life: str) -> None:
    usual = received(counters([], life=life, until=20), 1)
    late = received(counters([Delay(members=(1,), rounds=3)], life=life, until=20), 1)
    assert [at for at, _ in late] == [at + 3 for at, _ in usual][: len(late)]
    assert [value for _, value in late] == [value for _, value in usual][: len(late)]


def test_a_selective_relay_speaks_to_its_friends_alone() -> None:
    assert received(counters([SelectiveRelay(members=(1,), to=(0,))]), 1) == []
    assert len(received(counters([SelectiveRelay(members=(1,), to=(2,))]), 1)) == 9


def test_an_equivocator_tells_two_stories() -> None:
    run = simulate(Counter(), size=4, until=3, faults=[Equivocation(members=(0,), other=(3,))], log=True)
    heard = {
        node: [each.what.value for each in run.log if (each.kind, each.node, each.sender) == ("message", node, 0)]
        for node in (1, 2, 3)
    }
    assert heard[1] == heard[2]
    assert heard[3] == [value + 1 for value in heard[1]]
    assert run.correct == {1, 2, 3}
    other = simulate(Flood(), size=4, until=12, faults=[Equivocation(members=(3,))])
    assert Flood().violation(other.snapshot()) != "" or len(set(other.decisions.values())) == 1


def test_faults_of_one_node_compose() -> None:
    run = counters([Equivocation(members=(1,), other=(2,)), Delay(members=(1,), rounds=2)])
    usual = received(counters([]), 1)
    assert received(run, 1) == [(at + 2, value + 1) for at, value in usual][: len(usual) - 2]


def test_replay_sends_the_past_again() -> None:
    run = counters([Replay(members=(1,), probability=1.0)], until=30)
    assert len(received(run, 1)) > 50
    assert {value for _, value in received(run, 1)} <= {value for _, value in received(counters([], until=30), 1)}


def test_corruption_alters_what_is_sent() -> None:
    usual = received(counters([]), 1)
    assert received(counters([Corruption(members=(1,))]), 1) == [(at, value + 1) for at, value in usual]


class _Mixed(Message):
    flag: bool
    text: str
    data: bytes
    items: tuple[int, ...]
    inner: Value | None = None


@given(
    st.integers(0, 20), st.booleans(), st.text(max_size=3), st.binary(max_size=3), st.lists(st.integers(), max_size=3)
)
def test_an_altered_message_has_its_types_and_differs_in_one_field(
    first: int, flag: bool, text: str, data: bytes, items: list[int]
) -> None:
    message = _Mixed(flag, text, data, tuple(items), Value(3))
    other = altered(message, first)
    differing = [name for name in message.__struct_fields__ if getattr(message, name) != getattr(other, name)]
    assert len(differing) == 1
    assert type(getattr(other, differing[0])) is type(getattr(message, differing[0]))


def test_a_message_without_fields_stays_as_it_is() -> None:
    class Empty(Message):
        pass

    assert altered(Empty(), 0) == Empty()


def test_colluding_members_share_a_pool() -> None:
    class Count(Behaviour):
        def __init__(self, pool: dict[str, Any]) -> None:
            self.pool = pool

        def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
            self.pool["sent"] = self.pool.get("sent", 0) + 1
            return ((to, Value(self.pool["sent"])),)

    class Collude(Fault):
        def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
            return Count(pool)

    run = counters([Collude(members=(0, 1))], until=2)
    assert [value for _, value in received(run, 0) + received(run, 1)] == [2, 4]
    assert byzantine_members([Collude(members=(0, 1)), Crash(members=(2,))]) == {0, 1}


def test_a_fault_that_replaces_the_context_does_so_again_after_a_crash() -> None:
    class Doubled(FaultyContext):
        def broadcast(self, message: Message) -> None:
            super().broadcast(message)
            super().broadcast(message)

    class Doubling(Behaviour):
        def side(self, node: FaultyNode) -> FaultyContext:
            return Doubled(node.context, node)

    class Double(Fault):
        def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
            return Doubling()

    plain = counters([Crash(members=(0,), at=3, down_for=3)])
    doubled = counters([Double(members=(0,)), Crash(members=(0,), at=3, down_for=3)])
    once, twice = received(plain, 0), received(doubled, 0)
    assert max(at for at, _ in once) > 7
    assert [at for at, _ in twice] == [at for at, _ in once for _ in range(2)]


def test_faults_are_found_by_name() -> None:
    assert all(issubclass(kind, Fault) for kind in FAULTS.values())
    for kind in FAULTS.values():
        more = {"to": (0,)} if kind is SelectiveRelay else {}
        run = counters([kind(members=(1,), **more)])
        assert run.sent == run.delivered + run.dropped + run.under_way


@pytest.mark.parametrize(
    "make",
    [
        lambda: Crash(members=(0,), at=1, every=5),
        lambda: Crash(members=(0,), at=1, down_for=5, every=5),
        lambda: Crash(members=(0,), at=-1),
        lambda: Crash(members=(0,), at=1, down_for=0),
        lambda: Omission(members=(0,), sending=1.5),
        lambda: Omission(members=(0,), receiving=-0.1),
        lambda: Delay(members=(0,), rounds=0),
        lambda: Corruption(members=(0,), probability=2),
        lambda: Replay(members=(0,), probability=-1),
        lambda: Replay(members=(0,), remembered=0),
        lambda: RandomCrashes(members=(0,), odds=0.0),
        lambda: RandomCrashes(members=(0,), down_for=0.0),
    ],
)
def test_faults_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(BadValueError):
        make()
