from __future__ import annotations

import math

import pytest
from scripted_faults import HoldBack, Scripted

from wavetank.protocols.broadcast.adversaries import ADVERSARIES, Favour, Twins
from wavetank.protocols.broadcast.amortized import Amortized, Ask
from wavetank.protocols.broadcast.bracha import Bracha, Echo, Send
from wavetank.sim.events import simulate
from wavetank.sim.faults import byzantine_members
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import Request

TWO = [Request(at=1.0 + number, node=0, command=("broadcast", b"p%d" % number)) for number in range(2)]


def test_twins_say_something_else_to_each_part() -> None:
    faults = [Twins(members=(0,), first=(1, 2), second=(2, 3))]
    run = simulate(Bracha(), size=4, until=20, requests=TWO[:1], faults=faults, log=True)
    heard = {
        node: [each.what.payload for each in run.log if each.node == node and isinstance(each.what, Send)]
        for node in (1, 2, 3)
    }
    assert heard == {1: [b"p0"], 2: [b"p0", b"another p0"], 3: [b"another p0"]}


def test_twins_vote_for_both() -> None:
    faults = [Twins(members=(0,), first=(1,), second=(3,))]
    requests = [Request(at=1.0, node=2, command=("broadcast", b"p"))]
    run = simulate(Bracha(), size=4, until=20, requests=requests, faults=faults, log=True)
    voters = {each.node for each in run.log if isinstance(each.what, Echo) and each.sender == 0}
    assert voters == {1, 3}


def test_twins_part_where_the_fork_is_set() -> None:
    faults = [Twins(members=(0,), first=(1, 2), second=(3,), fork=2)]
    run = simulate(Bracha(), size=4, until=20, requests=TWO, faults=faults)
    assert {run.decisions[node, (0, 1)] for node in (1, 2, 3)} == {b"p0"}


def test_the_timers_of_twins_are_their_own() -> None:
    # Without optimism a single broadcast is delivered only after the pause, so both copies ask.
    faults = [Twins(members=(0,), first=(1, 2), second=(3,))]
    run = simulate(Amortized(optimistic=False), size=4, until=60, requests=TWO[:1], faults=faults, log=True)
    assert {each.node for each in run.log if isinstance(each.what, Ask)} == {1, 2, 3}


def test_twins_do_not_count_as_correct() -> None:
    assert byzantine_members([Twins(members=(0, 2), first=(1,), second=())]) == {0, 2}


def test_a_script_is_said_to_everyone_and_nothing_else() -> None:
    script = (Send(1, b"a"), Send(1, b"b"))
    run = simulate(Bracha(), size=4, until=20, faults=[Scripted(members=(0,), script=script)], log=True)
    said = [(each.node, each.what) for each in run.log if each.kind == "message" and each.sender == 0]
    assert sorted(said, key=repr) == sorted(((node, each) for node in (1, 2, 3) for each in script), key=repr)


def test_a_held_message_never_arrives() -> None:
    scheduler = HoldBack(frozenset({0}), frozenset({3}))
    run = simulate(Bracha(), size=4, until=50, requests=TWO[:1], scheduler=scheduler, log=True)
    assert not [each for each in run.log if each.node == 3 and each.kind == "message" and each.sender == 0]
    assert run.under_way > 0
    assert scheduler.extra_delay(0, 3, TWO, 0.0) == math.inf  # type: ignore[arg-type]
    assert scheduler.extra_delay(3, 0, TWO, 0.0) == 0.0  # type: ignore[arg-type]


def test_a_favouring_scheduler_slows_what_crosses() -> None:
    requests = TWO[:1]
    quick = simulate(Bracha(), size=4, until=99, requests=requests)
    slow = simulate(Bracha(), size=4, until=99, requests=requests, scheduler=Favour((0, 0, 1, 1), 7.0))
    assert max(quick.decided_at.values()) == 4.0
    assert max(slow.decided_at.values()) > 10.0
    assert len(slow.decisions) == 4


@pytest.mark.parametrize("name", sorted(ADVERSARIES))
def test_every_adversary_acts_for_its_members_alone(name: str) -> None:
    for seed in range(20):
        faults = ADVERSARIES[name]((1, 4), 7, Draws(seed))
        assert byzantine_members(faults) == {1, 4}


def test_twins_change_payloads_that_are_text_too() -> None:
    faults = [Twins(members=(0,), first=(1,), second=(2,))]
    requests = [Request(at=1.0, node=0, command=("broadcast", "p"))]
    run = simulate(Bracha(), size=4, until=20, requests=requests, faults=faults, log=True)
    heard = {each.what.payload for each in run.log if isinstance(each.what, Send)}
    assert heard == {b"p", b"another p"}
