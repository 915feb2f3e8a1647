"""Whole blocks ahead or on demand, chunks that always or never step aside, and weights that are read in place."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.serving.offload.chunkflow import CHUNK_BYTES, check_resident, uniform_plan
from wavetank.serving.offload.interface import Case, Plan
from wavetank.settings import check_ranges, setting
from wavetank.sim.links import CopyView


@dataclass(frozen=True, kw_only=True)
class AllResident:
    """Keeps all weights on the device."""

    def plan(self, case: Case) -> Plan:
        """Return a plan without copies.

        Parameters
        ----------
        case : Case
        """
        return Plan(resident=(case.weight_bytes,) * case.layers, chunk_bytes=CHUNK_BYTES)

    def waits(self, view: CopyView) -> bool:
        """Return that nothing waits: there are no copies.

        Parameters
        ----------
        view : CopyView
        """
        return False


@dataclass(frozen=True, kw_only=True)
class Layerwise:
    """Copies whole blocks, some blocks ahead of the one that is computed, whatever else is on the link."""

    ahead: int = setting(1, unit="blocks", says="Blocks that are copied ahead; 0: when they are needed", low=0,
                         high=1000)  # fmt: skip
    resident: float = setting(
        0.0, says="Share of the blocks that stay, whole; -1: as many bytes as chunkflow would keep", low=-1.0, high=1.0
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        check_resident(self.resident)

    def plan(self, case: Case) -> Plan:
        """Return a plan in which blocks that stay are spread evenly, and the copy of a block is one chunk.

        Parameters
        ----------
        case : Case
        """
        whole, layers = max(case.weight_bytes, 1), case.layers
        kept = sum(uniform_plan(case, self.resident, 0).resident)
        stay = -(-kept // whole)
        places = [whole * ((i + 1) * stay // layers - i * stay // layers) for i in range(layers)]
        return Plan(tuple(min(each, case.weight_bytes) for each in places), whole, self.ahead + 1)

    def waits(self, view: CopyView) -> bool:
        """Return that a copy never steps aside.

        Parameters
        ----------
        view : CopyView
        """
        return False


@dataclass(frozen=True, kw_only=True)
class FixedYield:
    """Copies chunks as chunkflow does, and steps aside always or never."""

    yields: bool = setting(True, says="Whether copies stand still while any collective is pending")
    resident: float = setting(-1.0, says="Share of every block that stays; -1: as chunkflow", low=-1.0, high=1.0)
    chunk_bytes: int = setting(0, unit="bytes", says="Of a copy; 0: as chunkflow", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_resident(self.resident)

    def plan(self, case: Case) -> Plan:
        """Return the plan of chunkflow.

        Parameters
        ----------
        case : Case
        """
        return uniform_plan(case, self.resident, self.chunk_bytes)

    def waits(self, view: CopyView) -> bool:
        """Return whether a collective is pending, and copies step aside.

        Parameters
        ----------
        view : CopyView
        """
        return self.yields and view.pending > 0


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """Keeps nothing on the device: kernels read weights from the host's memory, each once."""

    def plan(self, case: Case) -> Plan:
        """Return a plan without copies and without resident weights.

        Parameters
        ----------
        case : Case
        """
        return Plan(resident=(0,) * case.layers, chunk_bytes=CHUNK_BYTES, slots=1, in_place=True)

    def waits(self, view: CopyView) -> bool:
        """Return that nothing waits: there are no copies.

        Parameters
        ----------
        view : CopyView
        """
        return False
