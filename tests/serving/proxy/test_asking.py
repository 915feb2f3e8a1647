"""What requests ask for beside their prompt reaches the policy, is bounded, and is never refused for its shape."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

pytest.importorskip("aiohttp")

import aiohttp
import msgspec
import numpy as np

from wavetank.serving.proxy.asking import (
    NOTHING_GIVEN,
    Given,
    Names,
    Tiers,
    read_deadline,
    read_given,
    session_code,
)
from wavetank.serving.proxy.endpoints import ENDPOINTS, read_request
from wavetank.serving.routing.interface import Arrival

JSON = "application/json"


def given(path: str = "/v1/chat/completions", **fields: Any) -> Given:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return read_request(ENDPOINTS[path], json.dumps(body).encode(), JSON).given


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_fields_are_read_at_every_endpoint_that_generates(path: str) -> None:
    assert given(path) == NOTHING_GIVEN == (None, "", None)
    assert given(path, max_tokens=7, session_id="s", priority=-2) == (7, "s", -2)
    assert given(path, max_output_tokens=9, user="u", prompt_cache_key="k") == (9, "u", None)
    assert given(path, prompt_cache_key="k\u00e9") == (None, "ké", None)
    assert given(path, session_id=17).session == "17"
    # The newer name counts, as at the servers.
    assert given(path, max_tokens=7, max_completion_tokens=5).max_tokens == 5


def test_token_ids_and_shapes_that_only_a_backend_knows_have_them_too() -> None:
    assert given("/v1/completions", messages=None, prompt=[1, 2, 3], max_tokens=7).max_tokens == 7
    assert given(messages={"strange": 1}, max_tokens=7, user="u") == (7, "u", None)
    assert given("/v1/responses", input=[1, 2, 3], max_output_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    "value", [0, -1, 2**31, 10**30, 1.5, 7.0, "7", True, None, [7], {"a": 7}, "x" * 1_000_000, [[0] * 100_000]]
)
def test_what_makes_no_sense_counts_as_not_given_and_goes_on_to_the_backend(value: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert given(path, max_tokens=value).max_tokens is None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 10**18:
        assert given(priority=value).priority is None
    if not isinstance(value, int | str) or isinstance(value, bool) or len(str(value)) > 1000:
        assert given(session_id=value).session == ""
        # And hides no other name.
        assert given(session_id=value, user="u").session == "u"


def test_a_text_that_is_no_text_is_no_session() -> None:
    for raw in (b'"\\ud800"', b'"\xff"', b'""', b"nul"):
        assert read_given({"user": msgspec.Raw(raw)}).session in ("", "\ud800")
        assert -1 <= session_code(read_given({"user": msgspec.Raw(raw)}).session) < 2**63


def test_sessions_are_the_same_in_every_router_and_differ_by_client() -> None:
    assert session_code("") == session_code("x" * 1025) == -1
    assert session_code("chat-1") == 2780598113379327177
    codes = {session_code(name, client) for name in ("a", "b", "ab") for client in ("", "a", "x" * 1000)}
    assert len(codes) == 9
    assert all(0 <= code < 2**63 for code in codes)


def test_names_are_numbered_in_the_order_of_their_first_appearance_up_to_a_bound() -> None:
    names = Names()
    assert [names.code(name) for name in ("b", "a", "", "b", "x" * 1_000_000)] == [0, 1, -1, 0, -1]
    codes = [names.code(f"n{number}") for number in range(10_000)]
    assert codes[:4094] == list(range(2, 4096))
    assert set(codes[4094:]) == {-1}
    assert (names.code("a"), len(names)) == (1, 4096)


def test_tiers_are_ranks_and_the_most_urgent_is_0() -> None:
    tiers = Tiers()
    assert [tiers.rank(priority) for priority in (None, 5, 9, 5, -3, 5, 9)] == [-1, 0, 1, 0, 0, 1, 2]
    ranks = [tiers.rank(priority) for priority in range(10**17, 10**17 + 10_000)]
    assert ranks == sorted(ranks)
    assert max(ranks) <= 64
    assert tiers.rank(-(10**17)) == 0


@pytest.mark.parametrize(
    "values",
    [["nan"], ["inf"], ["-1"], ["0"], ["0.0"], [""], ["1e3"], ["1_0"], ["604801"], ["9" * 5000], ["٣"], ["1", "1"]],
)
def test_a_deadline_is_seconds_or_an_error(values: list[str]) -> None:
    with pytest.raises(ValueError):
        read_deadline(values)
    assert read_deadline([]) is None
    assert read_deadline([" 2.5 "]) == 2.5


class Watching:
    """Writes down what arrives."""

    reads_prefix = reads_adapters = True

    def __init__(self) -> None:
        self.seen: list[Arrival] = []

    def initial_state(self, workers: int) -> Any:
        return np.zeros(0)

    def parameters(self) -> Any:
        return np.zeros(0)

    def choose(self, view: Any, arrival: Arrival, state: Any, parameters: Any) -> int:
        self.seen.append(arrival)
        return int(np.argmax(view.takes * view.serves))


def test_a_policy_sees_what_clients_ask_for(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching()
    path = "/v1/chat/completions"

    async def main() -> None:
        async with live.backends(2) as servers:
            servers[1].models = ("m", "tuned")
            servers[1].parents = {"tuned": "m"}
            async with (
                live.routing(*servers, aliases={"gpt": "tuned"}, log="requests", block_tokens=8) as router,
                aiohttp.ClientSession(router.address) as client,
            ):
                router.dispatcher.set_router(watching)
                router.proxy.configure(router.settings, {"gpt": "tuned"})
                for body, headers in (
                    (live.ask("x" * 100), {}),
                    (live.ask(max_tokens=50, user="body", priority=3, model="gpt"), {"X-Deadline-S": "30"}),
                    (live.ask(user="body", priority=1), {"X-Session-Id": "header-secret"}),
                    (live.ask(session_id="header-secret", max_tokens="many", priority=3), {}),
                ):
                    async with client.post(path, json=body, headers=headers) as answer:
                        assert answer.status == 200
                async with client.post(path, json=live.ask(), headers={"X-Deadline-S": "nan"}) as answer:
                    assert answer.status == 400
                    assert (await answer.json())["error"]["code"] == "invalid_deadline"

    live.run(main())
    first, second, third, fourth = watching.seen
    assert (first.model, first.adapter, first.session, first.tier, first.deadline_s) == (0, -1, -1, -1, math.inf)
    assert math.isnan(first.max_tokens)
    assert math.isnan(first.expected_output_tokens)
    assert first.blocks.dtype == np.int64
    assert first.blocks.size == 4
    assert (second.model, second.adapter, second.max_tokens, second.tier) == (0, 0, 50.0, 0)
    assert 29.0 < second.deadline_s - second.time_s <= 30.0
    assert second.session == session_code("body")
    assert third.session == fourth.session == session_code("header-secret")
    assert (third.tier, fourth.tier) == (0, 1)
    assert math.isnan(fourth.max_tokens)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("on", [True, False])
def test_lengths_are_learned_from_answers_that_were_whole(live: Any, on: bool) -> None:
    watching = Watching()

    async def broken(backend: Any, asked: Any, writer: Any) -> None:
        writer.write(live.head(200, "text/event-stream") + live.chunk(live.event("a") * 500))
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, predict_lengths=on) as router:
            router.dispatcher.set_router(watching)
            async with aiohttp.ClientSession(router.address) as client:

                async def ask(**more: Any) -> None:
                    async with client.post("/v1/chat/completions", json=live.ask(**more)) as answer:
                        assert answer.status == 200
                        try:
                            await answer.read()
                        except aiohttp.ClientError:
                            assert server.behaviour is broken

                for number in range(12):
                    # Plain answers report 3 tokens, streamed ones 8, whether they say so or are counted.
                    usage = {"stream_options": {"include_usage": True}} if number % 4 == 3 else {}
                    await ask(stream=number % 2 == 1, **usage)
                server.behaviour = broken
                await ask(stream=True)
                server.behaviour = live.well_behaved
                await ask(max_tokens=4)
                await ask()

    live.run(main())
    assert all(math.isnan(arrival.expected_output_tokens) for arrival in watching.seen[:10])
    limited, last = watching.seen[-2:]
    if on:
        assert limited.expected_output_tokens == 4.0
        assert 5.0 < last.expected_output_tokens < 6.0
        assert 2.0 < last.output_spread_tokens < 3.0
    else:
        assert math.isnan(last.expected_output_tokens)
