"""Weights come in chunks that step aside for collectives, and what could not come in time stays.

Where collectives take the link over which weights come, a whole block's copy beside an all-to-all makes both slow, and
the compute stream waits for the collective.  A copy in chunks can stop between two of them: a collective meets one of
them at most.  The copy may step aside only while it can still be in time; when its slack is gone it goes on beside the
collective.  What can be copied while a block computes is known from a first-order model, so that the share that has to
stay on the device is too.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.errors import BadValueError
from wavetank.serving.offload.interface import Case, Plan
from wavetank.settings import check_ranges, setting
from wavetank.sim.links import PS_PER_S, CopyView

CHUNK_BYTES = 16_000_000
_LEAST_CHUNK_BYTES = 1_000_000
# Of the time of a block that chunks may take at most, so that collectives wait little.
_CHUNK_PART = 100


def chunk_of(case: Case, chunk_bytes: int) -> int:
    """Return the bytes of a chunk: those asked for, or 0 for what is copied in a hundredth of a block, 1 to 16 MB.

    Parameters
    ----------
    case : Case
    chunk_bytes : int
    """
    if chunk_bytes:
        return chunk_bytes
    wanted = (case.hidden_ps // _CHUNK_PART - case.link.alpha_ps) * case.link.bytes_per_s // PS_PER_S
    return min(max(wanted, _LEAST_CHUNK_BYTES), CHUNK_BYTES)


def uniform_plan(case: Case, resident: float, chunk_bytes: int) -> Plan:
    """Return the plan that keeps the same part of every block.

    Parameters
    ----------
    case : Case
    resident : float
        Share that stays; -1 for the least with which no block waits, while collectives come first.
    chunk_bytes : int
        0 for what :func:`chunk_of` says, or 16 MB where copies are late whatever their chunks.
    """
    chunk = chunk_of(case, chunk_bytes)
    if resident == -1:
        kept = case.weight_bytes - case.most_hidden_bytes(chunk)
    else:
        kept = case.share_bytes(resident)
        if not chunk_bytes and case.exposed_ps(case.weight_bytes - kept, chunk) > 0:
            chunk = CHUNK_BYTES
    return Plan(resident=(kept,) * case.layers, chunk_bytes=chunk)


def check_resident(resident: float) -> None:
    """Refuse a share that is neither from 0 to 1 nor -1.

    Parameters
    ----------
    resident : float
    """
    if resident != -1 and not 0 <= resident <= 1:
        raise BadValueError("A share of the weights stays on the device.", given=resident, where="resident",
                            allowed="0 to 1, or -1 for the least without waiting")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChunkFlow:
    """Copies chunks ahead, steps aside while there is slack, keeps what could not come in time."""

    resident: float = setting(
        -1.0, says="Share of every block that stays; -1: the least with which no block waits", low=-1.0, high=1.0
    )
    chunk_bytes: int = setting(
        0, unit="bytes", says="Of a copy; 0: what is copied in a hundredth of a block's time, 1 to 16 MB", low=0,
        high=2**31 - 1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)
        check_resident(self.resident)

    def plan(self, case: Case) -> Plan:
        """Return the plan.

        Parameters
        ----------
        case : Case
        """
        return uniform_plan(case, self.resident, self.chunk_bytes)

    def waits(self, view: CopyView) -> bool:
        """Return whether a collective is pending and the copy has slack.

        Parameters
        ----------
        view : CopyView
        """
        return view.pending > 0 and view.slack_ps > 0
