"""Rules that every system of the catalog keeps."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import pickle
import sys
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.ledger.catalog import SystemEntry
from wavetank.ledger.facts import idea_of, parameters_of

OUTSIDE = {"time", "random", "socket", "asyncio", "threading", "os"}
# What talks to the outside world by its nature: adapters, studies, stores, the machine's limits, other libraries.
MAY_TOUCH_THE_OUTSIDE = ("live", "proxy", "machine", "rivals", "gpu_rivals")


def same(one: Any, other: Any) -> bool:
    """Return whether two systems have equal fields; NaN equals NaN."""
    pairs = [(getattr(one, item.name), getattr(other, item.name)) for item in dataclasses.fields(one)]
    return type(one) is type(other) and all(
        a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)) for a, b in pairs
    )


def test_the_class_is_a_frozen_dataclass_of_keywords(entry: SystemEntry) -> None:
    kind = entry.load()
    assert inspect.isclass(kind)
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(item.kw_only for item in dataclasses.fields(kind) if item.init)


def test_the_constructor_only_stores(entry: SystemEntry) -> None:
    system = entry.build()
    fields = {item.name: getattr(system, item.name) for item in dataclasses.fields(system) if item.init}
    assert set(vars(system) if hasattr(system, "__dict__") else fields) == set(fields)
    assert same(type(system)(**fields), system)
    assert same(entry.build(), system)


def test_parameters_given_are_the_parameters_kept(entry: SystemEntry) -> None:
    system = entry.build(**entry.parameters)
    for name in entry.parameters:
        assert getattr(system, name) == getattr(entry.build(), name)


def test_it_survives_pickling(entry: SystemEntry) -> None:
    system = entry.build()
    assert same(pickle.loads(pickle.dumps(system)), system)


def test_an_unknown_parameter_is_refused_with_a_suggestion(entry: SystemEntry) -> None:
    names = [parameter.name for parameter in parameters_of(entry.load())]
    wrong = f"{names[0]}x" if names else "anything"
    with pytest.raises(BadValueError) as caught:
        entry.build(**{wrong: 1})
    assert caught.value.problem == f"There is no parameter named {wrong!r}."
    assert caught.value.where == f"system {entry.name}"
    assert caught.value.hint == f"wavetank show {entry.name}"
    assert (caught.value.nearest in names) if names else caught.value.nearest is None


def test_every_parameter_is_documented(entry: SystemEntry) -> None:
    assert [each.name for each in parameters_of(entry.load(), entry.parameters) if not each.says] == []


def test_the_class_says_what_it_is(entry: SystemEntry) -> None:
    text = entry.load().__dict__.get("__doc__") or ""
    # A dataclass without a docstring gets its signature for one.
    assert text.strip()
    assert not text.startswith(f"{entry.load().__name__}(")


def test_the_module_holds_the_idea_and_leaves_source_and_differences_to_the_catalog(entry: SystemEntry) -> None:
    text = inspect.getdoc(sys.modules[entry.load().__module__]) or ""
    assert idea_of(entry.load())
    stated = ("Source:", "Sources:", "References", "Differs from the source")
    assert [line for line in text.splitlines() if line.startswith(stated)] == []


def test_the_module_does_not_reach_outside(entry: SystemEntry) -> None:
    kind = entry.load()
    if entry.shape == "store" or set(kind.__module__.split(".")) & set(MAY_TOUCH_THE_OUTSIDE):
        return
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[kind.__module__]))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    assert imported & OUTSIDE == set()


def test_the_catalog_tells_enough(entry: SystemEntry) -> None:
    assert entry.does.endswith(".")
    assert len(entry.does) <= 140
    assert entry.source.get("title")
    assert entry.runs
    if entry.role == "system":
        assert entry.differs


def test_it_takes_part_in_a_study_that_exists(entry: SystemEntry) -> None:
    assert entry.studies
    assert set(entry.studies) <= set(catalog.built_in().studies)
