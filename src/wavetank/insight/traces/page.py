"""A diagnosis of profiler traces as one offline page: the device's time first, findings with their evidence below."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis
from wavetank.diagnosis.page import finding_block
from wavetank.insight.traces.measures import Rank, TooLittleError, TraceSource
from wavetank.svg import escape
from wavetank.workloads.intervals import Intervals, common, union

_LEFT, _WIDTH, _LANE, _BAR, _TOP = 150, 1180, 18, 13, 30
_COLUMNS = 512
_MOST_RANKS = 8
_LANES = (
    ("computing", "computation", "leaf"),
    ("communication", "communication", "warm"),
    ("copies", "copies", "cool"),
)


def trace_page(diagnosis: Diagnosis, source: TraceSource) -> Diagnosis:
    """Return the diagnosis with its page; without one where no rank has device events.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : TraceSource
    """
    ranks = {}
    for rank in sorted(source.traces):
        try:
            ranks[rank] = source.rank(rank)
        except TooLittleError:
            continue
    if not ranks:
        return diagnosis
    shown = dict(list(ranks.items())[:_MOST_RANKS])
    more = f" The first {len(shown)} of {len(ranks)} ranks are drawn." if len(ranks) > len(shown) else ""
    body = (
        f'<p class="quiet">Each column is a part of the span; how much of it is filled is how much of that time is '
        f"taken. Marks above a rank are its steps.{more}</p>",
        f'<div class="scroll">{_timeline(shown, source)}</div>',
        "<section><h2>Findings</h2>",
        *([finding_block(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table(
            (each.name, f"rank {each.of['rank']}" if "rank" in each.of else "", each.shown, each.how)
            for each in diagnosis.facts
        ),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def _timeline(ranks: dict[int, Rank], source: TraceSource) -> str:
    body, y = [], float(_TOP)
    room = _WIDTH - _LEFT - 10
    for number, rank in ranks.items():
        body.append(svg.text(4, y + 10, f"rank {number}", looks="strong"))
        for _, begin, _ in source.traces[number].steps:
            if rank.begin_ns <= begin < rank.end_ns:
                x = _LEFT + room * (begin - rank.begin_ns) / rank.span
                body.append(svg.line(x, y - 8, x, y + _LANE * len(_LANES), "quiet", looks="dashed"))
        for lane, (word, name, tone) in enumerate(_LANES):
            top = y + lane * _LANE
            body.append(svg.text(_LEFT - 8, top + 11, word, "quiet", looks="small", text_anchor="end"))
            body.append(
                svg.element("rect", x=float(_LEFT), y=top, width=float(room), height=float(_BAR), class_="fill-panel")
            )
            body += _bars(_filled(getattr(rank, name), rank), top, room / _COLUMNS, tone)
        y += _LANE * len(_LANES) + 22
    longest = max(rank.span for rank in ranks.values())
    body.append(svg.text(_LEFT, y, f"span {units.show(longest / 1e9, 's')}", "quiet", looks="small"))
    return svg.drawing(
        _WIDTH,
        y + 12,
        body,
        title="Time of the devices",
        says="For each rank when it computes, communicates and copies",
    )


def _filled(intervals: Intervals, rank: Rank) -> NDArray[np.float64]:
    """Return which share of each column the intervals take."""
    edges = np.linspace(rank.begin_ns, rank.end_ns, _COLUMNS + 1).astype(np.int64)
    cuts = np.concatenate((edges, intervals.starts, intervals.ends))
    cuts = np.unique(cuts[(cuts >= edges[0]) & (cuts <= edges[-1])])
    held = common(intervals, union(edges[:1], edges[-1:]))
    inside = np.searchsorted(held.starts, cuts[:-1], "right") - 1
    taken = (inside >= 0) & (cuts[:-1] < held.ends[np.maximum(inside, 0)]) if held.starts.size else np.zeros(
        cuts.size - 1, bool
    )  # fmt: skip
    column = np.minimum(np.searchsorted(edges, cuts[:-1], "right") - 1, _COLUMNS - 1)
    total = np.bincount(column, np.diff(cuts) * taken, _COLUMNS)
    return total / np.maximum(np.diff(edges), 1)


def _bars(filled: NDArray[np.float64], top: float, wide: float, tone: str) -> list[str]:
    """Return bars, neighbours of one height together."""
    heights = np.round(filled * _BAR)
    edges = np.flatnonzero(np.diff(heights)) + 1
    bounds = [0, *edges.tolist(), heights.size]
    return [
        svg.element(
            "rect", x=_LEFT + a * wide, y=top + _BAR - float(heights[a]), width=(b - a) * wide,
            height=float(heights[a]), class_=f"fill-{tone}",
        )
        for a, b in itertools.pairwise(bounds)
        if heights[a] > 0
    ]  # fmt: skip
