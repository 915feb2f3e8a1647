"""Which event loop the load generator and the null backend run on: uvloop where it is installed."""

from __future__ import annotations

import asyncio


def fastest_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop loop, or asyncio's own where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
