"""Links over real sockets: what is hostile is dropped and counted, what is lost is made again."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from socket_protocols import Ball, DurableCounter, Talkers

from wavetank.live.cluster import ClusterSettings, InProcessCluster
from wavetank.live.endpoint import Endpoint
from wavetank.live.links import StreamLink
from wavetank.live.wire import (
    VERSION,
    Challenge,
    DatagramWriter,
    FrameSplitter,
    FrameWriter,
    Hello,
    Refusal,
    RunIdentity,
    Welcome,
    framed,
    greeting,
    read_greeting,
)

SETTINGS = ClusterSettings(endpoints="node", round_s=0.01)


class Attacker:
    """A connection that does as it pleases."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.splitter = FrameSplitter()
        self.heard: list[Any] = []

    async def connect(self) -> Attacker:
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        self.challenge = await self.hear()
        return self

    async def hear(self) -> Any:
        while not self.heard:
            data = await asyncio.wait_for(self.reader.read(4096), 10)
            if not data:
                return None
            self.heard += map(read_greeting, self.splitter.feed(data))
        return self.heard.pop(0)

    async def refused(self) -> str:
        """The reason for which it is dropped."""
        words = await self.hear()
        assert isinstance(words, Refusal)
        assert await self.hear() is None
        self.writer.close()
        return words.reason

    async def introduce(self, identity: RunIdentity, endpoint: int, target: int = 0) -> bytes:
        """Shake hands as an insider; returns the key of the session."""
        nonce = b"n" * 16
        self.writer.write(greeting(identity.hello(endpoint, self.challenge, nonce, target=target)))
        assert isinstance(await self.hear(), Welcome)
        return identity.session(endpoint, self.challenge.nonce, nonce, target=target)


def address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint._server.sockets[0].getsockname()


async def still_serves(cluster: InProcessCluster, node: int = 0) -> None:
    number = cluster.ask(node, "count")
    assert await cluster.until(lambda run: number in run.replies, 10)


STRANGERS: dict[str, tuple[Callable[[Challenge, RunIdentity], bytes], str]] = {
    "oversized": (lambda challenge, identity: b"\xff\xff\xff\xff", "oversized"),
    "garbage": (lambda challenge, identity: framed(b"GET / HTTP/1.1"), "garbage"),
    "wrong words": (lambda challenge, identity: greeting(Welcome(bytes(32))), "garbage"),
    "another version": (
        lambda challenge, identity: greeting(Hello(VERSION + 1, "x", 0, 3, bytes(16), bytes(32))),
        "version",
    ),
    "another run": (
        lambda challenge, identity: greeting(
            RunIdentity(run="other", secret=identity.secret, size=3).hello(0, challenge, bytes(16), target=0)
        ),
        "wrong-run",
    ),
    "another size": (
        lambda challenge, identity: greeting(
            RunIdentity(run=identity.run, secret=identity.secret, size=9).hello(0, challenge, bytes(16), target=0)
        ),
        "wrong-run",
    ),
    "no secret": (
        lambda challenge, identity: greeting(
            RunIdentity(run=identity.run, secret=bytes(32), size=3).hello(0, challenge, bytes(16), target=0)
        ),
        "forged",
    ),
    "recorded": (
        lambda challenge, identity: greeting(identity.hello(0, Challenge(VERSION, b"x" * 16), bytes(16), target=0)),
        "forged",
    ),
    "passed on": (lambda challenge, identity: greeting(identity.hello(1, challenge, bytes(16), target=2)), "forged"),
    "no such endpoint": (
        lambda challenge, identity: greeting(identity.hello(7, challenge, bytes(16), target=0)),
        "wrong-sender",
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_dropped_with_a_reason_and_harms_nobody(play: Any, name: str) -> None:
    speak, reason = STRANGERS[name]

    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=SETTINGS) as cluster:
            victim = cluster.endpoints[0]
            attacker = await Attacker(address(victim)).connect()
            attacker.writer.write(speak(attacker.challenge, victim.identity))
            assert await attacker.refused() == reason
            assert victim.hostile == {reason: 1}
            await still_serves(cluster)
            assert (await cluster.finish()).hostile == {reason: 1}

    play(story())


INSIDERS: dict[str, tuple[Callable[[FrameWriter, bytes], list[bytes]], str]] = {
    "replay": (lambda writer, first: [first, first], "replayed"),
    "changed": (lambda writer, first: [first[:-1] + bytes([first[-1] ^ 1])], "forged"),
    "oversized": (lambda writer, first: [b"\x7f\xff\xff\xff"], "oversized"),
    "garbage": (lambda writer, first: [framed(bytes(100))], "forged"),
    "another's name": (lambda writer, first: [first, *writer.frames([(2, 0, Ball(1))])], "wrong-sender"),
    "not here": (lambda writer, first: [first, *writer.frames([(1, 2, Ball(1))])], "not-here"),
    "nobody": (lambda writer, first: [first, *writer.frames([(1, 99, Ball(1))])], "not-here"),
}


@pytest.mark.parametrize("name", INSIDERS)
def test_an_insider_who_misbehaves_is_dropped_with_a_reason(play: Any, name: str) -> None:
    speak, reason = INSIDERS[name]

    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=SETTINGS) as cluster:
            victim = cluster.endpoints[0]
            attacker = await Attacker(address(victim)).connect()
            key = await attacker.introduce(victim.identity, 1)
            writer = FrameWriter(victim.codec, key)
            attacker.writer.write(b"".join(speak(writer, b"".join(writer.frames([(1, 0, Ball(1))])))))
            assert await attacker.refused() == reason
            await still_serves(cluster)
            assert victim.hostile == {reason: 1}

    play(story())


