"""Blocks of real models on real devices: what they compute, exchange and weigh.

Sequence parallelism as in Ulysses: each device has a share of the tokens, and before attention an all-to-all gives it
all tokens of a share of the heads; a second one undoes that.  So a block is: projections, exchange of queries, keys and
values, attention, exchange of its output, the rest.

Source: S. A. Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509, 2023; shapes of the diffusion transformer are those
of the published configuration of Wan2.1-T2V-14B (dim 5120, ffn_dim 13824, 40 heads, 40 layers); language models are
those of :mod:`wavetank.platforms`.

Differs from the source:

1. Arithmetic runs at a share of the device's peak, whatever the shape; norms, rotations and modulation take no time.
2. The all-to-all is a ring of the fabric over one bandwidth.
3. A text has 512 tokens, and every device makes keys and values of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wavetank.errors import BadValueError, nearest_of
from wavetank.platforms.catalog import Device, as_model
from wavetank.platforms.catalog import models as shipped_models
from wavetank.platforms.fabric import Fabric, Level
from wavetank.serving.offload.interface import COLLECTIVE, COMPUTE, Case, Phase
from wavetank.sim.links import PS_PER_S, LinkRate

_BYTES = 2  # bf16
_TEXT_TOKENS = 512


class Block(NamedTuple):
    """A block of a transformer.

    Attributes
    ----------
    layers, heads : int
    hidden, wide : int
        Width of the residual stream, and the widest activation within the feed-forward part.
    projected : int
        Width of queries, keys and values together.
    attended : int
        Width of attention's output.
    before, after : int
        Weights of the projections before attention, and of everything after it.
    pair_flops : int
        Of attention, for a pair of tokens.
    causal : bool
        Whether a token attends to those before it alone.
    text_flops : int
        For a token, besides weights: attention to a text.
    text_weights : int
        Of those after attention, what only the text goes through: its keys and values, on each device.
    """

    layers: int
    heads: int
    hidden: int
    wide: int
    projected: int
    attended: int
    before: int
    after: int
    pair_flops: int
    causal: bool = True
    text_flops: int = 0
    text_weights: int = 0


_WAN_HIDDEN, _WAN_HEADS, _WAN_FFN = 5120, 40, 13824
DIFFUSION = {
    "Wan2.1-T2V-14B": Block(
        layers=40, heads=_WAN_HEADS, hidden=_WAN_HIDDEN, wide=_WAN_FFN, projected=3 * _WAN_HIDDEN, attended=_WAN_HIDDEN,
        before=3 * _WAN_HIDDEN**2, after=5 * _WAN_HIDDEN**2 + 2 * _WAN_HIDDEN * _WAN_FFN,
        pair_flops=4 * _WAN_HIDDEN, causal=False, text_flops=4 * _WAN_HIDDEN * _TEXT_TOKENS,
        text_weights=2 * _WAN_HIDDEN**2,
    ),
}  # fmt: skip


def block_of(name: str) -> Block:
    """Return the block of a model.

    Parameters
    ----------
    name : str
        Of a diffusion transformer here, or of a dense language model with ordinary attention of the platforms.

    Raises
    ------
    BadValueError
        For a name that neither has, and for models with experts or latent attention, whose blocks differ.
    """
    if name in DIFFUSION:
        return DIFFUSION[name]
    shapes = {each: as_model(each) for each in shipped_models()}
    dense = [each for each, model in shapes.items() if not model.experts and not model.kv_rank]
    if name not in dense:
        known = [*DIFFUSION, *sorted(dense)]
        raise BadValueError("No blocks of such a model are known.", given=name, allowed=known,
                            nearest=nearest_of(name, known), where="model")  # fmt: skip
    model = shapes[name]
    heads, keys, width = model.heads, model.kv_heads, model.head_dim
    projected = (heads + 2 * keys) * width
    return Block(
        layers=model.layers, heads=heads, hidden=model.hidden, wide=2 * model.ffn, projected=projected,
        attended=heads * width, before=model.hidden * projected, after=model.hidden * (heads * width + 3 * model.ffn),
        pair_flops=model.prefill_flops_per_pair // model.layers,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a model runs.

    Parameters
    ----------
    device : Device
    ranks : int
        Devices that share the tokens.
    flops_share, link_share : float
        Of the peak arithmetic rate, and of the peak rates of links to the host and between devices.
    alpha_s : float
        Of each copy before its first byte, s.
    """

    device: Device
    ranks: int
    flops_share: float
    link_share: float
    alpha_s: float

    def case(self, model: str, tokens: int) -> Case:
        """Return a model on this device, ready for plans.

        Collectives take the link of the copies where devices are connected no faster than to the host.

        Parameters
        ----------
        model : str
        tokens : int
            Of the whole sequence.

        Raises
        ------
        BadValueError
            For tokens or heads that the ranks cannot share evenly, and as :func:`block_of`.
        """
        block, ranks, device = block_of(model), self.ranks, self.device
        if tokens < ranks or tokens % ranks:
            raise BadValueError("Ranks share the tokens evenly.", given=tokens, where="tokens",
                                allowed=f"a multiple of {ranks}")  # fmt: skip
        if block.heads % ranks:
            raise BadValueError("Ranks share the heads of attention evenly.", given=ranks, where="ranks",
                                allowed=f"a divisor of {block.heads}")  # fmt: skip
        own = tokens // ranks
        pairs = tokens * (tokens + 1) // 2 if block.causal else tokens * tokens
        each = 2 * (block.after - block.text_weights) + block.text_flops
        phases = [
            Phase(COMPUTE, self._ps(2 * own * block.before), _BYTES * block.before),
            Phase(COLLECTIVE, self._exchange_ps(own * block.projected * _BYTES)),
            Phase(COMPUTE, self._ps(pairs * block.pair_flops // ranks)),
            Phase(COLLECTIVE, self._exchange_ps(own * block.attended * _BYTES)),
            Phase(COMPUTE, self._ps(own * each + 2 * _TEXT_TOKENS * block.text_weights), _BYTES * block.after),
        ]
        widest = max(block.projected + block.attended, block.wide)
        return Case(
            layers=block.layers,
            phases=tuple(phase for phase in phases if phase.kind == COMPUTE or ranks > 1),
            link=LinkRate(
                bytes_per_s=int(device.pcie_bytes_per_s * self.link_share), alpha_ps=round(self.alpha_s * PS_PER_S)
            ),
            contended=device.link_bytes_per_s <= device.pcie_bytes_per_s,
            beside_bytes=own * _BYTES * (2 * block.hidden + widest),
        )

    def _ps(self, flops: int) -> int:
        return round(flops / (self.device.bf16_flops_per_s * self.flops_share) * PS_PER_S)

    def _exchange_ps(self, n_bytes: int) -> int:
        level = Level(
            name="node", size=self.ranks, alpha_s=self.device.link_latency_s,
            bytes_per_s=self.device.link_bytes_per_s * self.link_share,
        )  # fmt: skip
        return Fabric(levels=(level,)).collective_ps("all-to-all", range(self.ranks), n_bytes)
