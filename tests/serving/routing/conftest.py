"""Views made by hand, and traces as files: what routers and studies are given in these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.serving.routing.interface import (
    ActiveView,
    Arrival,
    PoolView,
    WorkersView,
    idle_workers,
    waiting_requests,
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[tuple[float, int, int]]], dict[str, Any]]:
    """Write a request trace as CSV with the column names of somebody else and return the settings that read it."""

    def make(rows: list[tuple[float, int, int]]) -> dict[str, Any]:
        path = tmp_path / "mine.csv"
        path.write_text("\n".join(["TS,IN,OUT", *(",".join(map(str, row)) for row in rows)]) + "\n")
        return {"trace": str(path), "columns": ("arrival_s=TS", "prompt_tokens=IN", "output_tokens=OUT")}

    return make


@pytest.fixture(scope="session")
def workers() -> Callable[..., WorkersView]:
    """Make a view of ``n`` workers: idle, fresh, with room for everything, but for what is given."""

    def make(n: int, **given: Any) -> WorkersView:
        return idle_workers(n, **given)

    return make


@pytest.fixture(scope="session")
def pool() -> Callable[..., PoolView]:
    """Make a view of waiting requests with these prompts."""

    def make(prompts: Any, waited_steps: Any = 0, workers: int = 64, **given: Any) -> PoolView:
        return waiting_requests(prompts, workers, waited_steps=waited_steps, **given)

    return make


@pytest.fixture(scope="session")
def active() -> Callable[..., ActiveView]:
    """Make a view of decoding requests from rows of (worker, prompt, generated, remaining)."""

    def make(*rows: tuple[int, float, float, float]) -> ActiveView:
        columns = np.array(rows, np.float64).reshape(-1, 4).T
        return ActiveView(columns[0].astype(np.int64), *(np.ascontiguousarray(column) for column in columns[1:]))

    return make


@pytest.fixture(scope="session")
def chosen() -> Callable[..., list[int]]:
    """Let an arrival router choose some times in a row on a view that does not change."""

    def choose(router: Any, view: WorkersView, times: int = 1, prompt_tokens: float = 100.0) -> list[int]:
        state, parameters = router.initial_state(view.running.size), router.parameters()
        arrival = Arrival(0.0, prompt_tokens, np.nan)
        return [int(router.choose(view, arrival, state, parameters)) for _ in range(times)]

    return choose


@pytest.fixture(scope="session")
def placed(active: Callable[..., ActiveView]) -> Callable[..., list[int]]:
    """Let a pool router decide once and return the worker of each waiting request, -1 for those that stay."""

    def place(router: Any, view: WorkersView, pool: PoolView, alive: ActiveView | None = None) -> list[int]:
        where = np.full(pool.prompt_tokens.size, -1, np.int64)
        state = router.initial_state(view.running.size)
        count = router.place(view, pool, active() if alive is None else alive, state, router.parameters(), where)
        assert count == (where >= 0).sum()
        return where.tolist()

    return place
