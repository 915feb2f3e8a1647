"""A layout is a linear map over bits from where data lies to which element of a tensor lies there.

Hardware coordinates (register, lane, warp, or a memory offset) go in, tensor coordinates come out; every size is a
power of two, and L(a xor b) = L(a) xor L(b), so a layout is determined by the images of the powers of two alone: its
bases. One small algebra (product, composition, inverse, quotient, reshape) then takes the place of a formula for
every pair of layouts.

Source: "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2", Zhou and others,
arXiv 2505.23819, sections 3 and 4.

Differs from the source:

1. A layout keeps its bases as flat whole numbers, one per column, the first output dimension in the low bits.
2. A dimension has at least size 1; the empty dimension of size 0 does not exist.
3. A layout remembers which encoding it was built from, if any; that takes no part in comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name
from wavetank.kernels.layouts.bits import Span, combine, independent, log2_of

Bases = Mapping[str, Sequence[Sequence[int] | int]]
_MOST_BITS = 62
_MOST_TABLE_BITS = 28


class Layout:
    """A linear map over bits between named dimensions; never changes once made.

    Parameters
    ----------
    bases : mapping of str to sequence
        For each input dimension the images of its bits 1, 2, 4, ...: tuples with one coordinate per output dimension,
        or plain numbers when there is one output dimension.  Its size is two to the power of their count.
    outs : mapping of str to int, or sequence of str
        Output dimensions with sizes.  With names alone, sizes are the smallest that hold the bases, and the layout must
        reach every output.  The order of dimensions, minor first, matters to reshaping alone.

    Raises
    ------
    BadValueError
        For a basis out of range or of the wrong length, a size that is no power of two, or outputs left out when only
        names are given.

    Examples
    --------
    A swizzle of 4 x 4: row t, column w lies at (t, w xor t).

    >>> swizzle = Layout({"t": [(1, 1), (2, 2)], "w": [(0, 1), (0, 2)]}, ["row", "column"])
    >>> swizzle.apply(t=3, w=1)
    {'row': 3, 'column': 2}
    >>> swizzle.compose(swizzle.invert()).is_identity()
    True
    """

    def __init__(self, bases: Bases, outs: Mapping[str, int] | Sequence[str]) -> None:
        names = list(outs)
        if len(set(names)) != len(names):
            raise BadValueError("Output dimensions must have different names.", given=", ".join(names), where="outs")
        rows = {name: [_as_tuple(basis, names, name) for basis in vectors] for name, vectors in bases.items()}
        if isinstance(outs, Mapping):
            sizes = {name: log2_of(size, f"output dimension {name!r}") for name, size in outs.items()}
        else:
            flat = [basis for vectors in rows.values() for basis in vectors]
            sizes = {
                name: max((basis[place].bit_length() for basis in flat), default=0) for place, name in enumerate(names)
            }
        if sum(sizes.values()) > _MOST_BITS:
            raise BadValueError("The outputs are too many.", given=sizes, allowed=f"2**{_MOST_BITS}", where="outs")
        columns = []
        for name, vectors in rows.items():
            for number, basis in enumerate(vectors):
                columns.append(_flat(basis, sizes, f"basis {1 << number} of {name!r}"))
        self._ins = tuple((name, len(vectors)) for name, vectors in rows.items())
        self._outs = tuple(sizes.items())
        self._columns = tuple(columns)
        self.origin: Any = None
        if not isinstance(outs, Mapping) and not self.is_surjective:
            raise BadValueError(
                "The layout leaves elements out, and its outputs have no sizes to say that this is meant.",
                given=_in_words(self),
                where="outs",
                hint="give the sizes: {'dim0': 16, ...}",
            )

    @classmethod
    def _made(
        cls, ins: Iterable[tuple[str, int]], outs: Iterable[tuple[str, int]], columns: Iterable[int], origin: Any = None
    ) -> Layout:
        # The algebra's own results need no checks.
        layout = cls.__new__(cls)
        layout._ins, layout._outs, layout._columns = tuple(ins), tuple(outs), tuple(columns)
        layout.origin = origin
        return layout

    # -- constructors --------------------------------------------------------------------------------------------------

    @classmethod
    def empty(cls) -> Layout:
        """Return the layout without dimensions: the neutral element of the product."""
        return cls._made((), (), ())

    @classmethod
    def identity(cls, size: int, into: str, out: str) -> Layout:
        """Return the layout of one dimension whose bases are 1, 2, 4, ..."""
        return cls.strided(size, 1, into, out)

    @classmethod
    def strided(cls, size: int, stride: int, into: str, out: str) -> Layout:
        """Return the layout that takes i to ``stride * i``; both are powers of two."""
        bits, low = log2_of(size, f"input dimension {into!r}"), log2_of(stride, "stride")
        return cls._made(((into, bits),), ((out, bits + low if bits else 0),), (1 << low + bit for bit in range(bits)))

    @classmethod
    def zeros(cls, size: int, into: str, out: str, out_size: int = 1) -> Layout:
        """Return the layout that takes everything to element 0: every input holds a copy."""
        bits, out_bits = log2_of(size, f"input dimension {into!r}"), log2_of(out_size, f"output dimension {out!r}")
        return cls._made(((into, bits),), ((out, out_bits),), (0,) * bits)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def in_sizes(self) -> dict[str, int]:
        """Return the input dimensions and their sizes, in order."""
        return {name: 1 << bits for name, bits in self._ins}

    @property
    def out_sizes(self) -> dict[str, int]:
        """Return the output dimensions and their sizes, minor first."""
        return {name: 1 << bits for name, bits in self._outs}

    @property
    def in_bits(self) -> int:
        """Return the bits of all inputs together."""
        return len(self._columns)

    @property
    def out_bits(self) -> int:
        """Return the bits of all outputs together."""
        return sum(bits for _, bits in self._outs)

    @property
    def columns(self) -> tuple[int, ...]:
        """Return the images of all input bits, outputs flattened: the first output dimension in the low bits."""
        return self._columns

    @property
    def bases(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return for each input dimension the images of its bits, one coordinate per output dimension."""
        return {name: tuple(self._split(column) for column in self.columns_of(name)) for name, _ in self._ins}

    def columns_of(self, name: str) -> tuple[int, ...]:
        """Return the flat images of one input dimension's bits; none for a dimension it does not have."""
        start = 0
        for each, bits in self._ins:
            if each == name:
                return self._columns[start : start + bits]
            start += bits
        return ()

    @cached_property
    def rank(self) -> int:
        """Return the binary logarithm of the number of different outputs."""
        return len(Span(self._columns))

    @property
    def is_surjective(self) -> bool:
        """Return whether every output is reached."""
        return self.rank == self.out_bits

    @property
    def is_injective(self) -> bool:
        """Return whether no output is reached twice."""
        return self.rank == self.in_bits

    @property
    def is_invertible(self) -> bool:
        """Return whether inputs and outputs correspond one to one."""
        return self.is_surjective and self.is_injective

    def is_identity(self) -> bool:
        """Return whether every input comes out as it went in, under the same dimension names."""
        return self._ins == self._outs and self._columns == tuple(1 << bit for bit in range(self.in_bits))

    def _split(self, flat: int) -> tuple[int, ...]:
        found = []
        for _, bits in self._outs:
            found.append(flat & ((1 << bits) - 1))
            flat >>= bits
        return tuple(found)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self._ins == other._ins
            and self._outs == other._outs
            and self._columns == other._columns
        )

    def __hash__(self) -> int:
        return hash((self._ins, self._outs, self._columns))

    def __repr__(self) -> str:
        return f"Layout({self.bases}, {self.out_sizes})"

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def apply(self, **at: int) -> dict[str, int]:
        """Return the tensor coordinates at one place; dimensions not named are at 0.

        Raises
        ------
        WavetankError
            For an unknown dimension or a coordinate beyond its size.
        """
        sizes = self.in_sizes
        mask = 0
        for name, place in at.items():
            if name not in sizes:
                raise unknown_name("input dimension", name, sizes)
            if not 0 <= place < sizes[name]:
                raise BadValueError(
                    "The place does not exist.", given=place, allowed=f"0 to {sizes[name] - 1}", where=name
                )
        start = 0
        for name, bits in self._ins:
            mask |= at.get(name, 0) << start
            start += bits
        flat = self._split(combine(self._columns, mask))
        return {name: place for (name, _), place in zip(self._outs, flat, strict=True)}

    def table(self) -> NDArray[np.int64]:
        """Return the flat output of every flat input, shape (2**in_bits,), the first input dimension fastest."""
        return linear_table(self._columns)

    # -- algebra -------------------------------------------------------------------------------------------------------

    def __mul__(self, other: Layout) -> Layout:
        """Return the product: where dimensions are shared, ``other`` works on the bits above this layout's."""
        ins = _merged([name for name, _ in self._ins], [name for name, _ in other._ins])
        outs = _merged([name for name, _ in self._outs], [name for name, _ in other._outs])
        mine, theirs = dict(self._outs), dict(other._outs)
        sizes = [(name, mine.get(name, 0) + theirs.get(name, 0)) for name in outs]
        low = dict.fromkeys(outs, 0)
        high = {name: mine.get(name, 0) for name in outs}
        first, second = self._moved_to(sizes, low), other._moved_to(sizes, high)
        columns: list[int] = []
        bits = []
        for name in ins:
            found = [*_part(self._ins, first, name), *_part(other._ins, second, name)]
            columns += found
            bits.append((name, len(found)))
        return Layout._made(bits, sizes, columns)

    def _moved_to(self, outs: Sequence[tuple[str, int]], shift: Mapping[str, int]) -> list[int]:
        """Return the columns with output dimensions at new places, each shifted."""
        start, places = 0, {}
        for name, bits in outs:
            places[name] = start + shift.get(name, 0)
            start += bits
        moved = []
        for column in self._columns:
            flat = 0
            for (name, _), part in zip(self._outs, self._split(column), strict=True):
                if part:
                    flat |= part << places[name]
            moved.append(flat)
        return moved

    def compose(self, outer: Layout) -> Layout:
        """Return ``outer`` after this layout: outputs here are the inputs there.

        Raises
        ------
        BadValueError
            When the dimensions do not match or are larger than what ``outer`` takes.
        """
        theirs, mine = dict(outer._ins), dict(self._outs)
        if set(theirs) != set(mine):
            raise BadValueError(
                "The outputs of the one layout are not the inputs of the other.",
                given=", ".join(mine),
                allowed=", ".join(theirs),
                where="compose",
            )
        images: list[int] = []
        for name, bits in self._outs:
            if bits > theirs[name]:
                raise BadValueError(
                    f"The dimension {name!r} is larger than what the outer layout takes.",
                    given=1 << bits,
                    allowed=f"at most {1 << theirs[name]}",
                    where="compose",
                )
            images += outer.columns_of(name)[:bits]
        return Layout._made(self._ins, outer._outs, (combine(images, column) for column in self._columns))

    def invert(self) -> Layout:
        """Return the inverse.

        Raises
        ------
        BadValueError
            When inputs and outputs do not correspond one to one.
        """
        if not self.is_invertible:
            raise BadValueError(
                "Only a layout that is one to one has an inverse.",
                given=f"{self.in_bits} input bits, {self.out_bits} output bits, rank {self.rank}",
                where="invert",
                hint="pseudo_invert() takes any layout that reaches every output",
            )
        return self.pseudo_invert()

    def pseudo_invert(self) -> Layout:
        """Return for every element one place where it lies: what could be any place uses the earliest input bits.

        Raises
        ------
        BadValueError
            When some element lies nowhere.
        """
        if not self.is_surjective:
            raise BadValueError(
                "The layout does not hold every element, so there is no way back.",
                given=_in_words(self),
                where="pseudo_invert",
            )
        span = Span(self._columns)
        columns = (span.express(1 << bit) or 0 for bit in range(self.out_bits))
        return Layout._made(self._outs, self._ins, columns)

    def invert_and_compose(self, other: Layout) -> Layout:
        """Return C with ``C.compose(other) == self``: from places of this layout to places of ``other``.

        Raises
        ------
        BadValueError
            When the two are about different tensors, or ``other`` lacks an element that this layout has.
        """
        mine = aligned(self, other, "invert_and_compose")
        span = Span(other._columns)
        columns = []
        for column in mine._columns:
            found = span.express(column)
            if found is None:
                raise BadValueError(
                    "The other layout does not hold an element that is wanted.",
                    given=dict(zip(other.out_sizes, other._split(column), strict=True)),
                    where="invert_and_compose",
                )
            columns.append(found)
        return Layout._made(self._ins, other._ins, columns)

    def divide_left(self, tile: Layout) -> Layout | None:
        """Return R with ``tile * R == self``, or None when the tile does not fit.

        It fits when the low bits of every dimension are the tile's and nothing else touches the tile's elements; this
        is the test whether a hardware instruction with a fixed fragment can be used.
        """
        mine, theirs = dict(self._ins), dict(tile._ins)
        mine_out, theirs_out = dict(self._outs), dict(tile._outs)
        if any(bits > mine.get(name, -1) for name, bits in tile._ins):
            return None
        if any(bits > mine_out.get(name, -1) for name, bits in tile._outs):
            return None
        placed = tile._moved_to(self._outs, {})
        columns, sizes = [], []
        for name, bits in self._ins:
            own = self.columns_of(name)
            cut = theirs.get(name, 0)
            if list(own[:cut]) != list(_part(tile._ins, placed, name)):
                return None
            for column in own[cut:]:
                flat = place = 0
                for (out, out_bits), part in zip(self._outs, self._split(column), strict=True):
                    low = theirs_out.get(out, 0)
                    if part & ((1 << low) - 1):
                        return None
                    flat |= part >> low << place
                    place += out_bits - low
                columns.append(flat)
            sizes.append((name, bits - cut))
        outs = [(name, bits - theirs_out.get(name, 0)) for name, bits in self._outs]
        return Layout._made(sizes, outs, columns)

    def quotient(self, names: Sequence[str]) -> Layout | None:
        """Return the layout without dimensions on which it is the identity and which nothing else touches, else None.

        Parameters
        ----------
        names : sequence of str
            Dimensions that are inputs and outputs alike.
        """
        for name in names:
            if name not in self.in_sizes or name not in self.out_sizes:
                return None
            others = [each for each, _ in self._ins if each != name]
            rest = [each for each, _ in self._outs if each != name]
            own = self.sublayout([name], [name])
            if not own.is_identity() or not self.sublayout_is_zero(others, [name]):
                return None
            if not self.sublayout_is_zero([name], rest):
                return None
        ins = [name for name, _ in self._ins if name not in names]
        outs = [name for name, _ in self._outs if name not in names]
        return self.sublayout(ins, outs)

    # -- parts and views -----------------------------------------------------------------------------------------------

    def sublayout(self, ins: Sequence[str], outs: Sequence[str]) -> Layout:
        """Return what the named inputs do to the named outputs, dimensions in this layout's order."""
        self._known(ins, outs)
        kept = [(name, bits) for name, bits in self._outs if name in outs]
        columns = []
        for name, _ in self._ins:
            if name in ins:
                for column in self.columns_of(name):
                    flat = place = 0
                    for (out, bits), part in zip(self._outs, self._split(column), strict=True):
                        if out in outs:
                            flat |= part << place
                            place += bits
                    columns.append(flat)
        return Layout._made([each for each in self._ins if each[0] in ins], kept, columns)

    def sublayout_is_zero(self, ins: Sequence[str], outs: Sequence[str]) -> bool:
        """Return whether the named inputs leave the named outputs alone."""
        return not any(self.sublayout(ins, outs)._columns)

    def without_broadcast(self, name: str = "register") -> Layout:
        """Return the layout without the bits of one input dimension that hold copies of its other bits' elements."""
        self._known([name], [])
        own = self.columns_of(name)
        kept = [own[place] for place in independent(own)]
        ins, columns = [], []
        for each, bits in self._ins:
            ins.append((each, len(kept) if each == name else bits))
            columns += kept if each == name else list(self.columns_of(each))
        return Layout._made(ins, self._outs, columns)

    def transpose_ins(self, names: Sequence[str]) -> Layout:
        """Return the layout with its input dimensions in another order."""
        _permutation(names, self.in_sizes, "transpose_ins")
        columns = [column for name in names for column in self.columns_of(name)]
        return Layout._made([(name, dict(self._ins)[name]) for name in names], self._outs, columns)

    def transpose_outs(self, names: Sequence[str]) -> Layout:
        """Return the layout with its output dimensions in another order."""
        _permutation(names, self.out_sizes, "transpose_outs")
        outs = [(name, dict(self._outs)[name]) for name in names]
        return Layout._made(self._ins, outs, self._moved_to(outs, {}), self.origin)

    def reshape_ins(self, sizes: Mapping[str, int]) -> Layout:
        """Return the layout with its inputs flattened, minor first, and split anew."""
        return Layout._made(_resized(sizes, self.in_bits, "reshape_ins"), self._outs, self._columns)

    def reshape_outs(self, sizes: Mapping[str, int]) -> Layout:
        """Return the layout with its outputs flattened, minor first, and split anew."""
        return Layout._made(self._ins, _resized(sizes, self.out_bits, "reshape_outs"), self._columns)

    def renamed(self, names: Mapping[str, str]) -> Layout:
        """Return the layout with dimensions, of either side, under other names."""
        return Layout._made(
            [(names.get(name, name), bits) for name, bits in self._ins],
            [(names.get(name, name), bits) for name, bits in self._outs],
            self._columns,
        )

    # -- contiguity ----------------------------------------------------------------------------------------------------

    def vector_width(self) -> int:
        """Return how many elements in a row in memory, the last dimension fastest, a thread's registers hold."""
        flat = self.transpose_outs(list(reversed(self.out_sizes)))
        span = Span(flat.columns_of("register"))
        low = 0
        while low < flat.out_bits and 1 << low in span:
            low += 1
        return 1 << low

    def to_svg(self, title: str = "") -> str:
        """Return a picture of the layout as one SVG document; see :func:`wavetank.kernels.layouts.picture.draw`."""
        from wavetank.kernels.layouts.picture import draw

        return draw(self, title=title)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _known(self, ins: Sequence[str], outs: Sequence[str]) -> None:
        for what, names, there in (("input", ins, self.in_sizes), ("output", outs, self.out_sizes)):
            for name in names:
                if name not in there:
                    raise unknown_name(f"{what} dimension", name, there)


