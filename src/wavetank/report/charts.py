"""Charts of a study as SVG, drawn from summaries alone.

Every chart is a list of panels (one a case), each an SVG of its own so that a page can lay them out for any width; a
legend that a script may use to toggle series; and the plotted figures as a table, for readers who cannot or will not
look at a picture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.records import canonical_at
from wavetank.report.canvas import (
    DASHES,
    MARKERS,
    MUTED,
    PALETTE,
    TEXT,
    Span,
    Spot,
    Style,
    drawable,
    finish,
    label_ends,
    label_points,
    plot_area,
    steady,
    titles,
    wide,
    word,
)
from wavetank.report.scale import Scale, coordinate, label, listed, scale_for, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.claims import Finding
    from wavetank.comparison import Comparison
    from wavetank.study import Chart, Metric
    from wavetank.summary import Row

DIRECT = 4  # up to this many curves are named at their end, more in a legend
CROWD = 7  # beyond this many systems lines become thinner
PANELS = 8
GROUPS = 12
POINTS = 160
TABLE_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing.

    Attributes
    ----------
    heading : str
        The case it shows, empty where there is only one.
    svg : str
    """

    heading: str
    svg: str


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
    """

    kind: str
    title: str
    says: str
    panels: tuple[Panel, ...] = ()
    legend: tuple[Key, ...] = ()
    notes: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    body: tuple[tuple[str, ...], ...] = ()


def styles(comparison: Comparison) -> dict[str, Style]:
    """Return the look of every system: by its place in the study, whichever systems a run has."""
    study = comparison.study
    found: dict[str, Style] = {}
    place = 0
    for index, name in enumerate(dict.fromkeys([*study.systems, *comparison.plan.systems])):
        if name == study.baseline:
            found[name] = Style(index, 0, MARKERS[0], (4, 3))
            continue
        turn = place % (len(MARKERS) - 1)
        place += 1
        found[name] = Style(index, place if place < len(PALETTE) else -1, MARKERS[turn + 1], DASHES[turn])
    return found


def draw(comparison: Comparison, chart: Chart, prefix: str) -> Drawing:
    """Draw a chart.

    Parameters
    ----------
    comparison : Comparison
    chart : Chart
        One of ``comparison.study.charts``.
    prefix : str
        Put before every id, so that several drawings can stand in one page.
    """
    metrics = {metric.name: metric for metric in comparison.study.metrics}
    kinds: dict[str, Callable[[_Brush], Drawing]] = {
        "bars": _bars,
        "pareto": _pareto,
        "sweep": _curves,
        "distribution": _curves,
        "timeline": _curves,
        "scatter": _scatter,
    }
    named = (chart.x, chart.y) if chart.kind == "pareto" else (chart.y,)
    unknown = [name for name in named if name not in metrics]
    if chart.kind not in kinds:
        return _empty(chart, f"This version of Wavetank draws no charts of the kind {chart.kind!r}.")
    if unknown:
        return _empty(chart, f"There is nothing to draw: the study has no metric named {unknown[0]!r}.")
    with steady():
        return kinds[chart.kind](_Brush(comparison, chart, prefix, metrics, styles(comparison)))


@dataclass(frozen=True)
class _Brush:
    """What every kind of chart needs."""

    comparison: Comparison
    chart: Chart
    prefix: str
    metrics: Mapping[str, Metric]
    styles: Mapping[str, Style]

    @property
    def y(self) -> Metric:
        return self.metrics[self.chart.y]

    def order(self, systems: Iterable[str]) -> list[str]:
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
            if claim.versus is not None:
                rivals = (
                    other.median
                    for other in self.comparison.rows
                    if (other.system, other.metric) == (claim.versus, row.metric) and canonical_at(other.at) == at
                )
                value *= next(rivals, math.nan)
            if drawable(value):
                found.append((finding, value))
        return found

    def panel(self, figure: Any, number: int, heading: str, told: str) -> Panel:
        chart = self.chart
        title = chart.title + (f", {heading}" if heading else "")
        told = " ".join(filter(None, (chart.says, told)))
        return Panel(heading=heading, svg=finish(figure, f"{self.prefix}-{number}", title, told))

    def drawing(self, **parts: Any) -> Drawing:
        chart = self.chart
        return Drawing(kind=chart.kind, title=chart.title, says=chart.says, **parts)


def _empty(chart: Chart, why: str) -> Drawing:
    return Drawing(kind=chart.kind, title=chart.title, says=chart.says, notes=(why,))


# ---------------------------------------------------------------------------------------------------------------------
# bars

_BAR, _GROUP_HEAD = 21, 27  # heights in pixels


def _bars(brush: _Brush) -> Drawing:
    metric = brush.y
    by = brush.chart.by or brush.comparison.study.cases_by
    groups: dict[str, dict[str, Row]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and set(row.at) == ({by} if by else set()):
            groups.setdefault(_value(row.at[by]) if by else "", {})[row.system] = row
    if not groups:
        return _empty(brush.chart, _no_records(metric, by))
    drawn = dict(list(groups.items())[:GROUPS])
    rows = [row for found in drawn.values() for row in found.values()]
    systems = brush.order(brush.comparison.plan.systems)
    scale = scale_for(metric.unit, [row.median for row in rows])
    papers = {id(row): brush.papers(row) for row in rows}
    hollow = [(finding, value) for found in papers.values() for finding, value in found]
    ends = [end for row in rows for end in _ends(row)] + [value for _, value in hollow]
    span = Span.over([scale.of(end) for end in ends], brush.chart.log != "", zero=True)

    left = max(wide(shortened(name, 26)) for name in systems) + 14
    right = max(wide(scale.text(row.median)) for row in rows) + 14
    # A system without any record is shown as missing; one that was not asked in a group is left out of it.
    recorded = {name for found in groups.values() for name in found}
    asked = {group: [s for s in systems if s in found or s not in recorded] for group, found in groups.items()}
    inner = sum(_BAR * len(asked[group]) + (_GROUP_HEAD if by else 0) for group in drawn) + 4
    figure, axes = plot_area(left, right, inner, top=14)
    span.put(axes, "x")
    titles(axes, _axis_title(metric, scale, span.log))
    # The upright axis counts pixels downwards, so that text and bars have fixed sizes whatever their number.
    axes.set_ylim(inner, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    top = 0.0
    for group, found in drawn.items():
        if by:
            top += _GROUP_HEAD
            heading = shortened(f"{coordinate(by)[0]}: {group}", 60)
            word(axes, heading, (0, top - 9), _BESIDE, xytext=(2 - left, 0), fontweight="bold")
        base = found.get(brush.comparison.study.baseline)
        if base is not None and span.holds(scale.of(base.median)):
            at = scale.of(base.median)
            axes.plot([at, at], [top, top + _BAR * len(asked[group])], color=MUTED, lw=1, dashes=(3, 3), zorder=1.5)
        for system in asked[group]:
            middle = top + _BAR / 2
            top += _BAR
            word(axes, shortened(system, 26), (0, middle), _BESIDE, xytext=(-8, 0), ha="right")
            mine = found.get(system)
            values = [scale.of(value) for _, value in papers.get(id(mine), ())]
            _bar(axes, brush.styles[system], mine, scale, span, middle, values)

    told = "; ".join(
        f"{group + ': ' if group else ''}"
        + ", ".join(f"{name} {_figure(found[name], scale)}" for name in systems if name in found)
        for group, found in drawn.items()
    )
    unit = f" ({scale.unit})" if scale.unit else ""
    return brush.drawing(
        panels=(brush.panel(figure, 0, "", f"{told}."),),
        notes=(*_cut(len(groups), GROUPS, "groups"), *_paper_notes([finding for finding, _ in hollow])),
        head=(
            *((coordinate(by)[0],) if by else ()),
            "system",
            f"{label(metric.name, metric.unit)}, median{unit}",
            "interval from",
            "to",
            "seeds",
        ),
        body=tuple(
            (*((group,) if by else ()), name, *_four(found.get(name), scale))
            for group, found in groups.items()
            for name in asked[group]
        ),
    )


_BESIDE = ("axes fraction", "data")


def _bar(
    axes: Axes, style: Style, row: Row | None, scale: Scale, span: Span, middle: float, papers: Sequence[float]
) -> None:
    from matplotlib.patches import Rectangle

    value = math.nan if row is None else scale.of(row.median)
    if row is None or not span.holds(value):
        word(axes, _why_missing(row, span.log), (0, middle), _BESIDE, color=MUTED, style="italic")
        return
    if span.log:
        # A log axis has no zero for a bar to begin at.
        axes.plot(
            [value], [middle], marker="o", ms=8, color=style.ink, mec="none", zorder=3, gid=f"series-{style.index}-mark"
        )
    else:
        start = span.clipped(0)
        bar = Rectangle((start, middle - 6.5), value - start, 13, color=style.ink, lw=0)
        bar.set_gid(f"series-{style.index}-bar")
        axes.add_patch(bar)
    ends = [span.clipped(scale.of(end)) for end in (row.low, row.high)]
    if ends[0] != ends[1]:
        axes.plot(ends, [middle, middle], color=TEXT, lw=1.2, marker="|", ms=7, mew=1.2)
    for paper in papers:
        axes.plot([paper], [middle], marker="D", ms=7, mfc="none", mec=TEXT, mew=1.4, gid="paper")
    word(axes, scale.text(row.median), (max(value, *ends, *papers), middle), "data", color=TEXT)


# ---------------------------------------------------------------------------------------------------------------------
# pareto


def _pareto(brush: _Brush) -> Drawing:
    chart, metrics = brush.chart, (brush.metrics[brush.chart.x], brush.y)
    by = brush.comparison.study.cases_by
    ups = {(row.system, canonical_at(row.at)): row for row in brush.comparison.rows if row.metric == metrics[1].name}
    places: dict[str, dict[str, tuple[Row, Row]]] = {}
    for row in brush.comparison.rows:
        other = ups.get((row.system, canonical_at(row.at)))
        if row.metric == metrics[0].name and other is not None and set(row.at) == ({by} if by else set()):
            places.setdefault(canonical_at(row.at), {})[row.system] = (row, other)
    if not places:
        return _empty(chart, f"There is nothing to draw: this run has no records of {chart.x} and {chart.y} together.")
    pairs = [pair for found in places.values() for pair in found.values()]
    scales = [scale_for(metric.unit, [pair[n].median for pair in pairs]) for n, metric in enumerate(metrics)]
    papers = {(place, name): _stated(brush, pair) for place, found in places.items() for name, pair in found.items()}

    panels, notes, joined = [], [*_cut(len(places), PANELS, "cases")], False
    for number, (place, found) in enumerate(list(places.items())[:PANELS]):
        spans = [_span(brush, n, scale, found, papers, place) for n, scale in enumerate(scales)]
        figure, axes = plot_area(spans[1].room(), 16, 290)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        axes.grid(True)
        across, up = (_axis_title(m, scale, span.log) for m, scale, span in zip(metrics, scales, spans, strict=True))
        titles(axes, across, up)
        spots: dict[str, Spot] = {}
        for system in brush.order(found):
            spot = _at(scales, [row.median for row in found[system]])
            missing = [n for n, span in enumerate(spans) if not span.holds(spot[n])]
            if missing:
                n = missing[0]
                name, why = label(metrics[n].name, metrics[n].unit), _why_missing(found[system][n], spans[n].log)
                notes.append(f"Not drawn: {system}{_of(place)}, its {name} is {why}.")
            else:
                spots[system] = spot
        front = _front({system: found[system] for system in spots}, metrics)
        if len(front) > 1:
            joined = True
            xs, ys = zip(*(spots[system] for system in front), strict=True)
            axes.plot(xs, ys, color=MUTED, lw=1.2, dashes=(5, 3), zorder=1.5, gid="front")
        solid: list[tuple[Spot, Spot]] = []
        for system, spot in spots.items():
            solid += _cross(axes, brush.styles[system], spot, found[system], scales)
        for system in brush.order(found):
            stated, findings = papers[place, system]
            if findings:
                _hollow(axes, brush.styles[system], _at(scales, stated))
                solid.append((_at(scales, stated), _at(scales, stated)))
        names = {brush.styles[system].index: system for system in spots}
        label_points(axes, names, {index: spots[system] for index, system in names.items()}, solid)
        told = "; ".join(
            f"{system}: " + ", ".join(
                f"{label(m.name, m.unit)} {_figure(row, scale)} {scale.unit}".rstrip()
                for m, row, scale in zip(metrics, found[system], scales, strict=True)
            )
            for system in brush.order(found)
        )  # fmt: skip
        best = f" No other system beats on both: {listed(front)}." if front else ""
        panels.append(brush.panel(figure, number, _heading(place), f"{told}.{best}"))
    if len(panels) > 1:
        notes.append("Every panel has axes of its own.")
    if joined:
        notes.append("The dashed line joins the systems that no other beats on both medians.")
    notes += _paper_notes([finding for _, findings in papers.values() for finding in findings])
    units_shown = [f" ({scale.unit})" if scale.unit else "" for scale in scales]
    return brush.drawing(
        panels=tuple(panels),
        notes=tuple(notes),
        head=(
            *(("case",) if by else ()),
            "system",
            *(label(m.name, m.unit) + unit for m, unit in zip(metrics, units_shown, strict=True)),
        ),
        body=tuple(
            (
                *((_heading(place),) if by else ()),
                system,
                *(_figure(row, scale) for row, scale in zip(found[system], scales, strict=True)),
            )
            for place, found in places.items()
            for system in brush.order(found)
        ),
    )


def _span(
    brush: _Brush,
    n: int,
    scale: Scale,
    found: Mapping[str, tuple[Row, Row]],
    papers: Mapping[tuple[str, str], tuple[Spot, list[Finding]]],
    place: str,
) -> Span:
    """Return what one axis of one panel covers: the points that can be drawn, and the sources' figures."""
    ends = [end for pair in found.values() if all(drawable(row.median) for row in pair) for end in _ends(pair[n])]
    ends += [spot[n] for system in found for spot, findings in [papers[place, system]] if findings]
    return Span.over([scale.of(end) for end in ends], "xy"[n] in brush.chart.log, pad=0.08)


