"""Other ways with what stands behind an edit."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse.interface import Prompt, Reuse, Served
from wavetank.serving.reuse.irminsul import Irminsul
from wavetank.serving.reuse.moving_rivals import CacheBlend, FullKeyRotation, IdealRecompute, UnturnedRows

WHOLE = np.random.default_rng(0).integers(0, 50_000, 4_000, dtype=np.uint32)
CHANGED = np.insert(WHOLE, 1_000, np.uint32(60_000))


def last(rule: Reuse, *prompts: np.ndarray, budget: int | None = None) -> Served:
    cache = rule.cache(budget_tokens=budget, unit=1)
    return [cache.serve(Prompt(each, len(each), 0)) for each in prompts][-1]


def test_a_share_of_what_moved_is_computed_again() -> None:
    free, blended = (last(rule, WHOLE, CHANGED) for rule in (Irminsul(again=0), CacheBlend()))
    assert blended.recomputed == -(-free.moved * 15 // 100)
    assert blended.moved + blended.recomputed == free.moved
    assert blended.computed == free.computed
    assert last(CacheBlend(share=1.0), WHOLE, CHANGED).moved == 0


def test_whole_keys_are_found_alike_and_fewer_fit() -> None:
    assert last(FullKeyRotation(), WHOLE, CHANGED) == last(Irminsul(), WHOLE, CHANGED)
    # 2 x 8 x 128 numbers against 576: 3.6 times the room.
    ours, theirs = (last(rule, WHOLE, WHOLE, budget=8_000).reused for rule in (Irminsul(), FullKeyRotation()))
    assert ours == 3_999
    assert theirs == 8_000 * 576 // 2_048


def test_rows_that_are_not_turned_are_counted_as_those_that_are() -> None:
    assert last(UnturnedRows(again=8), WHOLE, CHANGED) == last(Irminsul(again=8), WHOLE, CHANGED)


def test_the_bound_computes_what_is_new_alone() -> None:
    inserted = np.concatenate([WHOLE[:1_000], np.arange(60_000, 60_050, dtype=np.uint32), WHOLE[1_000:]])
    assert last(IdealRecompute(), WHOLE, inserted) == Served(4_000, 0, 50)
    # Pieces shorter than a run count as new, as does the whole of what never was.
    pieces = np.concatenate([WHOLE[:31], [60_000], WHOLE[500:540], [60_001], WHOLE[900:1_000]]).astype(np.uint32)
    assert last(IdealRecompute(), WHOLE, pieces).computed == 31 + 2
    assert last(IdealRecompute(), WHOLE[:20], WHOLE[:20]).reused == 0


def test_the_bound_is_one_for_segments() -> None:
    draws = np.random.default_rng(3)
    ours, bound = (rule.cache(budget_tokens=None, unit=1) for rule in (Irminsul(again=0), IdealRecompute()))
    ids = WHOLE
    for _ in range(12):
        at, cut = np.sort(draws.integers(0, len(ids), 2))
        ids = np.concatenate([ids[:at], draws.integers(0, 50_000, 40).astype(np.uint32), ids[cut:], ids[at : at + 300]])
        one, other = (each.serve(Prompt(ids, len(ids), 0)) for each in (ours, bound))
        # The prefix of the first prompt shorter than a run is all that a bound of runs may miss.
        assert other.reused >= one.reused - 31


def test_settings_without_sense_are_refused() -> None:
    for wrong in (lambda: CacheBlend(share=1.1), lambda: FullKeyRotation(key_heads=0), lambda: IdealRecompute(least=0),
                  lambda: UnturnedRows(again=-1)):  # fmt: skip
        with pytest.raises(BadValueError):
            wrong()