def linear_table(columns: Sequence[int]) -> NDArray[np.int64]:
    """Return the image of every mask of the columns, shape (2**len(columns),), by doubling.

    Raises
    ------
    BadValueError
        For more than 2**28 masks.
    """
    if len(columns) > _MOST_TABLE_BITS:
        raise BadValueError(
            "The layout has too many places to list.", given=f"2**{len(columns)}", allowed=f"2**{_MOST_TABLE_BITS}"
        )
    table = np.zeros(1 << len(columns), np.int64)
    for bit, column in enumerate(columns):
        np.bitwise_xor(table[: 1 << bit], column, out=table[1 << bit : 2 << bit])
    return table


def aligned(one: Layout, other: Layout, where: str) -> Layout:
    """Return ``one`` with its outputs in the order of ``other``'s.

    Raises
    ------
    BadValueError
        When they are layouts of different tensors.
    """
    if one.out_sizes != other.out_sizes:
        raise BadValueError(
            "The two layouts describe tensors of different shapes.",
            given=_shape_in_words(one),
            allowed=_shape_in_words(other),
            where=where,
            hint="reshape or broadcast one of them first",
        )
    names = list(other.out_sizes)
    return one if list(one.out_sizes) == names else one.transpose_outs(names)


def _as_tuple(basis: Sequence[int] | int, names: Sequence[str], where: str) -> tuple[int, ...]:
    found = tuple(basis) if isinstance(basis, Sequence) else (basis,)
    if len(found) != len(names):
        raise BadValueError(
            "A basis has one coordinate for every output dimension.",
            given=basis,
            allowed=f"{len(names)} ({', '.join(names)})",
            where=f"bases of {where!r}",
        )
    for part in found:
        if isinstance(part, bool) or not hasattr(part, "__index__") or part < 0:
            raise BadValueError("A coordinate is a whole number from 0.", given=part, where=f"bases of {where!r}")
    return tuple(part.__index__() for part in found)