def _stated(brush: _Brush, pair: tuple[Row, Row]) -> tuple[Spot, list[Finding]]:
    """Return where the sources put a system, our median standing in for an axis on which they give no figure."""
    found = [brush.papers(row) for row in pair]
    x, y = (papers[0][1] if papers else row.median for papers, row in zip(found, pair, strict=True))
    usable = drawable(x) and drawable(y)
    return (x, y), [finding for papers in found for finding, _ in papers] if usable else []


def _at(scales: Sequence[Scale], values: Sequence[float]) -> Spot:
    return scales[0].of(values[0]), scales[1].of(values[1])


def _cross(
    axes: Axes, style: Style, spot: Spot, pair: tuple[Row, Row], scales: Sequence[Scale]
) -> list[tuple[Spot, Spot]]:
    """Draw a point with its two intervals; return the ends of these."""
    drawn: list[tuple[Spot, Spot]] = []
    for n, (row, scale) in enumerate(zip(pair, scales, strict=True)):
        span = [value if drawable(value) else spot[n] for value in (scale.of(row.low), scale.of(row.high))]
        if span[0] != span[1]:
            (xs, ys) = (span, [spot[1]] * 2) if n == 0 else ([spot[0]] * 2, span)
            axes.plot(xs, ys, color=style.ink, lw=1.4, alpha=0.7, gid=f"series-{style.index}-whisker{n}")
            drawn.append(((xs[0], ys[0]), (xs[1], ys[1])))
    axes.plot(
        [spot[0]], [spot[1]], marker=style.marker, ms=8.5, color=style.ink, mec="none", zorder=3,
        gid=f"series-{style.index}-mark",
    )  # fmt: skip
    return drawn


