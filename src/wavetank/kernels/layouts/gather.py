"""Gathers along one axis of a tensor whose elements lie in registers: out[i, j] = source[index[i, j], j].

Which element a place wants follows from its own coordinates, but for the axis, where the data decides. So the question
whether a thread, or a warp, holds all that it can ever want is one about spaces: the whole axis, and what the places
of the index differ in otherwise, must lie in the span of its registers, or of its registers and lanes. Then registers
are selected, or shuffles fetch each register that may be meant; else the tensor goes through shared memory, placed
such that the axis decides about banks as little as possible.

Source: "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2", Zhou and others,
arXiv 2505.23819, section 5 (gather by warp shuffles).

Differs from the source:

1. A lane publishes a register that depends on its number, which makes the rounds as few as any schedule's that does
   not know the index: the most elements of one lane that one register of the index can ask for.
2. Elements narrower than a word travel together.
3. Shuffles are taken only if memory is not expected to need fewer wavefronts when every index is as likely as any.
4. Memory is placed for the gather: where lanes differ outside the axis, no index makes them meet in a bank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import factorial
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError, WavetankError, unknown_name
from wavetank.kernels.layouts.access import (
    Access,
    Banks,
    Spread,
    access_of,
    phase_lane_bits,
    row_bits,
    spread_of,
    vector_bits_of,
    word_bits,
)
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, avoiding, beyond, combine, completion, rank
from wavetank.kernels.layouts.conversion import (
    REGISTERS,
    SHARED,
    SHUFFLES,
    Counts,
    check_machine,
    memory_of,
    widest_vector,
    with_matrices,
)
from wavetank.kernels.layouts.families import PaddedShared

_SHUFFLE_BYTES = 4


class GatherWithin(NamedTuple):
    """Within a warp: where the source holds each bit of what a place wants.

    A column holds the source's register mask, then its lane mask, then the round in which it is published.

    Attributes
    ----------
    registers, lanes, warps, axis : tuple of int
        For each bit of the index's register, lane and warp, and of the index itself.
    register_bits, lane_bits : int
        Widths of the first two fields.
    packed_bits : int
        Low bits of the round that travel together in one word.
    round_bits : int
        Binary logarithm of the values that one register of the index may ask a lane for.
    chosen_bits : int
        On how many lane bits the register that is published depends.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    axis: tuple[int, ...]
    register_bits: int
    lane_bits: int
    packed_bits: int
    round_bits: int
    chosen_bits: int


class GatherThrough(NamedTuple):
    """Through shared memory: store everything, then load element by element from where the index says.

    Attributes
    ----------
    memory : Layout
        From offsets, in elements, to the tensor.
    padding : PaddedShared or None
        Gaps, if any.
    store : Access
    registers, lanes, warps, axis : tuple of int
        Offsets of each bit of the index's register, lane and warp, and of the index itself.
    """

    memory: Layout
    padding: PaddedShared | None
    store: Access
    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    axis: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """How to gather; :meth:`wavetank.kernels.layouts.WarpMachine.run_gather` executes it.

    Attributes
    ----------
    kind : str
        ``registers``, ``shuffles`` or ``shared memory``.
    source, index : Layout
        Of the tensor, and of the index and the result.
    axis : str
        The dimension along which the index counts.
    element_bytes : int
    banks : Banks
    step : GatherWithin or GatherThrough
    """

    kind: str
    source: Layout
    index: Layout
    axis: str
    element_bytes: int
    banks: Banks
    step: GatherWithin | GatherThrough

    def counts(self) -> Counts:
        """Return what the plan costs whatever the index is.

        Raises
        ------
        WavetankError
            For shared memory: how often banks are met twice depends on the index.
        """
        if isinstance(self.step, GatherThrough):
            raise WavetankError("The conflicts of a gather through memory depend on the index.", hint="execute it")
        return _counts_within(self.step, self.index, self.element_bytes, self.banks)


class Gatherer(Protocol):
    """Plans gathers; the linear planner and its rivals alike."""

    def plan_gather(self, source: Layout, index: Layout, axis: str, element_bytes: int) -> GatherPlan:
        """Return how to gather ``source`` along ``axis`` at what lies in ``index``."""
        ...


