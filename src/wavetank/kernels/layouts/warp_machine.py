"""A machine of warps that executes a conversion on real arrays and counts what it does.

Every thread has registers, the lanes of a warp can read each other's by shuffles, and all warps share a memory of
banks: an instruction is served in phases of lanes that fill one row of banks, and a phase takes as many wavefronts
as the busiest bank has different words. Costs are counted from the addresses themselves, not from the algebra that
planned them.

Source: the shared memory rules of the CUDA programming guide (32 banks of 4 bytes; 8-byte and 16-byte accesses in
halves and quarters of a warp), and "Linear Layouts", arXiv 2505.23819, section 5.

Differs from the source:

1. Time is not modelled: instructions, wavefronts and bytes are.
2. A shuffle costs one wavefront a 32 lanes, as it takes one trip through the same crossbar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.layouts.algebra import Layout, linear_table
from wavetank.kernels.layouts.conversion import Counts, Plan, RegisterMoves, Shuffles, ThroughShared, words_of
from wavetank.kernels.layouts.swizzle import Access, Banks, phase_lane_bits, vector_registers
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class WarpMachine:
    """Executes plans.

    Parameters
    ----------
    shared_bytes : int
        Shared memory of a block; by default that of an H100.
    """

    shared_bytes: int = setting(232_448, unit="bytes", says="shared memory of a block", low=1)

    def load(self, tensor: NDArray[Any], layout: Layout) -> NDArray[Any]:
        """Return what each register holds when ``tensor`` lies in ``layout``.

        Parameters
        ----------
        tensor : ndarray
            Its shape is that of the layout's outputs, in their order.
        layout : Layout

        Returns
        -------
        ndarray, shape (warps, lanes, registers)
        """
        shape = tuple(layout.out_sizes.values())
        if tensor.shape != shape:
            raise BadValueError(
                "The layout is of another tensor.", given=tensor.shape, allowed=str(shape), where="load"
            )
        # Flat outputs count the first dimension fastest, which is Fortran's order.
        return tensor.ravel(order="F")[_elements(layout)]

    def run(self, plan: Plan, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
        """Execute a plan.

        Parameters
        ----------
        plan : Plan
        registers : ndarray, shape (warps, lanes, registers)
            What the source layout holds, of the plan's element size; never modified.

        Returns
        -------
        registers : ndarray, shape (warps, lanes, registers of the target)
        counts : Counts
            Counted from the addresses.

        Raises
        ------
        BadValueError
            For an array of another shape or element size, or a tensor larger than shared memory.
        """
        shape = _shape(plan.source)
        if registers.shape != shape or registers.dtype.itemsize != plan.element_bytes:
            raise BadValueError(
                "The registers are not those of the plan's source.",
                given=f"{registers.shape} of {registers.dtype.itemsize} bytes",
                allowed=f"{shape} of {plan.element_bytes} bytes",
                where="run",
            )
        if isinstance(plan.step, RegisterMoves):
            return _move(plan, plan.step, registers)
        if isinstance(plan.step, Shuffles):
            return _shuffle(plan, plan.step, registers)
        if isinstance(plan.step, ThroughShared):
            return self._through_shared(plan, plan.step, registers)
        return registers.copy(), Counts()

    def _through_shared(self, plan: Plan, step: ThroughShared, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
        size = plan.element_bytes
        last = np.array([(1 << plan.source.out_bits) - 1])
        elements = int((step.padding.places(last) if step.padding else last)[0]) + 1
        if elements * size > self.shared_bytes:
            raise BadValueError(
                "The tensor does not fit into shared memory.",
                given=f"{elements * size} bytes",
                allowed=f"{self.shared_bytes} bytes",
                where="shared_bytes",
                hint="convert the tensor in parts",
            )
        memory = np.zeros(elements, registers.dtype)
        written = np.zeros(elements, bool)
        stored = _kept_registers(plan.source)
        warps, lanes, places = _places(step, step.store)
        memory[places] = registers[np.ix_(warps, lanes, stored)]
        written[places] = True
        stores, before, store_fronts = _count(step.store, places, size, plan.banks, lanes)
        moved = places.size * size
        warps, lanes, places = _places(step, step.load)
        if not written[places].all():
            raise WavetankError("The plan reads from shared memory what was never written.")
        wanted = _kept_registers(plan.target)
        found = np.zeros(_shape(plan.target), registers.dtype)
        found[:, :, wanted] = memory[places]
        # Copies in other registers of the same thread cost nothing: a compiler names the same register twice.
        found = np.take(found, _same_register(plan.target), axis=2)
        loads, after, load_fronts = _count(step.load, places, size, plan.banks, lanes)
        counts = Counts(
            selects=before + after,
            stores=stores,
            loads=loads,
            wavefronts=store_fronts + load_fronts,
            memory_bytes=elements * size,
            moved_bytes=moved + places.size * size,
        )
        return found, counts


def _shape(layout: Layout) -> tuple[int, int, int]:
    sizes = layout.in_sizes
    return sizes.get("warp", 1), sizes.get("lane", 1), sizes.get("register", 1)


def _spread_table(warps: tuple[int, ...], lanes: tuple[int, ...], registers: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the sum of what warp, lane and register lead to, shape (warps, lanes, registers)."""
    one, two, three = linear_table(warps), linear_table(lanes), linear_table(registers)
    return np.asarray(one[:, None, None] ^ two[:, None] ^ three)


def _elements(layout: Layout) -> NDArray[np.int64]:
    return _spread_table(layout.columns_of("warp"), layout.columns_of("lane"), layout.columns_of("register"))


