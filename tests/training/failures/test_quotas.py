"""Who computes which microbatches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.failures.quotas import assign, balanced, majors, take_over


def test_balanced_quotas_sum_to_the_batch_and_differ_by_at_most_one_down_to_the_last_replica() -> None:
    for replicas in range(64, 0, -1):
        quotas = balanced(8192, replicas)
        assert len(quotas) == replicas
        assert sum(quotas) == 8192
        assert max(quotas) - min(quotas) <= 1


def test_majors_leave_one_with_the_rest_and_spares_without_work() -> None:
    assert majors(8192, 63) == [131] * 62 + [70]
    assert majors(12, 5) == [3, 3, 3, 3, 0]
    assert majors(3, 5) == [1, 1, 1, 0, 0]
    for replicas in range(64, 0, -1):
        assert sum(majors(8192, replicas)) == 8192


@pytest.mark.parametrize("rule", [balanced, majors])
@given(count=st.integers(1, 60), size=st.integers(1, 8), data=st.data())
def test_survivors_take_over_exactly_what_was_lost(rule, count: int, size: int, data: st.DataObject) -> None:
    held = assign(range(count), range(size), rule(count, size))
    assert sorted(each for ids in held.values() for each in ids) == list(range(count))
    members = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    extra = take_over(held, members, rule(count, len(members)))
    lost = [each for rank in range(size) if rank not in members for each in held[rank]]
    assert sorted(each for ids in extra.values() for each in ids) == lost


@pytest.mark.parametrize(("count", "replicas"), [(0, 1), (1, 0), (-1, 2)])
def test_nothing_to_divide_is_refused(count: int, replicas: int) -> None:
    for rule in (balanced, majors):
        with pytest.raises(BadValueError, match="needs microbatches"):
            rule(count, replicas)


def test_quotas_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadValueError, match="do not divide"):
        assign([1, 2, 3], [0, 1], [1, 1])
