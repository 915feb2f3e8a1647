from __future__ import annotations

import pytest

from wavetank.ledger import catalog
from wavetank.protocols.exploration.study import StateSpaces

TINY = StateSpaces(managers=(3,), planted=3, naive_states=500)


@pytest.mark.parametrize(
    ("system", "states"),
    [
        ("explorer", 288),
        ("explorer-depth-first", 288),
        ("explorer-exact", 288),
        ("explorer-symmetric", 80),
        ("naive-explorer", 288),
    ],
)
def test_every_system_counts_the_known_states(system: str, states: int) -> None:
    found = TINY.measure(catalog.system(system).build(), 0)
    rows = {(metric, at.get("instance")): value for metric, value, at in found.rows}  # type: ignore[union-attr]
    assert rows["states", "two-phase-commit-3"] == states
    assert rows["states_per_s", "two-phase-commit-3"] > 0
    assert rows["counterexample_steps", "missing-one-of-3"] >= 7


def test_breadth_first_gives_a_shortest_counterexample_in_any_representation() -> None:
    steps = set()
    for system in ("explorer", "explorer-exact", "explorer-symmetric", "naive-explorer"):
        found = TINY.measure(catalog.system(system).build(), 0)
        steps |= {value for metric, value, _ in found.rows if metric == "counterexample_steps"}  # type: ignore[union-attr]
    assert steps == {7}


def test_a_search_that_was_cut_off_has_a_speed_and_no_count() -> None:
    found = StateSpaces(managers=(4,), planted=3, naive_states=300).measure(catalog.system("naive-explorer").build(), 0)
    metrics = {metric for metric, _, at in found.rows if at.get("instance") == "two-phase-commit-4"}  # type: ignore[union-attr]
    assert metrics == {"states_per_s"}
