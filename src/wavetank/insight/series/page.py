"""A diagnosis of series as one offline page: each history with its level, trend and shifts, findings below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Finding
from wavetank.insight.series.interface import Decomposition, Flags, Floats
from wavetank.insight.series.source import SeriesSource, TooLittleError, span_in_words
from wavetank.svg import escape

_LEFT, _WIDTH, _HIGH, _LOW, _TOP = 70, 1180, 130, 34, 26
_COLUMNS = 1024
_MOST = 12


def series_page(diagnosis: Diagnosis, source: SeriesSource) -> Diagnosis:
    """Return the diagnosis with its page; without one where no series was long enough.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : SeriesSource
    """
    drawn = []
    for name in source.looked_at:
        try:
            drawn.append((name, source.parts(name)))
        except TooLittleError:
            continue
    if not drawn:
        return diagnosis
    more = f" The first {_MOST} of {len(drawn)} series are drawn." if len(drawn) > _MOST else ""
    body = (
        '<p class="quiet">The values, and over them level and trend together; dashed lines are level shifts, dots are '
        f"outliers. Below each series its cycles, where they are on.{more}</p>",
        *(f'<div class="scroll">{_drawing(name, parts)}</div>' for name, parts in drawn[:_MOST]),
        "<section><h2>Findings</h2>",
        *([_finding(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table((each.name, str(each.of.get("series", "")), each.shown, each.how) for each in diagnosis.facts),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def _finding(found: Finding) -> str:
    rows = [(each.key, each.shown, each.how) for each in found.evidence]
    return (
        f"<h3>{escape(found.label)}, {escape(found.where)}: {escape(found.severity)}, "
        f"confidence {escape(units.show(found.confidence))}</h3>\n<p>{escape(found.sentence(found.says))}</p>\n"
        f"<p>{escape(found.sentence(found.advice))}</p>\n{html_page.table(rows)}"
    )


def _drawing(name: str, parts: Decomposition) -> str:
    series = parts.series
    seen = ~series.missing
    smooth = parts.level + parts.trend
    smooth = np.exp(smooth) if parts.scale == "log" else smooth
    plain = seen & (parts.outlier == 0)
    values = np.concatenate([series.value[plain], smooth]) if plain.any() else smooth
    low, high = float(values.min()), float(values.max())
    room = high - low or 1.0
    body = [svg.text(4, 14, name, looks="strong")]
    for share in (0.0, 1.0):
        y = _TOP + _HIGH * (1.0 - share)
        body.append(
            svg.text(_LEFT - 8, y + 4, units.show(low + share * room), "quiet", looks="small", text_anchor="end")
        )

    def height(of: Floats) -> Floats:
        return _TOP + _HIGH * (1.0 - np.clip((of - low) / room, 0.0, 1.0))

    for change in parts.changes:
        x = float(_across(np.array([change]), series.value.size)[0])
        body.append(svg.line(x, _TOP, x, _TOP + _HIGH, "warm", looks="dashed"))
    body.append(svg.path(_line(height(series.value), seen), stroke="cool"))
    body.append(svg.path(_line(height(smooth), np.ones(smooth.size, bool)), stroke="accent", width=1.6))
    odd = np.flatnonzero(seen & ~plain)[:_COLUMNS]
    for x, y in zip(_across(odd, series.value.size), height(series.value[odd]), strict=True):
        body.append(svg.element("circle", cx=float(x), cy=float(y), r=2.0, class_="fill-warm"))
    y = float(_TOP + _HIGH + 12)
    for period in sorted(parts.cycles):
        cycle, on = parts.cycles[period], parts.on[period]
        size = float(np.abs(cycle).max()) or 1.0
        shown = span_in_words(period * series.step_ns / 1e9)
        body.append(svg.text(_LEFT - 8, y + _LOW / 2 + 4, shown, "quiet", looks="small", text_anchor="end"))
        body.append(svg.path(_line(y + _LOW / 2 - cycle / size * _LOW / 2, on), stroke="leaf"))
        y += _LOW + 6
    return svg.drawing(_WIDTH, y + 6, body, title=f"History of {name}", says="Values, level with trend, and cycles")


def _across(slots: np.ndarray, size: int) -> Floats:
    return np.asarray(_LEFT + (_WIDTH - _LEFT - 10) * slots / max(size - 1, 1), np.float64)


def _line(heights: Floats, shown: Flags) -> str:
    """Return a path through what is shown, broken at gaps; of a long series the lowest and highest of each column."""
    size = heights.size
    stride = max(2 * size // _COLUMNS, 1)
    keep = np.flatnonzero(shown)
    if stride > 1 and keep.size:
        column = keep // stride
        first = np.flatnonzero(np.diff(column, prepend=-1))
        ends = np.append(first[1:], keep.size)
        keep = np.unique(
            [
                keep[a + int(pick(heights[keep[a:b]]))]
                for a, b in zip(first, ends, strict=True)
                for pick in (np.argmin, np.argmax)
            ]
        )
    words, before = [], -2 * stride
    for at, x in zip(keep.tolist(), _across(keep, size), strict=True):
        words.append(f"{'L' if at - before <= 2 * stride - 1 else 'M'}{x:.1f} {heights[at]:.1f}")
        before = at
    return " ".join(words)
