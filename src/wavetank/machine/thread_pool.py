"""A pool of threads for kernels that release the interpreter's lock, and how work is cut for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

from wavetank.machine.threads import together

ThreadPool = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], list[Any]]


def thread_pool(threads: int) -> ThreadPool:
    """Return :func:`wavetank.machine.threads.together` for a number of threads; with 1 all runs in the caller."""
    return partial(together, threads=threads)


# Below these many items a thread costs more than it saves; above these, 32-bit counters of a part could wrap.
_ITEMS_WORTH_A_THREAD = 1 << 17
_ITEMS_OF_A_PART = 1 << 31


def cuts(n: int, parts: int) -> list[tuple[int, int]]:
    """Split ``range(n)`` into ``parts`` neighbouring ranges whose lengths differ by one at most.

    Parameters
    ----------
    n : int
        0 or more.
    parts : int
        1 or more.

    Examples
    --------
    >>> cuts(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    edges = [n * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def parts_of(n: int, threads: int) -> list[tuple[int, int]]:
    """Split ``range(n)`` into one part per thread, or fewer where ``n`` is small, or more where it is huge.

    Parameters
    ----------
    n : int
        Items, 0 or more.
    threads : int
        1 or more.
    """
    worth = min(threads, max(1, n // _ITEMS_WORTH_A_THREAD))
    return cuts(n, max(worth, -(-n // _ITEMS_OF_A_PART)))


def let_idle_threads_sleep() -> None:
    """Ask OpenMP libraries that are not loaded yet to let idle threads sleep, unless the user asked for something.

    By default they spin for a while after a call, and the system that is timed next would be slower for it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
