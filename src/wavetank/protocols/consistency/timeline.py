"""A violation as a picture: processes as lanes, operations as bars in time, the culprit marked.

One self-contained HTML page with an SVG of our own; no script, no font and no address from outside.  Only the part of a
long history around the culprit is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from wavetank.protocols.consistency.engine import Judgement
from wavetank.protocols.history import History, Operation

_MOST_OPERATIONS = 160
_LANE_HEIGHT, _BAR_HEIGHT, _LEFT, _WIDTH, _TOP = 34, 22, 110, 1180, 46
_LETTER_WIDTH = 6.6

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #1c2733; background: #fff; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 24px 0 4px; }
p { margin: 4px 0; max-width: 72em; } .quiet { color: #5a6876; }
svg { display: block; margin: 12px 0; max-width: 100%; height: auto; }
.lane { stroke: #d7dee6; } .name { font-size: 12px; fill: #5a6876; }
.bar { fill: #dbe7f3; stroke: #6f93b8; } .write { fill: #e3efda; stroke: #7ba05b; }
.culprit { fill: #fbd9d3; stroke: #c0392b; stroke-width: 2; } .circle { stroke: #d68910; stroke-width: 2; }
.open { stroke-dasharray: 4 3; } .text { font-size: 11px; fill: #1c2733; }
.end { stroke: #c0392b; stroke-dasharray: 3 3; }
.tick { font-size: 11px; fill: #5a6876; } .mark { font-size: 11px; fill: #c0392b; }
table { border-collapse: collapse; } td, th { padding: 2px 12px 2px 0; text-align: left; vertical-align: top; }
"""


def timeline_page(history: History, judgements: Sequence[Judgement], title: str) -> str:
    """Return a self-contained HTML page with one timeline for each violated model that has a culprit or a circle.

    Parameters
    ----------
    history : History
    judgements : sequence of Judgement
    title : str
    """
    rows = "".join(
        f"<tr><th>{escape(each.model)}</th><td>{escape(each.outcome)}</td><td>{escape(each.says)}</td></tr>"
        for each in judgements
    )
    drawn: dict[tuple[int | None, tuple[int, ...]], list[Judgement]] = {}
    for each in judgements:
        if each.outcome == "violated" and (each.culprit is not None or each.cycle):
            drawn.setdefault((each.culprit, each.cycle), []).append(each)
    pictures = "".join(_section(history, group) for group in drawn.values())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="quiet">{len(history)} operations of {len({op.process for op in history.operations})} processes. '
        "A dashed bar never returned. The bar in red ends the longest good prefix; bars in orange take part in a "
        f"circle.</p>\n{pictures}<h2>All models</h2>\n<table>{rows}</table>\n</body>\n</html>\n"
    )


def _section(history: History, judgements: Sequence[Judgement]) -> str:
    first = judgements[0]
    names = ", ".join(each.model for each in judgements)
    good = ""
    if first.good is not None:
        returned = sum(1 for operation in history.operations if operation.returned is not None)
        good = f" The longest good prefix has {first.good} of {returned} returns."
    edges = "".join(
        f"<li>{escape(each.name)}: {escape(each.says)}</li>" for one in judgements[:1] for each in one.anomalies
    )
    listed = f"<ul>{edges}</ul>\n" if edges else ""
    return (
        f"<h2>{escape(names)}</h2>\n<p>{escape(first.says)}.{escape(good)}</p>\n{listed}"
        f"{timeline_svg(history, culprit=first.culprit, cycle=first.cycle)}\n"
    )


