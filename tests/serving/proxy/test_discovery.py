"""Backends that are found: what comes from outside is doubted, what was good counts on while nothing better comes."""

# Servers, a client and its requests are opened one inside the other, a line each.

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

pytest.importorskip("cryptography")

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.serving.proxy import discovery
from wavetank.serving.proxy.configuration import BackendSettings, DiscoverySettings, make_configuration
from wavetank.serving.proxy.discovery import Addresses, DnsSource, KubernetesSource, Source, places, source_of
from wavetank.serving.proxy.router import Router

CHAT = "/v1/chat/completions"
A, B, C = ("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.3", 8000)


def source(hold_s: float = 10.0, **more: Any) -> Addresses:
    return Addresses(DiscoverySettings(**{"dns": "models.example", **more}), hold_s)


class TestDoubt:
    def test_an_answer_of_nothing_and_a_flapping_one_keep_what_was_good_for_a_time(self) -> None:
        one = source()
        assert one.take([A, B], 0.0, whole=False)
        assert not one.take([], 5.0, whole=False)
        assert one.found == (A, B)
        for now, answer in ((6.0, [A]), (9.0, [B]), (12.0, [A]), (15.0, [B])):
            assert not one.take(answer, now, whole=False)
        assert one.take([A], 25.5, whole=False)
        assert one.found == (A,)
        assert one.take([], 40.0, whole=False)
        assert one.found == ()
        assert "no address" in one.trouble

    def test_a_source_that_names_all_is_doubted_only_where_it_names_none(self) -> None:
        one = source()
        one.take([A, B], 0.0, whole=True)
        assert one.take([B], 1.0, whole=True)
        assert one.found == (B,)
        assert not one.take([], 2.0, whole=True)
        assert one.take([], 12.0, whole=True)
        assert one.found == ()

    def test_one_that_cannot_be_asked_says_nothing_about_its_backends(self) -> None:
        one = source()
        one.take([A], 0.0, whole=True)
        for now in range(0, 1000, 5):
            one.failed("it is away", float(now))
        assert one.found == (A,)
        assert one.trouble == "it is away"

    @pytest.mark.parametrize(
        "address",
        ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "169.254.169.254", "::ffff:169.254.169.254", "fe80::1",
         "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "", "models.example",
         "10.0.0.1:80", "10.0.0.1/x",
         "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2002:7f00:1::", "fd00:ec2::254", "100.100.100.200",
         "0x7f000001", "2130706433", "127.1", "10.0.0.1\r\nX: y"],
    )  # fmt: skip
    def test_addresses_that_no_backend_has_are_not_used(self, address: str, caplog: pytest.LogCaptureFixture) -> None:
        one = source()
        one.take([(address, 80), A], 0.0, whole=True)
        one.take([(address, 80), A], 1.0, whole=True)
        assert one.found == (A,)
        assert caplog.text.count("is not used") == 1

    def test_networks_say_where_backends_may_be(self) -> None:
        one = source(networks=("10.0.0.0/31", "127.0.0.0/8", "fd00::/8"))
        one.take([A, B, ("127.0.0.1", 1), ("::ffff:10.0.0.1", 2), ("fd00::1", 3), ("fe80::1", 4)], 0.0, whole=True)
        assert one.found == (("10.0.0.1", 2), A, ("127.0.0.1", 1), ("fd00::1", 3))

    def test_a_quiet_hour_before_it_names_none_is_no_reason_to_believe_it_at_once(self) -> None:
        one = source()
        one.take([A, B], 0.0, whole=True)
        # It says nothing while nothing changes.
        assert not one.take([], 3600.0, whole=True)
        assert one.found == (A, B)
        assert not one.take([], 3609.0, whole=True)
        assert one.take([], 3610.0, whole=True)
        assert one.found == ()

    def test_an_address_in_several_spellings_is_one(self) -> None:
        one = source()
        mapped, others = ("::ffff:10.0.0.1", 8000), [(each, 1) for each in ("fd00::1", "FD00:0:0::1", "fd00:0::0001")]
        one.take([A, mapped, *others], 0.0, whole=True)
        assert one.found == (A, ("fd00::1", 1))

    def test_a_share_is_split_among_all_that_are_found(self) -> None:
        one = source(share=0.2)
        for count in (1, 4, 1000):
            one.take([(f"10.1.{at >> 8}.{at & 255}", 1) for at in range(count)], 0.0, whole=True)
            assert sum(each.share or 0.0 for each in one.backends) == pytest.approx(0.2)
            assert len({each.share for each in one.backends}) == 1

    def test_a_place_that_is_listed_in_another_spelling_is_not_found_again(self) -> None:
        one = source(port="80")
        one.take([("10.0.0.1", 80), ("fd00::1", 80)], 0.0, whole=True)
        for url in ("http://10.0.0.1/v1", "HTTP://10.0.0.1:80", "http://10.0.0.1:80/"):
            listed = BackendSettings(url=url, max_running=3)
            assert [each.url for each in places([one], [listed])] == [url, "http://[fd00::1]:80"]

    def test_too_many_are_cut(self) -> None:
        one = source()
        one.take([(f"10.1.{at >> 8}.{at & 255}", 1) for at in range(2000)], 0.0, whole=True)
        assert len(one.found) == discovery.MOST_FOUND
        assert "2000 addresses" in one.trouble

    def test_what_is_found_has_the_settings_of_its_source(self) -> None:
        one = source(scheme="https", path="/a", max_running=7, networks=("::/0",))
        one.take([("fd00::1", 3)], 0.0, whole=True)
        [made] = one.backends
        assert (made.url, made.max_running, made.server_name) == ("https://[fd00::1]:3/a", 7, "models.example")
        assert places([one, one], [made]) == [made]


