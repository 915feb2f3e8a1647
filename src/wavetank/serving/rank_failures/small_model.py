"""A small language model with a mixture of experts, in float64, whose rows never depend on what is beside them.

Each product is summed along a row of the weights, in the order that numpy always takes for that length, so a token's
numbers are the same to the last bit in any batch, on any rank.  It says words of a fixed list; weights are drawn
from a seed, and what it says means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

Floats = NDArray[Any]
_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")
VOCABULARY = len(_SYLLABLES) ** 2
# How much of the context a token leaves.
_KEPT = 0.75


def word(token: int) -> str:
    """Return the text of a token, with the blank before it.

    Examples
    --------
    >>> word(18)
    ' defi'
    """
    return f" {_SYLLABLES[token // 16]}{_SYLLABLES[token % 16]}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the model.

    Parameters
    ----------
    hidden, inner : int
        Numbers of a token's vector, and inside an expert.
    layers, experts, choices : int
        Experts of a layer, and how many of them a token has.
    seed : int
        Of the weights.

    Raises
    ------
    BadValueError
        If a size is out of its range, or a token has more experts than a layer.
    """

    hidden: int = 32
    inner: int = 64
    layers: int = 2
    experts: int = 8
    choices: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"hidden": 4096, "inner": 16384, "layers": 64, "experts": 1024, "choices": self.experts}
        for name, high in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise BadValueError("The small model has other sizes.", given=value, allowed=f"1 to {high}", where=name)

    @property
    def all_experts(self) -> int:
        """Return the experts of all layers: each is one of its own."""
        return self.layers * self.experts

    @property
    def expert_numbers(self) -> int:
        """Return the numbers of an expert's weights."""
        return 2 * self.hidden * self.inner


def product(weights: Floats, rows: Floats) -> Floats:
    """Return rows times weights, each row as if it were alone.

    Parameters
    ----------
    weights : float64 array (outputs, inputs)
    rows : float64 array (n, inputs)

    Returns
    -------
    float64 array (n, outputs)
    """
    found = np.empty((rows.shape[0], weights.shape[0]))
    for place, row in enumerate(rows):
        # One row after another: a block of products for all of them would leave the processor's caches.
        found[place] = (weights * row).sum(axis=1)
    return found


def expert_weights(shape: Shape, expert: int) -> Floats:
    """Return the weights of an expert, from the seed.

    Parameters
    ----------
    shape : Shape
    expert : int
        Layer times experts plus its number in the layer.

    Returns
    -------
    float64 array (expert_numbers,)
    """
    return stream(shape.seed, "expert", expert).normal(size=shape.expert_numbers) / shape.hidden**0.5


def expert_output(shape: Shape, weights: Floats, rows: Floats) -> Floats:
    """Return what an expert makes of rows.

    Parameters
    ----------
    shape : Shape
    weights : float64 array (expert_numbers,)
    rows : float64 array (n, hidden)
    """
    first = weights[: shape.hidden * shape.inner].reshape(shape.inner, shape.hidden)
    second = weights[shape.hidden * shape.inner :].reshape(shape.hidden, shape.inner)
    between = product(first, rows)
    return product(second, np.maximum(between, 0.0))


class SmallModel:
    """What every rank has of the model: all but its experts.

    Parameters
    ----------
    shape : Shape
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        draws = stream(shape.seed, "shared")
        self.embedding = draws.normal(size=(VOCABULARY, shape.hidden))
        self.routers = draws.normal(size=(shape.layers, shape.experts, shape.hidden))
        self.mix = draws.normal(size=(shape.layers, shape.hidden, shape.hidden)) / shape.hidden**0.5
        self.head = draws.normal(size=(VOCABULARY, shape.hidden))

    def advance(self, contexts: Floats, tokens: Sequence[int]) -> Floats:
        """Return the contexts of requests after one more token each.

        Parameters
        ----------
        contexts : float64 array (n, hidden)
            All zero before the first token.
        tokens : sequence of int (n,)
        """
        return contexts * _KEPT + self.embedding[np.asarray(tokens, np.int64)]

    def prepared(self, layer: int, states: Floats) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Return what goes to experts of a layer: vectors, the experts of each, and the weights of their outputs.

        Parameters
        ----------
        layer : int
        states : float64 array (n, hidden)

        Returns
        -------
        values : float64 array (n, hidden)
        experts : int64 array (n, choices)
            Numbers over all layers.
        gates : float64 array (n, choices)
        """
        scale = np.sqrt((states * states).sum(axis=1) / self.shape.hidden + 1e-6)
        values = product(self.mix[layer], states / scale[:, None])
        scores = product(self.routers[layer], values)
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : self.shape.choices]
        picked = np.take_along_axis(scores, chosen, axis=1)
        gates = np.exp(picked - picked[:, :1])
        gates /= gates.sum(axis=1, keepdims=True)
        return values, chosen.astype(np.int64) + layer * self.shape.experts, gates

    def said(self, states: Floats) -> NDArray[np.int64]:
        """Return the next token of each state, the likeliest one.

        Parameters
        ----------
        states : float64 array (n, hidden)
        """
        return np.argmax(product(self.head, states), axis=1).astype(np.int64)


def alone(model: SmallModel, prompt: Sequence[int], count: int, experts: Callable[[int, Floats], Floats] | None = None
          ) -> list[int]:  # fmt: skip
    """Return what the model says to a prompt, all in this process: what any number of ranks must say.

    Parameters
    ----------
    model : SmallModel
    prompt : sequence of int
        Tokens, at least one.
    count : int
        Tokens of the answer.
    experts : callable, optional
        Number of an expert and rows to outputs; made from the seed by default.
    """
    shape, made = model.shape, {}

    def run(expert: int, rows: Floats) -> Floats:
        if expert not in made:
            made[expert] = expert_weights(shape, expert)
        return expert_output(shape, made[expert], rows)

    experts = experts or run
    context, answer = np.zeros((1, shape.hidden)), list[int]()
    for token in [*prompt[:-1], *[None] * count]:
        last = prompt[-1] if not answer else answer[-1]
        context = model.advance(context, [last if token is None else token])
        if token is not None:
            # A prompt's earlier tokens leave their context alone.
            continue
        states = context
        for layer in range(shape.layers):
            values, chosen, gates = model.prepared(layer, states)
            total = np.zeros_like(states)
            for place in range(shape.choices):
                total += gates[:, place : place + 1] * experts(int(chosen[0, place]), values)
            states = states + total
        answer.append(int(model.said(states)[0]))
    return answer