def _hollow(axes: Axes, style: Style, spot: Spot) -> None:
    """Draw a source's figure."""
    axes.plot(
        [spot[0]], [spot[1]], marker="D", ms=8, mfc="none", mec=style.ink, mew=1.5, zorder=4,
        gid=f"series-{style.index}-paper",
    )  # fmt: skip


def _front(found: Mapping[str, tuple[Row, Row]], metrics: Sequence[Metric]) -> list[str]:
    """Return the systems that no other beats on both medians, from left to right; none where a side is undefined."""
    if not all(metric.better for metric in metrics):
        return []
    signs = [1 if metric.better == "lower" else -1 for metric in metrics]
    points = {name: (signs[0] * x.median, signs[1] * y.median) for name, (x, y) in found.items()}
    best = [
        name
        for name, (x, y) in points.items()
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: found[name][0].median)


# ---------------------------------------------------------------------------------------------------------------------
# sweep, distribution, timeline

_Points = list[tuple[Any, "Row"]]
_Sample = tuple[float, float, float, float]  # place, median, low, high


@dataclass(frozen=True)
class _Along:
    """The coordinate that runs along the horizontal axis: numbers, words, or quantiles counted in nines."""

    name: str
    scale: Scale
    words: tuple[str, ...]
    nines: bool

    @classmethod
    def of(cls, by: str, spots: Sequence[Any], chart: Chart) -> _Along:
        name, unit = coordinate(by)
        if not all(map(_is_number, spots)):
            return cls(name, Scale("", ""), tuple(dict.fromkeys(map(_value, spots))), False)
        nines = chart.kind == "distribution" and "x" in chart.log and all(0 <= spot <= 1 for spot in spots)
        return cls(name, scale_for(unit, spots), (), nines)

    def place(self, spot: Any) -> float:
        if self.words:
            return float(self.words.index(_value(spot)))
        return 1 - spot if self.nines else self.scale.of(spot)

    def text(self, spot: Any) -> str:
        return f"{self.scale.of(spot):,.10g}" if _is_number(spot) else str(spot)

    def title(self, log: bool) -> str:
        if self.nines:
            return f"{self.name}, counted in nines"
        about = ", ".join(filter(None, (self.scale.unit, "log scale" if log else "")))
        return f"{self.name} ({about})" if about else self.name


