"""Message sequence charts of a run: one line a node, time runs down, an arrow for every message that arrives.

In text an arrow is drawn where its message arrives; in SVG it slants from where it was sent.  Both say what was
decided, answered, lost and broken.

Source: ITU-T Z.120, Message Sequence Chart (lifelines and arrows).

Differs from the source:
1. Only the basic chart: no inline expressions; what repeats for ever is marked by a bracket.
"""

from __future__ import annotations

import textwrap
from typing import Any

import msgspec

from wavetank import svg
from wavetank.check.explore.counterexample import Path, Step
from wavetank.check.explore.environment import CHOICE

_MESSAGES = ("deliver", "drop", "duplicate")


def message_in_words(message: Any) -> str:
    """Return a message as its name and its fields.

    Examples
    --------
    >>> message_in_words("go")
    "'go'"
    """
    if not isinstance(message, msgspec.Struct):
        return repr(message)
    fields = [f"{name}={_value(getattr(message, name))}" for name in message.__struct_fields__]
    return type(message).__name__ + (f"({', '.join(fields)})" if fields else "")


def _value(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return message_in_words(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(_value(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def step_in_words(step: Step, path: Path) -> str:
    """Return what happened in a step, in one line."""
    action = step.action
    kind, node = action.kind, action.node
    if kind in _MESSAGES:
        found = f"{action.sender}->{node} {message_in_words(action.what)}"
        found += {"drop": " is lost", "duplicate": " will come twice"}.get(kind, "")
        found += " (node is down)" if step.lost else ""
    elif kind == "tick":
        found = "a round passes"
    elif kind == "choose":
        found = f"{node} sends what it likes" if CHOICE in str(action.what) else f"{node} chooses {action.what}"
    elif kind == "request":
        found = f"{node} is asked #{action.what}: {path.system.requests[action.what].command!r}"
    else:
        found = f"{node} " + {"timer": f"timer {action.what!r}", "crash": "crashes", "recover": "recovers"}[kind]
    for instance, value in step.decided:
        found += f"; decides {value!r}" + (f" in {instance!r}" if instance != 0 else "")
    for number, result in step.replied:
        found += f"; answers #{number}: {result!r}"
    return found + (f"; {step.broken}" if step.broken else "")


def _in_words(path: Path, at: int) -> str:
    """Return step ``at`` in one line; a step of the clock says what time it is."""
    found = step_in_words(path.steps[at], path)
    if path.steps[at].action.kind != "tick":
        return found
    now = sum(step.action.kind == "tick" for step in path.steps[: at + 1])
    return f"{found}: time {now}"


def as_text(path: Path, *, says: str = "", cycle: int = 0, width: int = 80) -> str:
    """Return a chart in text.

    Parameters
    ----------
    path : Path
    says : str
        What is wrong at its end.
    cycle : int
        How many of the last steps repeat for ever.
    width : int
        Columns.
    """
    size = path.system.size
    numbers = len(str(len(path.steps)))
    gap = max(2, min(8, (width // 2 - numbers - 4) // max(size, 1)))
    columns = [numbers + 3 + gap * node for node in range(size)]
    edge = columns[-1] + 3
    up = [True] * size
    lines = [_placed([(columns[node], str(node)) for node in range(size)], edge).rstrip()]
    for at, step in enumerate(path.steps, 1):
        repeats = cycle and at > len(path.steps) - cycle
        drawn = _lifelines(columns, up, edge)
        _draw(drawn, columns, step)
        head = f"{at:>{numbers}} {'~' if repeats else ' '}"
        drawn[: len(head)] = head
        words = textwrap.wrap(_in_words(path, at - 1), max(width - edge, 12)) or [""]
        lines.append(("".join(drawn) + words[0]).rstrip())
        up[step.action.node] = {"crash": False, "recover": True}.get(step.action.kind, up[step.action.node])
        for more in words[1:]:
            lines.append(("".join(_lifelines(columns, up, edge)) + more).rstrip())
    if cycle:
        lines.append(f"The steps marked ~ repeat for ever ({cycle} of them).")
    if says:
        lines += textwrap.wrap(says[0].upper() + says[1:] + ".", width)
    return "\n".join(lines)


def _placed(marks: list[tuple[int, str]], width: int) -> str:
    row = [" "] * width
    for column, text in marks:
        row[column : column + len(text)] = text
    return "".join(row)


def _lifelines(columns: list[int], up: list[bool], width: int) -> list[str]:
    row = [" "] * width
    for node, column in enumerate(columns):
        row[column] = "|" if up[node] else ":"
    return row


def _draw(row: list[str], columns: list[int], step: Step) -> None:
    action = step.action
    if action.kind == "tick":
        for column in range(columns[0], columns[-1] + 1):
            row[column] = "." if row[column] == " " else row[column]
        return
    if action.kind not in _MESSAGES:
        marks = {"timer": "*", "request": "?", "crash": "X", "recover": "^", "choose": "!"}
        row[columns[action.node]] = marks[action.kind]
        return
    start, end = columns[action.sender], columns[action.node]
    toward = 1 if end > start else -1
    for column in range(start + toward, end, toward):
        row[column] = "-" if row[column] == " " else "+"
    row[start] = "o"
    tip = end - toward
    if action.kind == "drop" or step.lost:
        row[tip] = "x"
    elif action.kind == "duplicate":
        row[tip] = "2"
    else:
        row[tip] = ">" if toward > 0 else "<"


_LINE, _TOP, _MARGIN = 34, 64, 56
# Of the words beside a step: lines and letters.
_MOST_LINES, _MOST_LETTERS = 2, 84


def as_svg(path: Path, *, says: str = "", cycle: int = 0) -> str:
    """Return a chart as an SVG document that needs nothing else.

    Parameters
    ----------
    path : Path
    says : str
        What is wrong at its end.
    cycle : int
        How many of the last steps repeat for ever.
    """
    size, steps = path.system.size, path.steps
    gap = 110 if size <= 6 else 70
    columns = [_MARGIN + gap * node for node in range(size)]
    left = columns[-1] + 40
    words = [textwrap.wrap(_in_words(path, at), _MOST_LETTERS)[:_MOST_LINES] for at in range(len(steps))]
    bottom = _TOP + _LINE * (len(steps) + 1)
    longest = max([svg.width_of(line) for lines in words for line in lines] + [svg.width_of(says, 15) - left, 150])
    body: list[str] = []
    for node, column in enumerate(columns):
        name = f"node {node}" + ("" if node in path.system.correct else " (faulty)")
        body.append(svg.text(column, _TOP - 30, name, looks="strong", text_anchor="middle"))
    body += _lifelines_svg(path, columns, bottom)
    sent = _Sent(path)
    marks: list[str] = []
    for at, step in enumerate(steps):
        y = _TOP + _LINE * (at + 1)
        body.append(svg.text(8, y + 4, at + 1, "quiet", looks="mono"))
        for place, line in enumerate(words[at]):
            offset = 4 + 14 * place - 7 * (len(words[at]) - 1)
            looks = ("bad", "mono strong") if step.broken else ("ink", "mono")
            body.append(svg.text(left, y + offset, line, looks[0], looks=looks[1]))
        mark = _mark_svg(step, columns, y, _TOP + _LINE * sent.row(at, step))
        (body if step.action.kind in _MESSAGES else marks).append(mark)
    # Above the arrows that begin there.
    body += marks
    if cycle:
        first = _TOP + _LINE * (len(steps) - cycle + 1) - 12
        body.append(svg.path(f"M{left - 12} {first}h-6V{bottom - 22}h6", stroke="bad", width=1.6))
        body.append(svg.text(left, bottom - 4, f"these {cycle} steps repeat for ever", "bad", looks="mono strong"))
    title = says or "a run"
    body.append(svg.text(8, bottom + 30, title, "bad", looks="large strong"))
    summary = f"{size} nodes, {len(steps)} steps" + (f"; the last: {_in_words(path, len(steps) - 1)}" if steps else "")
    return svg.drawing(round(left + longest + 24), bottom + 44, body, title=title, says=summary)


def _lifelines_svg(path: Path, columns: list[int], bottom: int) -> list[str]:
    found = []
    for node, column in enumerate(columns):
        start, up = _TOP - 18, True
        turns = [(at, step.action.kind) for at, step in enumerate(path.steps) if step.action.node == node]
        for at, kind in [*turns, (len(path.steps), "end")]:
            if kind in ("crash", "recover", "end"):
                end = bottom if kind == "end" else _TOP + _LINE * (at + 1)
                found.append(svg.line(column, start, column, end, "faint", looks="" if up else "dashed", width=1.5))
                start, up = end, kind == "recover"
    return found


def _mark_svg(step: Step, columns: list[int], y: int, sent_y: int) -> str:
    action = step.action
    if action.kind == "tick":
        return svg.line(columns[0], y, columns[-1], y, "faint", looks="dashed", width=1.5)
    x = columns[action.node]
    if action.kind == "crash":
        return _cross(x, y, 6)
    if action.kind not in _MESSAGES:
        letter = {"timer": "t", "request": "?", "recover": "+", "choose": "!"}[action.kind]
        circle = svg.element("circle", cx=x, cy=y, r=8, class_="fill-paper line-accent", stroke_width=1.6)
        return circle + svg.text(x, y + 4, letter, looks="mono", text_anchor="middle")
    start = columns[action.sender]
    if action.kind == "deliver" and not step.lost:
        return svg.arrow(start, sent_y, x, y)
    # A message that does not get there ends two thirds of the way.
    end_x, end_y = start + (x - start) * 2 / 3, sent_y + (y - sent_y) * 2 / 3
    if action.kind == "duplicate":
        return svg.text(end_x, y + 4, "x2", looks="mono", text_anchor="middle")
    return svg.line(start, sent_y, end_x, end_y, "bad", width=1.6) + _cross(end_x, end_y, 5)


def _cross(x: float, y: float, half: int) -> str:
    whole = 2 * half
    d = f"M{x - half:.0f} {y - half:.0f}l{whole} {whole}m0-{whole}l-{whole} {whole}"
    return svg.path(d, stroke="bad", width=1.6)


class _Sent:
    """When each message in transit was sent: the oldest of equal ones arrives first."""

    def __init__(self, path: Path) -> None:
        self._waiting: dict[tuple[int, int, Any], list[int]] = {}
        self._for_ever = path.system.environment.channels == "set"
        for sender, to, message in path.started:
            self._waiting.setdefault((sender, to, message), []).append(0)

    def row(self, at: int, step: Step) -> int:
        """Return the row (0 is the start) in which the message of a step was sent, and note what the step sends."""
        action = step.action
        row = at + 1
        if action.kind in _MESSAGES:
            waiting = self._waiting.get((action.sender, action.node, action.what), [])
            if waiting:
                keep = self._for_ever or action.kind == "duplicate"
                row = waiting[0] if keep else waiting.pop(0)
                if action.kind == "duplicate" and not self._for_ever:
                    waiting.insert(0, row)
        for to, message in step.sent:
            self._waiting.setdefault((action.node, to, message), []).append(at + 1)
        return row
