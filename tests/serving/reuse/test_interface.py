"""Rules of the catalog meet the interface: every token of a prompt is counted once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.ledger import catalog
from wavetank.serving.reuse.interface import Prompt, Served, Workload

RULES = [entry for entry in catalog.everything() if entry.interface == "reuse"]


def test_the_study_has_rules() -> None:
    assert {entry.name for entry in RULES} >= {"radix-cache", "block-prefix", "fixed-content", "content-segments"}


@pytest.mark.parametrize("name", [entry.name for entry in RULES])
@settings(deadline=None, max_examples=40)
@given(data=st.data(), budget=st.none() | st.integers(0, 3_000), unit=st.sampled_from([1, 16, 512]))
def test_tokens_are_counted_once_and_the_last_is_never_reused(
    name: str, data: st.DataObject, budget: int | None, unit: int
) -> None:
    cache = catalog.system(name).build().cache(budget_tokens=budget, unit=unit)
    for ids in data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=90), max_size=8)):
        tokens = (len(ids) - 1) * unit + data.draw(st.integers(1, unit))
        served = cache.serve(Prompt(np.array(ids, np.uint32), tokens, 0))
        assert isinstance(served, Served)
        assert min(served) >= 0
        assert served.reused + served.recomputed + served.computed == tokens
        assert served.moved <= served.reused
        assert served.reused < tokens


def test_a_workload_is_one_of_single_tokens_unless_it_says_otherwise() -> None:
    assert Workload([])[1:] == (1, False)
