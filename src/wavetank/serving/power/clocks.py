"""Locks the clock of each phase where it costs no throughput, from measurements of that phase alone.

While answers are computed the GPU waits for its memory.  Its clock can fall until the arithmetic, the kernels one after
the other, or the requests that fill the memory become the bottleneck, and power falls with the clock and the square of
the voltage all the way.  A power limit reaches the same clocks only where the phase draws more than the limit; a locked
clock acts everywhere.  Where the bottleneck turns depends on the attention, so each
architecture is measured, each phase by itself, with a harness that throws away runs whose clock moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wavetank.serving.power.dvfs import UNLIMITED, PowerSetting, clock_class
from wavetank.serving.power.interface import DECODE, PREFILL, Bench, Cell, PhaseSettings
from wavetank.settings import setting

_ROUNDING = 1e-9


def by_architecture(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each architecture.

    Parameters
    ----------
    cells : sequence of Cell
    """
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.architecture, []).append(cell)
    return found


def grid(bench: Bench, step_hz: float) -> list[PowerSetting]:
    """Return locked clocks from the highest on, about ``step_hz`` apart.

    Parameters
    ----------
    bench : Bench
    step_hz : float
    """
    clocks = bench.table.clocks_hz()
    every = max(round(step_hz / bench.table.clock_step_hz), 1)
    return [PowerSetting(clock_hz=clock) for clock in clocks[::every]]


def cost(
    bench: Bench, cells: Sequence[Cell], phase: str, given: PowerSetting, *, margin: float, rejecting: bool = True
) -> float:
    """Return the log of the energy per token at a setting over that without, mean over cells.

    It is inf where the setting is too slow for a cell, and NaN where a cell could not be measured: at a clock that the
    board's power limit does not allow, say.

    Parameters
    ----------
    bench : Bench
    cells : sequence of Cell
    phase : str
    given : PowerSetting
    margin : float
        Kept below the throughput that may be lost, for the error of the measurement.
    rejecting : bool, default True
        Whether disturbed runs are thrown away.
    """
    total = 0.0
    for cell in cells:
        base = bench.read(cell, phase, UNLIMITED, rejecting=rejecting)
        found = bench.read(cell, phase, given, rejecting=rejecting)
        if base is None or found is None:
            return math.nan
        if found.tokens_per_s < base.tokens_per_s * (1 - max(bench.loss_limit - margin, 0.0)):
            return math.inf
        total += math.log(found.joules_per_token / base.joules_per_token)
    return total / len(cells)


def lowest(
    bench: Bench,
    cells: Sequence[Cell],
    phase: str,
    settings: Sequence[PowerSetting],
    *,
    margin: float,
    rejecting: bool = True,
) -> PowerSetting:
    """Return the setting of least energy that is fast enough for all cells; none, where none saves energy.

    Parameters
    ----------
    bench : Bench
    cells : sequence of Cell
    phase : str
    settings : sequence of PowerSetting
        Locked clocks, from the highest down: after three in a row that are too slow the rest is not measured.
    margin : float
        As for :func:`cost`.
    rejecting : bool, default True
        As for :func:`cost`.
    """
    best, least, too_slow = UNLIMITED, 0.0, 0
    for given in settings:
        here = cost(bench, cells, phase, given, margin=margin, rejecting=rejecting)
        if here < least - _ROUNDING:
            best, least = given, here
        too_slow = too_slow + 1 if math.isinf(here) else 0
        if too_slow == 3:
            break
    return best


@dataclass(frozen=True, kw_only=True)
class PhaseAwareClocks:
    """Measures a grid of clocks for each architecture and phase, and locks the one of least energy that is fast enough.

    Clocks are tried from the highest down; the search ends where too much throughput is lost at three in a row, since
    lower clocks lose more.
    """

    step_hz: float = setting(60e6, says="Distance of the clocks that are tried, Hz", low=1e6, high=1e9)
    margin: float = setting(
        0.01, says="Share of the throughput kept below the allowed loss, for the measurement's error", low=0.0, high=0.5
    )
    rejecting: bool = setting(True, says="Whether runs whose clock moved are thrown away")

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return the settings.

        Parameters
        ----------
        bench : Bench
        """
        found = {}
        for cells in by_architecture(bench.cells).values():
            prefill, decode = (
                lowest(bench, cells, phase, grid(bench, self.step_hz), margin=self.margin, rejecting=self.rejecting)
                for phase in (PREFILL, DECODE)
            )
            found.update(dict.fromkeys(cells, PhaseSettings(prefill, decode)))
        return found


@dataclass(frozen=True, kw_only=True)
class ClassClocks:
    """Two clocks are measured; how the throughput follows the clock says which of three classes a model is of.

    Every class has one clock.
    """

    insensitive: float = setting(
        0.6, says="Clock where throughput hardly follows it, share of the highest", low=0.2, high=1.0
    )
    mild: float = setting(
        0.75, says="Clock where throughput follows it a little, share of the highest", low=0.2, high=1.0
    )
    sensitive: float = setting(0.95, says="Clock where throughput follows it, share of the highest", low=0.2, high=1.0)

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return the settings: of the cell that follows the clock most; prompts are left alone.

        Parameters
        ----------
        bench : Bench
        """
        clocks, found = bench.table.clocks_hz(), {}
        half = min(clocks, key=lambda each: abs(each - clocks[0] / 2))
        for cells in by_architecture(bench.cells).values():
            slope = max(self._slope(bench, cell, clocks[0], half) for cell in cells)
            share = {"insensitive": self.insensitive, "mild": self.mild}.get(clock_class(slope), self.sensitive)
            clock = min(clocks, key=lambda each: abs(each - share * clocks[0]))
            found.update(dict.fromkeys(cells, PhaseSettings(decode=PowerSetting(clock_hz=clock))))
        return found

    @staticmethod
    def _slope(bench: Bench, cell: Cell, high: float, low: float) -> float:
        fast, slow = (bench.read(cell, DECODE, PowerSetting(clock_hz=each)) for each in (high, low))
        if fast is None or slow is None:
            return math.inf
        return math.log(fast.tokens_per_s / slow.tokens_per_s) / math.log(high / low)
