"""Layouts written in one line of text, as on a command line: ``mma-result(warps=2x2) 64x64``.

A family with its numbers, then the shape of the tensor; the names are those of
:mod:`wavetank.kernels.layouts.families` in lower case with hyphens.

Source: our own notation.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from wavetank.errors import BadValueError, unknown_name
from wavetank.kernels.layouts import families
from wavetank.kernels.layouts.algebra import Layout

FAMILIES: dict[str, type[Any]] = {
    "blocked": families.Blocked,
    "mma-result": families.MmaResult,
    "mma-operand": families.MmaOperand,
    "wgmma-result": families.WgmmaResult,
    "wgmma-operand": families.WgmmaOperand,
    "mfma-result": families.MfmaResult,
    "mfma-operand": families.MfmaOperand,
    "slice": families.Slice,
    "swizzled": families.SwizzledShared,
    "tile": families.TileShared,
}
EXAMPLES = (
    "blocked(registers=1x4, lanes=8x4, warps=2x2, order=1x0) 32x32",
    "mma-result(warps=2x1) 32x16",
    "swizzled(vector=4, per_phase=1, max_phase=8, order=1x0) 16x32",
    "slice(parent=mma-result(warps=2x2), axis=1) 64",
)
_CALL = re.compile(r"\s*([a-z-]+)\s*\(")


def layout_of(text: str) -> Layout:
    """Return the layout that a line of text describes.

    Parameters
    ----------
    text : str
        ``FAMILY(NAME=VALUE, ...) SHAPE``; several numbers are written 8x4.

    Raises
    ------
    WavetankError
        For a family or number that does not exist or is missing, with the nearest name and an example.

    Examples
    --------
    >>> layout_of("mma-result(warps=1x1) 16x8").apply(lane=5, register=1)
    {'dim0': 1, 'dim1': 3}
    """
    encoding, rest = _encoding(text)
    shape = rest.strip()
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise _unreadable("The shape of the tensor comes last.", shape or "nothing", "a shape: 64x32")
    layout: Layout = encoding.layout(tuple(int(size) for size in shape.split("x")))
    return layout


def _encoding(text: str) -> tuple[Any, str]:
    found = _CALL.match(text)
    if not found:
        raise _unreadable("A layout begins with its family.", text, ", ".join(FAMILIES))
    name = found[1]
    if name not in FAMILIES:
        raise unknown_name("layout family", name, FAMILIES, hint=f"for example: {EXAMPLES[0]}")
    end = _closing(text, found.end())
    kind = FAMILIES[name]
    fields = {item.name: item for item in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for part in _parts(text[found.end() : end]):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in fields:
            raise unknown_name(f"number of {name}", key, fields, where=text)
        given[key] = _value(value, str(fields[key].type), key)
    missing = [key for key, item in fields.items() if key not in given and item.default is dataclasses.MISSING]
    if missing:
        raise BadValueError(
            f"The layout {name} needs more numbers.", given=text, allowed=", ".join(missing), where=name
        )
    return kind(**given), text[end + 1 :]


def _closing(text: str, start: int) -> int:
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise _unreadable("A bracket is not closed.", text, "FAMILY(...) SHAPE")


def _parts(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def _value(value: str, kind: str, where: str) -> Any:
    if kind == "Encoding":
        return _encoding(value)[0]
    if kind == "bool":
        if value not in ("true", "false"):
            raise BadValueError("The value must be true or false.", given=value, where=where)
        return value == "true"
    if not re.fullmatch(r"\d+(x\d+)*", value):
        raise _unreadable("The value must be a whole number, or several with x between.", value, "8x4", where)
    numbers = tuple(int(part) for part in value.split("x"))
    if kind.startswith("tuple"):
        return numbers
    if len(numbers) > 1:
        raise BadValueError("The value must be one whole number.", given=value, where=where)
    return numbers[0]


def _unreadable(problem: str, given: str, allowed: str, where: str | None = None) -> BadValueError:
    return BadValueError(problem, given=given, allowed=allowed, where=where, hint=f"for example: {EXAMPLES[0]}")
