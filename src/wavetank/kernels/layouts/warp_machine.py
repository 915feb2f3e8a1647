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
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.layouts.access import MATRICES, VECTORS, Access, Banks, phase_lane_bits, vector_registers
from wavetank.kernels.layouts.algebra import Layout, linear_table
from wavetank.kernels.layouts.bits import Span, beyond, combine, independent
from wavetank.kernels.layouts.conversion import Counts, Plan, RegisterMoves, Shuffles, ThroughShared, words_of
from wavetank.kernels.layouts.families import PaddedShared
from wavetank.kernels.layouts.gather import GatherPlan, GatherThrough, GatherWithin
from wavetank.kernels.layouts.matrices import LANES, MOST_MATRICES, ROW_BYTES, WORD_BYTES
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class WarpMachine:
    """Executes plans."""

    shared_bytes: int = setting(232_448, unit="bytes", says="Shared memory per block", low=1)

    def load(self, tensor: ArrayLike, layout: Layout) -> NDArray[Any]:
        """Return what each register holds when ``tensor`` lies in ``layout``.

        Parameters
        ----------
        tensor : array or torch tensor on the CPU
            Its shape is that of the layout's outputs, in their order.
        layout : Layout

        Returns
        -------
        ndarray, shape (warps, lanes, registers)
        """
        tensor = np.asarray(tensor)
        shape = tuple(layout.out_sizes.values())
        if tensor.shape != shape:
            raise BadValueError(
                "The layout is of another tensor.", given=tensor.shape, allowed=str(shape), where="load"
            )
        # Flat outputs count the first dimension fastest, which is Fortran's order.
        return tensor.ravel(order="F")[_elements(layout)]

    def run(self, plan: Plan, registers: ArrayLike) -> tuple[NDArray[Any], Counts]:
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
        registers = _checked_registers(plan.source, plan.element_bytes, registers)
        if isinstance(plan.step, RegisterMoves):
            return _move(plan, plan.step, registers)
        if isinstance(plan.step, Shuffles):
            return _shuffle(plan, plan.step, registers)
        if isinstance(plan.step, ThroughShared):
            return self._through_shared(plan, plan.step, registers)
        return registers.copy(), Counts()

    def run_gather(self, plan: GatherPlan, registers: ArrayLike, index: ArrayLike) -> tuple[NDArray[Any], Counts]:
        """Execute a gather.

        Parameters
        ----------
        plan : GatherPlan
        registers : ndarray, shape (warps, lanes, registers)
            What the source layout holds, of the plan's element size; never modified.
        index : ndarray of whole numbers, shape (warps, lanes, registers of the index)
            What the index layout holds: from 0 to the size of the axis, less 1.

        Returns
        -------
        registers : ndarray, shape (warps, lanes, registers of the index)
        counts : Counts
            Counted from the addresses.

        Raises
        ------
        BadValueError
            For arrays of another shape, element size or kind, an index out of range, or a tensor larger than shared
            memory.
        """
        registers, index = _checked_registers(plan.source, plan.element_bytes, registers), np.asarray(index)
        shape, size = _shape(plan.index), plan.source.out_sizes[plan.axis]
        if index.shape != shape or index.dtype.kind not in "iu":
            raise BadValueError(
                "The index is not that of the plan.",
                given=f"{index.shape} of {index.dtype}",
                allowed=f"{shape} of whole numbers",
                where="index",
            )
        outside = (index < 0) | (index >= size)
        if outside.any():
            warp, lane, register = (int(each[0]) for each in np.nonzero(outside))
            raise BadValueError(
                "The index leads out of the tensor.",
                given=int(index[warp, lane, register]),
                allowed=f"0 to {size - 1}",
                where=f"index of warp {warp}, lane {lane}, register {register}",
            )
        # Registers that hold copies of the index get copies of what was gathered.
        kept = _kept_registers(plan.index)
        wanted = np.asarray(index[:, :, kept], np.int64)
        if isinstance(plan.step, GatherWithin):
            found, counts = _gather_within(plan, plan.step, registers, wanted, kept)
        else:
            found, counts = self._gather_through(plan, plan.step, registers, wanted)
        whole = np.zeros(shape, registers.dtype)
        whole[:, :, kept] = found
        return np.take(whole, _same_register(plan.index), axis=2), counts

    def _gather_through(
        self, plan: GatherPlan, step: GatherThrough, registers: NDArray[Any], index: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Counts]:
        size = plan.element_bytes
        memory, written, stored = self._stored(plan.source, step.padding, step.store, registers, plan.banks)
        places = _spread_table(step.warps, step.lanes, step.registers) ^ linear_table(step.axis)[index]
        places = step.padding.places(places) if step.padding else places
        if not written[places].all():
            raise WavetankError("The plan reads from shared memory what was never written.")
        warps, lanes, asked = places.shape
        phase = min(1 << phase_lane_bits(0, size, plan.banks), lanes)
        loads = places.transpose(0, 2, 1).reshape(-1, phase)
        return memory[places], stored._replace(
            loads=warps * asked,
            wavefronts=stored.wavefronts + _wavefronts(loads, size, plan.banks),
            moved_bytes=stored.moved_bytes + places.size * size,
        )

    def _through_shared(self, plan: Plan, step: ThroughShared, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
        size = plan.element_bytes
        memory, written, stored = self._stored(plan.source, step.padding, step.store, registers, plan.banks)
        warps, lanes, places = _places(step.padding, step.load)
        rows = places if step.load.way == VECTORS else _rows_of_matrices(step.padding, step.load, warps, size)
        if not written[rows].all():
            raise WavetankError("The plan reads from shared memory what was never written.")
        wanted = _kept_registers(plan.target)
        found = np.zeros(_shape(plan.target), registers.dtype)
        found[:, :, wanted] = memory[rows] if step.load.way == VECTORS else _out_of_rows(memory[rows], step.load)
        # Copies in other registers of the same thread cost nothing: a compiler names the same register twice.
        found = np.take(found, _same_register(plan.target), axis=2)
        loads, selects, wavefronts = _count(step.padding, step.load, places, size, plan.banks, lanes)
        return found, stored._replace(
            selects=stored.selects + selects,
            loads=loads,
            wavefronts=stored.wavefronts + wavefronts,
            moved_bytes=stored.moved_bytes + places.size * size,
        )

    def _stored(
        self, source: Layout, padding: PaddedShared | None, store: Access, registers: NDArray[Any], banks: Banks
    ) -> tuple[NDArray[Any], NDArray[np.bool_], Counts]:
        """Return the memory once all is stored, which of its elements were written, and what that cost."""
        size = registers.dtype.itemsize
        last = np.array([(1 << source.out_bits) - 1])
        elements = int((padding.places(last) if padding else last)[0]) + 1
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
        warps, lanes, places = _places(padding, store)
        held = registers[np.ix_(warps, lanes, _kept_registers(source))]
        if store.way == VECTORS:
            rows = places
        else:
            rows, held = _rows_of_matrices(padding, store, warps, size), _into_rows(held, store)
        memory[rows] = held
        written[rows] = True
        stores, selects, wavefronts = _count(padding, store, places, size, banks, lanes)
        counts = Counts(
            selects=selects,
            stores=stores,
            wavefronts=wavefronts,
            memory_bytes=elements * size,
            moved_bytes=places.size * size,
        )
        return memory, written, counts


def _shape(layout: Layout) -> tuple[int, int, int]:
    sizes = layout.in_sizes
    return sizes.get("warp", 1), sizes.get("lane", 1), sizes.get("register", 1)


def _checked_registers(source: Layout, element_bytes: int, registers: ArrayLike) -> NDArray[Any]:
    registers = np.asarray(registers)
    shape = _shape(source)
    if registers.shape != shape or registers.dtype.itemsize != element_bytes:
        raise BadValueError(
            "The registers are not those of the plan's source.",
            given=f"{registers.shape} of {registers.dtype.itemsize} bytes",
            allowed=f"{shape} of {element_bytes} bytes",
            where="run",
        )
    return registers


def _spread_table(warps: tuple[int, ...], lanes: tuple[int, ...], registers: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the sum of what warp, lane and register lead to, shape (warps, lanes, registers)."""
    one, two, three = linear_table(warps), linear_table(lanes), linear_table(registers)
    return np.asarray(one[:, None, None] ^ two[:, None] ^ three)


def _elements(layout: Layout) -> NDArray[np.int64]:
    return _spread_table(layout.columns_of("warp"), layout.columns_of("lane"), layout.columns_of("register"))


def _kept_registers(layout: Layout) -> NDArray[np.int64]:
    """Return the registers that are not copies, by number."""
    bits = independent(layout.columns_of("register"))
    return linear_table([1 << bit for bit in bits])


def _same_register(layout: Layout) -> NDArray[np.int64]:
    """Return for each register the one that is no copy and holds the same."""
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


def _fields(table: NDArray[np.int64], step: Shuffles | GatherWithin) -> tuple[NDArray[np.int64], ...]:
    """Return register, lane, round and place within the round's word from columns that hold all of them."""
    label = table >> (step.register_bits + step.lane_bits)
    register, lane = table & ((1 << step.register_bits) - 1), table >> step.register_bits & ((1 << step.lane_bits) - 1)
    return register, lane, label >> step.packed_bits, label & ((1 << step.packed_bits) - 1)


def _shuffle(plan: Plan, step: Shuffles, registers: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
    table = _spread_table(step.warps, step.lanes, step.registers)
    register, lane, number, slot = _fields(table, step)
    warps, lanes, _ = table.shape
    warp = np.broadcast_to(np.arange(warps)[:, None, None], table.shape)
    reader = np.broadcast_to(np.arange(lanes)[:, None], table.shape)
    # A lane publishes one word per round: each of its slots comes from one register.
    published = np.full((1 << (step.round_bits - step.packed_bits), warps, lanes, 1 << step.packed_bits), -1)
    published[number, warp, lane, slot] = register
    if not np.array_equal(published[number, warp, lane, slot], register):
        raise WavetankError("The plan lets a lane publish two values in one round.")
    # And a lane reads one other lane per round.
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


def _gather_within(
    plan: GatherPlan, step: GatherWithin, registers: NDArray[Any], index: NDArray[np.int64], kept: NDArray[np.int64]
) -> tuple[NDArray[Any], Counts]:
    table = _spread_table(step.warps, step.lanes, step.registers)[:, :, kept] ^ linear_table(step.axis)[index]
    register, lane, number, slot = _fields(table, step)
    warps, lanes, asked = table.shape
    warp = np.broadcast_to(np.arange(warps)[:, None, None], table.shape)
    which = np.broadcast_to(np.arange(asked), table.shape)
    # For each register of the index a lane publishes one word per round, for any reader.
    rounds = 1 << (step.round_bits - step.packed_bits)
    published = np.full((asked, rounds, warps, lanes, 1 << step.packed_bits), -1)
    published[which, number, warp, lane, slot] = register
    if not np.array_equal(published[which, number, warp, lane, slot], register):
        raise WavetankError("The plan lets a lane publish two values in one round.")
    found = registers[warp, lane, register]
    # What is issued does not depend on the index: every round that some index needs.
    possible = linear_table(step.lanes)[:, None] ^ linear_table(step.axis)
    labels = possible >> (step.register_bits + step.lane_bits)
    issued = len(np.unique(labels >> step.packed_bits))
    pieces = max(plan.element_bytes // 4, 1)
    own = np.arange(lanes)[:, None]
    others = (1 << step.lane_bits) - 1 << step.register_bits
    if not ((table & others) >> step.register_bits != own).any() and not (linear_table(step.axis) & others).any():
        return found, Counts(selects=asked * (len(np.unique(labels)) - 1) * pieces * warps)
    shuffles = asked * issued * pieces * warps
    choices = len(np.unique(possible[labels == 0] & ((1 << step.register_bits) - 1)))
    parts = len(np.unique(labels & ((1 << step.packed_bits) - 1)))
    before = shuffles * (choices.bit_length() - 1)
    after = asked * (issued - 1 + parts.bit_length() - 1) * pieces * warps
    wavefronts = shuffles * max(lanes // plan.banks.banks, 1)
    return found, Counts(selects=before + after, shuffles=shuffles, wavefronts=wavefronts)


def _places(
    padding: PaddedShared | None, access: Access
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return warps and lanes at work, and where each of their registers lies, shape (warps, lanes, registers)."""
    offsets = _spread_table(access.warps, access.lanes, access.registers)
    warps = np.flatnonzero(np.arange(offsets.shape[0]) & access.idle_warps == 0)
    lanes = np.flatnonzero(np.arange(offsets.shape[1]) & access.idle_lanes == 0)
    offsets = offsets[np.ix_(warps, lanes)]
    return warps, lanes, padding.places(offsets) if padding else offsets


def _rows_of_matrices(
    padding: PaddedShared | None, access: Access, warps: NDArray[np.int64], element_bytes: int
) -> NDArray[np.int64]:
    """Return where the elements of every matrix's rows lie, shape (warps, matrices, 8 rows, elements in 16 bytes)."""
    matrices = [
        combine(access.registers, mask) for mask in access.order[(WORD_BYTES // element_bytes).bit_length() - 1 :]
    ]
    starts = _spread_table(access.warps, tuple(matrices), access.rows)[warps]
    starts = padding.places(starts) if padding else starts
    if (starts * element_bytes % ROW_BYTES).any():
        raise WavetankError("The rows of the plan's matrices are not aligned.")
    return np.asarray(starts[..., None] + np.arange(ROW_BYTES // element_bytes))


def _into_rows(held: NDArray[Any], access: Access) -> NDArray[Any]:
    """Return the rows of matrices that a warp's registers make up, as stmatrix has it.

    Parameters
    ----------
    held : ndarray, shape (warps, 32, registers)
    access : Access

    Returns
    -------
    ndarray, shape (warps, matrices, 8, elements in 16 bytes)
    """
    # Each lane's registers in the order in which instructions take them: words of two 16-bit numbers.
    words = np.ascontiguousarray(held[:, :, linear_table(access.order)]).view(np.uint16)
    words = words.reshape(held.shape[0], LANES, -1, 2).transpose(0, 2, 1, 3)
    if access.way == MATRICES:
        rows = words.reshape(*words.shape[:2], 8, 8)
    else:
        # Lane 4c + r has column c of rows 2r and 2r + 1.
        rows = words.reshape(*words.shape[:2], 8, 4, 2).transpose(0, 1, 3, 4, 2).reshape(*words.shape[:2], 8, 8)
    return np.ascontiguousarray(rows).view(held.dtype)


def _out_of_rows(rows: NDArray[Any], access: Access) -> NDArray[Any]:
    """Return the registers that a warp gets from rows of matrices, as ldmatrix has it: the reverse of _into_rows."""
    numbers = np.ascontiguousarray(rows).view(np.uint16)
    if access.way == MATRICES:
        words = numbers.reshape(*numbers.shape[:2], LANES, 2)
    else:
        words = numbers.reshape(*numbers.shape[:2], 4, 2, 8).transpose(0, 1, 4, 2, 3)
        words = words.reshape(*numbers.shape[:2], LANES, 2)
    words = np.ascontiguousarray(words.transpose(0, 2, 1, 3)).view(rows.dtype)
    words = words.reshape(*words.shape[:2], -1)
    found = np.empty_like(words)
    found[:, :, linear_table(access.order)] = words
    return found


def _count(
    padding: PaddedShared | None,
    access: Access,
    places: NDArray[np.int64],
    element_bytes: int,
    banks: Banks,
    lanes: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Return instructions, selects and wavefronts of an access, from its addresses."""
    if access.way != VECTORS:
        warps = np.arange(1 << len(access.warps))
        rows = _rows_of_matrices(padding, access, warps[warps & access.idle_warps == 0], element_bytes)
        each = rows.shape[0] * -(-rows.shape[1] // MOST_MATRICES)
        return each, 0, _wavefronts(rows.reshape(-1, rows.shape[2] * rows.shape[3]), element_bytes, banks)
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
        total += _busiest(words, element_bytes, banks)
    return places.shape[0] * order.shape[0], selects, total


def _wavefronts(places: NDArray[np.int64], element_bytes: int, banks: Banks) -> int:
    """Return the wavefronts of phases, each of which touches a row of elements."""
    return _busiest(places * element_bytes // banks.word_bytes, element_bytes, banks)


def _busiest(words: NDArray[np.int64], element_bytes: int, banks: Banks) -> int:
    """Return the sum over phases of the different words that the busiest bank serves.

    Parameters
    ----------
    words : ndarray, shape (phases, elements)
        The word that each element begins in.
    element_bytes : int
    banks : Banks
    """
    wide = max(element_bytes // banks.word_bytes, 1)
    words = (words[..., None] + np.arange(wide)).reshape(words.shape[0], -1)
    words.sort(axis=1)
    fresh = np.ones(words.shape, bool)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    rows = np.broadcast_to(np.arange(words.shape[0])[:, None], words.shape)
    load = np.bincount((rows * banks.banks + words % banks.banks)[fresh], minlength=words.shape[0] * banks.banks)
    return int(load.reshape(-1, banks.banks).max(axis=1).sum())
