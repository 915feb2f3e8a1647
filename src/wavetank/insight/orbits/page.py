"""A diagnosis of element histories as one offline page: altitude over time with the jumps marked, findings below."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Finding
from wavetank.errors import WavetankError
from wavetank.insight.orbits.mechanics import altitude_km
from wavetank.svg import escape

if TYPE_CHECKING:
    from wavetank.insight.orbits.diagnose import OrbitSource

_LEFT, _WIDTH, _HIGH, _TOP = 110, 1180, 150, 26
_MOST_POINTS = 1500
_MOST_SATELLITES = 12


def orbit_page(diagnosis: Diagnosis, source: OrbitSource, times: float, floor_m: float) -> Diagnosis:
    """Return the diagnosis with its page.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : OrbitSource
    times, floor_m : float
        Of the rule that marks jumps.
    """
    shown = list(source.satellites)[:_MOST_SATELLITES]
    many = len(source.satellites)
    more = f" The first {len(shown)} of {many} are drawn." if many > len(shown) else ""
    body = (
        f'<p class="quiet">Altitude by the mean motion; a mark below is a record at which the axis jumps.{more}</p>',
        *(f'<div class="scroll">{_history(source, each, times, floor_m)}</div>' for each in shown),
        "<section><h2>Findings</h2>",
        *([_finding(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table(
            (each.name, f"satellite {each.of['satellite']}" if "satellite" in each.of else "", each.shown, each.how)
            for each in diagnosis.facts
        ),
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


def _history(source: OrbitSource, satellite: int, times: float, floor_m: float) -> str:
    of = source.of(satellite)
    heights = altitude_km(of)
    # As shares of the span: nanoseconds of years, times a width, are beyond 64 bits.
    when = (of.epoch_ns - of.epoch_ns[0]) / max(int(of.epoch_ns[-1] - of.epoch_ns[0]), 1)
    low, high = float(heights.min()), float(heights.max())
    room, tall = _WIDTH - _LEFT - 12, max(high - low, 1e-6)
    step = max(len(of) // _MOST_POINTS, 1)
    xs = _LEFT + room * when[::step]
    ys = _TOP + _HIGH * (1 - (heights[::step] - low) / tall)
    body = [
        svg.text(4, 14, f"satellite {satellite}", looks="strong"),
        svg.text(_LEFT - 8, _TOP + 6, units.show(high, "km"), "quiet", looks="small", text_anchor="end"),
        svg.text(_LEFT - 8, _TOP + _HIGH, units.show(low, "km"), "quiet", looks="small", text_anchor="end"),
        svg.path("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True)), stroke="accent"),
    ]
    try:
        marks = np.flatnonzero(np.nan_to_num(source.flagged(satellite, times, floor_m)[1]) > 1)
    except WavetankError:
        marks = np.empty(0, np.int64)
    for x in (_LEFT + room * when[marks]).tolist():
        body.append(svg.line(x, _TOP + _HIGH + 6, x, _TOP + _HIGH + 16, "warm"))
    for epoch, anchor, x in ((of.epoch_ns[0], "start", _LEFT), (of.epoch_ns[-1], "end", _WIDTH - 12)):
        day = datetime.datetime.fromtimestamp(int(epoch) // 10**9, datetime.UTC).strftime("%Y-%m-%d")
        body.append(svg.text(x, _TOP + _HIGH + 32, day, "quiet", looks="small", text_anchor=anchor))
    return svg.drawing(
        _WIDTH, _TOP + _HIGH + 40, body, title=f"Altitude of satellite {satellite}",
        says="Altitude over time, with the records at which the axis jumps",
    )  # fmt: skip
