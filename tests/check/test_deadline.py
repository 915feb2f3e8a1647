"""Deadlines."""

from __future__ import annotations

import math

import pytest

from wavetank.check.deadline import Deadline, OutOfTimeError


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
