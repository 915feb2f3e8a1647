"""A diagnosis of I/O as one offline page: where the time goes by files, what each issue would save, the evidence."""

from __future__ import annotations

from dataclasses import replace

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Finding
from wavetank.insight.io.labels import KINDS, kind
from wavetank.insight.io.measures import IoFacts
from wavetank.insight.io.quantities import DarshanSource
from wavetank.svg import escape

_LEFT, _WIDTH, _ROW, _BAR, _TOP = 420, 1180, 22, 14, 26
_MOST_FAMILIES = 12
_MOST_LOGS = 4
_PARTS = (("read", "cool"), ("write", "warm"), ("meta", "leaf"))


def io_page(diagnosis: Diagnosis, source: DarshanSource) -> Diagnosis:
    """Return the diagnosis with its page.

    Parameters
    ----------
    diagnosis : Diagnosis
    source : DarshanSource
    """
    drawn = [(name, facts) for name, facts in source.facts.items() if facts.families][:_MOST_LOGS]
    body = (
        *(f'<h2>{escape(name)}</h2><div class="scroll">{_bars(facts)}</div>' for name, facts in drawn),
        '<p class="quiet">Bars: time of the slowest rank with files of one family, reads, writes, then metadata; '
        "digits of names are shown as #.</p>",
        "<section><h2>Findings</h2>",
        *([_finding(each) for each in diagnosis.findings] or ["<p>Nothing was found.</p>"]),
        "</section><section><h2>What was read</h2>",
        html_page.table(
            (each.name, str(each.of.get("log", "")), each.shown, each.how) for each in diagnosis.facts
        ),
        *(f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little),
        "</section>",
    )  # fmt: skip
    return replace(diagnosis, page=html_page.findings(f"Diagnosis of {diagnosis.subject}", *body))


def _finding(found: Finding) -> str:
    rows = [(each.key, each.shown, each.how) for each in found.evidence]
    return (
        f"<h3>{escape(found.label)} ({escape(KINDS[kind(found.label)])}), {escape(found.where)}: "
        f"{escape(found.severity)}, confidence {escape(units.show(found.confidence))}</h3>\n"
        f"<p>{escape(found.sentence(found.says))}</p>\n<p>{escape(found.sentence(found.advice))}</p>\n"
        f"{html_page.table(rows)}<ul>{''.join(f'<li>{escape(each)}</li>' for each in found.sources)}</ul>"
    )


def _bars(facts: IoFacts) -> str:
    shown = facts.families[:_MOST_FAMILIES]
    room = _WIDTH - _LEFT - 110
    longest = max(each.time_s for each in shown)
    body = []
    for row, family in enumerate(shown):
        y = float(_TOP + row * _ROW)
        name = f"{family.module} {family.name}"
        body.append(svg.text(_LEFT - 8, y + 11, name if len(name) <= 58 else f"...{name[-55:]}", "quiet",
                             looks="small", text_anchor="end"))  # fmt: skip
        x = float(_LEFT)
        for part, tone in _PARTS:
            wide = room * family.time_s / longest * family.parts[part]
            if wide > 0.2:
                body.append(svg.element("rect", x=x, y=y, width=wide, height=float(_BAR), class_=f"fill-{tone}"))
            x += wide
        body.append(svg.text(x + 6, y + 11, units.show(family.time_s, "s"), looks="small"))
    says = "For each family of files the time of its slowest rank, by reads, writes and metadata"
    return svg.drawing(_WIDTH, _TOP + _ROW * len(shown) + 10, body, title="Where the I/O time goes", says=says)
