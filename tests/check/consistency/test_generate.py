"""Histories made from a seed."""

from __future__ import annotations

import pytest

from wavetank.check.consistency.engine import judge
from wavetank.check.consistency.generate import kv_history
from wavetank.errors import BadValueError


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("lost", [False, True])
def test_a_made_history_is_linearizable_unless_an_append_was_lost(rounds, lost):
    for seed in range(3):
        one = kv_history(clients=20, operations=400, keys=6, seed=seed, rounds=rounds, lost=lost)
        assert len(one) == 400
        assert len({op.process for op in one.operations}) == 20
        assert judge(one, "linearizable").outcome == ("violated" if lost else "holds")


def test_equal_seeds_give_equal_histories():
    assert kv_history(clients=3, operations=30, keys=2, seed=5) == kv_history(clients=3, operations=30, keys=2, seed=5)
    assert kv_history(clients=3, operations=30, keys=2, seed=5) != kv_history(clients=3, operations=30, keys=2, seed=6)


def test_what_was_never_read_cannot_be_lost():
    with pytest.raises(BadValueError, match="lost"):
        kv_history(clients=2, operations=10, keys=1, seed=0, reads=0.0, lost=True)
