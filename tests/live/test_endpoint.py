"""An endpoint: clock, timers, durability and what a node may do, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from socket_protocols import Ball, DurableCounter, PingPong, Talkers

from wavetank.errors import BadValueError
from wavetank.live.cluster import ClusterSettings, InProcessCluster
from wavetank.live.minimal import LiveContext
from wavetank.sim.network import Network, Partition, Topology
from wavetank.sim.node import Context, Node
from wavetank.sim.rng import Draws, stream_key

FAST = ClusterSettings(round_s=0.01)


class Scripted(DurableCounter):
    """Nodes that do what a test says."""

    def node(self, index: int, size: int) -> Node:
        return ScriptedNode()


class ScriptedNode(Node):
    def __init__(self) -> None:
        self.rung: list[tuple[str, float]] = []

    def timer(self, name: str) -> None:
        self.rung.append((name, self.context.now))

    def request(self, number: int, command: Any) -> None:
        self.context.reply(number, command(self))

    def receive(self, sender: int, message: Ball) -> None:
        self.context.decide(self.context.now, message.hops)


async def did(cluster: InProcessCluster, what: Any, node: int = 0) -> Any:
    """Have a node do something, and return what comes of it."""
    number = cluster.ask(node, what)
    await cluster.until(lambda run: number in run.replies, 10)
    cluster.run.check()
    return cluster.run.replies[number].result


def test_a_context_over_sockets_is_a_context() -> None:
    assert all(hasattr(LiveContext, name) for name in vars(Context) if not name.startswith("_"))


def test_a_node_sees_its_place_and_its_own_stream(play: Any) -> None:
    async def story() -> None:
        network = Network(topology=Topology.named("ring", 4))
        async with InProcessCluster(Scripted(), 4, settings=FAST, network=network) as cluster:
            seen = await did(cluster, lambda node: (node.context.id, node.context.size, list(node.context.peers)), 2)
            assert seen == (2, 4, [1, 3])
            drawn = await did(cluster, lambda node: node.context.rng.bits(), 2)
            # The stream of the simulation, so that the same draws are made.
            assert drawn == Draws(stream_key(0, "node", 2)).bits()
            await cluster.kill(2)
            await cluster.restart(2)
            assert await did(cluster, lambda node: node.context.rng.bits(), 2) != drawn

    play(story())


def test_timers_run_out_in_their_order_once_and_not_early(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(Scripted(), 1, settings=FAST) as cluster:

            def begin(node: Node) -> float:
                context = node.context
                for name, after in (("c", 6), ("a", 1), ("moved", 1), ("gone", 2), ("b", 3), ("nearer", 50)):
                    context.set_timer(name, after)
                context.set_timer("moved", 5)
                context.set_timer("nearer", 2)
                context.cancel_timer("gone")
                context.cancel_timer("never set")
                return context.now

            start = await did(cluster, begin)
            await asyncio.sleep(0.12)
            rung = await did(cluster, lambda node: node.rung)
        assert [name for name, _ in rung] == ["a", "nearer", "b", "moved", "c"]
        due = {"a": 1, "nearer": 2, "b": 3, "moved": 5, "c": 6}
        assert all(when >= start + due[name] - 1e-6 for name, when in rung)

    play(story())


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda node: node.context.set_timer("t", 0), "later than now"),
        (lambda node: node.context.send(0, Ball(1)), "no link"),
        (lambda node: node.context.send(9, Ball(1)), "no link"),
        (lambda node: node.context.send(1, "text"), "only the kinds of message"),
        (lambda node: node.context.broadcast(3), "only the kinds of message"),
        (lambda node: node.context.save("f", print), "Only plain values"),
    ],
)
def test_what_a_node_may_not_do_ends_it_with_the_reason(play: Any, do: Any, says: str) -> None:
    async def story() -> None:
        async with InProcessCluster(Scripted(), 2, settings=FAST) as cluster:
            cluster.ask(0, do)
            await cluster.until(lambda run: bool(run.failures), 10)
            assert says in cluster.run.failures[0]
            assert await did_other(cluster) == 1

    async def did_other(cluster: InProcessCluster) -> int:
        # The other node does not notice.
        cluster.run.failures.clear()
        return await did(cluster, lambda node: node.context.id, 1)

    play(story())


def test_a_message_that_is_too_large_ends_its_sender_alone(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=FAST) as cluster:
            cluster.ask(0, "large")
            await cluster.until(lambda run: bool(run.failures), 10)
            assert "larger than what is sent at once" in cluster.run.failures.pop(0)
            number = cluster.ask(1, "count")
            assert await cluster.until(lambda run: number in run.replies, 10)

    play(story())


def test_nothing_is_reported_before_it_is_on_disk(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    from wavetank.live import durable

    real = durable._synchronise
    monkeypatch.setattr(durable, "_synchronise", lambda file: (order.append("disk"), real(file)))

    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 1, settings=FAST, folder=tmp_path) as cluster:
            take = cluster.endpoints[0]._outputs
            cluster.endpoints[0]._outputs = lambda given: (order.extend(each.kind for each in given), take(given))
            for _ in range(3):
                cluster.ask(0, "count")
            await cluster.until(lambda run: len(run.replies) == 3, 10)

    play(story())
    # Start and three requests in one turn of the loop: one synchronisation, then all that rests on it.
    assert order == ["disk", "record", "reply", "reply", "reply"]


def test_a_disk_that_fails_ends_the_node_and_nothing_of_its_reaction_leaves(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavetank.live import durable

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        async with InProcessCluster(Scripted(), 2, settings=FAST) as cluster:
            monkeypatch.setattr(durable, "_synchronise", full)
            cluster.ask(0, lambda node: (node.context.save("a", 1), node.context.send(1, Ball(7))))
            await cluster.until(lambda run: bool(run.failures), 10)
            await asyncio.sleep(0.05)
            assert "No space left" in cluster.run.failures[0]
            assert (cluster.run.replies, cluster.run.decisions) == ({}, {})

    play(story())


def test_a_node_that_is_held_gets_everything_later(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(Talkers(), 2, settings=FAST) as cluster:
            await cluster.stop(0)
            await asyncio.sleep(0.1)
            assert (0, 1) not in cluster.run.decisions
            await cluster.resume(0)
            assert await cluster.until(lambda run: (0, 1) in run.decisions, 10)
            run = await cluster.finish()
        assert run.violation == ""
        assert run.counters["undelivered"] == 0

    play(story())


def test_what_waits_for_a_node_that_is_held_is_limited_in_bytes(play: Any) -> None:
    async def story() -> None:
        settings = ClusterSettings(endpoints="node", queue_bytes=2**16)
        async with InProcessCluster(DurableCounter(), 2, settings=settings) as cluster:
            endpoint = cluster.endpoints[0]
            await cluster.stop(0)
            slot = endpoint._slots[0]
            for _ in range(100):
                endpoint.deliver([(1, 0, Ball("x" * 10_000))])
            assert len(slot.backlog) == 6
            assert endpoint.overflowed == 94
            await cluster.resume(0)
            assert (len(slot.backlog), slot.backlog_bytes) == (0, 0)

    play(story())


def test_messages_for_a_node_that_is_down_are_counted(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(Talkers(), 2, settings=FAST) as cluster:
            await cluster.kill(0)
            await cluster.until(lambda run: run.counters.get("undelivered", 0) >= 5, 10)
            # Nobody says anything any more, so that what is on its way arrives.
            await cluster.kill(1)
            assert await cluster.until(
                lambda run: run.sent == run.delivered + run.dropped + run.counters["waiting"], 10
            )
            run = await cluster.finish()
        assert run.dropped >= 5

    play(story())


def test_a_described_delay_comes_before_the_socket(play: Any) -> None:
    async def story() -> None:
        network = Network.complete(2, least_delay=5.0)
        async with InProcessCluster(Scripted(), 2, settings=FAST, network=network) as cluster:
            sent = await did(cluster, lambda node: (node.context.send(1, Ball(0)), node.context.now)[1])
            await cluster.until(lambda run: (1, 0) in run.decisions, 10)
            assert cluster.run.decisions[1, 0] >= sent + 5.0

    play(story())


def test_described_links_lose_copy_and_cut(play: Any) -> None:
    async def counted(**links: Any) -> dict[str, int]:
        network = Network.complete(2, least_delay=0.1, **links)
        async with InProcessCluster(Scripted(), 2, settings=FAST, network=network) as cluster:
            await did(cluster, lambda node: [node.context.send(1, Ball(number)) for number in range(400)] and None)
            # Nothing is lost that is not counted.
            assert await cluster.until(lambda run: run.sent + run.duplicated == run.delivered + run.dropped >= 400, 10)
            return cluster.run.counters

    async def story() -> None:
        lossy = await counted(drop=0.5)
        assert 120 < lossy["lost"] < 280
        twice = await counted(duplicate=0.5)
        assert 250 < twice["duplicated"] < 600
        cut = await counted(partitions=(Partition(start=0, stop=1e9, groups=((0,), (1,))),))
        assert cut["lost"] == 400
        short = await counted(queue=3)
        assert short["delivered"] == 3

    play(story())


def test_a_described_link_keeps_the_order_unless_it_reorders(play: Any) -> None:
    class Keeping(Scripted):
        def node(self, index: int, size: int) -> Node:
            return KeepingNode()

    class KeepingNode(ScriptedNode):
        def receive(self, sender: int, message: Ball) -> None:
            self.rung.append((str(message.hops), message.hops))

    async def order(reorder: float) -> list[float]:
        network = Network.complete(2, delay="uniform-real", least_delay=0.1, most_delay=3.0, reorder=reorder)
        async with InProcessCluster(Keeping(), 2, settings=FAST, network=network) as cluster:
            await did(cluster, lambda node: [node.context.send(1, Ball(number)) for number in range(100)] and None)
            await cluster.until(lambda run: run.delivered == 100, 10)
            return [number for _, number in (await did(cluster, lambda node: node.rung, 1))]

    async def story() -> None:
        assert await order(0.0) == list(range(100))
        mixed = await order(0.5)
        assert mixed != list(range(100))
        assert sorted(mixed) == list(range(100))

    play(story())


def test_an_address_of_another_machine_is_reported(play: Any) -> None:
    async def story() -> None:
        with pytest.raises(BadValueError, match=r"not possible to listen there: [A-Z][a-z ]+[.]") as caught:
            async with InProcessCluster(DurableCounter(), 1, settings=ClusterSettings(host="192.0.2.1")):
                pass
        assert caught.value.hint == "name an address of this machine"

    play(story())


def test_a_port_in_use_is_reported(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(PingPong(), 2) as cluster:
            port = cluster.endpoints[0]._server.sockets[0].getsockname()[1]
            with pytest.raises(BadValueError, match="port is in use") as caught:
                async with InProcessCluster(PingPong(), 2, settings=ClusterSettings(base_port=port)):
                    pass
            assert caught.value.given == f"127.0.0.1:{port}"
        with pytest.raises(BadValueError, match="not possible to listen"):
            async with InProcessCluster(PingPong(), 2, settings=ClusterSettings(host="203.0.113.1")):
                pass

    play(story())
