"""The shared board: letters in order, checks of weights, fences."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.serving.rank_failures.agreement import Apply, Join, Ready
from wavetank.serving.rank_failures.board import Board, board_bytes, check_of


def board() -> Board:
    return Board(np.zeros(board_bytes(3, 4, 5, 16), np.uint8), 3, 4, 5, 16)


def test_letters_arrive_in_order_with_who_wrote_them() -> None:
    found = board()
    sent = [Join(2), Ready(7, (1, -1, 3, 4)), Apply(8, 5, (0, 2), ((1, 2, 3, 4), (-1, -1, -1, -1)))]
    for message in sent:
        found.send(1, 2, 0, message)
    assert [found.read(0, 1, number) for number in range(3)] == [(2, message) for message in sent]
    assert (found.head(0, 1), found.head(1, 0), found.head(2, 1)) == (3, 0, 0)


def test_a_ring_that_was_written_over_is_noticed_and_a_letter_too_long_refused() -> None:
    found = board()
    for number in range(64):
        found.send(1, 0, 0, Join(number))
    with pytest.raises(WavetankError, match="did not read its letters"):
        found.read(0, 1, 0)
    assert found.read(0, 1, 1) == (0, Join(1))
    with pytest.raises(WavetankError, match="too long"):
        found.send(0, 0, 1, Ready(1, tuple(range(10**5, 10**5 + 500))))


def test_weights_that_were_cut_off_or_lost_are_not_sound() -> None:
    found, weights = board(), np.arange(16.0)
    found.put(1, 2, weights)
    assert found.sound(1, 2) and not found.sound(1, 3)
    found.weights[1, 2, 5] += 1e-9
    assert not found.sound(1, 2)
    found.put(1, 2, weights)
    found.spoil(1)
    assert not found.sound(1, 2)

    def cut() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        found.put(0, 0, weights, cut)
    assert not found.sound(0, 0)
    assert check_of(weights) != check_of(weights + 1)


def test_words_have_one_writer_each() -> None:
    found = board()
    found.fence(2, 3)
    found.beat(1)
    found.beat(1)
    found.complete(0, 4)
    assert [found.fenced(rank) for rank in range(3)] == [0, 0, 3]
    assert [int(found.beats[rank * 8]) for rank in range(3)] == [0, 2, 0]
    assert (found.incomplete((0,), 4), found.incomplete((0, 1), 4), found.incomplete((0,), 5)) == (-1, 1, 0)


def test_weights_whose_copy_was_given_up_are_not_sound() -> None:
    board = Board(np.zeros(board_bytes(1, 1, 1, 3000), np.uint8), 1, 1, 1, 3000)
    board.put(0, 0, np.ones(3000))
    assert board.sound(0, 0)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        board.put(0, 0, np.ones(3000), stop)
    assert not board.sound(0, 0)
