"""Two routers in front of the same backends: what each believes of the other's requests, and how far it can be off."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from wavetank.live.processes import free_port
from wavetank.serving.proxy.peers import PATH
from wavetank.serving.proxy.view import LiveRequest, PrefixMemory, WorkerAccount

CHAT = "/v1/chat/completions"


def seen(router: Any) -> list[int]:
    """Return how many requests a router's policy sees at every backend."""
    view = router.dispatcher.view.workers
    return [int(each) for each in view.running + view.waiting + view.sent_requests]


def pair() -> list[dict[str, Any]]:
    """Return settings of two routers that know each other."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    return [
        {"port": port, "peers": other, "metrics": "own", "policy": "fewest-requests", "peer_heard_s": 0.5}
        for port, other in zip(ports, reversed(urls), strict=True)
    ]


def test_both_see_what_either_has_and_agree_once_nothing_changes(live: Any) -> None:
    gate = asyncio.Event()

    async def held(backend: Any, asked: Any, writer: Any) -> None:
        await gate.wait()
        await live.well_behaved(backend, asked, writer)

    async def main() -> None:
        one, two = pair()
        async with live.backends(2, held) as servers:
            async with live.routing(*servers, **one) as a, live.routing(*servers, **two) as b:
                async with aiohttp.ClientSession() as client:

                    async def ask(router: Any) -> int:
                        async with client.post(router.address + CHAT, json=live.ask()) as answer:
                            await answer.read()
                            return answer.status

                    asking = [asyncio.ensure_future(ask(a)) for _ in range(7)]
                    await live.until(lambda: sum(server.answering for server in servers) == 7)
                    await live.until(lambda: sum(seen(a)) == sum(seen(b)) == 7)
                    asking += [asyncio.ensure_future(ask(b)) for _ in range(5)]
                    await live.until(lambda: sum(server.answering for server in servers) == 12)
                    await live.until(lambda: sum(seen(a)) == sum(seen(b)) == 12)
                    # Each decides with the other's requests in view, so that together they are even.
                    assert seen(a) == seen(b) == [server.answering for server in servers] == [6, 6]
                    gate.set()
                    assert set(await asyncio.gather(*asking)) == {200}
                await live.until(lambda: sum(seen(a)) == sum(seen(b)) == 0)

    live.run(main())


def recorded(router: Any, changes: list[float]) -> None:
    """Write down when a request begins or ends at a backend, as the router knows it."""
    for backend in router.backends:
        for name in ("send", "done"):
            call = getattr(backend.account, name)

            def record(*given: Any, call: Any = call) -> None:
                changes.append(time.monotonic())
                call(*given)

            setattr(backend.account, name, record)


def test_under_load_the_disagreement_is_at_most_what_changed_since_the_last_word(live: Any) -> None:
    changes: list[float] = []
    found: list[tuple[int, int]] = []

    async def main() -> None:
        one, two = pair()
        async with live.backends(2) as servers:
            for server in servers:
                server.pause_s = 0.004
            async with live.routing(*servers, **one) as a, live.routing(*servers, **two) as b:
                done = asyncio.Event()
                for router in (a, b):
                    recorded(router, changes)

                async def load(client: aiohttp.ClientSession, router: Any) -> None:
                    while not done.is_set():
                        async with client.post(router.address + CHAT, json=live.ask(stream=True)) as answer:
                            await answer.read()
                            assert answer.status == 200

                async with aiohttp.ClientSession() as client:
                    loads = [asyncio.ensure_future(load(client, router)) for router in (a, a, a, b, b)]
                    await live.until(lambda: a.peers._heard and b.peers._heard)
                    words: list[float] = []
                    for _ in range(80):
                        await asyncio.sleep(0.01)
                        words.append(min(heard_s for each in (a, b) for heard_s, *_ in each.peers._heard.values()))
                        views = min(backend.account.refreshed_s for each in (a, b) for backend in each.backends)
                        if len(words) > 5:
                            # A refresh may have used the word before the last one.
                            bound = sum(moment >= min(views, *words[-5:]) for moment in changes)
                            found.append((abs(sum(seen(a)) - sum(seen(b))), bound))
                    done.set()
                    await asyncio.gather(*loads)
                assert all(difference <= bound for difference, bound in found), found
                assert max(difference for difference, _ in found) <= 10
                await live.until(lambda: sum(seen(a)) == sum(seen(b)) == 0)

    live.run(main())


def test_one_that_ends_is_forgotten_after_a_while_and_a_router_is_not_its_own_peer(live: Any) -> None:
    async def main() -> None:
        one, two = pair()
        own = {**one, "peers": f"http://127.0.0.1:{one['port']},{one['peers']}"}
        async with live.backends(1) as [server]:
            server.pause_s = 1.0
            async with live.routing(server, **own) as a:
                async with live.routing(server, **two) as b:
                    async with aiohttp.ClientSession() as client:
                        async with client.post(b.address + CHAT, json=live.ask(stream=True)):
                            await live.until(lambda: seen(a) == [1])
                            await live.until(lambda: len(a.peers._heard) == 1)
                await live.until(lambda: seen(a) == [0])
                assert not a.peers._heard

    live.run(main())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "text/plain"),
        (b"{}", "application/json"),
        (b'{"router":"x","backends":{"%b":[-1,0]}}', "application/json"),
        (b'{"router":"x","backends":{"%b":[1e300,0]}}', "application/json"),
        (b'{"router":"x","backends":{"%b":[99999999999999999999,0]}}', "application/json"),
        (b'{"router":"x","backends":{"other":[5,5]}}', "application/json"),
    ],
)
def test_what_another_router_says_wrongly_changes_nothing(live: Any, body: bytes, kind: str) -> None:
    async def main() -> None:
        async with live.backends(2) as [server, liar]:
            said = body.replace(b"%b", f"127.0.0.1:{server.port}".encode())

            async def answer(asked: Any, reader: Any, writer: Any) -> None:
                asks.append(asked.path)
                writer.write(live.head(200, kind, len(said)) + said)

            liar._answer = answer
            async with live.routing(server, metrics="own", peers=liar.url) as router:
                await live.until(lambda: len(asks) > 3)
                assert seen(router) == [0]
                assert set(asks) == {PATH}

    asks: list[str] = []
    live.run(main())


def test_counts_are_shown_to_routers_alone(live: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("routers-only\n")

    async def main() -> None:
        key = {"peer_key_file": str(tmp_path / "key")}
        async with live.backends(1) as [server]:
            async with live.routing(server, **key) as router, aiohttp.ClientSession(router.address) as client:
                for given, status in (("", 401), ("Bearer wrong", 401), ("Bearer routers-only", 200)):
                    async with client.get(PATH, headers={"Authorization": given}) as answer:
                        assert answer.status == status
                        text = await answer.text()
                        assert "routers-only" not in text
                assert json.loads(text)["backends"] == {router.backends[0].name: [0, 0]}
                async with client.post(PATH) as answer:
                    assert answer.status == 405
            async with live.routing(server) as router, aiohttp.ClientSession(router.address) as client:
                async with client.get(PATH) as answer:
                    assert answer.status == 200
                async with client.get(PATH, headers={"X-Forwarded-For": "10.0.0.1"}) as answer:
                    assert answer.status == 401

    live.run(main())


def test_others_requests_fill_what_room_there_is() -> None:
    account = WorkerAccount(4, 1000.0, PrefixMemory(0.0, 0))
    for _ in range(3):
        account.send(LiveRequest(0.0, 10, []), 0.0)
    account.elsewhere = (3, 60)
    account.refresh(1.0)
    assert (account.running, account.waiting) == (4, 2)
    assert (account.kv_tokens, account.waiting_tokens) == (50.0, 40.0)
    assert account.load() == (3, 30)
    load: Any = SimpleNamespace(running=5, waiting=1, kv_usage=0.5, kv_capacity_tokens=1000.0)
    account.begin_look()
    account.refresh_from(load, 2.0)
    # Its own figures hold everybody's requests.
    assert (account.running, account.waiting) == (5, 1)


def test_a_router_that_hangs_hides_no_other_one(live: Any) -> None:
    async def main() -> None:
        async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            finally:
                writer.close()

        stuck = await asyncio.start_server(hangs, "127.0.0.1", 0)
        port = stuck.sockets[0].getsockname()[1]
        gate = asyncio.Event()

        async def held(backend: Any, asked: Any, writer: Any) -> None:
            await gate.wait()
            await live.well_behaved(backend, asked, writer)

        async with live.backends(1, held) as [server], live.routing(server, metrics="own") as b:
            peers = f"http://127.0.0.1:{port},{b.address}"
            async with live.routing(server, metrics="own", peers=peers, probe_s=2.0, peer_heard_s=0.5) as a:
                async with aiohttp.ClientSession(b.address) as client:
                    asking = asyncio.ensure_future(client.post(CHAT, json=live.ask()))
                    await live.until(lambda: seen(a) == [1])
                    # For as long as the hanging one is waited for the other's word is never too old.
                    for _ in range(20):
                        await asyncio.sleep(0.05)
                        assert seen(a) == [1]
                    gate.set()
                    (await asking).release()
                    await live.until(lambda: seen(a) == [0])
        stuck.close()

    live.run(main())


def test_a_router_that_is_listed_twice_counts_once_and_its_last_word_counts(live: Any) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(backend: Any, asked: Any, writer: Any) -> None:
            await gate.wait()
            await live.well_behaved(backend, asked, writer)

        async with live.backends(1, held) as [server], live.routing(server, metrics="own") as b:
            peers = f"http://127.0.0.1:{b.port},http://localhost:{b.port}"
            async with live.routing(server, metrics="own", peers=peers) as a:
                async with aiohttp.ClientSession(b.address) as client:
                    asking = asyncio.ensure_future(client.post(CHAT, json=live.ask()))
                    await live.until(lambda: len(a.peers._heard) == 2 and seen(a) != [0])
                    await asyncio.sleep(0.1)
                    assert seen(a) == [1]
                    gate.set()
                    (await asking).release()
                    await live.until(lambda: seen(a) == [0])

    live.run(main())
