"""What a step spends on gathering parameters and scattering gradients, and what a rank holds at its fullest moment.

Parameters are gathered in bf16, once for the forward pass and once for the backward pass; gradients are cast to the
type in which they are summed, and scattered once.  The rules are the same for all sharders: what they answer differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model
from wavetank.platforms.fabric import Fabric, Level
from wavetank.platforms.step_time import PS_PER_S
from wavetank.training.layouts.interface import Footprint

GATHERED_BYTES = 2
MASTER_BYTES = 4
# Master weights and both moments of Adam.
_STATE_BYTES = 3 * MASTER_BYTES
# Bytes of activations of one layer by token and hidden element: Korthikanti et al., arXiv 2205.05198, without scores.
_LAYER_BYTES = 34


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Equal devices in equal nodes.

    Parameters
    ----------
    device : Device
    ranks : int
    node : int
        Devices of a node.
    latency_s : float
        Of one message, s.
    reduce_bytes : int
        Of one element of a gradient while it is summed.
    network_bytes_per_s : float
        Of a device to other nodes; 0: its data sheet's.
    """

    device: Device
    ranks: int
    node: int = 8
    latency_s: float = 5e-6
    reduce_bytes: int = 4
    network_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks > self.node and self.ranks % self.node:
            raise BadValueError("Ranks fill whole nodes.", given=self.ranks, allowed=f"a multiple of {self.node}")

    def collective_s(self, name: str, n_bytes: int, buffers: int = 1) -> float:
        """Return what collectives of all ranks take, one after the other, s.

        Parameters
        ----------
        name : str
            ``all-gather`` or ``reduce-scatter``.
        n_bytes : int
            Of all buffers together.
        buffers : int
            Each has a collective of its own.
        """
        inside, network = min(self.node, self.ranks), self.network_bytes_per_s or self.device.network_bytes_per_s
        levels = (
            Level(name="node", size=inside, alpha_s=self.latency_s, bytes_per_s=self.device.link_bytes_per_s),
            Level(name="system", size=self.ranks // inside, alpha_s=self.latency_s, bytes_per_s=network),
        )
        fabric, members = Fabric(levels=levels), range(self.ranks)
        once, more = (fabric.collective_ps(name, members, size, "hierarchical") for size in (n_bytes, 0))
        return (once + (buffers - 1) * more) / PS_PER_S


def gather_s(footprint: Footprint, machine: Machine) -> float:
    """Return what gathering the parameters of a bucket takes, copies included, s.

    Parameters
    ----------
    footprint : Footprint
    machine : Machine
    """
    elements = footprint.slice_elements * machine.ranks
    # The own slice is cast from master weights; a copy out reads and writes everything once.
    moved = footprint.slice_elements * (MASTER_BYTES + GATHERED_BYTES)
    moved += footprint.copies * elements * 2 * GATHERED_BYTES
    spent_s = machine.collective_s("all-gather", elements * GATHERED_BYTES, footprint.buffers)
    return spent_s + moved / machine.device.hbm_bytes_per_s


def scatter_s(footprint: Footprint, machine: Machine) -> float:
    """Return what summing and scattering the gradients of a bucket takes, s.

    Parameters
    ----------
    footprint : Footprint
    machine : Machine
    """
    elements = footprint.slice_elements * machine.ranks
    # Where the types are equal, gradients that are views of the buffer need no pass over it.
    passes = footprint.copies or machine.reduce_bytes != GATHERED_BYTES
    moved = passes * elements * (GATHERED_BYTES + machine.reduce_bytes)
    spent_s = machine.collective_s("reduce-scatter", elements * machine.reduce_bytes, footprint.buffers)
    return spent_s + moved / machine.device.hbm_bytes_per_s


def step_s(footprints: Sequence[tuple[Footprint, int]], machine: Machine) -> float:
    """Return what all gathers and scatters of a step take, one after the other, s.

    Parameters
    ----------
    footprints : sequence of (Footprint, int)
        Of the buckets, with how often each occurs.
    machine : Machine
    """
    return sum(times * (2 * gather_s(each, machine) + scatter_s(each, machine)) for each, times in footprints)


def peak_bytes(
    footprints: Sequence[tuple[Footprint, int]], machine: Machine, *, model: Model, tokens: int
) -> tuple[float, float]:
    """Return the bytes of a rank at the fullest moment of its backward pass, and those of activations among them.

    Master weights, moments and scattered gradients of all buckets; of the largest bucket its parameters, its gradients,
    and its gradients as they are summed; the parameters of one more that is gathered ahead, which FSDP2 holds as the
    output of the collective.  While that is copied out, the gradients of the bucket before are gone, but those that are
    summed may still be under way, and the next one may be on its way: no more than before.

    Parameters
    ----------
    footprints : sequence of (Footprint, int)
    machine : Machine
    model : Model
        For its activations: the inputs of all layers are kept, and one layer is computed again.
    tokens : int
        Of a rank.
    """
    held = sum(times * each.slice_elements for each, times in footprints)
    largest = max(each.slice_elements for each, _ in footprints) * machine.ranks
    activations = tokens * model.hidden * (GATHERED_BYTES * model.layers + _LAYER_BYTES)
    moment = largest * (3 * GATHERED_BYTES)
    if machine.reduce_bytes != GATHERED_BYTES or any(each.copies for each, _ in footprints):
        moment += largest * machine.reduce_bytes
    return held * (_STATE_BYTES + machine.reduce_bytes) + moment + activations, activations
