"""What accelerators draw: electrical power as a function of the clock and of what is moved and computed.

``power.toml`` holds one table per device, each with its source; :func:`power_table` looks one up.  Power is the sum of
what the board draws at rest, what the memory takes per byte, and what the chip takes per byte on its way to the
multiprocessors and per operation.  The chip's energies go with the square of its voltage, which is flat below a knee of
the clock and rises linearly above it.

Differs from a measurement of your own device: nothing here changes with temperature or with the bits that are moved,
and where the knee of the voltage lies is not known.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from wavetank.errors import BadValueError, unknown_name
from wavetank.platforms.catalog import Device, device

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class PowerTable:
    """The electrical figures of one device.

    Parameters
    ----------
    name : str
        A shipped device, by name.
    idle_w : float
        Board power with a context but no kernel, at the highest clock, W.
    idle_switching_share : float
        Share of ``idle_w`` that goes with clock and voltage; the rest is constant.
    memory_w : float
        What the memory takes at its peak bandwidth, W.
    fetch_w : float
        What the chip takes to move the same bytes, at the voltage of the highest clock, W.
    matrix_w : float
        What the matrix units take at the peak rate of the data sheet, at the voltage of the highest clock, W.
    clock_min_hz, clock_max_hz, clock_step_hz : float
        Clocks of the multiprocessors that can be locked, Hz.
    knee_share : float
        Clock below which the voltage is flat, as a share of ``clock_max_hz``.
    floor_voltage_share : float
        Voltage below the knee, as a share of that at ``clock_max_hz``.
    cap_min_w : float
        Lowest power limit that can be set, W; the highest is the device's board power.
    source : str
        Where the figures come from.

    Raises
    ------
    UnknownNameError
        If there is no such device.
    BadValueError
        If a figure is out of range.
    """

    name: str
    idle_w: float
    idle_switching_share: float
    memory_w: float
    fetch_w: float
    matrix_w: float
    clock_min_hz: float
    clock_max_hz: float
    clock_step_hz: float
    knee_share: float
    floor_voltage_share: float
    cap_min_w: float
    source: str

    def __post_init__(self) -> None:
        tdp_w = device(self.name).tdp_w
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            high = 1.0 if field.name.endswith("_share") else math.inf
            if not 0 < value <= high or math.isinf(value):
                raise BadValueError(
                    f"{field.name} of the power table of {self.name} is out of range.", given=value,
                    allowed="above 0" if high > 1 else "above 0, at most 1",
                )  # fmt: skip
        if not self.clock_min_hz <= self.clock_max_hz or not self.cap_min_w <= tdp_w:
            raise BadValueError(
                f"The lowest clock or cap of the power table of {self.name} is above its highest.",
                given=f"{self.clock_min_hz:g} Hz, {self.cap_min_w:g} W",
                allowed=f"at most {self.clock_max_hz:g} Hz, {tdp_w:g} W",
            )

    @property
    def device(self) -> Device:
        """The device's data sheet."""
        return device(self.name)

    @property
    def cap_max_w(self) -> float:
        """Highest power limit, W: the board power."""
        return self.device.tdp_w

    def voltage_share(self, clock_hz: float) -> float:
        """Return the voltage at a clock, as a share of that at the highest clock."""
        share = clock_hz / self.clock_max_hz
        if share <= self.knee_share or self.knee_share == 1.0:
            return self.floor_voltage_share if share < 1 else 1.0
        return self.floor_voltage_share + (1 - self.floor_voltage_share) * (share - self.knee_share) / (
            1 - self.knee_share
        )

    def power_w(self, clock_hz: float, *, bytes_per_s: float, flops_per_s: float) -> float:
        """Return the board power.

        Parameters
        ----------
        clock_hz : float
            Clock of the multiprocessors, Hz.
        bytes_per_s : float
            What is read from and written to the memory.
        flops_per_s : float
            What the matrix units compute.

        Returns
        -------
        float
            W.
        """
        square = self.voltage_share(clock_hz) ** 2
        switching = self.idle_switching_share * (clock_hz / self.clock_max_hz * square - 1)
        memory_use = bytes_per_s / self.device.hbm_bytes_per_s
        matrix_use = flops_per_s / self.device.bf16_flops_per_s
        return (
            self.idle_w * (1 + switching)
            + self.memory_w * memory_use
            + square * (self.fetch_w * memory_use + self.matrix_w * matrix_use)
        )

    def clocks_hz(self) -> tuple[float, ...]:
        """Return the clocks that can be locked, from the highest to the lowest, Hz."""
        return _clocks_hz(self.clock_min_hz, self.clock_max_hz, self.clock_step_hz)

    def check_clock(self, clock_hz: float, *, where: str | None = None) -> None:
        """Refuse a clock that the device cannot be locked to.

        Parameters
        ----------
        clock_hz : float
        where : str, optional
            Of the error.

        Raises
        ------
        BadValueError
            With the nearest clock that can be.
        """
        clocks = self.clocks_hz()
        if clock_hz not in clocks:
            nearest = min(clocks, key=lambda each: abs(each - clock_hz)) if math.isfinite(clock_hz) else clocks[0]
            raise BadValueError(
                f"{self.name} cannot be locked to this clock.", given=f"{clock_hz / 1e6:g} MHz",
                allowed=f"{clocks[-1] / 1e6:g} to {clocks[0] / 1e6:g} MHz in steps of {self.clock_step_hz / 1e6:g} MHz",
                nearest=f"{nearest / 1e6:g} MHz", where=where,
            )  # fmt: skip

    def check_cap(self, cap_w: float, *, where: str | None = None) -> None:
        """Refuse a power limit that the device cannot be given.

        Parameters
        ----------
        cap_w : float
        where : str, optional
            Of the error.

        Raises
        ------
        BadValueError
        """
        if not self.cap_min_w <= cap_w <= self.cap_max_w:
            raise BadValueError(
                f"{self.name} cannot be given this power limit.", given=f"{cap_w:g} W",
                allowed=f"{self.cap_min_w:g} to {self.cap_max_w:g} W",
                nearest=f"{min(max(cap_w, self.cap_min_w), self.cap_max_w):g} W", where=where,
            )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _clocks_hz(low: float, high: float, step: float) -> tuple[float, ...]:
    count = int((high - low) / step * (1 + 1e-12))
    return tuple(high - i * step for i in range(count + 1))


