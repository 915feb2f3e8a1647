"""Fixed shares of the traffic."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

from collections import Counter
from typing import Any

import aiohttp
import pytest

pytest.importorskip("aiohttp")

from wavetank.serving.proxy.shares import Shares


class Target:
    def __init__(self, share: float, models: tuple[str, ...] = ("m",)) -> None:
        self.share, self.models = share, models

    def serves(self, model: str | None) -> bool:
        return model in self.models


@pytest.mark.parametrize("shares", [(0.05,), (0.3, 0.7), (0.1, 0.2, 0.3), (0.0, 0.01), (1 / 3, 1 / 3, 1 / 3)])
def test_at_every_moment_each_is_within_one_request_of_its_share(shares: tuple[float, ...]) -> None:
    split, targets = Shares(), [Target(share) for share in shares]
    split.set(targets)  # type: ignore[arg-type]
    got: Counter[Any] = Counter()
    for number in range(1, 2000):
        got[split.next("m")] += 1
        for target in targets:
            assert abs(got[target] - target.share * number) <= len(targets)
    assert got[None] == pytest.approx((1 - sum(shares)) * 1999, abs=3)


def test_only_requests_that_it_could_answer_count() -> None:
    split, other = Shares(), Target(0.5, ("other",))
    split.set([other])  # type: ignore[list-item]
    assert [split.next("m") for _ in range(10)] == [None] * 10
    assert [split.next("other") for _ in range(4)] == [None, other, None, other]
    split.set([])
    assert split.next("other") is None


def test_a_canary_gets_its_share_and_everything_where_the_others_are_gone(live: Any) -> None:
    async def main() -> None:
        async with live.backends(3) as servers:
            shares = {servers[2].url: {"share": 0.1}}
            async with live.routing(*servers, backends=shares, eject_after=1, fall=1) as router:
                async with aiohttp.ClientSession(router.address) as client:

                    async def ask() -> int:
                        async with client.post("/v1/chat/completions", json=live.ask()) as answer:
                            await answer.read()
                            return answer.status

                    assert {await ask() for _ in range(100)} == {200}
                    assert [len(server.asked) for server in servers] == [45, 45, 10]
                    for server in servers[:2]:
                        await server.kill()
                    assert {await ask() for _ in range(10)} == {200}
                    assert len(servers[2].asked) == 20
                    await live.until(lambda: router.dispatcher.targets == (router.backends[2],))
                    assert {await ask() for _ in range(5)} == {200}
                    assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]

    live.run(main())  # fmt: skip


def test_one_that_drains_gets_nothing_new_though_it_is_the_only_one(live: Any) -> None:
    async def main() -> None:
        async with live.backends(2) as servers:
            more = {servers[0].url: {"drain": True}}
            async with live.routing(*servers, backends=more) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(4):
                        async with client.post("/v1/chat/completions", json=live.ask()) as answer:
                            assert answer.status == 200
                    await servers[1].kill()
                    async with client.post("/v1/chat/completions", json=live.ask()) as answer:
                        assert answer.status in (502, 503)
                assert servers[0].asked == []
                assert router.backends[0].up

    live.run(main())
