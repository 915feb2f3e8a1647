"""What a step takes and draws at a clock or under a power limit: a roofline with a clock in it.

A step's time is the longer of its traffic and its arithmetic, plus what its kernels take one after the other.
Arithmetic and kernels slow down with the clock; the memory does not, down to the clock at which the multiprocessors ask
for too little to fill it.  A power limit acts through the clock alone: the governor takes the highest clock whose power
is within it.  Where the power at the highest clock is within the limit already, the limit changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.power import PowerTable, power_table
from wavetank.serving.power.architectures import Work
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

INSENSITIVE, MILD, SENSITIVE = "insensitive", "mild", "sensitive"
_MILD_SLOPE, _SENSITIVE_SLOPE = 0.1, 0.4


@dataclass(frozen=True, kw_only=True)
class PowerSetting:
    """What is set on a GPU: a locked clock, a power limit, or neither.

    Parameters
    ----------
    clock_hz : float, optional
        Locked clock of the multiprocessors, Hz.
    cap_w : float, optional
        Power limit, W.
    """

    clock_hz: float | None = None
    cap_w: float | None = None

    def check(self, table: PowerTable) -> None:
        """Refuse what the device cannot be set to.

        Raises
        ------
        BadValueError
        """
        if self.clock_hz is not None:
            table.check_clock(self.clock_hz)
        if self.cap_w is not None:
            table.check_cap(self.cap_w)


UNLIMITED = PowerSetting()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A piece of work at one clock.

    Attributes
    ----------
    clock_hz : float
    time_s : float
        Of the whole work.
    power_w : float
        Mean over that time.
    tokens : float
    within_cap : bool
        Whether the power is within the limit that was set; False where even the lowest clock draws more.
    """

    clock_hz: float
    time_s: float
    power_w: float
    tokens: float
    within_cap: bool = True

    @property
    def tokens_per_s(self) -> float:
        """Throughput, tokens/s."""
        return self.tokens / self.time_s

    @property
    def joules_per_token(self) -> float:
        """Energy per token, J."""
        return self.power_w * self.time_s / self.tokens


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """One GPU: its power table and what its kernels reach of the data sheet.

    Parameters
    ----------
    table : PowerTable
    """

    table: PowerTable
    bandwidth_share: float = setting(0.85, says="Share of the peak bandwidth that kernels reach", low=0.01, high=1.0)
    flops_share: float = setting(
        0.9, says="Share of the peak arithmetic rate at their clock that kernels reach", low=0.01, high=1.0
    )
    scan_flops_share: float = setting(
        0.12, says="Share of the peak arithmetic rate that recurrent scans reach", low=0.001, high=1.0
    )
    kernel_cycles: float = setting(
        1800.0, says="Clock cycles per kernel that overlap with nothing: start, first load, last wave", low=0, high=1e7
    )
    host_s_per_kernel: float = setting(
        0.0, unit="s", says="Time in which the host starts a kernel; 0 where a step is captured in a graph", low=0,
        high=1,
    )  # fmt: skip
    saturation_share: float = setting(
        0.5, says="Clock from which on the memory is filled, as a share of the highest; 0: at any clock",
        low=0.0, high=1.0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def at(self, work: Work, clock_hz: float) -> Operation:
        """Return what a piece of work takes and draws at a clock.

        Parameters
        ----------
        work : Work
        clock_hz : float
            Hz; any above zero, whether it can be locked or not.

        Raises
        ------
        BadValueError
            If the work is none: it takes no time, yields no tokens, or is not made of numbers.
        """
        table, sheet = self.table, self.table.device
        share = clock_hz / table.clock_max_hz
        fills = 1.0 if share >= self.saturation_share else share / self.saturation_share
        memory_s = work.bytes / (sheet.hbm_bytes_per_s * self.bandwidth_share * fills)
        peak = sheet.bf16_flops_per_s * share
        arithmetic_s = work.flops / (peak * self.flops_share) + work.scan_flops / (peak * self.scan_flops_share)
        on_device_s = max(memory_s, arithmetic_s) + work.kernels * self.kernel_cycles / clock_hz
        # A host that starts kernels one by one works ahead of the device, or the device waits for it.
        time_s = max(on_device_s, work.kernels * self.host_s_per_kernel)
        if not (0 < time_s < math.inf and 0 < work.tokens < math.inf and work.bytes >= 0):
            raise BadValueError("This work takes no time, yields no tokens, or is not made of numbers.", given=work)
        power_w = table.power_w(
            clock_hz, bytes_per_s=work.bytes / time_s, flops_per_s=(work.flops + work.scan_flops) / time_s
        )
        return Operation(clock_hz=clock_hz, time_s=time_s, power_w=power_w, tokens=work.tokens)

    def run(self, work: Work, given: PowerSetting = UNLIMITED) -> Operation:
        """Return what a piece of work takes and draws under a setting.

        Parameters
        ----------
        work : Work
        given : PowerSetting
            Where no limit is set, the board's own holds; the governor never goes above a locked clock.

        Raises
        ------
        BadValueError
            If the device cannot be set so.
        """
        given.check(self.table)
        cap_w = self.table.cap_max_w if given.cap_w is None else given.cap_w
        highest = self.table.clock_max_hz if given.clock_hz is None else given.clock_hz
        found = self.at(work, highest)
        for clock in self.table.clocks_hz():
            if found.power_w <= cap_w:
                return found
            if clock < highest:
                found = self.at(work, clock)
        return replace(found, within_cap=found.power_w <= cap_w)

    def limit_is_inert(self, work: Work, cap_w: float) -> bool:
        """Return whether a power limit changes nothing for a piece of work that runs at the board's own limit.

        Parameters
        ----------
        work : Work
        cap_w : float

        Raises
        ------
        BadValueError
            If the device cannot be given this limit.
        """
        self.table.check_cap(cap_w)
        return self.run(work).power_w <= cap_w

    def clock_slope(self, work: Work) -> float:
        """Return d log(throughput) / d log(clock) from half the highest clock to the highest.

        Parameters
        ----------
        work : Work
        """
        clocks = np.array([each for each in self.table.clocks_hz() if each >= self.table.clock_max_hz / 2])
        rates = [self.at(work, float(each)).tokens_per_s for each in clocks]
        return float(np.polyfit(np.log(clocks), np.log(rates), 1)[0])


def clock_class(slope: float) -> str:
    """Return the word for how a phase's throughput follows the clock.

    Parameters
    ----------
    slope : float
        d log(throughput) / d log(clock).
    """
    if slope < _MILD_SLOPE:
        return INSENSITIVE
    return MILD if slope <= _SENSITIVE_SLOPE else SENSITIVE


def dominates(one: Operation, other: Operation) -> bool:
    """Return whether one operation is at least as fast and takes at most as much energy per token.

    Parameters
    ----------
    one, other : Operation
    """
    return one.tokens_per_s >= other.tokens_per_s and one.joules_per_token <= other.joules_per_token


def pareto(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations that no other one is better than in both throughput and energy, fastest first.

    Parameters
    ----------
    operations : sequence of Operation
    """
    found: list[Operation] = []
    least = math.inf
    for each in sorted(operations, key=lambda each: (-each.tokens_per_s, each.joules_per_token)):
        if each.joules_per_token < least:
            found.append(each)
            least = each.joules_per_token
    return found


def some_gpu(name: str, seed: int, *, host_s_per_kernel: float = 0.0) -> GpuModel:
    """Return one GPU out of those that the known figures allow.

    Of one kind, GPUs differ; and of the voltage curve and of the clock from which on the memory is filled no figures
    are published.  Both are drawn, so that intervals over seeds span what is not known.

    Parameters
    ----------
    name : str
        A device with a power table.
    seed : int
    host_s_per_kernel : float, default 0
        Of the engine: the time in which the host starts a kernel, s.
    """
    table, draws = power_table(name), stream(seed, "gpu")
    knee = draws.uniform(0.45, 0.65)
    slope = (1 - table.floor_voltage_share) / (1 - table.knee_share) * draws.uniform(0.9, 1.1)
    return GpuModel(
        table=replace(
            table,
            idle_w=table.idle_w * draws.uniform(0.93, 1.07),
            idle_switching_share=table.idle_switching_share * draws.uniform(0.5, 1.5),
            memory_w=table.memory_w * draws.uniform(0.85, 1.15),
            fetch_w=table.fetch_w * draws.uniform(0.93, 1.07),
            matrix_w=table.matrix_w * draws.uniform(0.95, 1.05),
            knee_share=knee,
            floor_voltage_share=1 - slope * (1 - knee),
        ),
        kernel_cycles=1800.0 * draws.uniform(0.75, 1.25),
        host_s_per_kernel=host_s_per_kernel,
        saturation_share=draws.uniform(0.4, 0.65),
    )


def check_fits(held_bytes: float, table: PowerTable, what: str) -> None:
    """Refuse what does not fit into a device's memory.

    Parameters
    ----------
    held_bytes : float
    table : PowerTable
    what : str
        Of what, as the subject of a sentence.

    Raises
    ------
    BadValueError
    """
    if held_bytes > table.device.memory_bytes:
        raise BadValueError(
            f"{what} does not fit into the memory of {table.name}.", given=f"{held_bytes / 1e9:.1f} GB",
            allowed=f"at most {table.device.memory_bytes / 1e9:.1f} GB", hint="take a smaller batch or context",
        )  # fmt: skip
