"""Tasks are drawn from their seed alone, and differ by as much as is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.tenants.interface import PS
from wavetank.training.tenants.workload import draw


def drawn(seed=0, **more):
    words = {"tasks": 6, "updates": 4, "groups": 3, "group": 2, "turns": 10, "turn_tokens": 200.0, "tools": 7,
             "prompt_tokens": 500.0, "heterogeneity": 8.0, "delays_s": (0.1, 30.0), "sigma": 1.0,
             "kv_quota": 10**9}  # fmt: skip
    return draw(seed, **{**words, **more})


def by_task(tenants, values):
    return [values[tenants.first_turn[low] : tenants.first_turn[high]]
            for low, high in zip(tenants.first_answer[:-1], tenants.first_answer[1:], strict=True)]  # fmt: skip


def test_equal_seeds_give_equal_tasks_and_others_others():
    one, same, other = drawn(1), drawn(1), drawn(2)
    assert np.array_equal(one.turn_tokens, same.turn_tokens)
    assert np.array_equal(one.delay_ps, same.delay_ps)
    assert not np.array_equal(one.turn_tokens[:50], other.turn_tokens[:50])


def test_tasks_want_half_of_the_updates_or_more():
    updates = drawn(updates=100, tasks=40).updates
    assert 50 <= updates.min() < 60
    assert 90 < updates.max() <= 100
    assert (drawn(updates=5, fewest=1.0).updates == 5).all()


def test_lengths_and_delays_spread_as_asked():
    tenants = drawn(tasks=60, updates=20, fewest=1.0)
    lengths = [np.median(each) for each in by_task(tenants, tenants.turn_tokens)]
    assert 80 < min(lengths) < 140
    assert 600 < max(lengths) < 900
    delays = [np.median(each) / PS for each in by_task(tenants, tenants.delay_ps)]
    assert 0.05 < min(delays) < 0.3
    assert 15 < max(delays) < 45
    alike = drawn(tasks=60, updates=20, fewest=1.0, heterogeneity=1.0)
    lengths = [np.median(each) for each in by_task(alike, alike.turn_tokens)]
    assert max(lengths) / min(lengths) < 1.5
    turns = np.diff(tenants.first_turn)
    assert (turns.min(), turns.max()) == (1, 10)


def test_no_delay_is_none_at_all():
    assert drawn(delays_s=(0.0, 0.0)).delay_ps.max() == 0


@pytest.mark.parametrize("delays_s", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_what_are_no_delays_is_refused(delays_s):
    with pytest.raises(BadValueError, match="no delays"):
        drawn(delays_s=delays_s)
