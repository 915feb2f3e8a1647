"""Backends that come, change and go while requests are under way: none is lost, none goes where it must not."""

# Servers, a client and its requests are opened one inside the other, a line each.

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from wavetank.errors import WavetankError
from wavetank.serving.proxy import tasks
from wavetank.serving.proxy.access import digest_of
from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.router import Router
from wavetank.sim.rng import stream

CHAT = "/v1/chat/completions"
QUICK = """port = 0
refresh_s = 0.01
probe_every_s = 0.05
eject_s = 0.2
log = "none"
"""


def write(path: Path, servers: list[Any], *, policy: str = "round-robin", more: str = "", tables: str = "") -> None:
    urls = [each if isinstance(each, str) else f'"{each.url}"' for each in servers]
    path.write_text(f'policy = "{policy}"\n{QUICK}{more}\nbackends = [{", ".join(urls)}]\n{tables}')


class Site:
    """A router that was started from a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def __aenter__(self) -> Router:
        again = lambda: make_configuration(file=self.file)  # noqa: E731
        self.router = Router(again(), again)
        await self.router.start()
        return self.router

    async def __aexit__(self, *_: Any) -> None:
        await self.router.stop()


async def ask(client: aiohttp.ClientSession, text: str = "hello", **more: Any) -> tuple[int, bytes]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    async with client.post(CHAT, json=body) as answer:
        return answer.status, await answer.read()


def test_a_backend_that_is_not_named_any_more_finishes_what_it_has(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(2) as servers:
            servers[0].pause_s = 0.05
            write(file, [servers[0]])
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                old = router.backends[0]
                async with client.post(CHAT, json=live.ask("slow", stream=True)) as answer:
                    assert answer.status == 200
                    write(file, [servers[1]])
                    await router.reload()
                    assert [each.url for each in router.backends] == [servers[1].url]
                    assert list(router.members.leaving) == [old]
                    assert (await ask(client))[0] == 200
                    async with client.get("/admin/backends") as page:
                        rows = (await page.json())["backends"]
                    assert [(row["leaving"], row["in_flight"], row["routed"]) for row in rows] == [
                        (False, 0, True), (True, 1, False),
                    ]  # fmt: skip
                    assert (await answer.read()).endswith(b"data: [DONE]\n\n")
                await live.until(lambda: not router.members.leaving)
                await live.until(lambda: old.connections.open == 0)
                assert [len(server.asked) for server in servers] == [1, 1]

    live.run(main())


def test_one_that_is_named_again_before_it_is_done_is_the_same(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(2) as servers:
            servers[0].pause_s = 0.05
            write(file, servers)
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                both = router.backends
                async with client.post(CHAT, json=live.ask("slow", stream=True)) as answer:
                    write(file, servers[1:])
                    await router.reload()
                    busy = next(iter(router.members.leaving))
                    write(file, [f'{{ url = "{servers[0].url}", max_running = 7 }}', servers[1]])
                    await router.reload()
                    assert router.backends == both
                    assert not router.members.leaving
                    assert busy.account.in_flight == 1
                    assert busy.account.slots == 7
                    await answer.read()
                # Away and back at once: nobody was busy, so it may have left, and is there all the same.
                for _ in range(5):
                    write(file, servers[1:])
                    await router.reload()
                    write(file, servers)
                    await router.reload()
                assert {(await ask(client))[0] for _ in range(4)} == {200}

    live.run(main())


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("policy = \nport = 0", "line 1"),
        ('policy = "round-robin"\nport = 0\nbackends = ["http://127.0.0.1:1"]\nrefresh = 1', "line 4"),
        ('policy = "round-robin"\nport = 0\ntries = 0\nbackends = ["http://127.0.0.1:1"]', "line 3"),
        ('policy = "nobody"\nport = 0\nbackends = ["http://127.0.0.1:1"]', "policy"),
        ('policy = "round-robin"\nport = 1\nbackends = ["http://127.0.0.1:2"]', "restart"),
        ('policy = "round-robin"\nport = 0\nkeys_file = "none"\nbackends = ["http://127.0.0.1:1"]', "No such file"),
        (
            'policy = "round-robin"\nport = 0\nbackends = [{ url = "https://127.0.0.1:1", ca_file = "x" }]',
            "authorities",
        ),
        ('policy = "round-robin"\nport = 0\nbackends = []', "No backend"),
        ('policy = "round-robin"\nport = 0\nbackends = ["http://127.0.0.1:1"]\n[aliases]\na = "b"\nb = "c"', "alias"),
        ("policy = " + "[" * 20_000, "nested too deeply"),
        ("port = " + "1" * 5000, "not valid TOML"),
        (None, "No such file"),
        (Path("/dev/zero"), "too large"),
        (Path("/"), "Is a directory"),
    ],
)
def test_a_broken_file_changes_nothing_and_says_what_is_wrong(
    live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str | Path | None, says: str
) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(1) as [server]:
            write(file, [server])
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                before = (router.backends, router.settings, router.dispatcher.router, router.dispatcher.targets)
                file.unlink()
                if isinstance(broken, Path):
                    file.symlink_to(broken)
                elif broken is not None:
                    file.write_text(broken)
                async with client.post("/admin/reload") as answer:
                    found = await answer.json()
                    assert answer.status == 422
                assert says in found["error"]["message"]
                assert says in caplog.text
                with pytest.raises(WavetankError):
                    await router.reload()
                assert before == (
                    router.backends, router.settings, router.dispatcher.router, router.dispatcher.targets,
                )  # fmt: skip
                assert (await ask(client))[0] == 200

    live.run(main())


def test_a_pipe_in_place_of_a_file_holds_nothing_up(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(1) as [server]:
            write(file, [server])
            async with Site(file) as router:
                file.unlink()
                os.mkfifo(file)
                async with asyncio.timeout(10.0):
                    with pytest.raises(WavetankError):
                        await router.reload()
                for name, more in (
                    ("keys_file", ""),
                    ("api_key_file", ""),
                    ("backend_ca_file", '"https://127.0.0.1:1"'),
                ):
                    file.unlink(missing_ok=True)
                    os.mkfifo(tmp_path / name)
                    write(file, [server, *filter(None, [more])], more=f'{name} = "{tmp_path / name}"')
                    async with asyncio.timeout(10.0):
                        if name == "keys_file":
                            # It holds no key, so nobody may send anything.
                            await router.reload()
                            assert router.access.asked
                        else:
                            with pytest.raises(WavetankError):
                                await router.reload()

    live.run(main())


def test_what_has_left_leaves_nothing_behind(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(2) as servers:
            for server in servers:
                server.metrics_page = b"llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
            write(file, servers)
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                gone = router.backends[1]
                known, name = weakref.ref(gone), gone.name
                for _ in range(4):
                    assert (await ask(client))[0] == 200
                await live.until(lambda: len(router._read_s) == 2)
                assert name in router.metrics.page().decode()
                del gone
                write(file, servers[:1])
                await router.reload()
                await live.until(lambda: not router.members.leaving)
                await live.until(lambda: gc.collect() >= 0 and known() is None)
                assert name not in router.metrics.page().decode()
                assert router.backends[0].name in router.metrics.page().decode()
                write(file, servers)
                await router.reload()
                for _ in range(4):
                    assert (await ask(client))[0] == 200
                assert f'backend="{name}",policy="round-robin",status="200"}} 2.0' in router.metrics.page().decode()

    live.run(main())


def test_a_defect_in_what_runs_beside_the_requests_does_not_end_it(
    live: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.001)

    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, fall=1, rise=1) as router:
            left = {"refresh": 3, "probe": 3}

            def broken(name: str, call: Any) -> Any:
                async def step(*given: Any) -> Any:
                    if left[name]:
                        left[name] -= 1
                        raise RuntimeError(name)
                    return await call(*given)

                return step

            monkeypatch.setattr(router, "_refresh", broken("refresh", router._refresh))
            monkeypatch.setattr(router.members, "_probe", broken("probe", router.members._probe))
            await live.until(lambda: not any(left.values()))
            server.health = 500
            await live.until(lambda: not router.backends[0].up)
            server.health = 200
            await live.until(lambda: router.backends[0].up)
        assert caplog.text.count("a defect of the router, in refresh") == 3

    live.run(main())


class TestLoops:
    def test_a_router_among_its_own_backends_is_none_whatever_it_is_called(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            file = tmp_path / "r.toml"
            async with live.backends(1) as [server]:
                write(file, [server])
                async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                    own = [f'"http://localhost:{router.port}"', f'"http://127.0.0.1:{router.port}/models/a"']
                    write(file, [server, *own])
                    await router.reload()
                    assert [backend.up for backend in router.backends] == [True, False, False]
                    for _ in range(6):
                        assert (await ask(client))[0] == 200
                    assert len(server.asked) == 6
                    assert "this router itself" in router.backends[1].trouble
                    write(file, own)
                    await router.reload()
                    status, body = await ask(client)
                    assert status == 503
                    assert b"this router itself" in body

        live.run(main())

    def test_a_circle_of_routers_ends_where_it_began_and_real_backends_answer(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            one, two = tmp_path / "1.toml", tmp_path / "2.toml"
            async with live.backends(1) as [server]:
                for file in (one, two):
                    write(file, [server])
                async with Site(one) as a, Site(two) as b, aiohttp.ClientSession(a.address) as client:
                    write(one, [server, f'"{b.address}"'])
                    write(two, [f'"{a.address}"', server])
                    await a.reload()
                    await b.reload()
                    before = len(server.asked)
                    for _ in range(8):
                        assert (await ask(client))[0] == 200
                    assert len(server.asked) == before + 8
                    # With nobody else there it ends, instead of going round.
                    write(one, [f'"{b.address}"'])
                    write(two, [f'"{a.address}"'])
                    await a.reload()
                    await b.reload()
                    status, body = await ask(client)
                    assert status == 508
                    assert b"loop_detected" in body
                    assert [each.proxy.in_flight for each in (a, b)] == [0, 0]
                    assert [backend.account.in_flight for each in (a, b) for backend in each.backends] == [0, 0]

        live.run(main())


def test_keys_limits_aliases_and_the_policy_change_while_it_serves(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file, keys = tmp_path / "r.toml", tmp_path / "k.toml"
        entry = f'[[keys]]\nname = "a"\nsha256 = "{digest_of("a")}"\n'
        async with live.backends(1) as [server]:
            write(file, [server])
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                assert (await ask(client))[0] == 200
                keys.write_text(entry)
                write(
                    file, [server], policy="power-of-two", more=f'keys_file = "{keys}"\nmax_body_bytes = 1000',
                    tables='[parameters]\nseed = 3\n[aliases]\nbest = "m"\n',
                )  # fmt: skip
                async with client.post("/admin/reload") as answer:
                    assert (answer.status, await answer.json()) == (200, {"status": "reloaded", "backends": 1})
                assert (await ask(client))[0] == 401
                client.headers["X-Api-Key"] = "a"
                assert (await ask(client, model="best"))[0] == 200
                assert server.asked[-1].json["model"] == "m"
                assert (await ask(client, "x" * 1000))[0] == 413
                assert router.dispatcher.router.seed == 3
                assert 'policy="power-of-two"' in router.metrics.page().decode()
                keys.write_text(entry + "requests_per_minute = 1\nburst_s = 1\n")
                await router.reload()
                assert [(await ask(client))[0] for _ in range(2)] == [200, 429]
                keys.write_text("")
                await router.reload()
                assert (await ask(client))[0] == 401

    live.run(main())


def test_a_policy_with_a_pool_gives_way_to_one_without_and_nobody_waits_for_ever(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(1) as [server]:
            server.pause_s = 0.02
            write(file, [server], policy="balance-route", more='max_running = 1\nmetrics = "own"')
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                asking = [asyncio.ensure_future(ask(client, stream=True)) for _ in range(6)]
                await live.until(lambda: router.dispatcher.waiting >= 4)
                write(file, [server], policy="fewest-requests", more='max_running = 1\nmetrics = "own"')
                await router.reload()
                assert router.dispatcher.waiting == 0
                assert {status for status, _ in await asyncio.gather(*asking)} == {200}
                write(file, [server], policy="balance-route", more='max_running = 1\nmetrics = "own"')
                await router.reload()
                found = await asyncio.gather(*(ask(client, stream=True) for _ in range(4)))
                assert {status for status, _ in found} == {200}

    live.run(main())


def test_a_hundred_reloads_under_load_lose_no_request(live: Any, tmp_path: Path) -> None:
    rng = stream(0, "reloads")

    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(4) as servers:
            for server in servers:
                server.pause_s = 0.001
            write(file, servers)
            async with Site(file) as router:
                done, count = asyncio.Event(), [0, 0]

                async def load(client: aiohttp.ClientSession, number: int) -> None:
                    while not done.is_set():
                        name = f"{number}-{count[0]}"
                        streams = count[0] % 2 == 0
                        status, found = await ask(client, name, stream=streams)
                        assert status == 200, found
                        if streams:
                            assert found.count(f'"{name}/'.encode()) == 8
                            assert found.endswith(b"data: [DONE]\n\n")
                        else:
                            assert json.loads(found)["choices"][0]["message"]["content"] == name
                        count[0] += 1

                connector = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(router.address, connector=connector) as client:
                    loads = [asyncio.ensure_future(load(client, number)) for number in range(5)]
                    for _ in range(100):
                        chosen = [server for server in servers if rng.random() < 0.5] or servers[:1]
                        if rng.random() < 0.1:
                            file.write_text("policy = ")
                            with pytest.raises(WavetankError):
                                await router.reload()
                            continue
                        policy = ("round-robin", "fewest-requests", "vllm-default")[int(rng.integers(0, 3))]
                        write(file, chosen, policy=policy)
                        await router.reload()
                        assert [each.url for each in router.backends] == [server.url for server in chosen]
                        await asyncio.sleep(0.002)
                    done.set()
                    await asyncio.gather(*loads)
                assert count[0] > 50
                await live.until(lambda: not router.members.leaving)
                assert [each.account.in_flight for each in router.backends] == [0] * len(router.backends)
                assert router.proxy.in_flight == 0
                answered = sum(len(server.asked) for server in servers)
                # None was sent twice.
                assert answered == count[0]

    live.run(main())


def test_reloads_at_once_and_an_end_in_the_middle_leave_nothing_behind(live: Any, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(2) as servers:
            for rounds in range(12):
                write(file, servers[:1])
                async with Site(file) as router:
                    write(file, servers)
                    router.reload_soon()
                    router.reload_soon()
                    for _ in range(rounds * 3):
                        await asyncio.sleep(0)
            await asyncio.sleep(0.02)
            assert sum(len(server._writers) for server in servers) == 0

    live.run(main())


def test_one_whose_certificate_changes_keeps_its_load(live: Any, tmp_path: Path) -> None:
    import ssl

    async def main() -> None:
        first, second = live.Authority(tmp_path), live.Authority(tmp_path, "second")
        server = live.FakeBackend()
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(*first.issue("b", "127.0.0.1"))
        await server.start()
        file = tmp_path / "r.toml"
        ca = tmp_path / "ca.pem"
        ca.write_bytes(first.ca.read_bytes())
        try:
            write(file, [server], more=f'backend_ca_file = "{ca}"')
            async with Site(file) as router, aiohttp.ClientSession(router.address) as client:
                [one] = router.backends
                pool = one.connections
                await router.reload()
                assert one.connections is pool
                server.pause_s = 0.02
                slow = asyncio.ensure_future(ask(client, stream=True))
                await live.until(lambda: one.account.in_flight)
                ca.write_bytes(second.ca.read_bytes())
                server.tls.load_cert_chain(*second.issue("b2", "127.0.0.1"))
                await router.reload()
                assert router.backends == (one,)
                assert one.connections is not pool
                assert one.account.in_flight == 1
                assert (await slow)[0] == 200
                assert (await ask(client))[0] == 200
                assert pool.open == 0
        finally:
            await server.kill()

    live.run(main())


def test_a_signal_reloads_a_launched_router(live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from wavetank.serving.proxy.router import serve

    async def main() -> None:
        file = tmp_path / "r.toml"
        async with live.backends(2) as servers:
            write(file, servers[:1])
            again = lambda: make_configuration(file=file)  # noqa: E731
            router = Router(again(), again)
            started = asyncio.Event()
            serving = asyncio.ensure_future(serve(router, lambda address: started.set()))
            await started.wait()
            write(file, servers)
            os.kill(os.getpid(), signal.SIGHUP)
            await live.until(lambda: len(router.backends) == 2)
            file.write_text("policy =")
            os.kill(os.getpid(), signal.SIGHUP)
            await live.until(lambda: "stays as it was" in caplog.text)
            assert len(router.backends) == 2
            os.kill(os.getpid(), signal.SIGTERM)
            assert await serving

    caplog.set_level(logging.WARNING)
    live.run(main())


def test_a_router_without_a_file_says_so(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:
            assert dataclasses.is_dataclass(router.settings)
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post("/admin/reload") as answer:
                    assert answer.status == 422
                async with client.get("/admin/reload") as answer:
                    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
                async with client.post("/admin/reload", headers={"Origin": "http://evil"}) as answer:
                    assert answer.status == 401

    live.run(main())
