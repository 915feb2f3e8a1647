"""The catalog of this package, problem by problem."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from wavetank.ledger import catalog

_EACH = ("entry", "study_entry", "claim", "paper")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``entry``, ``study_entry``, ``claim`` or ``paper`` those of one problem after another.

    A test of its own for each entry would cost more than what it checks: there are thousands.
    """
    found = catalog.built_in()
    rooms = {name: entry.room for name, entry in found.systems.items()}
    problem_of = {entry.paper: entry.room for entry in found if entry.paper}
    every: Mapping[str, Iterable[tuple[str, Any]]] = {
        "entry": ((entry.room, entry) for entry in found),
        "study_entry": ((entry.room, entry) for entry in found.studies.values()),
        "claim": ((rooms[claim.system], claim) for entry in found for claim in entry.claims),
        "paper": ((problem_of[paper.name], paper) for paper in found.papers.values()),
    }
    for name in set(_EACH) & set(metafunc.fixturenames):
        groups: dict[str, list[Any]] = defaultdict(list)
        for room, each in every[name]:
            groups[room].append(each)
        metafunc.parametrize(name, list(groups.values()), ids=list(groups))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test once for each entry of its problem; a failure names the entry."""
    names = inspect.signature(pyfuncitem.obj).parameters
    asked = next((name for name in _EACH if name in names), None)
    if asked is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in names}
    for each in given[asked]:
        try:
            pyfuncitem.obj(**{**given, asked: each})
        except Exception as error:
            error.add_note(f"{asked}: {getattr(each, 'name', None) or f'{each.system}: {each.says}'}")
            raise
    return True
