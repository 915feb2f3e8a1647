"""Charts of a study as SVG, drawn from summaries alone.

Every chart is a list of panels (one a case), each an SVG of its own so that a page can lay them out for any width; a
legend that a script may use to toggle series; and the plotted figures as a table, for readers who cannot or will not
look at a picture.  Equal records give byte-identical drawings: the object API of matplotlib, a fixed salt for ids, no
date.  Colours are CSS variables of the page with the light ones as fallback, so one drawing serves light, dark and
paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.records import canonical_at
from wavetank.report.scale import Scale, coordinate, label, listed, scale_for, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from wavetank.claims import Finding
    from wavetank.comparison import Comparison
    from wavetank.study import Chart, Metric
    from wavetank.summary import Row

DIRECT = 4  # up to this many series are named at their line, more in a legend
CROWD = 7  # beyond this many series lines become thinner
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
    """One entry of a legend."""

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
    names = dict.fromkeys([*study.systems, *comparison.plan.systems])
    found: dict[str, Style] = {}
    place = 0
    for index, name in enumerate(names):
        if name == study.baseline:
            found[name] = Style(index, 0, MARKERS[0], (4, 3))
            continue
        place += 1
        turn = (place - 1) % (len(MARKERS) - 1)
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
    kinds = {"bars": _bars, "pareto": _pareto, "sweep": _curves, "distribution": _curves, "timeline": _curves}
    unknown = [name for name in filter(None, (chart.x, chart.y)) if name not in metrics]
    if chart.kind not in kinds:
        return _empty(chart, f"This version of Wavetank draws no charts of the kind {chart.kind!r}.")
    if unknown or (chart.kind == "pareto" and not chart.x):
        return _empty(chart, f"The study has no metric named {listed(unknown) or chart.x!r}.")
    with _settings():
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

    def order(self, systems: Sequence[str]) -> list[str]:
        return sorted(set(systems), key=lambda name: self.styles[name].index)

    def papers(self, metric: str, system: str, at: Mapping[str, Any]) -> list[tuple[Finding, float]]:
        """Return the claims with a figure of their source for this place, and that figure on the metric's axis."""
        found = []
        for finding in self.comparison.findings:
            claim = finding.claim
            if claim.paper is None or (claim.system, claim.metric) != (system, metric):
                continue
            if canonical_at(claim.at) != canonical_at(at):
                continue
            value = claim.paper
            if claim.versus is not None:
                value *= next(
                    (
                        row.median
                        for row in self.comparison.rows
                        if (row.system, row.metric) == (claim.versus, metric)
                        and canonical_at(row.at) == canonical_at(at)
                    ),
                    math.nan,
                )
            if _drawable(value):
                found.append((finding, value))
        return found


def _empty(chart: Chart, why: str) -> Drawing:
    return Drawing(kind=chart.kind, title=chart.title, says=chart.says, notes=(why,))


# ---------------------------------------------------------------------------------------------------------------------
# bars


