"""The smallest life over sockets: the protocols of the simulator and of the cluster, all closed at the end."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from small_protocols import Flood

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.cluster import run_cluster
from wavetank.live.minimal import Clock, Host, MinimalHost, Timers, play_minimal, run_minimal
from wavetank.live.run import ClusterRun
from wavetank.protocols.broadcast.bracha import Bracha
from wavetank.protocols.consensus.raft import Raft
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology
from wavetank.sim.node import Algorithm, Message, Node
from wavetank.sim.simulation import Request


def open_sockets() -> int:
    gc.collect()
    # By type(): isinstance() asks __class__, which a dead weak proxy of another library answers with an error.
    return sum(each.fileno() >= 0 for each in gc.get_objects() if issubclass(type(each), socket.socket))


def decided(count: int) -> Any:
    return lambda run: len(run.decisions) >= count


def test_raft_answers_its_clients_and_its_logs_agree() -> None:
    requests = [Request(at=60 + number, node=number % 3, command=("write", "x", number)) for number in range(6)]
    run = run_minimal(Raft(), 3, requests, seed=1, round_s=0.005, duration_s=50, stop=lambda run: len(run.replies) == 6)
    assert run.violation == ""
    assert [request.command[2] for request in run.requests] == list(range(6))
    history = run.history()
    assert [(each.action, each.key) for each in history.operations] == [("write", "x")] * 6
    assert all(each.returned is not None and each.returned >= each.invoked >= 0.3 for each in history.operations)
    assert set(run.replies) == set(run.latencies_s) == set(range(6))
    assert run.sent >= run.delivered > 0


def test_a_broadcast_delivers_to_all_what_the_simulator_delivers() -> None:
    requests = [Request(at=1, node=2, command=("broadcast", b"payload"))]
    algorithm = Bracha()
    found = run_minimal(algorithm, 4, requests, round_s=0.01, duration_s=50, stop=decided(4))
    expected = simulate(algorithm, size=4, requests=requests, until=20)
    assert found.decisions == expected.decisions
    assert len(found.decisions) == 4
    assert found.violation == expected.violation == ""


def test_two_phase_commit_decides_as_in_rounds() -> None:
    found = run_minimal(TwoPhaseCommit(), 3, round_s=0.01, duration_s=50, stop=decided(1))
    assert found.decisions == simulate(TwoPhaseCommit(), size=3, until=10).decisions == {(0, 0): "aborted"}
    assert found.violation == ""


def test_the_smallest_life_and_the_cluster_decide_and_record_the_same() -> None:
    options: dict[str, Any] = {"round_s": 0.02, "duration_s": 50, "seed": 3, "stop": decided(5)}
    found, cluster = run_minimal(Flood(), 5, **options), run_cluster(Flood(), 5, **options)
    assert found.decisions == cluster.decisions == simulate(Flood(), size=5, until=20).decisions
    assert found.total("received") == found.delivered
    assert cluster.total("received") == cluster.delivered
    assert found.violation == cluster.violation == ""


class _Drawing(Node):
    def start(self) -> None:
        self.context.save("number", self.context.rng.random())
        self.context.set_timer("never", 1)
        self.context.cancel_timer("never")
        self.context.set_timer("ring", 5)
        self.context.set_timer("ring", 2)

    def timer(self, name: str) -> None:
        self.context.decide((name, self.context.load("number"), self.context.load("other", "none")))


@dataclass(frozen=True, kw_only=True)
class Drawing(Flood):
    def node(self, index: int, size: int) -> Node:
        return _Drawing()


def test_draws_timers_and_saved_values_are_those_of_the_simulator() -> None:
    found = run_minimal(Drawing(), 2, seed=7, round_s=0.01, duration_s=50, stop=decided(2))
    assert found.decisions == simulate(Drawing(), size=2, until=10, seed=7).decisions
    assert found.decisions[0, 0] != found.decisions[1, 0]
    # The invariant that the simulator asks after every step is asked here at the end.
    assert "decided" in found.violation
    assert {at >= 2 for at in found.decided_at.values()} == {True}


class _Raising(Node):
    def start(self) -> None:
        self.context.set_timer("bang", 1)

    def timer(self, name: str) -> None:
        raise RuntimeError("bang")


@dataclass(frozen=True, kw_only=True)
class Raising(Flood):
    def node(self, index: int, size: int) -> Node:
        return _Raising()


def test_code_that_raises_ends_the_run_with_its_trace() -> None:
    with pytest.raises(WavetankError, match=r"Node \d ended with an exception: RuntimeError: bang"):
        run_minimal(Raising(), 2, round_s=0.01, duration_s=50)


def test_a_request_for_no_node_is_refused() -> None:
    with pytest.raises(BadValueError, match="There is no such node"):
        run_minimal(Flood(), 2, [Request(at=1, node=2, command="x")])


def test_without_an_end_it_ends_when_the_time_is_up() -> None:
    run = run_minimal(Raft(), 3, duration_s=0.05)
    assert run.violation == ""
    assert run.time == run.duration_s / 0.05 > 0


def test_nothing_is_open_when_it_was_cancelled_or_has_ended(play: Any) -> None:
    before = open_sockets()
    begun: list[ClusterRun] = []

    def note(run: ClusterRun) -> bool:
        begun.append(run)
        return False

    async def story() -> None:
        task = asyncio.create_task(play_minimal(Flood(), 4, round_s=0.01, duration_s=50, stop=note))
        while not begun or not begun[0].recorded:
            await asyncio.sleep(0.01)
        assert open_sockets() > before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await play_minimal(Flood(), 4, round_s=0.01, duration_s=50, stop=decided(4))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())
    assert open_sockets() == before
    play(story_on_any_loop())


async def story_on_any_loop() -> None:
    hosts: list[MinimalHost] = []
    topology = Topology.complete(2)
    for number in range(2):
        hosts.append(
            MinimalHost(Flood(), topology, number, seed=0, round_s=1, outputs=lambda _: None, failed=lambda *_: None)
        )
    addresses = [await host.listen() for host in hosts]
    for host in hosts:
        await host.connect(addresses)
    # Garbage ends the connection that it came over, and nothing else.
    reader, writer = await asyncio.open_connection(*addresses[0])
    writer.write(b"\x00\x00\x00\x03abc")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    for host in hosts:
        assert host.connections
        host.close()
        await host.closed()
        assert host.connections == set()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


def test_the_cluster_is_made_of_the_same_parts() -> None:
    from wavetank.live.endpoint import Endpoint

    assert issubclass(Endpoint, Host)
    assert {"deliver", "react", "report", "flush", "schedule_flush"}.isdisjoint(vars(Endpoint))


def test_a_timer_that_is_set_again_runs_out_once_at_the_last_time(play: Any) -> None:
    async def story() -> list[tuple[str, bool]]:
        rung = asyncio.Event()
        clock = Clock(0.01, rung.set)
        found: list[tuple[str, bool]] = []
        timers = Timers(clock, lambda name: found.append((name, clock.now >= 3)))
        for name, after in (("late", 5), ("late", 3), ("early", 1), ("early", 3), ("gone", 1)):
            timers.set(name, after)
        timers.cancel("gone")
        timers.cancel("unknown")
        while len(found) < 2:
            rung.clear()
            await rung.wait()
        await asyncio.sleep(0.05)
        timers.set("closed", 1)
        clock.close()
        await asyncio.sleep(0.05)
        return found

    assert sorted(play(story())) == [("early", True), ("late", True)]


@pytest.mark.parametrize("twice", [False, True])
def test_cancelled_at_any_step_nothing_stays_open(twice: bool) -> None:
    before = open_sockets()

    async def story(steps: int) -> None:
        task = asyncio.create_task(play_minimal(Flood(), 4, round_s=0.01, duration_s=50))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        if twice:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # What a second cancellation did not wait for is closed when the loop comes round.
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, steps

    for steps in range(0, 40, 3):
        asyncio.run(story(steps))
        assert open_sockets() == before, steps


class Note(Message, frozen=True):
    """Carries anything."""

    body: Any


class Sending(Node):
    """Sends its peer what the algorithm holds, and decides what it receives."""

    def __init__(self, bodies: Sequence[Any]) -> None:
        self.bodies = bodies

    def start(self) -> None:
        if self.context.id == 0:
            for body in self.bodies:
                self.context.send(1, Note(body))

    def receive(self, sender: int, message: Message) -> None:
        self.context.decide(len(message.body), instance=len(self.context.load("seen", [])))
        self.context.save("seen", [*self.context.load("seen", []), 1])


@dataclass(frozen=True)
class Sender(Algorithm):
    """Two nodes, of which the first sends."""

    bodies: tuple[Any, ...] = ()
    breaks: bool = False
    messages: ClassVar[tuple[type[Message], ...]] = (Note,)

    def node(self, number: int, size: int) -> Node:
        if self.breaks:
            raise RuntimeError("no node today")
        return Sending(self.bodies)


def test_a_batch_that_is_longer_than_a_frame_arrives_in_several() -> None:
    run = run_minimal(Sender(("x" * 400_000,) * 6), 2, duration_s=20, round_s=0.01, stop=decided(6))
    assert list(run.decisions.values()) == [400_000] * 6


@pytest.mark.parametrize(("bodies", "says"), [
    (("x" * 2_000_000,), "larger than what is sent at once"), ((object(),), "cannot be sent"),
])  # fmt: skip
def test_what_cannot_be_sent_ends_the_run_and_names_the_node(bodies: tuple[Any, ...], says: str) -> None:
    with pytest.raises(WavetankError, match=f"Node 0 ended with an exception: .*{says}"):
        run_minimal(Sender(bodies), 2, duration_s=20, round_s=0.01)


def test_a_node_that_cannot_be_made_ends_the_run() -> None:
    with pytest.raises(WavetankError, match="Node 0 ended with an exception: RuntimeError: no node today"):
        run_minimal(Sender(breaks=True), 2, duration_s=20)


@pytest.mark.parametrize("given", [
    {"round_s": 0.0}, {"round_s": -1.0}, {"round_s": math.nan}, {"round_s": math.inf}, {"duration_s": 0.0},
    {"duration_s": math.nan}, {"requests": [Request(at=math.nan, node=0, command="x")]},
    {"requests": [Request(at=-1.0, node=0, command="x")]},
])  # fmt: skip
def test_times_that_are_none_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        run_minimal(Flood(), 2, **given)
