"""What a step of a language model moves and computes, for four families of attention on one backbone.

A layer keeps either a cache that grows with the context (grouped queries, latent attention) or a state of fixed size
(gated delta networks, Mamba-2).  ``architectures.toml`` has one table per architecture; all shipped ones share the
backbone of Llama-3.1-8B, so that they differ by their attention alone.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from wavetank.errors import BadValueError, unknown_name

_FORMAT = 1
_BF16 = 2


class Work(NamedTuple):
    """What one phase or step asks of a device.

    Attributes
    ----------
    bytes : float
        Read from and written to the memory.
    flops : float
        Operations on the matrix units.
    scan_flops : float
        Operations of recurrent scans, which reach a smaller share of the peak.
    kernels : int
        Kernels in sequence.
    tokens : float
        Tokens that it yields or takes in.
    """

    bytes: float
    flops: float
    scan_flops: float
    kernels: int
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape of one decoder, with weights and caches in bf16.

    Parameters
    ----------
    name : str
    layers, hidden : int
    parameters : int
        Weights that every step reads: all but the table of input embeddings.
    cache_layers : int
        Layers that keep keys and values of the whole context; the others keep a state.
    cache_bytes_per_token : int
        Of one such layer and one token.
    pair_flops : int
        Operations of one such layer for one (query, key) pair of a prompt.
    cached_flops : int
        Operations of one such layer for one cached token that a decoding sequence reads.
    state_bytes : int
        State of one sequence in one of the other layers; a step reads and writes it.
    scan_flops_per_token : int
        Operations of one such layer's recurrence for one token.
    decode_kernels, prefill_kernels : int
        Kernels per layer.
    source : str
        Where the shape comes from.

    Raises
    ------
    BadValueError
        If a figure is negative, or there are more cache layers than layers.
    """

    name: str
    layers: int
    hidden: int
    parameters: int
    cache_layers: int
    cache_bytes_per_token: int
    pair_flops: int
    cached_flops: int
    state_bytes: int
    scan_flops_per_token: int
    decode_kernels: int
    prefill_kernels: int
    source: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 0:
                raise BadValueError(f"{field.name} of architecture {self.name!r} is negative.", given=value)
        if self.cache_layers > self.layers:
            raise BadValueError(
                f"Architecture {self.name!r} has more layers with a cache than layers.", given=self.cache_layers,
                allowed=f"at most {self.layers}",
            )  # fmt: skip

    @property
    def state_layers(self) -> int:
        """Layers whose memory of the context has a fixed size."""
        return self.layers - self.cache_layers

    def context_bytes(self, context: float) -> float:
        """Return what a decode step moves of one sequence's memory of its context.

        Parameters
        ----------
        context : float
            Tokens so far.
        """
        return self.cache_layers * self.cache_bytes_per_token * context + 2.0 * self.state_layers * self.state_bytes

    def held_bytes(self, batch: int, context: float) -> float:
        """Return the memory that weights and a batch take.

        Parameters
        ----------
        batch : int
            Sequences.
        context : float
            Tokens of each.
        """
        return _BF16 * self.parameters + batch * self._memory_bytes(context)

    def _memory_bytes(self, context: float) -> float:
        """Return the size of one sequence's caches and states."""
        return self.cache_layers * self.cache_bytes_per_token * context + self.state_layers * self.state_bytes

    def decode(self, batch: int, context: float) -> Work:
        """Return the work of one decode step.

        Parameters
        ----------
        batch : int
            Sequences, one token each.
        context : float
            Tokens so far of each.

        Raises
        ------
        BadValueError
            If there is no sequence, or the context is negative or no number.
        """
        _check_batch(batch, context)
        attention = self.cache_layers * self.cached_flops * context
        return Work(
            bytes=_BF16 * self.parameters + batch * self.context_bytes(context),
            flops=batch * (2.0 * self.parameters + attention),
            scan_flops=float(batch * self.state_layers * self.scan_flops_per_token),
            kernels=self.layers * self.decode_kernels,
            tokens=float(batch),
        )

    def prefill(self, batch: int, prompt: int) -> Work:
        """Return the work of computing the prompts of a batch.

        Parameters
        ----------
        batch : int
            Sequences.
        prompt : int
            Tokens of each.

        Raises
        ------
        BadValueError
            If there is no sequence or no token.
        """
        _check_batch(batch, prompt, least=1)
        tokens = batch * prompt
        pairs = batch * prompt * (prompt + 1) / 2
        # Activations of a layer pass through the memory a few times, around attention and feed-forward.
        activations = 8.0 * self.layers * self.hidden * _BF16 * tokens
        return Work(
            bytes=_BF16 * self.parameters + activations + batch * self._memory_bytes(prompt),
            flops=2.0 * self.parameters * tokens + self.cache_layers * self.pair_flops * pairs,
            scan_flops=float(tokens * self.state_layers * self.scan_flops_per_token),
            kernels=self.layers * self.prefill_kernels,
            tokens=float(tokens),
        )


def _check_batch(batch: int, context: float, least: int = 0) -> None:
    if not (1 <= batch < math.inf and least <= context < math.inf):
        raise BadValueError("A batch has sequences, and each of them a context.",
                            given=f"{batch} sequences of {context} tokens",
                            allowed=f"1 sequence or more, {least} tokens or more")  # fmt: skip


def crossover_context(growing: Architecture, fixed: Architecture) -> float | None:
    """Return the context from which on the first architecture moves more bytes per decode step than the second.

    The weights that each reads count, spread over one sequence.

    Parameters
    ----------
    growing, fixed : Architecture

    Returns
    -------
    float or None
        Tokens; None where the first does not grow faster than the second.
    """
    slope = growing.cache_layers * growing.cache_bytes_per_token - fixed.cache_layers * fixed.cache_bytes_per_token
    if slope <= 0:
        return None
    head_start = fixed.context_bytes(0) - growing.context_bytes(0) + _BF16 * (fixed.parameters - growing.parameters)
    return max(head_start / slope, 0.0)


@functools.cache
def _shipped() -> dict[str, Architecture]:
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if found.pop("format") != _FORMAT:
        raise ValueError("architectures.toml is of another format than this code")
    return {name: Architecture(name=name, **table) for name, table in found.items()}


def architectures() -> tuple[str, ...]:
    """Return the names of the architectures that ship."""
    return tuple(_shipped())


def architecture(name: str) -> Architecture:
    """Return the architecture of that name.

    Raises
    ------
    UnknownNameError
        If none of that name ships.
    """
    if name not in _shipped():
        raise unknown_name("architecture", name, _shipped())
    return _shipped()[name]
