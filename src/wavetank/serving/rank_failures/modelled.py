"""What a fault takes an instance of many accelerators, from bytes, rates and the times that only a real one can give.

Derived: what is loaded by whom, over which link, and whether the survivors alone are 95 % of what there was.  Assumed:
how long a process, a group of ranks and a capture of graphs take; they are settings of the study.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.interface import InfeasibleError, Rates
from wavetank.serving.rank_failures.plan import coverage_plan, spread

# DeepSeek-V3: 58 layers of 256 experts, each 3 x 7168 x 2048 numbers of one byte; the rest of its 671 GB on every rank.
EXPERTS = 256
LAYERS = 58
EXPERT_BYTES = 3 * 7168 * 2048
OTHER_BYTES = 671 * 10**9 - EXPERTS * LAYERS * EXPERT_BYTES
RANKS_PER_HOST = 8
# A proposal, its answers, the mask: three one-way messages, each handled by a processor.
_MESSAGE_S = 20e-6
_MESSAGES = 3
# To register one peer's buffers again.
_PEER_S = 1e-3

PAPER = {"restart_s": 348.0, "recovery_s": 11.0, "reintegration_s": 8.0, "recovered_s": 52.0, "steady": 1.044}


class Downtime(NamedTuple):
    """How long an instance answers nothing, or less than it did.

    Attributes
    ----------
    pause_s : float
        From the fault until tokens come again.
    rejoin_s : float
        The second pause, when a replacement is taken in.
    recovered_s : float
        From the fault until 95 % of the throughput before.
    """

    pause_s: float
    rejoin_s: float
    recovered_s: float


@dataclass(frozen=True, kw_only=True)
class WideInstance:
    """An instance that loses some ranks at one time.

    Parameters
    ----------
    ranks, failed : int
        The first ``failed`` ranks are lost.
    replicas : int
        Of each expert.
    rates : Rates
        The disk's rate is that of one host, or of the store that each host reads from.
    detect_s : float
        Until a rank is taken for dead.
    start_s : float
        Of a process, its libraries and its device (assumed).
    capture_s : float
        Of a rank's graphs (assumed).
    group_s : float
        To make the group of all ranks (assumed).
    """

    ranks: int = 32
    failed: int = 1
    replicas: int = 2
    rates: Rates = field(default_factory=Rates)
    detect_s: float = 1.0
    start_s: float = 30.0
    capture_s: float = 30.0
    group_s: float = 20.0

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= 4096 or not 1 <= self.failed < self.ranks:
            raise BadValueError("A wide instance loses some of its ranks.", given=f"{self.failed} of {self.ranks}",
                                allowed="at least 1, and not all of 2 to 4096")  # fmt: skip
        for name in ("detect_s", "start_s", "capture_s", "group_s"):
            if not 0 <= getattr(self, name) <= 1e6:
                raise BadValueError("A part of a recovery takes some time.", given=getattr(self, name),
                                    allowed="0 to 1e6 s", where=name)  # fmt: skip

    @property
    def agree_s(self) -> float:
        """Return what the agreement takes: the proposer handles a message to and from each survivor."""
        return _MESSAGES * (self.ranks - self.failed) * _MESSAGE_S

    @property
    def refresh_s(self) -> float:
        """Return the pause in which survivors take replacements in."""
        return self.agree_s + self.failed * _PEER_S

    @property
    def own_bytes(self) -> int:
        """Return the weights of a rank, with replicas."""
        return OTHER_BYTES + EXPERTS * self.replicas * LAYERS * EXPERT_BYTES // self.ranks

    @property
    def load_all_s(self) -> float:
        """Return what all ranks take to load their weights: those of a host share its way to the disk."""
        return min(RANKS_PER_HOST, self.ranks) * self.own_bytes / self.rates.disk_bytes_per_s

    def load_one_s(self, *, host: bool) -> float:
        """Return what the replacements take to load theirs; those of one host share the disk, not the memory.

        Parameters
        ----------
        host : bool
            From the memory of the host, or the disk.
        """
        if host:
            return self.own_bytes / self.rates.host_bytes_per_s
        return min(self.failed, RANKS_PER_HOST) * self.own_bytes / self.rates.disk_bytes_per_s

    def replacement_s(self, *, host: bool) -> float:
        """Return how long after the notice replacements are ready to be taken in.

        Parameters
        ----------
        host : bool
            As for :meth:`load_one_s`.
        """
        return self.detect_s + self.start_s + self.load_one_s(host=host) + self.capture_s

    def coverage_s(self, replicas: int, *, host: bool) -> float:
        """Return what loading the experts takes that no survivor has.

        Parameters
        ----------
        replicas : int
            0: the instance's own.
        host : bool
            Whether the hosts' memory has them; else the disk, which the plan gives to one transfer at a time.
        """
        copies = replicas or self.replicas
        # An expert's layers move together.  Survivors have room for what is lost.
        slots = -(-EXPERTS * copies // self.ranks)
        room = slots + -(-EXPERTS // max(1, self.ranks - self.failed)) + 1
        held = spread(EXPERTS, self.ranks, room, copies)
        active = np.ones(self.ranks, np.int64)
        active[: self.failed] = 0
        try:
            plan = coverage_plan(held, active, [LAYERS * EXPERT_BYTES] * EXPERTS, rates=self.rates, host=host)
        except InfeasibleError:
            return float("nan")
        return plan.picoseconds / 1e12

    def replaced(self, pause_s: float, rejoin_s: float, *, ready_s: float) -> Downtime:
        """Return the downtime of an instance whose survivors go on.

        Parameters
        ----------
        pause_s, rejoin_s : float
        ready_s : float
            When replacements are ready.
        """
        enough = (self.ranks - self.failed) / self.ranks >= 0.95
        return Downtime(pause_s, rejoin_s, pause_s if enough else max(pause_s, ready_s) + rejoin_s)
