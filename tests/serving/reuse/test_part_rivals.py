"""Full reuse, and keys that are chained on prefixes."""

from __future__ import annotations

import numpy as np

from wavetank.serving.reuse.interface import INSTRUCTIONS, ITEM, TASK, Parts, Prompt
from wavetank.serving.reuse.part_rivals import ChainedParts, FullReuse


def prompt(*items: int) -> Prompt:
    pieces = [np.arange(10), *(np.arange(100 * each, 100 * each + 40) for each in items), np.arange(5, 10)]
    ends = np.cumsum([len(each) for each in pieces])
    kinds = np.array([INSTRUCTIONS, *[ITEM] * len(items), TASK])
    ids = np.concatenate(pieces).astype(np.uint32)
    return Prompt(ids, len(ids), 0, Parts(ends, kinds))


def test_chained_keys_find_a_prefix_and_nothing_behind_it() -> None:
    chained, full = (rule.cache(budget_tokens=None, unit=1) for rule in (ChainedParts(), FullReuse()))
    for cache in (chained, full):
        cache.serve(prompt(1, 2, 3))
    assert chained.serve(prompt(1, 3, 2)).reused == 50
    assert chained.serve(prompt(3, 1, 2)).reused == 10
    got = full.serve(prompt(3, 1, 2))
    assert (got.reused, got.recomputed, got.computed) == (120, 10, 5)
