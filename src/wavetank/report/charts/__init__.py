"""Charts of a study as SVG, drawn from summaries alone.

Every chart is a list of panels (one a case), each an SVG of its own so that a page can lay them out for any width; a
legend that a script may use to toggle series; and the plotted figures as a table, for readers who cannot or will not
look at a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wavetank.report.canvas import steady
from wavetank.report.charts.bars import draw_bars
from wavetank.report.charts.brush import TABLE_ROWS, Brush, Drawing, Key, Panel, empty, styles
from wavetank.report.charts.curves import POINTS, draw_curves
from wavetank.report.charts.forest import draw_forest
from wavetank.report.charts.pareto import draw_pareto
from wavetank.report.charts.scatter import draw_scatter

if TYPE_CHECKING:
    from wavetank.run.comparison import Comparison
    from wavetank.study.study import Chart

__all__ = ["POINTS", "TABLE_ROWS", "Drawing", "Key", "Panel", "draw", "draw_forest", "styles"]

_KINDS: dict[str, Callable[[Brush], Drawing]] = {
    "bars": draw_bars,
    "pareto": draw_pareto,
    "sweep": draw_curves,
    "distribution": draw_curves,
    "timeline": draw_curves,
    "scatter": draw_scatter,
}


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
    named = (chart.x, chart.y) if chart.kind == "pareto" else (chart.y,)
    unknown = [name for name in named if name not in metrics]
    if chart.kind not in _KINDS:
        return empty(chart, f"This version of Wavetank draws no charts of the kind {chart.kind!r}.")
    if unknown:
        return empty(chart, f"There is nothing to draw: the study has no metric named {unknown[0]!r}.")
    with steady():
        return _KINDS[chart.kind](Brush(comparison, chart, prefix, metrics, styles(comparison)))
