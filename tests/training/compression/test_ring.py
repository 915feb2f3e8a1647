"""Rings and direct exchanges sum right, in the rounds and bytes that they should take."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.interface import Message, Task
from wavetank.training.compression.ring import direct, play
from wavetank.training.compression.rivals import PlainRing


class PlainDirect(PlainRing):
    def rounds(self, values, place, task, work):
        return direct(self, values, place, task, work)


def numbers(size, count, seed=0):
    return list(np.random.default_rng(seed).integers(-1000, 1000, (size, count)).astype(np.float32))


@pytest.mark.parametrize("kind", [PlainRing, PlainDirect])
@pytest.mark.parametrize(("size", "count"), [(1, 5), (2, 5), (3, 7), (4, 64), (5, 3), (4, 0), (7, 100)])
def test_every_rank_has_the_sum(kind, size, count):
    given = numbers(size, count)
    played = play(kind(), given, Task(size=size, shape=(count,), bound=1.0))
    for each in played.sums:
        # Whole numbers: sums in single precision are exact.
        assert np.array_equal(each, np.sum(given, axis=0))
    assert len(played.rounds) == (2 * (size - 1) if size > 1 else 0)
    assert played.sent_bytes == 2 * (size - 1) * 4 * count


def test_what_ranks_have_is_not_changed():
    given = numbers(3, 10)
    kept = [each.copy() for each in given]
    play(PlainRing(), given, Task(size=3, shape=(10,), bound=1.0))
    assert all(np.array_equal(one, other) for one, other in zip(given, kept, strict=True))


def test_a_direct_exchange_goes_to_every_distance():
    played = play(PlainDirect(), numbers(4, 8), Task(size=4, shape=(8,), bound=1.0))
    assert [each.distance for each in played.rounds] == [1, 2, 3, 1, 2, 3]


def test_sums_are_counted():
    played = play(PlainRing(), numbers(4, 8), Task(size=4, shape=(8,), bound=1.0))
    added = sum(work.before["add"] for each in played.rounds for work in each.work)
    # Three sums of a quarter on each of four ranks.
    assert added == 4 * 3 * 2


def test_wrong_numbers_are_refused():
    task = Task(size=2, shape=(4,), bound=1.0)
    with pytest.raises(BadValueError, match="Each rank"):
        play(PlainRing(), numbers(3, 4), task)
    with pytest.raises(BadValueError, match="numbers of its task"):
        play(PlainRing(), numbers(2, 5), task)
    with pytest.raises(BadValueError, match="numbers of its task"):
        play(PlainRing(), [np.zeros(4), np.zeros(4)], task)


def test_ranks_that_do_other_rounds_are_noticed():
    class Early(PlainRing):
        def rounds(self, values, place, task, work):
            if place:
                yield Message(1, b"", 0)
            return values

    with pytest.raises(BadValueError, match="same rounds"):
        play(Early(), numbers(2, 4), Task(size=2, shape=(4,), bound=1.0))
