"""One curve a system along a coordinate: sweeps, distributions and timelines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.report.canvas import Span, Spot, Style, drawable, label_ends, plot_area, titles, wide
from wavetank.report.charts import words
from wavetank.report.charts.brush import PANELS, TABLE_ROWS, Brush, Drawing, Mark, empty, ends_of, hollow_mark
from wavetank.report.scale import Scale, coordinate, is_share, label, listed, scale_for, shortened, spread
from wavetank.study.records import canonical_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.study.study import Chart
    from wavetank.study.summary import Row

DIRECT = 4  # up to this many curves are named at their end, more in a legend
CROWD = 7  # beyond this many systems lines become thinner
POINTS = 160
_HEIGHT = 250  # of the plot area, in pixels
_FEW = 8  # up to this many points every one has its marker


Points = list[tuple[Any, "Row"]]
_Sample = tuple[float, float, float, float]  # place, median, low, high


@dataclass(frozen=True)
class Along:
    """The coordinate that runs along the horizontal axis: numbers, words, or quantiles counted in nines."""

    name: str
    scale: Scale
    words: tuple[str, ...]
    nines: bool

    @classmethod
    def of(cls, by: str, spots: Sequence[Any], chart: Chart) -> Along:
        """Return the coordinate ``by`` of a chart whose points are at ``spots``."""
        name, unit = coordinate(by)
        if not all(map(words.is_number, spots)):
            return cls(name, Scale("", ""), tuple(dict.fromkeys(map(words.value, spots))), False)
        # A tail is what a distribution is drawn for: on a linear axis 99.9 % would be the width of a line from 99 %.
        tail = "x" in chart.log or any(0.99 <= spot < 1 for spot in spots)
        nines = chart.kind == "distribution" and tail and all(0 <= spot <= 1 for spot in spots)
        return cls(name, scale_for(unit, spots), (), nines)

    def place(self, spot: Any) -> float:
        """Return where a value of the coordinate is on the axis."""
        if self.words:
            return float(self.words.index(words.value(spot)))
        return 1 - spot if self.nines else self.scale.of(spot)

    def text(self, spot: Any) -> str:
        """Write a value of the coordinate."""
        return units.stated(self.scale.of(spot)) if words.is_number(spot) else str(spot)

    def title(self, log: bool) -> str:
        """Return the title of the axis."""
        if self.nines:
            return f"{self.name}, counted in nines"
        about = ", ".join(filter(None, (self.scale.unit, "log scale" if log else "")))
        return f"{self.name} ({about})" if about else self.name


def by_case(brush: Brush, fits: Callable[[Row], bool], by: str) -> dict[str, dict[str, Points]]:
    """Return for each case and system the rows that fit, each with its place along the coordinate ``by``."""
    found: dict[str, dict[str, Points]] = {}
    for row in brush.comparison.rows:
        if row.metric == brush.y.name and fits(row):
            rest = canonical_at({name: value for name, value in row.at.items() if name != by})
            found.setdefault(rest, {}).setdefault(row.system, []).append((row.at[by], row))
    return found


def each_of(curves: Mapping[str, Mapping[str, Points]]) -> list[tuple[str, str, Points]]:
    """Return case, system and points of every curve."""
    return [(rest, system, points) for rest, found in curves.items() for system, points in found.items()]


def plotted(
    curves: Mapping[str, Mapping[str, Points]], systems: Sequence[str], along: Along, scale: Scale
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], list[str]]:
    """Return head and body of the table of figures, one row a place, and what there is to say of its length."""
    rows: list[tuple[str, ...]] = []
    for rest, found in curves.items():
        by_spot: dict[Any, dict[str, Row]] = {}
        for system, points in found.items():
            for spot, row in points:
                by_spot.setdefault(spot, {})[system] = row
        for spot in sorted(by_spot, key=along.place, reverse=along.nines):
            case = (words.heading(rest),) if len(curves) > 1 else ()
            rows.append((*case, along.text(spot), *(words.figure(by_spot[spot].get(name), scale) for name in systems)))
    unit = f" ({along.scale.unit})" if along.scale.unit else ""
    head = (*(("case",) if len(curves) > 1 else ()), f"{along.name}{unit}", *systems)
    if len(rows) <= TABLE_ROWS:
        return head, tuple(rows), []
    note = f"The table of figures shows {TABLE_ROWS} of {len(rows)} rows, evenly spread."
    return head, tuple(rows[number * (len(rows) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)), [note]


def draw_curves(brush: Brush) -> Drawing:
    """Draw a sweep, a distribution or a timeline."""
    chart, metric = brush.chart, brush.y
    by = chart.by or {"distribution": "quantile", "timeline": "time_s"}.get(chart.kind, "")
    curves = by_case(brush, lambda row: by in row.at, by)
    if not curves:
        return empty(chart, words.no_records(metric, by))
    along = Along.of(by, [spot for _, _, points in each_of(curves) for spot, _ in points], chart)
    for _, _, points in each_of(curves):
        points.sort(key=lambda point: along.place(point[0]), reverse=along.nines)
    every = [point for _, _, points in each_of(curves) for point in points]
    scale = scale_for(metric.unit, [row.median for _, row in every])
    papers = {id(row): brush.papers(row) for _, row in every}
    hollow = [found for row_papers in papers.values() for found in row_papers]
    ends = [end for _, row in every for end in ends_of(row)] + [value for _, value in hollow]
    spans = (
        _horizontal(along, [along.place(spot) for spot, _ in every], chart),
        Span.over([scale.of(end) for end in ends], "y" in chart.log, zero=True, waste=0.6, share=is_share(metric)),
    )
    systems = brush.order(system for _, system, _ in each_of(curves))
    direct = len(systems) <= DIRECT
    named = [system for system in systems if direct or brush.styles[system].colour < 0]
    right = max([wide(shortened(name, 24)) + 12 for name in named], default=16)

    panels = []
    for number, (rest, found) in enumerate(list(curves.items())[:PANELS]):
        figure, axes = plot_area(spans[1].room(_HEIGHT), right, _HEIGHT)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        if along.words:
            _word_ticks(axes, along.words)
        axes.grid(True, axis="y")
        titles(axes, along.title(spans[0].log), words.axis_title(metric, scale, spans[1].log))
        tips: dict[int, Spot] = {}
        marks: list[Mark] = []
        for system in brush.order(found):
            style = brush.styles[system]
            placed = [(along.place(spot), row) for spot, row in found[system]]
            tip = _curve(axes, style, placed, scale, spans, chart.kind, len(brush.styles))
            if tip is not None and system in named:
                tips[style.index] = tip
            marks += _marks(brush, system, found[system], along, scale, spans)
            for x, row in placed:
                for _, value in papers[id(row)]:
                    hollow_mark(axes, style, (x, scale.of(value)))
        label_ends(axes, {style.index: name for name, style in brush.styles.items()}, tips)
        lines = (_describe(system, found[system], along, scale, chart.kind) for system in brush.order(found))
        description = "; ".join(lines)
        panels.append(brush.panel(figure, number, words.heading(rest), f"{description}.", marks))

    head, body, more = plotted(curves, systems, along, scale)
    notes = [*words.cut(len(curves), PANELS, "cases"), *_holes(curves, along, spans, scale)]
    if any(row.seeds > 1 and row.low != row.high for _, row in every):
        notes.append(f"Bands show {spread(row for _, row in every)}.")
    notes += words.paper_notes([finding for finding, _ in hollow])
    return brush.drawing(
        panels=tuple(panels),
        legend=() if direct else brush.legend(systems),
        notes=(*notes, *more),
        names=((along.name, along.scale.unit), (label(metric.name, metric.unit), scale.unit)),
        head=head,
        body=body,
    )


def _word_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the places of an axis of words, each cut to the room it has; every second or third where that is little."""
    room = axes.get_window_extent().width / max(1, len(names)) * (len(names) > 0)
    step = max(1, math.ceil(wide("sixteen") / max(room, 1)))
    most = max(4, int((room * step - 8) / wide("x")))
    places = range(0, len(names), step)
    axes.set_xticks(list(places), [shortened(names[place], min(most, 24)) for place in places])


