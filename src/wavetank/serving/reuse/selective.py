"""A prompt from parts that were computed alone, some of its tokens again with everything before them in sight.

Rows of a part that was computed alone stood at the beginning; they are turned to where the part stands now, which is
exact, and have not seen what stands before it, which is not.  So the instructions, parts that are not kept, the first
tokens of each part and those tokens whose values differ most from a full pass in the second layer are computed in one
call that attends to all other rows as they are.  In the first layer values depend on the token alone; they cannot
differ there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.decoder import Cache, DecoderWeights, blank, forward, joined, moved, taken
from wavetank.serving.reuse.interface import INSTRUCTIONS, TASK, Parts
from wavetank.serving.reuse.rcllm import Again

Ints = NDArray[np.int64]


class Pool:
    """Rows of parts, each computed alone once; found by all of their tokens.

    Parameters
    ----------
    weights : DecoderWeights
    parts : iterable of int64 array (tokens,)
    """

    def __init__(self, weights: DecoderWeights, parts: Iterable[Ints]) -> None:
        self._kept = {
            tokens.astype(np.int64).tobytes(): forward(weights, tokens, np.arange(len(tokens))).cache
            for tokens in parts
        }  # fmt: skip

    def get(self, tokens: Ints) -> Cache | None:
        """Return the rows of a part, at positions from 0 on; None where it is not kept.

        Parameters
        ----------
        tokens : int64 array (tokens,)
        """
        return self._kept.get(tokens.astype(np.int64).tobytes())


class Selected(NamedTuple):
    """A prompt that was prefilled from parts.

    Attributes
    ----------
    logits : torch.Tensor (vocabulary,)
        What follows the prompt.
    computed : int64 array (tokens,)
        Tokens that were computed with everything before them in sight.
    kept : int
        Tokens of parts that were kept.
    """

    logits: Any
    computed: Ints
    kept: int


def prefill(
    weights: DecoderWeights, tokens: Ints, parts: Parts, pool: Pool, again: Again, *, turned: bool = True
) -> Selected:  # fmt: skip
    """Prefill a prompt.

    Parameters
    ----------
    weights : DecoderWeights
    tokens : int64 array (tokens,)
    parts : Parts
        Of it; the last one is computed in any case, since the answer follows from it.
    pool : Pool
    again : Again
        Which kept tokens are computed again.
    turned : bool
        Whether keys are turned to where they stand now.

    Raises
    ------
    BadValueError
        If the prompt is longer than the decoder's window.
    """
    count, rows, first, start = len(tokens), [blank(weights.config, 0)], [], 0
    new = np.ones(count, bool)
    for end, kind in zip(parts.ends.tolist(), parts.kinds.tolist(), strict=True):
        found = None if kind in (INSTRUCTIONS, TASK) or end == count else pool.get(tokens[start:end])
        if found is not None:
            here = np.arange(start, end)
            rows.append(moved(weights.config, found, here) if turned else found._replace(positions=here))
            new[start:end] = False
            first.append(here[: int(again.firsts(np.array([len(here)]))[0])])
        start = end
    reused = joined(rows)
    kept = np.flatnonzero(~new)
    new[np.concatenate([np.zeros(0, np.int64), *first])] = True
    left = np.flatnonzero(~new)
    wanted = math.ceil(again.share * len(left))
    if 0 < wanted < len(left):
        left = left[np.argsort(-_differs(weights, tokens, reused, left), kind="stable")]
    new[left[:wanted]] = True
    computed = np.flatnonzero(new)
    logits = forward(weights, tokens[computed], computed, taken(reused, ~new[reused.positions])).logits[-1]
    return Selected(logits, computed, len(kept))


def _differs(weights: DecoderWeights, tokens: Ints, reused: Cache, places: Ints) -> NDArray[np.float64]:
    """Return by how much values of the second layer differ from those of a full pass, squared."""
    layer = min(2, weights.config.layers) - 1
    true = forward(weights.first(2), tokens, np.arange(len(tokens))).cache.layers[layer].still
    order = np.argsort(reused.positions)
    had = reused.layers[layer].still[..., order[np.searchsorted(reused.positions[order], places)], :]
    found = (true[..., places, :] - had).square().sum(-1)
    while found.ndim > 1:
        found = found.sum(0)
    numbers: NDArray[np.float64] = found.double().numpy()
    return numbers
