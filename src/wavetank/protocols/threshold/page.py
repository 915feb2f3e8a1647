"""Shows counterexamples of threshold automata as one self-contained HTML page.

One picture a violated property: time runs to the right, a row for every location and counter that the run touches, and
in each cell how many processes are there, or what was counted, after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import Counterexample, replay
from wavetank.protocols.threshold.properties import Query

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1b1b; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } code { font-size: 0.9em; }
.run { overflow-x: auto; } svg text { font: 12px system-ui, sans-serif; fill: #1b1b1b; }
.facts { color: #555; }
"""
_LABEL_PX, _COLUMN_PX, _ROW_PX, _HEAD_PX = 150, 62, 24, 116


@dataclass(frozen=True)
class Violation:
    """What a page shows of a violated property.

    Parameters
    ----------
    name : str
    query : Query
    run : Counterexample
    """

    name: str
    query: Query
    run: Counterexample


def counterexample_page(automaton: ThresholdAutomaton, violations: Sequence[Violation]) -> str:
    """Return the page; empty when nothing is violated.

    Parameters
    ----------
    automaton : ThresholdAutomaton
    violations : sequence of Violation

    Raises
    ------
    ReplayError
        If a run does not do what it claims.
    """
    if not violations:
        return ""
    formulas = dict(automaton.specifications)
    parts = [f"<h1>{escape(automaton.name)}: what goes wrong</h1>"]
    for item in violations:
        told = ", ".join(f"{name} = {value}" for name, value in item.run.parameters.items())
        parts.append(f"<h2>{escape(item.name)} is violated with {escape(told)}</h2>")
        if item.name in formulas:
            parts.append(f"<p class=facts><code>{escape(str(formulas[item.name]))}</code></p>")
        parts.append(f"<div class=run>{_picture(automaton, item)}</div>")
        parts.append("<ol>")
        for step in item.run.steps:
            times = "" if step.times == 1 else f", {step.times} times"
            rule = step.rule
            parts.append(
                f"<li>rule {escape(rule.name)}: {escape(rule.source)} &rarr; {escape(rule.target)}{times} "
                f"<span class=facts>when <code>{escape(str(rule.guard))}</code></span></li>"
            )
        parts.append("</ol>")
    title = escape(f"{automaton.name}: counterexamples")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _picture(automaton: ThresholdAutomaton, item: Violation) -> str:
    configurations = replay(automaton, item.query, item.run)
    places = [name for name in automaton.locations if any(each[name] for each in configurations)]
    counters = [name for name in automaton.counters if any(each[name] for each in configurations)]
    rows = [*places, *counters]
    width = _LABEL_PX + _COLUMN_PX * len(configurations) + 10
    height = _HEAD_PX + _ROW_PX * len(rows) + 10
    said = f"{item.name}: {len(item.run.steps)} steps over {len(places)} locations and {len(counters)} counters"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(said)}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">'
    ]
    heads = ["start", *(f"rule {step.rule.name}" + _times(step.times) for step in item.run.steps)]
    for column, head in enumerate(heads):
        x = _LABEL_PX + column * _COLUMN_PX + _COLUMN_PX // 2
        parts.append(f'<text transform="translate({x},{_HEAD_PX - 8}) rotate(-50)">{escape(head)}</text>')
    for row, name in enumerate(rows):
        y = _HEAD_PX + row * _ROW_PX
        is_place = row < len(places)
        parts.append(f'<text x="{_LABEL_PX - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        largest = max(each[name] for each in configurations)
        for column, values in enumerate(configurations):
            x = _LABEL_PX + column * _COLUMN_PX
            shade = 0.15 + 0.6 * values[name] / largest if values[name] else 0.0
            colour = "#2563a8" if is_place else "#9a6a1d"
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{_COLUMN_PX - 4}" height="{_ROW_PX - 4}" rx="3" '
                f'fill="{colour}" fill-opacity="{shade:.2f}" stroke="#ccc"/>'
            )
            if values[name]:
                parts.append(f'<text x="{x + _COLUMN_PX // 2}" y="{y + 16}" text-anchor="middle">{values[name]}</text>')
    return "".join([*parts, "</svg>"])


def _times(times: int) -> str:
    return f" ({times}×)" if times > 1 else ""
