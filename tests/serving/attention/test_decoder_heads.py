"""Heads of a decoder that nobody planted."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from wavetank.errors import BadValueError
from wavetank.serving.attention.decoder_heads import GROUP, KEY_HEADS, LAYERS, WIDTH, decoder_cache
from wavetank.serving.attention.recall import full_attention


def test_its_attention_is_the_decoders_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from wavetank.kernels.decoder import DecoderConfig, forward
    from wavetank.kernels.decoder_training import library_text, tokens_of, trained
    from wavetank.sim.rng import stream

    tokens, steps = 130, 3
    monkeypatch.setattr("wavetank.serving.attention.decoder_heads._AT_ONCE", 60)
    found = decoder_cache(tokens=tokens, steps=steps, seed=1, text="use", training_steps=1)
    assert found.keys.shape == found.values.shape == (LAYERS * KEY_HEADS, tokens, WIDTH)
    assert found.group == GROUP
    config = DecoderConfig(layers=LAYERS, heads=8, key_heads=KEY_HEADS, head_width=WIDTH, window=1 << 21)
    unseen = tokens_of(library_text(6_000_000)[1_000_000:])
    first = int(stream(1, "sparse-attention-use").integers(0, unseen.size - tokens - steps + 1))
    piece = unseen[first : first + tokens + steps]
    own = forward(trained(config, steps=1), piece, np.arange(piece.size), attention=True).attention
    for head in range(LAYERS * KEY_HEADS):
        shares = full_attention(found, head).shares
        layer, at = divmod(head, KEY_HEADS)
        expected = own[layer][at * GROUP : (at + 1) * GROUP, tokens:, :tokens].numpy().swapaxes(0, 1).astype(float)
        # The decoder's queries see the bytes between, too.
        expected /= expected.sum(2, keepdims=True)
        assert shares == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_pieces_differ_by_text_and_seed_and_are_no_longer_than_the_library() -> None:
    one, other, later = (
        decoder_cache(tokens=40, steps=1, seed=seed, text=text, training_steps=1)
        for seed, text in ((0, "use"), (0, "calibration"), (1, "use"))
    )
    assert not np.array_equal(one.keys, other.keys)
    assert not np.array_equal(one.keys, later.keys)
    with pytest.raises(BadValueError, match="shorter"):
        decoder_cache(tokens=10**8, steps=1, seed=0, text="use")
