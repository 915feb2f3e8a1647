"""The dossier's checks of the rule: what an edit costs, what is never moved, and which hits are refused."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse import irminsul
from wavetank.serving.reuse.interface import Prompt
from wavetank.serving.reuse.irminsul import AGAIN, COMPUTED, KEPT, MOVED, Irminsul, SegmentCache
from wavetank.serving.reuse.rivals import RadixCache
from wavetank.serving.reuse.segments import content_ends, keys_of

WHOLE = np.random.default_rng(0).integers(0, 50_000, 6_000, dtype=np.uint32)


def prompt(ids: np.ndarray) -> Prompt:
    return Prompt(ids, len(ids), 0)


def cache(budget: int | None = None, **settings: int) -> SegmentCache:
    return SegmentCache(Irminsul(**settings), budget_tokens=budget, unit=1)


@pytest.mark.parametrize("at", [0, 1, 500, 2_999, 5_999])
def test_an_inserted_token_costs_two_segments_at_most(at: int) -> None:
    kept = cache(again=0)
    kept.place(prompt(WHOLE))
    changed = np.insert(WHOLE, at, np.uint32(60_000))
    found = kept.place(prompt(changed))
    assert np.all(found.kinds[:at] == KEPT)
    # Those two, and the first of all, which is moved never.
    first = int(content_ends(WHOLE)[0]) if at < 512 else 0
    assert np.count_nonzero(found.kinds == COMPUTED) <= 2 * 512 + first
    assert at == 5_999 or np.count_nonzero(found.kinds == MOVED) > 0


def test_over_many_insertions_less_than_two_segments_are_cut_anew() -> None:
    draws, before = np.random.default_rng(1), set(keys_of(WHOLE, content_ends(WHOLE)).tolist())
    new = []
    for at in draws.integers(0, len(WHOLE), 200):
        changed = np.insert(WHOLE, at, np.uint32(60_000))
        new.append(len(set(keys_of(changed, content_ends(changed)).tolist()) - before))
    assert 1 <= np.mean(new) <= 2


def test_what_is_computed_follows_what_changed_and_not_where() -> None:
    for changed in (10, 200, 1_000):
        counts = []
        for share in (0.2, 0.5, 0.8):
            kept = cache(again=0)
            kept.place(prompt(WHOLE))
            at = int(share * len(WHOLE))
            new = np.concatenate([WHOLE[:at], np.arange(60_000, 60_000 + changed, dtype=np.uint32), WHOLE[at:]])
            counts.append(np.count_nonzero(kept.place(prompt(new)).kinds == COMPUTED))
        assert all(changed <= each <= changed + 2 * 512 for each in counts)


def test_every_row_that_is_found_has_the_token_that_it_stands_for() -> None:
    draws = np.random.default_rng(2)
    kept, prompts = cache(budget=8_000, bits=3, least=4, most=20, again=3), []
    for _ in range(60):
        base = prompts[draws.integers(len(prompts))] if prompts else WHOLE[:500]
        at, cut = np.sort(draws.integers(0, len(base), 2))
        prompts.append(
            [
                np.concatenate([base[:at], draws.integers(0, 50_000, 7).astype(np.uint32), base[at:]]),
                np.concatenate([base[:at], base[cut:]]) if at < cut else base,
                np.concatenate([base[at:], base[:at]]),
            ][draws.integers(3)][:700]
        )
        found = kept.place(prompt(prompts[-1]))
        for token, kind, owner, position in zip(prompts[-1], *found, strict=True):
            assert (kind == COMPUTED) == (owner < 0) == (position < 0)
            assert kind == COMPUTED or prompts[owner][position] == token
            assert kind not in (MOVED, AGAIN) or position > 0
        places = np.flatnonzero(found.kinds == KEPT)
        assert np.array_equal(found.positions[places], places)


def test_heads_of_runs_are_computed_again_and_not_of_segments() -> None:
    kept, free = cache(again=8), cache(again=0)
    changed = np.concatenate([WHOLE[:2_000], np.arange(60_000, 60_300, dtype=np.uint32), WHOLE[2_000:]])
    found = [(each.place(prompt(WHOLE)), each.place(prompt(changed)))[1].kinds for each in (kept, free)]
    # The rest stood in one piece: one run of many segments.
    assert np.count_nonzero(found[0] == AGAIN) == 8
    assert np.count_nonzero(found[1] == AGAIN) == 0
    moved = np.flatnonzero(found[1] == MOVED)
    assert np.flatnonzero(found[0] == AGAIN).tolist() == moved[:8].tolist()
    # Two pieces that changed places are two runs.
    turned = np.concatenate([WHOLE[:1_000], WHOLE[3_500:], WHOLE[1_000:3_500]])
    again = cache(again=8)
    again.place(prompt(WHOLE))
    assert np.count_nonzero(again.place(prompt(turned)).kinds == AGAIN) == 16


def test_a_run_may_be_computed_again_whole() -> None:
    kept = cache(again=1 << 20)
    kept.place(prompt(WHOLE))
    found = kept.place(prompt(np.insert(WHOLE, 3_000, np.uint32(60_000)))).kinds
    assert np.count_nonzero(found == MOVED) == 0
    assert np.count_nonzero(found == AGAIN) > 2_000


def test_the_first_segment_of_a_prompt_is_never_moved() -> None:
    kept, first = cache(again=0), int(content_ends(WHOLE)[0])
    kept.place(prompt(WHOLE))
    behind = np.concatenate([np.arange(60_000, 60_000 + 512, dtype=np.uint32), WHOLE])
    found = kept.place(prompt(behind))
    places = found.positions[found.kinds == MOVED]
    assert len(places) > 4_000
    assert places.min() >= first


def test_segments_with_one_key_are_not_taken_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irminsul, "keys_of", lambda tokens, ends, chained=False: np.full(len(ends), 7, np.uint64))
    kept = cache(again=0, least=32, most=64, bits=5)
    kept.place(prompt(WHOLE[:600]))
    changed = np.concatenate([WHOLE[:200], WHOLE[2_000:2_300], WHOLE[200:600]])
    found = kept.place(prompt(changed))
    had = found.kinds != COMPUTED
    assert np.array_equal(changed[had], WHOLE[found.positions[had]])
    assert not np.any(had[250:500])
    assert np.any(found.kinds[500:] == MOVED)
    assert kept.names.counts().collisions > 0


def test_counts_of_a_prompt_are_those_of_its_rows() -> None:
    rule = Irminsul(again=8)
    changed = np.insert(WHOLE, 2_000, np.uint32(60_000))
    placed, counted = SegmentCache(rule, budget_tokens=None, unit=1), rule.cache(budget_tokens=None, unit=1)
    placed.place(prompt(WHOLE))
    counted.serve(prompt(WHOLE))
    kinds, got = placed.place(prompt(changed)).kinds, counted.serve(prompt(changed))
    assert got.computed == np.count_nonzero(kinds == COMPUTED)
    assert got.recomputed == np.count_nonzero(kinds == AGAIN) == 8
    assert got.moved == np.count_nonzero(kinds == MOVED)
    assert sum(got[:3]) == len(changed)


def test_a_budget_holds_and_none_means_no_reuse() -> None:
    small = cache(budget=2_000)
    for _ in range(3):
        small.place(prompt(WHOLE))
    assert small.prefixes.counts().tokens <= 2_000
    none = cache(budget=0)
    assert np.all([(none.place(prompt(WHOLE))).kinds == COMPUTED for _ in range(2)])


def test_rows_that_had_to_go_are_not_found_and_their_segments_are_when_they_come_back() -> None:
    kept, one, other = cache(budget=6_500, again=0), WHOLE, WHOLE[::-1].copy()
    kept.place(prompt(one))
    kept.place(prompt(other))
    behind = np.concatenate([np.arange(60_000, 60_600, dtype=np.uint32), one[:5_000]])
    gone = kept.place(prompt(behind))
    alive = 6_500 - 6_000
    assert np.count_nonzero(gone.kinds == MOVED) <= alive
    again = kept.place(prompt(np.concatenate([behind[:600], [70_000], behind[600:]]).astype(np.uint32)))
    assert np.count_nonzero(again.kinds == MOVED) > 4_000
    assert set(again.owners[again.kinds == MOVED].tolist()) == {2}


def test_where_nothing_moves_a_bounded_cache_reuses_what_prefixes_alone_do() -> None:
    draws = np.random.default_rng(4)
    texts = [draws.integers(0, 50_000, 1_500).astype(np.uint32) for _ in range(6)]
    order = draws.integers(0, 6, 80)
    ours, theirs = (rule.cache(budget_tokens=4_000, unit=1) for rule in (Irminsul(), RadixCache()))
    for number in order.tolist():
        ids = texts[number][: int(draws.integers(500, 1_500))]
        assert ours.serve(prompt(ids)) == theirs.serve(prompt(ids))


def test_segments_without_sense_are_refused() -> None:
    for wrong in ({"least": 600}, {"bits": 40}, {"least": 3}, {"again": -1}):
        with pytest.raises(BadValueError):
            Irminsul(**wrong)
