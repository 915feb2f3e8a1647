"""Deadlines, and the memory of this process."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from numba.core import config
from numba.extending import overload

from wavetank.check.deadline import Deadline, OutOfTimeError, resident_bytes
from wavetank.sim.compiled import compiled


def test_a_deadline_without_seconds_never_comes() -> None:
    clock = Deadline()
    clock.check()
    assert math.isinf(clock.left_s)
    assert clock.spent_s >= 0


def test_time_that_is_up_is_told() -> None:
    clock = Deadline(-1)
    assert clock.left_s < 0
    with pytest.raises(OutOfTimeError, match="up"):
        clock.check()


def test_a_part_of_the_time_never_exceeds_the_whole() -> None:
    assert Deadline(5).at_most(1000).left_s <= 5
    assert Deadline(1000).at_most(5).left_s <= 5


def test_compiling_takes_no_time_of_a_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, left = [1000.0], []
    # Nothing was compiled before.
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(x: int) -> int:
        return x

    @overload(slow)
    def _compiled_slow(x):  # type: ignore[no-untyped-def]
        # numba calls this while it compiles what calls the function.
        now[0] += 50.0
        left.append(clock.left_s)
        return lambda x: x

    @compiled
    def caller(x: int) -> int:
        return slow(x)

    clock = Deadline(10.0)
    now[0] += 1.0
    assert caller(3) == 3
    assert left and all(each == pytest.approx(9.0) for each in left)
    assert (clock.left_s, clock.spent_s) == (9.0, 1.0)
    now[0] += 10.0
    assert caller(4) == 4
    assert clock.left_s == -1.0


def test_the_memory_of_this_process_is_known_or_zero() -> None:
    assert resident_bytes() == 0 or resident_bytes() > 2**20
