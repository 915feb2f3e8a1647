"""What runs beside the requests, for ever: a defect is logged, and the work begun anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("wavetank.router")

# After a defect, so that one that comes at once, every time, takes no processor for itself.
AGAIN_S = 1.0


async def kept_up(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do what never ends by itself, until it is cancelled.

    Parameters
    ----------
    name : str
        For the log, and of the task.
    work : callable
        Begins it.
    """
    task = asyncio.current_task()
    if task is not None:
        task.set_name(name)
    while True:
        try:
            await work()
        except Exception:
            log.exception("a defect of the router, in %s, which goes on", name)
        await asyncio.sleep(AGAIN_S)
