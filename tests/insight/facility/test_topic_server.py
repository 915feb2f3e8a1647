"""The topic on loopback: messages in, JSON out, hostile peers cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from wavetank.insight.facility import ingest, topic_server
from wavetank.insight.facility.ingest import Ingestion, Rules
from wavetank.insight.facility.live_twin import LiveTwin
from wavetank.insight.facility.site import Site
from wavetank.insight.facility.topic_server import TopicServer

NOW = 1_800_000_000.0


def line(metric: str, value: float, unit: str, server: str = "s0", ts: float = NOW) -> bytes:
    return json.dumps({"topic": f"dc/r/{server}/{metric}", "ts": ts, "value": value, "unit": unit}).encode() + b"\n"


def served(talk: Callable[[TopicServer, int], Awaitable[None]], **options: float) -> TopicServer:
    """Run a conversation with a server whose clock a conversation may move."""
    clock = [NOW]
    server = TopicServer(ingestion=Ingestion(Rules(late_s=0)), twin=LiveTwin(Site(servers=2)),
                         clock=lambda: clock[0], **options)  # fmt: skip
    server.moved = clock  # type: ignore[attr-defined]

    async def main() -> None:
        stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
        task = asyncio.create_task(server.serve(0, port.set_result, stop))
        try:
            await asyncio.wait_for(talk(server, await port), 20)
        finally:
            stop.set()
            await asyncio.wait_for(task, 5)

    asyncio.run(main())
    assert not server._open
    return server


async def asked(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_messages_become_state_and_advice() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        assert await asked(port, "/advice") == (200, None)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in ("s0", "s1"):
            writer.write(line("load", 0.5, "", name) + line("power", 260.0, "W", name) + line("inlet", 25.0, "C", name))
        writer.write(line("supply", 24.0, "C") + line("outside", 30.0, "C") + line("humidity", 50.0, "%"))
        writer.write(line("load", 0.5, ""))
        await until(lambda: server.ingestion.counts.get(ingest.DUPLICATE, 0) == 1)
        server.moved[0] = NOW + 61  # type: ignore[attr-defined]
        await until(lambda: server.twin.advice is not None)
        status, state = await asked(port, "/state", "localhost")
        assert status == 200 and state["load"] == 0.5 and state["power_w"] == 520.0 and state["room_c"] is None
        status, advice = await asked(port, "/advice")
        assert status == 200 and advice["servers"] == 2 and 18 <= advice["supply_c"] <= 25.78
        assert (await asked(port, "/counts"))[1][ingest.TAKEN] == 9
        writer.close()

    served(talk)


def test_other_hosts_and_paths_are_refused() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        assert (await asked(port, "/state", "evil.example"))[0] == 403
        assert (await asked(port, "/"))[0] == 404

    served(talk)


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\n", b"[1]\n", b'{"topic": 3}\n', b"{" * 900 + b"\n", line("load", 7.0, "")]
)
def test_what_is_no_message_is_counted_and_the_next_one_taken(sent: bytes) -> None:
    async def talk(server: TopicServer, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent + line("load", 0.5, ""))
        await until(lambda: server.ingestion.counts[ingest.TAKEN] == 1)
        writer.close()

    counts = served(talk).ingestion.counts
    assert counts.get(ingest.MALFORMED, 0) + counts.get(ingest.RANGE, 0) == 1


def test_a_page_in_a_browser_cannot_post_messages() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + line("load", 0.5, ""))
        assert (await reader.readline()).split()[1] == b"405"
        writer.close()

    assert served(talk).ingestion.counts[ingest.TAKEN] == 0


def test_lines_without_end_and_silence_are_cut_off() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"a" * 10_000)
        assert await reader.read() == b""
        silent, held = await asyncio.open_connection("127.0.0.1", port)
        assert await silent.read() == b""
        for each in (writer, held):
            each.close()

    served(talk, idle_s=0.3)


def test_lines_that_are_no_messages_do_not_keep_a_connection() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(100):
            writer.write(b"x\n")
            await asyncio.sleep(0.03)
            if reader.at_eof():
                break
        assert reader.at_eof()
        writer.close()

    served(talk, idle_s=0.2)


def test_a_request_that_is_never_finished_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_server, "_ANSWER_S", 0.2)

    async def talk(server: TopicServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /state HTTP/1.1\r\n")
        for _ in range(100):
            writer.write(b"X: y\r\n" if reader.at_eof() is False else b"")
            await asyncio.sleep(0.03)
            if reader.at_eof():
                break
        assert reader.at_eof()
        writer.close()

    served(talk)


def test_crowds_that_say_nothing_keep_nobody_out_and_who_sends_stays() -> None:
    async def talk(server: TopicServer, port: int) -> None:
        sensor, sends = await asyncio.open_connection("127.0.0.1", port)
        sends.write(line("load", 0.5, ""))
        await until(lambda: server.ingestion.counts[ingest.TAKEN] == 1)
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        await until(lambda: server.ingestion.counts.get(topic_server.DISPLACED, 0) == 7)
        assert (await asked(port, "/counts"))[0] == 200
        sends.write(line("power", 200.0, "W"))
        await until(lambda: server.ingestion.counts[ingest.TAKEN] == 2)
        assert not sensor.at_eof() and len(server._open) <= 3
        for _, each in [*crowd, (sensor, sends)]:
            each.close()

    served(talk, connections=3)
