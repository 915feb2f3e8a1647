"""What else is done: nothing, a power limit, one clock for everything, stepping down by hand; and the best there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from wavetank.serving.power.clocks import by_architecture, cost, grid, lowest
from wavetank.serving.power.dvfs import UNLIMITED, PowerSetting
from wavetank.serving.power.interface import DECODE, PREFILL, Bench, Cell, PhaseSettings
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class NoPowerLimit:
    """Leaves the GPU as it is: at its highest clock, within the limit of its board.

    A policy has ``choose(bench) -> settings``: what is set in each phase of each cell, see
    :mod:`wavetank.serving.power.interface`.
    """

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return no settings.

        Parameters
        ----------
        bench : Bench
        """
        return dict.fromkeys(bench.cells, PhaseSettings())


@dataclass(frozen=True, kw_only=True)
class PowerLimitOptimizer:
    """Sweeps power limits and takes the one of least energy per token whose slowdown is allowed, for answers alone."""

    margin: float = setting(0.01, says="Share of the throughput kept below the allowed loss", low=0.0, high=0.5)

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return one power limit per architecture; prompts are left alone, which a limit would slow down most.

        Parameters
        ----------
        bench : Bench
        """
        found = {}
        for cells in by_architecture(bench.cells).values():
            limits = [PowerSetting(cap_w=cap) for cap in bench.caps_w]
            costs = {each: cost(bench, cells, DECODE, each, margin=self.margin) for each in limits}
            # The board's own limit costs nothing and saves nothing; a limit that could not be measured is none.
            best = min((UNLIMITED, *costs), key=lambda each: min(costs.get(each, 0.0), math.inf))
            found.update(dict.fromkeys(cells, PhaseSettings(decode=best)))
        return found


@dataclass(frozen=True, kw_only=True)
class OneClock:
    """One locked clock for the answers of all models: what an operator can set once for a pool of GPUs."""

    step_hz: float = setting(60e6, says="Distance of the clocks that are tried, Hz", low=1e6, high=1e9)
    margin: float = setting(0.01, says="Share of the throughput kept below the allowed loss", low=0.0, high=0.5)

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return the clock of least decode energy that is fast enough for all cells.

        Parameters
        ----------
        bench : Bench
        """
        best = lowest(bench, bench.cells, DECODE, grid(bench, self.step_hz), margin=self.margin)
        return dict.fromkeys(bench.cells, PhaseSettings(decode=best))


@dataclass(frozen=True, kw_only=True)
class ClockHillClimbing:
    """Steps the decode clock down while that saves energy and is fast enough, then half as far, and so on.

    It needs a tenth of the measurements of a grid, and no model.
    """

    first_step_hz: float = setting(480e6, says="First step, Hz", low=1e6, high=2e9)
    last_step_hz: float = setting(30e6, says="Last step, Hz", low=1e6, high=1e9)
    margin: float = setting(0.01, says="Share of the throughput kept below the allowed loss", low=0.0, high=0.5)

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return the decode clocks; prompts are left alone.

        Parameters
        ----------
        bench : Bench
        """
        clocks, found = bench.table.clocks_hz(), {}
        for cells in by_architecture(bench.cells).values():
            place, least = 0, 0.0
            step = max(round(self.first_step_hz / bench.table.clock_step_hz), 1)
            last = max(round(self.last_step_hz / bench.table.clock_step_hz), 1)
            while step >= last:
                given = PowerSetting(clock_hz=clocks[min(place + step, len(clocks) - 1)])
                here = cost(bench, cells, DECODE, given, margin=self.margin)
                if here < least and place + step < len(clocks):
                    place, least = place + step, here
                else:
                    step //= 2
            best = PowerSetting(clock_hz=clocks[place]) if place else UNLIMITED
            found.update(dict.fromkeys(cells, PhaseSettings(decode=best)))
        return found


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    """The least energy of every clock and power limit, for each cell by itself, known without measuring."""

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return the best settings.

        Parameters
        ----------
        bench : Bench
        """
        every = [PowerSetting(clock_hz=clock) for clock in bench.table.clocks_hz()]
        every += [PowerSetting(cap_w=cap) for cap in bench.caps_w]
        return {
            cell: PhaseSettings(*(self._best(bench, cell, phase, every) for phase in (PREFILL, DECODE)))
            for cell in bench.cells
        }

    @staticmethod
    def _best(bench: Bench, cell: Cell, phase: str, every: list[PowerSetting]) -> PowerSetting:
        base = bench.truth(cell, phase, UNLIMITED)
        best, least = UNLIMITED, base.joules_per_token
        for given, found in zip(every, itertools.starmap(bench.truth, ((cell, phase, each) for each in every)),
                                strict=True):  # fmt: skip
            enough = found.tokens_per_s >= base.tokens_per_s * (1 - bench.loss_limit)
            if enough and found.joules_per_token < least:
                best, least = given, found.joules_per_token
        return best