@pytest.mark.parametrize(
    "given",
    [{}, {"dns": "a", "srv": "b"}, {"dns": "a", "port": "http"}, {"dns": "a", "port": "70000"}, {"dns": "a b"},
     {"dns": "a..b"}, {"dns": "x" * 64 + ".example"}, {"dns": ".".join(["abc"] * 70)},
     {"kubernetes": "a"}, {"kubernetes": "a/b/c"}, {"kubernetes": "../x"}, {"kubernetes": "a/b", "api": "http://x"},
     {"dns": "a", "networks": ("10.0.0.1/8",)}, {"dns": "a", "path": "/../x"}, {"dns": "a", "url": "http://x"},
     {"dns": "a", "ca_file": "x"}, {"dns": "a", "scheme": "https", "cert_file": "x"}],
)  # fmt: skip
def test_a_source_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        DiscoverySettings(**given)


def test_a_file_names_sources(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(
        'policy = "round-robin"\n'
        'discover = [{ dns = "a", port = 80 }, { kubernetes = "n/s", port = "http", share = 0.1 }]'
    )
    made = make_configuration(file=file)
    assert made.backends == ()
    assert made.discover == (
        DiscoverySettings(dns="a", port="80"), DiscoverySettings(kubernetes="n/s", port="http", share=0.1),
    )  # fmt: skip
    file.write_text('policy = "round-robin"\ndiscover = [{ dns = "a", slots = 3 }]')
    with pytest.raises(WavetankError, match="slots"):
        make_configuration(file=file)


def test_without_a_cluster_the_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadFileError, match="no Kubernetes API"):
        source_of(DiscoverySettings(kubernetes="n/s"), 1.0, 1.0)
    with pytest.raises(BadFileError, match="service account"):
        source_of(DiscoverySettings(kubernetes="n/s", api="https://a", account_folder=str(tmp_path)), 1.0, 1.0)


