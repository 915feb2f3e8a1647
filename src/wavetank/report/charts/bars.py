"""One bar a system, in groups where the study has cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wavetank.report.canvas import MUTED, TEXT, Span, Style, plot_area, titles, wide, word
from wavetank.report.charts import words
from wavetank.report.charts.brush import Brush, Drawing, empty, ends_of
from wavetank.report.scale import Scale, coordinate, is_share, label, listed, scale_for, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.study.summary import Row

GROUPS = 12


_BAR, _GROUP_HEAD = 21, 27  # heights in pixels


def draw_bars(brush: Brush) -> Drawing:
    """Draw bars, or points on a log scale, which has no zero for a bar to begin at."""
    metric = brush.y
    by = brush.chart.by or brush.comparison.study.cases_by
    groups: dict[str, dict[str, Row]] = {}
    for row in brush.comparison.rows:
        if row.metric == metric.name and set(row.at) == ({by} if by else set()):
            groups.setdefault(words.value(row.at[by]) if by else "", {})[row.system] = row
    if not groups:
        return empty(brush.chart, words.no_records(metric, by))
    drawn = dict(list(groups.items())[:GROUPS])
    rows = [row for found in drawn.values() for row in found.values()]
    systems = brush.order(brush.comparison.plan.systems)
    scale = scale_for(metric.unit, [row.median for row in rows])
    papers = {id(row): brush.papers(row) for row in rows}
    hollow = [(finding, value) for found in papers.values() for finding, value in found]
    ends = [end for row in rows for end in ends_of(row)] + [value for _, value in hollow]
    span = Span.over([scale.of(end) for end in ends], brush.chart.log != "", zero=True, share=is_share(metric))

    left = max(wide(shortened(name, 26)) for name in systems) + 14
    right = max(wide(scale.text(row.median)) for row in rows) + 14
    # A system without any record is missing once, not in every group.
    recorded = {name for found in groups.values() for name in found}
    missing = [name for name in systems if name not in recorded]
    asked = {group: [s for s in systems if s in found or (s in missing and not by)] for group, found in groups.items()}
    inner = sum(_BAR * len(asked[group]) + (_GROUP_HEAD if by else 0) for group in drawn) + 4
    figure, axes = plot_area(left, right, inner, top=14)
    span.put(axes, "x")
    titles(axes, words.axis_title(metric, scale, span.log))
    # The upright axis counts pixels downwards, so that text and bars have fixed sizes whatever their number.
    axes.set_ylim(inner, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    top = 0.0
    marks = []
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
            gid = f"series-{brush.styles[system].index}-name"
            word(axes, shortened(system, 26), (0, middle), _BESIDE, xytext=(-8, 0), ha="right", gid=gid)
            mine = found.get(system)
            if mine is not None and span.holds(scale.of(mine.median)):
                marks.append(brush.mark(system, (scale.of(mine.median), middle), group, mine, scale))
            values = [scale.of(value) for _, value in papers.get(id(mine), ())]
            _bar(axes, brush.styles[system], mine, scale, span, middle, values)

    description = "; ".join(
        f"{group + ': ' if group else ''}"
        + ", ".join(f"{name} {words.figure(found[name], scale)}" for name in systems if name in found)
        for group, found in drawn.items()
    )
    unit = f" ({scale.unit})" if scale.unit else ""
    return brush.drawing(
        panels=(brush.panel(figure, 0, "", f"{description}.", marks),),
        notes=(
            *words.cut(len(groups), GROUPS, "groups"),
            *([f"Without records of it: {listed(missing)}."] if by and missing else []),
            *words.paper_notes([finding for finding, _ in hollow]),
        ),
        names=((coordinate(by)[0] if by else "", ""), (label(metric.name, metric.unit), scale.unit)),
        head=(
            *((coordinate(by)[0],) if by else ()),
            "system",
            f"{label(metric.name, metric.unit)}, median{unit}",
            "from",
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
        word(axes, words.why_missing(row, span.log), (0, middle), _BESIDE, color=MUTED, style="italic")
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
        gid = f"series-{style.index}-interval"
        axes.plot(ends, [middle, middle], color=TEXT, lw=1.2, marker="|", ms=7, mew=1.2, gid=gid)
    for paper in papers:
        axes.plot([paper], [middle], marker="D", ms=7, mfc="none", mec=TEXT, mew=1.4, gid=f"series-{style.index}-paper")
    gid = f"series-{style.index}-value"
    word(axes, scale.text(row.median), (max(value, *ends, *papers), middle), "data", color=TEXT, gid=gid)


def _four(row: Row | None, scale: Scale) -> tuple[str, ...]:
    if row is None or not row.seeds:
        return "-", "-", "-", "0"
    return scale.text(row.median), scale.text(row.low), scale.text(row.high), str(row.seeds)
