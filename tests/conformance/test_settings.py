"""No system and no study takes a value that the declaration of its parameter or setting does not allow."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wavetank.errors import WavetankError
from wavetank.ledger.catalog import StudyEntry, SystemEntry
from wavetank.study.study import build_study


def wrong_values(hint: Any, default: Any, about: Mapping[str, Any]) -> Iterator[Any]:
    """Yield values that a field does not allow, by its type and its declaration."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        assert len(kinds) == 1, "two types: say here what is wrong for both"
        if len(kinds) == len(typing.get_args(hint)):
            yield None
        # None is a value of its own here, and so is the word.
        yield from (value for value in wrong_values(kinds[0], default, about) if value is not None)
        return
    yield from (object(), None, {})
    if typing.get_origin(hint) is tuple:
        (kind, _) = typing.get_args(hint)
        # No text at all is no item.
        items = [value for value in wrong_values(kind, None, about) if value != ""]
        yield from (value for value in items if not isinstance(value, list))
        yield from ([value] for value in items)
        return
    choices = about.get("choices", ())
    if hint is str:
        yield from (3, b"word")
        if choices:
            yield from (word for word in ("", "no such word") if word not in choices)
    elif hint is bool:
        yield from ("", "maybe", 2, math.nan)
    elif hint in (int, float):
        yield from ("", "many", "nan", "inf", "1e999", True, [1], math.nan, -math.inf)
        if default != math.inf:
            yield from (math.inf, 10**400)
        if hint is int:
            yield from (1.5, "1.5")
        low, high = about.get("low", -math.inf), about.get("high", math.inf)
        if choices:
            low, high = min(choices), max(choices)
            yield from (next(each for each in range(int(low), int(high) + 2) if each not in choices),)
        for outside in (low - 1 if hint is int else math.nextafter(low, -math.inf), math.nextafter(low, -math.inf)):
            if math.isfinite(low):
                yield from (outside, repr(outside))
        for outside in (high + 1 if hint is int else math.nextafter(high, math.inf), high * 2 + 1):
            if math.isfinite(high):
                yield from (outside, repr(outside))
    else:
        raise AssertionError(f"say here which values are wrong for {hint}")


def taken(kind: type, build: Callable[..., Any]) -> list[tuple[str, Any, str]]:
    """Return the wrong values that are taken, or refused with anything but the error of a user."""
    hints, found = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        for value in wrong_values(hints[field.name], field.default, field.metadata):
            try:
                build({field.name: value})
                found.append((field.name, value, "taken"))
            except WavetankError as error:
                if field.name not in (error.where or ""):
                    found.append((field.name, value, f"where: {error.where}"))
            except Exception as error:
                found.append((field.name, value, repr(error)))
    return found


def test_a_system_refuses_what_its_parameters_do_not_allow(entry: SystemEntry) -> None:
    assert taken(entry.load(), lambda given: entry.build(**given)) == []


def test_a_study_refuses_what_its_settings_do_not_allow(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    assert taken(kind, lambda given: build_study(kind, given)) == []


def test_every_parameter_and_setting_is_declared(entry: SystemEntry) -> None:
    fields = dataclasses.fields(entry.load())
    assert [field.name for field in fields if field.init and not field.metadata.get("says")] == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loose:
    """Takes whatever it is given."""

    count: int = 3


def test_what_takes_everything_is_found() -> None:
    found = taken(Loose, lambda given: Loose(**given))
    assert {how for _, _, how in found} == {"taken"}
    assert len(found) == len(list(wrong_values(int, 3, {}))) > 10
    assert math.nextafter(4.0, 5.0) in list(wrong_values(float, 1.0, {"high": 4.0}))
    numbers = [value for value in wrong_values(int, 2, {"choices": (2, 4)}) if type(value) is int]
    assert {1, 3, 5} <= set(numbers)
    assert not {2, 4} & set(numbers)
