"""What every kind of chart is made of: the finished drawing, the looks of systems, and words beside the figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.errors import WavetankError
from wavetank.files import write_atomic
from wavetank.ledger import catalog
from wavetank.report.canvas import DASHES, MARKERS, PALETTE, Spot, Style, drawable, finish, stacked
from wavetank.study.records import canonical_at, json_number
from wavetank.svg import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.ledger.claims import Finding
    from wavetank.report.scale import Scale
    from wavetank.run.comparison import Comparison
    from wavetank.study.study import Chart, Metric
    from wavetank.study.summary import Row

PANELS = 8
TABLE_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One figure of a drawing, for what a pointer asks for and for files of the figures.

    Attributes
    ----------
    index : int
        The series id in the drawing.
    x, y : float
        Where the figure is: in the units of the axes, after :meth:`Brush.panel` in pixels of the drawing.
    at : float or str
        The place along the horizontal axis, or the group of a bar, in the unit shown.
    median, low, high : float
        In the unit shown.
    """

    index: int
    x: float
    y: float
    at: float | str
    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing.

    Attributes
    ----------
    heading : str
        The case it shows, empty where there is only one.
    svg : str
    box : tuple of float
        The left, upper, right and lower edge of the plot area, in pixels of the drawing.
    marks : tuple of Mark
    """

    heading: str
    svg: str
    box: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Key:
    """One entry of a legend.

    Attributes
    ----------
    system : str
    index : int
        The series id in the drawings.
    swatch : str
        A piece of the line, as SVG.
    """

    system: str
    index: int
    swatch: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart that is ready for the page.

    Attributes
    ----------
    kind, title, says : str
        As the study has them.
    panels : tuple of Panel
        Empty when there is nothing to draw; ``notes`` then says why.
    legend : tuple of Key
        Empty where series are named in the drawing.
    notes : tuple of str
        What is not drawn, and what hollow marks mean.
    head : tuple of str
    body : tuple of tuple of str
        The plotted figures as a table.
    names : tuple of (str, str)
        Name and unit of ``at`` and of the figures of the marks.
    series : tuple of (int, str, str)
        Id, name and colour of every system that has marks.
    """

    kind: str
    title: str
    says: str
    panels: tuple[Panel, ...] = ()
    legend: tuple[Key, ...] = ()
    notes: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    body: tuple[tuple[str, ...], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    series: tuple[tuple[int, str, str], ...] = ()

    def marks(self) -> dict[str, Any]:
        """Return the figures of the drawings, and where in them each one is, as JSON holds them."""
        return {
            "title": self.title,
            "kind": self.kind,
            "names": self.names,
            "series": self.series,
            "panels": [
                {
                    "heading": panel.heading,
                    "box": [round(edge, 1) for edge in panel.box],
                    "marks": [
                        [
                            mark.index, round(mark.x, 1), round(mark.y, 1), _brief(mark.at),
                            *map(_brief, (mark.median, mark.low, mark.high)),
                        ]
                        for mark in panel.marks
                    ],
                }
                for panel in self.panels
            ],
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the chart as an SVG file, its panels below each other, and return where it is."""
        target = Path(path)
        try:
            write_atomic(target, stacked(self.title, [panel.svg for panel in self.panels]))
        except OSError as error:
            raise WavetankError(
                f"The chart cannot be written: {error.strerror or error}.", where=str(target)
            ) from error
        return target

    def __repr__(self) -> str:
        return (
            f"<Chart {self.title!r}: {self.kind}, {len(self.panels)} {'panel' if len(self.panels) == 1 else 'panels'}>"
        )

    def _repr_html_(self) -> str:
        keys = "".join(f"<li>{key.swatch} {escape(key.system)}</li>" for key in self.legend)
        return "\n".join(
            [
                f"<figure><figcaption><strong>{escape(self.title)}</strong> {escape(self.says)}</figcaption>",
                *(f"<p>{escape(panel.heading)}</p>\n{panel.svg}" for panel in self.panels),
                f"<ul>{keys}</ul>" if keys else "",
                *(f"<p>{escape(note)}</p>" for note in self.notes),
                "</figure>",
            ]
        )


def _brief(value: float | str) -> float | str | None:
    """Return a figure with the digits that a reader of a chart can use."""
    if isinstance(value, str):
        return value
    shorter = json_number(float(f"{value:.6g}"))
    return int(shorter) if isinstance(shorter, float) and shorter.is_integer() else shorter


def styles(comparison: Comparison) -> dict[str, Style]:
    """Return the look of every system: by its place in a plain run, whichever systems a run has.

    Where there are more systems than colours, those of the study's own papers and a user's own have them.
    """
    study, systems = comparison.study, catalog.everything().systems
    order = list(dict.fromkeys([*catalog.everything().plain_run(study.name), *comparison.plan.systems]))
    rivals = [name for name in order if name != study.baseline]
    if len(rivals) >= len(PALETTE):
        rivals.sort(key=lambda name: 1 if name not in systems else 0 if systems[name].role == "system" else 2)
    found = {study.baseline: Style(0, 0, MARKERS[0], (4, 3))} if study.baseline in order else {}
    for place, name in enumerate(rivals):
        turn = place % (len(MARKERS) - 1)
        colour = place + 1 if place + 1 < len(PALETTE) else -1
        found[name] = Style(0, colour, MARKERS[turn + 1], DASHES[turn])
    return {name: replace(found[name], index=index) for index, name in enumerate(order)}


@dataclass(frozen=True)
class Brush:
    """What every kind of chart needs."""

    comparison: Comparison
    chart: Chart
    prefix: str
    metrics: Mapping[str, Metric]
    styles: Mapping[str, Style]

    @property
    def y(self) -> Metric:
        """Return the metric that runs upwards, or along the bars."""
        return self.metrics[self.chart.y]

    def order(self, systems: Iterable[str]) -> list[str]:
        """Return the systems in the order of the study."""
        return sorted(set(systems), key=lambda name: self.styles[name].index)

    def papers(self, row: Row) -> list[tuple[Finding, float]]:
        """Return the claims with a figure of their source for a row, and that figure in the row's unit."""
        at = canonical_at(row.at)
        found = []
        for finding in self.comparison.findings:
            claim = finding.claim
            here = (claim.system, claim.metric, canonical_at(claim.at)) == (row.system, row.metric, at)
            if claim.paper is None or not here:
                continue
            value = claim.paper
            if finding.versus is not None:
                rivals = (
                    other.median
                    for other in self.comparison.rows
                    if (other.system, other.metric) == (finding.versus, row.metric) and canonical_at(other.at) == at
                )
                value *= next(rivals, math.nan)
            if drawable(value):
                found.append((finding, value))
        return found

    def mark(self, system: str, spot: Spot, at: float | str, row: Row, scale: Scale, *, thin: bool = False) -> Mark:
        """Return a row's figure at a place in the units of the axes; ``thin`` leaves the interval out."""
        median, low, high = (scale.of(value) for value in (row.median, row.low, row.high))
        if thin or row.seeds < 2:
            low = high = math.nan
        return Mark(index=self.styles[system].index, x=spot[0], y=spot[1], at=at, median=median, low=low, high=high)

    def panel(self, figure: Any, number: int, heading: str, description: str, marks: Iterable[Mark] = ()) -> Panel:
        """Return a finished figure as a panel, with what ``description`` says of it as its description."""
        chart = self.chart
        title = chart.title + (f", {heading}" if heading else "")
        description = " ".join(filter(None, (chart.says, description)))
        (axes,) = figure.axes
        area, height = axes.get_window_extent(), figure.bbox.height
        placed = []
        for mark in marks:
            x, y = axes.transData.transform((mark.x, mark.y))
            placed.append(replace(mark, x=float(x), y=float(height - y)))
        return Panel(
            heading=heading,
            svg=finish(figure, f"{self.prefix}-{number}", title, description),
            box=(float(area.x0), float(height - area.y1), float(area.x1), float(height - area.y0)),
            marks=tuple(placed),
        )

    def legend(self, systems: Iterable[str]) -> tuple[Key, ...]:
        """Return the entries of a legend."""
        looks = [(name, self.styles[name]) for name in systems]
        return tuple(Key(system=name, index=style.index, swatch=style.swatch()) for name, style in looks)

    def drawing(self, **parts: Any) -> Drawing:
        """Return the chart's drawing with these parts."""
        chart = self.chart
        used = {mark.index for panel in parts["panels"] for mark in panel.marks}
        series = tuple((look.index, name, look.css) for name, look in self.styles.items() if look.index in used)
        return Drawing(kind=chart.kind, title=chart.title, says=chart.says, series=series, **parts)


def empty(chart: Chart, why: str) -> Drawing:
    """Return a drawing that holds nothing but the reason."""
    return Drawing(kind=chart.kind, title=chart.title, says=chart.says, notes=(why,))


def ends_of(row: Row) -> list[float]:
    """Return the drawable ones of a row's median and the ends of its interval."""
    return [value for value in (row.low, row.median, row.high) if drawable(value)]


def hollow_mark(axes: Axes, style: Style, spot: Spot) -> None:
    """Draw a source's figure."""
    axes.plot(
        [spot[0]], [spot[1]], marker="D", ms=8, mfc="none", mec=style.ink, mew=1.5, zorder=4,
        gid=f"series-{style.index}-paper",
    )  # fmt: skip