def plan_gather(source: Layout, index: Layout, axis: str, element_bytes: int, banks: Banks) -> GatherPlan:
    """Return the cheapest way to gather.

    Parameters
    ----------
    source : Layout
        From registers, lanes and warps to the tensor; every element must be held.
    index : Layout
        From the same lanes and warps to the index, of the tensor's shape but along ``axis``; the result lies alike.
    axis : str
        The dimension along which the index counts.
    element_bytes : int
        1, 2, 4, 8 or 16.
    banks : Banks

    Raises
    ------
    WavetankError
        For an unknown axis, shapes that differ elsewhere, other machines, or missing elements.
    """
    have, want = checked_gather(source, index, axis, element_bytes, banks)

    def planned(kind: str, step: GatherWithin | GatherThrough) -> GatherPlan:
        return GatherPlan(
            kind=kind, source=source, index=index, axis=axis, element_bytes=element_bytes, banks=banks, step=step
        )

    within = within_warp(have, want, element_bytes)
    if within is not None and not _travels(within):
        return planned(REGISTERS, within)
    if within is None:
        return planned(SHARED, _placed(source, have, want, element_bytes, banks)[0])
    shuffled = _counts_within(within, index, element_bytes, banks).wavefronts
    # Memory takes a wavefront for every load at least.
    if shuffled <= 1 << (len(want.registers) + len(want.warps)):
        return planned(SHUFFLES, within)
    through, wavefronts = _placed(source, have, want, element_bytes, banks)
    return planned(SHUFFLES, within) if shuffled <= wavefronts else planned(SHARED, through)


