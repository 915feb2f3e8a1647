"""Memory without a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.live import shared_pages as module
from wavetank.live.shared_pages import MOST_BYTES, mapped, shared_pages


def test_two_maps_of_one_descriptor_are_the_same_memory_and_outlive_it() -> None:
    pages = shared_pages(10_000)
    # Who is not given it by name does not have it.
    assert not os.get_inheritable(pages)
    first, second = mapped(pages), mapped(pages)
    os.close(pages)
    assert first.size == 10_000
    assert not first.any()
    first[9_999] = 7
    assert second[9_999] == 7


def test_there_is_no_name_and_untouched_pages_take_no_memory() -> None:
    folder = Path("/dev/shm")
    before = sorted(folder.glob("*wavetank*"))
    pages = shared_pages(MOST_BYTES)
    try:
        assert sorted(folder.glob("*wavetank*")) == before
        assert os.fstat(pages).st_blocks == 0
        assert os.fstat(pages).st_nlink == 0
    finally:
        os.close(pages)


def test_without_the_systems_call_a_file_loses_its_name_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    pages = shared_pages(4096)
    assert os.fstat(pages).st_nlink == 0
    mapped(pages)[5] = 9
    assert mapped(pages)[5] == 9
    os.close(pages)


@pytest.mark.parametrize("size", [0, -1, MOST_BYTES + 1, True, 1.5])
def test_sizes_that_there_are_not_are_refused(size: int) -> None:
    with pytest.raises(BadValueError, match="has a size"):
        shared_pages(size)


def test_a_system_that_gives_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(module.os, "ftruncate", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(WavetankError, match="no shared memory"):
        shared_pages(4096)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