def _marks(
    brush: Brush, system: str, points: Points, along: Along, scale: Scale, spans: tuple[Span, Span]
) -> list[Mark]:
    """Return the figures of a curve that can be drawn; of a long one, those that are."""
    rows = [
        (along.place(spot), scale.of(row.median), row, spot)
        for spot, row in points
        if spans[0].holds(along.place(spot)) and spans[1].holds(scale.of(row.median))
    ]
    if brush.chart.kind != "sweep":
        kept = set(_kept([y for _, y, _, _ in rows]))
        rows = [each for number, each in enumerate(rows) if number in kept]
    return [
        brush.mark(
            system, (x, y), along.scale.of(spot) if words.is_number(spot) else words.value(spot), row, scale,
            thin=brush.chart.kind == "timeline",
        )
        for x, y, row, spot in rows
    ]  # fmt: skip


def _horizontal(along: Along, places: Sequence[float], chart: Chart) -> Span:
    if along.words:
        return Span(-0.5, len(along.words) - 0.5, False)
    # The last of all requests, quantile 1, lies beyond any number of nines.
    return Span.over(places, along.nines or "x" in chart.log, pad=0.02, nines=along.nines)


def _curve(
    axes: Axes,
    style: Style,
    placed: Sequence[tuple[float, Row]],
    scale: Scale,
    spans: tuple[Span, Span],
    kind: str,
    rivals: int,
) -> Spot | None:
    """Draw one curve with its band; return its last point, None when nothing could be drawn."""
    across, up = spans
    rows: list[_Sample] = []
    for x, row in placed:
        if across.holds(x):
            low, high = up.clipped(scale.of(row.low)), up.clipped(scale.of(row.high))
            y = scale.of(row.median)
            rows.append((x, y, low, high) if up.holds(y) else (x, math.nan, math.nan, math.nan))
    known = [row for row in rows if not math.isnan(row[1])]
    if not known:
        return None
    if kind != "sweep":
        rows = [rows[index] for index in _kept([row[1] for row in rows])]
    xs, ys, lows, highs = zip(*rows, strict=True)
    crowded = style.colour < 0 or rivals > CROWD
    if any(row[2] != row[3] for row in known):
        axes.fill_between(
            xs, lows, highs, where=[not math.isnan(y) for y in ys], color=style.ink, lw=0,
            alpha=0.09 if crowded else 0.16, gid=f"series-{style.index}-band",
        )  # fmt: skip
    markers = None
    if kind != "sweep" and len(rows) > _FEW:
        # A few markers distinguish the curves without colour; each curve has its own places for them.
        stride = len(rows) // 6
        markers = (style.index * stride // rivals % stride, stride)
    (line,) = axes.plot(
        xs, ys, color=style.ink, lw=1 if style.colour < 0 else 1.5 if crowded else 2, marker=style.marker, ms=5,
        mec="none", markevery=markers, gid=f"series-{style.index}-line",
    )  # fmt: skip
    if style.dash:
        line.set_dashes(style.dash)
    return known[-1][0], known[-1][1]


def _kept(ys: Sequence[float]) -> list[int]:
    """Keep the least and the greatest point of every stretch of a long curve, so that no spike is lost."""
    if len(ys) <= POINTS:
        return list(range(len(ys)))
    kept = {0, len(ys) - 1}
    stretches = POINTS // 2
    for number in range(stretches):
        span = range(number * len(ys) // stretches, (number + 1) * len(ys) // stretches)
        known = [index for index in span if not math.isnan(ys[index])]
        if known:
            kept |= {min(known, key=lambda index: ys[index]), max(known, key=lambda index: ys[index])}
        # One missing point is enough to interrupt the line.
        kept |= set([index for index in span if math.isnan(ys[index])][:1])
    return sorted(kept)


def _holes(
    curves: Mapping[str, Mapping[str, Points]], along: Along, spans: tuple[Span, Span], scale: Scale
) -> list[str]:
    """Say which points could not be drawn, and why."""
    holes: dict[tuple[str, str], list[str]] = {}
    for rest, system, points in each_of(curves):
        for spot, row in points:
            where = f"{along.name} {along.text(spot)}{words.in_case(rest)}"
            if not spans[0].holds(along.place(spot)):
                why = "the end of the scale" if along.nines else words.BELOW
                holes.setdefault((system, why), []).append(where)
            elif not spans[1].holds(scale.of(row.median)):
                holes.setdefault((system, words.why_missing(row, spans[1].log)), []).append(where)
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (system, why), places in holes.items():
        alike.setdefault((tuple(places), why), []).append(system)
    everyone = len({system for _, system, _ in each_of(curves)})
    return [
        f"Not drawn: {listed(systems) if len(systems) < max(everyone, 4) else 'all systems'} at "
        f"{listed(places) if len(places) < 5 else f'{len(places)} places, from {places[0]}'}, {why}."
        for (places, why), systems in alike.items()
    ]


def _describe(system: str, points: Points, along: Along, scale: Scale, kind: str) -> str:
    """Put a curve into words: its ends, and its peak where it runs along time."""

    def point(spot: Any, row: Row) -> str:
        return f"{words.figure(row, scale)} {scale.unit}".rstrip() + f" at {along.name} {along.text(spot)}"

    description = [point(*points[0])]
    if len(points) > 1:
        description.append(point(*points[-1]))
    known = [(spot, row) for spot, row in points if drawable(row.median)]
    if kind == "timeline" and len(known) > 2:
        description.append(f"at most {point(*max(known, key=lambda point: point[1].median))}")
    return f"{system}: {', '.join(description)}"
