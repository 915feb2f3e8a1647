"""Layers and micro-batches divided: as good as the best of all divisions, counted one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.reshaping.partition import linear_partition, quotas


def divisions(count: int, parts: int, least: int) -> list[tuple[int, ...]]:
    ranges = [range(least, count + 1)] * parts
    return [each for each in itertools.product(*ranges) if sum(each) == count]


def slowest(work: list[int], pace: list[int], counts: tuple[int, ...]) -> int:
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    return max(sum(work[end - n : end]) * each for end, n, each in zip(ends, counts, pace, strict=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_division_of_layers_has_a_faster_slowest_stage(data):
    stages = data.draw(st.integers(1, 4))
    work = data.draw(st.lists(st.integers(1, 9), min_size=stages, max_size=8))
    pace = data.draw(st.lists(st.integers(1, 9), min_size=stages, max_size=stages))
    most = data.draw(st.lists(st.integers(1, 8), min_size=stages, max_size=stages))
    allowed = [each for each in divisions(len(work), stages, 1) if all(n <= m for n, m in zip(each, most, strict=True))]
    found = linear_partition(work, pace, most)
    if not allowed:
        assert found == ()
        return
    assert found in allowed
    assert slowest(work, pace, found) == min(slowest(work, pace, each) for each in allowed)


def test_of_equal_divisions_the_earlier_stages_have_fewer():
    assert linear_partition([1, 1, 1], [1, 1]) == (1, 2)
    assert linear_partition([1] * 8, [10, 10, 30]) == (3, 4, 1)


def test_layers_that_do_not_fit_are_not_divided():
    assert linear_partition([1] * 4, [1, 1], [1, 2]) == ()
    assert linear_partition([1], [1, 1]) == ()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_quotas_end_earlier(data):
    replicas, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    tables = [
        list(itertools.accumulate(data.draw(st.lists(st.integers(0, 9), min_size=count + 1, max_size=count + 1))))
        for _ in range(replicas)
    ]
    found = quotas(count, [lambda n, t=table: ([0, *t])[n] for table in tables])
    assert sum(found) == count

    def end(each: tuple[int, ...]) -> int:
        return max(([0, *table])[n] for table, n in zip(tables, each, strict=True))

    assert end(found) == min(end(each) for each in divisions(count, replicas, 0))


def test_a_division_of_nothing_is_refused():
    with pytest.raises(BadValueError, match="among stages"):
        linear_partition([1, 2], [])
    with pytest.raises(BadValueError, match="among stages"):
        linear_partition([1, -2], [1])
    for count, times in ((0, [lambda n: n]), (3, [])):
        with pytest.raises(BadValueError, match="needs micro-batches"):
            quotas(count, times)
