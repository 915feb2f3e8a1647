"""Study ``layout-gather``: elements picked along an axis by an index, counted on a machine of warps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.conversion import Counts
from wavetank.kernels.layouts.families import Blocked, MmaResult, Slice
from wavetank.kernels.layouts.figures import Judged, judged_by_kind, metrics_of, planning_s, scrambled
from wavetank.kernels.layouts.gather import Gatherer
from wavetank.kernels.layouts.rivals import PaddedRows
from wavetank.kernels.layouts.shapes import expand_dims
from wavetank.kernels.layouts.warp_machine import WarpMachine
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Study

KINDS = ("thread", "lanes", "warp", "fragment", "across", "random")


class Gather(NamedTuple):
    """One gather asked for."""

    source: Layout
    indices: Layout
    axis: str
    element_bytes: int


def gathers_of(kind: str, side: int, count: int, seed: int) -> list[Gather]:
    """Return the gathers of a kind.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`: thread (the axis lies in each thread's registers), lanes (in lanes alone), warp (in lanes
        and registers), fragment (accumulators of matrix units and what reductions leave of them), across (over several
        warps), random (any bits anywhere).
    side : int
        Of the tensors across the axis, a power of two.
    count : int
        How many random gathers.
    seed : int
        Of the random gathers.
    """
    if kind == "random":
        return list(_random_gathers(count, seed))
    return list(_BUILDERS[kind](side))


def _along_rows(length: int, lanes: int, warps: int = 4) -> Blocked:
    """Return a layout of ``length`` rows over ``lanes`` lanes, the rest of which lie along columns."""
    return Blocked(registers=(length // lanes, 1), lanes=(lanes, 32 // lanes), warps=(1, warps), order=(0, 1))


def _thread(side: int) -> Iterator[Gather]:
    for length in (2, 4, 8, 16):
        for element_bytes in (1, 2, 4, 8):
            layout = _along_rows(length, 1).layout((length, 2 * side))
            yield Gather(layout, layout, "dim0", element_bytes)


def _lanes(side: int) -> Iterator[Gather]:
    for length in (2, 4, 8, 16, 32):
        for element_bytes in (1, 2, 4, 8):
            layout = _along_rows(length, length).layout((length, 2 * side))
            yield Gather(layout, layout, "dim0", element_bytes)


def _warp(side: int) -> Iterator[Gather]:
    for length, lanes in ((16, 8), (32, 8), (64, 8), (64, 32), (128, 32), (256, 32)):
        for element_bytes in (1, 2, 4):
            source = _along_rows(length, lanes)
            yield Gather(source.layout((length, side)), source.layout((length, side)), "dim0", element_bytes)
            # Fewer are picked than there are.
            few = _along_rows(lanes, lanes)
            yield Gather(source.layout((length, side)), few.layout((lanes, side)), "dim0", element_bytes)


def _fragment(side: int) -> Iterator[Gather]:
    for warps in ((4, 1), (1, 4)):
        result = MmaResult(warps=warps)
        layout = result.layout((side, side))
        for axis in (0, 1):
            for element_bytes in (2, 4):
                yield Gather(layout, layout, f"dim{axis}", element_bytes)
            column = expand_dims(Slice(parent=result, axis=axis).layout((side,)), axis)
            yield Gather(layout, column, f"dim{axis}", 4)


def _across(side: int) -> Iterator[Gather]:
    rows = Blocked(registers=(1, 4), lanes=(4, 8), warps=(4, 1), order=(1, 0)).layout((side, side))
    columns = Blocked(registers=(4, 1), lanes=(8, 4), warps=(1, 4), order=(0, 1)).layout((side, side))
    for element_bytes in (1, 2, 4, 8):
        yield Gather(rows, rows, "dim0", element_bytes)
        yield Gather(columns, columns, "dim1", element_bytes)
        yield Gather(rows, columns, "dim0", element_bytes)
        yield Gather(rows, columns, "dim1", element_bytes)


def _random_gathers(count: int, seed: int) -> Iterator[Gather]:
    rng = stream(seed, "layout-gather", "random")
    while count:
        registers, warps, axis = int(rng.integers(1, 6)), int(rng.integers(0, 3)), int(rng.integers(0, 2))
        bits = registers + 5 + warps
        low = int(rng.integers(1, min(bits, 7)))
        layouts = []
        for _ in range(2):
            flat = rng.integers(0, 1 << bits, bits).tolist()
            both = [(each & ((1 << low) - 1), each >> low) for each in flat]
            named = {
                "register": both[:registers],
                "lane": both[registers : registers + 5],
                "warp": both[registers + 5 :],
            }
            layouts.append(Layout(named, {"dim0": 1 << low, "dim1": 1 << bits - low}))
        if all(each.is_invertible for each in layouts):
            count -= 1
            yield Gather(layouts[0], layouts[1], f"dim{axis}", int(rng.choice([1, 2, 4, 8])))


_BUILDERS = {"thread": _thread, "lanes": _lanes, "warp": _warp, "fragment": _fragment, "across": _across}


def executed(system: Gatherer, gather: Gather, seed: int) -> tuple[bool, Counts]:
    """Gather scrambled numbers at random places; return whether numpy gathers the same, and what that cost.

    Parameters
    ----------
    system : Gatherer
    gather : Gather
    seed : int
        Of the index.
    """
    machine = WarpMachine(shared_bytes=1 << 24)
    plan = system.plan_gather(*gather)
    sizes, tensor = gather.source.out_sizes, scrambled(gather.source, gather.element_bytes)
    rng = stream(seed, "layout-gather", "index")
    index = rng.integers(0, sizes[gather.axis], tuple(gather.indices.out_sizes.values()))
    found, counts = machine.run_gather(plan, machine.load(tensor, gather.source), machine.load(index, gather.indices))
    wanted = np.take_along_axis(tensor, index, list(sizes).index(gather.axis))
    return bool(np.array_equal(found, machine.load(wanted, gather.indices))), counts


@dataclass(frozen=True, kw_only=True)
class LayoutGather(Study):
    """Every plan is executed on real arrays by a machine of warps with a random index, compared with numpy's
    take_along_axis, and counted by its addresses, as in ``layout-conversion``.
    """

    name = "layout-gather"
    baseline = "unswizzled-shared"
    primary = "wavefronts"
    secondary = ("instructions", "plan_s")
    cases_by = "kind"
    default_seeds = 3
    # Planning is timed.
    in_process = True
    metrics = metrics_of("gather", "gathers", "done")
    charts = (
        Chart("bars", "Trips through the crossbar", y="wavefronts", by="kind", log="x",
              says="Fewer is better; gathers within a thread take none, which counts as one."),
        Chart("bars", "Time to plan", y="plan_s", by="kind", log="x", says="Per gather, in this process."),
    )  # fmt: skip

    kinds: tuple[str, ...] = setting(KINDS, says="Kinds of gathers", choices=KINDS)
    side: int = setting(64, says="Length of the tensors across the axis", choices=(32, 64, 128))
    random_gathers: int = setting(40, says="Number of random gathers", low=1, high=10_000)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return ("Wavefronts and instructions are counted on a simulated machine of warps; no GPU is timed.",)

    def measure(self, system: Gatherer, seed: int) -> Measurements:
        """Plan and execute every gather."""
        return judged_by_kind(
            self.kinds,
            lambda kind: [
                _judged(system, gather, seed) for gather in gathers_of(kind, self.side, self.random_gathers, seed)
            ],
        )


def _judged(system: Gatherer, gather: Gather, seed: int) -> Judged:
    took = planning_s(lambda: system.plan_gather(*gather))
    right, counts = executed(system, gather, seed)
    return Judged(right, counts, took, executed(PaddedRows(), gather, seed)[1].wavefronts)
