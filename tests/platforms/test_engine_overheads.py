from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms.engine_overheads import EngineOverheads, padded, vllm_graph_sizes

AXIS = np.array([1.0, 10.0, 100.0, 1000.0])
LINE = np.array([5.0, 6.0, 20.0, 300.0])


def at(x: float, axis: np.ndarray, line: np.ndarray) -> float:
    return float(np.interp(x, axis, line))


def test_an_engine_adds_nothing_unless_told() -> None:
    overheads = EngineOverheads()
    assert (overheads.step_s, overheads.sequence_s, overheads.graph_sizes) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    ("given_", "where"),
    [
        ({"step_s": -1e-9}, "step_s"),
        ({"step_s": math.nan}, "step_s"),
        ({"sequence_s": math.inf}, "sequence_s"),
        ({"graph_sizes": (0, 1)}, "graph_sizes"),
        ({"graph_sizes": (1, 4, 4)}, "graph_sizes"),
        ({"graph_sizes": (8, 4)}, "graph_sizes"),
    ],
)
def test_senseless_overheads_are_refused(given_: dict[str, object], where: str) -> None:
    with pytest.raises(BadValueError) as caught:
        EngineOverheads(**given_)
    assert caught.value.where == where


def test_the_captured_sizes_are_those_that_a_recorded_vllm_reports() -> None:
    sizes = vllm_graph_sizes(256)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-17:-14] == (256, 272, 288)
    assert (sizes[-1], len(sizes)) == (512, 51)


def test_captured_sizes_end_at_twice_the_running_requests() -> None:
    assert vllm_graph_sizes(1) == (1, 2)
    assert vllm_graph_sizes(128)[-1] == 256
    assert vllm_graph_sizes(10_000)[-1] == 512
    with pytest.raises(BadValueError):
        vllm_graph_sizes(0)


@pytest.mark.parametrize(("tokens", "as_of"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 9), (500, 500)])
def test_a_batch_costs_what_the_next_captured_size_costs(tokens: int, as_of: int) -> None:
    axis, line = padded((1, 2, 4, 8), AXIS, LINE)
    assert at(tokens, axis, line) == pytest.approx(at(as_of, AXIS, LINE))


@given(
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=12, unique=True).map(sorted),
    tokens=st.integers(1, 1000),
)
def test_padding_never_makes_a_rising_cost_smaller(sizes: list[int], tokens: int) -> None:
    axis, line = padded(tuple(sizes), AXIS, LINE)
    assert (np.diff(axis) > 0).all()
    as_of = next((size for size in sizes if size >= tokens), tokens)
    assert at(tokens, axis, line) == pytest.approx(at(as_of, AXIS, LINE))
    assert at(tokens, axis, line) >= at(tokens, AXIS, LINE) - 1e-9


def test_a_graph_larger_than_the_table_follows_its_trend() -> None:
    axis, line = padded((2000,), AXIS, LINE)
    trend = 300.0 + 1000 * (300.0 - 20.0) / 900.0
    assert at(1, axis, line) == at(2000, axis, line) == pytest.approx(trend)
    assert axis.size >= 3
