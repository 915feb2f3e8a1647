"""One mark a record, and the diagonal where both axes agree."""

from __future__ import annotations

from wavetank.report.canvas import MUTED, Span, plot_area, titles
from wavetank.report.charts import words
from wavetank.report.charts.brush import PANELS, Brush, Drawing, Mark, empty
from wavetank.report.charts.curves import Along, Points, by_case, each_of, plotted
from wavetank.report.scale import Scale, coordinate, label, scale_for

_HEIGHT = 290  # of the plot area, in pixels


def draw_scatter(brush: Brush) -> Drawing:
    """Draw one panel a case, with one scale for both axes."""
    chart, metric, by = brush.chart, brush.y, brush.chart.by
    clouds = by_case(brush, lambda row: words.is_number(row.at.get(by)), by)
    if not clouds:
        return empty(chart, words.no_records(metric, by))
    every = [point for _, _, points in each_of(clouds) for point in points]
    # One scale for both axes: the diagonal is where they agree.
    scale = scale_for(metric.unit, [spot for spot, _ in every] + [row.median for _, row in every])
    along = Along(coordinate(by)[0], scale, (), False)
    systems = brush.order(system for _, system, _ in each_of(clouds))

    panels, lost = [], 0
    for number, (rest, found) in enumerate(list(clouds.items())[:PANELS]):
        placed = {
            system: [(scale.of(spot), scale.of(row.median)) for spot, row in points] for system, points in found.items()
        }
        ends = [end for spots in placed.values() for spot in spots for end in spot]
        spans = [Span.over(ends, axis in chart.log, zero=axis not in chart.log, waste=0.6) for axis in "xy"]
        figure, axes = plot_area(spans[1].room(_HEIGHT), 16, _HEIGHT)
        spans[0].put(axes, "x")
        spans[1].put(axes, "y")
        axes.grid(True)
        titles(axes, along.title(spans[0].log), words.axis_title(metric, scale, spans[1].log))
        seen = [end for end in ends if all(span.holds(end) for span in spans)]
        if seen:
            both = [min(seen), max(seen)]
            axes.plot(both, both, color=MUTED, lw=1.2, dashes=(5, 3), zorder=1.5)
        marks: list[Mark] = []
        for system in brush.order(found):
            style = brush.styles[system]
            drawn = [spot for spot in placed[system] if all(s.holds(v) for s, v in zip(spans, spot, strict=True))]
            lost += len(placed[system]) - len(drawn)
            marks += [
                brush.mark(system, (scale.of(x), scale.of(row.median)), scale.of(x), row, scale)
                for x, row in found[system]
                if spans[0].holds(scale.of(x)) and spans[1].holds(scale.of(row.median))
            ]
            if drawn:
                xs, ys = zip(*drawn, strict=True)
                axes.plot(
                    xs, ys, ls="none", marker=style.marker, ms=4.5, color=style.ink, mec="none", alpha=0.7, zorder=3,
                    gid=f"series-{style.index}-mark",
                )  # fmt: skip
        description = "; ".join(_describe_cloud(system, found[system], scale) for system in brush.order(found))
        panels.append(brush.panel(figure, number, words.heading(rest), f"{description}.", marks))

    head, body, more = plotted(clouds, systems, along, scale)
    notes = [*words.cut(len(clouds), PANELS, "cases"), "The dashed line is where both axes agree."]
    if lost:
        notes.append(f"Not drawn: {lost} points that the scale cannot show.")
    return brush.drawing(
        panels=tuple(panels),
        legend=brush.legend(systems),
        notes=(*notes, *more),
        names=((along.name, scale.unit), (label(metric.name, metric.unit), scale.unit)),
        head=head,
        body=body,
    )


def _describe_cloud(system: str, points: Points, scale: Scale) -> str:
    """Put a cloud into words: how many points, and those with the least and the greatest place."""
    ends = min(points, key=lambda point: float(point[0])), max(points, key=lambda point: float(point[0]))
    unit = f" {scale.unit}" if scale.unit else ""
    first, last = (f"{scale.text(row.median)} for {scale.text(spot)}" for spot, row in ends)
    return f"{system}: {len(points)} points, from {first} to {last}{unit}"
