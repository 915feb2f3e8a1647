"""What a prompt costs a GPU when part of it is reused: seconds and joules, modelled from counted tokens.

Computed tokens cost the operations of a forward pass and of attention; a prompt costs the reading of weights and of
its rows, a moved row the reading and writing of what is turned.  The longer of operations and bytes is the time; the
GPU draws a power at rest all the while, and energy for each operation and byte.  The model is DeepSeek-V2-Lite and
the GPU an H200, as the catalogs of :mod:`wavetank.platforms` have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.platforms.power import power_table
from wavetank.platforms.step_time import RooflineStepTime
from wavetank.serving.reuse.interface import Served

_MODEL, _DEVICE, _BYTES = "DeepSeek-V2-Lite", "H200-SXM", 2
_HEAD = 128


class Row(NamedTuple):
    """Numbers that a layer keeps of a token.

    Attributes
    ----------
    turned : int
        Those that depend on the position.
    numbers : int
        All.
    """

    turned: int
    numbers: int


# DeepSeek-V2-Lite's rotary key and latent.
MODEL_ROW = Row(64, 576)


def model_layers() -> int:
    """Return how many layers the modelled model has."""
    return model(_MODEL).layers


def grouped_row(key_heads: int) -> Row:
    """Return the row of a model with grouped queries.

    Parameters
    ----------
    key_heads : int
        Of 128 numbers each, for keys and for values.
    """
    return Row(key_heads * _HEAD, 2 * key_heads * _HEAD)


class Cost(NamedTuple):
    """What a prompt costs, modelled.

    Attributes
    ----------
    seconds, joules : float
    """

    seconds: float
    joules: float


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """A GPU that computes prompts one at a time.

    Parameters
    ----------
    flops_per_s, bytes_per_s : float
        What is reached.
    overhead_s : float
        Of a prompt, whatever it has, in s.
    idle_w : float
        Drawn all the time, in W.
    joules_per_flop, joules_per_byte : float
    """

    flops_per_s: float
    bytes_per_s: float
    overhead_s: float
    idle_w: float
    joules_per_flop: float
    joules_per_byte: float

    def cost(self, tokens: int, got: Served, *, row: Row = MODEL_ROW, partly: float = 0.0) -> Cost:
        """Return what a prompt costs.

        Parameters
        ----------
        tokens : int
            Of the prompt.
        got : Served
            Of these.
        row : Row
            What is kept of a token; of effect on moved and read rows.
        partly : float
            Tokens' worth of computing beyond those that are counted, as that of some layers.

        Raises
        ------
        BadValueError
            If the counts are not those of the prompt.
        """
        if min(got) < 0 or got.reused + got.recomputed + got.computed != tokens or got.moved > got.reused:
            raise BadValueError("These counts are not those of a prompt.", given=got, allowed=f"{tokens} together")
        about, (dense, experts, share) = model(_MODEL), _weights()
        new = got.computed + got.recomputed + partly
        # As if the new ones were the last of the prompt: true of prefixes, and the dearest place for all others.
        pairs = new * (tokens - new / 2)
        flops = 2.0 * about.active_parameters * new + about.prefill_flops_per_pair * pairs
        touched = dense + experts * (1.0 - (1.0 - share) ** new)
        moved = 2 * got.moved * row.turned + tokens * row.numbers
        size = _BYTES * (touched + about.layers * moved)
        seconds = self.overhead_s + max(flops / self.flops_per_s, size / self.bytes_per_s)
        return Cost(seconds, self.idle_w * seconds + self.joules_per_flop * flops + self.joules_per_byte * size)


@cache
def _weights() -> tuple[float, float, float]:
    """Return weights that each prompt reads, those of experts, and the share of experts that a token goes to."""
    about = model(_MODEL)
    share = about.experts_per_token / about.experts
    experts = (about.parameters - about.active_parameters) / (1.0 - share)
    return about.parameters - experts, experts, share


@cache
def default_step_time() -> RooflineStepTime:
    """Return what a step takes the same GPU where it serves many at a time."""
    return RooflineStepTime(device=_DEVICE, model=_MODEL)


@cache
def default_prefill() -> Prefill:
    """Return the GPU with the figures of the catalogs: 0.7 of its peak operations, 0.5 ms for a prompt."""
    gpu, power = device(_DEVICE), power_table(_DEVICE)
    return Prefill(
        flops_per_s=0.7 * gpu.bf16_flops_per_s, bytes_per_s=0.8 * gpu.hbm_bytes_per_s, overhead_s=5e-4,
        idle_w=power.idle_w, joules_per_flop=power.matrix_w / gpu.bf16_flops_per_s,
        joules_per_byte=(power.memory_w + power.fetch_w) / gpu.hbm_bytes_per_s,
    )  # fmt: skip


@cache
def other_prefills() -> tuple[Prefill, ...]:
    """Return GPUs whose constants of energy and overhead are a quarter or four times as large, in all ways."""
    plain = default_prefill()
    return tuple(
        Prefill(
            flops_per_s=plain.flops_per_s,
            bytes_per_s=plain.bytes_per_s,
            overhead_s=plain.overhead_s * late,
            idle_w=plain.idle_w * idle,
            joules_per_flop=plain.joules_per_flop * flop,
            joules_per_byte=plain.joules_per_byte * byte,
        )
        for late, idle, flop, byte in product((0.25, 4.0), repeat=4)
    )
