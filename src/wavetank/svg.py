"""Drawings as SVG: elements, escaped text, text that fits, and colours for light pages, dark pages and paper.

A drawing stands alone: it names no file, font or address from outside, and it has no ids, so that several drawings can
stand in one page.  Colours are classes (``fill-NAME`` and ``line-NAME`` for every name in ``TONES``), because not every
viewer of SVG files knows CSS variables; colours that carry a figure may be given as they are.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from html import escape as _escape

# name -> colour on a light and on a dark page
TONES = {
    "paper": ("#ffffff", "#14171b"), "panel": ("#f6f7f9", "#1c2127"), "grid": ("#dfe3e8", "#333a43"),
    "ink": ("#1b2026", "#e6e9ed"), "quiet": ("#5d6570", "#a2abb6"), "faint": ("#c4ccd4", "#414a55"),
    "accent": ("#0b5cad", "#7fb8f5"), "bad": ("#a3263a", "#f59aa8"), "warm": ("#b9770e", "#f0b254"),
    "cool": ("#6f93b8", "#6f93b8"), "leaf": ("#6c9150", "#7ba05b"),
    "blue": ("#dbe7f3", "#1f3a57"), "green": ("#e3efda", "#2a4220"), "red": ("#fbd9d3", "#5c2430"),
}  # fmt: skip
MONOSPACE = 'ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
_SIZE = 12.0
# Of a letter, as a share of the size of the text: an upper bound for usual text.
_LETTER = 0.61
# XML has no place for these, and a lone half of a surrogate pair cannot be written as UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def _rules(column: int) -> str:
    return "".join(
        f"svg.drawing .{kind}-{name} {{ {prop}: {tones[column]}; }}\n"
        for name, tones in TONES.items()
        for kind, prop in (("fill", "fill"), ("line", "stroke"))
    )


_STYLE = (
    f"svg.drawing text {{ font: {_SIZE:g}px system-ui, sans-serif; }}\n"
    f"svg.drawing text.mono {{ font-family: {MONOSPACE}; }}\n"
    "svg.drawing text.small { font-size: 11px; } svg.drawing text.large { font-size: 15px; }\n"
    "svg.drawing text.strong { font-weight: 600; }\n"
    "svg.drawing .dashed { stroke-dasharray: 4 3; } svg.drawing .fill-none { fill: none; }\n"
    f"{_rules(0)}@media screen and (prefers-color-scheme: dark) {{\n{_rules(1)}}}\n"
)


def printable(text: str) -> str:
    """Return text with control characters replaced by their pictures, and what else XML cannot hold by U+FFFD."""
    return _CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


def escape(value: object) -> str:
    """Return a value as printable text for the content or a quoted attribute of an element, in SVG and in HTML.

    Examples
    --------
    >>> escape('<a href="#">'), escape("\\x00")
    ('&lt;a href=&quot;#&quot;&gt;', '␀')
    """
    return _escape(printable(str(value)))


def element(name: str, /, *inside: str, **attributes: object) -> str:
    """Return an element.

    Parameters
    ----------
    name : str
    *inside : str
        Markup, not text: text goes through :func:`escape` or :func:`text`.
    **attributes : object
        ``_`` stands for ``-`` and is dropped at the end (``class_``); None and "" leave an attribute out; floats are
        written with two decimals.

    Examples
    --------
    >>> element("rect", x=1.0, y=0.125, class_="fill-ink", stroke_width=2)
    '<rect x="1" y="0.12" class="fill-ink" stroke-width="2"/>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    return f"<{name}{words}>{''.join(inside)}</{name}>" if inside else f"<{name}{words}/>"


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def text(x: float, y: float, shown: object, tone: str = "ink", *, looks: str = "", **attributes: object) -> str:
    """Return text whose baseline begins at (x, y), in pixels.

    Parameters
    ----------
    x, y : float
    shown : object
    tone : str
        One of ``TONES``.
    looks : str
        Further classes: ``mono``, ``small``, ``large``, ``strong``.
    **attributes : object
        As for :func:`element`; ``text_anchor="middle"`` or ``"end"`` moves the text to the left.
    """
    return element("text", escape(shown), x=x, y=y, class_=f"fill-{tone} {looks}".rstrip(), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, tone: str = "ink", *, looks: str = "", width: float = 1.0) -> str:
    """Return a line between two points, in pixels; ``looks`` may be ``dashed``."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"line-{tone} {looks}".rstrip(), stroke_width=width)


def path(d: str, *, fill: str = "none", stroke: str = "", width: float = 1.0, looks: str = "") -> str:
    """Return a path filled in one tone and drawn along its edge in another."""
    edge = f"line-{stroke}" if stroke else ""
    words = " ".join(filter(None, (f"fill-{fill}", edge, looks)))
    return element("path", d=d, class_=words, stroke_width=width if stroke else None)


def arrow(x1: float, y1: float, x2: float, y2: float, tone: str = "accent") -> str:
    """Return an arrow from one point to another, in pixels."""
    angle = math.atan2(y2 - y1, x2 - x1)
    wings = [(x2 - 11 * math.cos(angle + turn), y2 - 11 * math.sin(angle + turn)) for turn in (-0.42, 0.42)]
    head = "".join(f"L{x:.1f} {y:.1f}" for x, y in wings)
    # The line ends inside the head, so that the tip is sharp.
    return line(x1, y1, x2 - 5 * math.cos(angle), y2 - 5 * math.sin(angle), tone, width=1.6) + path(
        f"M{x2:.1f} {y2:.1f}{head}z", fill=tone
    )


def width_of(shown: str, size: float = _SIZE) -> float:
    """Return an upper bound of the width of usual text in pixels; wide characters and emoji count twice."""
    return _LETTER * size * sum(map(_columns, shown))


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fitted(shown: str, room: float, size: float = _SIZE) -> str:
    """Return text, cut and ended by "…" where it is wider than ``room`` pixels; empty where not even that fits.

    Examples
    --------
    >>> fitted("a long name", 50), fitted("short", 50), fitted("short", 5)
    ('a lon…', 'short', '')
    """
    if width_of(shown, size) <= room:
        return shown
    letter = _LETTER * size
    left, kept = room - letter, 0
    for place, sign in enumerate(shown):
        left -= letter * _columns(sign)
        if left < 0:
            break
        kept = place + 1
    return f"{shown[:kept].rstrip()}…" if kept else ""


def drawing(width: float, height: float, body: Iterable[str], *, title: str, says: str = "") -> str:
    """Return a whole drawing, for a file of its own or for a page.

    Parameters
    ----------
    width, height : float
        In pixels.
    body : iterable of str
        Markup.
    title, says : str
        The text alternative: a name, and what there is to see.
    """
    return element(
        "svg",
        element("title", escape(title)),
        element("desc", escape(says)) if says else "",
        f"<style>\n{_STYLE}</style>\n",
        element("rect", width=width, height=height, class_="fill-paper"),
        "\n",
        "\n".join(body),
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        class_="drawing",
        width=width,
        height=height,
        viewBox=f"0 0 {_number(float(width))} {_number(float(height))}",
        aria_label=title,
    )
