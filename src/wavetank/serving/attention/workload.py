"""Heads with planted important tokens: how long their runs are is drawn, head by head, and belongs to no block.

The background is noise whose channels differ in size.  Each step asks about one topic; what answers it lies in runs of
tokens at drawn places, whose keys lean towards the topic's direction.  Nothing here knows of lengths of blocks: runs
have any length from 1 to ``LONGEST``, begin anywhere, and may overlap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import unknown_name
from wavetank.serving.attention.interface import Cache, Ints
from wavetank.sim.rng import stream

HEADS = ("mixed", "alike", "drifting")
LONGEST = 128
_LEAST_SHARE, _MOST_SHARE = 0.002, 0.015
# Of a query, how much of its direction is the topic's.
_TOPIC = 0.8


class Ways(NamedTuple):
    """How the important tokens of each head lie.

    Attributes
    ----------
    runs : int64 array (key heads,)
        Tokens of a run.
    shares : float64 array (key heads,)
        Of all tokens, those that matter to a topic.
    heights : float64 array (key heads,)
        How far their logits stand above the background, whose deviation is about 1.
    """

    runs: Ints
    shares: NDArray[np.float64]
    heights: NDArray[np.float64]


def ways(kind: str, heads: int, seed: int) -> tuple[Ways, Ways]:
    """Return how important tokens lie in the text to learn from, and in the text to answer from.

    Parameters
    ----------
    kind : str
        ``mixed``: heads differ, and stay as they are.  ``alike``: all heads are of one kind.  ``drifting``: heads
        differ, and in the second text each is as another one was in the first.
    heads : int
    seed : int

    Raises
    ------
    UnknownNameError
        If there is no such kind.
    """
    if kind not in HEADS:
        raise unknown_name("kind of heads", kind, HEADS, where="sparse-attention, heads")
    rng = stream(seed, "sparse-attention-heads")
    drawn = 1 if kind == "alike" else heads
    runs = np.floor(np.exp(rng.uniform(0, np.log(LONGEST + 1), drawn))).astype(np.int64)
    shares = np.exp(rng.uniform(np.log(_LEAST_SHARE), np.log(_MOST_SHARE), drawn))
    heights = rng.uniform(6, 9, drawn)
    found = Ways(np.resize(runs, heads), np.resize(shares, heads), np.resize(heights, heads))
    if kind != "drifting":
        return found, found
    turn = max(1, heads // 2)
    return found, Ways(np.roll(found.runs, turn), np.roll(found.shares, turn), np.roll(found.heights, turn))


def planted(of: Ways, *, tokens: int, dim: int, group: int, steps: int, seed: int, text: str) -> Cache:
    """Return a cache with planted tokens, and queries about them.

    Parameters
    ----------
    of : Ways
    tokens, dim, group, steps : int
    seed : int
        The model's: channels and topics' directions differ by it.
    text : str
        Which text: its noise, and where runs stand.
    """
    heads = of.runs.size
    keys, values = (np.empty((heads, tokens, dim), np.float32) for _ in range(2))
    queries = np.empty((steps, heads, group, dim), np.float32)
    for head in range(heads):
        model, rng = stream(seed, "sparse-attention-model", head), stream(seed, f"sparse-attention-{text}", head)
        sizes = np.exp(0.4 * model.standard_normal(dim))
        sizes /= np.sqrt(np.mean(sizes**2))
        # A few channels carry most of a topic.
        topics = model.standard_normal((steps, dim)) * np.exp(model.standard_normal((steps, dim)))
        topics /= np.linalg.norm(topics, axis=1, keepdims=True)
        rng.standard_normal(out=keys[head], dtype=np.float32)
        keys[head] *= sizes.astype(np.float32)
        rng.standard_normal(out=values[head], dtype=np.float32)
        run = min(int(of.runs[head]), tokens)
        count = max(1, round(of.shares[head] * tokens / run))
        for step, topic in enumerate(topics):
            starts = rng.integers(0, tokens - run + 1, count)
            places = np.unique((starts[:, None] + np.arange(run)).ravel())
            lean = of.heights[head] / _TOPIC * rng.uniform(0.7, 1.3, places.size)
            keys[head, places] += np.outer(lean, topic).astype(np.float32)
            noise = rng.standard_normal((group, dim))
            noise -= np.outer(noise @ topic, topic)
            noise /= np.linalg.norm(noise, axis=1, keepdims=True)
            queries[step, head] = np.sqrt(dim) * (_TOPIC * topic + np.sqrt(1 - _TOPIC**2) * noise)
    return Cache(keys, values, queries.reshape(steps, heads * group, dim))