@functools.cache
def _shipped() -> dict[str, PowerTable]:
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if found.pop("format") != _FORMAT:
        raise ValueError("power.toml is of another format than this code")
    return {name: PowerTable(name=name, **table) for name, table in found["devices"].items()}


def power_tables() -> tuple[str, ...]:
    """Return the names of the devices of which a power table ships."""
    return tuple(_shipped())


def power_table(name: str) -> PowerTable:
    """Return the power table of a device.

    Raises
    ------
    UnknownNameError
        If none ships.

    Examples
    --------
    >>> power_table("H200-SXM").cap_max_w
    700.0
    """
    if name not in _shipped():
        raise unknown_name("power table", name, _shipped())
    return _shipped()[name]


@dataclass(frozen=True, kw_only=True)
class MeasuredPower:
    """One loop whose power was measured on a real device.

    Attributes
    ----------
    device : str
    loop : str
        What ran.
    clock_hz : float
        Mean clock of the multiprocessors, Hz.
    bytes_per_s, flops_per_s : float
        What the loop moved and computed.
    power_w : float
        Difference of the energy counter over the time, W.
    """

    device: str
    loop: str
    clock_hz: float
    bytes_per_s: float
    flops_per_s: float
    power_w: float


@functools.cache
def measured_power() -> tuple[MeasuredPower, ...]:
    """Return the measurements that the tables were fitted to, with the devices' settings as they were found."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(MeasuredPower(**row) for row in found["measured"])
