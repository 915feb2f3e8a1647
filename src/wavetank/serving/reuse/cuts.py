"""Prompts as the serving simulator takes them: units with identities and names, as each rule of reuse cuts them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.reuse.interface import Prompt, Workload
from wavetank.serving.reuse.segments import Ends, Keys, Tokens, content_ends, fixed_ends, keys_of
from wavetank.serving.simulator.reuse import Units

_APART, _PLACE = 0x9E3779B97F4A7C15, np.uint64(0xC2B2AE3D27D4EB4F)


def prefix_units(workload: Workload, ids: int, *, shared: bool = True) -> Units:
    """Return prompts as pieces of their prefixes, each found behind those before it alone.

    Parameters
    ----------
    workload : Workload
    ids : int
        Of a piece; what is left at the end of a prompt is in none, nor is an id that stands for fewer tokens.
    shared : bool
        Whether conversations find what others have.
    """

    def keys(prompt: Prompt, own: Tokens) -> tuple[Ends, Keys]:
        ends = fixed_ends(len(own) // ids * ids, ids)
        return ends, keys_of(own, ends, chained=True)

    return _units(workload, keys, ids * workload.unit, shared=shared)


def content_units(workload: Workload, ids: int, *, shared: bool = True) -> Units:
    """Return prompts as pieces at fixed places, each found wherever it stood.

    Parameters
    ----------
    workload, ids, shared
        As for :func:`prefix_units`.
    """

    def keys(prompt: Prompt, own: Tokens) -> tuple[Ends, Keys]:
        ends = fixed_ends(len(own) // ids * ids, ids)
        return ends, keys_of(own, ends)

    found = _units(workload, keys, ids * workload.unit, shared=shared)
    return found._replace(free=np.ones(found.tokens.size, bool))


def segment_units(workload: Workload, *, bits: int, least: int, most: int, shared: bool = True) -> Units:
    """Return prompts id by id, named by the segment of its content that each id is in, and its place there.

    The first segment of a prompt has no names: it is never moved.

    Parameters
    ----------
    workload : Workload
    bits, least, most : int
        As for :func:`wavetank.serving.reuse.segments.content_ends`; the latter two in tokens.
    shared : bool
        Whether conversations find what others have.
    """
    units = prefix_units(workload, 1, shared=shared)
    few = max(1, least // workload.unit)
    keys: list[Keys] = []
    for prompt in workload.prompts:
        own = _whole(prompt, workload.unit)
        ends = content_ends(own, bits=min(bits, few), least=few, most=max(few, most // workload.unit))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        lengths = ends - starts
        place = np.arange(len(own)) - np.repeat(starts, lengths)
        key = np.repeat(keys_of(own, ends), lengths) + (place + 1).astype(np.uint64) * _PLACE
        key = _of(prompt, key, shared)
        key[: int(lengths[0]) if len(lengths) else 0] = 0
        keys.append(key)
    # The key of no name comes first, so that it is number 0 of all.
    names = np.unique(np.concatenate([np.zeros(1, np.uint64), *keys]), return_inverse=True)[1]
    return units._replace(names=names[1:].astype(np.int64) - 1)


def _whole(prompt: Prompt, unit: int) -> Tokens:
    """Return the ids that stand for as many tokens as all others."""
    return prompt.ids[: prompt.tokens // unit]


def _of(prompt: Prompt, keys: Keys, shared: bool) -> Keys:
    """Return keys that no other conversation has, where they share nothing."""
    return keys if shared else keys ^ np.uint64((prompt.session + 1) * _APART % 2**64)


def _units(
    workload: Workload, keys: Callable[[Prompt, Tokens], tuple[Ends, Keys]], tokens: int, *, shared: bool
) -> Units:
    found: list[Keys] = []
    counts: list[int] = []
    for prompt in workload.prompts:
        ends, own = keys(prompt, _whole(prompt, workload.unit))
        found.append(_of(prompt, own, shared))
        counts.append(len(ends))
    distinct, ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]), return_inverse=True)
    offsets: NDArray[np.int64] = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Units(ids.astype(np.int64), offsets, np.full(distinct.size, tokens, np.int64))
