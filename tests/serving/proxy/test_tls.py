"""TLS in both directions: what is wrong with a certificate is named, and nothing ever goes on without one."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import ssl
import warnings
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("cryptography")

from wavetank.errors import BadFileError
from wavetank.serving.proxy.tls import ServerCertificate, backend_context

CHAT = "/v1/chat/completions"


def listening(cert_file: str, key_file: str, *, ask_for: Path | None = None, old: bool = False) -> ssl.SSLContext:
    """Return how a backend listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    if ask_for is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ask_for)
    if old:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


async def answered(live: Any, router: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession(router.address) as client:
        async with client.post(CHAT, json=live.ask()) as answer:
            found = await answer.json()
            return answer.status, found.get("error", {}).get("message", "")


class TestToBackends:
    def test_a_backend_is_believed_by_its_own_authority_name_and_path(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            authority = live.Authority(tmp_path)
            server = live.FakeBackend()
            server.tls, server.prefix = listening(*authority.issue("backend", "models.example")), "/models/a"
            await server.start()
            try:
                more = {server.url: {"ca_file": str(authority.ca), "server_name": "models.example"}}
                async with live.routing(server, backends=more) as router:
                    assert await answered(live, router) == (200, "")
                    assert await answered(live, router) == (200, "")
                    # Kept alive, as without TLS: probe, models, metrics and requests share connections.
                    assert server.connections <= 3
                [asked, _] = server.asked
                assert asked.path == "/models/a" + CHAT
                assert asked.header("host") == f"127.0.0.1:{server.port}"
                assert {each.path for each in server.pages} <= {
                    "/models/a/health", "/models/a/v1/models", "/models/a/metrics",
                }  # fmt: skip
            finally:
                await server.kill()

        live.run(main())

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ("authority", "certificate is not accepted"),
            ("name", "certificate is not accepted"),
            ("expired", "certificate has expired"),
            ("future", "not yet valid"),
            ("old", "No TLS"),
            ("plain", "within 1 s"),
        ],
    )
    def test_a_wrong_certificate_is_named_and_nothing_is_sent(
        self, live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str, says: str
    ) -> None:
        async def main() -> None:
            authority, other = live.Authority(tmp_path), live.Authority(tmp_path, "other")
            signs = other if wrong == "authority" else authority
            days = {"expired": (-9, -1), "future": (1, 9)}.get(wrong, (-1, 9))
            files = signs.issue("backend", "elsewhere" if wrong == "name" else "127.0.0.1", days=days)
            server = live.FakeBackend()
            if wrong != "plain":
                server.tls = listening(*files, old=wrong == "old")
            await server.start()
            url = f"https://127.0.0.1:{server.port}"
            server.__class__ = type("Named", (live.FakeBackend,), {"url": url})
            try:
                more = {url: {"ca_file": str(authority.ca)}}
                async with live.routing(server, backends=more, log="errors") as router:
                    status, message = await answered(live, router)
                    assert status == 503
                    assert says in message
                    assert says in caplog.text
                    assert caplog.text.count(says) < 5
                assert server.asked == []
                assert server.pages == []
            finally:
                await server.kill()

        caplog.set_level(logging.WARNING)
        live.run(main())

    @pytest.mark.parametrize("shown", ["right", "none", "other"])
    def test_a_backend_that_asks_for_a_certificate_gets_ours_or_is_not_used(
        self, live: Any, tmp_path: Path, shown: str
    ) -> None:
        async def main() -> None:
            authority, other = live.Authority(tmp_path), live.Authority(tmp_path, "other")
            server = live.FakeBackend()
            server.tls = listening(*authority.issue("backend", "127.0.0.1"), ask_for=authority.ca)
            await server.start()
            try:
                more = {"ca_file": str(authority.ca)}
                if shown != "none":
                    files = (authority if shown == "right" else other).issue("router", "router")
                    more |= dict(zip(("cert_file", "key_file"), files, strict=True))
                async with live.routing(server, backends={server.url: more}) as router:
                    status, message = await answered(live, router)
                    assert status == (200 if shown == "right" else 503)
                    assert (shown == "right") or "TLS handshake" in message
                assert len(server.asked) == (shown == "right")
            finally:
                await server.kill()

        live.run(main())

    def test_files_that_are_none_are_refused_at_start(self, live: Any, tmp_path: Path) -> None:
        authority = live.Authority(tmp_path)
        cert, key = authority.issue("a", "a")
        _, foreign = authority.issue("b", "b")
        text = tmp_path / "text"
        text.write_text("hello")
        for files, says in (
            ((str(tmp_path / "none"), "", ""), "No such file"),
            ((str(text), "", ""), "authorities"),
            (("", cert, str(text)), "cannot be used"),
            (("", str(text), key), "cannot be used"),
            (("", cert, foreign), "key values mismatch"),
        ):
            with pytest.raises(BadFileError, match=says) as caught:
                backend_context(*files)
            assert str(tmp_path) in str(caught.value.where)
        context = backend_context("", cert, key)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname

    def test_a_key_with_a_passphrase_is_refused_without_asking(self, live: Any, tmp_path: Path) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        cert, path = live.Authority(tmp_path).issue("a", "a", key=key)
        locked = serialization.BestAvailableEncryption(b"word")
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        Path(path).write_bytes(key.private_bytes(*form))
        with pytest.raises(BadFileError, match="passphrase"):
            backend_context("", cert, path)

    def test_one_backends_certificate_does_not_count_for_another(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            ours, theirs = live.Authority(tmp_path), live.Authority(tmp_path, "theirs")
            servers = [live.FakeBackend(), live.FakeBackend()]
            for server, authority in zip(servers, (ours, theirs), strict=True):
                server.tls = listening(*authority.issue(f"b-{server is servers[0]}", "127.0.0.1"))
                await server.start()
            try:
                async with live.routing(*servers, backend_ca_file=str(ours.ca)) as router:
                    assert [await answered(live, router) for _ in range(4)] == [(200, "")] * 4
                    assert [backend.up for backend in router.backends] == [True, False]
                assert len(servers[0].asked) == 4
                assert json.loads(servers[0].asked[0].body)["model"] == "m"
            finally:
                for server in servers:
                    await server.kill()

        live.run(main())


class TestToClients:
    def files(self, live: Any, tmp_path: Path, **more: Any) -> tuple[Any, dict[str, str]]:
        authority = live.Authority(tmp_path)
        cert, key = authority.issue("router", "127.0.0.1", **more)
        return authority, {"tls_cert": cert, "tls_key": key}

    def test_clients_are_served_and_the_address_says_so(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            authority, files = self.files(live, tmp_path)
            async with live.backends(1) as [server], live.routing(server, **files) as router:
                assert router.address.startswith("https://")
                context = ssl.create_default_context(cafile=authority.ca)
                async with aiohttp.ClientSession(router.address, connector=aiohttp.TCPConnector(ssl=context)) as client:
                    for stream in (False, True):
                        async with client.post(CHAT, json=live.ask(stream=stream)) as answer:
                            assert answer.status == 200
                            assert (await answer.read()).endswith(b"data: [DONE]\n\n") == stream
                    async with client.get("/metrics") as answer:
                        assert answer.status == 200
                assert len(server.asked) == 2

        live.run(main())

    @pytest.mark.parametrize(
        ("days", "says"), [((-9, -1), "has expired"), ((1, 9), "not valid yet"), (None, "key values mismatch")]
    )
    def test_a_certificate_that_no_client_would_take_ends_the_start(
        self, live: Any, tmp_path: Path, days: tuple[int, int] | None, says: str
    ) -> None:
        authority, files = self.files(live, tmp_path, days=days or (-1, 9))
        if days is None:
            files["tls_key"] = authority.issue("other", "other")[1]
        with pytest.raises(BadFileError, match=says):
            ServerCertificate(files["tls_cert"], files["tls_key"])

    def test_replaced_files_are_shown_to_new_connections_and_damaged_ones_never(
        self, live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        authority, files = self.files(live, tmp_path)
        shown = ServerCertificate(**{name[4:] + "_file": path for name, path in files.items()})
        assert not shown.look()

        def common_name() -> str:
            client = ssl.create_default_context(cafile=authority.ca)
            to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            ends = (
                client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
                shown.context.wrap_bio(to_server, to_client, server_side=True),
            )
            for _ in range(4):
                for end in ends:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        end.do_handshake()
            subject: Any = ends[0].getpeercert()
            return str(dict(each[0] for each in subject["subject"])["commonName"])

        assert common_name() == "router"
        new = authority.issue("second", "127.0.0.1")
        Path(files["tls_cert"]).write_bytes(Path(new[0]).read_bytes())
        # Between the two files: certificate and key do not fit.
        assert not shown.look()
        assert "stays as it was" in caplog.text
        assert common_name() == "router"
        Path(files["tls_key"]).write_bytes(Path(new[1]).read_bytes())
        assert shown.look()
        assert common_name() == "second"
        Path(files["tls_key"]).unlink()
        assert not shown.look()
        old = authority.issue("third", "127.0.0.1", days=(-9, -1))
        for path, source in zip(files.values(), old, strict=True):
            Path(path).write_bytes(Path(source).read_bytes())
        assert not shown.look()
        assert common_name() == "second"

    def test_old_protocols_and_plain_requests_get_nothing(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            authority, files = self.files(live, tmp_path)
            async with live.backends(1) as [server], live.routing(server, **files) as router:
                context = ssl.create_default_context(cafile=authority.ca)
                context.set_ciphers("ALL:@SECLEVEL=0")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    context.minimum_version = ssl.TLSVersion.TLSv1
                    context.maximum_version = ssl.TLSVersion.TLSv1_1
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    assert b"HTTP" not in await reader.read()
                writer.close()
                assert server.asked == []

        live.run(main())

    def test_handshakes_that_do_not_end_count_and_failed_ones_do_not(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            authority, files = self.files(live, tmp_path)
            limits = {"max_connections": 4, "read_s": 0.5}
            async with live.backends(1) as [server], live.routing(server, **files, **limits) as router:
                context = ssl.create_default_context(cafile=authority.ca)
                for _ in range(12):
                    _, writer = await asyncio.open_connection("127.0.0.1", router.port)
                    writer.write(b"no hello at all\r\n\r\n")
                    await asyncio.sleep(0.005)
                    writer.close()
                # All of them failed: there is room for one who speaks TLS.
                _, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
                writer.close()
                gc.collect()
                await live.until(lambda: not router.proxy.server.connections)
                silent = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(4)]
                await live.until(lambda: len(router.proxy._shaking_hands) == 4)
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
                assert await reader.read() == b""
                writer.close()
                # They are given up after read_s.
                await asyncio.sleep(1.0)
                _, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
                writer.close()
                for _, each in silent:
                    each.close()

        live.run(main())

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_leaves_in_any_round_of_the_loop_leaves_nothing_to_the_next_one(
        self, live: Any, tmp_path: Path, stream: bool
    ) -> None:
        async def main() -> None:
            authority, files = self.files(live, tmp_path)
            async with live.backends(1) as [server], live.routing(server, metrics="own", **files) as router:
                server.pause_s = 0.0005
                context = ssl.create_default_context(cafile=authority.ca)

                async def asked(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=context)
                    body = json.dumps(live.ask(name, stream=stream)).encode()
                    writer.write(
                        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                        % (len(body), body)
                    )
                    return reader, writer

                for rounds in range(30):
                    _, leaving = await asked("secret")
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    leaving.transport.abort()
                    name = f"other-{rounds}"
                    reader, writer = await asked(name)
                    found = await reader.readuntil(name.encode())
                    assert b"200" in found
                    assert b"secret" not in found
                    writer.transport.abort()
                await live.until(lambda: router.proxy.in_flight == 0)
                assert router.backends[0].account.in_flight == 0

        live.run(main())
