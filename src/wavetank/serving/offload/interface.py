"""What a system of offloading sees and plans: a model's blocks, a link, and what stays on the device."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError
from wavetank.sim.links import LinkRate, YieldRule

COMPUTE, COLLECTIVE = "compute", "collective"


class Phase(NamedTuple):
    """A part of a block; phases follow each other.

    Attributes
    ----------
    kind : str
        ``compute``, or ``collective``, which moves data between devices.
    ps : int
        What it takes alone, ps.
    weight_bytes : int
        Weights that it reads.
    """

    kind: str
    ps: int
    weight_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on a device.

    Parameters
    ----------
    layers : int
        Blocks, all alike.
    phases : tuple of Phase
        Of a block.
    link : LinkRate
        From the host to the device.
    contended : bool
        Whether collectives take the same link.
    beside_bytes : int
        What else is on the device: activations.
    """

    layers: int
    phases: tuple[Phase, ...]
    link: LinkRate
    contended: bool = True
    beside_bytes: int = 0

    def __post_init__(self) -> None:
        if self.layers < 1 or not self.phases or self.beside_bytes < 0:
            raise BadValueError("A model has blocks, and a block has phases.", given=(self.layers, self.phases))
        for phase in self.phases:
            if phase.kind not in (COMPUTE, COLLECTIVE) or phase.ps < 0 or phase.weight_bytes < 0:
                raise BadValueError("This is no phase of a block.", given=phase,
                                    allowed="compute or collective, with nothing negative")  # fmt: skip

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of a block."""
        return sum(phase.weight_bytes for phase in self.phases)

    @property
    def compute_ps(self) -> int:
        """Time of a block without its collectives, ps."""
        return sum(phase.ps for phase in self.phases if phase.kind == COMPUTE)

    @property
    def collective_ps(self) -> int:
        """Time of the collectives of a block on a free link, ps."""
        return sum(phase.ps for phase in self.phases if phase.kind == COLLECTIVE)

    @property
    def hidden_ps(self) -> int:
        """How long the link is free for copies while a block runs, ps."""
        return self.compute_ps + (0 if self.contended else self.collective_ps)

    def exposed_ps(self, missing_bytes: int, chunk_bytes: int) -> int:
        """Return by how much a block is longer than without a copy, ps, if collectives always come first.

        Parameters
        ----------
        missing_bytes : int
            Weights that are copied for every block.
        chunk_bytes : int
        """
        return max(0, self.link.chunked_ps(missing_bytes, chunk_bytes) - self.hidden_ps)

    def most_hidden_bytes(self, chunk_bytes: int) -> int:
        """Return how many bytes of a block can be copied while another runs; all of them at most.

        Parameters
        ----------
        chunk_bytes : int
        """
        chunk = min(chunk_bytes, self.weight_bytes) or 1
        if self.exposed_ps(self.weight_bytes, chunk) == 0:
            return self.weight_bytes
        whole, rest_ps = divmod(self.hidden_ps, self.link.work_ps(chunk))
        rest = max(0, rest_ps - self.link.alpha_ps) * self.link.bytes_per_s // 10**12
        return whole * chunk + rest

    def share_bytes(self, share: float) -> int:
        """Return the bytes of a share of a block, rounded up.

        Parameters
        ----------
        share : float
            0 to 1.
        """
        if not 0 <= share <= 1:
            raise BadValueError("A share of the weights stays on the device.", given=share, allowed="0 to 1")
        # As it is written: 0.1 is a tenth.
        return -(-Fraction(repr(float(share))) * self.weight_bytes // 1)


class Plan(NamedTuple):
    """What stays on the device, and how the rest is copied.

    Attributes
    ----------
    resident : tuple of int
        By block, bytes of its weights that stay.
    chunk_bytes : int
        Of each copy, the last of a block excepted.
    slots : int
        Blocks whose other weights can be on the device at one time: 1 copies when the block is needed, 2 while the one
        before it runs.
    in_place : bool
        Whether the other weights are never copied: phases read them over the link.
    """

    resident: tuple[int, ...]
    chunk_bytes: int
    slots: int = 2
    in_place: bool = False


class Offload(YieldRule, Protocol):
    """Plans what stays on the device, and says when copies step aside."""

    def plan(self, case: Case) -> Plan:
        """Return the plan.

        Parameters
        ----------
        case : Case
        """
        ...