def test_with_signatures_a_process_of_the_run_cannot_take_the_place_of_another(play: Any) -> None:
    async def story() -> None:
        settings = ClusterSettings(endpoints="node", round_s=0.01, sign=True)
        async with InProcessCluster(DurableCounter(), 3, settings=settings) as cluster:
            victim, true_peer, liar = cluster.endpoints
            before = dict(victim._by_peer)
            # It knows the secret of the run, its own key, and everybody's public keys.
            for signer in (None, Borrowed(liar.signer, 2)):
                attacker = await Attacker(address(victim)).connect()
                hello = victim.identity.hello(1, attacker.challenge, bytes(16), target=0, signer=signer)
                attacker.writer.write(greeting(hello))
                assert await attacker.refused() == "forged"
            assert victim._by_peer == before
            assert victim.hostile == {"forged": 2}
            assert true_peer.links[0].connections == 1
            await still_serves(cluster)

    play(story())


class Borrowed:
    """Signs everything for one endpoint."""

    def __init__(self, signer: Any, endpoint: int) -> None:
        self.signer, self.endpoint = signer, endpoint

    def sign(self, endpoint: int, proof: bytes) -> bytes:
        return self.signer.sign(self.endpoint, proof)


def test_with_signatures_nobody_but_the_peer_itself_is_sent_anything(play: Any) -> None:
    """A process of the run that takes the port of a peer that is down gets nothing that was meant for the peer."""

    async def story() -> None:
        settings = ClusterSettings(endpoints="node", round_s=0.01, sign=True)
        async with InProcessCluster(DurableCounter(), 3, settings=settings) as cluster:
            one, _, liar = cluster.endpoints

            async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                splitter = FrameSplitter()
                challenge = b"c" * 16
                writer.write(greeting(Challenge(VERSION, challenge)))
                hello = next(read_greeting(frame) for frame in splitter.feed(await reader.read(4096)))
                writer.write(
                    greeting(one.identity.welcome(hello, challenge, target=1, signer=Borrowed(liar.signer, 2)))
                )
                await writer.drain()

            server = await asyncio.start_server(pretend, "127.0.0.1", 0)
            one.links[1].move(server.sockets[0].getsockname())
            assert await until(lambda: one.hostile["forged"] > 0)
            assert one.links[1]._current is None or one.links[1]._current.writer is None
            assert "not endpoint 1" in one.links[1].last_error
            server.close()

    play(story())


def test_a_peer_whose_key_is_not_known_yet_comes_again_and_is_not_called_hostile(play: Any) -> None:
    async def story() -> None:
        settings = ClusterSettings(endpoints="node", round_s=0.01, sign=True)
        async with InProcessCluster(DurableCounter(), 3, settings=settings) as cluster:
            victim, peer, _ = cluster.endpoints
            assert victim.signatures is not None
            key = victim.signatures._public.pop(1)
            peer.links[0].cut()
            assert await until(lambda: peer.refused["early"] > 0)
            victim.signatures._public[1] = key
            assert await until(lambda: peer.links[0].connected.is_set() and peer.links[0].connections == 2)
            assert not victim.hostile

    play(story())