def timeline_svg(history: History, *, culprit: int | None = None, cycle: Sequence[int] = ()) -> str:
    """Return the timeline as an SVG element.

    Parameters
    ----------
    history : History
    culprit : int, optional
        Number of the operation to mark in red.
    cycle : sequence of int
        Numbers of operations to mark in orange.
    """
    chosen = _around(history, culprit if culprit is not None else (cycle[0] if cycle else 0), cycle)
    operations = history.operations
    lanes: dict[str, int] = {}
    for number in chosen:
        lanes.setdefault(operations[number].process, len(lanes))
    begin = min((operations[number].invoked for number in chosen), default=0.0)
    ends = [operations[number].returned for number in chosen]
    end = max([end for end in ends if end is not None] + [operations[number].invoked for number in chosen], default=1.0)
    span = (end - begin) or 1.0
    # Room at the right for operations that never returned.
    scale = (_WIDTH - _LEFT - 60) / span

    def x(time: float | None) -> float:
        return _WIDTH - 20.0 if time is None else _LEFT + (time - begin) * scale

    height = _TOP + _LANE_HEIGHT * len(lanes) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="Timeline of {len(chosen)} operations of {len(lanes)} processes">'
    ]
    unit = " s" if history.clock == "seconds" else ""
    for part in range(6):
        time = begin + span * part / 5
        parts.append(f'<text class="tick" x="{x(time):.1f}" y="16" text-anchor="middle">{time:.6g}{unit}</text>')
    for process, lane in lanes.items():
        y = _TOP + _LANE_HEIGHT * lane + _LANE_HEIGHT / 2
        parts.append(f'<line class="lane" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - 10}" y2="{y}"/>')
        parts.append(f'<text class="name" x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(process[:14])}</text>')
    for number in chosen:
        parts.append(_bar(operations[number], number, lanes, x, culprit, cycle))
    if culprit is not None and culprit in chosen:
        at = x(operations[culprit].returned)
        parts.append(f'<line class="end" x1="{at:.1f}" y1="22" x2="{at:.1f}" y2="{height - 8}"/>')
        parts.append(f'<text class="mark" x="{at - 4:.1f}" y="34" text-anchor="end">good until here</text>')
    return "\n".join([*parts, "</svg>"])


def _around(history: History, middle: int, cycle: Sequence[int]) -> list[int]:
    """Return the operations to draw: those nearest in time, and the circle."""
    operations = history.operations
    if len(operations) <= _MOST_OPERATIONS:
        return list(range(len(operations)))
    center = operations[middle]
    until = center.returned if center.returned is not None else center.invoked

    def distance(operation: Operation) -> float:
        returned = operation.returned if operation.returned is not None else math.inf
        return max(0.0, center.invoked - returned, operation.invoked - until) + 1e-9 * abs(operation.invoked - until)

    nearest = sorted(range(len(operations)), key=lambda number: distance(operations[number]))[: _MOST_OPERATIONS // 2]
    return sorted({*nearest, middle, *list(cycle)[:_MOST_OPERATIONS]})


def _bar(
    operation: Operation, number: int, lanes: dict[str, int], x: Any, culprit: int | None, cycle: Sequence[int]
) -> str:
    left, right = x(operation.invoked), x(operation.returned)
    width = max(3.0, right - left)
    y = _TOP + _LANE_HEIGHT * lanes[operation.process] + (_LANE_HEIGHT - _BAR_HEIGHT) / 2
    kinds = ["bar"]
    if operation.action not in ("read", "dequeue", "pop"):
        kinds.append("write")
    if operation.returned is None:
        kinds.append("open")
    if number == culprit:
        kinds.append("culprit")
    elif number in cycle:
        kinds.append("circle")
    label = _label(operation)
    room = int(width / _LETTER_WIDTH)
    shown = label if len(label) <= room else (label[: room - 1] + "…" if room >= 4 else "")
    end = "never" if operation.returned is None else f"{operation.returned:.6g}"
    title = f"{number}: {label} [{operation.invoked:.6g}, {end}]"
    return (
        f'<g><title>{escape(title)}</title><rect class="{" ".join(kinds)}" x="{left:.1f}" y="{y:.1f}" rx="3" '
        f'width="{width:.1f}" height="{_BAR_HEIGHT}"/>'
        f'<text class="text" x="{left + 4:.1f}" y="{y + 15:.1f}">{escape(shown)}</text></g>'
    )


def _label(operation: Operation) -> str:
    key = f"{operation.key} " if operation.key else ""
    if operation.action == "transaction":
        steps = operation.result if isinstance(operation.result, list) else operation.value
        return " ".join(f"{action[0]}({name},{value})" for action, name, value in steps)
    if operation.action == "read":
        return f"{key}= {_tail(operation.result)}"
    if operation.action == "write":
        return f"{key}:= {_tail(operation.value)}"
    if operation.action == "cas":
        old, new = operation.value
        answer = {True: "yes", False: "no"}.get(operation.result, "?")
        return f"{key}{old}→{new} {answer}"
    shown = "" if operation.value is None else f" {_tail(operation.value)}"
    answer = "" if operation.result is None else f" = {_tail(operation.result)}"
    return f"{key}{operation.action}{shown}{answer}"


def _tail(value: Any) -> str:
    text = "nil" if value is None else str(value)
    # Of what was appended to, the end is what differs.
    return text if len(text) <= 40 else "…" + text[-39:]
