"""Every router that can be launched decides live as it decides when it is called directly: one object, both lives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from wavetank.ledger import catalog
from wavetank.serving.proxy.dispatcher import Dispatcher, check_router
from wavetank.serving.proxy.view import LiveRequest, PrefixMemory, WorkerAccount
from wavetank.serving.routing.interface import ArrivalRouter, PoolRouter
from wavetank.sim.rng import stream

LIVE = [entry for entry in catalog.built_in() if entry.interface == "router" and "live" in entry.runs]
WORKERS, REQUESTS = 5, 120


@dataclass(eq=False)
class Place:
    """A backend without a server."""

    account: WorkerAccount


class Watched:
    """A router beside its twin: every decision is taken twice, on copies of what is shown."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.compared = 0
        self.twin_state = np.zeros(0)
        for name in ("reads_prefix", "reads_active"):
            if getattr(router, name, False):
                setattr(self, name, True)
        if isinstance(router, PoolRouter):
            self.place = self._place
        else:
            self.choose = self._choose

    def initial_state(self, workers: int) -> Any:
        state = self.router.initial_state(workers)
        self.twin_state = np.array(state, np.float64)
        return state

    def parameters(self) -> Any:
        return self.router.parameters()

    def _choose(self, view: Any, arrival: Any, state: Any, parameters: Any) -> int:
        copied = type(view)(*(column.copy() for column in view))
        twin = self.router.choose(copied, arrival, self.twin_state, self.router.parameters())
        found = self.router.choose(view, arrival, state, parameters)
        assert found == twin
        assert np.array_equal(state, self.twin_state, equal_nan=True)
        self.compared += 1
        return int(found)

    def _place(self, view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
        copies = [type(part)(*(column.copy() for column in part)) for part in (view, pool, active)]
        twin = np.full(placed.size, -1, np.int64)
        self.router.place(*copies, self.twin_state, self.router.parameters(), twin)
        count = self.router.place(view, pool, active, state, parameters, placed)
        assert placed.tolist() == twin.tolist()
        self.compared += 1
        return int(count)


def serve(router: Any) -> list[int]:
    """Send requests through a dispatcher whose backends answer at random; returns where each went."""
    failures: list[str] = []
    clock = [0.0]
    rng = stream(0, "live-conformance")

    async def main() -> list[int]:
        dispatcher: Dispatcher[Place] = Dispatcher(
            router, failed=failures.append, now_s=lambda: clock[0], pool_wait_s=1e9
        )
        targets = [Place(WorkerAccount(6, 40_000.0, PrefixMemory(300.0, 10_000))) for _ in range(WORKERS)]
        dispatcher.set_targets(targets)
        waits: list[tuple[LiveRequest, asyncio.Future[Place]]] = []
        chosen: dict[int, int] = {}
        running: list[tuple[int, LiveRequest]] = []
        number = 0
        while len(chosen) < REQUESTS:
            clock[0] += 0.013
            for _ in range(int(rng.integers(0, 4))):
                if number < REQUESTS:
                    blocks = [int(rng.integers(0, 3)), 100 + number]
                    request = LiveRequest(clock[0], int(rng.integers(1, 4000)), blocks, 16.0)
                    waits.append((request, asyncio.ensure_future(dispatcher.assign(request))))
                    number += 1
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            for at, (request, wait) in enumerate(waits):
                if wait.done() and at not in chosen:
                    chosen[at] = targets.index(wait.result())
                    running.append((chosen[at], request))
            for worker, request in list(running):
                targets[worker].account.generated(request, int(rng.integers(0, 3)))
                if rng.random() < 0.2:
                    targets[worker].account.done(request)
                    running.remove((worker, request))
            for target in targets:
                target.account.refresh(clock[0])
                dispatcher.refreshed(target)
            dispatcher.round_done()
        assert sum(target.account.in_flight for target in targets) == len(running)
        return [chosen[at] for at in range(REQUESTS)]

    found = asyncio.run(main())
    assert failures == []
    return found


@pytest.mark.parametrize("launched", LIVE, ids=[entry.name for entry in LIVE])
def test_a_live_router_picks_what_it_picks_when_called_directly(launched: Any) -> None:
    router = launched.build()
    check_router(router, launched.name)
    watched = Watched(router)
    assert isinstance(watched, PoolRouter if isinstance(router, PoolRouter) else ArrivalRouter)
    chosen = serve(watched)
    assert watched.compared > 20
    # Routers that follow a prefix may leave out a worker; none sends everything to one.
    assert len(set(chosen)) > 1 and set(chosen) <= set(range(WORKERS))
    assert serve(launched.build()) == chosen


@pytest.mark.parametrize("launched", LIVE, ids=[entry.name for entry in LIVE])
def test_its_plain_python_twin_picks_the_same(launched: Any) -> None:
    compiled = launched.build()
    name = "place" if isinstance(compiled, PoolRouter) else "choose"
    function = getattr(compiled, name)
    if not hasattr(function, "py_func"):
        pytest.skip("is plain Python anyway")
    twin = Watched(compiled)
    chosen = serve(twin)

    class Plain:
        reads_prefix = bool(getattr(compiled, "reads_prefix", False))
        reads_active = bool(getattr(compiled, "reads_active", False))

        def initial_state(self, workers: int) -> Any:
            return compiled.initial_state(workers)

        def parameters(self) -> Any:
            return compiled.parameters()

    setattr(Plain, name, staticmethod(function.py_func))
    assert serve(Plain()) == chosen


def test_every_router_of_the_study_but_the_oracles_can_be_launched() -> None:
    from wavetank.serving.routing.study import LLMRouting

    assert set(catalog.built_in().plain_run(LLMRouting.name)) <= {entry.name for entry in LIVE}
    for entry in LIVE:
        assert entry.launch.startswith(f"wavetank launch router --policy {entry.name} ")