async def followed(one: Source) -> tuple[asyncio.Task[None], list[tuple[Any, ...]]]:
    """Run a source; returns its task and the sets that counted, one after the other."""
    sets: list[tuple[Any, ...]] = []
    return asyncio.ensure_future(one.run(lambda: sets.append(one.found))), sets


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
AWAY = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def resolver(answers: Callable[[str], Any]) -> list[str]:
    """Let names be resolved by a test in the running loop; returns the names that were asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: Any, **_: Any) -> list[Any]:
        asked.append(host)
        found = answers(host)
        if isinstance(found, Exception):
            raise found
        return [(socket.AF_INET, 1, 6, "", (each, 0)) for each in found]

    asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign,assignment]
    return asked


class TestDns:
    def test_names_are_looked_up_again_and_again(self, live: Any) -> None:
        answers: list[Any] = [["10.0.0.1"], NO_NAME, AWAY, ["10.0.0.2", "10.0.0.1"]]

        async def main() -> None:
            one = DnsSource(DiscoverySettings(dns="models.example"), 0.005, 60.0)
            asked = resolver(lambda name: answers.pop(0) if len(answers) > 1 else answers[0])
            task, sets = await followed(one)
            await live.until(lambda: len(asked) > 4)
            await ended(task)
            assert sets == [(A,), (A, B)]
            assert set(asked) == {"models.example"}
            assert one.trouble == ""

        live.run(main())

    def test_a_dns_that_is_away_says_nothing_and_a_name_that_is_gone_does(self, live: Any) -> None:
        async def main() -> None:
            one = DnsSource(DiscoverySettings(dns="models.example"), 0.001, 0.02)
            said: list[Any] = [["10.0.0.1"]]
            asked = resolver(lambda name: said[-1])
            task, sets = await followed(one)
            await live.until(lambda: sets)
            for away in (AWAY, socket.gaierror(socket.EAI_FAIL, "failure"), OSError(5, "broken"), TimeoutError()):
                said.append(away)
                since = len(asked)
                await live.until(lambda since=since: len(asked) > since + 3)
                await asyncio.sleep(0.05)
                assert one.found == (A,)
                assert "cannot be asked" in one.trouble
            said.append(NO_NAME)
            await live.until(lambda: one.found == ())
            assert "cannot be resolved" in one.trouble
            said.append(["10.0.0.2"])
            await live.until(lambda: one.found == (B,))
            await ended(task)

        live.run(main())

    @pytest.mark.parametrize("defect", [ZeroDivisionError(), UnicodeError("no label"), RuntimeError("broken")])
    def test_nothing_that_goes_wrong_ends_the_asking(
        self, live: Any, monkeypatch: pytest.MonkeyPatch, defect: Exception
    ) -> None:
        monkeypatch.setattr(discovery, "_AGAIN_MOST_S", 0.002)

        async def main() -> None:
            one = DnsSource(DiscoverySettings(dns="models.example"), 0.002, 60.0)
            said: list[Any] = [defect]
            asked = resolver(lambda name: said[-1])
            task, sets = await followed(one)
            await live.until(lambda: len(asked) > 3)
            assert one.looked.is_set()
            assert one.trouble
            said.append(["10.0.0.1"])
            await live.until(lambda: sets == [(A,)])
            await ended(task)

        live.run(main())

    def test_a_target_that_cannot_be_resolved_takes_no_other_one_with_it(
        self, live: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        targets = [("good", 8000), ("lost", 8000), ("away", 8000), ("x" * 64, 8000), ("better", 8000)]
        answers: dict[str, Any] = {"good": ["10.0.0.1"], "lost": NO_NAME, "away": AWAY, "better": ["10.0.0.2"]}

        async def main() -> None:
            one = DnsSource(DiscoverySettings(srv="_http._tcp.models.example"), 0.002, 0.01)

            async def services(name: str) -> tuple[list[Any], str]:
                return targets, ""

            monkeypatch.setattr(one, "_services", services)
            asked = resolver(lambda name: answers.get(name, UnicodeError("label too long")))
            task, sets = await followed(one)
            await live.until(lambda: len(asked) > 50)
            await ended(task)
            assert sets == [(A, B)]
            assert one.found == (A, B)
            assert one.trouble == "1 of its 5 names could not be asked for"

        live.run(main())

    def test_the_systems_resolver_is_asked(self, live: Any) -> None:
        async def main() -> None:
            one = DnsSource(DiscoverySettings(dns="localhost", port="81", networks=("127.0.0.0/8",)), 1.0, 60.0)
            task, sets = await followed(one)
            await live.until(lambda: sets)
            await ended(task)
            assert sets == [(("127.0.0.1", 81),)]

        live.run(main())

    def test_services_name_their_ports(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import dns.asyncresolver
        import dns.message
        import dns.rrset

        class Stub(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, address: Any) -> None:
                query = dns.message.from_wire(data)
                reply = dns.message.make_response(query)
                name = query.question[0].name
                reply.answer.append(
                    dns.rrset.from_text(name, 5, "IN", "SRV", "0 0 8001 localhost.", "0 0 8002 localhost.")
                )
                self.transport.sendto(reply.to_wire(), address)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(Stub, local_addr=("127.0.0.1", 0))
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = ["127.0.0.1"]
            resolver.port = transport.get_extra_info("sockname")[1]
            monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
            one = DnsSource(DiscoverySettings(srv="_http._tcp.models.example", networks=("127.0.0.0/8",)), 1.0, 60.0)
            task, sets = await followed(one)
            await live.until(lambda: sets)
            await ended(task)
            transport.close()
            assert sets == [(("127.0.0.1", 8001), ("127.0.0.1", 8002))]

        live.run(main())


def endpoints(name: str, *addresses: str, port: int = 8000, ready: Any = True, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], "conditions": {"ready": ready}} for each in addresses],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}, {"name": "other", "port": 9}],
        **more,
    }


class Api:
    """A Kubernetes API server that does what a test says."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.lists: list[Any] = []
        self.watches: list[Any] = []
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.status = 200
        self.headers: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        (self.watches if "watch" in query else self.lists).append((query, request.headers.get("Authorization")))
        if self.status == 0 and request.transport is not None:
            request.transport.abort()
        if self.status != 200:
            return web.Response(status=self.status or 500, headers=self.headers)
        if "watch" not in query:
            return web.json_response({"metadata": {"resourceVersion": str(len(self.lists))}, "items": self.slices})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            data = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
            for at in range(0, len(data), 100):
                await response.write(data[at : at + 100])
        return response


