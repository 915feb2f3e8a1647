"""Study ``decode-energy``: power limits and locked clocks in the decode phase."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.power import measured_power, power_table
from wavetank.serving.power.architectures import architecture
from wavetank.serving.power.dvfs import GpuModel, PowerSetting, check_fits, dominates, some_gpu
from wavetank.serving.power.harness import Harness
from wavetank.serving.power.interface import DECODE, PREFILL, Cell, PhaseSettings, SimulatedBench
from wavetank.serving.power.simulated_gpu import SimulatedGpu
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

CAPTURED, EAGER = "captured", "eager"
# Below this, a loss above the limit is rounding.
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class DecodeEnergy(Study):
    """Policies measure decoders on a simulated GPU and set its clock or power limit; what they save and lose is then
    taken from the model of that GPU, without noise.  Every seed is another GPU: its figures, and what is not known of
    its voltage, are drawn around those measured.  Engines either capture a step in a graph or start kernel by kernel.
    """

    name: ClassVar[str] = "decode-energy"
    baseline: ClassVar[str] = "no-power-limit"
    primary: ClassVar[str] = "decode_energy_share"
    secondary: ClassVar[tuple[str, ...]] = ("decode_loss_worst", "request_energy_share")
    must_be_zero: ClassVar[tuple[str, ...]] = ("over_limit_share",)
    metrics = (
        Metric("decode_energy_share", "", "lower", "modelled",
               "energy per output token over that of a GPU left alone; geometric mean over cells",
               words="decode energy"),
        Metric("decode_saved_most", "", "higher", "modelled",
               "1 - energy per output token over that of a GPU left alone, of the cell where it is most",
               words="most saved decode energy"),
        Metric("decode_loss_worst", "", "lower", "modelled",
               "1 - output tokens per second over those of a GPU left alone, of the worst cell",
               words="worst loss of decode throughput"),
        Metric("over_limit_share", "", "lower", "modelled",
               "share of the cells that lose more decode throughput than allowed"),
        Metric("request_energy_share", "", "lower", "modelled",
               "energy of whole requests, prompts included, over that of a GPU left alone; geometric mean",
               words="energy of requests"),
        Metric("request_time_share", "", "lower", "modelled",
               "time of whole requests over that of a GPU left alone; geometric mean", words="time of requests"),
        Metric("runs", "runs", "lower", "counted", "runs of a phase that the policy measured", words="measured runs"),
        Metric("rejected_share", "", "", "counted", "share of these runs that did not count"),
        Metric("decode_w", "W", "", "modelled", "power while answers are computed, highest of the cells", table=False),
        Metric("caps_inert_share", "", "", "modelled",
               "share of the pairs of cell and power limit below the board's in which the limit changes nothing",
               table=False),
        Metric("caps_dominated_share", "", "higher", "modelled",
               "share of the pairs of cell and power limit for which some locked clock is at least as good in "
               "throughput and in energy per token", table=False),
        Metric("clock_slope", "", "", "modelled",
               "d log(throughput) / d log(clock) over the upper half of the clocks, of the cell where it is highest",
               table=False),
        Metric("energy_over_gqa", "", "lower", "modelled",
               "energy per whole request over that of grouped-query attention, at the largest batch and context",
               table=False),
        Metric("energy_share_within", "", "lower", "modelled",
               "energy per output token over that of a GPU left alone, for another allowed loss", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Decode energy left", y="decode_energy_share", by="architecture",
              says="Shorter saves more; 1 is a GPU left alone."),
        Chart("pareto", "Energy against throughput", x="decode_loss_worst", y="decode_energy_share",
              says="Down and to the left is better."),
        Chart("sweep", "Decode energy as more throughput may be lost", y="energy_share_within", by="loss_limit",
              says="What the first per cent buys, and the tenth."),
        Chart("bars", "Power while answers are computed", y="decode_w", by="engine",
              says="A power limit above the bar does nothing."),
    )  # fmt: skip

    device: str = setting("H200-SXM", says="GPU, by name; one with a power table")
    architectures: tuple[str, ...] = setting(
        ("gqa", "mla", "gated-deltanet", "mamba2", "hybrid"), says="Architectures, by name"
    )
    batches: tuple[int, ...] = setting((1, 8, 32), unit="requests", says="Sequences in a batch", low=1, high=100_000)
    contexts: tuple[int, ...] = setting(
        (1024, 4096, 16384), unit="tokens", says="Tokens of each sequence", low=1, high=10_000_000
    )
    output: int = setting(512, unit="tokens", says="Output tokens of a request", low=1, high=1_000_000)
    engines: tuple[str, ...] = setting(
        (CAPTURED, EAGER), choices=(CAPTURED, EAGER), says="Whether steps are captured in a graph"
    )
    eager_kernel_s: float = setting(
        15e-6, unit="s", says="Time in which an eager engine's host starts what one fused kernel does", low=0, high=1
    )
    caps: tuple[float, ...] = setting(
        (600.0, 500.0, 400.0, 300.0, 200.0), unit="W", says="Power limits worth trying", low=1, high=1e5
    )
    loss_limit: float = setting(0.05, says="Share of the throughput that may be lost", low=0.0, high=0.9)
    other_limits: tuple[float, ...] = setting(
        (0.01, 0.1), says="Further allowed losses, for the energy alone", low=0.0, high=0.9
    )
    excursions: float = setting(
        0.3, says="Share of measured runs in which the clock leaves its set value", low=0.0, high=1.0
    )
    switch_s: float = setting(0.02, unit="s", says="Time to set another clock between two phases", low=0, high=60)

    def check(self) -> None:
        """Refuse unknown devices and architectures, limits outside the device's range, and cells that do not fit."""
        table = power_table(self.device)
        for name, given in (("architectures", self.architectures), ("batches", self.batches),
                            ("contexts", self.contexts), ("engines", self.engines)):  # fmt: skip
            if not given:
                raise BadValueError("At least one value is needed.", given="none", where=f"study {self.name}, {name}")
            if len(set(given)) < len(given):
                # A cell that stands twice would count twice in every mean.
                raise BadValueError("A value stands twice.", given=given, allowed="each value once",
                                    where=f"study {self.name}, {name}")  # fmt: skip
        for cap in self.caps:
            table.check_cap(cap, where=f"study {self.name}, caps")
        for cell in self.cells():
            held = architecture(cell.architecture).held_bytes(cell.batch, cell.context + self.output)
            check_fits(held, table, f"{cell.architecture} with {cell.batch} sequences of {cell.context} tokens")

    def cells(self) -> tuple[Cell, ...]:
        """Return the operating points."""
        return tuple(Cell(*each) for each in itertools.product(self.architectures, self.batches, self.contexts))

    def opening(self) -> tuple[str, ...]:
        """Return what is assumed."""
        table = power_table(self.device)
        return (
            f"{len(self.cells())} cells on {self.device}, board limit {table.cap_max_w:g} W; up to "
            f"{self.loss_limit:.0%} of the throughput may be lost.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures: above all how far the power model is from measurements."""
        table, errors = power_table(self.device), np.abs(model_errors(self.device))
        fitted = (
            f"The power model is off by {errors.mean():.1%} on average and by {errors.max():.1%} at most on the "
            f"{len(errors)} loops measured on {self.device}, to which it was fitted."
            if len(errors)
            else f"Nothing was measured on {self.device}."
        )
        return (
            f"No clock was ever set on a real GPU: what a locked clock does is modelled. {table.source}",
            fitted,
            "Where the knee of the voltage lies, and from which clock on the memory is filled, is not known: seeds "
            "draw both from ranges.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Let a policy measure and choose, and take what its choice does from the model."""
        found = Measurements()
        runs = rejected = 0
        benches: dict[str, SimulatedBench] = {}
        every: dict[str, list[tuple[Cell, PhaseSettings, GpuModel]]] = {}
        for engine in self.engines:
            bench = benches[engine] = self.bench(engine, seed, self.loss_limit)
            settings = system.choose(bench)
            every[engine] = [(cell, settings[cell], bench.model) for cell in self.cells()]
            runs, rejected = runs + bench.runs, rejected + bench.rejected
            self._put_engine(found, engine, every[engine])
        rows = [row for engine in self.engines for row in every[engine]]
        for metric, value in self._totals(rows).items():
            found.put(metric, value)
        found.put("runs", runs)
        if runs:
            found.put("rejected_share", rejected / runs)
        for limit in sorted({*self.other_limits} - {self.loss_limit}):
            energies = []
            for engine in self.engines:
                bench = replace(benches[engine], loss_limit=limit)
                settings = system.choose(bench)
                energies += [_decode(cell, settings[cell], bench.model)[0] for cell in self.cells()]
            found.put("energy_share_within", _mean(energies), loss_limit=limit)
        found.put("energy_share_within", _mean([_decode(*row)[0] for row in rows]), loss_limit=self.loss_limit)
        return found

    def bench(self, engine: str, seed: int, loss_limit: float) -> SimulatedBench:
        """Return the bench of one GPU, on which policies measure.

        Parameters
        ----------
        engine : str
            ``captured`` or ``eager``.
        seed : int
        loss_limit : float
        """
        host_s = self.eager_kernel_s if engine == EAGER else 0.0
        return SimulatedBench(
            gpu=SimulatedGpu(model=some_gpu(self.device, seed, host_s_per_kernel=host_s), excursions=self.excursions),
            table=power_table(self.device),
            cells=self.cells(),
            caps_w=tuple(sorted(self.caps, reverse=True)),
            loss_limit=loss_limit,
            harness=Harness(),
            draws=functools.partial(stream, seed, "runs", engine),
        )

    def _totals(self, rows: list[tuple[Cell, PhaseSettings, GpuModel]]) -> dict[str, float]:
        decoded = [_decode(*row) for row in rows]
        requests = [self._request(*row) for row in rows]
        bases = [self._request(cell, PhaseSettings(), gpu) for cell, _, gpu in rows]
        losses = np.array([loss for _, loss in decoded])
        return {
            "decode_energy_share": _mean([energy for energy, _ in decoded]),
            "decode_saved_most": 1 - min(energy for energy, _ in decoded),
            "decode_loss_worst": float(losses.max()),
            "over_limit_share": float(np.mean(losses > self.loss_limit + _TOLERANCE)),
            "request_energy_share": _mean([a[0] / b[0] for a, b in zip(requests, bases, strict=True)]),
            "request_time_share": _mean([a[1] / b[1] for a, b in zip(requests, bases, strict=True)]),
        }

    def _put_engine(self, found: Measurements, engine: str, rows: list[tuple[Cell, PhaseSettings, GpuModel]]) -> None:
        """Put what depends on the engine: power, limits, and each architecture by itself."""
        decoded = [_decode(*row) for row in rows]
        found.put("decode_energy_share", _mean([energy for energy, _ in decoded]), engine=engine)
        found.put("decode_saved_most", 1 - min(energy for energy, _ in decoded), engine=engine)
        found.put("decode_w", max(gpu.run(cell.work(DECODE), given.decode).power_w for cell, given, gpu in rows),
                  engine=engine)  # fmt: skip
        gpu = rows[0][2]
        inert, dominated = limits(gpu, self.cells(), self.caps)
        if not np.isnan(inert):
            # Without a limit below the board's there is nothing to count.
            found.put("caps_inert_share", inert, engine=engine)
            found.put("caps_dominated_share", dominated, engine=engine)
        largest = (max(self.batches), max(self.contexts))
        request = {
            cell.architecture: self._request(cell, given, gpu)[0]
            for cell, given, _ in rows
            if (cell.batch, cell.context) == largest
        }
        for name in self.architectures:
            mine = [energy for (cell, _, _), (energy, _) in zip(rows, decoded, strict=True)
                    if cell.architecture == name]  # fmt: skip
            at = {"architecture": name, "engine": engine}
            found.put("decode_energy_share", _mean(mine), **at)
            slopes = [gpu.clock_slope(cell.work(DECODE)) for cell in self.cells() if cell.architecture == name]
            found.put("clock_slope", max(slopes), **at)
            if "gqa" in request:
                found.put("energy_over_gqa", request[name] / request["gqa"], **at)

    def _request(self, cell: Cell, given: PhaseSettings, gpu: GpuModel) -> tuple[float, float]:
        """Return energy (J) and time (s) of a batch of whole requests."""
        prefill, decode = gpu.run(cell.work(PREFILL), given.prefill), gpu.run(cell.work(DECODE), given.decode)
        switch_s = 2 * self.switch_s if given.prefill != given.decode else 0.0
        energy = prefill.power_w * prefill.time_s + self.output * decode.power_w * decode.time_s
        return (
            energy + gpu.table.idle_w * switch_s,
            prefill.time_s + self.output * decode.time_s + switch_s,
        )


@functools.lru_cache(maxsize=16)
def limits(gpu: GpuModel, cells: tuple[Cell, ...], caps_w: tuple[float, ...]) -> tuple[float, float]:
    """Return which share of power limits does nothing in decode, and which some locked clock is as good as.

    Parameters
    ----------
    gpu : GpuModel
    cells : tuple of Cell
    caps_w : tuple of float
        W; those at the board's own limit are left out.

    Returns
    -------
    (float, float)
        NaN where no limit is given.
    """
    inert, dominated = [], []
    for cell in cells:
        work = cell.work(DECODE)
        clocks = [gpu.run(work, PowerSetting(clock_hz=each)) for each in gpu.table.clocks_hz()]
        for cap in caps_w:
            if cap < gpu.table.cap_max_w:
                capped = gpu.run(work, PowerSetting(cap_w=cap))
                inert.append(gpu.limit_is_inert(work, cap))
                dominated.append(any(dominates(each, capped) for each in clocks))
    return (float(np.mean(inert)), float(np.mean(dominated))) if inert else (np.nan, np.nan)


def model_errors(device: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return predicted over measured power, less one, of every loop that was measured on a device.

    Parameters
    ----------
    device : str
    """
    table = power_table(device)
    return np.array([
        table.power_w(each.clock_hz, bytes_per_s=each.bytes_per_s, flops_per_s=each.flops_per_s) / each.power_w - 1
        for each in measured_power()
        if each.device == device
    ])  # fmt: skip


def _decode(cell: Cell, given: PhaseSettings, gpu: GpuModel) -> tuple[float, float]:
    """Return energy per token over that of a GPU left alone, and the share of the throughput that is lost."""
    work = cell.work(DECODE)
    base, found = gpu.run(work), gpu.run(work, given.decode)
    return found.joules_per_token / base.joules_per_token, 1 - found.tokens_per_s / base.tokens_per_s


def _mean(ratios: list[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))
