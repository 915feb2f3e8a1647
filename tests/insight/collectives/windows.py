"""Windows made by hand: two rings of four ranks."""

from __future__ import annotations

import numpy as np

from wavetank.insight.collectives.interface import NEVER, Frames, Window, by_rank

S = 1_000_000_000


def row(rank, seq=0, comm=0, entered=1.0, ended=2.0, **more):
    """Return a frame; times in seconds, None for never."""

    def ns(at):
        return NEVER if at is None else int(at * S)

    given = {
        "rank": rank, "comm": comm, "seq": seq, "op": 0, "size": 1024, "dtype": 4, "root": -1,
        "entered_ns": ns(entered), "ended_ns": ns(ended),
        "moved_ns": ns(more.pop("moved", ended if ended is not None else entered)),
        "polled_ns": ns(more.pop("polled", None)), "posted": 6, "received": 6, "wait_ns": 0, "send_ns": S // 10,
        "recv_ns": S // 10, "sent_bytes": 1 << 20, "received_bytes": 1 << 20,
    }  # fmt: skip
    return {**given, **more}


def window(rows, members=((0, 1, 2, 3),), now=1000.0, ranks=None, trees=()):
    """Return a window of frames given as dicts."""
    frames = Frames(*(np.array([each[name] for each in rows], np.int64) for name in Frames._fields))
    of = tuple(np.array(each, np.int64) for each in members)
    many = ranks or max(max(each) for each in members) + 1
    return Window(by_rank(frames), of, np.full(many, int(now * S)), frozenset(trees))
