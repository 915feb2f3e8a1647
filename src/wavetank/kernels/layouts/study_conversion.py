"""Study ``layout-conversion``: from one layout of a tensor to another, counted on a machine of warps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.kernels.layouts import shapes
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.conversion import Converter, Counts, Plan, UnsupportedPairError
from wavetank.kernels.layouts.families import (
    Blocked,
    MfmaOperand,
    MfmaResult,
    MmaOperand,
    MmaResult,
    Slice,
    WgmmaOperand,
    WgmmaResult,
)
from wavetank.kernels.layouts.figures import Judged, judged_by_kind, metrics_of, planning_s, scrambled
from wavetank.kernels.layouts.rivals import PaddedRows
from wavetank.kernels.layouts.warp_machine import WarpMachine
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Study

KINDS = ("transpose", "operand", "result", "mixed", "amd", "sliced", "reshaped", "random")


class Pair(NamedTuple):
    """One conversion asked for."""

    source: Layout
    target: Layout
    element_bytes: int


def pairs_of(kind: str, side: int, count: int, seed: int) -> list[Pair]:
    """Return the conversions of a kind.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`: transpose (row-owned to column-owned blocks), operand (blocks to operands of a matrix
        product), result (accumulators to rows), mixed (accumulators and blocks to operands of narrower types), amd
        (fragments with 64 lanes), sliced (what reductions leave), reshaped (what shape operators leave), random (any
        bits anywhere).
    side : int
        Of the square tensors, a power of two.
    count : int
        How many random pairs.
    seed : int
        Of the random pairs.
    """
    if kind == "random":
        return list(_random_pairs(count, seed))
    return list(_BUILDERS[kind](side))


def _rows(width: int, warps: int = 4) -> Blocked:
    return Blocked(registers=(1, width), lanes=(4, 8), warps=(warps, 1), order=(1, 0))


def _columns(height: int, warps: int = 4) -> Blocked:
    return Blocked(registers=(height, 1), lanes=(8, 4), warps=(1, warps), order=(0, 1))


def _transposes(side: int) -> Iterator[Pair]:
    for shape in ((side, side), (side, 2 * side)):
        for element_bytes in (1, 2, 4, 8):
            wide = max(16 // element_bytes, 1)
            for width in (1, 4, wide):
                source, target = _rows(width), _columns(width)
                yield Pair(source.layout(shape), target.layout(shape), element_bytes)
                # One warp: the tensor is transposed without leaving it.
                small = (32, 8 * width)
                yield Pair(_rows(width, 1).layout(small), _columns(width, 1).layout(small), element_bytes)


def _operands(side: int) -> Iterator[Pair]:
    for element_bytes in (1, 2, 4):
        for operand in (0, 1):
            for warps in ((2, 2), (4, 1)):
                target = MmaOperand(operand=operand, width=4 // element_bytes, warps=warps)
                for source in (_rows(16 // element_bytes), _columns(16 // element_bytes)):
                    yield Pair(source.layout((side, side)), target.layout((side, side)), element_bytes)


def _results(side: int) -> Iterator[Pair]:
    for element_bytes in (2, 4):
        target = _rows(16 // element_bytes)
        for source in (MmaResult(warps=(2, 2)), MmaResult(warps=(4, 1)), WgmmaResult(warps=(4, 1), columns=32)):
            yield Pair(source.layout((side, side)), target.layout((side, side)), element_bytes)


def _mixed(side: int) -> Iterator[Pair]:
    for element_bytes in (1, 2):
        for width in (2, 4, 8, 16):
            for operand in (0, 1):
                target = MmaOperand(operand=operand, width=width, warps=(2, 2))
                for source in (_rows(16 // element_bytes), MmaResult(warps=(2, 2)), MmaOperand(
                    operand=operand, width=max(width // 2, 1), warps=(2, 2)
                )):  # fmt: skip
                    yield Pair(source.layout((side, side)), target.layout((side, side)), element_bytes)
            group = WgmmaOperand(width=width, warps=(4, 1))
            yield Pair(
                WgmmaResult(warps=(4, 1), columns=32).layout((side, side)), group.layout((side, side)), element_bytes
            )


def _amd(side: int) -> Iterator[Pair]:
    for rows in (16, 32):
        blocks = Blocked(registers=(1, 8), lanes=(8, 8), warps=(4, 1), order=(1, 0)).layout((side, side))
        for transposed in (False, True):
            result = MfmaResult(side=rows, transposed=transposed, warps=(2, 2)).layout((side, side))
            yield Pair(result, blocks, 4)
            for operand in (0, 1):
                fragment = MfmaOperand(operand=operand, side=rows, width=4, warps=(2, 2)).layout((side, side))
                yield Pair(result, fragment, 2)
                yield Pair(blocks, fragment, 2)


def _sliced(side: int) -> Iterator[Pair]:
    parents = (
        _rows(4),
        _columns(4),
        MmaResult(warps=(2, 2)),
        MmaOperand(operand=0, width=2, warps=(2, 2)),
        WgmmaResult(warps=(4, 1), columns=32),
    )
    for source in parents:
        for target in parents:
            for axis in (0, 1):
                yield Pair(
                    Slice(parent=source, axis=axis).layout((side,)),
                    Slice(parent=target, axis=1 - axis).layout((side,)),
                    4,
                )


def _reshaped(side: int) -> Iterator[Pair]:
    for source in (_rows(4), _columns(4), MmaResult(warps=(2, 2))):
        layout = source.layout((side, side))
        goal = _rows(4)
        folded = shapes.reshape(shapes.transpose(shapes.reshape(layout, (side, 4, side // 4)), (1, 0, 2)), (side, side))
        halves = shapes.reshape(shapes.join(layout), (side, 2 * side))
        for element_bytes in (2, 4):
            yield Pair(folded, goal.layout((side, side)), element_bytes)
            yield Pair(shapes.transpose(layout, (1, 0)), goal.layout((side, side)), element_bytes)
            yield Pair(halves, goal.layout((side, 2 * side)), element_bytes)


def _random_pairs(count: int, seed: int) -> Iterator[Pair]:
    rng = stream(seed, "layout-conversion", "random")
    while count:
        registers, warps = int(rng.integers(1, 6)), int(rng.integers(0, 3))
        bits = registers + 5 + warps
        found = [rng.integers(0, 1 << bits, bits).tolist() for _ in range(2)]
        layouts = [
            Layout(
                {"register": each[:registers], "lane": each[registers : registers + 5], "warp": each[registers + 5 :]},
                {"dim0": 1 << bits},
            )
            for each in found
        ]
        if all(each.is_invertible for each in layouts):
            count -= 1
            yield Pair(layouts[0], layouts[1], int(rng.choice([1, 2, 4, 8])))


_BUILDERS = {
    "transpose": _transposes,
    "operand": _operands,
    "result": _results,
    "mixed": _mixed,
    "amd": _amd,
    "sliced": _sliced,
    "reshaped": _reshaped,
}


def executed(machine: WarpMachine, plan: Plan) -> tuple[bool, Counts]:
    """Run a plan on scrambled numbers; return whether every register holds what it should, and what that cost."""
    tensor = scrambled(plan.source, plan.element_bytes)
    found, counts = machine.run(plan, machine.load(tensor, plan.source))
    return bool(np.array_equal(found, machine.load(tensor, plan.target))), counts


@dataclass(frozen=True, kw_only=True)
class LayoutConversion(Study):
    """Every plan is executed on real arrays by a machine of warps, compared with a gather, and counted by its
    addresses: 32 banks of 4 bytes, vectors up to 16 bytes, a shuffle counts as one wavefront for 32 lanes.  Means are
    geometric, over the pairs of a kind; a converter that refuses a pair of a kind has no mean there.
    """

    name = "layout-conversion"
    baseline = "unswizzled-shared"
    primary = "wavefronts"
    secondary = ("instructions", "plan_s")
    cases_by = "kind"
    default_seeds = 3
    # Planning is timed.
    in_process = True
    metrics = metrics_of("pair", "pairs", "converted")
    charts = (
        Chart("bars", "Trips through the crossbar", y="wavefronts", by="kind", log="x",
              says="Fewer is better; a missing bar is a converter that refuses some pair of the kind."),
        Chart("bars", "Pairs converted right", y="correct_share", by="kind",
              says="The share of pairs without a wrong element."),
        Chart("bars", "Time to plan", y="plan_s", by="kind", log="x", says="Per pair, in this process."),
    )  # fmt: skip

    kinds: tuple[str, ...] = setting(KINDS, says="Kinds of conversions", choices=KINDS)
    side: int = setting(64, says="Side of the square tensors", choices=(32, 64, 128))
    random_pairs: int = setting(40, says="Number of random pairs", low=1, high=10_000)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Wavefronts, instructions and bytes are counted on a simulated machine of warps; no GPU is timed.",
            "Every system but linear-layouts-vectors uses matrix instructions (ldmatrix, stmatrix) where they fit.",
        )

    def measure(self, system: Converter, seed: int) -> Measurements:
        """Plan and execute every pair."""
        return judged_by_kind(
            self.kinds,
            lambda kind: [_judged(system, pair) for pair in pairs_of(kind, self.side, self.random_pairs, seed)],
        )


def _judged(system: Converter, pair: Pair) -> Judged:
    machine = WarpMachine(shared_bytes=1 << 24)
    padded = executed(machine, PaddedRows().plan(*pair))[1].wavefronts
    try:
        plan = system.plan(*pair)
        took = planning_s(lambda: system.plan(*pair))
    except UnsupportedPairError:
        return Judged(False, None, math.nan, padded)
    right, counts = executed(machine, plan)
    return Judged(right, counts, took, padded)
