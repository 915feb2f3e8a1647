"""When the chunks of a collective operation move: exact recursions over the steps of a ring and over a binary tree.

A chunk moves when its sender has it, sender and receiver are at that step, and the link has carried it.  A rank that
never enters, one that stands still from some time on, and a link that breaks are times that are infinite; everything
that depends on them never happens.  This is the truth that analysers are held against; it was written before them.
"""

from __future__ import annotations

import numpy as np

from wavetank.sim.compiled import compiled

# Columns of what a rank did in an operation.
ENDED, MOVED, POSTED, RECEIVED, SEND, RECV, WAIT, SENT_CHUNKS = range(8)
COLUMNS = 8


@compiled(nogil=True)
def ring(members, entry, link, stands, breaks, steps, out):  # type: ignore[no-untyped-def]
    """Run one operation on each of several rings of equal size.

    Parameters
    ----------
    members : int64 array, shape (rings, size)
    entry : float64 array, shape (ranks,)
        When each rank enters, s; infinite: never.
    link : float64 array, shape (ranks,)
        What a chunk takes from each rank to the next one, s.
    stands : float64 array, shape (ranks,)
        From when on a rank does nothing more; infinite: never.
    breaks : float64 array, shape (ranks,)
        From when on nothing arrives that a rank sends.
    steps : int
        Each rank sends and receives one chunk in each.
    out : float64 array, shape (ranks, COLUMNS)
        Is filled for the members.
    """
    size = members.shape[1]
    before, now = np.empty(size), np.empty(size)
    arrives = np.empty(size)
    for each in range(members.shape[0]):
        who = members[each]
        for i in range(size):
            before[i] = entry[who[i]] if entry[who[i]] <= stands[who[i]] else np.inf
            out[who[i]] = 0.0
            out[who[i], MOVED] = before[i]
        for _ in range(steps):
            for i in range(size):
                source = i - 1 if i else size - 1
                sender, receiver = who[source], who[i]
                begin = max(before[source], before[i])
                if begin < np.inf and begin <= stands[sender]:
                    out[sender, POSTED] += 1
                    out[sender, MOVED] = max(out[sender, MOVED], begin)
                end = begin + link[sender]
                if end > stands[sender] or end > stands[receiver] or end > breaks[sender]:
                    end = np.inf
                arrives[i] = end
                if end < np.inf:
                    out[receiver, RECEIVED] += 1
                    out[receiver, MOVED] = max(out[receiver, MOVED], end)
                    out[sender, SENT_CHUNKS] += 1
                    out[sender, SEND] += link[sender]
                    out[receiver, RECV] += link[sender]
            for i in range(size):
                follower = i + 1 if i + 1 < size else 0
                now[i] = max(arrives[i], arrives[follower])
                if now[i] < np.inf:
                    source = i - 1 if i else size - 1
                    busy = max(link[who[source]], link[who[i]])
                    out[who[i], WAIT] += max(now[i] - before[i] - busy, 0.0)
            before, now = now, before
        for i in range(size):
            out[who[i], ENDED] = before[i]


@compiled(nogil=True)
def tree(who, entry, link, stands, chunks, out):  # type: ignore[no-untyped-def]
    """Run one all-reduce over a binary tree: chunks go up to the first member and down again.

    Parameters
    ----------
    who : int64 array, shape (size,)
        The member at place p has those at 2 p + 1 and 2 p + 2 below it.
    entry, link, stands, out
        As for :func:`ring`; a link is what a chunk takes from a rank to any other.
    chunks : int
    """
    size = who.size
    up, down = np.empty(size), np.empty(size)
    sent_up = np.empty(size)
    for i in range(size):
        rank = who[i]
        up[i] = entry[rank] if entry[rank] <= stands[rank] else np.inf
        down[i] = up[i]
        sent_up[i] = up[i]
        out[rank] = 0.0
        out[rank, MOVED] = up[i]
    for _ in range(chunks):
        for i in range(size - 1, -1, -1):
            rank = who[i]
            have = sent_up[i]
            for child in range(2 * i + 1, min(2 * i + 3, size)):
                come = max(up[child], have)
                sender = who[child]
                if come < np.inf:
                    out[sender, POSTED] += 1
                    out[sender, MOVED] = max(out[sender, MOVED], come)
                end = come + link[sender]
                if end > stands[rank] or end > stands[sender]:
                    end = np.inf
                if end < np.inf:
                    out[rank, RECEIVED] += 1
                    out[rank, MOVED] = max(out[rank, MOVED], end)
                    out[sender, SENT_CHUNKS] += 1
                    out[sender, SEND] += link[sender]
                    out[rank, RECV] += link[sender]
                have = end
                sent_up[child] = end
            up[i] = have
            if i == 0:
                sent_up[0] = have
        down[0] = max(down[0], up[0])
        for i in range(size):
            rank = who[i]
            ready = down[i]
            for child in range(2 * i + 1, min(2 * i + 3, size)):
                come = max(ready, down[child], sent_up[child])
                receiver = who[child]
                if come < np.inf and come <= stands[rank]:
                    out[rank, POSTED] += 1
                    out[rank, MOVED] = max(out[rank, MOVED], come)
                end = come + link[rank]
                if end > stands[rank] or end > stands[receiver]:
                    end = np.inf
                if end < np.inf:
                    out[receiver, RECEIVED] += 1
                    out[receiver, MOVED] = max(out[receiver, MOVED], end)
                    out[rank, SENT_CHUNKS] += 1
                    out[rank, SEND] += link[rank]
                    out[receiver, RECV] += link[rank]
                down[child] = end
                ready = end
            if i == 0 or 2 * i + 1 < size:
                down[i] = max(down[i], ready)
    for i in range(size):
        rank = who[i]
        out[rank, ENDED] = down[i]
        if down[i] < np.inf:
            out[rank, WAIT] = max(down[i] - entry[rank] - out[rank, SEND] - out[rank, RECV], 0.0)
