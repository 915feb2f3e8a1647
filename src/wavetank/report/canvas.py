"""The paper and pens of the charts: looks of systems, axes with exact margins, and SVG that belongs to a page.

Matplotlib draws with stand-in colours; the finished SVG names CSS variables instead, with the light tones as fallback,
so that one drawing serves light, dark and paper.  Equal calls give equal bytes: the object API, a fixed salt for ids,
no date, and none of the user's own matplotlib settings.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from wavetank import units
from wavetank.report.scale import RAISED, shortened
from wavetank.svg import element, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

# Light tones; the page replaces them in dark mode.  Found by a search for the largest least distance between any two
# under simulated protanopia, deuteranopia and tritanopia.  Position 0 is the baseline.
PALETTE = (
    "#6b7280", "#1e91e8", "#b97c5b", "#186149", "#792971", "#958a12", "#48429f", "#902717", "#187899", "#6e7104",
)  # fmt: skip
REST = "#8b929c"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", "h")
DASHES = ((), (6, 2), (2, 1.6), (7, 2, 1.6, 2), (4, 1.6), (9, 3), (1.2, 1.2), (7, 2, 1.6, 2, 1.6, 2), (3, 3), (5, 1))
WIDTH = 460
SIZE = 12
_GAP = 6  # between two labels of an axis, in pixels

# Stand-ins that matplotlib can write; each becomes a CSS variable in the finished drawing.
TEXT, MUTED, _GRID = "#fd0001", "#fd0002", "#fd0003"
_VARIABLES = {TEXT: "currentColor", MUTED: "var(--muted, #5d6570)", _GRID: "var(--grid, #dfe3e8)"}

# The markers around (15, 6), for legends.
_SHAPES = {
    "o": "M11 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M11.3 2.3h7.4v7.4h-7.4z",
    "^": "M15 1.5l4.5 8h-9z",
    "D": "M15 1l5 5l-5 5l-5-5z",
    "v": "M15 10.5l4.5-8h-9z",
    "P": "M13.5 1.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "X": "M12.7 1.5l2.3 2.3l2.3-2.3l2.2 2.2l-2.3 2.3l2.3 2.3l-2.2 2.2l-2.3-2.3l-2.3 2.3l-2.2-2.2l2.3-2.3l-2.3-2.3z",
    "<": "M10.5 6l8-4.5v9z",
    "p": "M15 1.3l4.7 3.4l-1.8 5.5h-5.8l-1.8-5.5z",
    "h": "M15 1l4.4 2.5v5l-4.4 2.5l-4.4-2.5v-5z",
}

Spot = tuple[float, float]
_Box = tuple[float, float, float, float]
# Beyond all distances at which a name is looked for around its point.
_ANYWHERE = 100.0


@dataclass(frozen=True)
class Style:
    """How a system looks in every chart.

    Attributes
    ----------
    index : int
        Place among the study's systems; the series id in the drawing.
    colour : int
        Place in :data:`PALETTE`, -1 for the thin grey of those that come after its end.
    marker : str
    dash : tuple of float
    """

    index: int
    colour: int
    marker: str
    dash: tuple[float, ...]

    @property
    def css(self) -> str:
        """Return the colour as CSS."""
        return f"var(--series-{self.colour}, {PALETTE[self.colour]})" if self.colour >= 0 else f"var(--rest, {REST})"

    @property
    def ink(self) -> str:
        """Return the stand-in for the colour while drawing."""
        return f"#fe00{self.colour if self.colour >= 0 else 255:02x}"

    def swatch(self) -> str:
        """Return a piece of the line with its marker, for a legend."""
        dash = " ".join(f"{length:g}" for length in self.dash) or "none"
        return (
            f'<svg class="swatch" width="30" height="12" viewBox="0 0 30 12" aria-hidden="true" '
            f'style="stroke: {self.css}; fill: {self.css}">'
            f'<line x1="0" y1="6" x2="30" y2="6" stroke-width="2" stroke-dasharray="{dash}"/>'
            f'<path stroke="none" d="{_SHAPES[self.marker]}"/></svg>'
        )


@dataclass(frozen=True)
class Span:
    """What an axis covers.

    Attributes
    ----------
    low, high : float
    log : bool
    nines : bool
        Whether the values are one minus a quantile, so that 99.9 % lies as far from 99 % as that from 90 %.
    """

    low: float
    high: float
    log: bool
    nines: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        log: bool,
        *,
        zero: bool = False,
        waste: float = 1.0,
        pad: float = 0.05,
        nines: bool = False,
        share: bool = False,
    ) -> Span:
        """Return the span that holds ``values`` with some air; logarithmic only where a value is above zero.

        Parameters
        ----------
        values : iterable of float
        log : bool
        zero : bool
            Whether a linear axis begins at zero, as bars need it.
        waste : float
            With ``zero``, the share of the axis up to which zero may lie away from the values: 1 is any distance.
        pad : float
            Share of the range left free at either end.
        nines : bool
        share : bool
            Whether no value can be above 1, so that no tick stands there.
        """
        known = [value for value in values if drawable(value)]
        positive = [value for value in known if value > 0]
        if log and positive:
            low, high = math.log10(min(positive)), math.log10(max(positive))
            air = max((high - low) * pad, 0.04)
            return cls(10 ** (low - air), 10 ** (high + air), True, nines)
        if not any(known):
            return cls(0.0, 1.0, False)
        low, high = min(known), max(known)
        if zero and 0 <= low <= waste * high:
            low = 0.0
        if zero and high <= 0:
            high = 0.0
        air = (high - low) * pad or abs(high) * 0.1 or 0.5
        first, last = low - air * (low != 0 or not zero), high + air * (high != 0 or not zero)
        if share and high <= 1:
            # A little air, so that a mark at 1 is whole.
            last = min(last, 1 + 0.02 * (1 - first))
        return cls(first, last, False)

    def holds(self, value: float) -> bool:
        """Return whether a value can be drawn on this axis."""
        return drawable(value) and (value > 0 or not self.log)

    def clipped(self, value: float) -> float:
        """Return the value, or the end of the axis beyond which it lies."""
        return min(max(value, self.low), self.high)

    def share_of(self, value: float) -> float:
        """Return how far along the axis a value lies, from 0 at its beginning to 1 at its end."""
        if self.log:
            along = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            along = (value - self.low) / (self.high - self.low)
        return 1 - along if self.nines else along

    def ticks(self, length: float, *, across: bool) -> list[tuple[float, str]]:
        """Return places and texts of as many ticks as there is room for: no text touches the next one.

        Parameters
        ----------
        length : float
            Of the axis, in pixels.
        across : bool
            Whether the axis is the horizontal one.
        """
        ticks: list[tuple[float, str]] = []
        for places in self._choices():
            ticks = [(place, self._tick(place)) for place in places if self.low <= place <= self.high]
            if len(ticks) > 1 and self._apart(ticks, length, across):
                return ticks
        return ticks[:1]

    def _choices(self) -> Iterator[Sequence[float]]:
        """Yield sets of ticks, the densest first."""
        from matplotlib.ticker import MaxNLocator

        if self.nines:
            powers = [10.0**-power for power in range(1, 9)]
            # Next to several nines there is no room for 10 %.
            yield from ([0.9, 0.5, *powers], [0.5, *powers], powers, powers[::2], powers[1::2], powers[::3])
        if self.log and not self.nines:
            decades = math.log10(self.high / self.low)
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            if decades < 0.8:
                yield self._powers((1, 2, 3, 5, 7), range(first, last + 1))
            if decades < 2.5:
                yield self._powers((1, 2, 5), range(first, last + 1))
            for step in range(max(1, round(decades / 7)), last - first + 1):
                yield self._powers((1,), range(first, last + 1, step))
        for count in (6, 5, 4, 3, 2, 1):
            yield [float(tick) for tick in MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)]

    def _powers(self, factors: Sequence[int], powers: Iterable[int]) -> list[float]:
        return [factor * 10.0**power for power in powers for factor in factors]

    def _tick(self, place: float) -> str:
        return f"{100 * (1 - place):.10g} %" if self.nines else _tick(place)

    def _apart(self, ticks: Sequence[tuple[float, str]], length: float, across: bool) -> bool:
        ends = sorted(
            (middle - half, middle + half)
            for place, text in ticks
            for middle, half in [(self.share_of(place) * length, (wide(text) if across else SIZE) / 2)]
        )
        return all(after[0] - before[1] >= _GAP for before, after in itertools.pairwise(ends))

    def room(self, length: float) -> float:
        """Return the width of the tick labels of an upright axis that is ``length`` pixels long, in pixels."""
        return max([wide(text) for _, text in self.ticks(length, across=False)], default=20) + 12

    def put(self, axes: Axes, side: Literal["x", "y"]) -> None:
        """Make this the horizontal or the upright axis."""
        from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

        axis = axes.xaxis if side == "x" else axes.yaxis
        if self.log:
            (axes.set_xscale if side == "x" else axes.set_yscale)("log")
        ends = (self.high, self.low) if self.nines else (self.low, self.high)
        (axes.set_xlim if side == "x" else axes.set_ylim)(*ends)
        box = axes.get_window_extent()
        ticks = self.ticks(box.width if side == "x" else box.height, across=side == "x")
        axis.set_major_locator(FixedLocator([place for place, _ in ticks]))
        axis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
        axis.set_minor_locator(NullLocator())


def drawable(value: float) -> bool:
    """Return whether a figure is finite and small enough to be a place in a picture."""
    return math.isfinite(value) and abs(value) < 1e100


def wide(text: str) -> float:
    """Return an upper bound of the width of a usual text in pixels."""
    return 0.64 * SIZE * len(text)


def _tick(value: float) -> str:
    text = units.stated(value)
    if len(text) <= 7 and "e" not in text:
        return text
    digits, _, power = f"{value:.4e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    ten = "10" + str(int(power)).translate(RAISED)
    return {"1": ten, "-1": f"-{ten}"}.get(digits, f"{digits}×{ten}") if int(power) else digits


def plot_area(left: float, right: float, inner: float, *, top: float = 30, below: float = 50) -> tuple[Figure, Axes]:
    """Return a figure whose plot area has exact margins in pixels (at 72 dots an inch a point is a pixel)."""
    from matplotlib.figure import Figure

    height = top + inner + below
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    axes = figure.add_axes((left / WIDTH, below / height, (WIDTH - left - right) / WIDTH, inner / height))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def titles(axes: Axes, across: str, up: str = "") -> None:
    """Name the axes: the horizontal one at its right end, the upright one above it, where it reads without turning."""
    box = axes.get_window_extent()
    right = min(max(box.x1, 2 + wide(across)), WIDTH - 2)
    across = shortened(across, int((right - 2) / wide("x")))
    axes.annotate(
        across, (right, box.y0 - 40), xycoords="figure pixels", annotation_clip=False, ha="right", color=MUTED
    )
    if up:
        axes.annotate(
            shortened(up, int((WIDTH - 4) / wide("x"))),
            (2, box.y1 + 14),
            xycoords="figure pixels",
            annotation_clip=False,
            color=MUTED,
        )


def word(axes: Axes, text: str, at: tuple[float, float], frame: Any, **looks: Any) -> None:
    """Write beside a place, a few pixels to its right unless ``looks`` says otherwise."""
    plain = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(text, at, xycoords=frame, **{**plain, **looks})


def label_points(
    axes: Axes, names: Mapping[int, str], spots: Mapping[int, Spot], others: Sequence[tuple[Spot, Spot]]
) -> None:
    """Name every point where the name covers neither another point nor another name.

    Parameters
    ----------
    axes : Axes
        With its final limits.
    names, spots : mapping
        Series id to name and to place.
    others : sequence of pair
        Opposite corners of what else should stay visible.
    """
    box = axes.get_window_extent()
    pixels = {index: _pixels(axes, spot) for index, spot in spots.items()}
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in pixels.values()]
    for one, other in others:
        (left, low), (right, high) = _pixels(axes, one), _pixels(axes, other)
        taken.append((left - 2, low - 2, right + 2, high + 2))
    written: list[_Box] = []
    for index, (x, y) in sorted(pixels.items(), key=lambda item: (item[1], item[0])):
        text = shortened(names[index], 28)
        best, best_cost = (0.0, 0.0, 0.0, 0.0), math.inf
        for spot, far in itertools.chain(_around(x, y, wide(text)), _anywhere(x, y, wide(text), box)):
            if math.isfinite(best_cost) and far >= _ANYWHERE:
                break
            if any(_overlap(spot, other) for other in written):
                continue
            cost = far * 0.35 + sum(_overlap(spot, other) for other in taken)
            cost += 50 * (max(0, box.x0 - spot[0]) + max(0, spot[2] - box.x1 - 12))
            cost += 50 * (max(0, box.y0 - spot[1]) + max(0, spot[3] - box.y1))
            if cost < best_cost - 1e-9:
                best, best_cost = spot, cost
        if math.isinf(best_cost):
            # No place is left: the table of the figures has the name.
            continue
        written.append((best[0] - 3, best[1] - 1, best[2] + 3, best[3] + 1))
        taken.append(best)
        near = (min(max(x, best[0]), best[2]), min(max(y, best[1]), best[3]))
        if math.dist(near, (x, y)) > 14:
            axes.annotate(
                "",
                near,
                (x, y),
                xycoords="figure pixels",
                textcoords="figure pixels",
                arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.8, "shrinkA": 5, "shrinkB": 0},
            )
        middle = (best[1] + best[3]) / 2
        side = ("right", best[2]) if best[2] < x else ("left", best[0])
        axes.annotate(
            text, (side[1], middle), xycoords="figure pixels", ha=side[0], va="center", zorder=5,
            gid=f"series-{index}-label",
        )  # fmt: skip


def _around(x: float, y: float, width: float) -> Iterator[tuple[_Box, float]]:
    """Yield places of a name around a point, with their distance."""
    for radius in (11, 16, 24, 34, 46, 60, 76, 94):
        for turn in range(16):
            angle = math.pi * turn / 8
            # The label hangs on the side it lies on: right of the point it begins there, left of it it ends there.
            left = x + radius * math.cos(angle) - width * (1 - math.cos(angle)) / 2
            middle = y + radius * math.sin(angle)
            yield (left, middle - SIZE / 2 - 1, left + width, middle + SIZE / 2 + 1), radius


def _anywhere(x: float, y: float, width: float, box: Bbox) -> Iterator[tuple[_Box, float]]:
    """Yield places of a name all over the plot area, for points whose surroundings are full."""
    for row in range(int((box.y1 - box.y0) // 15)):
        for column in range(int((box.x1 + 12 - box.x0 - width) // 12) + 1):
            left, low = box.x0 + 12 * column, box.y0 + 15 * row + 1
            far = math.dist((x, y), (left + width / 2, low + SIZE / 2))
            yield (left, low, left + width, low + SIZE + 2), _ANYWHERE + far


def label_ends(axes: Axes, names: Mapping[int, str], tips: Mapping[int, Spot]) -> None:
    """Name curves at their right end, moved apart where they would cover each other."""
    box = axes.get_window_extent()
    order = sorted((_pixels(axes, tip)[1], index) for index, tip in tips.items())
    heights = [height for height, _ in order]
    spread = SIZE + 3.0
    for number in range(1, len(heights)):
        heights[number] = max(heights[number], heights[number - 1] + spread)
    for number in range(len(heights)):
        heights[number] = min(heights[number], box.y1 + 4 - spread * (len(heights) - 1 - number))
    for (_, index), height in zip(order, heights, strict=True):
        word(
            axes,
            shortened(names[index], 24),
            (box.x1, height),
            "figure pixels",
            gid=f"series-{index}-label",
        )


def _pixels(axes: Axes, spot: Spot) -> Spot:
    x, y = axes.transData.transform(spot)
    return float(x), float(y)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return across * up if across > 0 and up > 0 else 0.0


@contextmanager
def steady() -> Iterator[None]:
    """Draw with fixed settings inside the block, whatever the user's matplotlibrc says."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "wavetank",
                "svg.fonttype": "none",
                "font.family": "DejaVu Sans",
                "font.size": SIZE,
                "text.color": TEXT,
                "text.parse_math": False,
                "axes.edgecolor": MUTED,
                "axes.linewidth": 0.8,
                "axes.unicode_minus": False,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "xtick.labelcolor": TEXT,
                "ytick.labelcolor": TEXT,
                "xtick.major.size": 3,
                "xtick.major.pad": 8,
                "ytick.major.size": 0,
                "grid.color": _GRID,
                "grid.linewidth": 0.8,
                "lines.solid_capstyle": "round",
                "lines.scale_dashes": False,
            }
        )
        yield


