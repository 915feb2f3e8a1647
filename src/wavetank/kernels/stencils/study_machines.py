"""Study ``stencil-machines``: stencils on machines that are not here, executed on arrays and timed by models."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.gpu_bound import GpuBound
from wavetank.kernels.stencils.pattern import STENCILS, Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.sweep import StencilSweep
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_mesh import simulate_mesh
from wavetank.kernels.stencils.wormhole import Breakdown, WormholeStencil
from wavetank.machine.limits import require_memory
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study

FIVE_POINT = "star-1"
LARGEST = "any"
"""In the place of a stencil: the largest ratio over all of them."""
_CPU = "plain-sweep"
_GPU = "convstencil-a100"
_CHECKED_STEPS = 3
# An 8 x 8 mesh of small tiles, and a grid that no tile of 32 x 32 divides.
_MESH, _MESH_TILE = 8, 9
_CARD_GRID = (70, 101)
_INTENSITIES = tuple(2.0**power for power in range(-6, 9))


@dataclass(frozen=True, kw_only=True)
class StencilMachines(Study):
    """Modelled seconds are no measurements: no such machine is here.  What is real: every mapping is executed on arrays
    and compared with the plain sweep, the words on the wafer's mesh are simulated one by one on a small mesh, and the
    host's part of the card's account is run and timed, in turn with the plain sweep of this machine's processor.
    """

    name = "stencil-machines"
    baseline = "a100-roofline"
    primary = "updates_per_s"
    secondary = ("share_of_roofline", "energy_over_processor")
    cases_by = "stencil"
    default_seeds = 3
    in_process = True
    metrics = (
        Metric("updates_per_s", "", "higher", "modelled",
               "cell updates / modelled seconds; the wafer on its largest grid, the card end to end on the largest "
               "side with the host's part measured here, the GPU at its roofline"),
        Metric("share_of_roofline", "", "higher", "modelled",
               "modelled updates per second / those at the machine's roofline; the card's is that of its "
               "memory and one read and one write per cell", words="of the roofline's speed"),
        Metric("measured_updates_per_s", "", "higher", "measured", "cell updates / seconds, on this machine's cores"),
        Metric("time_over_processor", "", "lower", "modelled",
               "modelled seconds per update / measured seconds of the plain sweep on this machine; not a "
               "ratio of two measurements"),
        Metric("kernel_over_processor", "", "lower", "modelled",
               "modelled seconds of the card's kernel alone / measured seconds of the plain sweep"),
        Metric("free_link_over_processor", "", "lower", "modelled",
               "as time_over_processor with an infinitely fast link and no start-up", table=False),
        Metric("energy_over_processor", "", "lower", "modelled",
               "joules of card and processor in the modelled run / joules of the processor sweeping alone",
               words="energy"),
        Metric("card_energy_over_processor", "", "lower", "modelled",
               "joules of the card alone / joules of the processor sweeping alone", table=False),
        Metric("energy_crossing_side", "", "lower", "modelled",
               "side from which the run takes less energy than the processor's, from the costs at the largest side; "
               "absent where there is none", table=False),
        Metric("card_energy_crossing_side", "", "lower", "modelled",
               "the same for the energy of the card alone", table=False),
        Metric("over_convstencil", "", "higher", "modelled",
               "modelled updates per second / those of convstencil-a100 at its roofline", table=False),
        Metric("part_s", "s", "lower", "modelled",
               "seconds of one entry of the account on the largest side; the host's two are measured times turns",
               table=False),
        Metric("host_s", "s", "lower", "measured", "packing and unpacking the tiles of one sweep, median", table=False),
        Metric("sweep_s", "s", "lower", "measured", "one plain sweep, in turn with the host's part, median",
               table=False),
        Metric("words_per_update", "", "lower", "counted", "words over the mesh / cells, executed", table=False),
        Metric("link_bytes_per_update", "bytes", "lower", "counted", "bytes over the link both ways / cell, one sweep",
               table=False),
        Metric("executed_error", "", "lower", "counted",
               "largest relative difference of the executed mapping from the plain float32 sweep after 3 steps on data "
               "from 1 to 2", table=False),
        Metric("mesh_cycles_ratio", "", "lower", "simulated",
               "cycles of the simulated 8 x 8 mesh, word by word / cycles in closed form", table=False),
        Metric("flops_per_s", "", "higher", "modelled", "roofline: min(peak, bandwidth x operations per byte)",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time by component", y="part_s", by="part", log="x",
              says="The card's account for the five-point stencil on the largest side, modelled; the host's part is "
              "measured."),
        Chart("sweep", "Rooflines", y="flops_per_s", by="flops_per_byte", log="xy",
              says="Where a line bends, memory stops and arithmetic begins to bind."),
        Chart("bars", "Share of the roofline", y="share_of_roofline", by="stencil",
              says="The wafer computes nearly all the time; the card waits for its host and its link."),
        Chart("bars", "Cell updates per second", y="updates_per_s", by="stencil", log="x",
              says="Modelled for every machine that is not here."),
        Chart("sweep", "Time over the time of the processor", y="time_over_processor", by="side", log="xy",
              says="Above 1 the processor is faster end to end; small grids pay for starting the card."),
        Chart("sweep", "Energy over the energy of the processor", y="energy_over_processor", by="side", log="xy",
              says="Below 1 the card and its host together take less energy than the processor by itself."),
        Chart("sweep", "Energy of the card alone", y="card_energy_over_processor", by="side", log="xy",
              says="The same with the host left out of the account."),
    )  # fmt: skip

    stencils: tuple[str, ...] = setting(
        tuple(f"{shape}-{radius}" for shape in ("star", "box") for radius in (1, 2, 3, 4)),
        says="Stencils for wafer, GPU and processor; the card computes star-1",
        choices=tuple(STENCILS),
    )
    sides: tuple[int, ...] = setting((1024, 2048, 4096, 8192), unit="cells", says="Sides of the card's square grids",
                                     low=32, high=32_768)  # fmt: skip
    steps: int = setting(100, says="Sweeps per run of the card", low=1, high=10_000_000)
    rounds: int = setting(5, says="Timed calls after a warm-up", low=1, high=1000)
    threads: int = setting(0, says="Threads of the processor; 0 for all cores", low=0, high=1024)

    def check(self) -> None:
        """Refuse grids that do not fit the memory."""
        if not self.sides:
            raise BadValueError(
                "Without a value of this setting there is nothing to run.", given="", where=f"study {self.name}, sides"
            )
        side = max(self.sides)
        require_memory(5 * 4 * side * side, f"Sweeping a grid of {side:,} x {side:,} cells")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Wafer, GPU, link and card are modelled; nothing ran on them.",
            "The GPU is at its roofline, which no program reaches.",
            "The processor's watts are those of a whole package, whatever part of it this machine is.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Return the figures of one machine."""
        if isinstance(system, WaferStencil):
            return self._wafer(system, seed)
        if isinstance(system, GpuBound):
            return self._gpu(system)
        if isinstance(system, WormholeStencil):
            return self._card(system, seed)
        return self._processor(system, seed)

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return the ratios between wafer, GPU and processor, once both sides of each are there."""
        known = {(record.system, record.seed, record.metric, str(record.at)) for record in records}
        rates = {
            (record.system, record.seed, record.at["stencil"]): record.value
            for record in records
            if record.metric in ("updates_per_s", "measured_updates_per_s") and "stencil" in record.at
        }
        concluded: list[Record] = []
        for name in dict.fromkeys(system for system, _, _ in rates):
            for seed in sorted({seed for system, seed, _ in rates if system == name}):
                found = Measurements()
                over = []
                for at in self.stencils:
                    rate = rates.get((name, seed, at), math.nan)
                    ratio = rate / rates.get((_GPU, seed, at), math.nan)
                    if name.startswith("stencil-wse") and not math.isnan(ratio):
                        found.put("over_convstencil", ratio, stencil=at)
                        over.append(ratio)
                    ratio = rates.get((_CPU, seed, at), math.nan) / rate
                    if not name.startswith(("wormhole", "stencil-wormhole", _CPU)) and not math.isnan(ratio):
                        found.put("time_over_processor", ratio, stencil=at)
                if over and len(over) == len(self.stencils):
                    found.put("over_convstencil", max(over), stencil=LARGEST)
                concluded += self.stamp(name, seed, found)
        return [each for each in concluded if (each.system, each.seed, each.metric, str(each.at)) not in known]

    def _wafer(self, wafer: WaferStencil, seed: int) -> Measurements:
        found = Measurements()
        _roofline(found, wafer.peak_flops_per_s, wafer.memory_bytes_per_s)
        for name in self.stencils:
            pattern = Stencil.named(name)
            tiling = wafer.plan(*wafer.largest_grid(pattern), pattern)
            rate = wafer.modelled_updates_per_s(tiling, pattern)
            found.put("updates_per_s", rate, stencil=name)
            found.put("share_of_roofline", rate / wafer.bound_updates_per_s(pattern), stencil=name)
            side = _MESH * _MESH_TILE
            small = replace(wafer, mesh_rows=_MESH, mesh_columns=_MESH)
            grid = _grid((side, side), seed)
            run = small.run(grid, pattern, _CHECKED_STEPS)
            words = run.traffic.words / (_CHECKED_STEPS * grid.size)
            found.put("words_per_update", words, stencil=name)
            found.put("executed_error", _error(run.grid, grid, pattern), stencil=name)
            mesh = simulate_mesh(small, grid, pattern, _CHECKED_STEPS)
            found.put("mesh_cycles_ratio", mesh.cycles / run.cycles if run.cycles else 1.0, stencil=name)
        return found

    def _gpu(self, gpu: GpuBound) -> Measurements:
        found = Measurements()
        _roofline(found, gpu.peak_flops_per_s(), gpu.memory_bytes_per_s)
        for name in self.stencils:
            found.put("updates_per_s", gpu.bound_updates_per_s(Stencil.named(name)), stencil=name)
        return found

    def _processor(self, sweep: Any, seed: int) -> Measurements:
        found = Measurements()
        side = max(self.sides)
        grid = _grid((side, side), seed)
        for name in self.stencils:
            call = sweep.prepare(grid, Stencil.named(name), 1, "dirichlet")
            (took,) = self._in_turn(call)
            found.put("measured_updates_per_s", grid.size / took, stencil=name)
        return found

    def _card(self, card: WormholeStencil, seed: int) -> Measurements:
        found = Measurements()
        pattern = Stencil.named(FIVE_POINT)
        # Peak and bandwidth of the card: element by element for Axpy, tile products otherwise.
        elementwise = card.mapping == "axpy"
        tile_flops = 2.0 * 32**2 if elementwise else 2.0 * 32**3
        cycles = card.elementwise_cycles if elementwise else card.product_cycles
        _roofline(found, card.cores * card.clock_per_s * tile_flops / cycles, card.memory_bytes_per_s)
        checked = _grid(_CARD_GRID, seed)
        found.put(
            "executed_error",
            _error(card.sweep(checked, pattern, _CHECKED_STEPS), checked, pattern),
            stencil=FIVE_POINT,
        )
        for side in self.sides:
            self._card_on(card, pattern, side, seed, found)
        return found

    def _card_on(self, card: WormholeStencil, pattern: Stencil, side: int, seed: int, found: Measurements) -> None:
        grid = _grid((side, side), seed)
        host = card.host(grid, pattern, self.threads)
        sweep = StencilSweep(threads=self.threads, depth=1).prepare(grid, pattern, 1, "dirichlet")
        pack_s, unpack_s, sweep_s = self._in_turn(host.pack, host.unpack, sweep)
        spent = card.breakdown(side, side, pattern, self.steps, pack_s=pack_s, unpack_s=unpack_s)
        free = replace(card, link_bytes_per_s=math.inf, start_s=0.0).breakdown(
            side, side, pattern, self.steps, pack_s=pack_s, unpack_s=unpack_s
        )
        alone_s = self.steps * sweep_s
        ratios = {
            "time_over_processor": spent.total_s / alone_s,
            "kernel_over_processor": spent.kernel_s / alone_s,
            "free_link_over_processor": free.total_s / alone_s,
            "energy_over_processor": card.energy_joules(spent) / card.processor_joules(alone_s),
            "card_energy_over_processor": card.card_joules(spent) / card.processor_joules(alone_s),
        }
        for metric, value in ratios.items():
            found.put(metric, value, side=float(side))
        found.put("host_s", pack_s + unpack_s, side=float(side))
        found.put("sweep_s", sweep_s, side=float(side))
        if side != max(self.sides):
            return
        rate = self.steps * grid.size / spent.total_s
        found.put("updates_per_s", rate, stencil=FIVE_POINT)
        found.put("share_of_roofline", rate / (card.memory_bytes_per_s / 4.0), stencil=FIVE_POINT)
        for metric, value in ratios.items():
            found.put(metric, value, stencil=FIVE_POINT)
        link = card.link_bytes(side, side, pattern)
        found.put("link_bytes_per_update", (link.sweep_sent + link.sweep_received) / grid.size, stencil=FIVE_POINT)
        for part, seconds in zip(Breakdown._fields, spent, strict=True):
            found.put("part_s", seconds, part=part.removesuffix("_s"))
        for metric, joules in (
            ("energy_crossing_side", card.energy_joules),
            ("card_energy_crossing_side", card.card_joules),
        ):
            crossing = crossing_side(
                fixed_joules=joules(spent._replace(pack_s=0, send_s=0, kernel_s=0, receive_s=0, unpack_s=0)),
                card_joules=joules(spent),
                processor_joules=card.processor_joules(alone_s),
                side=side,
            )
            if not math.isnan(crossing):
                found.put(metric, crossing, stencil=FIVE_POINT)

    def _in_turn(self, *calls: Callable[[], object]) -> list[float]:
        """Return the median seconds of each call; they run A B C A B C after a warm-up."""
        for call in calls:
            call()
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(self.rounds):
            for kept, call in zip(times, calls, strict=True):
                start = time.perf_counter()
                call()
                kept.append(time.perf_counter() - start)
        return [statistics.median(kept) for kept in times]


def crossing_side(*, fixed_joules: float, card_joules: float, processor_joules: float, side: int) -> float:
    """Return the side of the square grid at which both runs take the same energy; NaN where none does.

    What does not depend on the grid is paid once; all else grows with its cells.

    Parameters
    ----------
    fixed_joules : float
        Of the card's run, whatever the grid.
    card_joules, processor_joules : float
        Of both runs on a grid of ``side``.
    side : int
    """
    saved = processor_joules - (card_joules - fixed_joules)
    return side * math.sqrt(fixed_joules / saved) if saved > 0 else math.nan


def _roofline(found: Measurements, peak_flops_per_s: float, memory_bytes_per_s: float) -> None:
    for intensity in _INTENSITIES:
        found.put("flops_per_s", min(peak_flops_per_s, memory_bytes_per_s * intensity), flops_per_byte=intensity)


def _grid(shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    grid = stream(seed, "stencil-machines").random(shape, np.float32)
    grid += 1.0
    return grid


def _error(result: NDArray[Any], grid: NDArray[Any], pattern: Stencil) -> float:
    expected = reference_sweep(grid, pattern, _CHECKED_STEPS)
    return float(np.max(np.abs(result - expected) / np.abs(expected)))
