"""LoRA adapters on one base model: slots on the device, what they cost a step, what loading one costs.

Requests may ask for an adapter.  A worker runs at most ``slots`` distinct ones in a batch: requests whose adapter would
be one more are passed over, and those behind them are looked at.  Every step takes longer the more distinct adapters
its batch has, and a step that admits a request whose adapter is not on the device waits until it is loaded; the adapter
used longest ago, of those that no running request uses, makes room.

Source: F. Agullo et al., "Data Driven Optimization of GPU efficiency for Distributed LLM Adapter Serving", arXiv
2602.24044, 2026, and its workshop paper arXiv 2508.08343: rules and constants are those of their digital twin of vLLM.

Differs from the source:

1. The KV cache is counted in tokens, not in blocks of 16.
2. A request enters when its prompt has room; theirs wants a token more.
3. A batch without any adapter takes the plain step time: the factor is for batches that have some.  Beside the factor
   there is a time per distinct adapter, 0 by default, which fits recorded runs better.
4. They ignore that an adapter is read from disk at its first use; here that has a time too, by rank, 0 by default.
5. Their loading times are known by their ends (6.4 to 8.1 ms); a line from rank 8 to rank 32 joins them here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numba import int64, njit
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime
    from wavetank.workloads.requests import RequestTrace

PS_PER_S = 1_000_000_000_000
# The factor of a step is a whole number of millionths, and the other terms are whole picoseconds, so that the compiled
# simulator and the readable one calculate alike.
MILLION = 1_000_000


@njit(forceinline=True)
def scaled_ps(ps: int, millionths: int) -> int:
    """Return a time multiplied by a factor in millionths, rounded to the nearest picosecond."""
    return int(ps * (millionths / 1e6) + 0.5)


@compiled(int64(int64, int64))
def _scaled_ps(ps: int, millionths: int) -> int:
    return scaled_ps(ps, millionths)


@dataclass(frozen=True, kw_only=True)
class SchedulerOverhead:
    """What the engine's scheduler adds to every step: ``base + a running + (b + c share) waiting``, never negative.

    ``share`` is the part of the adapters served that have a slot, at most 1 and 1 without adapters: with few slots most
    waiting requests are looked at and passed over.  Each request that has come since the step before adds a time of its
    own, for the process that schedules takes it in too.

    Differs from the source: it has no time for requests that come; its features are scaled to their range from 0 to 1
    (batch 0.232 to 1081, waiting 0 to 20,309, waiting times share 0 to 16,371); the defaults here are the same line per
    request.
    """

    base_s: float = setting(
        -0.000196 - 0.004373 * 0.232 / (1081 - 0.232),
        unit="s",
        says="Time per step without requests",
        low=-10.0,
        high=10.0,
    )
    per_running_s: float = setting(
        0.004373 / (1081 - 0.232), unit="s", says="Time per step for every request in the batch", low=-10.0, high=10.0
    )
    per_waiting_s: float = setting(
        0.004615 / 20_309, unit="s", says="Time per step for every waiting request", low=-10.0, high=10.0
    )
    per_waiting_share_s: float = setting(
        -0.004391 / 16_371, unit="s", says="Time per step for every waiting request, times the share of adapters "
                                           "that have a slot",
        low=-10.0, high=10.0,
    )  # fmt: skip
    per_arrival_s: float = setting(
        0.0, unit="s", says="Time for every request that has come since the step before", low=0.0, high=10.0
    )

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def arrival_ps(self) -> int:
        """What a request that has come adds to the next step, in ps."""
        return round(self.per_arrival_s * PS_PER_S)

    def terms_ps(self, share: float = 1.0) -> tuple[int, int, int]:
        """Return the base, the time for a running and that for a waiting request, in whole picoseconds."""
        waiting_s = self.per_waiting_s + self.per_waiting_share_s * min(share, 1.0)
        return round(self.base_s * PS_PER_S), round(self.per_running_s * PS_PER_S), round(waiting_s * PS_PER_S)


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What LoRA adapters cost a worker; the defaults are those of Llama-3.1-8B on an H100 of 64 GB.

    Examples
    --------
    >>> f"{Adapters(slots=32).factor(32):.3f}"
    '2.618'
    """

    slots: int = setting(
        8, unit="adapters", says="Most distinct adapters in a batch, and on the device", low=1, high=10**6
    )
    ranks: tuple[int, ...] = setting((16,), says="Ranks of the adapters, assigned in turn in the order of their names")
    percent_per_adapter: float = setting(
        1.930,
        unit="%",
        says="Further share of a step's time for every distinct adapter in the batch",
        low=0.0,
        high=1e4,
    )
    percent: float = setting(
        200.0,
        unit="%",
        says="Time of a step with adapters relative to a step without, before the shares per adapter",
        low=1.0,
        high=1e5,
    )
    per_adapter_s: float = setting(
        0.0, unit="s", says="Additional time per step for every distinct adapter in the batch", low=0.0, high=10.0
    )
    load_s: float = setting(
        5.83e-3, unit="s", says="Time to load an adapter from the host's memory", low=0.0, high=100.0
    )
    load_s_per_rank: float = setting(7.1e-5, unit="s", says="Additional load time for every rank", low=0.0, high=1.0)
    first_load_s: float = setting(
        0.0, unit="s", says="Additional load time on a worker's first use of an adapter: from disk to memory", low=0.0,
        high=1000.0,
    )  # fmt: skip

    first_load_s_per_rank: float = setting(
        0.0, unit="s", says="The same for every rank: an adapter's file grows with it", low=0.0, high=100.0
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.ranks or any(rank != int(rank) or not 1 <= rank <= 10_000 for rank in self.ranks):
            raise BadValueError(
                "Ranks of adapters are whole numbers.",
                given=self.ranks,
                allowed="1 to 10,000, at least one",
                where="ranks",
            )

    @property
    def millionths_each(self) -> int:
        """By how many millionths a distinct adapter more raises the factor."""
        return round(self.percent_per_adapter * 1e4)

    def firsts_ps(self, adapters: int) -> NDArray[np.int64]:
        """Return what the first loading of each of ``adapters`` adapters takes besides, in ps."""
        ranks = np.resize(np.array(self.ranks, np.int64), adapters)
        return np.round((self.first_load_s + self.first_load_s_per_rank * ranks) * PS_PER_S).astype(np.int64)

    @property
    def each_ps(self) -> int:
        """What a distinct adapter adds to a step beside the factor, in ps."""
        return round(self.per_adapter_s * PS_PER_S)

    def millionths(self, distinct: int) -> int:
        """Return the factor of the step time of a batch with ``distinct`` adapters, in millionths."""
        return round(self.percent * 1e4) + distinct * self.millionths_each if distinct else MILLION

    def factor(self, distinct: int) -> float:
        """Return the factor of the step time of a batch with ``distinct`` adapters."""
        return self.millionths(distinct) / MILLION

    def loads_ps(self, adapters: int) -> NDArray[np.int64]:
        """Return what loading each of ``adapters`` adapters takes, in ps."""
        ranks = np.resize(np.array(self.ranks, np.int64), adapters)
        return np.round((self.load_s + self.load_s_per_rank * ranks) * PS_PER_S).astype(np.int64)

    def step_ps(
        self, step_time: StepTime, distinct: int, decode_requests: int, context_tokens: int, tokens: int, pairs: int
    ) -> int:
        """Return the time of a batch with ``distinct`` adapters, in ps, without loads: factor and addition applied.

        Where the plain step time is a line in the context, its part without context and its slope are multiplied apart,
        so that the product is a line with a whole slope again.
        """
        factor = self.millionths(distinct)
        slope = step_time.context_slope_ps
        context = context_tokens if slope < 0 else 0
        plain = int(step_time.function(decode_requests, context, tokens, pairs, step_time.table))
        if distinct == 0:
            return plain + max(slope, 0) * (context_tokens - context)
        plain, slope = int(_scaled_ps(plain, factor)), int(_scaled_ps(max(slope, 0), factor))
        return plain + slope * (context_tokens - context) + self.each_ps * distinct


@dataclass(eq=False)
class AdapterSlots:
    """The slots of one worker, step by step; the readable counterpart of what the compiled simulator does.

    Attributes
    ----------
    adapters : Adapters
    loads_ps, firsts_ps : ndarray of int64, shape (adapters,)
        What loading each takes, and what its first loading takes besides.
    users : dict of int to int
        Adapters in the batch, with how many running requests use them.  These cannot be evicted.
    resident : dict of int to None
        Adapters on the device, the one to be evicted first at the front; those in the batch count too.
    loading_ps : int
        What the step in progress waits for adapters.
    known : set of int
        Adapters that were loaded before.
    loaded : int
        How many loadings there were until now.
    """

    adapters: Adapters
    loads_ps: NDArray[np.int64]
    firsts_ps: NDArray[np.int64]
    users: dict[int, int] = field(default_factory=dict)
    resident: dict[int, None] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    loading_ps: int = 0
    loaded: int = 0

    def may_run(self, adapter: int) -> bool:
        """Say whether a request of this adapter (-1: of none) may join the batch."""
        return adapter < 0 or adapter in self.users or len(self.users) < self.adapters.slots

    def take(self, adapter: int) -> None:
        """Let a request of this adapter join, and load the adapter where it is not on the device."""
        if adapter < 0:
            return
        self.users[adapter] = self.users.get(adapter, 0) + 1
        if adapter in self.resident:
            return
        if len(self.resident) == self.adapters.slots:
            del self.resident[next(other for other in self.resident if other not in self.users)]
        self.resident[adapter] = None
        self.loading_ps += int(self.loads_ps[adapter]) + (0 if adapter in self.known else int(self.firsts_ps[adapter]))
        self.known.add(adapter)
        self.loaded += 1

    def give_back(self, adapter: int) -> None:
        """Let a request of this adapter leave the batch."""
        if adapter < 0:
            return
        self.users[adapter] -= 1
        if not self.users[adapter]:
            del self.users[adapter]
            # Used most recently.
            del self.resident[adapter]
            self.resident[adapter] = None


def codes_of(requests: RequestTrace) -> tuple[NDArray[np.int64], int]:
    """Return the adapter of every request, -1 for none, and how many adapters the trace names.

    Requests ask for no adapter where the trace has no such column, or the name is empty.
    """
    if requests.adapter is None:
        return np.full(len(requests), -1, np.int64), 0
    named = [name != "" for name in requests.adapter_names]
    number = np.where(named, np.cumsum(named) - 1, -1)
    return number[requests.adapter].astype(np.int64), sum(named)


def share_with_a_slot(adapters: Adapters | None, served: int) -> float:
    """Return the share of the adapters served that have a slot; 1 without adapters."""
    return 1.0 if adapters is None or served == 0 else min(adapters.slots / served, 1.0)


def overhead_ps(overhead: SchedulerOverhead | None, share: float, running: int, waiting: int, came: int = 0) -> int:
    """Return what the scheduler adds to a step, in ps; ``came`` counts requests since the step before."""
    if overhead is None:
        return 0
    base, per_running, per_waiting = overhead.terms_ps(share)
    return max(base + per_running * running + per_waiting * waiting, 0) + overhead.arrival_ps * came