def _kept_registers(layout: Layout) -> NDArray[np.int64]:
    """Return the registers that are not copies, by number."""
    from wavetank.kernels.layouts.bits import independent

    bits = independent(layout.columns_of("register"))
    return linear_table([1 << bit for bit in bits])


def _same_register(layout: Layout) -> NDArray[np.int64]:
    """Return for each register the one that is no copy and holds the same."""
    from wavetank.kernels.layouts.bits import Span

    columns = layout.columns_of("register")
    span = Span(columns)
    return linear_table([span.express(column) or 0 for column in columns])


def _move(plan: Plan, step: RegisterMoves, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
    chosen = _spread_table(step.warps, step.lanes, step.registers)
    found = np.take_along_axis(registers, chosen, axis=2)
    # A register that depends on lane or warp is selected, one select for every factor of two in the choices.
    differing = {int(each) for each in (chosen ^ chosen[0, 0])[:, :, 0].ravel()}
    selects = words_of(plan.target, plan.element_bytes) * (len(differing).bit_length() - 1) * chosen.shape[0]
    return found, Counts(selects=selects)


def _shuffle(plan: Plan, step: Shuffles, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
    table = _spread_table(step.warps, step.lanes, step.registers)
    register = table & ((1 << step.register_bits) - 1)
    lane = table >> step.register_bits & ((1 << step.lane_bits) - 1)
    label = table >> (step.register_bits + step.lane_bits)
    warps, lanes, _ = table.shape
    warp = np.broadcast_to(np.arange(warps)[:, None, None], table.shape)
    reader = np.broadcast_to(np.arange(lanes)[:, None], table.shape)
    number, slot = label >> step.packed_bits, label & ((1 << step.packed_bits) - 1)
    # A lane publishes one word a round: each of its slots comes from one register.
    published = np.full((1 << (step.round_bits - step.packed_bits), warps, lanes, 1 << step.packed_bits), -1)
    published[number, warp, lane, slot] = register
    if not np.array_equal(published[number, warp, lane, slot], register):
        raise WavetankError("The plan lets a lane publish two values in one round.")
    # And a lane reads one other lane a round.
    read = np.full((published.shape[0], warps, lanes), -1)
    read[number, warp, reader] = lane
    if not np.array_equal(read[number, warp, reader], lane):
        raise WavetankError("The plan lets a lane read two lanes in one round.")
    own = np.broadcast_to(np.arange(lanes), read.shape)
    rounds = int(((read != own) & (read >= 0)).any(axis=(1, 2)).sum())
    found = registers[warp, lane, register]
    pieces = max(plan.element_bytes // 4, 1)
    shuffles = rounds * pieces * warps
    words = published.shape[0] * pieces
    selects = words * (step.selects_before + step.selects_after) * warps
    wavefronts = shuffles * max(lanes // plan.banks.banks, 1)
    return found, Counts(selects=selects, shuffles=shuffles, wavefronts=wavefronts)


def _places(step: ThroughShared, access: Access) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return warps and lanes at work, and where each of their registers lies, shape (warps, lanes, registers)."""
    offsets = _spread_table(access.warps, access.lanes, access.registers)
    warps = np.flatnonzero(np.arange(offsets.shape[0]) & access.idle_warps == 0)
    lanes = np.flatnonzero(np.arange(offsets.shape[1]) & access.idle_lanes == 0)
    offsets = offsets[np.ix_(warps, lanes)]
    return warps, lanes, step.padding.places(offsets) if step.padding else offsets


def _count(
    access: Access, places: NDArray[np.int64], element_bytes: int, banks: Banks, lanes: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Return instructions, selects and wavefronts of an access, from its addresses."""
    from wavetank.kernels.layouts.bits import beyond

    vector = vector_registers(access)
    others = beyond(vector, [1 << bit for bit in range(len(access.registers))])
    # Registers in the order in which instructions take them: instruction, then place within the vector.
    order = linear_table([*vector, *others]).reshape(-1, 1 << access.vector_bits)
    found = places[:, :, order]
    starts = found.min(axis=3)
    # Within a vector, a lane's registers may come in an order of its own, and are selected into place.
    within = found - starts[..., None]
    if (np.sort(within, axis=3) != np.arange(order.shape[1])).any():
        raise WavetankError("The plan's vectors do not lie in a row.")
    if (starts * element_bytes % (element_bytes << access.vector_bits)).any():
        raise WavetankError("The plan's vectors are not aligned.")
    orders = len(np.unique(within[:, :, :, 0] ^ within[:1, :1, :, 0]))
    selects = max(places.shape[2] * element_bytes // 4, 1) * (orders.bit_length() - 1) * places.shape[0]
    phase = lanes >> phase_lane_bits(access.vector_bits, element_bytes, banks)
    total = 0
    for each in np.unique(phase):
        words = (starts[:, phase == each, :, None] + np.arange(order.shape[1])) * element_bytes // banks.word_bytes
        words = np.moveaxis(words, 2, 1).reshape(words.shape[0] * words.shape[2], -1)
        wide = max(element_bytes // banks.word_bytes, 1)
        words = (words[..., None] + np.arange(wide)).reshape(words.shape[0], -1)
        words.sort(axis=1)
        fresh = np.ones(words.shape, bool)
        fresh[:, 1:] = words[:, 1:] != words[:, :-1]
        rows = np.broadcast_to(np.arange(words.shape[0])[:, None], words.shape)
        load = np.bincount((rows * banks.banks + words % banks.banks)[fresh], minlength=words.shape[0] * banks.banks)
        total += int(load.reshape(-1, banks.banks).max(axis=1).sum())
    return places.shape[0] * order.shape[0], selects, total
