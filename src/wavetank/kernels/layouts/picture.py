"""A picture of a layout that shows which thread holds which element.

Every cell is a tensor element. In a layout of threads its colour is the lane's, its text says lane and register, and
heavy lines part what different warps hold; all that one thread holds is outlined, and below it stands how the bits of
its numbers add up to one of these elements. In a layout of memory the colour is the bank's and the text the offset;
outlined is what is written, and read, at once, so that conflicts, a colour twice in one outline, are seen.

Source: the usual drawings of fragments in vendors' manuals.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from wavetank import svg
from wavetank.errors import BadValueError
from wavetank.kernels.layouts.access import Banks
from wavetank.kernels.layouts.algebra import Layout

_CELL_HEIGHT, _LEFT, _LINE = 24, 64, 19
_LEAST_WIDTH = 760
# On and around cells, whose colours are the same on light and on dark pages.
_INK = "#111"
# Of one letter at the size of the text, on the wide side.
_LETTER = 6.6
_MOST_CELLS = 4096
# A tensor of one dimension is folded into lines of this number of elements.
_FOLD = 16


def draw(
    layout: Layout,
    *,
    title: str = "",
    element_bytes: int = 4,
    banks: Banks | None = None,
    written: Collection[int] = (),
    read: Collection[int] = (),
    says: Sequence[str] = (),
) -> str:
    """Return one SVG document.

    Parameters
    ----------
    layout : Layout
        Of one or two output dimensions, from registers, lanes and warps or from offsets.
    title : str
    element_bytes : int
        For the banks of a memory layout.
    banks : Banks, optional
    written, read : collection of int
        Offsets of a memory layout that are outlined, with whole and with broken lines.
    says : sequence of str
        Sentences below the title of a memory layout.

    Raises
    ------
    BadValueError
        For more than two output dimensions or more than 4096 elements.
    """
    names, sizes = _checked(layout)
    flat = len(names) == 1
    columns = min(sizes[0], _FOLD) if flat else sizes[1]
    rows = sizes[0] // columns if flat else sizes[0]
    memory = "offset" in layout.in_sizes
    several = layout.in_sizes.get("warp", 1) > 1
    wide = 68 if several else 46
    shared = banks or Banks()
    width = max(_LEFT + columns * wide + 24, _LEAST_WIDTH)
    letters = int((width - 2 * _LEFT) / _LETTER)
    what = title or ("Memory layout" if memory else "Layout of threads")
    example = _example(layout)
    legend = [*_legend(layout, memory, several, example, shared), *says]
    heading = textwrap.wrap(what, int(letters * 0.8)) or [""]
    lines = [line for each in legend for line in textwrap.wrap(each, letters)]
    scale_top = 30 + 21 * len(heading) + _LINE * len(lines)
    colours = shared.banks if memory else layout.in_sizes.get("lane", 1)
    top = scale_top + 74
    holders = _holders(layout)

    def holding(row: int, column: int) -> list[dict[str, int]]:
        places = holders.get(row * columns + column if flat else row + column * rows, [])
        # Of several places, those of the outlined thread are named.
        return sorted(places, key=lambda place: not _is_of_thread(place, example))

    cells, outlines = [], []
    for row in range(rows):
        for column in range(columns):
            places = holding(row, column)
            x, y = _LEFT + column * wide, top + row * _CELL_HEIGHT
            cells.append(_cell(x, y, wide, places, several, colours, element_bytes if memory else 0, shared))
            for marked, style in _marks(places, example, written, read):
                outlines.append(
                    svg.element(
                        "rect", x=x + marked, y=y + marked, width=wide - 2 * marked, height=_CELL_HEIGHT - 2 * marked,
                        stroke=_INK, stroke_width=2.5, class_=f"fill-none {style}".rstrip(),
                    )
                )  # fmt: skip
    borders = []
    if not memory:
        warps = [
            [min((place.get("warp", 0) for place in holding(row, column)), default=-2) for column in range(columns)]
            for row in range(rows)
        ]
        borders = _borders(warps, top, wide)
    foot = top + rows * _CELL_HEIGHT + 34
    notes = [line for note in _notes(layout, example) for line in textwrap.wrap(note, letters)]
    height = foot + _LINE * len(notes) + 16
    axes = [
        svg.text(_LEFT + column * wide + wide / 2, top - 8, column, text_anchor="middle") for column in range(columns)
    ]
    step = columns if flat else 1
    axes += [svg.text(_LEFT - 8, top + row * _CELL_HEIGHT + 16, row * step, text_anchor="end") for row in range(rows)]
    axes.append(svg.text(_LEFT, top - 26, f"{names[-1]} →", "quiet"))
    if len(names) == 2:
        axes.append(svg.text(_LEFT - 8, top - 8, f"{names[0]} ↓", "quiet", text_anchor="end"))
    body = [
        *_texts(heading, 26, 21, looks="large strong"),
        *_texts(lines, 28 + 21 * len(heading), _LINE, "quiet"),
        *_scale("bank" if memory else "lane", colours, scale_top, width),
        *cells,
        *borders,
        svg.element("g", *outlines, class_="outlines"),
        *axes,
        *_texts(notes, foot, _LINE),
    ]
    return svg.drawing(width, height, body, title=what, says=" ".join(legend))


def _checked(layout: Layout) -> tuple[list[str], list[int]]:
    """Return names and sizes of the output dimensions."""
    names, sizes = list(layout.out_sizes), list(layout.out_sizes.values())
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
    return names, sizes


def _texts(lines: Sequence[str], top: int, step: int, tone: str = "ink", looks: str = "") -> list[str]:
    return [svg.text(_LEFT, top + step * number, line, tone, looks=looks) for number, line in enumerate(lines)]


def _scale(what: str, count: int, top: int, width: int) -> list[str]:
    """Return a strip of all colours with their numbers."""
    wide = min((width - _LEFT - 24) // count, 26)
    found = [svg.text(_LEFT - 8, top + 13, what, "quiet", text_anchor="end")]
    for number in range(count):
        x = _LEFT + number * wide
        found.append(svg.element("rect", x=x, y=top, width=wide, height=18, fill=_colour(number, count)))
        if wide >= 16 or number % 4 == 0:
            found.append(_on_colour(x + wide / 2, top + 13, str(number)))
    return found


def _on_colour(x: float, y: float, shown: str) -> str:
    """Return text on a cell, which has the same colour on a light and on a dark page."""
    return svg.element("text", svg.escape(shown), x=x, y=y, fill=_INK, text_anchor="middle", class_="small")


def _example(layout: Layout) -> dict[str, int]:
    """Return a place whose numbers have more than one bit set, where there are such places."""
    wanted = {"register": 3, "lane": 5, "warp": 1, "offset": 5}
    return {name: min(wanted.get(name, 0), size - 1) for name, size in layout.in_sizes.items()}


def _legend(layout: Layout, memory: bool, several: bool, example: dict[str, int], shared: Banks) -> list[str]:
    shape = " x ".join(map(str, layout.out_sizes.values()))
    if memory:
        return [
            f"Each cell is one element of a tensor of {shape}. Its number is where it lies in shared memory, in "
            f"elements; its colour is the bank, of {shared.banks}, that serves it."
        ]
    lane, register, warp = (example.get(name, 0) for name in ("lane", "register", "warp"))
    code = f"{f'w{warp} ' if several else ''}L{lane} r{register}"
    words = f"{f'warp {warp}, ' if several else ''}lane {lane} (a thread of the warp), register {register}"
    found = (
        f"Each cell is one element of a tensor of {shape}, and shows which thread holds it in which register: {code} "
        f"is {words}. The colour is the lane's."
    )
    if several:
        found += " Heavy lines part what different warps hold."
    if not layout.is_injective:
        found += " A grey corner: several places hold the element, and one is named."
    if not layout.is_surjective:
        found += " Empty cells are held nowhere."
    return [found, f"Outlined: all that {f'warp {warp}, ' if several else ''}lane {lane} holds."]


def _is_of_thread(place: dict[str, int], example: dict[str, int]) -> bool:
    return all(place[name] == at for name, at in example.items() if name in ("lane", "warp"))


def _marks(
    places: Sequence[dict[str, int]], example: dict[str, int], written: Collection[int], read: Collection[int]
) -> list[tuple[int, str]]:
    """Return how far in a cell is outlined, and with what looks."""
    if "offset" not in example:
        return [(2, "")] if any(_is_of_thread(each, example) for each in places) else []
    found = []
    if any(each["offset"] in written for each in places):
        found.append((2, ""))
    if any(each["offset"] in read for each in places):
        found.append((5 if found else 2, "dashed"))
    return found


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
    x: int,
    y: int,
    wide: int,
    places: Sequence[dict[str, int]],
    several: bool,
    colours: int,
    element_bytes: int,
    shared: Banks,
) -> str:
    if not places:
        fill, text, title = "#f3f3f3", "", "held nowhere"
    elif element_bytes:
        offset = places[0]["offset"]
        bank = offset * element_bytes // shared.word_bytes % shared.banks
        fill, text, title = _colour(bank, colours), str(offset), f"offset {offset}, bank {bank}"
    else:
        first = places[0]
        lane, register = first.get("lane", 0), first.get("register", 0)
        fill, text = _colour(lane, colours), f"L{lane} r{register}"
        if several:
            text = f"w{first['warp']} {text}"
        title = "; ".join(", ".join(f"{name} {place}" for name, place in at.items()) for at in places[:4]) + (
            f"; and {len(places) - 4} more" if len(places) > 4 else ""
        )
    corner = svg.element("path", d=f"M{x + wide - 8},{y} h8 v8 z", fill="#666") if len(places) > 1 else ""
    cell = svg.element("rect", x=x, y=y, width=wide, height=_CELL_HEIGHT, fill=fill, stroke="#fff")
    return svg.element(
        "g", svg.element("title", svg.escape(title)), cell, corner, _on_colour(x + wide / 2, y + 16, text)
    )


def _colour(number: int, count: int) -> str:
    # Neighbouring numbers get neighbouring hues, two lightnesses keep runs of eight apart.
    hue = round(360 * (number % count) / count)
    return f"hsl({hue} 70% {82 if number // 8 % 2 else 74}%)"


def _borders(owners: Sequence[Sequence[int]], top: int, wide: int) -> list[str]:
    """Return a line wherever two neighbours, or a cell and the outside, belong to different warps."""
    rows, columns = len(owners), len(owners[0])

    def warp(row: int, column: int) -> int:
        return owners[row][column] if 0 <= row < rows and 0 <= column < columns else -1

    lines = []
    for row in range(rows + 1):
        for column in range(columns + 1):
            x, y = _LEFT + column * wide, top + row * _CELL_HEIGHT
            if column < columns and warp(row, column) != warp(row - 1, column):
                lines.append(_border(f"M{x},{y} h{wide}"))
            if row < rows and warp(row, column) != warp(row, column - 1):
                lines.append(_border(f"M{x},{y} v{_CELL_HEIGHT}"))
    return lines


def _border(d: str) -> str:
    return svg.element("path", d=d, stroke=_INK, stroke_width=2.4, stroke_linecap="square")


def _notes(layout: Layout, example: dict[str, int]) -> list[str]:
    """Return where the bits of each input lead, and how those of one place add up to its element."""
    outs = ", ".join(layout.out_sizes)
    notes = [f"The whole layout in {layout.in_bits} numbers: where each bit leads, as {outs}."]
    led = []
    for name, bases in layout.bases.items():
        at = [basis if len(basis) > 1 else basis[0] for basis in bases]
        images = ";  ".join(f"{1 << bit} → {image}" for bit, image in enumerate(at))
        notes.append(f"{name} (of {1 << len(bases)}): {images or 'one only'}")
        bits = [bit for bit in range(len(bases)) if example[name] >> bit & 1]
        if bits:
            number = " + ".join(str(1 << bit) for bit in bits)
            parts = " xor ".join(str(at[bit]) for bit in bits)
            led.append(f"{name} {example[name]}{f' = {number}' if len(bits) > 1 else ''} leads to {parts}")
    element = tuple(layout.apply(**example).values())
    place = ", ".join(f"{name} {at}" for name, at in example.items())
    where = f"({', '.join(map(str, element))})" if len(element) > 1 else str(element[0])
    notes.append(f"For example {place}: {'; '.join(led) or 'no bit is set'}. All together, by xor: element {where}.")
    return notes
