"""Selective recomputation at its limits, on a decoder in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wavetank.errors import BadValueError  # noqa: E402
from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, forward, moved  # noqa: E402
from wavetank.serving.reuse.interface import INSTRUCTIONS, ITEM, TASK, Parts  # noqa: E402
from wavetank.serving.reuse.rcllm import Again  # noqa: E402
from wavetank.serving.reuse.selective import Pool, prefill  # noqa: E402

CONFIG = DecoderConfig(vocabulary=64, layers=3, width=32, heads=4, head_width=8, key_heads=2, hidden=48, window=200,
                       dtype="float64")  # fmt: skip
DRAWS = np.random.default_rng(5)
PIECES = [DRAWS.integers(0, 64, size) for size in (6, 15, 20, 11, 18, 3)]
TOKENS = np.concatenate(PIECES)
PARTS = Parts(np.cumsum([len(each) for each in PIECES]), np.array([INSTRUCTIONS, *[ITEM] * 4, TASK]))


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def weights() -> DecoderWeights:
    return DecoderWeights.made(CONFIG, 1)


def off(weights: DecoderWeights, again: Again, **more: bool) -> float:
    full = forward(weights, TOKENS, np.arange(len(TOKENS))).logits[-1].log_softmax(-1)
    got = prefill(weights, TOKENS, PARTS, Pool(weights, PIECES[1:5]), again, **more).logits.log_softmax(-1)
    return float((full.exp() * (full - got)).sum())


def test_everything_again_is_a_full_prefill(weights: DecoderWeights) -> None:
    full = forward(weights, TOKENS, np.arange(len(TOKENS))).logits[-1]
    for again in (Again(1.0, 0), Again(0.0, 99), Again(0.7, 12)):
        got = prefill(weights, TOKENS, PARTS, Pool(weights, PIECES[1:5]), again)
        if len(got.computed) == len(TOKENS):
            assert float((got.logits - full).abs().max()) < 1e-9
    nothing = prefill(weights, TOKENS, PARTS, Pool(weights, []), Again(0.0, 0))
    assert nothing.kept == 0
    assert float((nothing.logits - full).abs().max()) < 1e-9


def test_what_is_computed_is_the_count_that_is_charged(weights: DecoderWeights) -> None:
    pool, lengths = Pool(weights, PIECES[1:5]), np.array([15, 20, 11, 18])
    for again in (Again(0.0, 0), Again(0.15, 0), Again(0.15, 4), Again(0.5, 16), Again(0.1, 16, 0.125)):
        got = prefill(weights, TOKENS, PARTS, pool, again)
        assert got.kept == 64
        assert len(got.computed) == 6 + 3 + again.count(lengths)
        firsts = [start + k for start, size in zip((6, 21, 41, 52), lengths, strict=True)
                  for k in range(min(again.first, -(-int(8 * again.most * size) // 8)))]  # fmt: skip
        assert set(firsts) <= set(got.computed.tolist())


def test_errors_fall_as_more_is_computed_again_and_nothing_again_is_worst() -> None:
    errors = np.mean([
        [off(DecoderWeights.made(CONFIG, seed), Again(share, 0)) for share in (0.0, 0.2, 0.5, 0.8, 1.0)]
        for seed in range(6)
    ], 0)  # fmt: skip
    assert (np.diff(errors) < 0).all()
    assert abs(errors[-1]) < 1e-9


def test_keys_that_are_turned_are_those_of_the_first_layer_and_come_back(weights: DecoderWeights) -> None:
    alone = forward(weights, PIECES[2], np.arange(20)).cache
    there = moved(CONFIG, alone, np.arange(21, 41))
    full = forward(weights, TOKENS, np.arange(len(TOKENS))).cache
    assert float((there.layers[0].turned - full.layers[0].turned[..., 21:41, :]).abs().max()) < 1e-6
    assert float((there.layers[0].still - full.layers[0].still[..., 21:41, :]).abs().max()) < 1e-12
    back = moved(CONFIG, there, np.arange(20))
    assert float((back.layers[1].turned - alone.layers[1].turned).abs().max()) < 1e-12
    assert off(weights, Again(0.0, 0), turned=False) != off(weights, Again(0.0, 0))


def test_the_tokens_that_differ_most_are_those_that_are_computed(weights: DecoderWeights) -> None:
    got = prefill(weights, TOKENS, PARTS, Pool(weights, PIECES[1:5]), Again(0.25, 0))
    full = forward(weights, TOKENS, np.arange(len(TOKENS))).cache.layers[1].still
    differs, start = {}, 6
    for piece in PIECES[1:5]:
        alone = forward(weights, piece, np.arange(len(piece))).cache.layers[1].still
        for place in range(len(piece)):
            differs[start + place] = float((full[:, start + place] - alone[:, place]).square().sum())
        start += len(piece)
    worst = sorted(differs, key=lambda place: -differs[place])[:16]
    assert set(worst) == set(got.computed.tolist()) & set(differs)


def test_a_prompt_beyond_the_window_is_refused_and_a_part_may_come_twice(weights: DecoderWeights) -> None:
    twice = np.concatenate([PIECES[0], PIECES[1], PIECES[1], PIECES[5]])
    parts = Parts(np.array([6, 21, 36, 39]), np.array([INSTRUCTIONS, ITEM, ITEM, TASK]))
    assert prefill(weights, twice, parts, Pool(weights, PIECES[1:2]), Again(0.0, 0)).kept == 30
    long = np.concatenate([TOKENS] * 3)
    with pytest.raises(BadValueError, match="window"):
        prefill(weights, long, Parts(np.array([219]), np.array([ITEM])), Pool(weights, []), Again(0.0, 0))