def _bars(brush: _Brush) -> Drawing:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    chart, metric = brush.chart, brush.y
    by = chart.by or brush.comparison.study.cases_by
    groups: dict[str, dict[str, Row]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and set(row.at) == ({by} if by else set()):
            groups.setdefault(_value(row.at[by]) if by else "", {})[row.system] = row
    if not groups:
        return _empty(chart, _no_records(metric, by))
    systems = brush.order(brush.comparison.plan.systems)
    scale = scale_for(metric.unit, [row.median for found in groups.values() for row in found.values()])
    notes, papers = [], []
    drawn = dict(list(groups.items())[:GROUPS])
    if len(groups) > GROUPS:
        notes.append(f"Drawn are the first {GROUPS} of {len(groups)} groups; the table has all.")
    ends = [scale.of(end) for found in drawn.values() for row in found.values() for end in _ends(row)]
    for found in drawn.values():
        for system, row in found.items():
            papers += [(row, *paper) for paper in brush.papers(metric.name, system, row.at)]
    ends += [scale.of(value) for _, _, value in papers]
    low, high, log = _limits(ends, "y" in chart.log or "x" in chart.log, zero=True)

    names = {name: shortened(name, 30) for name in systems}
    left = max(_wide(name) for name in names.values()) + 14
    step, gap = 21, 27
    headed = bool(by)
    inner = sum(step * len(systems) + (gap if headed else 0) for _ in drawn) + 4
    right = max(_wide(scale.text(row.median)) for found in drawn.values() for row in found.values()) + 14
    figure, axes = _axes(left, right, 46, inner)
    # y counts pixels downwards, so that text and bars have fixed sizes whatever their number.
    axes.set_ylim(inner, 0)
    axes.set_xlim(low, high)
    _axis(axes.xaxis, low, high, log)
    _title_below(axes, _axis_title(metric, scale, log))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    start = low if log else max(low, 0.0) if low >= 0 else 0.0
    position = 0.0
    for group, found in drawn.items():
        if headed:
            position += gap
            axes.annotate(
                shortened(f"{coordinate(by)[0]} {group}", 60), (0, position - 8), xycoords=("axes fraction", "data"),
                xytext=(-left + 2, 0), textcoords="offset points", fontweight="bold",
            )  # fmt: skip
        base = found.get(brush.comparison.study.baseline)
        if base is not None and _drawable(scale.of(base.median)) and low <= scale.of(base.median) <= high:
            at = scale.of(base.median)
            axes.add_line(
                Line2D([at, at], [position, position + step * len(systems)], color=_MUTED, lw=1, dashes=(3, 3))
            )
        for system in systems:
            middle = position + step / 2
            style, current = brush.styles[system], found.get(system)
            axes.annotate(
                names[system], (0, middle), xycoords=("axes fraction", "data"), xytext=(-8, 0),
                textcoords="offset points", ha="right", va="center",
            )  # fmt: skip
            position += step
            value = math.nan if current is None else scale.of(current.median)
            if current is None or not _drawable(value) or (log and value <= 0):
                _word(axes, _why_missing(current, log), (0, middle), (5, 0), ("axes fraction", "data"))
                continue
            if log:
                axes.plot([value], [middle], marker="o", ms=8, color=style.ink, gid=f"series-{style.index}-mark")
            else:
                bar = Rectangle((start, middle - 6.5), value - start, 13, color=style.ink, lw=0, alpha=0.85)
                bar.set_gid(f"series-{style.index}-bar")
                axes.add_patch(bar)
            edges = [min(max(scale.of(end), low), high) for end in (current.low, current.high)]
            if current.seeds > 1 and edges[0] != edges[1]:
                axes.plot(edges, [middle, middle], color=_TEXT, lw=1.2, marker="|", ms=7, mew=1.2)
            hollow = [scale.of(paper) for row, _, paper in papers if row is current]
            for paper in hollow:
                axes.plot([paper], [middle], marker="D", ms=7, mfc="none", mec=_TEXT, mew=1.4, gid="paper")
            beyond = max([value, *edges, *hollow])
            _word(axes, scale.text(current.median), (beyond, middle), (7, 0), "data", text=True)
    notes += _paper_notes([finding for _, finding, _ in papers])
    key = "; ".join(
        f"{group + ': ' if group else ''}"
        + ", ".join(f"{name} {_figure(found.get(name), scale)}" for name in systems if name in found)
        for group, found in drawn.items()
    )
    svg = _finish(figure, brush, "0", "", key)
    body = [
        (*((group,) if by else ()), name, *_four(found.get(name), scale))
        for group, found in groups.items()
        for name in systems
    ]
    return Drawing(
        kind=chart.kind,
        title=chart.title,
        says=chart.says,
        panels=(Panel(heading="", svg=svg),),
        notes=tuple(notes),
        head=(*((coordinate(by)[0],) if by else ()), "system", *_four_heads(metric, scale)),
        body=tuple(body),
    )


# ---------------------------------------------------------------------------------------------------------------------
# pareto


def _pareto(brush: _Brush) -> Drawing:
    chart, across, up = brush.chart, brush.metrics[brush.chart.x], brush.y
    pairs: dict[str, dict[str, tuple[Row, Row]]] = {}
    ups = {(row.system, canonical_at(row.at)): row for row in brush.comparison.rows if row.metric == up.name}
    by = brush.comparison.study.cases_by
    for row in brush.comparison.rows:
        other = ups.get((row.system, canonical_at(row.at)))
        if row.metric == across.name and other is not None and set(row.at) <= {by}:
            pairs.setdefault(canonical_at(row.at), {})[row.system] = (row, other)
    if len(pairs) > 1:
        pairs.pop("{}", None)
    if not pairs:
        return _empty(chart, f"This run has no records of {across.name} and {up.name} together.")
    everything = [pair for found in pairs.values() for pair in found.values()]
    scales = (
        scale_for(across.unit, [p[0].median for p in everything]),
        scale_for(up.unit, [p[1].median for p in everything]),
    )
    notes, papers = [], []
    limits: list[list[float]] = [[], []]
    for place, found in pairs.items():
        for system, pair in found.items():
            values = [_papers_at(brush, metric, system, row) for metric, row in zip((across, up), pair, strict=True)]
            if values[0] or values[1]:
                marks = (
                    scales[0].of(values[0][0][1] if values[0] else pair[0].median),
                    scales[1].of(values[1][0][1] if values[1] else pair[1].median),
                )
                papers.append((place, system, marks, [finding for value in values for finding, _ in value]))
                limits[0].append(marks[0])
                limits[1].append(marks[1])
            if all(_drawable(row.median) for row in pair):
                for number, row in enumerate(pair):
                    limits[number] += [scales[number].of(end) for end in _ends(row)]
    x_low, x_high, x_log = _limits(limits[0], "x" in chart.log, pad=0.08)
    y_low, y_high, y_log = _limits(limits[1], "y" in chart.log, pad=0.08)

    panels, body, joined = [], [], False
    for number, (place, found) in enumerate(list(pairs.items())[:PANELS]):
        figure, axes = _axes(_room_left(y_low, y_high, y_log), 20, 46, 330, top=30)
        axes.set_xlim(x_low, x_high)
        axes.set_ylim(y_low, y_high)
        _axis(axes.xaxis, x_low, x_high, x_log)
        _axis(axes.yaxis, y_low, y_high, y_log)
        axes.grid(True)
        _title_below(axes, _axis_title(across, scales[0], x_log))
        _title_above(axes, _axis_title(up, scales[1], y_log))
        spots = {}
        for system in brush.order(list(found)):
            x_row, y_row = found[system]
            spot = (scales[0].of(x_row.median), scales[1].of(y_row.median))
            outside = (x_log and spot[0] <= 0) or (y_log and spot[1] <= 0)
            if not all(map(_drawable, spot)) or outside:
                notes.append(
                    f"Not drawn: {system}{_of(place)}, {_why_missing(None if outside else _worse(x_row, y_row), outside)}."
                )
                continue
            spots[system] = spot
        front = _front({system: found[system] for system in spots}, across, up)
        if len(front) > 1:
            joined = True
            line = [spots[system] for system in front]
            axes.plot(*zip(*line, strict=True), color=_MUTED, lw=1.2, dashes=(5, 3), zorder=1.5, gid="front")
        for system, spot in spots.items():
            style = brush.styles[system]
            for row, scale, flat in zip(found[system], scales, (True, False), strict=True):
                if row.seeds > 1:
                    ends = (scale.of(row.low), scale.of(row.high))
                    xs, ys = (ends, (spot[1], spot[1])) if flat else ((spot[0], spot[0]), ends)
                    axes.plot(xs, ys, color=style.ink, lw=1.4, alpha=0.7, gid=f"series-{style.index}-whisker{flat:d}")
            size = 9 if style.marker in "PXpsh" else 8
            axes.plot(*[[v] for v in spot], marker=style.marker, ms=size, ls="", color=style.ink, mec="none",
                      gid=f"series-{style.index}-mark", zorder=3)  # fmt: skip
        hollow = [(system, marks) for where, system, marks, _ in papers if where == place]
        for system, marks in hollow:
            axes.plot(*[[v] for v in marks], marker="D", ms=8, ls="", mfc="none", mec=brush.styles[system].ink, mew=1.5,
                      gid=f"series-{brush.styles[system].index}-paper")  # fmt: skip
        _direct_labels(axes, spots, [marks for _, marks in hollow], brush)
        key = "; ".join(
            f"{system}: {label(across.name, across.unit)} {_figure(found[system][0], scales[0])}, "
            f"{label(up.name, up.unit)} {_figure(found[system][1], scales[1])}"
            for system in brush.order(list(found))
        )
        best = f" No other system is better on both: {listed(front)}." if front else ""
        panels.append(
            Panel(heading=_heading(place), svg=_finish(figure, brush, str(number), _heading(place), key + "." + best))
        )
    if len(pairs) > PANELS:
        notes.append(f"Drawn are the first {PANELS} of {len(pairs)} cases; the table has all.")
    notes += _paper_notes([finding for *_, findings in papers for finding in findings])
    if joined:
        notes.append("The dashed line joins the systems that no other beats on both medians.")
    for place, found in pairs.items():
        for system in brush.order(list(found)):
            cells = [_figure(row, scale) for row, scale in zip(found[system], scales, strict=True)]
            body.append((*((_heading(place),) if by else ()), system, *cells))
    return Drawing(
        kind=chart.kind,
        title=chart.title,
        says=chart.says,
        panels=tuple(panels),
        notes=tuple(notes),
        head=(
            *(("case",) if by else ()), "system",
            *(f"{label(m.name, m.unit)} {f'({s.unit})' if s.unit else ''}".strip() for m, s in zip((across, up), scales, strict=True)),
        ),
        body=tuple(body),
    )  # fmt: skip


def _papers_at(brush: _Brush, metric: Metric, system: str, row: Row) -> list[tuple[Finding, float]]:
    return brush.papers(metric.name, system, row.at)


def _front(found: Mapping[str, tuple[Row, Row]], across: Metric, up: Metric) -> list[str]:
    """Return the systems that no other beats on both medians, from left to right; none where a side is undefined."""
    if not (across.better and up.better):
        return []
    signs = tuple(1 if metric.better == "lower" else -1 for metric in (across, up))
    points = {
        name: tuple(sign * row.median for sign, row in zip(signs, pair, strict=True)) for name, pair in found.items()
    }
    best = [
        name
        for name, (x, y) in points.items()
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: found[name][0].median)


def _direct_labels(
    axes: Axes, spots: Mapping[str, tuple[float, float]], hollow: Sequence[tuple[float, float]], brush: _Brush
) -> None:
    """Name every point where the name covers neither another point nor another name."""
    box = axes.get_window_extent()
    to_pixels = axes.transData.transform
    pixels = {name: tuple(float(v) for v in to_pixels(spot)) for name, spot in spots.items()}
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in [*pixels.values(), *(to_pixels(spot) for spot in hollow)]]
    for name, (x, y) in sorted(pixels.items(), key=lambda item: (item[1][0], item[1][1])):
        text = shortened(name, 28)
        wide, tall = _wide(text), SIZE + 2
        best: tuple[float, tuple[float, float, float, float], float] | None = None
        for radius in (10, 16, 24, 34, 46, 60, 76, 94):
            for turn in range(16):
                angle = math.pi * turn / 8
                middle_x, middle_y = x + radius * math.cos(angle), y + radius * math.sin(angle)
                # The label hangs on the side it lies on: right of the point it begins there, left of it it ends there.
                left = middle_x - wide * (1 - math.cos(angle)) / 2
                spot = (left, middle_y - tall / 2, left + wide, middle_y + tall / 2)
                cost = radius * 0.35 + sum(_overlap(spot, other) for other in taken)
                cost += 50 * (max(0, box.x0 - spot[0]) + max(0, spot[2] - box.x1 - 12))
                cost += 50 * (max(0, box.y0 - spot[1]) + max(0, spot[3] - box.y1))
                if best is None or cost < best[0] - 1e-9:
                    best = (cost, spot, radius)
        if best is None:
            continue
        _, spot, radius = best
        taken.append(spot)
        style = brush.styles[name]
        near = (min(max(x, spot[0]), spot[2]), min(max(y, spot[1]), spot[3]))
        if math.dist(near, (x, y)) > 12:
            axes.annotate(
                "", near, (x, y), xycoords="figure pixels", textcoords="figure pixels", zorder=2,
                arrowprops={"arrowstyle": "-", "color": _MUTED, "lw": 0.8, "shrinkA": 5, "shrinkB": 0},
            )  # fmt: skip
        axes.annotate(
            text, (spot[0], (spot[1] + spot[3]) / 2), xycoords="figure pixels", va="center", zorder=5,
            gid=f"series-{style.index}-label",
        )  # fmt: skip


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return wide * tall if wide > 0 and tall > 0 else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# sweep, distribution, timeline


