"""The task cuts numbers into parts; work is counted when it is done."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.interface import Task, Work


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (7, 3), (12, 4), (5, 1)])
def test_parts_follow_one_another_and_differ_by_one_at_most(count, size):
    parts = Task(size=size, shape=(count,), bound=1.0).parts
    assert parts[0].start == 0
    assert parts[-1].stop == count
    assert [each.start for each in parts[1:]] == [each.stop for each in parts[:-1]]
    lengths = [each.stop - each.start for each in parts]
    assert max(lengths) - min(lengths) <= 1


def test_parts_of_a_grid_are_whole_rows_where_there_are_enough():
    task = Task(size=3, shape=(2, 5, 7), bound=1.0)
    assert all(each.start % 7 == 0 and each.stop % 7 == 0 for each in task.parts)
    assert task.rows(slice(7, 28)) == (3, 7)
    assert task.rows(slice(8, 28)) == (20,)
    few = Task(size=3, shape=(2, 7), bound=1.0)
    assert {each.stop - each.start for each in few.parts} == {4, 5}


@pytest.mark.parametrize("size", [0, -1, True, 2.0])
def test_an_all_reduce_has_ranks(size):
    with pytest.raises(BadValueError, match="ranks"):
        Task(size=size, shape=(3,), bound=1.0)
    with pytest.raises(BadValueError, match="no smaller"):
        Task(size=2, shape=(3,), bound=1.0, times=0.5)


@pytest.mark.parametrize("wrong", [{"bucket": 0}, {"bucket": -5}, {"levels": -1}, {"levels": 1.5}, {"shape": (-3,)},
                                   {"shape": (2, 2.5)}])  # fmt: skip
def test_shape_levels_and_bucket_are_whole_numbers(wrong):
    with pytest.raises(BadValueError, match="whole numbers"):
        Task(**({"size": 2, "shape": (3,), "bound": 1.0} | wrong))


def test_tasks_have_one_key_where_their_integers_may_be_summed():
    task = Task(size=2, shape=(3, 4), bound=0.5)
    assert task.key == dataclasses.replace(task, seed=3, times=2.0, shape=(np.int64(3), 4)).key
    others = ({"size": 3}, {"shape": (4, 3)}, {"bound": np.nextafter(0.5, 1)}, {"levels": 1}, {"bucket": 5})
    assert len({task.key, *(dataclasses.replace(task, **other).key for other in others)}) == 6


def test_work_is_counted_once_and_taken():
    work = Work()
    work.did("add", 5)
    work.did("add", 2)
    work.did("restore", 3, "after")
    work.did("pack", 0, "first")
    taken = work.taken()
    assert (dict(taken.first), dict(taken.before), dict(taken.after)) == ({}, {"add": 7}, {"restore": 3})
    assert not work.before
    with pytest.raises(BadValueError, match="work"):
        work.did("think", 1)
