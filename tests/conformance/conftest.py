"""The catalog of this package, entry by entry."""

from __future__ import annotations

import pytest

from wavetank.ledger import catalog


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``entry``, ``study_entry`` or ``claim`` every one there is."""
    found = catalog.built_in()
    for name, values in (
        ("entry", list(found.systems.values())),
        ("study_entry", list(found.studies.values())),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=[value.name for value in values])
    if "claim" in metafunc.fixturenames:
        claims = [claim for entry in found for claim in entry.claims]
        names = [f"{claim.system}-{claim.metric}-{number}" for number, claim in enumerate(claims)]
        metafunc.parametrize("claim", claims, ids=names)
