"""Keys, limits, and who may administer; written as somebody without a key would try it."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import datetime
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError
from wavetank.serving.proxy.access import (
    Access,
    Bucket,
    Client,
    KeySettings,
    digest_of,
    end_of,
    given_key,
    is_local,
    new_key,
    read_keys,
)
from wavetank.serving.proxy.refusals import RequestError

CHAT = "/v1/chat/completions"
KEYS = {name: new_key() for name in ("alice", "bob", "gone", "eyes", "root")}


def keys_file(path: Path, **more: str) -> str:
    """Write a keys file; ``more`` are further lines of a key."""
    lines = {
        "gone": 'expires = "2001-01-01T00:00:00Z"', "eyes": 'uses = ["metrics"]', "root": 'uses = ["admin"]', **more,
    }  # fmt: skip
    text = "".join(
        f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(key)}"\n{lines.get(name, "")}\n' for name, key in KEYS.items()
    )
    path.write_text(text)
    return str(path)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def request(*headers: tuple[bytes, bytes], peer: Any = ("203.0.113.9", 4)) -> Any:
    """Return a request as far as keys are concerned."""
    return SimpleNamespace(
        raw_headers=headers,
        headers=CIMultiDict((name.decode(), value.decode("latin-1")) for name, value in headers),
        transport=None if peer is None else SimpleNamespace(get_extra_info=lambda name: peer),
    )


def settings(name: str = "a", key: str = "k", **more: Any) -> KeySettings:
    return KeySettings(name=name, sha256=digest_of(key), **more)


def code_of(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value.status, caught.value.code


class TestKeys:
    def test_a_new_key_has_256_bits_and_is_never_the_same(self) -> None:
        made = {new_key() for _ in range(1000)}
        assert len(made) == 1000
        assert all(len(key) == 46 and key.startswith("wt-") and key.isascii() for key in made)

    @pytest.mark.parametrize("count", [1, 2, 7, 300])
    def test_every_key_finds_its_own_client_and_nothing_else_does(self, count: int) -> None:
        keys = [new_key() for _ in range(count)]
        access = Access([settings(f"c{at}", key) for at, key in enumerate(keys)], asked=True)
        for at, key in enumerate(keys):
            found = access.client(request((b"Authorization", f"Bearer {key}".encode())))
            assert found is not None
            assert found.name == f"c{at}"
        first = keys[0].encode()
        for wrong in (
            b"",
            first[:-1],
            first + b"x",
            first.swapcase(),
            digest_of(keys[0]).encode(),
            b"\xff",
            first * 50,
        ):
            denied = request((b"Authorization", b"Bearer " + wrong))
            assert code_of(lambda denied=denied: access.client(denied)) == (401, "invalid_api_key")

    @pytest.mark.parametrize(
        "headers",
        [
            (),
            ((b"Authorization", b"k"),),
            ((b"Authorization", b"Basic k"),),
            ((b"Authorization", b"Bearer k, Bearer k"),),
            ((b"Authorization", b"Bearer k"), (b"Authorization", b"Bearer k")),
            ((b"Authorization", b"Bearer k"), (b"X-Api-Key", b"other")),
            ((b"Authorization", b"Bearer other"), (b"x-api-key", b"k")),
            ((b"X-Api-Key", b"Bearer k"),),
            ((b"Proxy-Authorization", b"Bearer k"),),
            ((b"Cookie", b"key=k"),),
        ],
    )
    def test_a_key_counts_in_its_own_header_and_only_once(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        access = Access([settings()], asked=True)
        assert code_of(lambda: access.client(request(*headers))) == (401, "invalid_api_key")
        for right in ((b"authorization", b"bearer k"), (b"X-API-KEY", b"k")):
            assert access.client(request(right)) is access.clients[0]
            assert given_key(request(right)) == b"k"

    def test_no_keys_at_all_let_nobody_in_where_keys_are_asked_for(self) -> None:
        access = Access([], asked=True)
        assert code_of(lambda: access.client(request((b"Authorization", b"Bearer k")))) == (401, "invalid_api_key")
        assert Access().client(request()) is None

    def test_a_key_is_for_its_own_use_and_its_own_time(self) -> None:
        access = Access(
            [settings("m", "m", uses=("metrics",)), settings("e", "e", expires="2001-01-01T00:00:00+01:00")],
            asked=True,
        )
        mine, ended = request((b"x-api-key", b"m")), request((b"x-api-key", b"e"))
        assert code_of(lambda: access.client(mine)) == (403, "not_allowed")
        access.check(mine, "metrics")
        assert code_of(lambda: access.check(mine, "admin")) == (403, "not_allowed")
        assert code_of(lambda: access.client(ended)) == (401, "expired_api_key")
        assert code_of(lambda: access.check(ended, "metrics")) == (401, "expired_api_key")


class TestThisMachine:
    @pytest.mark.parametrize(
        ("peer", "local"),
        [
            (("127.0.0.1", 1), True),
            (("127.9.9.9", 1), True),
            (("::1", 1, 0, 0), True),
            (("::ffff:127.0.0.1", 1, 0, 0), True),
            (("10.0.0.1", 1), False),
            (("::ffff:10.0.0.1", 1, 0, 0), False),
            (("fe80::1%eth0", 1, 0, 0), False),
            ("", False),
            (("", 1), False),
            (None, False),
        ],
    )
    def test_a_program_of_this_machine_is_known_by_its_address(self, peer: Any, local: bool) -> None:
        assert is_local(request(peer=peer), strict=False) is local

    @pytest.mark.parametrize("header", [b"X-Forwarded-For", b"forwarded", b"X-Real-IP", b"Via"])
    def test_what_a_proxy_of_this_machine_passes_on_is_not_local(self, header: bytes) -> None:
        access = Access([], asked=True)
        passed = request((header, b"127.0.0.1"), peer=("127.0.0.1", 1))
        for use in ("metrics", "admin"):
            assert code_of(lambda use=use: access.check(passed, use))[0] == 401

    @pytest.mark.parametrize("header", [b"Origin", b"Sec-Fetch-Site"])
    def test_a_page_in_a_browser_of_this_machine_administers_nothing(self, header: bytes) -> None:
        page = request((header, b"null"), peer=("127.0.0.1", 1))
        access = Access()
        access.check(page, "metrics")
        assert code_of(lambda: access.check(page, "admin"))[0] == 401

    def test_where_a_key_is_there_to_administer_the_address_is_not_enough(self) -> None:
        access = Access([settings("root", "root", uses=("admin",))], asked=True)
        local = request(peer=("127.0.0.1", 1))
        assert code_of(lambda: access.check(local, "admin"))[0] == 401
        access.check(local, "metrics")
        access.check(request((b"x-api-key", b"root"), peer=("203.0.113.9", 1)), "admin")

    def test_open_metrics_are_open_and_administration_is_not(self) -> None:
        access = Access(open_metrics=True)
        access.check(request(), "metrics")
        assert code_of(lambda: access.check(request(), "admin"))[0] == 401
        assert code_of(lambda: Access().check(request(), "metrics"))[0] == 401


class TestFile:
    def test_a_file_says_everything_about_keys(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.toml"
        path.write_text(
            f'[[keys]]\nname = "a"\nsha256 = "{digest_of("a")}"\nmodels = ["m-*"]\nrequests_per_minute = 60\n'
            "tokens_per_minute = 1e5\nconcurrent = 4\nweight = 2\nexpires = 2099-01-01T00:00:00Z\n"
        )
        [key] = read_keys(path)
        assert (key.models, key.requests_per_minute, key.concurrent, key.weight) == (("m-*",), 60.0, 4, 2.0)
        assert end_of(key.expires, "") == datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC).timestamp()

    @pytest.mark.parametrize(
        ("text", "kind", "says"),
        [
            ("keys = \nx = 1", BadFileError, "line 1"),
            ("[keys]\nname = 'a'", BadFileError, "something else"),
            ("[[keys]]\nname = 'a'\nkey = 'secret'", UnknownNameError, "key 1"),
            ("[[keys]]\nname = 'a b'\nsha256 = '%s'" % ("0" * 64), BadValueError, "name"),
            ("[[keys]]\nname = 'a'\nsha256 = 'secret'", BadValueError, "SHA-256"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\nexpires = '2027-01-01'" % ("0" * 64), BadValueError, "zone"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\nexpires = 2027-01-01T00:00:00" % ("0" * 64), BadValueError, "zone"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\nuses = ['root']" % ("0" * 64), BadValueError, "allowed"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\nuses = []" % ("0" * 64), BadValueError, "nothing"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\nweight = 0" % ("0" * 64), BadValueError, "range"),
            ("[[keys]]\nname = 'a'\nsha256 = '%s'\n" % ("0" * 64) * 2, BadValueError, "same name"),
        ],
    )
    def test_a_wrong_file_is_refused_and_no_key_is_repeated(
        self, tmp_path: Path, text: str, kind: type[WavetankError], says: str
    ) -> None:
        path = tmp_path / "keys.toml"
        path.write_text(text)
        with pytest.raises(kind) as caught:
            read_keys(path)
        shown = f"{caught.value} {caught.value.where} {caught.value.given}"
        assert says in shown
        assert "secret" not in shown

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadFileError, match="No such file"):
            read_keys(tmp_path / "none")


class TestLimits:
    @given(
        st.floats(1.0, 600.0),
        st.floats(0.1, 120.0),
        st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.1, 30.0)), max_size=60),
    )
    def test_no_order_of_requests_gets_more_than_the_burst_and_the_rate(
        self, per_minute: float, burst_s: float, steps: list[tuple[float, float]]
    ) -> None:
        bucket, now, most = Bucket(per_minute, burst_s, 0.0), 0.0, max(per_minute / 60 * burst_s, 1.0)
        used = 0.0
        for pause_s, amount in steps:
            now += pause_s
            wait_s = bucket.wait_s(amount, now)
            if wait_s == 0.0:
                bucket.use(amount)
                used += amount
                # One amount that is larger than the bucket goes into debt.
                assert used <= most + per_minute / 60 * now + max(amount - most, 0.0) + 1e-6
            else:
                # A little later it is right.
                assert bucket.wait_s(amount, now + wait_s * 1.0001 + 1e-6) == 0.0
                now += wait_s * 1.0001 + 1e-6

    def test_a_clock_that_steps_back_gives_nothing(self) -> None:
        bucket = Bucket(60.0, 1.0, 100.0)
        bucket.use(1.0)
        assert bucket.wait_s(1.0, 0.0) == pytest.approx(1.0)
        assert bucket.wait_s(1.0, 100.5) == pytest.approx(0.5)

    def test_tokens_are_charged_by_estimate_and_corrected_by_use(self) -> None:
        client = Client(settings(tokens_per_minute=600.0), 0.0)
        client.charge(100, 0.0)
        client.used(100, 700)
        assert code_of(lambda: client.charge(1, 0.0)) == (429, "rate_limit_exceeded")
        # 100 in debt, at ten per second.
        with pytest.raises(RequestError) as caught:
            client.charge(10, 5.0)
        assert caught.value.retry_after_s == 6
        client.charge(10, 11.0)
        client.used(10, 0)

    def test_a_prompt_longer_than_the_limit_is_taken_when_nothing_was_used(self) -> None:
        client = Client(settings(tokens_per_minute=60.0), 0.0)
        client.charge(1_000, 0.0)
        assert code_of(lambda: client.charge(1, 60.0)) == (429, "rate_limit_exceeded")

    def test_a_limit_that_is_changed_forgets_nothing(self) -> None:
        access = Access([settings(requests_per_minute=2.0)], asked=True, now_s=lambda: 0.0)
        [client] = access.clients
        client.enter(0.0)
        client.enter(0.0)
        client.leave()
        access.configure([settings(requests_per_minute=2.0, name="b")], asked=True, open_metrics=False)
        assert access.clients == (client,)
        assert (client.name, client.in_flight) == ("b", 1)
        assert code_of(lambda: client.enter(0.0)) == (429, "rate_limit_exceeded")
        access.configure([settings(requests_per_minute=0.0)], asked=True, open_metrics=False)
        client.enter(0.0)

    def test_only_so_many_at_once(self) -> None:
        client = Client(settings(concurrent=2), 0.0)
        client.enter(0.0)
        client.enter(0.0)
        assert code_of(lambda: client.enter(0.0)) == (429, "concurrency_limit_exceeded")
        client.leave()
        client.enter(0.0)

    def test_models_are_matched_as_written(self) -> None:
        client = Client(settings(models=("llama-*", "Exact", "a[bc]")), 0.0)
        assert [client.may_use(name) for name in ("llama-3", "llama", "Exact", "exact", "ab", "a[bc]", "")] == [
            True, False, True, False, True, False, False,
        ]  # fmt: skip
        assert Client(settings(), 0.0).may_use("anything")
        assert end_of("", "") == math.inf


class TestTogether:
    """A router with keys, on real sockets."""

    def test_no_key_reaches_a_backend_a_log_or_an_answer(
        self, live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("BACKENDS_KEY", "for-backends")
        caplog.set_level(logging.DEBUG)
        seen = []

        async def main() -> None:
            more = {"keys_file": keys_file(tmp_path / "k"), "api_key_env": "BACKENDS_KEY", "log": "requests"}
            async with live.backends(1) as [server], live.routing(server, **more) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    tries = [
                        (bearer("alice"), 200), ({"x-api-key": KEYS["bob"]}, 200), ({}, 401), (bearer("gone"), 401),
                        (bearer("eyes"), 403), ({"Authorization": "Bearer for-backends"}, 401),
                        ({**bearer("alice"), "x-api-key": KEYS["bob"]}, 401),
                        ({**bearer("alice"), "api-key": "azure", "X-Kept": "1"}, 200),
                    ]  # fmt: skip
                    for headers, status in tries:
                        path = f"{CHAT}?api_key={KEYS['alice']}" if status != 200 else CHAT
                        async with client.post(path, json=live.ask(), headers=headers) as answer:
                            text = await answer.text()
                            assert answer.status == status, text
                            assert ("WWW-Authenticate" in answer.headers) == (status == 401)
                            seen.append(text + str(answer.headers))
                assert [each.header("authorization") for each in server.asked] == ["Bearer for-backends"] * 3
                assert server.asked[-1].header("x-kept") == "1"
                seen.extend(str(each.headers) for each in server.asked)
                seen.append(router.metrics.page().decode())

        live.run(main())
        seen.append(caplog.text)
        assert "key=alice" in caplog.text
        for key in KEYS.values():
            assert not any(key in each or digest_of(key) in each for each in seen)

    def test_keys_without_a_key_of_the_backends_send_them_none(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            async with live.backends(1) as [server]:
                async with live.routing(server, keys_file=keys_file(tmp_path / "k")) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        async with client.post(CHAT, json=live.ask(), headers=bearer("alice")) as answer:
                            assert answer.status == 200
                [asked] = server.asked
                assert asked.header("authorization") is None

        live.run(main())

    def test_limits_answer_429_with_the_time_to_wait(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            keys = keys_file(tmp_path / "k", alice="requests_per_minute = 2", bob="tokens_per_minute = 20")
            async with live.backends(1) as [server], live.routing(server, keys_file=keys) as router:
                async with aiohttp.ClientSession(router.address) as client:

                    async def ask(who: str, text: str = "x" * 64) -> tuple[int, int, str]:
                        async with client.post(CHAT, json=live.ask(text), headers=bearer(who)) as answer:
                            found = await answer.json()
                            after = int(answer.headers.get("Retry-After", "0"))
                            return answer.status, after, found.get("error", {}).get("code", "")

                    assert [(await ask("alice"))[0] for _ in range(2)] == [200, 200]
                    status, after_s, code = await ask("alice")
                    assert (status, code) == (429, "rate_limit_exceeded")
                    assert 25 <= after_s <= 30
                    # What the backend reports counts: 13 tokens, not the estimate of 17.
                    assert (await ask("bob"))[0] == 200
                    status, after_s, code = await ask("bob")
                    assert (status, code) == (429, "rate_limit_exceeded")
                    assert 25 <= after_s <= 33
                    assert len(server.asked) == 3

        live.run(main())

    def test_a_key_may_use_and_see_its_own_models_only(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            keys = keys_file(tmp_path / "k", alice='models = ["m", "public"]')
            async with live.backends(1, models=("m", "secret")) as [server]:
                async with live.routing(server, keys_file=keys) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        async with client.get("/v1/models", headers=bearer("alice")) as answer:
                            assert [each["id"] for each in (await answer.json())["data"]] == ["m"]
                        async with client.get("/v1/models", headers=bearer("bob")) as answer:
                            assert len((await answer.json())["data"]) == 2
                        for name, status in (("m", 200), ("secret", 404)):
                            async with client.get(f"/v1/models/{name}", headers=bearer("alice")) as answer:
                                assert answer.status == status
                        for body, status in (
                            (b'{"model":"secret","messages":[]}', 403),
                            (b'{"model":"nowhere","messages":[]}', 403),
                            (b'{"model":"m","model":"secret","messages":[]}', 403),
                            (b'{"model":"m","Model":"secret","messages":[]}', 400),
                            (b'{"model":"public","messages":[]}', 404),
                            (b'{"model":"secret","m\\u006fdel":"m","messages":[{"role":"user","content":"x"}]}', 200),
                        ):
                            async with client.post(CHAT, data=body, headers=bearer("alice")) as answer:
                                assert answer.status == status, await answer.text()
                [asked] = server.asked
                # The field that was given twice went out once.
                assert asked.body.count(b'"secret"') == 0
                assert asked.json["model"] == "m"

        live.run(main())

    def test_a_key_with_requests_at_once_gets_them_back_when_clients_leave(self, live: Any, tmp_path: Path) -> None:
        async def main() -> None:
            keys = keys_file(tmp_path / "k", alice="concurrent = 1")
            async with live.backends(1) as [server], live.routing(server, keys_file=keys) as router:
                server.pause_s = 0.2
                async with aiohttp.ClientSession(router.address) as client:
                    ask = {"json": live.ask(stream=True), "headers": bearer("alice")}
                    async with client.post(CHAT, **ask) as first:
                        assert first.status == 200
                        async with client.post(CHAT, **ask) as second:
                            assert second.status == 429
                            assert json.loads(await second.text())["error"]["code"] == "concurrency_limit_exceeded"
                        first.close()
                    await live.until(lambda: router.proxy.in_flight == 0)
                    assert [each.in_flight for each in router.access.clients] == [0] * 5
                    async with client.post(CHAT, **ask) as third:
                        assert third.status == 200

        live.run(main())
