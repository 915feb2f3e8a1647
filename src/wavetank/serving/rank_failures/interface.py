"""What survivors of a fault decide on: who holds which weights, where lost ones can be had, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError

Integers = NDArray[np.int64]

# From the cheapest on; an expert that a live rank holds costs an edit of the map and no copy.
SOURCES = ("peer", "host", "disk")
# What is done about a fault.
REPAIRS = ("experts", "nothing", "group", "restart")


class InfeasibleError(WavetankError):
    """No way to have every expert on a live rank: no source for one, or no slot for it.

    Parameters
    ----------
    message : str
    experts : tuple of int
        Those that cannot be had.
    """

    def __init__(self, message: str, *, experts: tuple[int, ...] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.experts = experts


class Transfer(NamedTuple):
    """The weights of one expert on their way into a slot.

    Attributes
    ----------
    expert, slot : int
    source : str
        One of ``SOURCES``.
    holder : int
        The slot that they are read from, of a peer; -1 otherwise.
    """

    expert: int
    slot: int
    source: str
    holder: int = -1


@dataclass(frozen=True)
class Rates:
    """What links carry; whole numbers, so that all survivors make the same plan.

    Parameters
    ----------
    peer_bytes_per_s : int
        Between two ranks, each of which sends and receives one transfer at a time.
    host_bytes_per_s : int
        From the memory of a host to one of its ranks.
    disk_bytes_per_s : int
        From the disk, which all ranks share.
    """

    peer_bytes_per_s: int = 50_000_000_000
    host_bytes_per_s: int = 25_000_000_000
    disk_bytes_per_s: int = 2_000_000_000

    def __post_init__(self) -> None:
        for name in ("peer_bytes_per_s", "host_bytes_per_s", "disk_bytes_per_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**15:
                raise BadValueError("A link carries whole bytes per second.", given=value, allowed="1 to 1e15",
                                    where=name)  # fmt: skip

    def picoseconds(self, source: str, size: int) -> int:
        """Return what bytes take from a source, alone.

        Parameters
        ----------
        source : str
            One of ``SOURCES``.
        size : int
            Bytes.
        """
        return size * 10**12 // int(getattr(self, f"{source}_bytes_per_s"))


@dataclass(frozen=True)
class Plan:
    """What makes an instance whole again.

    Parameters
    ----------
    expert_of : int64 array (ranks * slots,)
        What each slot is to hold; -1: nothing, as in all slots of ranks that do not take part.
    transfers : tuple of Transfer
        In the order in which they begin.
    picoseconds : int
        When the last of them ends.
    """

    expert_of: Integers
    transfers: tuple[Transfer, ...]
    picoseconds: int