def _flat(basis: Sequence[int], sizes: Mapping[str, int], where: str) -> int:
    flat = place = 0
    for part, (name, bits) in zip(basis, sizes.items(), strict=True):
        if part >> bits:
            raise BadValueError(
                f"The basis lies outside dimension {name!r}.",
                given=part,
                allowed=f"0 to {(1 << bits) - 1}",
                where=where,
                hint="a linear layout cannot describe padding" if part & (part - 1) else None,
            )
        flat |= part << place
        place += bits
    return flat


def _part(ins: Sequence[tuple[str, int]], columns: Sequence[int], name: str) -> Sequence[int]:
    start = 0
    for each, bits in ins:
        if each == name:
            return columns[start : start + bits]
        start += bits
    return ()


def _merged(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return one order that keeps both orders; the first list leads where they leave it open."""
    waiting, found = list(other), []
    rest = set(other)
    for name in one:
        if name in rest:
            place = waiting.index(name) if name in waiting else -1
            before = [each for each in waiting[:place] if each not in one] if place >= 0 else []
            if place < 0 or any(each in one for each in waiting[:place]):
                raise BadValueError(
                    "The two layouts order their dimensions in contradiction.",
                    given=f"{', '.join(one)} and {', '.join(other)}",
                    where="product",
                    hint="transpose_ins or transpose_outs one of them",
                )
            found += before
            del waiting[: place + 1]
        found.append(name)
    return found + waiting


def _permutation(names: Sequence[str], there: Mapping[str, int], where: str) -> None:
    if sorted(names) != sorted(there):
        raise BadValueError(
            "Every dimension must be named once.", given=", ".join(names), allowed=", ".join(there), where=where
        )


def _resized(sizes: Mapping[str, int], bits: int, where: str) -> list[tuple[str, int]]:
    found = [(name, log2_of(size, f"{where}, {name!r}")) for name, size in sizes.items()]
    if sum(each for _, each in found) != bits:
        raise BadValueError(
            "A reshape keeps the number of elements.",
            given=1 << sum(each for _, each in found),
            allowed=str(1 << bits),
            where=where,
        )
    return found


def _shape_in_words(layout: Layout) -> str:
    return ", ".join(f"{name}: {size}" for name, size in layout.out_sizes.items()) or "no dimensions"


def _in_words(layout: Layout) -> str:
    return f"{1 << layout.rank} of {1 << layout.out_bits} elements reached ({_shape_in_words(layout)})"
