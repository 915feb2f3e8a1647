"""The recursions against a simulation event by event, and against what must hold."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from wavetank.insight.collectives import chunk_model as chunks

INF = np.inf


def run_ring(entry, link, steps, stands=None, breaks=None):
    many = len(entry)
    out = np.zeros((many, chunks.COLUMNS))
    never = np.full(many, INF)
    chunks.ring(np.arange(many)[None], np.array(entry, float), np.array(link, float),
                never if stands is None else np.array(stands, float),
                never if breaks is None else np.array(breaks, float), steps, out)  # fmt: skip
    return out


def by_events(entry, link, steps, stands, breaks):
    """Processes that meet, an event at a time: the same rules, written another way."""
    many = len(entry)
    step, sent, got = [0] * many, [0] * many, [0] * many
    posted, received, ended = [0] * many, [0] * many, [INF] * many
    here = [entry[i] <= stands[i] for i in range(many)]
    queue = [(entry[i], "enter", i) for i in range(many) if entry[i] < INF and here[i]]
    present, moving = [False] * many, [False] * many
    heapq.heapify(queue)
    while queue:
        now = queue[0][0]
        while queue and queue[0][0] == now:
            _, what, i = heapq.heappop(queue)
            if what == "enter":
                present[i] = True
            else:
                after = (i + 1) % many
                moving[i] = False
                sent[i] += 1
                got[after] += 1
                received[after] += 1
        for i in range(many):
            while present[i] and step[i] < steps and sent[i] > step[i] and got[i] > step[i]:
                step[i] += 1
                if step[i] == steps:
                    ended[i] = now
        for i in range(many):
            after = (i + 1) % many
            ready = present[i] and present[after] and step[i] == step[after] < steps
            if ready and sent[i] == step[i] and not moving[i] and now <= stands[i]:
                moving[i] = True
                posted[i] += 1
                end = now + link[i]
                if end <= stands[i] and end <= stands[after] and end <= breaks[i]:
                    heapq.heappush(queue, (end, "arrive", i))
    return ended, posted, received


@pytest.mark.parametrize("seed", range(25))
def test_a_ring_is_what_events_give(seed):
    draws = np.random.default_rng(seed)
    many, steps = int(draws.integers(2, 7)), int(draws.integers(1, 12))
    entry, link = draws.integers(0, 40, many).astype(float), draws.integers(1, 9, many).astype(float)
    stands, breaks = np.full(many, INF), np.full(many, INF)
    if seed % 5 == 1:
        entry[int(draws.integers(many))] = INF
    elif seed % 5 == 2:
        stands[int(draws.integers(many))] = float(draws.integers(0, 80)) + 0.5
    elif seed % 5 == 3:
        breaks[int(draws.integers(many))] = float(draws.integers(0, 80)) + 0.5
    out = run_ring(entry, link, steps, stands, breaks)
    ended, posted, received = by_events(entry, link, steps, stands, breaks)
    assert out[:, chunks.ENDED].tolist() == ended
    assert out[:, chunks.POSTED].tolist() == posted and out[:, chunks.RECEIVED].tolist() == received


def test_a_healthy_ring_takes_its_steps_from_the_last_entry():
    out = run_ring([0, 0, 5, 0], [2, 2, 2, 2], 6)
    assert (out[:, chunks.ENDED] == 17).all()
    assert out[2, chunks.WAIT] == 0 and (out[[0, 1, 3], chunks.WAIT] == 5).all()
    assert (out[:, chunks.SEND] == 12).all() and (out[:, chunks.RECV] == 12).all()


def test_a_slow_link_shows_at_its_two_ends_alone():
    out = run_ring([0, 0, 0, 0], [1, 5, 1, 1], 6)
    assert out[:, chunks.SEND].tolist() == [6, 30, 6, 6] and out[:, chunks.RECV].tolist() == [6, 6, 30, 6]


def run_tree(entry, link, many_chunks, stands=None):
    out = np.zeros((len(entry), chunks.COLUMNS))
    never = np.full(len(entry), INF) if stands is None else np.array(stands, float)
    chunks.tree(np.arange(len(entry)), np.array(entry, float), np.array(link, float), never, many_chunks, out)
    return out


def test_a_tree_of_three_has_known_times():
    # Up: 0..1 and 1..2 into the root; down: 2..3 to the first child, 3..4 to the second.
    out = run_tree([0, 0, 0], [1, 1, 1], 1)
    assert out[:, chunks.ENDED].tolist() == [4, 3, 4]
    assert out[:, chunks.RECEIVED].tolist() == [2, 1, 1] and out[:, chunks.POSTED].tolist() == [2, 1, 1]


def test_nobody_ends_a_tree_in_which_one_stands_still_from_the_begin():
    out = run_tree([0.0] * 7, [1.0] * 7, 3, [INF, INF, INF, INF, 0.5, INF, INF])
    assert np.isinf(out[:, chunks.ENDED]).all() and out[4, chunks.SENT_CHUNKS] == 0
    assert out[5, chunks.SENT_CHUNKS] == 1
    assert np.isinf(run_tree([0, INF, 0], [1, 1, 1], 2)[:, chunks.ENDED]).all()


def test_more_chunks_take_longer_and_each_is_counted():
    few, many = run_tree([0] * 6, [1] * 6, 2), run_tree([0] * 6, [1] * 6, 9)
    assert (many[:, chunks.ENDED] > few[:, chunks.ENDED]).all()
    assert many[:, chunks.SENT_CHUNKS].sum() == many[:, chunks.RECEIVED].sum() == 2 * 5 * 9
