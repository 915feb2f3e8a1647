"""The cheapest way from one layout to another: move registers, shuffle within warps, or go through shared memory.

What a thread wants is compared with what it holds, as spaces: when every wanted column lies in the span of the
thread's own registers (up to its own lane and warp), registers move and nothing else; when it lies in the warp's
span, shuffles do, in the fewest rounds that any schedule has; else the data takes one trip through shared memory,
placed so that neither side meets a bank conflict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.layouts.access import VECTORS, Access, Banks, Spread, accesses, at_once, spread_of, vector_bits_of
from wavetank.kernels.layouts.algebra import Layout, aligned
from wavetank.kernels.layouts.bits import Span, avoiding, beyond, completion, independent, intersection, log2_of, rank
from wavetank.kernels.layouts.families import PaddedShared
from wavetank.kernels.layouts.matrices import ROW_BYTES, cheapest
from wavetank.kernels.layouts.swizzle import place
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.kernels.layouts.gather import GatherPlan

NOTHING, REGISTERS, SHUFFLES, SHARED = "nothing", "registers", "shuffles", "shared memory"
_HARDWARE = ("register", "lane", "warp")
_SHUFFLE_BYTES = 4


class UnsupportedPairError(WavetankError):
    """A conversion that a converter has no rule for."""


class Counts(NamedTuple):
    """What a conversion costs, over all warps.

    Attributes
    ----------
    selects : int
        Word moves whose register depends on the lane: one for each factor of two in the choice.
    shuffles, stores, loads : int
        Instructions, one per warp.
    wavefronts : int
        Trips through the crossbar of shared memory: rows of banks, and one for a shuffle of 32 lanes.
    memory_bytes : int
        Shared memory that is needed.
    moved_bytes : int
        Bytes that lanes write to and read from shared memory.
    """

    selects: int = 0
    shuffles: int = 0
    stores: int = 0
    loads: int = 0
    wavefronts: int = 0
    memory_bytes: int = 0
    moved_bytes: int = 0

    @property
    def instructions(self) -> int:
        """Return all instructions."""
        return self.selects + self.shuffles + self.stores + self.loads


class RegisterMoves(NamedTuple):
    """Within a thread: which register each bit of the target's coordinates leads to, as masks.

    Attributes
    ----------
    registers, lanes, warps : tuple of int
        Masks over the source's registers.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]


