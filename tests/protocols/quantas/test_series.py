"""Tests of the series of figures written after every round."""

from __future__ import annotations

from wavetank.protocols.quantas.series import lookup_series, lookups, recorded_count, recorded_total, running_total
from wavetank.sim.simulation import Run


def run_with(**recorded: list[tuple[float, int, float]]) -> Run:
    return Run(size=2, time=4, nodes=[], correct=frozenset(), recorded=dict(recorded))


def test_a_total_runs_on_from_round_to_round() -> None:
    assert running_total([1, 3, 3, 9], [1, 2, 3, 4], 4).tolist() == [1, 1, 6, 6]
    assert running_total([], [], 3).tolist() == [0, 0, 0]


def test_what_nodes_recorded_is_summed_and_counted() -> None:
    run = run_with(hops=[(2, 0, 5.0), (4, 1, 1.0)])
    assert recorded_total(run, "hops", 4).tolist() == [0, 5, 5, 6]
    assert recorded_count(run, "hops", 4).tolist() == [0, 1, 1, 2]
    assert recorded_count(run, "none", 2).tolist() == [0, 0]


def test_means_begin_with_the_first_lookup() -> None:
    run = run_with(lookup_hops=[(2, 0, 4.0), (3, 0, 2.0)], lookup_rounds=[(2, 0, 1.0), (3, 0, 2.0)])
    assert lookup_series(run, 3, "x") == {
        "xAverageHops": [4.0, 3.0],
        "xAverageLatency": [1.0, 1.5],
        "xRequestsSatisfied": [0.0, 1.0, 2.0],
    }


def test_lookups_are_drawn_for_every_round_and_go_elsewhere_if_asked() -> None:
    drawn = lookups(3, 300, 1, elsewhere=False)
    assert len(drawn) == 300
    assert {origin for origin, _ in drawn} == {target for _, target in drawn} == {0, 1, 2}
    assert any(origin == target for origin, target in drawn)
    moved = lookups(3, 300, 1, elsewhere=True)
    assert all(origin != target for origin, target in moved)
    assert [target for origin, target in drawn if origin != target] == [
        target for (origin, target), (_, old) in zip(moved, drawn, strict=True) if old != origin
    ]
