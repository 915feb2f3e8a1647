"""Shows counterexamples of threshold automata as one self-contained HTML page.

One picture a violated property: time runs to the right, a row for every location and counter that the run touches, and
in each cell how many processes are there, or what was counted, after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetank import html_page, svg
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import Counterexample, replay
from wavetank.protocols.threshold.properties import Query
from wavetank.svg import escape

_LABEL_PX, _COLUMN_PX, _ROW_PX, _HEAD_PX = 150, 62, 24, 116


@dataclass(frozen=True)
class Violation:
    """What a page shows of a violated property."""

    name: str
    query: Query
    run: Counterexample


def counterexample_page(automaton: ThresholdAutomaton, violations: Sequence[Violation]) -> str:
    """Return the page; empty when nothing is violated.

    Raises
    ------
    ReplayError
        If a run does not do what it claims.
    """
    if not violations:
        return ""
    formulas = dict(automaton.specifications)
    parts = []
    for item in violations:
        parts.append(f"<section><h2>{escape(item.name)} is violated with {escape(item.run.setting)}</h2>")
        if item.name in formulas:
            parts.append(f'<p class="quiet"><code>{escape(formulas[item.name])}</code></p>')
        parts.append(f'<div class="scroll">{_picture(automaton, item)}</div>')
        parts.append("<ol>")
        for step in item.run.steps:
            times = "" if step.times == 1 else f", {step.times} times"
            rule = step.rule
            parts.append(
                f"<li>rule {escape(rule.name)}: {escape(rule.source)} &rarr; {escape(rule.target)}{times} "
                f'<span class="quiet">when <code>{escape(rule.guard)}</code></span></li>'
            )
        parts.append("</ol></section>")
    return html_page.findings(f"{automaton.name}: what goes wrong", *parts)


def _picture(automaton: ThresholdAutomaton, item: Violation) -> str:
    configurations = replay(automaton, item.query, item.run)
    places = [name for name in automaton.locations if any(each[name] for each in configurations)]
    counters = [name for name in automaton.counters if any(each[name] for each in configurations)]
    rows = [*places, *counters]
    width = _LABEL_PX + _COLUMN_PX * len(configurations) + 10
    height = _HEAD_PX + _ROW_PX * len(rows) + 10
    parts = []
    heads = ["start", *(f"rule {step.rule.name}" + _times(step.times) for step in item.run.steps)]
    for column, head in enumerate(heads):
        x = _LABEL_PX + column * _COLUMN_PX + _COLUMN_PX // 2
        turned = f"translate({x},{_HEAD_PX - 8}) rotate(-50)"
        parts.append(svg.text(0, 0, svg.fitted(head, 1.2 * _HEAD_PX), transform=turned))
    for row, name in enumerate(rows):
        y = _HEAD_PX + row * _ROW_PX
        parts.append(svg.text(_LABEL_PX - 8, y + 16, svg.fitted(name, _LABEL_PX - 10), text_anchor="end"))
        largest = max(each[name] for each in configurations)
        colour = "#2563a8" if row < len(places) else "#9a6a1d"
        for column, values in enumerate(configurations):
            x = _LABEL_PX + column * _COLUMN_PX
            shade = 0.15 + 0.6 * values[name] / largest if values[name] else 0.0
            parts.append(
                svg.element(
                    "rect", x=x + 2, y=y + 2, width=_COLUMN_PX - 4, height=_ROW_PX - 4, rx=3, class_="line-faint",
                    fill=colour, fill_opacity=shade,
                )
            )  # fmt: skip
            if values[name]:
                parts.append(svg.text(x + _COLUMN_PX // 2, y + 16, values[name], text_anchor="middle"))
    said = f"{item.name}: {len(item.run.steps)} steps over {len(places)} locations and {len(counters)} counters"
    return svg.drawing(width, height, parts, title=said)


def _times(times: int) -> str:
    return f" ({times}×)" if times > 1 else ""