class Shuffles(NamedTuple):
    """Within a warp: where each bit of the target's coordinates is to be fetched, and in which round.

    A column holds the source's register mask, lane mask and round in one number (see ``register_bits``, ``lane_bits``).

    Attributes
    ----------
    registers, lanes, warps : tuple of int
        For each bit of the target's register, lane and warp: register mask, then lane mask, then round.
    register_bits, lane_bits : int
        Widths of the first two fields; the last one holds the round.
    packed_bits : int
        Low bits of the round that travel together in one word.
    round_bits : int
        Binary logarithm of all rounds, those included in which every lane reads itself.
    rounds : int
        Rounds in which some lane reads another one: those that are issued.
    selects_before, selects_after : int
        On how many lane bits the register that is published, or written, depends.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    register_bits: int
    lane_bits: int
    packed_bits: int
    round_bits: int
    rounds: int
    selects_before: int
    selects_after: int


class ThroughShared(NamedTuple):
    """Store everything, wait for each other, load everything.

    Attributes
    ----------
    memory : Layout
        From offsets, in elements, to the tensor.
    padding : PaddedShared or None
        Gaps, if any.
    store, load : Access
    """

    memory: Layout
    padding: PaddedShared | None
    store: Access
    load: Access


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to get from one layout to another; :class:`~wavetank.kernels.layouts.WarpMachine` executes it.

    Attributes
    ----------
    kind : str
        ``nothing``, ``registers``, ``shuffles`` or ``shared memory``.
    source, target : Layout
        With outputs in the same order.
    element_bytes : int
    banks : Banks
    step : RegisterMoves, Shuffles, ThroughShared or None
    """

    kind: str
    source: Layout
    target: Layout
    element_bytes: int
    banks: Banks
    step: RegisterMoves | Shuffles | ThroughShared | None

    def counts(self) -> Counts:
        """Return what the plan costs, from ranks alone; padded memory can only be counted by executing it.

        Raises
        ------
        WavetankError
            For padded shared memory.
        """
        step = self.step
        warps = self.target.in_sizes.get("warp", 1)
        if isinstance(step, RegisterMoves):
            depends = len(Span((*step.lanes, *step.warps)))
            return Counts(selects=words_of(self.target, self.element_bytes) * depends * warps)
        if isinstance(step, Shuffles):
            pieces = max(self.element_bytes // _SHUFFLE_BYTES, 1)
            words = (1 << (step.round_bits - step.packed_bits)) * pieces
            lanes = max(self.target.in_sizes.get("lane", 1) // self.banks.banks, 1)
            shuffles = step.rounds * pieces * warps
            selects = words * (step.selects_before + step.selects_after) * warps
            return Counts(selects=selects, shuffles=shuffles, wavefronts=shuffles * lanes)
        if isinstance(step, ThroughShared):
            if step.padding is not None:
                raise WavetankError(
                    "Padded memory is not linear: its conflicts follow from no rank.", hint="execute it"
                )
            sides = (step.store, step.load)
            return Counts(
                selects=sum(side.selects(self.element_bytes) for side in sides),
                stores=step.store.instructions,
                loads=step.load.instructions,
                wavefronts=sum(side.wavefronts(self.element_bytes, self.banks) for side in sides),
                memory_bytes=self.element_bytes << self.source.out_bits,
                moved_bytes=sum(moved_bytes(side, self.element_bytes) for side in sides),
            )
        return Counts()


class Converter(Protocol):
    """Plans conversions; the linear planner and its rivals alike."""

    def plan(self, source: Layout, target: Layout, element_bytes: int) -> Plan:
        """Return how to get from ``source`` to ``target``.

        Raises
        ------
        UnsupportedPairError
            Where this converter has no rule.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LinearLayouts:
    """Converts any layout into any other: registers, the fewest shuffles, or shared memory without conflicts.

    Parameters
    ----------
    vectors : str
        Which registers make up vectors: those of ``either`` side, or only those ``common`` to both, as in the paper.
    """

    vectors: str = setting("either", says="Layout whose registers make up vectors", choices=("either", "common"))
    matrices: bool = setting(True, says="Whether matrix instructions (ldmatrix, stmatrix) are allowed")

    def plan(self, source: Layout, target: Layout, element_bytes: int = 4, banks: Banks | None = None) -> Plan:
        """Return the cheapest way.

        Parameters
        ----------
        source, target : Layout
            From registers, lanes and warps to the same tensor; ``source`` must hold all that ``target`` wants.
        element_bytes : int
            1, 2, 4, 8 or 16.
        banks : Banks, optional
            By default 32 banks of 4 bytes, vectors up to 16 bytes.

        Raises
        ------
        BadValueError
            For layouts of different shapes or machines, missing elements, or element sizes that do not exist.
        """
        banks = self._allowed(banks)
        target = checked_pair(source, target, element_bytes, banks)
        if source == target:
            return Plan(kind=NOTHING, source=source, target=target, element_bytes=element_bytes, banks=banks, step=None)
        have, want = spread_of(source), spread_of(target)

        def planned(kind: str, step: RegisterMoves | Shuffles | ThroughShared) -> Plan:
            return Plan(kind=kind, source=source, target=target, element_bytes=element_bytes, banks=banks, step=step)

        moves = _register_moves(have, target)
        if moves is not None:
            return planned(REGISTERS, moves)
        shuffles = _shuffles(have, target, want, element_bytes)
        # Every warp shuffles what it holds, copies too, while only one of them needs to store it.
        within = None if shuffles is None else planned(SHUFFLES, shuffles)
        if within is not None and within.counts().wavefronts <= _least_wavefronts(have, want, element_bytes, banks):
            return within
        basis, store, load = place(
            have, want, source.out_bits, element_bytes, banks, common_only=self.vectors == "common"
        )
        shared = planned(SHARED, ThroughShared(memory_of(basis, source), None, store, load))
        if within is None:
            return shared
        return min(within, shared, key=lambda plan: (plan.counts().wavefronts, plan.counts().instructions))

    def plan_gather(
        self, source: Layout, index: Layout, axis: str, element_bytes: int = 4, banks: Banks | None = None
    ) -> GatherPlan:
        """Return the cheapest way to gather; see :func:`wavetank.kernels.layouts.gather.plan_gather`.

        Parameters
        ----------
        source : Layout
            Of the tensor.
        index : Layout
            Of the index and of the result: the tensor's shape, but along ``axis``.
        axis : str
            The dimension along which the index counts.
        element_bytes : int
            1, 2, 4, 8 or 16.
        banks : Banks, optional

        Raises
        ------
        WavetankError
            For an unknown axis, shapes that differ elsewhere, other machines, or missing elements.
        """
        from wavetank.kernels.layouts.gather import plan_gather

        return plan_gather(source, index, axis, element_bytes, self._allowed(banks))

    def _allowed(self, banks: Banks | None) -> Banks:
        banks = banks or Banks()
        return banks if self.matrices else banks._replace(matrix_loads=False, matrix_stores=False)

    def picture(self, text: str) -> str:
        """Return ``text`` as an SVG picture.

        Parameters
        ----------
        text : str
            A layout (see :mod:`wavetank.kernels.layouts.describe`), or two with ``->`` between: then the shared memory
            through which elements go from the one to the other. They have 4 bytes; ``, 2 bytes`` at the end changes it.

        Raises
        ------
        BadValueError
            When there is no such layout, or the conversion needs no memory.
        """
        from wavetank.kernels.layouts.describe import layout_of
        from wavetank.kernels.layouts.picture import draw

        source, arrow, target = text.partition("->")
        if not arrow:
            return layout_of(text).to_svg(title=text)
        size = "4 bytes"
        if target.rstrip().endswith("bytes"):
            target, _, size = target.rpartition(",")
        count = size.strip().removesuffix("bytes").strip()
        if not count.isdecimal():
            raise BadValueError("The size of an element is a number of bytes.", given=size.strip(), allowed="2 bytes")
        plan = self.plan(layout_of(source), layout_of(target), int(count))
        step = plan.step
        if not isinstance(step, ThroughShared):
            raise BadValueError(
                "This conversion goes through no memory that could be drawn.",
                given=text,
                allowed=f"kind: {plan.kind}",
                hint="draw its two layouts one by one",
            )
        written, read = (at_once(side, plan.element_bytes, plan.banks) for side in (step.store, step.load))
        counts = plan.counts()
        says = (
            "Whole outline: what warp 0 writes at once, in the first phase of its first store. Broken outline: what it "
            "reads at once. A bank that must serve two different words of one outline is a conflict: there "
            f"{'are some' if _conflicts(plan, step) else 'is none'} here.",
            f"All warps: {counts.stores} {_named(step.store.way, 'store')}, then {counts.loads} "
            f"{_named(step.load.way, 'load')}; {counts.wavefronts} wavefronts, each of one word a bank.",
        )
        return draw(
            step.memory,
            title=f"Shared memory between {text.strip()}",
            element_bytes=plan.element_bytes,
            banks=plan.banks,
            written=written,
            read=read,
            says=says,
        )


def _named(way: str, what: str) -> str:
    return f"{what}s of vectors" if way == VECTORS else f"{what}s of {way} ({'st' if what == 'store' else 'ld'}matrix)"


def _conflicts(plan: Plan, step: ThroughShared) -> bool:
    sides = (step.store, step.load)
    return any(
        side.wavefronts(plan.element_bytes, plan.banks) > side.phases(plan.element_bytes, plan.banks) for side in sides
    )


def check_machine(one: Layout, other: Layout, element_bytes: int, banks: Banks, where: str) -> None:
    """Refuse elements, banks and layouts that no machine of warps has, or that are for different machines."""
    if (
        not isinstance(element_bytes, int)
        or element_bytes not in (1, 2, 4, 8, 16)
        or element_bytes > banks.vector_bytes
    ):
        raise BadValueError(
            "There are no elements of that size.", given=element_bytes, allowed="1, 2, 4, 8 or 16 bytes", where=where
        )
    for name, size in (("banks", banks.banks), ("word_bytes", banks.word_bytes), ("vector_bytes", banks.vector_bytes)):
        log2_of(size, name)
    for layout in (one, other):
        for name, size in layout.in_sizes.items():
            if name not in _HARDWARE and size > 1:
                raise BadValueError(
                    "A conversion is between layouts of registers, lanes and warps.",
                    given=name,
                    allowed=", ".join(_HARDWARE),
                    where=where,
                    hint="memory layouts (offset) are chosen by the planner; several blocks are converted one by one",
                )
    for name in ("lane", "warp"):
        mine, theirs = one.in_sizes.get(name, 1), other.in_sizes.get(name, 1)
        if mine != theirs:
            raise BadValueError(
                f"The two layouts are for different numbers of {name}s.", given=mine, allowed=str(theirs), where=where
            )


def checked_pair(source: Layout, target: Layout, element_bytes: int, banks: Banks) -> Layout:
    """Return ``target`` with its outputs in the order of ``source``'s, or say why they do not go together."""
    check_machine(source, target, element_bytes, banks, "plan")
    found = aligned(target, source, "plan")
    held = source.rank
    span = Span(source.columns)
    for column in found.columns:
        if column not in span:
            missing = dict(zip(source.out_sizes, source._split(column), strict=True))
            raise BadValueError(
                "The source does not hold an element that the target wants.",
                given=f"element {missing}",
                allowed=f"{1 << held} of {1 << source.out_bits} elements are held",
                where="plan",
            )
    return found


def memory_of(basis: tuple[int, ...], tensor: Layout) -> Layout:
    """Return the placement as a layout from offsets to the tensor that ``tensor`` is about."""
    outs = tensor.out_sizes
    flat = Layout({"offset": list(basis)}, {"flat": 1 << tensor.out_bits})
    return flat.reshape_outs(outs)


def through_shared(
    source: Layout, target: Layout, element_bytes: int, memory: Layout, padding: PaddedShared | None, banks: Banks
) -> Plan:
    """Return the plan of a trip through shared memory that is laid out as given; rivals are built on it."""
    target = checked_pair(source, target, element_bytes, banks)
    memory = aligned(memory, source, "through_shared")
    widest = widest_vector(padding, element_bytes, banks)
    have, want = spread_of(source), spread_of(target)
    widths = vector_bits_of(memory.columns, have, widest), vector_bits_of(memory.columns, want, widest)
    store, load = accesses(memory.columns, have, want, widths)
    store = with_matrices(store, True, padding, element_bytes, banks)
    load = with_matrices(load, False, padding, element_bytes, banks)
    step = ThroughShared(memory, padding, store, load)
    return Plan(kind=SHARED, source=source, target=target, element_bytes=element_bytes, banks=banks, step=step)


def widest_vector(padding: PaddedShared | None, element_bytes: int, banks: Banks) -> int:
    """Return the binary logarithm of the elements of the widest vectors; gaps keep them aligned and within a row."""
    widest = max(banks.vector_bytes // element_bytes, 1).bit_length() - 1
    if padding is None or not padding.padding:
        return widest
    both = padding.interval | padding.padding
    return min(widest, (both & -both).bit_length() - 1)


def with_matrices(
    access: Access, storing: bool, padding: PaddedShared | None, element_bytes: int, banks: Banks
) -> Access:
    """Return an access, by matrices where that is cheaper and no gap parts or shifts their rows of 16 bytes."""
    if padding is not None and (padding.interval | padding.padding) * element_bytes % ROW_BYTES:
        return access
    return cheapest(access, storing, element_bytes, banks, conflicts=padding is None)[0]


def words_of(layout: Layout, element_bytes: int) -> int:
    """Return the 4-byte registers that a thread's share of a tensor takes."""
    return max((layout.in_sizes.get("register", 1) * element_bytes) // _SHUFFLE_BYTES, 1)


def moved_bytes(access: Access, element_bytes: int) -> int:
    """Return the bytes that all lanes move in one access of the whole tensor."""
    lanes = 1 << (len(access.lanes) - access.idle_lanes.bit_count())
    return access.warps_at_work * lanes * (element_bytes << len(access.registers))


def _least_wavefronts(have: Spread, want: Spread, element_bytes: int, banks: Banks) -> int:
    """Return a bound for trips through memory: all is written once, and each warp reads what it wants."""
    row = banks.banks * banks.word_bytes
    written = element_bytes << rank((*have.registers, *have.lanes, *have.warps))
    read = element_bytes << rank((*want.registers, *want.lanes))
    return -(-written // row) + (-(-read // row) << len(want.warps))


def _register_moves(have: Spread, target: Layout) -> RegisterMoves | None:
    span = Span(have.registers)
    found: list[tuple[int, ...]] = []
    for name, own in (("register", ()), ("lane", have.lanes), ("warp", have.warps)):
        masks = []
        for bit, column in enumerate(target.columns_of(name)):
            mask = span.express(column ^ own[bit] if own else column)
            if mask is None:
                return None
            masks.append(_scattered(mask, have.kept))
        found.append(tuple(masks))
    return RegisterMoves(*found)


def _scattered(mask: int, places: tuple[int, ...] | list[int]) -> int:
    total = 0
    for bit, place_ in enumerate(places):
        if mask >> bit & 1:
            total |= 1 << place_
    return total


def _shuffles(have: Spread, target: Layout, want: Spread, element_bytes: int) -> Shuffles | None:
    """Return the shuffles with the fewest rounds, or None when a warp wants what another one holds."""
    warp = Span((*have.registers, *have.lanes))
    shifts = [column ^ own for column, own in zip(target.columns_of("warp"), have.warps, strict=True)]
    if any(column not in warp for column in (*target.columns_of("register"), *want.lanes, *shifts)):
        return None
    options = [
        _scheduled(have, target, want, shifts, element_bytes, lanes_first=lanes_first) for lanes_first in (True, False)
    ]
    return min((each for each in options if each is not None), key=lambda each: each.rounds, default=None)


def _scheduled(
    have: Spread, target: Layout, want: Spread, shifts: list[int], element_bytes: int, *, lanes_first: bool
) -> Shuffles | None:
    # One holder of every element: a basis of the warp's data out of lanes and registers.  With copies about, more lanes
    # publish more values a round, while more registers mean that lanes find more in their own.
    if lanes_first:
        lane_bits = independent(have.lanes)
        lanes = [have.lanes[bit] for bit in lane_bits]
        chosen = independent((*lanes, *have.registers))[len(lanes) :]
        register_bits = [place_ - len(lanes) for place_ in chosen]
    else:
        register_bits = list(range(len(have.registers)))
        chosen = independent((*have.registers, *have.lanes))[len(register_bits) :]
        lane_bits = [place_ - len(register_bits) for place_ in chosen]
    registers = [have.registers[bit] for bit in register_bits]
    low = len(registers)
    holders = Span((*registers, *(have.lanes[bit] for bit in lane_bits)))
    size = len(holders)

    def inside(columns: tuple[int, ...] | list[int]) -> list[int]:
        return [holders.express(column) or 0 for column in columns]

    wanted_all, wanted_lanes, wanted_warps = inside(target.columns_of("register")), inside(want.lanes), inside(shifts)
    held, wanted = [1 << bit for bit in range(low)], inside(want.registers)
    held_lanes = inside(have.lanes)
    own = intersection(held, wanted)
    kernel = _self_reading(held, wanted, wanted_lanes, held_lanes, size)
    if kernel is None:
        kernel = avoiding(held, wanted, size, size - max(low, len(wanted)))
    packed = own[: max(_SHUFFLE_BYTES // element_bytes, 1).bit_length() - 1]
    labels = [*packed, *beyond([*kernel, *packed], own), *completion([*kernel, *own], size)]
    rounds_of = Span((*kernel, *labels))
    if len(rounds_of) != size or len(labels) + len(kernel) != size:
        return None

    def numbered(vector: int) -> int:
        return (rounds_of.express(vector) or 0) >> len(kernel)

    width, lanes_width = len(have.kept) and max(have.kept) + 1, len(have.lanes)

    def column(vector: int) -> int:
        at_register = _scattered(vector & ((1 << low) - 1), [have.kept[bit] for bit in register_bits])
        at_lane = _scattered(vector >> low, lane_bits)
        return at_register | at_lane << width | numbered(vector) << (width + lanes_width)

    packs = len(packed)
    shift = width + lanes_width
    columns = [tuple(map(column, each)) for each in (wanted_all, wanted_lanes, wanted_warps)]
    # What travels: which round, and how far the lane that is read lies from the reader.
    numbers = [each >> (shift + packs) for side in columns for each in side]
    steps = [each >> width & ((1 << lanes_width) - 1) for each in columns[0]]
    steps += [each >> width & ((1 << lanes_width) - 1) ^ 1 << bit for bit, each in enumerate(columns[1])]
    steps += [each >> width & ((1 << lanes_width) - 1) for each in columns[2]]
    return Shuffles(
        registers=columns[0],
        lanes=columns[1],
        warps=columns[2],
        register_bits=width,
        lane_bits=lanes_width,
        packed_bits=packs,
        round_bits=len(labels),
        rounds=_rounds_with_travel(numbers, steps),
        selects_before=len(Span(numbered(1 << bit) >> packs for bit in range(low, size))),
        selects_after=len(Span(numbered(vector) >> packs for vector in wanted_lanes)),
    )


def _rounds_with_travel(numbers: list[int], steps: list[int]) -> int:
    """Return how many values of a linear map have an input whose step is not zero.

    Parameters
    ----------
    numbers, steps : list of int
        For each input bit the round and the step.
    """
    rounds, high = len(Span(numbers)), max(numbers, default=0).bit_length()
    if len(Span(number | step << high for number, step in zip(numbers, steps, strict=True))) > rounds:
        return 1 << rounds
    # The step follows from the round alone; it is zero on a subspace of rounds.
    return (1 << rounds) - (1 << (rounds - len(Span(steps))))


def _self_reading(
    held: list[int], wanted: list[int], wanted_lanes: list[int], held_lanes: list[int], size: int
) -> list[int] | None:
    """Return a kernel of the round map under which all lanes find what they hold themselves in the same rounds.

    For each lane bit it has the step between what neighbours find in their own registers; None where some lane holds
    nothing that it wants, or where these steps would let two values meet.
    """
    if len(held) != len(wanted):
        return None
    both = Span((*held, *wanted))
    kernel = []
    for have, want in zip(held_lanes, wanted_lanes, strict=True):
        parts = both.express(have ^ want)
        if parts is None:
            return None
        # have ^ want = (part held) ^ (part wanted), so have ^ (part held) is in both lanes' reach.
        step = have
        for bit, vector in enumerate(held):
            if parts >> bit & 1:
                step ^= vector
        kernel.append(step)
    if len(kernel) != size - len(held):
        return None
    if len(Span((*kernel, *held))) != size or len(Span((*kernel, *wanted))) != size:
        return None
    return kernel