def test_a_connection_that_ends_inside_a_frame_is_counted(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=SETTINGS) as cluster:
            victim = cluster.endpoints[0]
            attacker = await Attacker(address(victim)).connect()
            await attacker.introduce(victim.identity, 1)
            attacker.writer.write(framed(bytes(100))[:50])
            await attacker.writer.drain()
            attacker.writer.close()
            assert await cluster.until(lambda run: victim.hostile == {"truncated": 1}, 10)
            await still_serves(cluster)

    play(story())


def test_who_says_nothing_is_dropped(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=SETTINGS) as cluster:
            cluster.endpoints[0].hello_timeout_s = 0.05
            attacker = await Attacker(address(cluster.endpoints[0])).connect()
            assert await attacker.refused() == "silent"

    play(story())


def test_a_crowd_that_keeps_silent_pushes_out_its_own_and_keeps_no_peer_away(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=SETTINGS) as cluster:
            victim = cluster.endpoints[0]
            most = victim.strangers.most
            crowd = [await Attacker(address(victim)).connect() for _ in range(3 * most)]
            assert len(victim.strangers) == most
            assert victim.hostile["crowded"] == 2 * most
            assert await crowd[0].refused() == "crowded"
            # Peers that were cut off come back while the crowd is still there.
            before = [link.connections for each in cluster.endpoints for link in each.links]
            for each in cluster.endpoints:
                for link in each.links:
                    if isinstance(link, StreamLink):
                        link.cut()
            await asyncio.sleep(0.05)
            assert all(await asyncio.gather(*(each.connected(10) for each in cluster.endpoints)))
            after = [link.connections for each in cluster.endpoints for link in each.links]
            assert sum(after) > sum(before)
            assert len(victim.strangers) >= most - 3
            await still_serves(cluster)
            for each in crowd:
                each.writer.close()

    play(story())


def test_connections_in_their_tls_handshake_are_counted_and_bounded(play: Any) -> None:
    pytest.importorskip("cryptography")
    settings = ClusterSettings(round_s=0.01, tls=True)

    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 3, settings=settings) as cluster:
            victim = cluster.endpoints[0]
            victim.hello_timeout_s = 0.2
            where = victim._gate._listening.getsockname()
            most = victim.strangers.most
            crowd = [await asyncio.open_connection(*where) for _ in range(2 * most)]
            assert await until(lambda: victim.hostile["crowded"] == most)
            assert len(victim.strangers) == most
            # One that says something else is refused at once, and the others are when their time is over.
            _, loud = crowd[-1]
            loud.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await until(lambda: victim.hostile["tls"] >= 1)
            await still_serves(cluster)
            for _, writer in crowd:
                writer.close()
            assert await until(lambda: not len(victim.strangers))

    play(story())


async def until(true: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if true():
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_link_keeps_no_more_than_its_bytes_while_its_peer_takes_none(play: Any) -> None:
    settings = ClusterSettings(round_s=0.01, queue_bytes=10_000)

    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 2, settings=settings, processes=2) as cluster:
            link = cluster.endpoints[0].links[1]
            assert isinstance(link, StreamLink)
            link._current.pause_writing()
            for number in range(100):
                link.queue.append((0, 1, Ball(number, "x" * 1000)))
                link.flush()
            assert 5 <= len(link.queue) <= 9
            assert [envelope[2].hops for envelope in link.queue] == list(range(100 - len(link.queue), 100))
            assert cluster.endpoints[0].overflowed == 100 - len(link.queue)
            link._current.resume_writing()
            assert not link.queue
            assert link._waiting_bytes == 0

    play(story())


def test_a_burst_of_long_messages_does_not_pass_by_the_limit_of_a_queue(play: Any) -> None:
    """What is written waits in the socket's buffer: a write of all that there is would be as much as there is."""

    async def story() -> None:
        settings = ClusterSettings(endpoints="node", queue_bytes=2**20)
        async with InProcessCluster(DurableCounter(), 2, settings=settings) as cluster:
            endpoint, peer = cluster.endpoints
            link = endpoint.links[1]
            assert link._current is not None
            for connection in peer.incoming:
                connection.transport.pause_reading()
            most = 0
            for length in (10, 300_000):
                for _ in range(60):
                    link.queue.append((0, 1, Ball("x" * length)))
                link.flush()
                most = max(most, link._current.transport.get_write_buffer_size())
                await asyncio.sleep(0)
            assert most < 3 * 2**20
            assert endpoint.overflowed > 0
            assert sum(len(message.hops) for _, _, message in link.queue) <= 2**20

    play(story())


