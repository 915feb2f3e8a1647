"""How much of a model's bf16 weights a step changes: a small transformer, trained for real.

Trainers keep weights in float32 and hand them out in bf16, whose neighbours differ by 1/128 to 1/256 of a weight.
Adam changes a weight by about the learning rate, so that few bf16 weights change where the learning rate is small
beside that distance: what matters is the learning rate, not that it is reinforcement learning.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.sim.rng import stream
from wavetank.training.rollouts.delta import Words

WIDTH, LAYERS, HEADS, VOCABULARY, CONTEXT = 128, 2, 4, 64, 32
_SCALE = 0.02


def torch() -> Any:
    """Return torch.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import torch as found
    except ImportError as error:
        from wavetank.extras import install_command

        raise MissingExtraError("torch is not installed.", hint=install_command("torch")) from error
    return found


@lru_cache(maxsize=16)
def trained(learning_rate: float, steps: int, updates: int, seed: int) -> tuple[Words, Words]:
    """Return the bf16 weights of a small transformer before and after the last of some steps.

    Parameters
    ----------
    learning_rate : float
        Of AdamW, with no warm-up and weight decay 0.01.
    steps : int
        Steps, all counted.
    updates : int
        Optimiser updates of a step.
    seed : int
        Of weights and data.

    Returns
    -------
    before, after : uint16 array (weights,)

    Raises
    ------
    BadValueError
        If a number is out of its range.
    """
    if not (0 < learning_rate < math.inf and steps >= 1 and updates >= 1):
        raise BadValueError("A model cannot be trained so.", given=(learning_rate, steps, updates),
                            allowed="a learning rate above 0, a step and an update or more")  # fmt: skip
    library = torch()
    draws = stream(seed, "sparsity")
    layer = library.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = library.nn.Sequential(
        library.nn.Embedding(VOCABULARY, WIDTH),
        library.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        library.nn.Linear(WIDTH, VOCABULARY, bias=False),
    )  # fmt: skip
    with library.no_grad():
        for name, weight in model.named_parameters():
            # As large models are begun: what a learning rate changes depends on how large weights are.
            if name.endswith("bias"):
                weight.zero_()
            elif weight.ndim > 1:
                weight.copy_(library.from_numpy(_SCALE * draws.standard_normal(tuple(weight.shape))))
    optimizer = library.optim.AdamW(model.parameters(), lr=learning_rate)
    before = after = _words(library, model)
    for _ in range(steps):
        before = after
        for _ in range(updates):
            # Every token follows from the two before it.
            rows = draws.integers(0, VOCABULARY, (16, CONTEXT + 1))
            for place in range(2, CONTEXT + 1):
                rows[:, place] = (rows[:, place - 1] * 5 + rows[:, place - 2]) % VOCABULARY
            tokens = library.from_numpy(rows)
            mask = library.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            hidden = model[1](model[0](tokens[:, :-1]), mask=mask, is_causal=True)
            loss = library.nn.functional.cross_entropy(model[2](hidden).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = _words(library, model)
    return before, after


def _words(library: Any, model: Any) -> Words:
    parts = [each.detach().to(library.bfloat16).flatten().view(library.int16) for each in model.parameters()]
    found: Words = library.cat(parts).numpy().view("uint16").copy()
    return found
