"""Caches that are read in part: against an independent step in float64, grown token by token, and at their limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.attention.kernels import TILE
from wavetank.serving.attention.sparse_kv import SparseKV, check_cache, check_query


def arrays(heads: int, tokens: int, dim: int, group: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, values and one query."""
    rng = np.random.default_rng(seed)
    keys, values = (rng.standard_normal((heads, tokens, dim)).astype(np.float32) for _ in range(2))
    return keys, values, (2 * rng.standard_normal((heads * group, dim))).astype(np.float32)


def attention(query: np.ndarray, keys: np.ndarray, values: np.ndarray, tokens: list[np.ndarray]) -> np.ndarray:
    """Return attention over some tokens of each head, in float64, query by query."""
    group = query.shape[0] // keys.shape[0]
    found = np.empty(query.shape)
    for row, each in enumerate(query.astype(np.float64)):
        head = row // group
        products = np.array([each @ keys[head, t].astype(np.float64) for t in tokens[head]]) / np.sqrt(query.shape[1])
        shares = np.exp(products - products.max())
        found[row] = shares @ values[head, tokens[head]].astype(np.float64) / shares.sum()
    return found


def quest(query: np.ndarray, keys: np.ndarray, block: int, budget: int) -> list[np.ndarray]:
    """Return the tokens of the best blocks of one length: greatest and least numbers, scores added over a group."""
    heads, tokens, dim = keys.shape
    whole, found = tokens // block, []
    for head in range(heads):
        own = query.reshape(heads, -1, dim)[head].astype(np.float64)
        scores = []
        for at in range(whole):
            part = keys[head, at * block : (at + 1) * block].astype(np.float64)
            low, high = part.min(0), part.max(0)
            scores.append(sum(np.maximum(row * low, row * high).sum() for row in own))
        scores[0] = np.inf
        tail = tokens - whole * block
        if not tail:
            scores[-1] = np.inf
        best = sorted(range(whole), key=lambda at: -scores[at])[: (budget - tail) // block]
        read = [range(at * block, (at + 1) * block) for at in sorted(best)] + [range(whole * block, tokens)]
        found.append(np.concatenate([np.array(each, np.int64) for each in read]))
    return found


@pytest.mark.parametrize("tokens", [512, 523])
@pytest.mark.parametrize("block", [8, 16])
def test_one_length_and_float32_is_quest(tokens: int, block: int) -> None:
    keys, values, query = arrays(2, tokens, 12, 3, seed=block)
    kept = SparseKV(keys, values, 100, blocks=block, bits=32, threads=2)
    expected = quest(query, keys, block, 100)
    for found, wanted in zip(kept.selected(query), expected, strict=True):
        assert found.tolist() == wanted.tolist()
    assert kept.attend(query) == pytest.approx(attention(query, keys, values, expected), abs=1e-5)


def test_heads_of_different_lengths_are_as_if_each_were_alone() -> None:
    keys, values, query = arrays(4, 1031, 12, 2)
    blocks = [4, 8, 32, 64]
    ragged = SparseKV(keys, values, 200, blocks=blocks, bits=32, threads=2).selected(query)
    for head, block in enumerate(blocks):
        own = slice(head, head + 1)
        alone = SparseKV(keys[own], values[own], 200, blocks=block, bits=32)
        assert alone.selected(query[2 * head : 2 * head + 2])[0].tolist() == ragged[head].tolist()
        assert 200 - block < ragged[head].size <= 200


@pytest.mark.parametrize("group", [1, 4])
def test_a_whole_budget_is_dense_attention(group: int) -> None:
    keys, values, query = arrays(2, 333, 16, group)
    kept = SparseKV(keys, values, 333, blocks=[16, 128])
    expected = attention(query, keys, values, [np.arange(333)] * 2)
    assert kept.attend(query) == pytest.approx(expected, abs=1e-6)
    assert [each.size for each in kept.selected(query)] == [333, 333]
    # No summary is read where all blocks are.
    assert kept.read_bytes == 2 * 333 * 16 * 8


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("summary", ["box", "ball"])
def test_appended_tokens_are_as_if_they_had_been_there(bits: int, summary: str) -> None:
    keys, values, query = arrays(2, 1200, 8, 2)
    options = {"blocks": [2, 16], "bits": bits, "summary": summary}
    grown = SparseKV(keys[:, :700], values[:, :700], 64, **options)
    before = keys.copy()
    for token in range(700, 1200):
        grown.append(keys[:, token], values[:, token])
        if token in (700, 731, 958, 1199):
            whole = SparseKV(keys[:, : token + 1], values[:, : token + 1], 64, **options)
            assert np.array_equal(grown.attend(query), whole.attend(query))
            assert grown.summary_bytes == whole.summary_bytes
            assert grown.read_bytes == whole.read_bytes
    assert grown.tokens == 1200
    assert np.array_equal(keys, before)


@pytest.mark.parametrize("bits", [4, 32])
def test_the_block_that_fills_a_tile_is_found_when_it_was_appended(bits: int) -> None:
    keys, values, query = arrays(1, 2 * TILE + 44, 8, 1)
    keys[0, 2 * TILE - 1] = 4 * query[0]
    kept = SparseKV(keys[:, :200], values[:, :200], 16, blocks=2, bits=bits)
    for token in range(200, 2 * TILE + 44):
        kept.append(keys[:, token], values[:, token])
    assert 2 * TILE - 1 in kept.selected(query)[0]


def test_a_cache_that_grows_past_its_whole_budget_is_still_read_whole() -> None:
    keys, values, query = arrays(1, 40, 8, 1)
    kept = SparseKV(keys[:, :30], values[:, :30], 30, blocks=8)
    for token in range(30, 40):
        kept.append(keys[:, token], values[:, token])
    assert kept.attend(query) == pytest.approx(attention(query, keys, values, [np.arange(40)]), abs=1e-6)


def test_a_planted_token_is_found_and_the_ends_are_always_read() -> None:
    keys, values, query = arrays(1, 2048, 16, 1)
    keys[0, 1000] = 4 * query[0]
    kept = SparseKV(keys, values, 96, blocks=16, combine="max")
    (read,) = kept.selected(query)
    assert {0, 1000, 2047} <= set(read.tolist())
    assert kept.attend(query)[0] == pytest.approx(values[0, 1000], abs=1e-3)


def test_bytes_are_those_of_codes_scales_and_tokens() -> None:
    keys, values, _ = arrays(2, 4096, 16, 1)
    coded, plain = (SparseKV(keys, values, 256, blocks=[16, 32], bits=bits) for bits in (4, 32))
    assert plain.summary_bytes == (256 + 128) * 32 * 4
    # 4 bits a number, and a scale and a zero for each number of 128 blocks.
    assert coded.summary_bytes == (256 + 128) * 32 // 2 + 3 * 32 * 8
    assert coded.read_bytes == coded.summary_bytes + 2 * 256 * 16 * 8


def test_threads_change_nothing() -> None:
    keys, values, query = arrays(5, 600, 8, 2)
    one, two = (SparseKV(keys, values, 64, blocks=[4, 8, 16, 8, 4], threads=each).attend(query) for each in (1, 2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("budget", [0, -1, 63, 601, 1.5, True, None])
def test_budgets_below_two_blocks_or_above_the_cache_are_refused(budget: object) -> None:
    keys, values, _ = arrays(1, 600, 8, 1)
    with pytest.raises(BadValueError, match="budget"):
        SparseKV(keys, values, budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 2e15, -3e38])
@pytest.mark.parametrize("which", [0, 1])
def test_numbers_that_are_not_finite_or_overflow_are_refused(number: float, which: int) -> None:
    pair = list(arrays(1, 600, 8, 1)[:2])
    pair[which][0, 599, 7] = number
    with pytest.raises(BadValueError, match=("keys", "values")[which]):
        SparseKV(*pair, 64)
    keys, values, query = arrays(1, 600, 8, 1)
    kept, token = SparseKV(keys, values, 64), [np.ones((1, 8)), np.ones((1, 8))]
    token[which][0, 0] = number
    with pytest.raises(BadValueError, match=("key's", "value's")[which]):
        kept.append(*token)
    assert kept.tokens == 600
    query[0, 0] = number
    with pytest.raises(BadValueError, match="not finite"):
        kept.attend(query)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("summary", ["box", "ball"])
def test_the_largest_numbers_that_are_taken_give_the_right_answer(summary: str, bits: int) -> None:
    keys, values, query = (1e14 * np.clip(each, -10, 10).astype(np.float64) for each in arrays(2, 600, 8, 1))
    keys[:, 300] = 1e15 * np.sign(query)
    kept = SparseKV(keys, values, 64, blocks=16, summary=summary, bits=bits)
    read = kept.selected(query)
    assert all(300 in each for each in read)
    expected = attention(query.astype(np.float32), *(each.astype(np.float32) for each in (keys, values)), read)
    assert kept.attend(query) / 1e15 == pytest.approx(expected / 1e15, abs=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "keys", ["abc", {}, [[[1.0], [1.0, 2.0]]], np.full((1, 64, 8), 1j), np.full((1, 64, 8), 1e300)]
)
def test_what_is_no_array_of_real_numbers_is_refused(keys: object) -> None:
    with pytest.raises(BadValueError, match="keys are"):
        check_cache(keys, np.ones((1, 64, 8)), "test")


def test_queries_of_several_threads_do_not_disturb_each_other() -> None:
    keys, values, _ = arrays(2, 8192, 8, 1)
    queries = np.random.default_rng(7).standard_normal((4, 2, 8)).astype(np.float32)
    kept = SparseKV(keys, values, 1024, blocks=[4, 8], threads=1)
    alone = [kept.attend(each) for each in queries]

    def often(number: int) -> bool:
        return all(np.array_equal(kept.attend(queries[number]), alone[number]) for _ in range(400))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(often, range(4)))


def test_shapes_that_do_not_go_together_are_refused() -> None:
    keys, values, query = arrays(2, 64, 8, 1)
    for pair in ((keys, values[:, :63]), (keys[0], values[0]), (keys[:, :0], values[:, :0]), (keys[:0], values[:0])):
        with pytest.raises(BadValueError, match="do not go together, or are empty"):
            SparseKV(*pair, 64)
    kept = SparseKV(keys, values, 64)
    for wrong in (query[:1], query[:, :7], query[0], np.ones((3, 8)), np.ones((0, 8))):
        with pytest.raises(BadValueError, match="does not fit the keys"):
            kept.attend(wrong)
    assert check_query(np.ones((6, 8)), 2, 8, "test").shape == (2, 3, 8)
    with pytest.raises(BadValueError, match="does not fit the cache"):
        kept.append(keys[:1, 0], values[:1, 0])


def test_settings_out_of_range_are_refused() -> None:
    keys, values, _ = arrays(2, 64, 8, 1)
    lengths = ([32], 0, [16, -1], [16.5, 16], [np.nan, 16], 16.0, True, 10**30)
    for given in (*({"blocks": each} for each in lengths), {"bits": 3}, {"reach": 1.5}):
        with pytest.raises(BadValueError):
            SparseKV(keys, values, 64, **given)
    with pytest.raises(UnknownNameError, match="summary"):
        SparseKV(keys, values, 64, summary="bocks")
    with pytest.raises(UnknownNameError, match="combine"):
        SparseKV(keys, values, 64, combine="mean")
    assert SparseKV(keys, values, 64, blocks=np.int64(16)).blocks.tolist() == [16, 16]
