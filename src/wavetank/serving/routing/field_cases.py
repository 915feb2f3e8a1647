"""Traffic that people met in the field, each with the kind of router that it defeats.

* ``agents``: sessions whose turns come one after another, so slowly that nothing is in flight when a turn arrives.
  All workers are equal then, and a router that takes the first of equals sends everything to one of them, whose cache
  cannot hold the contexts of all.
* ``long-contexts``: one request in thirty has a context a hundred times as long as the others.  Counted in requests
  the workers look even while the KV cache of one is full.
* ``hot-prefix``: more than half of the requests begin with the same text, and they come in bursts.  A router that
  follows the prefix queues them on one worker while the others idle.

A fourth one is no traffic: several copies of a router, each of which sees only what it sent itself (``routers``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import unknown_name
from wavetank.sim.rng import stream
from wavetank.workloads.generate import Bursty, Poisson
from wavetank.workloads.requests import RequestTrace

NAMES = ("agents", "long-contexts", "hot-prefix")

BLOCK_TOKENS = 64
# Sessions that are open at a time, their turns, and what a turn adds to the context.
AGENTS, TURNS, GROWTH_TOKENS, OPENING_TOKENS = 56, 8, 1_024, 2_048
LONG_SHARE, LONG_TOKENS, SHORT_TOKENS = 1 / 30, 50_000, 500
HOT_SHARE, HOT_TOKENS = 0.6, 8_192


def requests_of(case: str, *, n: int, rate_per_s: float, seed: int) -> RequestTrace:
    """Return the requests of a case.

    Parameters
    ----------
    case : str
        One of :data:`NAMES`.
    n : int
        How many.
    rate_per_s : float
        Their mean rate; turns of agents come one every 20 s whatever it is.
    seed : int

    Raises
    ------
    UnknownNameError
        If there is no such case.
    """
    cases = {"agents": _agents, "long-contexts": _long_contexts, "hot-prefix": _hot_prefix}
    if case not in cases:
        raise unknown_name("case", case, cases)
    return cases[case](n, rate_per_s, seed)


def _agents(n: int, rate_per_s: float, seed: int) -> RequestTrace:
    rows = np.arange(n)
    # Every open session has its turn before any has the next one.
    lap, place = rows // AGENTS, rows % AGENTS
    session, turn = lap // TURNS * AGENTS + place, lap % TURNS
    prompts = OPENING_TOKENS + GROWTH_TOKENS * turn
    of_session = (OPENING_TOKENS + GROWTH_TOKENS * TURNS) // BLOCK_TOKENS
    counts = prompts // BLOCK_TOKENS
    ids = [number * of_session + np.arange(count) for number, count in zip(session, counts, strict=True)]
    gaps_s = stream(seed, "agents", "gaps").uniform(15.0, 25.0, n)
    outputs = stream(seed, "agents", "outputs").integers(50, 151, n)
    return _trace("agents", np.cumsum(gaps_s), prompts, outputs, ids, session=session)


def _long_contexts(n: int, rate_per_s: float, seed: int) -> RequestTrace:
    draws = stream(seed, "long contexts")
    is_long = draws.random(n) < LONG_SHARE
    prompts = np.where(is_long, LONG_TOKENS, SHORT_TOKENS) * draws.uniform(0.8, 1.2, n)
    outputs = np.where(is_long, draws.integers(500, 1001, n), draws.integers(50, 151, n))
    arrival_s = Poisson().draw(rate_per_s, stream(seed, "long contexts", "arrivals"), n=n)
    return _trace("long-contexts", arrival_s, prompts.astype(np.int64), outputs)


def _hot_prefix(n: int, rate_per_s: float, seed: int) -> RequestTrace:
    draws = stream(seed, "hot prefix")
    hot = draws.random(n) < HOT_SHARE
    own = draws.integers(64, 513, n)
    prompts = np.where(hot, HOT_TOKENS + own, 1_024 + 2 * own)
    outputs = draws.integers(50, 151, n)
    depth = HOT_TOKENS // BLOCK_TOKENS
    ids, fresh = [], depth
    for is_hot, tokens in zip(hot.tolist(), prompts.tolist(), strict=True):
        shared = np.arange(depth if is_hot else 0)
        more = tokens // BLOCK_TOKENS - shared.size
        ids.append(np.concatenate([shared, fresh + np.arange(more)]))
        fresh += more
    arrival_s = Bursty(cv=3.0).draw(rate_per_s, stream(seed, "hot prefix", "arrivals"), n=n)
    return _trace("hot-prefix", arrival_s, prompts, outputs, ids)


def _trace(
    name: str,
    arrival_s: NDArray[np.float64],
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
    ids: list[NDArray[np.int64]] | None = None,
    **more: Any,
) -> RequestTrace:
    if ids is not None:
        more["block_ids"] = np.concatenate(ids)
        more["block_offsets"] = np.concatenate([[0], np.cumsum([each.size for each in ids])])
        more["block_tokens"] = BLOCK_TOKENS
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs, name=name, **more)
