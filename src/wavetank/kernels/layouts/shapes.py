"""What a compiler's shape operators do to layouts: no data moves, only the layout's outputs change.

Transpose, reshape, join, split, expand, broadcast and reduce each take a linear layout to a linear layout, so a
layout can be carried through a whole program, forwards and (transpose, reshape and the pairs join and split, expand
and reduce undo each other) backwards. Outputs are dim0, dim1, ..., and the last one is fastest, as in C.

Source: "Linear Layouts", arXiv 2505.23819, section 4.4 (shape operators).

Differs from the source:

1. Broadcast gives the copies registers of their own; those that were copies before stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, log2_of


def transpose(layout: Layout, order: Sequence[int]) -> Layout:
    """Return the layout of the tensor whose dimension ``i`` was dimension ``order[i]``."""
    names = list(layout.out_sizes)
    if sorted(order) != list(range(len(names))):
        raise BadValueError(
            "A transpose names every dimension once.",
            given=tuple(order),
            allowed=f"an order of 0 to {len(names) - 1}",
            where="transpose",
        )
    moved = layout.transpose_outs([names[dim] for dim in order])
    return _numbered(moved)


def reshape(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout of the same elements in another shape, in C's order."""
    for dim, size in enumerate(shape):
        log2_of(size, f"reshape, dimension {dim}")
    if math.prod(shape) != 1 << layout.out_bits:
        raise BadValueError(
            "A reshape keeps the number of elements.",
            given=tuple(shape),
            allowed=f"{1 << layout.out_bits} elements",
            where="reshape",
        )
    backwards = layout.transpose_outs(list(reversed(layout.out_sizes)))
    names = [f"dim{dim}" for dim in range(len(shape))]
    sizes = dict(reversed(list(zip(names, shape, strict=True))))
    return backwards.reshape_outs(sizes).transpose_outs(names)


def join(layout: Layout) -> Layout:
    """Return the layout of two tensors stacked along a new last dimension: a thread holds both, side by side."""
    last = f"dim{len(layout.out_sizes)}"
    pair = Layout.identity(2, "register", last)
    joined = pair * layout
    return joined.transpose_ins(_first(joined.in_sizes, layout.in_sizes)).transpose_outs([*layout.out_sizes, last])


def split(layout: Layout) -> Layout:
    """Return the layout of each half of a tensor whose last dimension has two elements.

    Raises
    ------
    BadValueError
        When the last dimension is not of size 2, or its two elements lie in different threads.
    """
    names = list(layout.out_sizes)
    if not names or layout.out_sizes[names[-1]] != 2:
        raise BadValueError(
            "Only a last dimension of size 2 can be split.", given=tuple(layout.out_sizes.values()), where="split"
        )
    registers = layout.columns_of("register")
    mask = Span(registers).express(1 << (layout.out_bits - 1))
    if mask is None:
        raise BadValueError(
            "The two halves lie in different threads.",
            given=layout.bases.get("register", ()),
            where="split",
            hint="convert to a layout whose registers hold the last dimension",
        )
    gone = (mask & -mask).bit_length() - 1
    rest = layout.sublayout(list(layout.in_sizes), names[:-1])
    bases = {name: list(vectors) for name, vectors in rest.bases.items()}
    del bases["register"][gone]
    return Layout(bases, rest.out_sizes)


def expand_dims(layout: Layout, axis: int) -> Layout:
    """Return the layout with a dimension of size 1 at ``axis``."""
    names = list(layout.out_sizes)
    if not 0 <= axis <= len(names):
        raise BadValueError("There is no such place.", given=axis, allowed=f"0 to {len(names)}", where="expand_dims")
    wider = layout * Layout({}, {"new": 1})
    return _numbered(wider.transpose_outs([*names[:axis], "new", *names[axis:]]))


def broadcast(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout with dimensions of size 1 stretched to ``shape``."""
    sizes = layout.out_sizes
    if len(shape) != len(sizes) or any(a not in (1, b) for a, b in zip(sizes.values(), shape, strict=True)):
        raise BadValueError(
            "Only dimensions of size 1 can be broadcast.",
            given=tuple(shape),
            allowed=f"{tuple(sizes.values())} with every 1 replaced",
            where="broadcast",
        )
    found = layout
    for (name, before), after in zip(sizes.items(), shape, strict=True):
        if before != after:
            found = found * Layout.identity(after, "register", name)
    return found


def reduce(layout: Layout, axis: int) -> Layout:
    """Return the layout of what a reduction along ``axis`` leaves; registers that would hold copies are left out."""
    names = list(layout.out_sizes)
    if not 0 <= axis < len(names):
        raise BadValueError("There is no such dimension.", given=axis, allowed=f"0 to {len(names) - 1}", where="reduce")
    rest = layout.sublayout(list(layout.in_sizes), [*names[:axis], *names[axis + 1 :]])
    return _numbered(rest.without_broadcast("register") if "register" in rest.in_sizes else rest)


def _numbered(layout: Layout) -> Layout:
    return layout.renamed({name: f"dim{place}" for place, name in enumerate(layout.out_sizes)})


def _first(names: Sequence[str] | dict[str, int], order: dict[str, int]) -> list[str]:
    return [*(name for name in order if name in names), *(name for name in names if name not in order)]
