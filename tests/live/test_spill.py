"""What a run keeps of its requests and decisions is the same on disk as in memory, and memory does not grow with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError
from wavetank.live.spill import Spilled, SpilledList, SpillFile
from wavetank.live.values import ValueCodec

KEYS = [0, 1, "1", b"1", (0, 1), (0, ("a", None)), True, 1.5, frozenset({1, 2}), (0, frozenset({3}))]


def file_in(folder: Path) -> SpillFile:
    return SpillFile(lambda: folder, ValueCodec())


@pytest.mark.parametrize("seed", range(8))
def test_a_spilled_mapping_is_a_mapping(tmp_path: Path, seed: int) -> None:
    draws = random.Random(seed)
    spilled: Spilled[Any, Any] = Spilled(file_in(tmp_path), "any", recent=4)
    plain: dict[Any, Any] = {}
    for step in range(300):
        key = draws.choice(KEYS) if draws.random() < 0.3 else (draws.randrange(3), draws.randrange(60))
        value = draws.choice([step, (step, [None]), {"a": step}, object() if draws.random() < 0.1 else "text"])
        act = draws.randrange(5)
        if act == 0:
            assert spilled.get(key) == plain.get(key)
            assert (key in spilled) == (key in plain)
        elif act == 1 and key in plain:
            del plain[key], spilled[key]
        elif act == 2:
            assert spilled.setdefault(key, value) == plain.setdefault(key, value)
        elif not (key in plain and type(value) is object):
            spilled[key] = plain[key] = value
        assert len(spilled) == len(plain)
    assert spilled == plain
    assert dict(spilled.items()) == plain
    assert set(spilled) == set(plain)


def test_the_order_is_that_of_insertion(tmp_path: Path) -> None:
    spilled: Spilled[int, int] = Spilled(file_in(tmp_path), "any", recent=4)
    numbers = list(range(5000))
    random.Random(1).shuffle(numbers)
    for place, number in enumerate(numbers):
        spilled[number] = place
    assert list(spilled) == numbers
    assert list(spilled.values()) == list(range(5000))
    assert spilled.in_memory <= 8


def test_a_list_grows_at_its_end(tmp_path: Path) -> None:
    spilled: SpilledList[Any] = SpilledList(file_in(tmp_path), "any", recent=4)
    strange = object()
    spilled.extend([1, strange, *range(50)])
    assert (len(spilled), spilled[0], spilled[1], spilled[-1]) == (52, 1, strange, 49)
    assert spilled[2:5] == [0, 1, 2]
    assert list(spilled) == [1, strange, *range(50)]
    with pytest.raises(IndexError):
        spilled[52]


def test_nothing_is_left_in_the_folder_even_while_it_is_used(tmp_path: Path) -> None:
    spilled: Spilled[int, int] = Spilled(file_in(tmp_path), "any", recent=1)
    for number in range(10):
        spilled[number] = number
    assert list(tmp_path.iterdir()) == []
    tmp_path.rmdir()
    for number in range(10, 1000):
        spilled[number] = number
    assert dict(spilled.items()) == {number: number for number in range(1000)}


def test_two_mappings_of_a_file_know_nothing_of_each_other(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    one: Spilled[int, int] = Spilled(file, "one", recent=1)
    other: Spilled[int, int] = Spilled(file, "other [odd] name", recent=1)
    for number in range(9):
        one[number], other[number] = number, -number
    assert (one[0], other[3]) == (0, -3)


def test_a_folder_that_takes_no_file_is_reported(tmp_path: Path) -> None:
    spilled: Spilled[int, int] = Spilled(file_in(tmp_path / "none"), "any", recent=1)
    with pytest.raises(BadFileError, match="written or read"):
        for number in range(9):
            spilled[number] = number
