"""A diagnosis of Chakra traces as one offline page: the replay first, its critical path marked, findings below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Finding
from wavetank.insight.replay.measures import ChakraSource, NoReplayError
from wavetank.insight.replay.timeline import CriticalPath, Timeline
from wavetank.sim.steps import COLLECTIVE, COMPUTE, HOST, RECEIVE, SEND
from wavetank.svg import escape

_LEFT, _WIDTH, _LANE, _BAR, _TOP = 150, 1180, 18, 13, 30
_COLUMNS = 512
_MOST_RANKS = 8
_LANES = (
    ("computing", (COMPUTE,), "leaf"),
    ("communication", (COLLECTIVE, SEND, RECEIVE), "warm"),
    ("host", (HOST,), "cool"),
)


def replay_page(diagnosis: Diagnosis, source: ChakraSource) -> Diagnosis:
    """Return the diagnosis with its page; without a picture where the traces cannot be replayed.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : ChakraSource
    """
    picture: tuple[str, ...] = ()
    try:
        timeline, path = source.timeline, source.path_of
        more = f" The first {_MOST_RANKS} of {timeline.ranks} ranks are drawn." if timeline.ranks > _MOST_RANKS else ""
        picture = (
            '<p class="quiet">Each column is a part of the replay; how much of it is filled is how much of that time '
            f"is taken. The line below a rank is its part of the critical path.{more}</p>",
            f'<div class="scroll">{_drawn(timeline, path)}</div>',
        )
    except NoReplayError:
        pass
    body = (
        *picture,
        "<section><h2>Findings</h2>",
        *([_finding(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table((each.name, each.shown, each.how) for each in diagnosis.facts),
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


def _drawn(timeline: Timeline, path: CriticalPath) -> str:
    body, y = [], float(_TOP)
    room, span = _WIDTH - _LEFT - 10, timeline.makespan_ps
    kind, rank = timeline.graph.kind, timeline.graph.rank
    start, end = timeline.times.start_ps, timeline.times.end_ps
    for number in range(min(timeline.ranks, _MOST_RANKS)):
        body.append(svg.text(4, y + 10, f"rank {number}", looks="strong"))
        for lane, (word, kinds, tone) in enumerate(_LANES):
            top = y + lane * _LANE
            body.append(svg.text(_LEFT - 8, top + 11, word, "quiet", looks="small", text_anchor="end"))
            body.append(
                svg.element("rect", x=float(_LEFT), y=top, width=float(room), height=float(_BAR), class_="fill-panel")
            )
            which = (rank == number) & np.isin(kind, kinds) & (end > start)
            for column, share in enumerate(_filled(start[which], end[which], span)):
                height = round(share * _BAR)
                if height:
                    body.append(
                        svg.element(
                            "rect", x=_LEFT + column * room / _COLUMNS, y=top + _BAR - float(height),
                            width=room / _COLUMNS, height=float(height), class_=f"fill-{tone}",
                        )
                    )  # fmt: skip
        below = y + _LANE * len(_LANES) + 2
        own = path.operations[rank[path.operations] == number]
        for column, share in enumerate(_filled(start[own], end[own], span)):
            if share > 0.5:
                x = _LEFT + column * room / _COLUMNS
                body.append(svg.line(x, below, x + room / _COLUMNS, below, "ink"))
        y += _LANE * len(_LANES) + 26
    body.append(svg.text(_LEFT, y, f"replay of {units.show(span / 1e12, 's')}", "quiet", looks="small"))
    return svg.drawing(
        _WIDTH, y + 12, body, title="The replay", says="For each rank when it computes, communicates and what decides"
    )  # fmt: skip


def _filled(start: NDArray[np.int64], end: NDArray[np.int64], span: int) -> list[float]:
    """The share of each column that some intervals take, overlaps counted once at most."""
    edges = np.linspace(0, span, _COLUMNS + 1)
    total = np.zeros(_COLUMNS)
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        first = min(int(a * _COLUMNS // span), _COLUMNS - 1)
        last = min(int(-(-b * _COLUMNS // span)), _COLUMNS)
        total[first:last] += np.maximum(
            np.minimum(edges[first + 1 : last + 1], b) - np.maximum(edges[first:last], a), 0
        )
    shares: list[float] = np.minimum(total / (span / _COLUMNS), 1.0).tolist()
    return shares
