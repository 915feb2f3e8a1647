"""Settings of studies and parameters of systems: from text, TOML and Python to typed values.

Both are fields of frozen dataclasses.  :func:`setting` declares one with its unit, range and meaning;
:func:`check_parameters` converts what a user gave, or names the culprit.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wavetank import units
from wavetank.errors import BadValueError, nearest_of


def setting(
    default: Any,
    *,
    unit: str = "",
    says: str = "",
    choices: Sequence[Any] = (),
    low: float = -math.inf,
    high: float = math.inf,
) -> Any:
    """Declare a setting of a study or a parameter of a system, with what a user needs to know to change it.

    Parameters
    ----------
    default : object
    unit : str
        Unit of the number; ``--set refresh_s=100ms`` converts to it.
    says : str
        One line.
    choices : sequence
        The allowed words or numbers (each, for a tuple).  Words beside a type of number without numbers among the
        choices are allowed besides the interval.
    low, high : float
        The allowed closed interval of the number (of each, for a tuple).  Infinity is allowed where it is the default.
    """
    metadata = {"unit": unit, "says": says, "choices": tuple(choices), "low": low, "high": high}
    metadata["infinite"] = default == math.inf
    return dataclasses.field(default=default, metadata=metadata)


def check_parameters(kind: type, given: Mapping[str, Any], *, where: str, what: str = "parameter") -> dict[str, Any]:
    """Return ``given`` converted to the types of ``kind``'s fields.

    Parameters
    ----------
    kind : type
        A dataclass; its fields may carry the metadata of :func:`setting`.
    given : mapping
        Field name to value; text is parsed, units converted.
    where, what : str
        For messages.

    Raises
    ------
    BadValueError
        For a name that is no field, a value of another type or outside the allowed range.
    """
    fields = {item.name: item for item in dataclasses.fields(kind) if item.init}
    hints = typing.get_type_hints(kind)
    converted = {}
    for name, value in given.items():
        if name not in fields:
            raise BadValueError(
                f"There is no {what} named {name!r}.",
                allowed=sorted(fields) or f"{where} has none",
                nearest=nearest_of(name, fields),
                where=where,
                hint=f"wavetank show {where.split()[-1]}",
            )
        converted[name] = _convert(value, hints[name], fields[name].metadata, f"{where}, {name}")
    return converted


def assigned(pairs: Iterable[str], example: str = "") -> dict[str, str]:
    """Return what was given as ``--set KEY=VALUE``, text by key.

    Parameters
    ----------
    pairs : iterable of str
    example : str
        A pair that would be right, for the message of the error that another one raises.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            allowed = f"KEY=VALUE, as in {example}" if example else "KEY=VALUE"
            raise BadValueError("This is not a setting.", given=pair, allowed=allowed, where="--set")
        found[key.strip()] = value
    return found


def check_ranges(given: Any) -> None:
    """Refuse an object with a number outside the range that its field declares; types are left to type checkers.

    Parameters
    ----------
    given : dataclass instance
        Fields without ranges, and values that are no numbers, are not looked at.

    Raises
    ------
    BadValueError
    """
    for item in dataclasses.fields(given):
        value, about = getattr(given, item.name), item.metadata
        if "low" in about and _is_number(value):
            _check_range(value, about, item.name)


def _check_range(number: Any, about: Mapping[str, Any], where: str, given: Any = None) -> None:
    low, high, unit = about.get("low", -math.inf), about.get("high", math.inf), about.get("unit", "")
    given = number if given is None else given
    if not low <= number <= high:
        raise BadValueError(
            "The value is out of range.", given=given, allowed=range_in_words(low, high, unit), where=where
        )
    if math.isinf(number) and not about.get("infinite"):
        raise BadValueError("The value must be finite.", given=given, where=where)


