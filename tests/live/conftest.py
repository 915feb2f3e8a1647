"""What the tests of the sockets share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from wavetank.live.loops import fastest_loop

T = TypeVar("T")
_LONGEST_S = 60.0


@pytest.fixture
def play() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine to its end on a loop of its own, but not for ever."""

    def run(story: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=fastest_loop) as runner:
            return runner.run(asyncio.wait_for(story, _LONGEST_S))

    return run
