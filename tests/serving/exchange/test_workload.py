"""Routings: what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serving.exchange.cases import small

from wavetank.errors import UnknownNameError
from wavetank.serving.exchange.workload import LOADS, routed_tokens, slopes


@pytest.mark.parametrize("load", LOADS)
def test_a_tokens_experts_are_different_and_its_gates_are_one_together(load: str) -> None:
    task = small(tokens=40)
    first, again, later = (routed_tokens(load, task, 8, 1, step=step) for step in (0, 0, 1))
    for rank in range(task.ranks):
        routed = first[rank]
        assert routed.values.shape == (40, 8)
        assert all(len(set(row)) == 3 for row in routed.experts.tolist())
        assert 0 <= routed.experts.min() <= routed.experts.max() < 8
        assert np.allclose(routed.gates.sum(axis=1), 1.0)
        assert np.array_equal(routed.values, again[rank].values)
        assert not np.array_equal(routed.values, later[rank].values)


def test_loads_are_as_skewed_as_they_say() -> None:
    task = small(tokens=400)

    def counts(load: str) -> list[int]:
        experts = np.concatenate([each.experts for each in routed_tokens(load, task, 8, 1)])
        return sorted(np.bincount(experts.ravel(), minlength=8).tolist())

    assert counts("one") == [0, 0, 0, 0, 0, 1200, 1200, 1200]
    assert counts("few")[:4] == [0, 0, 0, 0]
    assert counts("zipf")[-1] > 3 * counts("zipf")[0] > 0
    assert counts("uniform")[-1] < 1.3 * counts("uniform")[0]


def test_unknown_loads_are_refused_and_stand_ins_differ() -> None:
    with pytest.raises(UnknownNameError, match="zipf"):
        routed_tokens("zip", small(), 8, 1)
    rows = np.ones((1, 2), np.float32)
    assert slopes(0, rows).tolist() == [[0.5, 0.5]]
    assert slopes(4, rows).tolist() == [[5.0, 5.0]]
    assert slopes(4, rows).dtype == np.float32
    assert routed_tokens("one", small(), 8, 1, tokens=2)[0].values.shape[0] == 2
