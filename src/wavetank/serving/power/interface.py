"""What a power policy sees and decides.

A policy is given a bench: GPUs on which it may measure phases at settings, the cells that will be served, and how much
throughput may be lost.  It answers with a setting for each phase of each cell.  Measuring costs runs, and is as noisy
as a harness makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from wavetank.platforms.power import PowerTable
from wavetank.serving.power.architectures import Work, architecture
from wavetank.serving.power.dvfs import UNLIMITED, GpuModel, Operation, PowerSetting
from wavetank.serving.power.harness import Harness, Reading
from wavetank.serving.power.simulated_gpu import SimulatedGpu, steady

PREFILL, DECODE = "prefill", "decode"


class Cell(NamedTuple):
    """One operating point.

    Attributes
    ----------
    architecture : str
    batch : int
        Sequences.
    context : int
        Tokens of each while it decodes.
    """

    architecture: str
    batch: int
    context: int

    def work(self, phase: str) -> Work:
        """Return the work of a decode step, or of computing the prompts, whose length is the context's."""
        shape = architecture(self.architecture)
        return shape.decode(self.batch, self.context) if phase == DECODE else shape.prefill(self.batch, self.context)


class PhaseSettings(NamedTuple):
    """What is set while prompts are computed, and while answers are."""

    prefill: PowerSetting = UNLIMITED
    decode: PowerSetting = UNLIMITED


class Bench(Protocol):
    """What a policy may look at.

    Attributes
    ----------
    table : PowerTable
        For the clocks and limits that can be set; its electrical figures are the data sheet's, not this GPU's.
    cells : tuple of Cell
    caps_w : tuple of float
        Power limits worth trying, from the highest, W.
    loss_limit : float
        Share of the throughput of a phase that may be lost, in every cell.
    """

    table: PowerTable
    cells: tuple[Cell, ...]
    caps_w: tuple[float, ...]
    loss_limit: float

    def read(self, cell: Cell, phase: str, given: PowerSetting, *, rejecting: bool = True) -> Reading | None:
        """Measure a phase of a cell at a setting; None where too many runs were disturbed."""
        ...

    def truth(self, cell: Cell, phase: str, given: PowerSetting) -> Operation:
        """Return what the GPU does, without measuring: for oracles alone."""
        ...


class PowerPolicy(Protocol):
    """Chooses settings."""

    def choose(self, bench: Bench) -> Mapping[Cell, PhaseSettings]:
        """Return a setting per phase for every cell.

        Parameters
        ----------
        bench : Bench
        """
        ...


@dataclass
class SimulatedBench:
    """A bench of one simulated GPU.

    Parameters
    ----------
    gpu : SimulatedGpu
    table : PowerTable
    cells : tuple of Cell
    caps_w : tuple of float
    loss_limit : float
    harness : Harness
    draws : callable
        Random numbers of a measurement, by its name.
    runs, rejected : int
        Runs that were made, and those of them that did not count.
    known : dict
        What was measured; benches of one GPU may share it.
    """

    gpu: SimulatedGpu
    table: PowerTable
    cells: tuple[Cell, ...]
    caps_w: tuple[float, ...]
    loss_limit: float
    harness: Harness
    draws: Callable[..., np.random.Generator]
    runs: int = 0
    rejected: int = 0
    known: dict[tuple[Cell, str, PowerSetting, bool], Reading | None] = field(default_factory=dict)

    def read(self, cell: Cell, phase: str, given: PowerSetting, *, rejecting: bool = True) -> Reading | None:
        """Measure; what was measured before is looked up."""
        key = (cell, phase, given, rejecting)
        if key not in self.known:
            work = cell.work(phase)
            # The same runs whenever the same is measured: policies differ by their choices alone.
            draws = self.draws(*cell, phase, f"{given.clock_hz} Hz {given.cap_w} W")
            harness = self.harness if rejecting else Harness(repeats=self.harness.repeats, rejecting=False)
            found = harness.read(lambda: self.gpu.run(work, given, draws))
            self.known[key] = found
            self.runs += harness.most_runs if found is None else found.runs + found.rejected
            self.rejected += harness.most_runs if found is None else found.rejected
        return self.known[key]

    def truth(self, cell: Cell, phase: str, given: PowerSetting) -> Operation:
        """Return what the GPU does."""
        return steady(self.model, cell.work(phase), given)

    @property
    def model(self) -> GpuModel:
        """The truth."""
        return self.gpu.model