def test_a_link_says_why_it_is_not_up(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(DurableCounter(), 2, settings=SETTINGS) as cluster:
            first = cluster.endpoints[0]
            assert first.missing() == {}
            link = first.links[1]
            link.connections = 0
            for each in cluster.endpoints[1:]:
                each._server.close()
            link.cut()
            assert await until(lambda: "refused" in link.last_error.lower())
            assert first.missing() == {1: link.last_error}

    play(story())


def test_hundreds_of_streams_of_noise_leave_the_cluster_as_it_was(play: Any) -> None:
    noise = random.Random(1)

    async def shout(victim: Endpoint) -> None:
        attacker = await Attacker(address(victim)).connect()
        kind = noise.randrange(4)
        data = noise.randbytes(noise.randrange(1, 400))
        if kind == 1:
            await attacker.introduce(victim.identity, 1, victim.number)
        if kind == 2:
            data = framed(data)
        if kind == 3:
            whole = greeting(victim.identity.hello(1, attacker.challenge, bytes(16), target=victim.number))
            data = whole[: noise.randrange(len(whole))] + data
        attacker.writer.write(data)
        attacker.writer.close()

    async def story() -> None:
        async with InProcessCluster(Talkers(), 3, settings=SETTINGS) as cluster:
            for _ in range(100):
                await asyncio.gather(*(shout(endpoint) for endpoint in cluster.endpoints for _ in range(3)))
            # All still hear each other, whatever came between.
            before = cluster.run.delivered
            assert await cluster.until(lambda run: len(run.decisions) == 6 and run.delivered > before + 50, 30)
            run = await cluster.finish()
        assert sum(run.hostile.values()) > 100
        assert run.failures == {}

    play(story())


def test_a_lost_connection_is_made_again_and_the_order_holds(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(Talkers(), 3, settings=SETTINGS) as cluster:
            for _ in range(5):
                await asyncio.sleep(0.03)
                for endpoint in cluster.endpoints:
                    for link in endpoint.links:
                        assert isinstance(link, StreamLink)
                        link.cut()
            assert await cluster.until(lambda run: len(run.decisions) == 6, 30)
            run = await cluster.finish()
        assert run.counters["connections"] > 6
        assert run.violation == ""

    play(story())


def test_a_full_queue_drops_the_oldest_and_counts(play: Any) -> None:
    async def story() -> None:
        settings = ClusterSettings(endpoints="node", queue_messages=10)
        async with InProcessCluster(DurableCounter(), 2, settings=settings) as cluster:
            sender, receiver = cluster.endpoints
            link = sender.links[1]
            # Nobody listens there any more.
            receiver._server.close()
            link.cut()
            await cluster.until(lambda run: not link.writable, 10)
            link.queue.extend((0, 1, Ball(number)) for number in range(25))
            sender.flush()
            assert [message.hops for _, _, message in link.queue] == list(range(15, 25))
            cluster.count()
            assert cluster.run.counters["overflowed"] == cluster.run.dropped == 15

    play(story())


def test_datagrams_of_strangers_are_counted_and_dropped(play: Any) -> None:
    async def story() -> None:
        settings = ClusterSettings(transport="udp")
        async with InProcessCluster(DurableCounter(), 3, settings=settings) as cluster:
            victim = cluster.endpoints[0]
            where = victim.port.transport.get_extra_info("sockname")
            writer = DatagramWriter(victim.codec, victim.identity, 1, 0)
            [good] = writer.datagrams([(1, 0, Ball(1))])
            [elsewhere] = writer.datagrams([(1, 2, Ball(1))])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
                for data in (b"", b"noise", bytes(200), good, good, good[:-1], elsewhere):
                    attacker.sendto(data, where)
            wanted = {"truncated": 2, "version": 1, "replayed": 1, "forged": 1, "not-here": 1}
            assert await cluster.until(lambda run: dict(victim.hostile) == wanted, 10), victim.hostile
            await still_serves(cluster)
            assert victim.delivered == 1

    play(story())
