"""The page of a diagnosis of services: a bar a service, as long as it is far from normal, on a scale of decades."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis
from wavetank.diagnosis.page import finding_block
from wavetank.svg import escape

_LEFT, _WIDTH, _ROW, _BAR, _TOP = 330, 1000, 18, 13, 8
_MOST = 100


def services_page(diagnosis: Diagnosis, far: Mapping[str, float], departing: Collection[str]) -> Diagnosis:
    """Return the diagnosis with its page; without one where nothing is known of any service.

    Parameters
    ----------
    diagnosis : Diagnosis
    far : mapping of str to float
        How far each service is from normal, the farthest first.
    departing : collection of str
        The services of which that is said.
    """
    if not far:
        return diagnosis
    more = f" The first {_MOST} of {len(far)} are drawn." if len(far) > _MOST else ""
    body = (
        '<p class="quiet">How far each service is from normal operation in its worst window, in robust standard '
        f"deviations. Coloured services depart; others were as far in normal operation.{more}</p>",
        f'<div class="scroll">{_bars(dict(list(far.items())[:_MOST]), departing)}</div>',
        "<section><h2>Findings</h2>",
        *([finding_block(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table((each.name, each.shown, each.how) for each in diagnosis.facts),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def _bars(far: Mapping[str, float], departing: Collection[str]) -> str:
    room = (_WIDTH - _LEFT - 80) / math.log10(2 + max(*far.values(), 0.0))
    body = []
    for row, (service, each) in enumerate(far.items()):
        y, width = float(_TOP + row * _ROW), room * math.log10(1 + max(each, 0.0))
        tone = "bad" if service in departing else "leaf"
        body.append(svg.text(_LEFT - 8, y + 11, service[:46], looks="small", text_anchor="end"))
        body.append(svg.element("rect", x=float(_LEFT), y=y, width=width, height=float(_BAR), class_=f"fill-{tone}"))
        body.append(svg.text(_LEFT + width + 6, y + 11, units.show(each), "quiet", looks="small"))
    return svg.drawing(
        _WIDTH, _TOP + len(far) * _ROW + 8, body, title="How far services are from normal operation",
        says="One bar a service, the farthest first, lengths by the logarithm",
    )  # fmt: skip
