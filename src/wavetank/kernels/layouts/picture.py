"""A picture of a layout that tells at a glance who holds what.

Every cell is a tensor element. In a layout of threads its colour is the lane's, its text says lane and register, and
heavy lines part what different warps hold; in a layout of memory its colour is the bank's and its text the offset. A
grey corner marks elements that several places hold. Below stand the bases, in words.

Source: the usual drawings of fragments in vendors' manuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.swizzle import Banks

_CELL_HEIGHT, _LEFT, _TOP = 24, 64, 92
_MOST_CELLS = 4096
# A tensor of one dimension is folded into lines of so many elements.
_FOLD = 16
_FONT = "font-family='system-ui, sans-serif'"


def draw(layout: Layout, *, title: str = "", element_bytes: int = 4, banks: Banks | None = None) -> str:
    """Return one SVG document.

    Parameters
    ----------
    layout : Layout
        Of one or two output dimensions, from registers, lanes and warps or from offsets.
    title : str
    element_bytes : int
        For the banks of a memory layout.
    banks : Banks, optional

    Raises
    ------
    BadValueError
        For more than two output dimensions or more than 4096 elements.
    """
    names = list(layout.out_sizes)
    sizes = list(layout.out_sizes.values())
    if not 1 <= len(names) <= 2:
        raise BadValueError(
            "A picture has one or two dimensions.", given=len(names), allowed="1 or 2", hint="reshape or slice first"
        )
    if 1 << layout.out_bits > _MOST_CELLS:
        raise BadValueError(
            "The tensor is too large for a picture.",
            given=" x ".join(map(str, sizes)),
            allowed=f"{_MOST_CELLS} elements",
            hint="draw the layout of a smaller tensor: larger ones repeat it",
        )
    flat = len(names) == 1
    columns = min(sizes[0], _FOLD) if flat else sizes[1]
    rows = sizes[0] // columns if flat else sizes[0]
    memory = "offset" in layout.in_sizes
    several = layout.in_sizes.get("warp", 1) > 1
    wide = 66 if several else 46
    holders = _holders(layout)
    cells, lines = [], []
    for row in range(rows):
        for column in range(columns):
            places = holders.get(row * columns + column if flat else row + column * rows, [])
            x, y = _LEFT + column * wide, _TOP + row * _CELL_HEIGHT
            cells.append(_cell(x, y, wide, places, several, memory, (element_bytes, banks or Banks())))
    if not memory:
        lines = _borders(layout, holders, rows, columns, flat, wide)
    width = max(_LEFT + columns * wide + 24, 620)
    foot = _TOP + rows * _CELL_HEIGHT + 34
    notes = _notes(layout)
    height = foot + 19 * len(notes) + 16
    what = title or ("Memory layout" if memory else "Layout of threads")
    axes = [
        f"<text x='{_LEFT + column * wide + wide / 2}' y='{_TOP - 8}' text-anchor='middle'>{column}</text>"
        for column in range(columns)
    ]
    step = columns if flat else 1
    axes += [
        f"<text x='{_LEFT - 8}' y='{_TOP + row * _CELL_HEIGHT + 16}' text-anchor='end'>{row * step}</text>"
        for row in range(rows)
    ]
    axes.append(f"<text x='{_LEFT}' y='{_TOP - 26}' fill='#555'>{escape(names[-1])} →</text>")
    if len(names) == 2:
        axes.append(f"<text x='{_LEFT - 8}' y='{_TOP - 8}' text-anchor='end' fill='#555'>{escape(names[0])} ↓</text>")
    legend = (
        "colour: bank (0 to 31); number: offset in elements"
        if memory
        else "colour: lane; w0 L3 r1: warp 0, lane 3, register 1; heavy lines: another warp; grey corner: held twice"
    )
    told = [
        f"<text x='{_LEFT}' y='{foot + 19 * number}' fill='#222'>{escape(note)}</text>"
        for number, note in enumerate(notes)
    ]
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
            f"role='img' aria-label='{escape(what, quote=True)}' {_FONT} font-size='12'>",
            f"<title>{escape(what)}</title>",
            f"<rect width='{width}' height='{height}' fill='white'/>",
            f"<text x='{_LEFT}' y='24' font-size='15' font-weight='600' fill='#111'>{escape(what)}</text>",
            f"<text x='{_LEFT}' y='44' fill='#555'>{escape(legend)}</text>",
            "<g>",
            *cells,
            "</g>",
            "<g stroke='#111' stroke-width='2.4' stroke-linecap='square'>",
            *lines,
            "</g>",
            "<g fill='#222'>",
            *axes,
            "</g>",
            *told,
            "</svg>",
        ]
    )


def _holders(layout: Layout) -> dict[int, list[dict[str, int]]]:
    """Return for each flat element the places that hold it."""
    found: dict[int, list[dict[str, int]]] = {}
    sizes = list(layout.in_sizes.items())
    for place, element in enumerate(layout.table().tolist()):
        at, rest = {}, place
        for name, size in sizes:
            at[name] = rest % size
            rest //= size
        found.setdefault(element, []).append(at)
    return found


def _cell(
    x: int, y: int, wide: int, places: Sequence[dict[str, int]], several: bool, memory: bool, banks: tuple[int, Banks]
) -> str:
    if not places:
        fill, text, told = "#f3f3f3", "", "held nowhere"
    elif memory:
        offset = places[0]["offset"]
        element_bytes, shared = banks
        bank = offset * element_bytes // shared.word_bytes % shared.banks
        fill, text, told = _colour(bank, shared.banks), str(offset), f"offset {offset}, bank {bank}"
    else:
        first = places[0]
        lane, register = first.get("lane", 0), first.get("register", 0)
        fill, text = _colour(lane, 32), f"L{lane} r{register}"
        if several:
            text = f"w{first['warp']} {text}"
        told = "; ".join(", ".join(f"{name} {place}" for name, place in at.items()) for at in places[:4]) + (
            f"; and {len(places) - 4} more" if len(places) > 4 else ""
        )
    corner = ""
    if len(places) > 1:
        right = x + wide
        corner = f"<path d='M{right - 8},{y} h8 v8 z' fill='#666'/>"
    return (
        f"<g><title>{escape(told)}</title><rect x='{x}' y='{y}' width='{wide}' height='{_CELL_HEIGHT}' "
        f"fill='{fill}' stroke='#fff' stroke-width='1'/>{corner}"
        f"<text x='{x + wide / 2}' y='{y + 16}' text-anchor='middle' font-size='11' fill='#111'>{text}</text></g>"
    )


def _colour(number: int, count: int) -> str:
    # Neighbouring numbers get neighbouring hues, two lightnesses keep runs of eight apart.
    hue = round(360 * (number % count) / count)
    return f"hsl({hue} 70% {82 if number // 8 % 2 else 74}%)"


def _borders(
    layout: Layout, holders: dict[int, list[dict[str, int]]], rows: int, columns: int, flat: bool, wide: int
) -> list[str]:
    def warp(row: int, column: int) -> int:
        if not (0 <= row < rows and 0 <= column < columns):
            return -1
        places = holders.get(row * columns + column if flat else row + column * rows, [])
        return places[0].get("warp", 0) if places else -2

    lines = []
    for row in range(rows + 1):
        for column in range(columns + 1):
            x, y = _LEFT + column * wide, _TOP + row * _CELL_HEIGHT
            if column < columns and warp(row, column) != warp(row - 1, column):
                lines.append(f"<path d='M{x},{y} h{wide}'/>")
            if row < rows and warp(row, column) != warp(row, column - 1):
                lines.append(f"<path d='M{x},{y} v{_CELL_HEIGHT}'/>")
    return lines


def _notes(layout: Layout) -> list[str]:
    """Return one line for each input dimension: where its bits lead."""
    notes = []
    names = ", ".join(layout.out_sizes)
    for name, bases in layout.bases.items():
        images = "; ".join(f"{1 << bit} → {basis if len(basis) > 1 else basis[0]}" for bit, basis in enumerate(bases))
        notes.append(f"{name} (of {1 << len(bases)}): {images or 'one only'}")
    notes.append(f"Each place is the xor of what its bits lead to; coordinates are {names}.")
    return notes