@contextlib.asynccontextmanager
async def cluster(live: Any, folder: Path) -> AsyncIterator[Any]:
    authority = live.Authority(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("api", "127.0.0.1"))
    account = folder / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(authority.ca.read_bytes())
    (account / "token").write_text("token-1\n")
    api = Api()
    runner = web.AppRunner(web.Application(), shutdown_timeout=0.1, handler_cancellation=True)
    runner.app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices", api.answer)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    given = {"kubernetes": "prod/vllm", "api": f"https://127.0.0.1:{port}", "account_folder": str(account)}
    try:
        yield SimpleNamespace(api=api, given=given, account=account, site=site)
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_AGAIN_S", 0.01)
    monkeypatch.setattr(discovery, "_AGAIN_MOST_S", 0.05)


class TestKubernetes:
    def test_a_service_is_listed_once_and_followed(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            async with cluster(live, tmp_path) as site:
                api = site.api
                api.slices = [
                    endpoints("s1", "10.0.0.1"), endpoints("s2", "10.0.0.9", ready=False),
                    endpoints("s3", "10.0.0.8", port=7), endpoints("s4", "a.example", addressType="FQDN"),
                ]  # fmt: skip
                one = KubernetesSource(DiscoverySettings(**site.given), 1.0, 0.05)
                task, sets = await followed(one)
                await live.until(lambda: one.found == (A,))
                for kind, given in (
                    ("ADDED", endpoints("s5", "10.0.0.2", "10.0.0.3")),
                    ("BOOKMARK", {"metadata": {"resourceVersion": "77"}}),
                    ("MODIFIED", endpoints("s5", "10.0.0.3")),
                    ("DELETED", endpoints("s1")),
                ):
                    api.events.put_nowait({"type": kind, "object": given})
                await live.until(lambda: one.found == (C,))
                assert sets[0] == (A,)
                assert len(api.lists) == 1
                query, token = api.watches[0]
                assert query["labelSelector"] == "kubernetes.io/service-name=vllm"
                assert query["resourceVersion"] == "1"
                assert token == "Bearer token-1"
                # The watch ends in order: the next one goes on from the last version, with the token of then.
                (site.account / "token").write_text("token-2")
                api.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}})
                api.events.put_nowait(None)
                await live.until(lambda: len(api.watches) > 1)
                assert api.watches[1] == ({**query, "resourceVersion": "99"}, "Bearer token-2")
                # One that terminates is not used, and where nothing is left the last set counts for a while.
                gone = endpoints("s5", "10.0.0.3")
                gone["endpoints"][0]["conditions"] = {"ready": None, "terminating": True}
                api.events.put_nowait({"type": "MODIFIED", "object": gone})
                await live.until(lambda: "no address" in one.trouble)
                await live.until(lambda: one.found == ())
                await ended(task)

        live.run(main())

    @pytest.mark.parametrize("how", ["event", "status"])
    def test_a_version_that_is_gone_is_listed_again(self, live: Any, tmp_path: Path, how: str) -> None:
        async def main() -> None:
            async with cluster(live, tmp_path) as site:
                api = site.api
                api.slices = [endpoints("s1", "10.0.0.1")]
                one = KubernetesSource(DiscoverySettings(**site.given), 1.0, 60.0)
                task, _ = await followed(one)
                await live.until(lambda: api.watches)
                api.slices = [endpoints("s1", "10.0.0.2")]
                if how == "event":
                    api.events.put_nowait({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
                    await live.until(lambda: one.found == (B,))
                else:
                    api.status = 410
                    api.events.put_nowait(None)
                    await live.until(lambda: len(api.lists) > 1)
                    api.status = 200
                    await live.until(lambda: one.found == (B,))
                await ended(task)

        live.run(main())

    @pytest.mark.parametrize("wrong", [401, 403, 500, 302, b"{no json}\n", b'{"type": 7}\n', "lost"])
    def test_an_api_that_fails_is_asked_again_with_pauses_and_its_set_counts_on(
        self, live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: Any
    ) -> None:
        async def main() -> None:
            async with cluster(live, tmp_path) as site:
                api = site.api
                api.slices = [endpoints("s1", "10.0.0.1")]
                elsewhere = await asyncio.start_server(lambda r, w: leaked.append(1), "127.0.0.1", 0)
                api.headers = {"Location": f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/"}
                one = KubernetesSource(DiscoverySettings(**site.given), 1.0, 0.01)
                task, sets = await followed(one)
                await live.until(lambda: api.watches)
                if isinstance(wrong, int):
                    api.status = wrong
                    api.events.put_nowait({"type": "ERROR", "object": {"code": 500, "message": "over"}})
                elif wrong == "lost":
                    api.status = 0
                    api.events.put_nowait(None)
                else:
                    api.events.put_nowait(wrong)
                await live.until(lambda: "cannot be asked" in caplog.text)
                await asyncio.sleep(0.1)
                assert one.found == (A,)
                assert sets == [(A,)]
                assert len(api.lists) + len(api.watches) < 30
                assert "token-1" not in caplog.text
                await ended(task)
                elsewhere.close()
            assert not leaked

        leaked: list[int] = []
        live.run(main())

    def test_another_servers_certificate_gets_no_token(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            async with cluster(live, tmp_path) as site:
                (site.account / "ca.crt").write_bytes(live.Authority(tmp_path, "other").ca.read_bytes())
                one = KubernetesSource(DiscoverySettings(**site.given), 1.0, 60.0)
                task, _ = await followed(one)
                await one.looked.wait()
                assert "certificate" in one.trouble
                assert not site.api.lists
                await ended(task)

        live.run(main())

    def test_a_router_follows_its_cluster_and_says_when_nothing_is_there(
        self, live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with cluster(live, tmp_path) as site, live.backends(2) as servers:
                more = {**site.given, "networks": ("127.0.0.0/8",), "port": "http"}
                made = make_configuration(
                    policy="round-robin",
                    backends=["http://127.0.0.1:1"],
                    settings={"port": 0, "refresh_s": 0.01, "probe_every_s": 0.05, "discover_hold_s": 0.05},
                )
                import dataclasses

                router = Router(dataclasses.replace(made, backends=(), discover=(DiscoverySettings(**more),)))
                await router.start()
                try:
                    async with aiohttp.ClientSession(router.address) as client:

                        async def ask() -> tuple[int, str]:
                            async with client.post(CHAT, json=live.ask()) as answer:
                                return answer.status, await answer.text()

                        status, text = await ask()
                        assert status == 503
                        assert "discovery of prod/vllm: it names no address" in text
                        assert "names no address" in caplog.text
                        for server in servers:
                            given = endpoints(f"s{server.port}", "127.0.0.1", port=server.port)
                            site.api.events.put_nowait({"type": "ADDED", "object": given})
                        await live.until(lambda: len(router.dispatcher.targets) == 2)
                        assert [(await ask())[0] for _ in range(4)] == [200] * 4
                        gone = endpoints(f"s{servers[0].port}")
                        site.api.events.put_nowait({"type": "DELETED", "object": gone})
                        await live.until(lambda: len(router.dispatcher.targets) == 1)
                        assert [(await ask())[0] for _ in range(4)] == [200] * 4
                        assert [len(server.asked) for server in servers] == [2, 6]
                finally:
                    await router.stop()

        caplog.set_level(logging.WARNING)
        live.run(main())
