"""The dispatcher: the router decides, mistakes are survived, nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.serving.proxy.dispatcher import (
    Dispatcher,
    NoBackendError,
    PoolFullError,
    PoolTimeoutError,
    check_router,
)
from wavetank.serving.proxy.view import LiveRequest, PrefixMemory, WorkerAccount


@dataclass(eq=False)
class Place:
    """A backend without a server."""

    account: WorkerAccount
    models: tuple[str, ...] = ()

    def serves(self, model: str | None) -> bool:
        return not self.models or model in self.models


class Toy:
    """A router that does what a test says."""

    def __init__(self, choose: Callable[..., int] | None = None, place: Callable[..., int] | None = None) -> None:
        if choose is not None:
            self.choose = choose
        if place is not None:
            self.place = place
        self.states: list[int] = []

    def initial_state(self, workers: int) -> Any:
        self.states.append(workers)
        return np.zeros(workers)

    def parameters(self) -> Any:
        return np.array([7.0])


def places(count: int, slots: int = 4) -> list[Place]:
    return [Place(WorkerAccount(slots, 10_000.0, PrefixMemory(300.0, 1000))) for _ in range(count)]


def request(prompt: int = 100, arrived_s: float = 0.0, blocks: list[int] | None = None) -> LiveRequest:
    return LiveRequest(arrived_s, prompt, blocks or [])


def asking(model: str, prompt: int = 100) -> LiveRequest:
    return LiveRequest(0.0, prompt, [], model_name=model)


def refresh(dispatcher: Dispatcher[Place], now_s: float) -> None:
    for target in dispatcher.targets:
        target.account.refresh(now_s)
        dispatcher.refreshed(target)
    dispatcher.round_done()


def first_come(view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
    free = view.slots - view.running - view.waiting - view.sent_requests
    for i in range(placed.size):
        worker = int(np.argmax(free))
        if free[worker] <= 0:
            return i
        placed[i] = worker
        free[worker] -= 1
    return int(placed.size)


class TestChoosing:
    def test_the_router_is_called_with_the_view_the_arrival_and_its_state(self) -> None:
        seen = []

        def choose(view: Any, arrival: Any, state: Any, parameters: Any) -> int:
            state[0] += 1
            seen.append((view.sent_requests.tolist(), arrival, state.tolist(), parameters.tolist()))
            return 1

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(choose), now_s=lambda: 12.5)
            targets = places(2)
            dispatcher.set_targets(targets)
            assert await dispatcher.assign(request(40)) is targets[1]
            assert await dispatcher.assign(request(60)) is targets[1]

        asyncio.run(main())
        assert [each[0] for each in seen] == [[0, 0], [0, 1]]
        assert (seen[0][1].time_s, seen[0][1].prompt_tokens) == (12.5, 40)
        assert np.isnan(seen[0][1].expected_output_tokens)
        assert [each[2:] for each in seen] == [([1, 0], [7]), ([2, 0], [7])]

    @pytest.mark.parametrize("wrong", [-1, 2, 10**9])
    def test_a_backend_that_does_not_exist_is_replaced_counted_and_logged_once(
        self, wrong: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        kinds: list[str] = []

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(lambda *_: wrong), failed=kinds.append)
            targets = places(2)
            dispatcher.set_targets(targets)
            chosen = [await dispatcher.assign(request()) for _ in range(4)]
            assert [chosen.count(target) for target in targets] == [2, 2]

        with caplog.at_level(logging.WARNING, "wavetank.router"):
            asyncio.run(main())
        assert kinds == ["out-of-range"] * 4
        assert len(caplog.records) == 1

    def test_an_unfit_backend_is_replaced_by_the_fit_one_with_the_fewest_requests(self) -> None:
        kinds: list[str] = []
        shown = []

        def choose(view: Any, *_: Any) -> int:
            shown.append((view.takes.tolist(), view.serves.tolist()))
            return 0

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(choose), failed=kinds.append)
            targets = places(4)
            for target, models in zip(targets, [("a",), ("b",), (), ("b",)], strict=True):
                target.models = models
            dispatcher.set_targets(targets[:3], targets)
            # The first does not have the model, the last takes nothing; of the two between, the third has fewer.
            targets[1].account.send(request(), 0.0)
            assert await dispatcher.assign(asking("b")) is targets[2]
            assert shown[-1] == ([1, 1, 1, 0], [0, 1, 1, 1])
            assert await dispatcher.assign(asking("a")) is targets[0]
            assert await dispatcher.assign(request()) is targets[0]
            dispatcher.set_targets(targets[1:], targets)
            assert await dispatcher.assign(asking("a")) is targets[2]
            assert shown[-1] == ([0, 1, 1, 1], [1, 0, 1, 0])

        asyncio.run(main())
        assert kinds == ["unfit"] * 2

    @pytest.mark.parametrize("choose", [lambda *_: 7, lambda *_: 1 // 0])
    def test_what_takes_the_place_of_a_bad_choice_is_fit(self, choose: Callable[..., int]) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(choose))
            targets = places(3)
            targets[0].models, targets[1].models = ("a",), ("b",)
            dispatcher.set_targets(targets[:2], targets)
            assert [await dispatcher.assign(asking("b")) for _ in range(3)] == [targets[1]] * 3

        asyncio.run(main())

    def test_a_model_that_no_backend_has_is_no_mistake_of_the_router(self) -> None:
        kinds: list[str] = []

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(lambda *_: 1), failed=kinds.append)
            targets = places(3)
            for target in targets:
                target.models = ("a",)
            dispatcher.set_targets(targets[:2], targets)
            # Who called sends it on: it may be on a backend that is out.
            assert await dispatcher.assign(asking("b")) is targets[0]
            # A list that is read later counts from then on.
            targets[1].models = ("b",)
            dispatcher.models_changed()
            assert await dispatcher.assign(asking("b")) is targets[1]

        asyncio.run(main())
        assert kinds == []

    def test_more_models_than_are_remembered_are_looked_up_anew(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(lambda *_: 1))
            targets = places(2)
            targets[0].models = ("m7",)
            dispatcher.set_targets(targets)
            for number in range(3000):
                assert await dispatcher.assign(asking(f"m{number}")) is targets[1]
            assert len(dispatcher._serving) <= 1024

        asyncio.run(main())

    def test_a_backend_that_is_out_for_a_while_keeps_its_row_and_the_router_its_state(self) -> None:
        async def main() -> None:
            toy = Toy(lambda view, *_: int(np.argmax(view.takes)))
            dispatcher: Dispatcher[Place] = Dispatcher(toy)
            targets = places(3)
            dispatcher.set_targets(targets)
            await dispatcher.assign(request())
            dispatcher.set_targets(targets[1:], targets)
            assert dispatcher.targets == tuple(targets[1:])
            assert dispatcher.view.workers.takes.tolist() == [0, 1, 1]
            assert dispatcher.view.workers.sent_requests.tolist() == [1, 0, 0]
            assert await dispatcher.assign(request()) is targets[1]
            dispatcher.set_targets(targets, targets)
            assert dispatcher.view.workers.takes.tolist() == [1, 1, 1]
            assert toy.states == [3]
            dispatcher.set_targets(targets[:2], targets[:2])
            assert toy.states == [3, 2]
            dispatcher.set_targets([], targets[:2])
            with pytest.raises(NoBackendError):
                await dispatcher.assign(request())

        asyncio.run(main())

    def test_a_router_that_raises_is_replaced(self) -> None:
        kinds: list[str] = []

        def choose(*_: Any) -> int:
            raise ZeroDivisionError

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(choose), failed=kinds.append)
            dispatcher.set_targets(places(1))
            assert (await dispatcher.assign(request())).account.in_flight == 1

        asyncio.run(main())
        assert kinds == ["raised"]

    def test_without_backends_there_is_no_choice(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(lambda *_: 0))
            with pytest.raises(NoBackendError):
                await dispatcher.assign(request())

        asyncio.run(main())

    def test_another_set_of_backends_begins_with_another_state(self) -> None:
        async def main() -> None:
            toy = Toy(lambda view, *_: int(view.running.size) - 1)
            dispatcher: Dispatcher[Place] = Dispatcher(toy)
            targets = places(3)
            dispatcher.set_targets(targets)
            await dispatcher.assign(request())
            dispatcher.set_targets(targets[1:])
            assert toy.states == [3, 2]
            # What was sent is not forgotten with the backend that left.
            assert dispatcher.view.workers.sent_requests.tolist() == [0, 1]
            assert await dispatcher.assign(request()) is targets[2]
            refresh(dispatcher, 1.0)
            assert dispatcher.view.workers.running.tolist() == [0, 2]
            dispatcher.refreshed(targets[0])

        asyncio.run(main())

    def test_a_failed_request_goes_to_the_backend_with_the_fewest_that_was_not_tried(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(lambda *_: 0))
            targets = places(3)
            dispatcher.set_targets(targets)
            targets[1].account.send(request(), 0.0)
            failed = request()
            assert await dispatcher.assign(failed) is targets[0]
            targets[0].account.done(failed)
            assert dispatcher.reassign(failed, [targets[0]]) is targets[2]
            targets[2].account.done(failed)
            assert dispatcher.reassign(failed, [targets[0], targets[2]]) is targets[1]
            with pytest.raises(NoBackendError):
                dispatcher.reassign(failed, targets)
            # One that is not routed over takes it where no other is left, and the view stays as it is.
            targets[1].account.done(failed)
            [spare] = places(1)
            assert dispatcher.reassign(failed, targets[:2], [spare]) is targets[2]
            targets[2].account.done(failed)
            assert dispatcher.reassign(failed, targets, [spare]) is spare
            assert spare.account.in_flight == 1
            with pytest.raises(NoBackendError):
                dispatcher.reassign(failed, [*targets, spare], [spare])

        asyncio.run(main())


class TestPool:
    def test_requests_wait_for_room_and_go_in_the_order_that_the_router_says(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=first_come), now_s=lambda: 0.0)
            targets = places(2, slots=1)
            dispatcher.set_targets(targets)
            requests = [request() for _ in range(4)]
            waits = [asyncio.ensure_future(dispatcher.assign(each)) for each in requests]
            await asyncio.sleep(0)
            assert [wait.done() for wait in waits] == [True, True, False, False]
            assert dispatcher.waiting == 2
            targets[0].account.done(requests[0])
            await asyncio.sleep(0)
            assert dispatcher.waiting == 2
            refresh(dispatcher, 1.0)
            assert dispatcher.waiting == 1
            assert await waits[2] is targets[0]
            for target, each in ((targets[1], requests[1]), (targets[0], requests[2])):
                target.account.done(each)
            refresh(dispatcher, 2.0)
            await waits[3]

        asyncio.run(main())

    def test_the_router_is_not_asked_while_nobody_has_room(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=first_come), now_s=lambda: 0.0)
            dispatcher.set_targets(places(1, slots=1))
            waits = [asyncio.ensure_future(dispatcher.assign(request())) for _ in range(3)]
            await asyncio.sleep(0)
            assert dispatcher.decisions == 1
            refresh(dispatcher, 0.0)
            assert dispatcher.decisions == 1
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())

    def test_waiting_requests_age_in_decisions_within_the_window(self) -> None:
        shown = []

        def place(view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
            shown.append((pool.prompt_tokens.tolist(), pool.waited_steps.tolist(), pool.waited_s.tolist()))
            return 0

        async def main() -> None:
            clock = [0.0]
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=place), pool_window=2, now_s=lambda: clock[0])
            dispatcher.set_targets(places(1))
            waits = []
            for prompt in (10, 20, 30):
                waits.append(asyncio.ensure_future(dispatcher.assign(request(prompt, clock[0]))))
                await asyncio.sleep(0)
                clock[0] += 1.0
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert dispatcher.waiting == 0

        asyncio.run(main())
        assert shown == [([10], [0], [0.0]), ([10, 20], [1, 0], [1.0, 0.0]), ([10, 20], [2, 1], [2.0, 1.0])]

    def test_a_client_that_leaves_leaves_the_pool_or_the_backend(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=first_come), now_s=lambda: 0.0)
            [target] = places(1, slots=1)
            dispatcher.set_targets([target])
            first = request()
            await dispatcher.assign(first)
            placed, waiting = (asyncio.ensure_future(dispatcher.assign(request())) for _ in range(2))
            await asyncio.sleep(0)
            assert (target.account.in_flight, dispatcher.waiting) == (1, 2)
            target.account.done(first)
            refresh(dispatcher, 1.0)
            assert (target.account.in_flight, dispatcher.waiting) == (1, 1)
            # One was placed and does not know it yet, one waits.
            placed.cancel()
            waiting.cancel()
            await asyncio.gather(placed, waiting, return_exceptions=True)
            assert (target.account.in_flight, dispatcher.waiting) == (0, 0)

        asyncio.run(main())

    def test_the_pool_is_bounded_in_number_and_time(self) -> None:
        async def main() -> None:
            clock = [0.0]
            dispatcher: Dispatcher[Place] = Dispatcher(
                Toy(place=lambda *_: 0), pool_limit=2, pool_wait_s=5.0, now_s=lambda: clock[0]
            )
            dispatcher.set_targets(places(1))
            waits = [asyncio.ensure_future(dispatcher.assign(request(arrived_s=at))) for at in (0.0, 3.0)]
            await asyncio.sleep(0)
            with pytest.raises(PoolFullError):
                await dispatcher.assign(request())
            clock[0] = 5.0
            dispatcher.round_done()
            with pytest.raises(PoolTimeoutError):
                await waits[0]
            assert dispatcher.waiting == 1
            waits[1].cancel()
            await asyncio.gather(waits[1], return_exceptions=True)

        asyncio.run(main())

    def test_bad_placements_are_replaced_one_by_one(self) -> None:
        kinds: list[str] = []

        def place(view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
            placed[:] = [0, -5, 99, -1][: placed.size]
            return 3

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=place), failed=kinds.append, now_s=lambda: 0.0)
            targets = places(2)
            dispatcher.set_targets(targets)
            dispatcher.router.place = lambda *_: 0  # type: ignore[union-attr, misc]
            waits = [asyncio.ensure_future(dispatcher.assign(request())) for _ in range(4)]
            await asyncio.sleep(0)
            dispatcher.router.place = place  # type: ignore[union-attr]
            dispatcher.round_done()
            await asyncio.sleep(0)
            assert [wait.done() for wait in waits] == [True, True, True, False]
            assert [target.account.in_flight for target in targets] == [2, 1]
            waits[3].cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())
        assert kinds == ["out-of-range"] * 2

    def test_a_pool_router_sees_who_serves_what_and_unfit_placements_are_replaced(self) -> None:
        kinds: list[str] = []
        shown = []

        def place(view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
            shown.append((view.takes.tolist(), view.serves.tolist(), pool.serves.tolist()))
            placed[:] = [0, 1, 2, -1][: placed.size]
            return 3

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=lambda *_: 0), failed=kinds.append, now_s=lambda: 0.0)
            targets = places(3)
            targets[0].models, targets[1].models = ("a",), ("b",)
            dispatcher.set_targets(targets[:2], targets)
            waits = [asyncio.ensure_future(dispatcher.assign(asking(name))) for name in "abbb"]
            await asyncio.sleep(0)
            dispatcher.router.place = place  # type: ignore[union-attr]
            targets[1].models = ("b", "a")
            dispatcher.models_changed()
            dispatcher.round_done()
            await asyncio.sleep(0)
            assert [wait.done() for wait in waits] == [True, True, True, False]
            assert [await wait for wait in waits[:3]] == [targets[0], targets[1], targets[1]]
            waits[3].cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())
        assert shown == [([1, 1, 0], [1, 1, 1], [[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]])]
        assert kinds == ["unfit"]

    @pytest.mark.parametrize("before", [False, True])
    def test_nobody_waits_in_the_pool_for_a_model_that_no_backend_has(self, before: bool) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=lambda *_: 0), pool_window=1, now_s=lambda: 0.0)
            targets = places(2)
            for target in targets:
                target.models = ("a",) if before else ("a", "b")
            dispatcher.set_targets(targets)
            waits = [asyncio.ensure_future(dispatcher.assign(asking(name))) for name in "bba"]
            await asyncio.sleep(0)
            assert dispatcher.waiting == (1 if before else 3)
            for target in targets:
                target.models = ("a",)
            dispatcher.models_changed()
            for _ in range(3):
                dispatcher.round_done()
            await asyncio.sleep(0)
            assert [wait.done() for wait in waits] == [True, True, False]
            waits[2].cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())

    def test_backends_that_take_nothing_have_no_room(self) -> None:
        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=first_come), now_s=lambda: 0.0)
            targets = places(2, slots=1)
            dispatcher.set_targets(targets[1:], targets)
            targets[1].account.send(request(), 0.0)
            dispatcher.view.sent(1)
            wait = asyncio.ensure_future(dispatcher.assign(request()))
            await asyncio.sleep(0)
            assert (dispatcher.decisions, dispatcher.waiting) == (0, 1)
            dispatcher.set_targets(targets, targets)
            assert await wait is targets[0]

        asyncio.run(main())

    def test_a_pool_router_that_raises_is_replaced_while_there_is_room(self) -> None:
        kinds: list[str] = []

        def place(*_: Any) -> int:
            raise RuntimeError

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=place), failed=kinds.append, now_s=lambda: 0.0)
            dispatcher.set_targets(places(1, slots=2))
            waits = [asyncio.ensure_future(dispatcher.assign(request())) for _ in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [wait.done() for wait in waits] == [True, True, False]
            waits[2].cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())
        assert kinds == ["raised"] * 2

    def test_a_prompt_that_fits_nowhere_is_left_to_a_server_to_refuse(self) -> None:
        kinds: list[str] = []

        async def main() -> None:
            dispatcher: Dispatcher[Place] = Dispatcher(Toy(place=lambda *_: 0), failed=kinds.append)
            dispatcher.set_targets(places(2))
            assert (await dispatcher.assign(request(10_001))).account.in_flight == 1

        asyncio.run(main())
        assert kinds == ["too-long"]


class TestWhatIsRefused:
    def test_an_oracle(self) -> None:
        with pytest.raises(BadValueError, match="only a simulation does") as caught:
            check_router(catalog.system("balance-route-oracle").build(), "balance-route-oracle")
        assert "termination=geometric" in str(caught.value.hint)
        check_router(catalog.system("balance-route-oracle").build(horizon_steps=0), "balance-route-0")

    def test_what_is_no_router(self) -> None:
        for wrong in (Toy(), Toy, None):
            with pytest.raises(BadValueError, match="is not a router"):
                check_router(wrong, "toy")