class Wanted(NamedTuple):
    """What the places of an index want of the tensor, flat columns without the axis, and the axis itself.

    Attributes
    ----------
    registers, lanes, warps : tuple of int
        Without the axis; registers without copies of the index.
    axis : tuple of int
        Columns of the tensor's axis.
    kept : tuple of int
        Which register bits of the index ``registers`` are.
    every_register : tuple of int
        With copies.
    idle_lanes : int
        Lane bits that lead to copies of the index.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    axis: tuple[int, ...]
    kept: tuple[int, ...]
    every_register: tuple[int, ...]
    idle_lanes: int


def checked_gather(source: Layout, index: Layout, axis: str, element_bytes: int, banks: Banks) -> tuple[Spread, Wanted]:
    """Return who holds the tensor and what is wanted, or say why the two do not go together."""
    check_machine(source, index, element_bytes, banks, "plan_gather")
    sizes, asked = source.out_sizes, index.out_sizes
    if axis not in sizes:
        raise unknown_name("dimension", axis, sizes, where="axis")
    if list(sizes) != list(asked) or any(size != asked[name] for name, size in sizes.items() if name != axis):
        raise BadValueError(
            "The index has the shape of the tensor but along the axis.",
            given=", ".join(f"{name}: {size}" for name, size in asked.items()),
            allowed=", ".join(f"{name}: {'any' if name == axis else size}" for name, size in sizes.items()),
            where="plan_gather",
        )
    if not source.is_surjective:
        raise BadValueError(
            "The source does not hold every element, and an index may ask for any.",
            given=f"{1 << source.rank} of {1 << source.out_bits} elements",
            where="plan_gather",
        )
    start, places = 0, {}
    for name, size in sizes.items():
        places[name] = start
        start += size.bit_length() - 1

    def elsewhere(column: tuple[int, ...]) -> int:
        flat = 0
        for name, part in zip(sizes, column, strict=True):
            if name != axis:
                flat |= part << places[name]
        return flat

    bases = index.bases
    found = {name: tuple(map(elsewhere, bases.get(name, ()))) for name in ("register", "lane", "warp")}
    whole = spread_of(index)
    along = tuple(1 << places[axis] + bit for bit in range(sizes[axis].bit_length() - 1))
    registers = tuple(found["register"][bit] for bit in whole.kept)
    want = Wanted(registers, found["lane"], found["warp"], along, whole.kept, found["register"], whole.idle_lanes)
    return spread_of(source), want


def through_memory(
    source: Layout,
    index: Layout,
    axis: str,
    element_bytes: int,
    memory: Layout,
    padding: PaddedShared | None,
    banks: Banks,
) -> GatherPlan:
    """Return the plan of a gather through memory that is laid out as given; rivals are built on it."""
    have, want = checked_gather(source, index, axis, element_bytes, banks)
    width = vector_bits_of(memory.columns, have, widest_vector(padding, element_bytes, banks))
    sides = _sides(memory.columns, padding, have, want, width, element_bytes, banks)
    step = GatherThrough(memory, padding, *sides)
    return GatherPlan(
        kind=SHARED, source=source, index=index, axis=axis, element_bytes=element_bytes, banks=banks, step=step
    )


def _travels(step: GatherWithin) -> bool:
    """Return whether any lane may read another one."""
    own = (column ^ 1 << step.register_bits + bit for bit, column in enumerate(step.lanes))
    lanes = (1 << step.lane_bits) - 1
    return any(column >> step.register_bits & lanes for column in (*step.registers, *own, *step.warps, *step.axis))


def _counts_within(step: GatherWithin, index: Layout, element_bytes: int, banks: Banks) -> Counts:
    warps = index.in_sizes.get("warp", 1)
    pieces = max(element_bytes // _SHUFFLE_BYTES, 1)
    asked = 1 << rank(index.columns_of("register"))
    rounds = 1 << (step.round_bits - step.packed_bits)
    lanes = max(index.in_sizes.get("lane", 1) // banks.banks, 1)
    if not _travels(step):
        # One select for every register that may be meant, but the first.
        return Counts(selects=asked * ((1 << step.round_bits) - 1) * pieces * warps)
    shuffles = asked * rounds * pieces * warps
    # Before: which register a lane publishes. After: whether this round's word is the one, and which part of it.
    after = asked * (rounds - 1 + step.packed_bits) * pieces * warps
    before = shuffles * step.chosen_bits
    return Counts(selects=before + after, shuffles=shuffles, wavefronts=shuffles * lanes)


def within_warp(have: Spread, want: Wanted, element_bytes: int) -> GatherWithin | None:
    """Return how a warp gathers from its own registers, or None when it may want what another one holds."""
    # Registers first: of copies, those in the own thread are found.
    size = len(have.registers)
    span = Span((*have.registers, *have.lanes))

    def held(column: int) -> int | None:
        mask = span.express(column)
        if mask is None:
            return None
        register = sum(1 << bit for place, bit in enumerate(have.kept) if mask >> place & 1)
        return register | mask >> size << width

    width = max(have.kept, default=-1) + 1
    lanes = [column ^ own for column, own in zip(want.lanes, have.lanes, strict=True)]
    shifts = [column ^ own for column, own in zip(want.warps, have.warps, strict=True)]
    found = []
    for columns in (want.every_register, lanes, shifts, want.axis):
        masks = [held(column) for column in columns]
        if None in masks:
            return None
        found.append([mask for mask in masks if mask is not None])
    # A lane reads relative to itself: its own number is added back.
    found[1] = [mask ^ 1 << width + bit for bit, mask in enumerate(found[1])]
    return _in_rounds(found, width, len(have.lanes), element_bytes)


def _in_rounds(found: list[list[int]], width: int, lane_bits: int, element_bytes: int) -> GatherWithin:
    """Return the columns with the round in which each value is published.

    Over all lanes and indices, one register of the index asks for a space of pairs of register and lane. The registers
    that it asks of one and the same lane need a round each; that a lane publishes another register than its neighbour
    costs a select.
    """
    within = (1 << width) - 1
    by_lane, leads, alone = Span(), [], []
    for pair in (*found[3], *found[1]):
        mask = by_lane.express(pair >> width)
        if mask is None:
            by_lane.add(pair >> width)
            leads.append(pair)
        else:
            alone.append(pair ^ combine(leads, mask))
    rounds = beyond([], alone)
    count = len(rounds)
    # What a lane publishes depends on its number as little as the rounds allow.
    split = Span((*rounds, *completion(rounds, width)))
    shared = (1 << count) - 1
    leads = [pair ^ combine(rounds, (split.express(pair & within) or 0) & shared) for pair in leads]
    coordinates = Span((*rounds, *leads))

    def numbered(pair: int) -> int:
        return pair | ((coordinates.express(pair) or 0) & shared) << (width + lane_bits)

    return GatherWithin(
        registers=tuple(found[0]),
        lanes=tuple(map(numbered, found[1])),
        warps=tuple(found[2]),
        axis=tuple(map(numbered, found[3])),
        register_bits=width,
        lane_bits=lane_bits,
        packed_bits=min(count, max(_SHUFFLE_BYTES // element_bytes, 1).bit_length() - 1),
        round_bits=count,
        chosen_bits=rank(pair & within for pair in leads),
    )


class _Sides(NamedTuple):
    """How a placement is written, and where in it each bit of what is wanted leads."""

    store: Access
    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    axis: tuple[int, ...]


def _sides(
    basis: tuple[int, ...],
    padding: PaddedShared | None,
    have: Spread,
    want: Wanted,
    width: int,
    element_bytes: int,
    banks: Banks,
) -> _Sides:
    span = Span(basis)
    store = with_matrices(access_of(span, have, width, storing=True), True, padding, element_bytes, banks)
    registers, lanes, warps, axis = (
        tuple(span.express(column) or 0 for column in columns)
        for columns in (want.registers, want.lanes, want.warps, want.axis)
    )
    return _Sides(store, registers, lanes, warps, axis)


def _placed(
    source: Layout, have: Spread, want: Wanted, element_bytes: int, banks: Banks
) -> tuple[GatherThrough, float]:
    """Return the placement with the fewest wavefronts to be expected, and how many these are."""
    dimension = source.out_bits
    widest = widest_vector(None, element_bytes, banks)
    word, row = word_bits(element_bytes, banks), min(row_bits(element_bytes, banks), dimension)
    reading = want.lanes[: phase_lane_bits(0, element_bytes, banks)]
    units = [1 << bit for bit in range(dimension)]
    found: tuple[float, tuple[int, ...], _Sides] | None = None
    for start in ([], list(have.registers[:widest])):
        width = len(start)
        first = [*start, *beyond(start, [*reading, *have.lanes, *units])[: max(word - width, 0)]]
        at_once = beyond([], [*have.lanes[: phase_lane_bits(width, element_bytes, banks)], *first[: max(word, width)]])
        apart = beyond([], [*first[:word], *reading])
        # Indices decide about the banks that lanes leave free, or about none; and stores may meet or not.
        spread = [*apart, *beyond(apart, want.axis)[: max(row - len(apart), 0)]]
        for asked in {tuple(spread): spread, tuple(apart): apart}.values():
            for written in {tuple(at_once): at_once, tuple(first): first}.values():
                segment = avoiding(written, asked, dimension, dimension - row, prefer=want.axis)
                basis = (*first, *beyond([*first, *segment], [*reading, *want.axis, *units]), *segment)
                sides = _sides(basis, None, have, want, width, element_bytes, banks)
                cost = sides.store.wavefronts(element_bytes, banks) + _expected(sides, want, element_bytes, banks)
                if found is None or cost < found[0]:
                    found = cost, basis, sides
    if found is None:
        raise WavetankError("There is no placement.")
    cost, basis, sides = found
    return GatherThrough(memory_of(basis, source), None, *sides), cost


def _expected(step: _Sides, want: Wanted, element_bytes: int, banks: Banks) -> float:
    """Return the wavefronts of all loads when every index is as likely as any other.

    Lanes whose banks differ whatever the index is are groups; within a group, banks follow from the indices.
    """
    at_once = phase_lane_bits(0, element_bytes, banks)
    word, row = word_bits(element_bytes, banks), row_bits(element_bytes, banks)
    lanes = step.lanes[:at_once]
    busy = len(lanes) - (want.idle_lanes & ((1 << at_once) - 1)).bit_count()
    low = (1 << row) - (1 << word)
    banks_of_axis = rank(column & low for column in step.axis)
    groups = rank(column & low for column in (*step.axis, *lanes)) - banks_of_axis
    words = rank(column >> word for column in (*step.axis, *lanes))
    each = min(1 << (busy - min(groups, busy)), 1 << (words - groups))
    phases = 1 << (len(step.registers) + len(step.warps) + len(step.lanes) - len(lanes))
    return phases * _fullest(each, 1 << banks_of_axis, 1 << groups)


@lru_cache(maxsize=1024)
def _fullest(balls: int, bins: int, groups: int) -> float:
    """Return the expected largest load when each of several groups throws its balls into its own bins."""
    total = 0.0
    for most in range(balls):
        # balls! / bins**balls times the coefficient of x**balls in (sum of x**j / j! for j up to most) ** bins.
        power = [1.0] + [0.0] * balls
        for _ in range(bins):
            power = [
                sum(power[place - j] / factorial(j) for j in range(min(most, place) + 1)) for place in range(balls + 1)
            ]
        total += 1.0 - (power[balls] * factorial(balls) / bins**balls) ** groups
    return total