def finish(figure: Figure, prefix: str, title: str, description: str) -> str:
    """Return the figure as an SVG element for a page; to be called under :func:`steady`.

    Parameters
    ----------
    figure : Figure
    prefix : str
        Put before every id; unique in the page.
    title, description : str
        The text alternative: a name, and what there is to see with the key figures.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    canvas, sink = FigureCanvasSVG(figure), io.StringIO()
    canvas.print_figure(sink, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = sink.getvalue()
    # The style element would reach beyond the drawing; the page says the same of its charts.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' transform="rotate\(-?0 [^"]*\)"|; font-family: [^;"]*', "", text)
    # Series ids become attributes that a script can select on: one series has several parts.
    text = re.sub(r'<g id="series-(\d+)-[^"]*"', r'<g class="series" data-series="\1"', text)
    text = re.sub(r'<g id="(paper|front)"', r'<g class="\1"', text)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-")
    text = re.sub(r"(fill|stroke): (#f[de]00[0-9a-f]{2})", lambda match: f"{match[1]}: {_css(match[2])}", text)
    text = re.sub(r' (?:d|points|transform|x|y|width|height)="[^"]*"', _rounded, text)
    text = re.sub(r"\n\s*", "\n", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    _, _, drawn = text[text.index("<svg") :].partition(">")
    return element(
        "svg",
        element("title", escape(title), id=f"{prefix}-title"),
        element("desc", escape(description), id=f"{prefix}-desc"),
        drawn.rstrip().removesuffix("</svg>"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=box[1] if box else None,
        role="img",
        class_="chart",
        aria_labelledby=f"{prefix}-title {prefix}-desc",
    )


def _css(ink: str) -> str:
    if ink in _VARIABLES:
        return _VARIABLES[ink]
    colour = int(ink[-2:], 16)
    return Style(0, colour if colour < len(PALETTE) else -1, "o", ()).css


def _rounded(match: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), match[0])


def stacked(title: str, drawings: Sequence[str]) -> str:
    """Return finished drawings below each other, as one SVG file.

    Parameters
    ----------
    title : str
    drawings : sequence of str
        As :func:`finish` returns them.
    """
    parts, height = [], 0.0
    for drawing in drawings:
        box = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawing)
        tall = float(box[1]) if box else 0.0
        parts.append(drawing.replace("<svg ", f'<svg y="{height:g}" width="{WIDTH}" height="{tall:g}" ', 1))
        height += tall
    style = "<style>text { font-family: system-ui, sans-serif; }</style>"
    return element(
        "svg",
        element("title", escape(title)),
        style,
        element("rect", width="100%", height="100%", fill="#ffffff"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:g}",
        width=WIDTH,
        height=height,
    )
