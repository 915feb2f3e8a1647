"""A diagnosis of a cluster's metrics as one offline page: nodes against time first, findings with evidence below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis
from wavetank.diagnosis.page import finding_block
from wavetank.insight.cluster.node_history import NodeHistory, TooLittleError
from wavetank.svg import escape

_LEFT, _WIDTH, _LANE, _TOP = 190, 1180, 14, 24
_BAR = 11.0
_COLUMNS = 240
_MOST_NODES = 80
# Decayed distances from which a column is drawn, in halves of a lane's height.
_FAINT, _PLAIN = 3.0, 5.0


def history_page(diagnosis: Diagnosis, source: NodeHistory) -> Diagnosis:
    """Return the diagnosis with its page; without one where nodes cannot be compared.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : NodeHistory
    """
    try:
        largest = source.distances.max(axis=0)
    except TooLittleError:
        return diagnosis
    named = [each.where for each in diagnosis.findings]
    order = sorted(range(len(source.nodes)), key=lambda place: (source.nodes[place] not in named, place))[:_MOST_NODES]
    more = f" {len(order)} of {len(source.nodes)} nodes are drawn." if len(order) < len(source.nodes) else ""
    body = (
        '<p class="quiet">Each row is a node. A bar says that its oddest metric is far from that of its peers: half '
        f"the height from {_FAINT:g} standard deviations on, all of it from {_PLAIN:g} on.{more}</p>",
        f'<div class="scroll">{_map(largest[order], [source.nodes[place] for place in order], source)}</div>',
        "<section><h2>Findings</h2>",
        *([finding_block(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table((each.name, each.shown, each.how) for each in diagnosis.facts),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def columns_of(largest: NDArray[np.floating], columns: int = _COLUMNS) -> NDArray[np.float64]:
    """Return the largest distance of each column of time.

    Parameters
    ----------
    largest : ndarray of float, shape (nodes, times)
    columns : int
        At most as many as times.
    """
    edges = np.linspace(0, largest.shape[1], min(columns, largest.shape[1]) + 1).astype(np.int64)[:-1]
    found: NDArray[np.float64] = np.maximum.reduceat(largest, edges, axis=1).astype(np.float64)
    return found


def _map(largest: NDArray[np.floating], nodes: list[str], source: NodeHistory) -> str:
    columns = columns_of(largest)
    room = _WIDTH - _LEFT - 10
    wide = room / columns.shape[1]
    body: list[str] = []
    for row, (node, distances) in enumerate(zip(nodes, columns, strict=True)):
        top = float(_TOP + row * _LANE)
        shown = svg.fitted(node, _LEFT - 16)
        body.append(svg.text(_LEFT - 8, top + 10, shown, "quiet", looks="small", text_anchor="end"))
        body.append(svg.element("rect", x=float(_LEFT), y=top, width=float(room), height=_BAR, class_="fill-panel"))
        for column in np.flatnonzero(distances >= _FAINT):
            tall = _BAR if distances[column] >= _PLAIN else _BAR / 2
            x, y = _LEFT + column * wide, top + _BAR - tall
            body.append(svg.element("rect", x=x, y=y, width=wide, height=tall, class_="fill-warm"))
    y = float(_TOP + len(nodes) * _LANE)
    span_s = float(source.quantity("span_s"))
    body.append(svg.text(_LEFT, y + 12, f"span {units.show(span_s, 's')}", "quiet", looks="small"))
    return svg.drawing(_WIDTH, y + 24, body, title="Distance of nodes from their peers",
                       says="For each node when its oddest metric is far from that of the other nodes")  # fmt: skip
