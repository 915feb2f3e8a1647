"""Every router of the catalog sends a request to a worker that takes requests and has the model, while there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wavetank.ledger import catalog
from wavetank.serving.routing.interface import ActiveView, Arrival, PoolRouter, idle_workers, waiting_requests
from wavetank.sim.rng import stream

ROUTERS = [entry for entry in catalog.built_in() if entry.interface == "router"]
WORKERS, DECISIONS = 5, 400
NOBODY = ActiveView(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))


def arrivals(seed: int) -> Any:
    """Give views and arrivals of all kinds: loads that rise, workers that come and go, prompts that come again."""
    rng = stream(seed, "fit workers")
    for i in range(DECISIONS):
        fit = rng.random((2, WORKERS)) < rng.choice([0.3, 0.9])
        most = float(rng.choice([1, 10, 500]))
        whole = {name: rng.integers(0, int(most) + 1, WORKERS) for name in ("running", "waiting", "sent_requests")}
        tokens = {name: rng.random(WORKERS) * 1000 * most for name in ("kv_tokens", "waiting_tokens", "sent_tokens")}
        prompt = float(rng.integers(1, 2000))
        view = idle_workers(
            WORKERS, takes=fit[0], serves=fit[1], **whole, **tokens,
            matched_tokens=rng.integers(0, 2, WORKERS) * prompt, cached_tokens=rng.integers(0, 2, WORKERS) * prompt,
            adapter_loaded=rng.integers(0, 2, WORKERS), speed=rng.choice([0.5, 1.0], WORKERS), kv_capacity_tokens=1e6,
        )  # fmt: skip
        family = int(rng.integers(0, 4))
        blocks = np.array([10 * family + depth for depth in range(int(rng.integers(0, 5)))], np.int64)
        yield view, Arrival(
            0.3 * i, prompt, float(rng.choice([np.nan, 50.0])), session=int(rng.integers(-1, 5)),
            adapter=int(rng.integers(-1, 3)), max_tokens=float(rng.choice([np.nan, 20.0])), blocks=blocks,
        )  # fmt: skip


@pytest.mark.parametrize("routed", ROUTERS, ids=lambda entry: entry.name)
def test_a_request_goes_to_a_worker_that_is_fit_for_it(routed: Any) -> None:
    router = routed.build()
    state = np.ascontiguousarray(router.initial_state(WORKERS), np.float64)
    parameters = np.asarray(router.parameters(), np.float64)
    chosen: set[int] = set()
    for number, (view, arrival) in enumerate(arrivals(0)):
        if isinstance(router, PoolRouter):
            view.serves[:] = 1
            rng = stream(number, "fit pool")
            serves = rng.random((6, WORKERS)) < 0.5
            pool = waiting_requests(rng.integers(1, 2000, 6), WORKERS, serves=serves)
            placed = np.full(6, -1, np.int64)
            router.place(view, pool, NOBODY, state, parameters, placed)
            for request in np.flatnonzero(placed >= 0):
                worker = int(placed[request])
                assert view.takes[worker] and serves[request, worker], (routed.name, number)
                chosen.add(worker)
            continue
        worker = int(router.choose(view, arrival, state, parameters))
        fit = (view.takes != 0) & (view.serves != 0)
        assert 0 <= worker < WORKERS
        if fit.any():
            assert fit[worker], (routed.name, number)
            chosen.add(worker)
    # Every worker was at times the only one that was fit.
    assert chosen == set(range(WORKERS))