def options(kind: type, *names: str, typed: bool = True, **says: str) -> Callable[[Any], Any]:
    """Return a decorator that gives a click command options for settings, in their order.

    Parameters
    ----------
    kind : type
        A dataclass whose fields :func:`setting` declares.
    *names : str
        Which fields; all by default.
    typed : bool
        Whether click converts the values and passes the defaults.  If not, text is passed on as it is, for
        :func:`check_parameters` to convert with its unit, and None where nothing is given.
    **says : str
        Further names, with words of their own for the help.
    """
    import click

    def with_options(function: Any) -> Any:
        for item in reversed(chosen):
            about: Mapping[str, Any] = item.metadata
            form: dict[str, Any] = {}
            help_ = says.get(item.name, about["says"])
            if not typed:
                help_ += "" if item.default == "" else f"  [{units.typed(item.default)}]"
                form["metavar"] = "|".join(about["choices"]) or about["unit"].upper() or "VALUE"
            elif isinstance(item.default, bool):
                form, help_ = {"is_flag": True}, f"{help_}."
            else:
                kind_of = click.Choice(about["choices"]) if about["choices"] else type(item.default)
                # A default that the words explain is not shown.
                shown = item.default != "" and f"; {item.default}:" not in help_
                form, help_ = {"type": kind_of, "default": item.default, "show_default": shown}, f"{help_}."
            function = click.option(f"--{item.name.replace('_', '-')}", item.name, help=help_, **form)(function)
        return function

    fields = {item.name: item for item in dataclasses.fields(kind)}
    chosen = [fields[name] for name in (*names, *says) or fields]
    return with_options


def _convert(value: Any, hint: Any, metadata: Mapping[str, Any], where: str) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if type(None) in options and (value is None or value == "none"):
        return None
    kinds = [option for option in options if option is not type(None)]
    words: list[str] = []
    if str in kinds and len(kinds) > 1:
        # "auto" or a number: a word stays a word, everything else is tried as the other type.
        choices = metadata.get("choices", ())
        words = [choice for choice in choices if isinstance(choice, str)]
        if isinstance(value, str) and value in words:
            return value
        kinds.remove(str)
        metadata = {**metadata, "choices": [choice for choice in choices if not isinstance(choice, str)]}
    try:
        return _of_kind(value, kinds[0], metadata, where)
    except BadValueError as error:
        if words:
            other = error.allowed if isinstance(error.allowed, str) else ", ".join(error.allowed or ()) or "a number"
            error.allowed = f"{', '.join(words)}, or {other}"
            error.nearest = nearest_of(str(value), words)
        raise


def _of_kind(value: Any, kind: Any, metadata: Mapping[str, Any], where: str) -> Any:
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            parts = (parts,)
        return tuple(_one(part, item, metadata, where) for part in parts)
    return _one(value, kind, metadata, where)


def _one(value: Any, kind: type, metadata: Mapping[str, Any], where: str) -> Any:
    choices = metadata.get("choices", ())
    if kind is str:
        text = str(value).strip() if isinstance(value, str) else None
        if text is None and not choices:
            raise BadValueError("The value must be text.", given=value, where=where)
        return _chosen(text, value, choices, "words", where)
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        word = str(value).strip().lower()
        if word not in words:
            raise BadValueError("The value must be true or false.", given=value, allowed=words, where=where)
        return _chosen(words[word], value, choices, "values", where)
    if kind not in (int, float):
        return _chosen(value, value, choices, "values", where)
    unit = metadata.get("unit", "")
    number: Any = units.parse_quantity(value, unit, where=where) if isinstance(value, str) else value
    if not _is_number(number):
        raise BadValueError("The value must be a number.", given=value, where=where)
    try:
        whole = float(number).is_integer()
    except OverflowError:
        raise BadValueError("This number is too large.", given=value, where=where) from None
    if kind is int:
        if not whole:
            raise BadValueError("The value must be a whole number.", given=value, where=where)
        number = int(number)
    _check_range(number, metadata, where, value)
    return _chosen(kind(number), value, choices, "numbers", where)


def _chosen(found: Any, given: Any, choices: Sequence[Any], what: str, where: str) -> Any:
    if choices and found not in choices:
        listed = [f"{each:.12g}" if isinstance(each, float) else str(each) for each in choices]
        raise BadValueError(
            f"The value is not one of the allowed {what}.",
            given=given, allowed=listed, nearest=nearest_of(str(given), listed), where=where,
        )  # fmt: skip
    return found


def _is_number(value: object) -> bool:
    # numpy's integers are numbers too, True is none.
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def range_in_words(low: float, high: float, unit: str = "") -> str:
    """Return an allowed interval as one would say it; empty when everything is allowed.

    Examples
    --------
    >>> range_in_words(0, 10, "s"), range_in_words(1, math.inf), range_in_words(-math.inf, math.inf)
    ('0 to 10 s', '1 or more', '')
    """
    unit = f" {unit}" if unit else ""
    if math.isfinite(low) and math.isfinite(high):
        return f"{units.typed(low)} to {units.typed(high)}{unit}"
    if math.isfinite(low):
        return f"{units.typed(low)}{unit} or more"
    return f"{units.typed(high)}{unit} or less" if math.isfinite(high) else ""