def _curves(brush: _Brush) -> Drawing:
    chart, metric = brush.chart, brush.y
    by = chart.by or {"distribution": "quantile", "timeline": "time_s"}.get(chart.kind, "")
    curves: dict[str, dict[str, _Points]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and by in row.at:
            rest = canonical_at({name: value for name, value in row.at.items() if name != by})
            curves.setdefault(rest, {}).setdefault(row.system, []).append((row.at[by], row))
    if not curves:
        return _empty(chart, _no_records(metric, by))
    along = _Along.of(by, [spot for _, _, points in _each(curves) for spot, _ in points], chart)
    for _, _, points in _each(curves):
        points.sort(key=lambda point: along.place(point[0]), reverse=along.nines)
    every = [point for _, _, points in _each(curves) for point in points]
    scale = scale_for(metric.unit, [row.median for _, row in every])
    papers = {id(row): brush.papers(row) for _, row in every}
    hollow = [found for row_papers in papers.values() for found in row_papers]
    ends = [end for _, row in every for end in _ends(row)] + [value for _, value in hollow]
    spans = (
        _horizontal(along, [along.place(spot) for spot, _ in every], chart),
        Span.over([scale.of(end) for end in ends], "y" in chart.log, zero=True),
    )
    systems = brush.order(system for _, system, _ in _each(curves))
    direct = len(systems) <= DIRECT
    named = [system for system in systems if direct or brush.styles[system].colour < 0]
    right = max([wide(shortened(name, 24)) + 12 for name in named], default=16)

    panels = []
    for number, (rest, found) in enumerate(list(curves.items())[:PANELS]):
        figure, axes = plot_area(spans[1].room(), right, 250)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        if along.words:
            axes.set_xticks(range(len(along.words)), [shortened(text, 16) for text in along.words])
        axes.grid(True, axis="y")
        titles(axes, along.title(spans[0].log), _axis_title(metric, scale, spans[1].log))
        tips: dict[int, Spot] = {}
        for system in brush.order(found):
            style = brush.styles[system]
            placed = [(along.place(spot), row) for spot, row in found[system]]
            tip = _curve(axes, style, placed, scale, spans, chart.kind, len(brush.styles))
            if tip is not None and system in named:
                tips[style.index] = tip
            for x, row in placed:
                for _, value in papers[id(row)]:
                    _hollow(axes, style, (x, scale.of(value)))
        label_ends(axes, {style.index: name for name, style in brush.styles.items()}, tips)
        told = "; ".join(_told(system, found[system], along, scale, chart.kind) for system in brush.order(found))
        panels.append(brush.panel(figure, number, _heading(rest), f"{told}."))

    rows = _curve_rows(curves, systems, along, scale)
    notes = [*_cut(len(curves), PANELS, "cases"), *_holes(curves, along, spans, scale)]
    if any(_interval_drawn(row) for _, row in every):
        notes.append("Bands are 95 % intervals over seeds.")
    notes += _paper_notes([finding for finding, _ in hollow])
    if len(rows) > TABLE_ROWS:
        notes.append(f"The table of figures shows {TABLE_ROWS} of {len(rows)} rows, evenly spread.")
        rows = [rows[number * (len(rows) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)]
    unit = f" ({along.scale.unit})" if along.scale.unit else ""
    looks = [brush.styles[name] for name in systems]
    return brush.drawing(
        panels=tuple(panels),
        legend=()
        if direct
        else tuple(
            Key(system=name, index=style.index, swatch=style.swatch())
            for name, style in zip(systems, looks, strict=True)
        ),
        notes=tuple(notes),
        head=(*(("case",) if len(curves) > 1 else ()), f"{along.name}{unit}", *systems),
        body=tuple(rows),
    )


def _each(curves: Mapping[str, Mapping[str, _Points]]) -> list[tuple[str, str, _Points]]:
    return [(rest, system, points) for rest, found in curves.items() for system, points in found.items()]


def _horizontal(along: _Along, places: Sequence[float], chart: Chart) -> Span:
    if along.words:
        return Span.over(places, False, pad=0.06)
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
        rows = _thinned(rows)
    xs, ys, lows, highs = zip(*rows, strict=True)
    crowded = style.colour < 0 or rivals > CROWD
    if any(row[2] != row[3] for row in known):
        axes.fill_between(
            xs, lows, highs, where=[not math.isnan(y) for y in ys], color=style.ink, lw=0,
            alpha=0.09 if crowded else 0.16, gid=f"series-{style.index}-band",
        )  # fmt: skip
    markers = None
    if kind != "sweep" and len(rows) > 8:
        # A few markers tell the curves apart without colour; each curve has its own places for them.
        stride = len(rows) // 6
        markers = (style.index * stride // rivals % stride, stride)
    (line,) = axes.plot(
        xs, ys, color=style.ink, lw=1 if style.colour < 0 else 1.5 if crowded else 2, marker=style.marker, ms=5,
        mec="none", markevery=markers, gid=f"series-{style.index}-line",
    )  # fmt: skip
    if style.dash:
        line.set_dashes(style.dash)
    return known[-1][0], known[-1][1]


def _thinned(rows: Sequence[_Sample]) -> list[_Sample]:
    """Keep the least and the greatest point of every stretch of a long curve, so that no spike is lost."""
    if len(rows) <= POINTS:
        return list(rows)
    kept = {0, len(rows) - 1}
    stretches = POINTS // 2
    for number in range(stretches):
        span = range(number * len(rows) // stretches, (number + 1) * len(rows) // stretches)
        known = [index for index in span if not math.isnan(rows[index][1])]
        if known:
            kept |= {min(known, key=lambda index: rows[index][1]), max(known, key=lambda index: rows[index][1])}
        # One missing point is enough to interrupt the line.
        kept |= set([index for index in span if math.isnan(rows[index][1])][:1])
    return [rows[index] for index in sorted(kept)]


def _holes(
    curves: Mapping[str, Mapping[str, _Points]], along: _Along, spans: tuple[Span, Span], scale: Scale
) -> list[str]:
    """Say which points could not be drawn, and why."""
    holes: dict[tuple[str, str], list[str]] = {}
    for rest, system, points in _each(curves):
        for spot, row in points:
            where = f"{along.name} {along.text(spot)}{_of(rest)}"
            if not spans[0].holds(along.place(spot)):
                why = "the end of the scale" if along.nines else _BELOW
                holes.setdefault((system, why), []).append(where)
            elif not spans[1].holds(scale.of(row.median)):
                holes.setdefault((system, _why_missing(row, spans[1].log)), []).append(where)
    return [
        f"Not drawn: {system} at {listed(where) if len(where) < 5 else f'{len(where)} places, from {where[0]}'}, {why}."
        for (system, why), where in holes.items()
    ]


def _told(system: str, points: _Points, along: _Along, scale: Scale, kind: str) -> str:
    """Put a curve into words: its ends, and its peak where it runs along time."""

    def point(spot: Any, row: Row) -> str:
        return f"{_figure(row, scale)} {scale.unit}".rstrip() + f" at {along.name} {along.text(spot)}"

    told = [point(*points[0])]
    if len(points) > 1:
        told.append(point(*points[-1]))
    known = [(spot, row) for spot, row in points if drawable(row.median)]
    if kind == "timeline" and len(known) > 2:
        told.append(f"at most {point(*max(known, key=lambda point: point[1].median))}")
    return f"{system}: {', '.join(told)}"


def _curve_rows(
    curves: Mapping[str, Mapping[str, _Points]], systems: Sequence[str], along: _Along, scale: Scale
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for rest, found in curves.items():
        by_spot: dict[Any, dict[str, Row]] = {}
        for system, points in found.items():
            for spot, row in points:
                by_spot.setdefault(spot, {})[system] = row
        for spot in sorted(by_spot, key=along.place, reverse=along.nines):
            case = (_heading(rest),) if len(curves) > 1 else ()
            rows.append((*case, along.text(spot), *(_figure(by_spot[spot].get(name), scale) for name in systems)))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# scatter


def _scatter(brush: _Brush) -> Drawing:
    chart, metric, by = brush.chart, brush.y, brush.chart.by
    clouds: dict[str, dict[str, _Points]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and _is_number(row.at.get(by)):
            rest = canonical_at({name: value for name, value in row.at.items() if name != by})
            clouds.setdefault(rest, {}).setdefault(row.system, []).append((row.at[by], row))
    if not clouds:
        return _empty(chart, _no_records(metric, by))
    every = [point for _, _, points in _each(clouds) for point in points]
    # One scale for both axes: the diagonal is where they agree.
    scale = scale_for(metric.unit, [spot for spot, _ in every] + [row.median for _, row in every])
    along = _Along(coordinate(by)[0], scale, (), False)
    systems = brush.order(system for _, system, _ in _each(clouds))

    panels, lost = [], 0
    for number, (rest, found) in enumerate(list(clouds.items())[:PANELS]):
        placed = {
            system: [(scale.of(spot), scale.of(row.median)) for spot, row in points] for system, points in found.items()
        }
        ends = [end for spots in placed.values() for spot in spots for end in spot]
        spans = [Span.over(ends, axis in chart.log, zero=axis not in chart.log, pad=0.05) for axis in "xy"]
        figure, axes = plot_area(spans[1].room(), 16, 290)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        axes.grid(True)
        titles(axes, along.title(spans[0].log), _axis_title(metric, scale, spans[1].log))
        seen = [end for end in ends if all(span.holds(end) for span in spans)]
        if seen:
            both = [min(seen), max(seen)]
            axes.plot(both, both, color=MUTED, lw=1.2, dashes=(5, 3), zorder=1.5)
        for system in brush.order(found):
            style = brush.styles[system]
            drawn = [spot for spot in placed[system] if all(s.holds(v) for s, v in zip(spans, spot, strict=True))]
            lost += len(placed[system]) - len(drawn)
            if drawn:
                xs, ys = zip(*drawn, strict=True)
                axes.plot(
                    xs, ys, ls="none", marker=style.marker, ms=4.5, color=style.ink, mec="none", alpha=0.7, zorder=3,
                    gid=f"series-{style.index}-mark",
                )  # fmt: skip
        told = "; ".join(_cloud_told(system, found[system], scale) for system in brush.order(found))
        panels.append(brush.panel(figure, number, _heading(rest), f"{told}."))

    rows = _curve_rows(clouds, systems, along, scale)
    notes = [*_cut(len(clouds), PANELS, "cases"), "The dashed line is where both axes agree."]
    if lost:
        notes.append(f"Not drawn: {lost} points that the scale cannot show.")
    if len(rows) > TABLE_ROWS:
        notes.append(f"The table of figures shows {TABLE_ROWS} of {len(rows)} rows, evenly spread.")
        rows = [rows[number * (len(rows) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)]
    unit = f" ({scale.unit})" if scale.unit else ""
    return brush.drawing(
        panels=tuple(panels),
        legend=tuple(
            Key(system=name, index=brush.styles[name].index, swatch=brush.styles[name].swatch()) for name in systems
        ),
        notes=tuple(notes),
        head=(*(("case",) if len(clouds) > 1 else ()), f"{along.name}{unit}", *systems),
        body=tuple(rows),
    )


def _cloud_told(system: str, points: _Points, scale: Scale) -> str:
    """Put a cloud into words: how many points, and those with the least and the greatest place."""
    ends = min(points, key=lambda point: float(point[0])), max(points, key=lambda point: float(point[0]))
    unit = f" {scale.unit}" if scale.unit else ""
    first, last = (f"{scale.text(row.median)} for {scale.text(spot)}" for spot, row in ends)
    return f"{system}: {len(points)} points, from {first} to {last}{unit}"


# ---------------------------------------------------------------------------------------------------------------------
# in words

_BELOW = "not above zero, which a log scale cannot show"


def _no_records(metric: Metric, by: str) -> str:
    where = f" along {by}" if by else ""
    return f"There is nothing to draw: this run has no records of {metric.name}{where}."


def _cut(have: int, most: int, what: str) -> list[str]:
    return [f"Drawn are the first {most} of {have} {what}; the table has all."] if have > most else []


def _why_missing(row: Row | None, log: bool) -> str:
    if row is None:
        return "no records"
    if not row.seeds:
        return "not a number"
    if math.isinf(row.median):
        return "infinite"
    return _BELOW if log and row.median <= 0 else "too large to draw"


def _axis_title(metric: Metric, scale: Scale, log: bool) -> str:
    about = [scale.unit, f"{metric.better} is better" if metric.better else "", "log scale" if log else ""]
    told = ", ".join(filter(None, about))
    return label(metric.name, metric.unit) + (f" ({told})" if told else "")


def _paper_notes(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    against = list(dict.fromkeys(finding.claim.versus for finding in findings if finding.claim.versus is not None))
    ratios = f"; ratios stand at that multiple of our median of {listed(against)}" if against else ""
    return [f"Hollow diamonds are the papers' figures{ratios}."]


def _interval_drawn(row: Row) -> bool:
    return row.seeds > 1 and row.low != row.high


def _ends(row: Row) -> list[float]:
    return [value for value in (row.low, row.median, row.high) if drawable(value)]


def _figure(row: Row | None, scale: Scale) -> str:
    if row is None or not row.seeds:
        return "-"
    interval = scale.interval(row, " to ")
    return scale.text(row.median) + (f" ({interval})" if interval else "")


def _four(row: Row | None, scale: Scale) -> tuple[str, ...]:
    if row is None or not row.seeds:
        return "-", "-", "-", "0"
    return scale.text(row.median), scale.text(row.low), scale.text(row.high), str(row.seeds)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(value: Any) -> str:
    return units.show(value) if _is_number(value) else str(value)


def _heading(place: str) -> str:
    return ", ".join(f"{coordinate(name)[0]}: {_value(value)}" for name, value in json.loads(place).items())


def _of(place: str) -> str:
    heading = _heading(place)
    return f" ({heading})" if heading else ""
