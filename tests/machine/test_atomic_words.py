"""Words that threads and processes share."""

from __future__ import annotations

import threading

import numpy as np

from wavetank.machine.atomic_words import first_below, publish


def test_the_first_word_that_is_too_low_is_named_and_none_where_all_are_high_enough() -> None:
    words = np.zeros(32, np.int64)
    places = np.array([3, 8, 30], np.int64)
    publish(words, 3, 5)
    publish(words, 30, 7)
    assert words.sum() == 12
    assert first_below(words, places, 1, 4) == 1
    publish(words, 8, 1)
    assert first_below(words, places, 1, 4) == -1
    assert first_below(words, places, 6, 1) == 0
    assert first_below(words, places[:0], 6, 1) == -1


def test_who_sees_the_word_sees_what_was_written_before_it() -> None:
    words, data, steps = np.zeros(16, np.int64), np.zeros(64, np.int64), 300
    places, back = np.array([0], np.int64), np.array([8], np.int64)
    seen: list[bool] = []

    def read() -> None:
        for step in range(1, steps):
            while first_below(words, places, step, 50) >= 0:
                continue
            seen.append(bool((data == step).all()))
            publish(words, 8, step)

    thread = threading.Thread(target=read)
    thread.start()
    for step in range(1, steps):
        data[:] = step
        publish(words, 0, step)
        while first_below(words, back, step, 50) >= 0:
            continue
    thread.join()
    assert len(seen) == steps - 1
    assert all(seen)
