"""A violation as a picture: processes as lanes, operations as bars in time, the culprit marked.

One self-contained HTML page with an SVG of our own; no script, no font and no address from outside.  Only the part of a
long history around the culprit is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wavetank import html_page, svg
from wavetank.check.consistency.engine import Judgement
from wavetank.sim.history import History, Operation
from wavetank.svg import escape

_MOST_OPERATIONS = 160
_LANE_HEIGHT, _BAR_HEIGHT, _LEFT, _WIDTH, _TOP = 34, 22, 110, 1180, 46


def timeline_page(history: History, judgements: Sequence[Judgement], title: str) -> str:
    """Return a self-contained HTML page with one timeline for each violated model that has a culprit or a circle."""
    drawn: dict[tuple[int | None, tuple[int, ...]], list[Judgement]] = {}
    for each in judgements:
        if each.outcome == "violated" and (each.culprit is not None or each.cycle):
            drawn.setdefault((each.culprit, each.cycle), []).append(each)
    processes = len({operation.process for operation in history.operations})
    return html_page.findings(
        title,
        f'<p class="quiet">{len(history)} operations of {processes} processes. A dashed bar never returned. The bar in '
        "red ends the longest good prefix; bars in orange take part in a circle.</p>",
        *(_section(history, group) for group in drawn.values()),
        "<section><h2>All models</h2>",
        html_page.table((each.model, each.outcome, each.says) for each in judgements),
        "</section>",
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
        f"<section><h2>{escape(names)}</h2>\n<p>{escape(first.says)}.{escape(good)}</p>\n{listed}"
        f'<div class="scroll">{timeline_svg(history, culprit=first.culprit, cycle=first.cycle)}</div></section>'
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
    unit = " s" if history.clock == "seconds" else ""
    times = [begin + span * part / 5 for part in range(6)]
    parts = [svg.text(x(at), 16, f"{at:.6g}{unit}", "quiet", looks="small", text_anchor="middle") for at in times]
    for process, lane in lanes.items():
        y = _TOP + _LANE_HEIGHT * lane + _LANE_HEIGHT / 2
        parts.append(svg.line(_LEFT, y, _WIDTH - 10, y, "faint"))
        name = svg.fitted(process, _LEFT - 14)
        parts.append(svg.text(_LEFT - 10, y + 4, name, "quiet", text_anchor="end"))
    for number in chosen:
        parts.append(_bar(operations[number], number, lanes, x, culprit, cycle))
    if culprit is not None and culprit in chosen:
        at = x(operations[culprit].returned)
        parts.append(svg.line(at, 22, at, height - 8, "bad", looks="dashed"))
        parts.append(svg.text(at - 4, 34, "good until here", "bad", looks="small", text_anchor="end"))
    title = f"Timeline of {len(chosen)} operations of {len(lanes)} processes"
    return svg.drawing(_WIDTH, height, parts, title=title)


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
    fill, edge = ("blue", "cool") if operation.action in ("read", "dequeue", "pop") else ("green", "leaf")
    if number == culprit:
        fill, edge = "red", "bad"
    elif number in cycle:
        edge = "warm"
    looks = " dashed" if operation.returned is None else ""
    label = _label(operation)
    end = "never" if operation.returned is None else f"{operation.returned:.6g}"
    return svg.element(
        "g",
        svg.element("title", escape(f"{number}: {label} [{operation.invoked:.6g}, {end}]")),
        svg.element(
            "rect", x=left, y=y, width=width, height=_BAR_HEIGHT, rx=3, class_=f"fill-{fill} line-{edge}{looks}",
            stroke_width=2 if edge in ("bad", "warm") else 1,
        ),
        svg.text(left + 4, y + 15, svg.fitted(label, width - 4, 11), looks="small"),
    )  # fmt: skip


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
