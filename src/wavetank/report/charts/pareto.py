"""One point a system on two metrics, and the line of those that no other system beats on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wavetank.report.canvas import MUTED, Span, Spot, Style, drawable, label_points, plot_area, titles
from wavetank.report.charts import words
from wavetank.report.charts.brush import PANELS, Brush, Drawing, empty, ends_of, hollow_mark
from wavetank.report.scale import Scale, is_share, label, listed, scale_for
from wavetank.study.records import canonical_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.ledger.claims import Finding
    from wavetank.study.study import Metric
    from wavetank.study.summary import Row

_HEIGHT = 290  # of the plot area, in pixels


def draw_pareto(brush: Brush) -> Drawing:
    """Draw one panel a case."""
    chart, metrics = brush.chart, (brush.metrics[brush.chart.x], brush.y)
    by = brush.comparison.study.cases_by
    ups = {(row.system, canonical_at(row.at)): row for row in brush.comparison.rows if row.metric == metrics[1].name}
    places: dict[str, dict[str, tuple[Row, Row]]] = {}
    for row in brush.comparison.rows:
        other = ups.get((row.system, canonical_at(row.at)))
        if row.metric == metrics[0].name and other is not None and set(row.at) == ({by} if by else set()):
            places.setdefault(canonical_at(row.at), {})[row.system] = (row, other)
    if not places:
        return empty(chart, f"There is nothing to draw: this run has no records of {chart.x} and {chart.y} together.")
    pairs = [pair for found in places.values() for pair in found.values()]
    scales = [scale_for(metric.unit, [pair[n].median for pair in pairs]) for n, metric in enumerate(metrics)]
    papers = {(place, name): _stated(brush, pair) for place, found in places.items() for name, pair in found.items()}

    panels, notes, joined = [], [*words.cut(len(places), PANELS, "cases")], False
    for number, (place, found) in enumerate(list(places.items())[:PANELS]):
        spans = [_span(brush, n, scale, found, papers, place) for n, scale in enumerate(scales)]
        figure, axes = plot_area(spans[1].room(_HEIGHT), 16, _HEIGHT)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        axes.grid(True)
        across, up = (
            words.axis_title(m, scale, span.log) for m, scale, span in zip(metrics, scales, spans, strict=True)
        )
        titles(axes, across, up)
        spots: dict[str, Spot] = {}
        for system in brush.order(found):
            spot = _at(scales, [row.median for row in found[system]])
            missing = [n for n, span in enumerate(spans) if not span.holds(spot[n])]
            if missing:
                n = missing[0]
                name, why = label(metrics[n].name, metrics[n].unit), words.why_missing(found[system][n], spans[n].log)
                notes.append(f"Not drawn: {system}{words.in_case(place)}, its {name} is {why}.")
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
                hollow_mark(axes, brush.styles[system], _at(scales, stated))
                solid.append((_at(scales, stated), _at(scales, stated)))
        names = {brush.styles[system].index: system for system in spots}
        label_points(axes, names, {index: spots[system] for index, system in names.items()}, solid)
        description = "; ".join(
            f"{system}: " + ", ".join(
                f"{label(m.name, m.unit)} {words.figure(row, scale)} {scale.unit}".rstrip()
                for m, row, scale in zip(metrics, found[system], scales, strict=True)
            )
            for system in brush.order(found)
        )  # fmt: skip
        best = f" No other system beats on both: {listed(front)}." if front else ""
        marks = [brush.mark(system, spot, spot[0], found[system][1], scales[1]) for system, spot in spots.items()]
        panels.append(brush.panel(figure, number, words.heading(place), f"{description}.{best}", marks))
    if len(panels) > 1:
        notes.append("Every panel has axes of its own.")
    if joined:
        notes.append("The dashed line joins the systems that no other beats on both medians.")
    notes += words.paper_notes([finding for _, findings in papers.values() for finding in findings])
    units_shown = [f" ({scale.unit})" if scale.unit else "" for scale in scales]
    return brush.drawing(
        panels=tuple(panels),
        notes=tuple(notes),
        names=tuple((label(m.name, m.unit), scale.unit) for m, scale in zip(metrics, scales, strict=True)),
        head=(
            *(("case",) if by else ()),
            "system",
            *(label(m.name, m.unit) + unit for m, unit in zip(metrics, units_shown, strict=True)),
        ),
        body=tuple(
            (
                *((words.heading(place),) if by else ()),
                system,
                *(words.figure(row, scale) for row, scale in zip(found[system], scales, strict=True)),
            )
            for place, found in places.items()
            for system in brush.order(found)
        ),
    )


def _span(
    brush: Brush,
    n: int,
    scale: Scale,
    found: Mapping[str, tuple[Row, Row]],
    papers: Mapping[tuple[str, str], tuple[Spot, list[Finding]]],
    place: str,
) -> Span:
    """Return what one axis of one panel covers: the points that can be drawn, and the sources' figures."""
    ends = [end for pair in found.values() if all(drawable(row.median) for row in pair) for end in ends_of(pair[n])]
    ends += [spot[n] for system in found for spot, findings in [papers[place, system]] if findings]
    metric = brush.metrics[brush.chart.x if n == 0 else brush.chart.y]
    return Span.over([scale.of(end) for end in ends], "xy"[n] in brush.chart.log, pad=0.08, share=is_share(metric))


def _stated(brush: Brush, pair: tuple[Row, Row]) -> tuple[Spot, list[Finding]]:
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
