"""Turns: no key waits for another one's crowd, whoever leaves when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from wavetank.serving.proxy.access import Client, KeySettings
from wavetank.serving.proxy.dispatcher import PoolFullError, PoolTimeoutError
from wavetank.serving.proxy.turns import Turns
from wavetank.serving.proxy.view import LiveRequest


def client(name: str, weight: float = 1.0) -> Client:
    return Client(KeySettings(name=name, sha256="0" * 64, weight=weight), 0.0)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_keys_take_turns_by_their_weights_however_many_wait() -> None:
    async def main() -> str:
        turns, order = Turns(1, 1000, 60.0), []
        crowd, heavy, late = client("c"), client("h", 2.0), client("l")

        async def one(who: Client) -> None:
            await turns.enter(who)
            order.append(who.name)
            await settle()
            turns.leave()

        tasks = [asyncio.ensure_future(one(crowd)) for _ in range(60)]
        await settle()
        tasks += [asyncio.ensure_future(one(heavy)) for _ in range(20)]
        while len(order) < 31:
            await asyncio.sleep(0)
        # Away until now: it gets its share from here on, and nothing for the past.
        tasks += [asyncio.ensure_future(one(late)) for _ in range(10)]
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        assert all(each.waiting == 0 for each in (crowd, heavy, late))
        return "".join(order)

    order = asyncio.run(main())
    assert len(order) == 90
    both = order[2:30]
    assert abs(both.count("h") - 2 * both.count("c")) <= 2
    three = order[32:44]
    assert three.count("l") in (3, 4, 6)
    assert "lll" not in three


def test_one_that_leaves_while_it_waits_costs_nobody_a_turn() -> None:
    async def main() -> None:
        turns, who = Turns(1, 10, 60.0), client("a")
        await turns.enter(who)
        waiting = [asyncio.ensure_future(turns.enter(who)) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        turns.leave()
        # In the very moment in which its turn begins.
        waiting[1].cancel()
        await settle()
        assert waiting[2].done()
        assert not waiting[2].cancelled()
        turns.leave()
        assert turns.waiting == 0
        await turns.enter(who)
        turns.leave()

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["enter", "leave", "cancel", "more", "less"])), max_size=60)
)
def test_whatever_happens_no_more_are_inside_than_may_be_and_all_get_through(steps: list[tuple[int, str]]) -> None:
    async def main() -> None:
        most = 2
        turns, inside, peak = Turns(most, 1000, 60.0), [0], [0]
        clients = [client(str(at), at + 1.0) for at in range(3)]
        gates: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []

        async def one(who: Client, gate: asyncio.Event) -> None:
            await turns.enter(who)
            inside[0] += 1
            peak[0] = max(peak[0], inside[0])
            try:
                await gate.wait()
            finally:
                inside[0] -= 1
                turns.leave()

        for at, what in steps:
            if what == "enter":
                gates.append(asyncio.Event())
                tasks.append(asyncio.ensure_future(one(clients[at], gates[-1])))
            elif what == "leave" and gates:
                gates[at % len(gates)].set()
            elif what == "cancel" and tasks:
                tasks[-1 - at % len(tasks)].cancel()
            elif what in ("more", "less"):
                most = 4 if what == "more" else 1
                turns.configure(most, 1000, 60.0)
            await asyncio.sleep(0)
        assert peak[0] <= 4
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (inside[0], turns.waiting, [each.waiting for each in clients]) == (0, 0, [0, 0, 0])
        turns.configure(1, 10, 60.0)
        await turns.enter(clients[0])
        waits = asyncio.ensure_future(turns.enter(clients[0]))
        await settle()
        assert not waits.done()
        turns.leave()
        await waits

    asyncio.run(main())


def test_a_crowd_leaves_room_for_others_and_a_long_wait_ends() -> None:
    async def main() -> None:
        turns, crowd, other = Turns(1, 8, 0.05), client("c"), client("o")
        await turns.enter(crowd)
        waiting: list[Any] = [asyncio.ensure_future(turns.enter(crowd)) for _ in range(4)]
        waiting.append(asyncio.ensure_future(turns.enter(other)))
        await settle()
        with pytest.raises(PoolFullError):
            await turns.enter(crowd)
        waiting += [asyncio.ensure_future(turns.enter(other)) for _ in range(3)]
        await settle()
        with pytest.raises(PoolFullError):
            await turns.enter(other)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [PoolTimeoutError] * 8
        assert turns.waiting == 0

    asyncio.run(main())


def lined(turns: Turns, who: Client) -> LiveRequest:
    request = LiveRequest(0.0, 1, [])
    turns.step_in(who, request)
    return request


def test_places_in_a_line_are_by_weight_too() -> None:
    turns, one, two = Turns(0, 100, 1.0), client("a"), client("b", 2.0)
    assert turns.open
    line = [(lined(turns, who).place, who.name) for who in (one, one, one, two, two, two, two)]
    assert "".join(name for _, name in sorted(line)) in ("abbabba", "abbabab", "abbaba")
    late = lined(turns, one)
    late.place = 7.0
    turns.began(one, late)
    assert lined(turns, client("c")).place == 7.0


def test_what_was_never_sent_costs_no_turn() -> None:
    turns, one, two = Turns(0, 1000, 1.0), client("a"), client("b")
    first = lined(turns, one)
    for _ in range(500):
        turns.step_out(one, lined(turns, one))
    second = lined(turns, one)
    assert second.place - first.place == pytest.approx(1.0)
    # Another key's turn comes between, not five hundred of them.
    assert sum(lined(turns, two).place < second.place for _ in range(10)) <= 2
    turns.step_out(one, first)
    turns.step_out(one, first)
    assert lined(turns, one).place == pytest.approx(second.place)


def test_a_full_line_makes_room_for_a_key_that_has_less_than_its_share() -> None:
    turns, crowd, other, heavy = Turns(0, 12, 1.0), client("crowd"), client("other"), client("heavy", 4.0)
    pushed: list[LiveRequest] = []
    turns.push_out = pushed.append
    line = [lined(turns, crowd) for _ in range(12)]
    with pytest.raises(PoolFullError):
        lined(turns, crowd)
    own = [lined(turns, other) for _ in range(6)]
    assert pushed == line[:5:-1]
    with pytest.raises(PoolFullError):
        lined(turns, other)
    more = [lined(turns, heavy) for _ in range(8)]
    assert len(pushed) == 14
    with pytest.raises(PoolFullError):
        lined(turns, heavy)
    for who, requests in ((crowd, line), (other, own), (heavy, more)):
        for request in requests:
            turns.step_out(who, request)
    assert not turns._lines
    assert turns._in_line == 0


def test_a_full_queue_makes_room_for_a_key_that_has_less_than_its_share() -> None:
    async def main() -> None:
        turns, crowd, other = Turns(1, 8, 60.0), client("crowd"), client("other")
        await turns.enter(crowd)
        waiting = [asyncio.ensure_future(turns.enter(crowd)) for _ in range(8)]
        await settle()
        late = [asyncio.ensure_future(turns.enter(other)) for _ in range(5)]
        await settle()
        refused = [task for task in (*waiting, *late) if task.done()]
        # The newest of the crowd, and what is more than the other's share.
        assert refused == [*waiting[4:], late[4]]
        assert all(isinstance(task.exception(), PoolFullError) for task in refused)
        assert turns.waiting == 8
        for _ in range(9):
            turns.leave()
            await settle()
        assert all(task.done() for task in (*waiting, *late))
        assert (turns.waiting, crowd.waiting, other.waiting, turns._inside) == (0, 0, 0, 0)

    asyncio.run(main())


def test_at_a_router_the_crowd_of_one_key_does_not_stop_another(live: Any, tmp_path: Any) -> None:
    import aiohttp

    from wavetank.serving.proxy.access import digest_of

    (tmp_path / "k").write_text(
        "".join(f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\n' for name in ("crowd", "one"))
    )

    async def main() -> None:
        settings = {"keys_file": str(tmp_path / "k"), "max_in_flight": 2}
        async with live.backends(1) as [server], live.routing(server, **settings) as router:
            server.pause_s = 0.002
            done: list[str] = []
            most = [0]
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(router.address, connector=connector) as http:

                async def ask(who: str) -> None:
                    headers = {"Authorization": f"Bearer {who}"}
                    body = live.ask(stream=True)
                    async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
                        most[0] = max(most[0], server.answering)
                        await answer.read()
                        assert answer.status == 200
                    done.append(who)

                crowd = [asyncio.ensure_future(ask("crowd")) for _ in range(40)]
                await live.until(lambda: len(done) >= 4)
                crowd += [asyncio.ensure_future(ask("one")) for _ in range(5)]
                await asyncio.gather(*crowd)
            assert most[0] <= 2
            assert "".join(name[0] for name in done).rindex("o") < 24
            assert router.proxy.in_flight == 0

    live.run(main())


def test_before_a_pool_policy_a_crowd_beyond_the_limit_is_refused_and_keeps_nobody_out(
    live: Any, tmp_path: Any
) -> None:
    import aiohttp

    from wavetank.serving.proxy.access import digest_of

    (tmp_path / "k").write_text(
        "".join(f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\n' for name in ("crowd", "one"))
    )

    async def main() -> None:
        settings = {"keys_file": str(tmp_path / "k"), "max_running": 1, "metrics": "own", "pool_limit": 12}
        async with live.backends(1) as [server], live.routing(server, policy="balance-route", **settings) as router:
            server.pause_s = 0.002
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(router.address, connector=connector) as http:

                async def ask(who: str) -> int:
                    headers = {"Authorization": f"Bearer {who}"}
                    async with http.post("/v1/chat/completions", json=live.ask(stream=True), headers=headers) as answer:
                        await answer.read()
                        return answer.status

                async def keep_crowding() -> None:
                    while not done.is_set():
                        await ask("crowd")

                done = asyncio.Event()
                crowd = [asyncio.ensure_future(keep_crowding()) for _ in range(40)]
                await live.until(lambda: router.dispatcher.waiting >= 11)
                # One after the other, while more of the crowd come than there is room for.
                found = [await ask("one") for _ in range(6)]
                done.set()
                await asyncio.gather(*crowd)
            assert found.count(200) >= 5
            assert router.proxy.in_flight == 0
            assert not router.proxy._turns._lines

    live.run(main())


def test_before_a_pool_policy_the_crowd_of_one_key_does_not_stop_another(live: Any, tmp_path: Any) -> None:
    import aiohttp

    from wavetank.serving.proxy.access import digest_of

    (tmp_path / "k").write_text(
        "".join(f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\n' for name in ("crowd", "one"))
    )

    async def main() -> None:
        settings = {"keys_file": str(tmp_path / "k"), "max_running": 1, "metrics": "own"}
        async with live.backends(1) as [server], live.routing(server, policy="balance-route", **settings) as router:
            done: list[str] = []
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(router.address, connector=connector) as http:

                async def ask(who: str) -> None:
                    body = live.ask(stream=True)
                    headers = {"Authorization": f"Bearer {who}"}
                    async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
                        await answer.read()
                        assert answer.status == 200
                    done.append(who)

                tasks = [asyncio.ensure_future(ask("crowd")) for _ in range(25)]
                await live.until(lambda: router.dispatcher.waiting >= 20)
                before = len(done)
                tasks += [asyncio.ensure_future(ask("one")) for _ in range(4)]
                await asyncio.gather(*tasks)
            assert "".join(name[0] for name in done).rindex("o") - before < 14
            assert router.proxy.in_flight == 0

    live.run(main())
