"""Forest plot: each system's ratio to the baseline over paired replicates, on a log axis with a line at 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wavetank import units
from wavetank.report.canvas import MUTED, TEXT, Span, Style, drawable, plot_area, steady, titles, wide, word
from wavetank.report.charts.brush import Brush, Drawing, Mark, styles
from wavetank.report.scale import label, shortened
from wavetank.study.answer import UNDECIDED
from wavetank.study.effects import LEAST_FOR_INTERVAL
from wavetank.study.study import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wavetank.run.comparison import Comparison as Run
    from wavetank.study.answer import Answer, Comparison
    from wavetank.study.effects import Effect

ROWS = 30  # the most that are drawn; the table of the figures has the others

_ROW, _GROUP_HEAD = 21, 27  # heights in pixels
_NAME = 26  # characters
_BESIDE = ("axes fraction", "data")


def draw_forest(run: Run, prefix: str) -> Drawing | None:
    """Draw the comparisons with the baseline behind a run's answer; None where it has none.

    Parameters
    ----------
    run : Comparison
    prefix : str
        Put before every id, so that several drawings can stand in one page.
    """
    answer = run.answer
    every = [each for each in answer.comparisons if each.versus == answer.baseline] if answer else []
    # The best system's comparison with a rival may be one with the baseline again.
    every = list({(each.system, each.case): each for each in reversed(every)}.values())[::-1]
    if answer is None or not every:
        return None
    metric = next(metric for metric in run.study.metrics if metric.name == answer.metric)
    name = label(metric.name, metric.unit)
    better = f"{metric.better} is better"
    chart = Chart(
        "forest", f"{name[:1].upper()}{name[1:]} against {answer.baseline}", metric.name,
        says=f"Ratios to {answer.baseline}, {'replicate by replicate' if answer.replicates > 1 else 'of one run'}; "
        f"{better}.",
    )  # fmt: skip
    brush = Brush(run, chart, prefix, {metric.name: metric}, styles(run))
    drawn = _chosen(every, answer)
    with steady():
        return _draw(brush, drawn, every, f"ratio ({better}, log scale)")


def _chosen(every: Sequence[Comparison], answer: Answer) -> list[Comparison]:
    """Return the comparisons that there is room for: whole systems, the best one first."""
    systems = list(dict.fromkeys(each.system for each in every))
    if answer.best in systems:
        systems.sort(key=lambda system: system != answer.best)
    chosen: list[Comparison] = []
    for system in systems:
        mine = [each for each in every if each.system == system]
        if len(chosen) + len(mine) <= ROWS or not chosen:
            chosen += mine
    kept = {(each.system, each.case) for each in chosen[:ROWS]}
    return [each for each in every if (each.system, each.case) in kept]


def _draw(brush: Brush, drawn: Sequence[Comparison], every: Sequence[Comparison], across: str) -> Drawing:
    by_case = any(each.case for each in drawn)
    cases = list(dict.fromkeys(each.case for each in drawn))
    systems = brush.order(each.system for each in drawn)
    # Under fewer headings: cases that hold systems, or systems that hold cases.
    by_system = by_case and len(systems) < len(cases)
    groups: dict[str, list[Comparison]] = {}
    for each in sorted(drawn, key=lambda each: (cases.index(each.case), systems.index(each.system))):
        groups.setdefault(each.system if by_system else each.case, []).append(each)
    names = {(each.system, each.case): each.case if by_system else each.system for each in drawn}

    ends = [1.0, *(end for each in drawn for end in _ends(each.found) if end > 0)]
    span = Span.over(ends, True)
    left = max(wide(shortened(name, _NAME)) for name in names.values()) + 14
    texts = {id(each): _text(each.found) for each in drawn}
    right = max(map(wide, texts.values())) + 14
    inner = _ROW * len(drawn) + (_GROUP_HEAD * len(groups) if by_case else 0) + 4
    figure, axes = plot_area(left, right, inner, top=12)
    span.put(axes, "x")
    titles(axes, across)
    axes.set_ylim(inner, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    axes.plot([1, 1], [0, inner], color=MUTED, lw=1.2, dashes=(3, 3), zorder=1.5)
    top, marks = 0.0, list[Mark]()
    for group, found in groups.items():
        if by_case:
            top += _GROUP_HEAD
            word(axes, shortened(group, 56), (0, top - 9), _BESIDE, xytext=(2 - left, 0), fontweight="bold")
        for each in found:
            middle = top + _ROW / 2
            top += _ROW
            style = brush.styles[each.system]
            name = shortened(names[each.system, each.case], _NAME)
            gid = f"series-{style.index}-name"
            word(axes, name, (0, middle), _BESIDE, xytext=(-8, 0), ha="right", gid=gid)
            word(axes, texts[id(each)], (1, middle), _BESIDE, color=TEXT, gid=gid)
            _row(axes, style, each, middle, span)
            if span.holds(each.found.centre):
                low, high = _known(each.found)
                marks.append(
                    Mark(
                        index=style.index, x=each.found.centre, y=middle, at=each.case, median=each.found.centre,
                        low=low, high=high,
                    )
                )  # fmt: skip
    return brush.drawing(
        panels=(brush.panel(figure, 0, "", f"{_described(groups, by_case, texts)}.", marks),),
        notes=tuple(_notes(drawn, every)),
        names=(("case" if by_case else "", ""), ("ratio", "")),
        head=(*(("case",) if by_case else ()), "system", "ratio", "from", "to", "least", "most", "pairs", "outcome"),
        body=tuple(
            (
                *((each.case,) if by_case else ()),
                each.system,
                _ratio(each.found.centre),
                *(_ratio(end) if math.isfinite(end) else "-" for end in _interval(each.found)),
                _ratio(each.found.least),
                _ratio(each.found.most),
                str(each.found.count),
                each.outcome,
            )
            for each in every
        ),
    )


def _row(axes: Axes, style: Style, each: Comparison, middle: float, span: Span) -> None:
    """Draw one comparison: range, interval, and the ratio as a point, hollow where it decides nothing."""
    found = each.found
    if not span.holds(found.centre):
        why = "infinite" if math.isinf(found.centre) else "not above zero, which a log scale cannot show"
        word(axes, why, (0, middle), _BESIDE, color=MUTED, style="italic")
        return
    gid = f"series-{style.index}"
    for ends, width, part in (((found.least, found.most), 1.0, "range"), (_interval(found), 2.6, "interval")):
        if all(map(math.isfinite, ends)) and ends[0] != ends[1]:
            clipped = [span.clipped(end) for end in ends]
            axes.plot(clipped, [middle, middle], color=style.ink, lw=width, gid=f"{gid}-{part}")
    axes.plot(
        [found.centre], [middle], marker="o", ms=7.5, color=style.ink, mec=style.ink, mew=1.4, zorder=3,
        mfc=style.ink if each.outcome != UNDECIDED else "none", gid=f"{gid}-mark",
    )  # fmt: skip


def _interval(found: Effect) -> tuple[float, float]:
    """Return the 95 % interval of a ratio; infinite ends where the pairs are too few for one to be shown."""
    return (found.low, found.high) if found.count >= LEAST_FOR_INTERVAL else (-math.inf, math.inf)


def _known(found: Effect) -> tuple[float, float]:
    """Return the interval of a ratio, or the range of too few pairs; NaN where there is only one value."""
    if found.count < 2 or found.least == found.most:
        return math.nan, math.nan
    return _interval(found) if found.count >= LEAST_FOR_INTERVAL else (found.least, found.most)


def _ends(found: Effect) -> list[float]:
    return [end for end in (found.centre, found.least, found.most, *_interval(found)) if drawable(end)]


def _ratio(value: float) -> str:
    """Write a ratio; near 1 with a digit more, where three would all be 1.00."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else units.show(value)


