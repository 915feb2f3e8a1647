"""Message sequence charts in text: one column a role, one row a step, an arrow where a message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ChartRow(NamedTuple):
    """One step.

    Parameters
    ----------
    role : str
        Who does it.
    partner : str
        For a sending: who the message goes to; otherwise empty.
    text : str
        Written on the arrow, or beside the role's line.
    """

    role: str
    partner: str
    text: str


def draw_chart(roles: Sequence[str], rows: Sequence[ChartRow]) -> str:
    """Return the chart.

    Examples
    --------
    >>> print(draw_chart(["p", "q"], [ChartRow("p", "q", "data"), ChartRow("q", "", "takes data")]))
             p         q
      1      |--data-->|
      2      |         * takes data
    """
    number_of = {role: position for position, role in enumerate(roles)}
    gap = max([9, *(len(role) + 2 for role in roles), *(len(row.text) + 5 for row in rows if row.partner)])
    left = 9
    centres = [left + (gap + 1) * position for position in range(len(roles))]
    width = centres[-1] + 1 if centres else 0
    lines = [_placed(width, centres, roles)]
    for number, row in enumerate(rows, 1):
        cells = list(" " * width)
        for centre in centres:
            cells[centre] = "|"
        cells[2 : 2 + len(str(number))] = str(number)
        at = centres[number_of[row.role]]
        tail = ""
        if row.partner:
            to = centres[number_of[row.partner]]
            low, high = min(at, to), max(at, to)
            for position in range(low + 1, high):
                if cells[position] != "|":
                    cells[position] = "-"
            cells[to + (1 if to < at else -1)] = "<" if to < at else ">"
            # The label stands next to the sender, in the first gap of the arrow.
            start = at + 3 if to > at else at - gap + 2
            cells[start : start + len(row.text)] = row.text
        else:
            cells[at] = "*"
            if at == centres[-1]:
                tail = f" {row.text}"
            else:
                text = row.text if len(row.text) < gap - 1 else ""
                cells[at + 2 : at + 2 + len(text)] = text
                tail = "" if text else f"  {row.role} {row.text}"
        lines.append(("".join(cells) + tail).rstrip())
    return "\n".join(lines)


def _placed(width: int, centres: Sequence[int], roles: Sequence[str]) -> str:
    line = [" "] * (width + max((len(role) for role in roles), default=0))
    for centre, role in zip(centres, roles, strict=True):
        start = max(0, centre - len(role) // 2)
        line[start : start + len(role)] = role
    return "".join(line).rstrip()
