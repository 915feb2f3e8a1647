"""The page of a diagnosis of kernels: one bar a kernel, cut into its leaves, the alike beside each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Finding
from wavetank.insight.kernels.compositions import LEAVES
from wavetank.insight.kernels.matches import order_of_display
from wavetank.insight.kernels.source import KernelSource
from wavetank.svg import escape

_LEFT, _WIDTH, _ROW, _BAR, _TOP = 230, 1000, 18, 13, 46
_TONES = ("leaf", "accent", "bad", "warm", "blue", "cool", "faint", "quiet")
_MOST = 200


def kernels_page(diagnosis: Diagnosis, source: KernelSource) -> Diagnosis:
    """Return the diagnosis with its page; without one where no kernel has enough runs.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : KernelSource
    """
    if not source.known.size:
        return diagnosis
    order = source.known
    if source.alone and order.size > 1:
        similarity = np.array(source.matches.similarity)
        np.fill_diagonal(similarity, 1.0)
        order = order[order_of_display(similarity)]
    more = f" The first {_MOST} of {order.size} are drawn." if order.size > _MOST else ""
    body = (
        '<p class="quiet">Each bar is a kernel, cut into what its slots went into; kernels that resemble each other '
        f"stand together.{more}</p>",
        f'<div class="scroll">{_bars(source, order[:_MOST].tolist())}</div>',
        "<section><h2>Findings</h2>",
        *([_finding(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table((each.name, each.shown, each.how) for each in diagnosis.facts),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def _finding(found: Finding) -> str:
    return (
        f"<h3>{escape(found.label)}, {escape(found.where)}: {escape(found.severity)}, "
        f"confidence {escape(units.show(found.confidence))}</h3>\n<p>{escape(found.sentence(found.says))}</p>\n"
        f"<p>{escape(found.sentence(found.advice))}</p>\n"
        f"{html_page.table((each.key, each.shown, each.how) for each in found.evidence)}"
    )


def _bars(source: KernelSource, order: list[int]) -> str:
    body, room = [], _WIDTH - _LEFT - 10
    for place, (leaf, tone) in enumerate(zip(LEAVES, _TONES, strict=True)):
        x = _LEFT + place * room / len(LEAVES)
        body.append(svg.element("rect", x=x, y=8.0, width=11.0, height=11.0, class_=f"fill-{tone}"))
        body.append(svg.text(x + 15, 18, leaf, "quiet", looks="small"))
    for row, at in enumerate(order):
        y = float(_TOP + row * _ROW)
        body.append(svg.text(_LEFT - 8, y + 11, source.profiles.names[at][:34], looks="small", text_anchor="end"))
        x = float(_LEFT)
        for share, tone in zip(source.leaves[at].tolist(), _TONES, strict=True):
            body.append(svg.element("rect", x=x, y=y, width=share * room, height=float(_BAR), class_=f"fill-{tone}"))
            x += share * room
    return svg.drawing(
        _WIDTH, _TOP + len(order) * _ROW + 8, body, title="What the slots of each kernel went into",
        says="One bar a kernel, in eight parts from retiring to DRAM",
    )  # fmt: skip