def _text(found: Effect) -> str:
    low, high = _known(found)
    ends = f" ({_ratio(low)}–{_ratio(high)})" if math.isfinite(low) and math.isfinite(high) else ""
    return f"×{_ratio(found.centre)}{ends}" if math.isfinite(found.centre) else ""


def _described(groups: Mapping[str, Sequence[Comparison]], by_case: bool, texts: Mapping[int, str]) -> str:
    return "; ".join(
        f"{each.system}{f' ({each.case})' if by_case else ''} {texts[id(each)] or 'no finite ratio'}, {each.outcome}"
        for found in groups.values()
        for each in found
    )


def _notes(drawn: Sequence[Comparison], every: Sequence[Comparison]) -> list[str]:
    """Say what lines and hollow points are, and how many comparisons are not drawn."""
    notes = []
    counts = [each.found.count for each in drawn if not each.found.exact]
    ranged = [each for each in drawn if each.found.least != each.found.most]
    if any(each.found.count >= LEAST_FOR_INTERVAL for each in ranged):
        notes.append("Thick lines are 95 % intervals, widened for the number of comparisons; thin lines reach from "
                     "the least to the most of the pairs.")  # fmt: skip
    elif ranged:
        notes.append("Thin lines reach from the least to the most of the pairs.")
    if counts and min(counts) < LEAST_FOR_INTERVAL:
        few = min(counts)
        notes.append(
            f"{few} {'pair gives' if few == 1 else 'pairs give'} no interval: {LEAST_FOR_INTERVAL} pairs are the "
            "fewest for one of 95 %."
        )
    if any(each.outcome == UNDECIDED for each in drawn):
        notes.append("Hollow points are undecided.")
    if len(drawn) < len(every):
        systems = {each.system for each in every} - {each.system for each in drawn}
        of = f" (of {len(systems)} systems)" if systems else ""
        notes.append(f"Not drawn: {len(every) - len(drawn)} further comparisons{of}; the table has all.")
    return notes
