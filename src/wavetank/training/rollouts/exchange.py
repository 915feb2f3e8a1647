"""New weights between real processes: each trainer sends the deltas of its pieces, each server decodes them.

Nobody sees a whole weight: a trainer cuts pieces out of the shard that it has before and after its step, codes what
changed, and puts it into the box of the server that needs it, which still has the same piece as it was.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import GaveUpError
from wavetank.training.rollouts.delta import GAP, Words, decode, encode
from wavetank.training.rollouts.shards import Cut, Weight, cut_up, piece, plan, put

Held = dict[tuple[int, str], NDArray[Any]]
PATIENCE_S = 120.0


def exchanged(
    weights: Sequence[Weight],
    source: Cut,
    target: Cut,
    before: Mapping[str, Words],
    after: Mapping[str, Words],
    form: str = GAP,
) -> tuple[Held, dict[int, int]]:
    """Bring new weights from processes that train to processes that serve.

    Parameters
    ----------
    weights : sequence of Weight
    source, target : Cut
        How trainers and servers cut them; every rank is a process.
    before, after : mapping of str to uint16 array
        Whole weights, of which every process gets its own shards alone.
    form : str
        Of ``wavetank.training.rollouts.delta.FORMATS``.

    Returns
    -------
    shards : dict
        What every server has then, by rank and name.
    sent : dict of int
        Bytes of all streams to each server.

    Raises
    ------
    GaveUpError
        If a process does not answer within ``PATIENCE_S``.
    """
    context = multiprocessing.get_context("spawn")
    boxes, answers = [context.Queue() for _ in range(target.ranks)], context.Queue()
    old, new = cut_up(before, weights, source), cut_up(after, weights, source)
    theirs = cut_up(before, weights, target)
    what = (weights, source, target)
    processes = [
        context.Process(target=_trainer, args=(rank, *what, _of(old, rank), _of(new, rank), form, boxes), daemon=True)
        for rank in range(source.ranks)
    ]
    processes += [
        context.Process(target=_server, args=(rank, *what, _of(theirs, rank), boxes[rank], answers), daemon=True)
        for rank in range(target.ranks)
    ]
    shards: Held = {}
    sent: dict[int, int] = {}
    try:
        for each in processes:
            each.start()
        for _ in range(target.ranks):
            rank, held, size = answers.get(timeout=PATIENCE_S)
            shards.update(held)
            sent[rank] = size
    except queue.Empty as error:
        raise GaveUpError(
            f"A process did not answer within {PATIENCE_S:g} s.", given=f"{len(sent)} servers have"
        ) from error
    finally:
        for each in processes:
            each.join(timeout=5.0 if len(sent) == target.ranks else 0.0)
            if each.is_alive():
                each.kill()
                each.join()
    return shards, sent


def _of(shards: Held, rank: int) -> Held:
    return {key: array for key, array in shards.items() if key[0] == rank}


def _trainer(
    rank: int, weights: Sequence[Weight], source: Cut, target: Cut, before: Held, after: Held, form: str, boxes: Any
) -> None:
    for place, each in enumerate(plan(weights, source, target)):
        if each.source == rank:
            old, new = (np.ascontiguousarray(piece(held, source, each)).ravel() for held in (before, after))
            boxes[each.target].put((place, encode(old, new, form)))


def _server(rank: int, weights: Sequence[Weight], source: Cut, target: Cut, held: Held, box: Any, answers: Any) -> None:
    transfers = plan(weights, source, target)
    size = 0
    for _ in range(sum(each.target == rank for each in transfers)):
        place, stream = box.get(timeout=PATIENCE_S)
        # The same piece, in the server's own shard.
        old = piece(held, target, transfers[place]._replace(source=rank))
        put(held, target, transfers[place], decode(stream, np.ascontiguousarray(old).ravel()).reshape(old.shape))
        size += len(stream)
    answers.put((rank, held, size))
