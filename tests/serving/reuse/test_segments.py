"""Cuts come back after an insertion, whatever stood before; keys are those of xxHash64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.reuse.segments import content_ends, fixed_ends, keys_of
from wavetank.sim.streams import mix

# Of the library xxhash 3: ids i * 2654435761 mod 2**32, four bytes each, the lowest first.
KNOWN = {
    1: 0x3AEFA6FD5CF2DEB4,
    2: 0xB617E10F4A256A10,
    3: 0xCB7D0C3A25F94B5E,
    4: 0x54E4D0C55EEB4673,
    7: 0x8299D3EB041C77AB,
    8: 0x3DD0543EDF5F34F7,
    9: 0xD19A31382146ABCD,
    15: 0xD9233AFEEF13D479,
    16: 0x5BAD255AF2882093,
    17: 0x919CEEF5812622DB,
    35: 0x3E2C33AD7776DD15,
}


def counted(count: int) -> np.ndarray:
    return np.array([i * 2654435761 % 2**32 for i in range(count)], np.uint32)


@pytest.mark.parametrize("count", KNOWN)
def test_keys_are_xxhash64(count: int) -> None:
    assert int(keys_of(counted(count), np.array([count]))[0]) == KNOWN[count]


def test_a_chained_key_depends_on_all_before_and_an_unchained_one_on_its_segment_alone() -> None:
    one, other = counted(8), counted(8)
    other[0] += 1
    ends = fixed_ends(8, 4)
    alone = [keys_of(each, ends) for each in (one, other)]
    chained = [keys_of(each, ends, chained=True) for each in (one, other)]
    assert alone[0][1] == alone[1][1]
    assert chained[0][1] != chained[1][1]
    assert chained[0][0] == alone[0][0] != alone[1][0]


@pytest.mark.parametrize(("count", "size", "ends"), [(0, 3, []), (1, 3, [1]), (6, 3, [3, 6]), (7, 3, [3, 6, 7])])
def test_fixed_segments(count: int, size: int, ends: list[int]) -> None:
    assert fixed_ends(count, size).tolist() == ends


def plain_ends(tokens: list[int], bits: int, least: int, most: int) -> list[int]:
    """The rule, word by word: the sum over the last tokens, each doubled once per token that followed."""
    ends, start = [], 0
    for at in range(len(tokens)):
        length = at + 1 - start
        seen = tokens[max(0, at - 63) : at + 1]
        rolling = sum((int(mix(np.uint64((each + 0x9E3779B97F4A7C15) % 2**64))) << back) for back, each in
                      enumerate(reversed(seen)))  # fmt: skip
        if (length >= least and rolling % 2**bits == 0) or length == most or at + 1 == len(tokens):
            ends.append(at + 1)
            start = at + 1
    return ends


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 6), st.integers(0, 20), st.integers(0, 40))
def test_cuts_are_those_of_the_rule_word_by_word(seed: int, count: int, bits: int, more: int, longer: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, 50, count, dtype=np.uint32)
    least = max(bits, 1) + more
    found = content_ends(tokens, bits=bits, least=least, most=least + longer)
    assert found.tolist() == plain_ends(tokens.tolist(), bits, least, least + longer)


def test_segments_are_as_long_as_the_hash_says() -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, 2_000_000, dtype=np.uint32)
    lengths = np.diff(content_ends(tokens), prepend=0)
    assert lengths[:-1].min() >= 32
    assert lengths.max() <= 512
    unclamped = np.diff(content_ends(tokens, most=1 << 19), prepend=0)
    assert unclamped.mean() == pytest.approx(31 + 128, rel=0.02)


def test_what_is_inserted_costs_two_segments_at_most_on_average() -> None:
    draws, lost = np.random.default_rng(1), []
    for _ in range(200):
        tokens = draws.integers(0, 50_000, 6_000, dtype=np.uint32)
        at = int(draws.integers(0, 6_000))
        changed = np.insert(tokens, at, np.uint32(60_000))
        before, after = content_ends(tokens), content_ends(changed)
        lost.append(len(set(keys_of(changed, after).tolist()) - set(keys_of(tokens, before).tolist())))
    assert 1 <= np.mean(lost) <= 2


def test_cuts_are_the_same_after_other_beginnings() -> None:
    draws = np.random.default_rng(2)
    common = draws.integers(0, 50_000, 5_000, dtype=np.uint32)
    one = set((content_ends(np.concatenate([draws.integers(0, 50_000, 700, dtype=np.uint32), common])) - 700).tolist())
    other = set((content_ends(np.concatenate([draws.integers(0, 50_000, 33, dtype=np.uint32), common])) - 33).tolist())
    meet = min(each for each in one & other if each > 0)
    assert meet < 2_000
    assert {each for each in one if each >= meet} == {each for each in other if each >= meet}


@pytest.mark.parametrize(("bits", "least", "most"), [(-1, 32, 64), (21, 32, 64), (7, 6, 64), (7, 65, 64), (0, 0, 4)])
def test_cuts_that_there_cannot_be_are_refused(bits: int, least: int, most: int) -> None:
    with pytest.raises(BadValueError):
        content_ends(counted(5), bits=bits, least=least, most=most)


def test_segments_without_tokens_are_refused() -> None:
    with pytest.raises(BadValueError):
        fixed_ends(5, 0)
