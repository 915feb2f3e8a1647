"""A crew of threads for kernels that release the interpreter's lock: start once a call, use for several phases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

Crew = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], list[Any]]


@contextmanager
def crew_of(threads: int) -> Iterator[Crew]:
    """Yield ``crew(function, calls)``: the results of ``function(*call)`` in the order of ``calls``.

    Parameters
    ----------
    threads : int
        Threads that work at once; with 1 everything runs in the caller.
    """
    if threads == 1:
        yield lambda function, calls: [function(*call) for call in calls]
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield lambda function, calls: list(pool.map(lambda call: function(*call), calls))


# Below these many items a thread costs more than it saves; above these, 32-bit counters of a part could wrap.
_ITEMS_WORTH_A_THREAD = 1 << 17
_ITEMS_OF_A_PART = 1 << 31


def cuts(n: int, parts: int) -> list[tuple[int, int]]:
    """Split ``range(n)`` into ``parts`` neighbouring ranges whose lengths differ by one at most.

    Examples
    --------
    >>> cuts(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    edges = [n * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def parts_of(n: int, threads: int) -> list[tuple[int, int]]:
    """Split ``range(n)`` into one part a thread, or fewer where ``n`` is small, or more where it is huge."""
    worth = min(threads, max(1, n // _ITEMS_WORTH_A_THREAD))
    return cuts(n, max(worth, -(-n // _ITEMS_OF_A_PART)))


def let_idle_threads_sleep() -> None:
    """Ask OpenMP libraries that are not loaded yet to let idle threads sleep, unless the user asked for something.

    By default they spin for a while after a call, and whoever is timed next would pay for it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
