"""Units at the border: parse quantities that users type, show numbers that users read.

Inside the library a number's unit is part of its name (``refresh_s``, ``kv_bytes``); this module is where a unit is a
value.
"""

from __future__ import annotations

import math
import re

from wavetank.errors import BadValueError, nearest_of

# unit -> (dimension, factor to the dimension's base unit)
_UNITS: dict[str, tuple[str, float]] = {
    "ps": ("time", 1e-12), "ns": ("time", 1e-9), "us": ("time", 1e-6), "ms": ("time", 1e-3),
    "s": ("time", 1.0), "min": ("time", 60.0), "h": ("time", 3600.0), "d": ("time", 86400.0),
    "bytes": ("size", 1.0), "B": ("size", 1.0),
    "kB": ("size", 1e3), "MB": ("size", 1e6), "GB": ("size", 1e9), "TB": ("size", 1e12),
    "KiB": ("size", 2.0**10), "MiB": ("size", 2.0**20), "GiB": ("size", 2.0**30), "TiB": ("size", 2.0**40),
    "bytes/s": ("bandwidth", 1.0), "B/s": ("bandwidth", 1.0), "MB/s": ("bandwidth", 1e6), "GB/s": ("bandwidth", 1e9),
    "requests/s": ("rate", 1.0), "/s": ("rate", 1.0), "requests/min": ("rate", 1 / 60.0), "/min": ("rate", 1 / 60.0),
    "tokens": ("tokens", 1.0), "ktokens": ("tokens", 1e3),
    "tokens/s": ("token rate", 1.0),
    "requests": ("requests", 1.0), "workers": ("workers", 1.0), "steps": ("steps", 1.0),
    "rounds": ("rounds", 1.0), "messages": ("messages", 1.0), "nodes": ("nodes", 1.0),
    "joules": ("energy", 1.0), "J": ("energy", 1.0), "kWh": ("energy", 3.6e6),
    "W": ("power", 1.0), "kW": ("power", 1e3), "usd": ("money", 1.0),
}  # fmt: skip

_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/%]*)\s*")


def convert(value: float, unit: str, to: str, *, where: str | None = None) -> float:
    """Convert ``value`` from ``unit`` to ``to``.

    Raises
    ------
    BadValueError
        If a unit is unknown or the two measure different things.

    Examples
    --------
    >>> convert(100, "ms", "s")
    0.1
    """
    if unit == to:
        return value
    of_the_kind = [name for name, (kind, _) in _UNITS.items() if to in _UNITS and kind == _UNITS[to][0]]
    if unit not in _UNITS or to not in _UNITS or _UNITS[unit][0] != _UNITS[to][0]:
        raise BadValueError(
            f"{unit!r} is not a unit that converts to {to!r}." if to else f"This number has no unit, not {unit!r}.",
            given=f"{value:g} {unit}",
            allowed=of_the_kind or f"a plain number, in {to}" if to else "a plain number",
            nearest=nearest_of(unit, of_the_kind),
            where=where,
        )
    # Multiplying by an inverse power of ten rounds; dividing by the power itself does not (100 ms is exactly 0.1 s).
    ratio = _UNITS[unit][1] / _UNITS[to][1]
    inverse = _UNITS[to][1] / _UNITS[unit][1]
    exact = inverse > 1 and math.isclose(inverse, round(inverse), rel_tol=1e-12)
    return value / round(inverse) if exact else value * ratio


def parse_quantity(text: str, unit: str, *, where: str | None = None) -> float:
    """Read ``"100ms"``, ``"0.1"`` or ``"1e6"`` as a number in ``unit``; a bare number is taken to be in it.

    Raises
    ------
    BadValueError
        If the text is not a number, or its unit is unknown or of another kind.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadValueError(
            "This is not a number.",
            given=text,
            allowed=f"a number, optionally with a unit ({unit})" if unit else "a plain number",
            where=where,
        )
    value = float(match[1].replace("_", ""))
    if math.isinf(value):
        raise BadValueError("This number is too large.", given=text, where=where)
    if not match[2]:
        return value
    return convert(value, match[2], unit, where=where)


# base unit -> factors and names of the units it is shown in, the largest first
_PREFIXED = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s")),
}


def show(value: float, unit: str = "") -> str:
    """Write a measured number for people: three significant digits, a prefix to some units, thousands set apart.

    Parameters
    ----------
    value : float
        In ``unit``.
    unit : str
        Without a prefix, such as ``s`` or ``bytes``; empty for a plain number.

    Examples
    --------
    >>> show(0.00213, "s"), show(1_250_000, "tokens/s"), show(3.0e9, "bytes")
    ('2.13 ms', '1,250,000 tokens/s', '3 GB')
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if unit in _PREFIXED and value != 0:
        steps = _PREFIXED[unit]
        factor, name = next((step for step in steps if abs(value) >= step[0] * 0.9995), steps[-1])
        return f"{_digits(value / factor)} {name}"
    return f"{_digits(value)} {unit}".rstrip()


def stated(value: float) -> str:
    """Write a number that was given, such as a source's figure: no digits are added, thousands are set apart.

    Examples
    --------
    >>> stated(0.62), stated(1_350_000.0)
    ('0.62', '1,350,000')
    """
    return f"{value:,.10g}"


def typed(value: object, between: str = ",") -> str:
    """Write the value of a setting as one types it: exactly, and the items of a list with ``between`` between them.

    Parameters
    ----------
    value : object
        None, a truth value, a number, a text, or a list or tuple of these.
    between : str

    Examples
    --------
    >>> typed(None), typed((True, 1e6, 0.1)), typed("text")
    ('none', 'true,1000000,0.1', 'text')
    """
    if isinstance(value, list | tuple):
        return between.join(typed(item) for item in value)
    if isinstance(value, float):
        short = f"{value:.12g}"
        return short if float(short) == value else float.__repr__(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _digits(value: float) -> str:
    size = abs(value)
    if size == 0 or (1e-3 <= size < 1e6 and float(value).is_integer()):
        return f"{value:,.0f}"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    # The place of the first digit after rounding: 0.9997 is 1.00, not 1.000.
    first = math.floor(math.log10(float(f"{size:.3g}")))
    return f"{value:,.{max(0, 2 - first)}f}"
