"""Reused rows executed: exact where they must be, and a full computation at the limit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, forward, moved, taken  # noqa: E402
from wavetank.serving.reuse.agreement import agreement, execute  # noqa: E402
from wavetank.serving.reuse.irminsul import Irminsul  # noqa: E402

CONFIG = DecoderConfig(
    layers=3, width=24, heads=2, head_width=8, attention="mla", latent=12, rotary=8, hidden=24, experts=4,
    expert_hidden=8, dtype="float64", scaling="yarn", factor=4.0, original_window=64,
)  # fmt: skip
WEIGHTS = DecoderWeights.made(CONFIG, 0)
DRAWS = np.random.default_rng(0)
TEXT = DRAWS.integers(0, 256, 300)
NEW = np.concatenate([TEXT[:100], DRAWS.integers(0, 256, 9), TEXT[100:]])
RULE = {"bits": 4, "least": 8, "most": 40}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def error(ours, full):
    return max(
        float((a - b).abs().max())
        for x, y in zip(ours.cache.layers, full.cache.layers, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_without_a_rule_everything_is_a_full_computation():
    (done,) = execute(WEIGHTS, [NEW], None)
    full = forward(WEIGHTS, NEW, np.arange(len(NEW)))
    assert done.computed == len(NEW)
    assert torch.allclose(done.logits, full.logits[-1], atol=1e-12)


def test_the_first_layer_of_moved_rows_is_exact_and_deeper_ones_are_not():
    full = execute(WEIGHTS, [NEW], None)[0]
    ours = execute(WEIGHTS, [TEXT, NEW], Irminsul(again=0, **RULE))[1]
    assert ours.computed < 80
    assert ours.cache.positions.tolist() == list(range(len(NEW)))
    for a, b in zip(ours.cache.layers[0], full.cache.layers[0], strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    assert error(ours, full) > 1e-3


def test_runs_computed_again_whole_are_a_full_prefill():
    full = execute(WEIGHTS, [NEW], None)[0]
    for again, share in ((1 << 20, 0.0), (0, 1.0)):
        ours = execute(WEIGHTS, [TEXT, NEW], Irminsul(again=again, **RULE), share=share)[1]
        assert error(ours, full) < 1e-10
        assert ours.computed < len(NEW)
        assert torch.allclose(ours.logits, full.logits, atol=1e-10)


def test_rows_that_are_not_turned_are_wrong_in_the_first_layer():
    full = execute(WEIGHTS, [NEW], None)[0]
    ours = execute(WEIGHTS, [TEXT, NEW], Irminsul(again=0, **RULE), turned=False)[1]
    assert not torch.allclose(ours.cache.layers[0].turned, full.cache.layers[0].turned, atol=1e-2)
    assert torch.allclose(ours.cache.layers[0].still, full.cache.layers[0].still, atol=1e-12)


def test_an_exact_prefix_is_exact():
    longer = np.concatenate([TEXT, NEW[:20]])
    full = execute(WEIGHTS, [longer], None)[0]
    ours = execute(WEIGHTS, [TEXT, longer], Irminsul(**RULE))[1]
    assert ours.computed <= 20
    assert error(ours, full) < 1e-12
    repeated = execute(WEIGHTS, [TEXT, TEXT], Irminsul(**RULE))[1]
    assert repeated.computed == 1
    assert torch.allclose(repeated.logits, execute(WEIGHTS, [TEXT], None)[0].logits, atol=1e-12)


def test_tokens_computed_again_are_those_that_differ_most():
    text = DRAWS.integers(0, 256, 900)
    new = np.concatenate([text[:300], TEXT[:9], text[300:]])
    full = execute(WEIGHTS, [new], None)[0]
    rule = Irminsul(again=0, **RULE)
    free, blended = (execute(WEIGHTS, [text, new], rule, share=each)[1] for each in (0.0, 0.5))
    # In the second layer what is left is no more than the smaller half was.
    def off(done):
        return (done.cache.layers[1].still - full.cache.layers[1].still).square().sum(-1)

    before, after = off(free).numpy(), off(blended).numpy()
    wrong = np.flatnonzero(before > 1e-20)
    assert len(wrong) > 50
    assert np.sort(after)[-1] <= np.sort(before[wrong])[len(wrong) // 2] + 1e-12


def test_moving_there_and_back_changes_nothing():
    cache = forward(WEIGHTS, TEXT[:40], np.arange(40)).cache
    back = moved(CONFIG, moved(CONFIG, cache, np.arange(40) + 500), np.arange(40))
    assert torch.allclose(taken(back, slice(None)).layers[2].turned, cache.layers[2].turned, atol=1e-12)


def test_equal_answers_agree_and_others_do_not():
    full, other = execute(WEIGHTS, [TEXT], None)[0], execute(WEIGHTS, [NEW[:300]], None)[0]
    same = agreement(WEIGHTS, full, full, TEXT[:8])
    assert (same.top1, same.top10, same.kl_nats, same.loss_nats) == (1.0, 1.0, 0.0, 0.0)
    worse = agreement(WEIGHTS, other, full, TEXT[:8])
    assert worse.kl_nats > 1e-4
    assert worse.top10 < 1.0