def _curves(brush: _Brush) -> Drawing:
    chart, metric = brush.chart, brush.y
    by = chart.by or {"distribution": "quantile", "timeline": "time_s"}.get(chart.kind, "")
    curves: dict[str, dict[str, list[tuple[Any, Row]]]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and by in row.at:
            rest = canonical_at({name: value for name, value in row.at.items() if name != by})
            curves.setdefault(rest, {}).setdefault(row.system, []).append((row.at[by], row))
    if not curves:
        return _empty(chart, _no_records(metric, by))
    spots = [spot for found in curves.values() for points in found.values() for spot, _ in points]
    numbers = all(isinstance(spot, int | float) and not isinstance(spot, bool) for spot in spots)
    words = list(dict.fromkeys(map(_value, spots)))
    nines = chart.kind == "distribution" and "x" in chart.log and numbers and all(0 <= spot <= 1 for spot in spots)
    says, unit = coordinate(by)
    along = scale_for(unit, spots if numbers else ())
    scale = scale_for(metric.unit, [row.median for found in curves.values() for p in found.values() for _, row in p])

    def place(spot: Any) -> float:
        if not numbers:
            return float(words.index(_value(spot)))
        # On an axis of nines 0.99 lies as far from 0.9 as 0.999 from 0.99; the last point, 1, would lie nowhere.
        return 1 - spot if nines else along.of(spot)

    if numbers:
        for found in curves.values():
            for points in found.values():
                points.sort(key=lambda point: float(point[0]))
    notes, ends, papers = [], [], []
    for rest, found in curves.items():
        for system, points in found.items():
            for spot, row in points:
                ends += [scale.of(end) for end in _ends(row)]
                for finding, value in brush.papers(metric.name, system, row.at):
                    papers.append((rest, system, place(spot), scale.of(value), finding))
                    ends.append(scale.of(value))
    y_low, y_high, y_log = _limits(ends, "y" in chart.log, zero=True)
    places = [place(spot) for spot in spots]
    if nines:
        places = [spot for spot in places if spot > 0]
    x_low, x_high, x_log = _limits(places, nines or ("x" in chart.log and numbers), pad=0.02 if numbers else 0.06)
    systems = brush.order([system for found in curves.values() for system in found])
    direct = len(systems) <= DIRECT
    named = systems if direct else [system for system in systems if brush.styles[system].colour < 0]
    right = max([_wide(shortened(name, 24)) + 12 for name in named], default=20)

    panels = []
    for number, (rest, found) in enumerate(list(curves.items())[:PANELS]):
        figure, axes = _axes(_room_left(y_low, y_high, y_log), right, 46, 290, top=30)
        axes.set_xlim(*((x_high, x_low) if nines else (x_low, x_high)))
        axes.set_ylim(y_low, y_high)
        if numbers:
            _axis(axes.xaxis, x_low, x_high, x_log, percent=nines)
        else:
            axes.set_xticks(range(len(words)), [shortened(word, 16) for word in words])
        _axis(axes.yaxis, y_low, y_high, y_log)
        axes.grid(True, axis="y")
        shown = f" ({along.unit}{', log scale' if x_log else ''})" if along.unit else ", log scale" if x_log else ""
        _title_below(axes, "quantile, in nines" if nines else f"{says}{shown}")
        _title_above(axes, _axis_title(metric, scale, y_log))
        tips = {}
        for system in brush.order(list(found)):
            points = found[system]
            tip = _line(
                axes, brush, system, [(place(spot), row) for spot, row in points], scale, x_log, y_log, chart.kind
            )
            if tip is not None:
                tips[system] = tip
        for where, system, x, y, _ in papers:
            if where == rest:
                style = brush.styles[system]
                axes.plot([x], [y], marker="D", ms=8, ls="", mfc="none", mec=style.ink, mew=1.5,
                          gid=f"series-{style.index}-paper", zorder=4)  # fmt: skip
        _end_labels(axes, {system: tip for system, tip in tips.items() if system in named}, brush)
        key = "; ".join(
            _told(system, found[system], says, along, scale, chart.kind) for system in brush.order(list(found))
        )
        panels.append(Panel(heading=_heading(rest), svg=_finish(figure, brush, str(number), _heading(rest), key)))
    if len(curves) > PANELS:
        notes.append(f"Drawn are the first {PANELS} of {len(curves)} cases; the table has all.")
    notes += _holes(curves, says, along, y_log)
    if any(row.seeds > 1 and row.low != row.high for f in curves.values() for p in f.values() for _, row in p):
        notes.append("Bands are 95 % intervals over seeds.")
    notes += _paper_notes([finding for *_, finding in papers])
    head, body, left_out = _curve_table(curves, systems, says, along, scale)
    if left_out:
        notes.append(f"The table of figures shows {TABLE_ROWS} of {TABLE_ROWS + left_out} rows, evenly spread.")
    return Drawing(
        kind=chart.kind,
        title=chart.title,
        says=chart.says,
        panels=tuple(panels),
        legend=() if direct else tuple(
            Key(system=name, index=brush.styles[name].index, swatch=brush.styles[name].swatch()) for name in systems
        ),
        notes=tuple(notes),
        head=head,
        body=body,
    )  # fmt: skip


def _line(
    axes: Axes,
    brush: _Brush,
    system: str,
    points: Sequence[tuple[float, Row]],
    scale: Scale,
    x_log: bool,
    y_log: bool,
    kind: str,
) -> tuple[float, float] | None:
    """Draw one curve with its band; return its last point, None when nothing could be drawn."""
    style = brush.styles[system]
    crowded = style.colour < 0 or len(brush.styles) > CROWD
    rows = [
        (x, scale.of(row.median), scale.of(row.low), scale.of(row.high))
        if _drawable(row.median) and not (y_log and row.median <= 0)
        else (x, math.nan, math.nan, math.nan)
        for x, row in points
        if not (x_log and x <= 0)
    ]
    if all(math.isnan(y) for _, y, _, _ in rows):
        return None
    if kind != "sweep":
        rows = _thinned(rows)
    low, high = axes.get_ylim()
    xs = [row[0] for row in rows]
    if any(row[2] != row[3] for row in rows if not math.isnan(row[1])):
        axes.fill_between(
            xs,
            [min(max(row[2], low), high) for row in rows],
            [min(max(row[3], low), high) for row in rows],
            where=[not math.isnan(row[1]) for row in rows],
            color=style.ink, lw=0, alpha=0.09 if crowded else 0.16, gid=f"series-{style.index}-band",
        )  # fmt: skip
    every: Any = None
    if kind != "sweep" and len(rows) > 8:
        # A few markers tell the curves apart without colour; each curve has its own places for them.
        stride = max(1, len(rows) // 6)
        every = (style.index * stride // max(1, len(brush.styles)) % stride, stride)
    line = axes.plot(
        xs, [row[1] for row in rows], color=style.ink, lw=1 if style.colour < 0 else 1.5 if crowded else 2,
        marker=style.marker, ms=5 if kind == "sweep" else 4.5, mec="none", markevery=every,
        gid=f"series-{style.index}-line", zorder=1.8 if style.colour <= 0 else 2,
    )[0]  # fmt: skip
    if style.dash:
        line.set_dashes(style.dash)
    return next((x, y) for x, y, _, _ in reversed(rows) if not math.isnan(y))


def _thinned(rows: Sequence[tuple[float, float, float, float]]) -> list[tuple[float, float, float, float]]:
    """Keep the least and the greatest point of every stretch of a long curve, so that no spike is lost."""
    if len(rows) <= POINTS:
        return list(rows)
    kept = {0, len(rows) - 1}
    stretch = 2 * len(rows) / POINTS
    for number in range(POINTS // 2):
        span = range(int(number * stretch), min(len(rows), int((number + 1) * stretch)))
        known = [index for index in span if not math.isnan(rows[index][1])]
        if known:
            kept |= {min(known, key=lambda index: rows[index][1]), max(known, key=lambda index: rows[index][1])}
        if len(known) < len(span):
            kept.add(next(index for index in span if math.isnan(rows[index][1])))
    return [rows[index] for index in sorted(kept)]


def _end_labels(axes: Axes, tips: Mapping[str, tuple[float, float]], brush: _Brush) -> None:
    """Name curves at their right end, moved apart where they would cover each other."""
    if not tips:
        return
    box = axes.get_window_extent()
    heights = {name: float(axes.transData.transform(tip)[1]) for name, tip in tips.items()}
    names = sorted(heights, key=lambda name: (heights[name], name))
    spread = SIZE + 3.0
    at = [heights[name] for name in names]
    for number in range(1, len(at)):
        at[number] = max(at[number], at[number - 1] + spread)
    top = box.y1 + 4
    for number in reversed(range(len(at))):
        at[number] = min(at[number], top - spread * (len(at) - 1 - number))
    for name, height in zip(names, at, strict=True):
        axes.annotate(
            shortened(name, 24), (box.x1 + 8, height), xycoords="figure pixels", va="center", annotation_clip=False,
            gid=f"series-{brush.styles[name].index}-label",
        )  # fmt: skip


def _holes(curves: Mapping[str, Any], says: str, along: Scale, y_log: bool) -> list[str]:
    """Say which points could not be drawn, and why."""
    holes: dict[tuple[str, str], list[str]] = {}
    for rest, found in curves.items():
        for system, points in found.items():
            for spot, row in points:
                below = y_log and row.median <= 0
                if below or not _drawable(row.median):
                    where = f"{says} {_spot(spot, along)}{_of(rest)}"
                    holes.setdefault((system, _why_missing(row, below)), []).append(where)
    return [
        f"Not drawn: {system} at {listed(where[:4])}{f' and {len(where) - 4} more' if len(where) > 4 else ''}, {why}."
        for (system, why), where in holes.items()
    ]


def _told(system: str, points: Sequence[tuple[Any, Row]], says: str, along: Scale, scale: Scale, kind: str) -> str:
    """Put a curve into words: its ends, and its peak where it runs along time."""
    (first, start), (last, end) = points[0], points[-1]
    told = f"{system}: {_figure(start, scale)} at {says} {_spot(first, along)}"
    if len(points) > 1:
        told += f", {_figure(end, scale)} at {says} {_spot(last, along)}"
    drawable = [(row.median, spot, row) for spot, row in points if _drawable(row.median)]
    if kind == "timeline" and len(drawable) > 2:
        _, spot, row = max(drawable, key=lambda item: item[0])
        told += f", at most {_figure(row, scale)} at {says} {_spot(spot, along)}"
    return told


def _curve_table(
    curves: Mapping[str, Mapping[str, Sequence[tuple[Any, Row]]]],
    systems: Sequence[str],
    says: str,
    along: Scale,
    scale: Scale,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], int]:
    rows: list[tuple[str, ...]] = []
    for rest, found in curves.items():
        by_spot: dict[Any, dict[str, Row]] = {}
        for system, points in found.items():
            for spot, row in points:
                by_spot.setdefault(spot, {})[system] = row
        spots = list(by_spot)
        if all(isinstance(spot, int | float) for spot in spots):
            spots.sort()
        for spot in spots:
            figures = (_figure(by_spot[spot].get(system), scale) for system in systems)
            rows.append((*((_heading(rest),) if len(curves) > 1 else ()), _spot(spot, along), *figures))
    unit = f" ({along.unit})" if along.unit else ""
    head = (*(("case",) if len(curves) > 1 else ()), f"{says}{unit}", *systems)
    left_out = max(0, len(rows) - TABLE_ROWS)
    if left_out:
        rows = [rows[number * (len(rows) - 1) // (TABLE_ROWS - 1)] for number in range(TABLE_ROWS)]
    return head, tuple(rows), left_out


# ---------------------------------------------------------------------------------------------------------------------
# figures in words


def _no_records(metric: Metric, by: str) -> str:
    where = f" along {by}" if by else ""
    return f"There is nothing to draw: this run has no records of {metric.name}{where}."


def _ends(row: Row) -> list[float]:
    return [value for value in (row.low, row.median, row.high) if _drawable(value)]


def _worse(one: Row, other: Row) -> Row:
    return one if not _drawable(one.median) else other


def _why_missing(row: Row | None, below: bool) -> str:
    if below:
        return "not above zero, which a log scale cannot show"
    if row is None:
        return "no records"
    if not row.seeds:
        return "no figure (NaN)"
    return "infinite" if math.isinf(row.median) else "too large to draw"


def _figure(row: Row | None, scale: Scale) -> str:
    if row is None or not row.seeds:
        return "-"
    interval = scale.interval(row, " to ")
    return scale.text(row.median) + (f" ({interval})" if interval else "")


def _four(row: Row | None, scale: Scale) -> tuple[str, ...]:
    if row is None or not row.seeds:
        return "-", "-", "-", "0"
    return scale.text(row.median), scale.text(row.low), scale.text(row.high), str(row.seeds)


def _four_heads(metric: Metric, scale: Scale) -> tuple[str, ...]:
    unit = f" ({scale.unit})" if scale.unit else ""
    return f"{label(metric.name, metric.unit)}, median{unit}", "interval from", "to", "seeds"


def _paper_notes(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    against = list(dict.fromkeys(finding.claim.versus for finding in findings if finding.claim.versus is not None))
    ratios = f"; it is a ratio, put at that multiple of our median of {listed(against)}" if against else ""
    return [f"Hollow diamonds are the paper's figures{ratios}."]


def _value(value: Any) -> str:
    return units.show(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _spot(spot: Any, along: Scale) -> str:
    if isinstance(spot, int | float) and not isinstance(spot, bool):
        return f"{along.of(spot):,.10g}"
    return str(spot)


def _heading(place: str) -> str:
    import json

    return ", ".join(f"{coordinate(name)[0]} {_value(value)}" for name, value in json.loads(place).items())


def _of(place: str) -> str:
    return f" ({_heading(place)})" if _heading(place) else ""


