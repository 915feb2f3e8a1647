"""Keys, values and queries of a trained decoder: heads that nobody planted.

The reference decoder is trained on the standard library, in pieces of 256 bytes, and reads a longer piece that it was
not trained on.  All heads of keys of all layers stand beside one another, as if they were of one layer: that is what
lengths are given out among.  The queries are those of the bytes that follow the cache.
"""

from __future__ import annotations

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.attention.interface import Cache
from wavetank.sim.rng import stream

LAYERS, KEY_HEADS, GROUP, WIDTH = 4, 2, 4, 32
"""Layers, heads of keys of each, heads of queries that share one, and numbers of a key."""
_TRAINED_BYTES, _ALL_BYTES = 1_000_000, 6_000_000
# A call attends to the whole cache before it: more at once would take more memory.
_AT_ONCE = 512


def decoder_cache(*, tokens: int, steps: int, seed: int, text: str, training_steps: int = 200) -> Cache:
    """Return what the decoder's heads keep of a piece of text, and the queries of the bytes after it.

    Parameters
    ----------
    tokens, steps : int
        Bytes of the cache, and queries.
    seed : int
        Chooses the piece.
    text : str
        Which text: pieces of two texts differ.
    training_steps : int
        Of the decoder, which is made once and kept in the user's cache folder.

    Raises
    ------
    BadValueError
        If the standard library is shorter.
    MissingExtraError
        If torch is not installed.
    """
    from wavetank.kernels.decoder import DecoderConfig, blank, forward, taken
    from wavetank.kernels.decoder_training import library_text, tokens_of, trained

    unseen = tokens_of(library_text(_ALL_BYTES)[_TRAINED_BYTES:])
    room = unseen.size - tokens - steps
    if room < 0:
        raise BadValueError("The standard library is shorter.", given=tokens, allowed=f"at most {unseen.size - steps}",
                            where="tokens")  # fmt: skip
    config = DecoderConfig(
        layers=LAYERS, heads=KEY_HEADS * GROUP, key_heads=KEY_HEADS, head_width=WIDTH, window=1 << 21,
    )  # fmt: skip
    weights = trained(config, steps=training_steps)
    first = int(stream(seed, f"sparse-attention-{text}").integers(0, room + 1))
    piece, cache, queries = unseen[first : first + tokens + steps], blank(config, 0), []
    for start in range(0, piece.size, _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, piece.size))
        got = forward(weights, piece[rows], rows, cache, queries=True)
        cache = got.cache
        late = rows >= tokens
        if late.any():
            queries.append(np.stack([each[:, late].numpy() for each in got.queries]))
    kept = taken(cache, slice(0, tokens)).layers
    keys, values = (np.concatenate([getattr(each, name).numpy() for each in kept]) for name in ("turned", "still"))
    # (layers, heads, steps, width) to (steps, layers x heads, width)
    asked = np.concatenate(queries, 2).reshape(LAYERS * KEY_HEADS * GROUP, steps, WIDTH).swapaxes(0, 1)
    return Cache(*(np.ascontiguousarray(each, np.float32) for each in (keys, values, asked)))
