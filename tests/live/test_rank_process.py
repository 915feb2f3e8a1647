"""What a function in a rank is given, tried without a process of its own."""

from __future__ import annotations

import math
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.rank_link import FrameReader
from wavetank.live.rank_process import Rank, function_named


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Rank, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield made(theirs, tmp_path), ours


def made(link: socket.socket, folder: Path, faults: list[dict[str, Any]] | None = None) -> Rank:
    assignment = {
        "rank": 0,
        "size": 1,
        "timeout_s": 5.0,
        "start_timeout_s": 5.0,
        "decision_timeout_s": 0.05,
        "pages": -1,
        "folder": str(folder),
        "faults": faults or [],
        "bytes_per_s": 0.0,
    }
    return Rank(link, assignment)


def test_what_a_rank_reports_reaches_its_launcher(pair: tuple[Rank, socket.socket]) -> None:
    rank, ours = pair
    rank.report([1, "two"])
    assert FrameReader().feed(ours.recv(1000)) == [["reported", [1, "two"]]]


def test_a_launcher_that_does_not_decide_is_not_waited_for_for_ever(pair: tuple[Rank, socket.socket]) -> None:
    rank, _ = pair
    with pytest.raises(WavetankError, match="does not say") as caught:
        rank.agree(True)
    assert "no answer within 0.05 s" in str(caught.value)


def test_a_command_that_does_not_come_is_none(pair: tuple[Rank, socket.socket]) -> None:
    rank, _ = pair
    assert rank.command() is None
    assert rank.command(0.01) is None


def test_a_planned_fault_strikes_once_and_only_where_its_coordinates_hold(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fault = {"point": "bucket", "at": {"step": 2, "bucket": 1}, "kind": "raise", "seconds": 0.0}
        rank = made(theirs, tmp_path, [fault])
        rank.point("bucket", step=2, bucket=0)
        rank.point("other", step=2, bucket=1)
        rank.point("bucket", step=2)
        with pytest.raises(RuntimeError, match="planned fault at bucket"):
            rank.point("bucket", step=2, bucket=1, more=7)
        rank.point("bucket", step=2, bucket=1)


def test_a_fault_can_be_planned_later(pair: tuple[Rank, socket.socket]) -> None:
    rank, _ = pair
    rank.point("step")
    rank.expect("step", "raise")
    with pytest.raises(RuntimeError):
        rank.point("step")
    rank.point("step")


def test_a_planned_sleep_lasts(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rank = made(theirs, tmp_path, [{"point": "x", "at": {}, "kind": "sleep", "seconds": 0.05}])
        begin = time.monotonic()
        rank.point("x")
        assert time.monotonic() - begin >= 0.05


def test_a_sum_over_one_rank_needs_no_group(pair: tuple[Rank, socket.socket]) -> None:
    rank, _ = pair
    rank.all_reduce(object())
    assert rank._group is None


def test_a_function_is_found_by_its_module_or_in_its_file(tmp_path: Path) -> None:
    assert function_named("math", "", "sqrt") is math.sqrt
    file = tmp_path / "mine.py"
    file.write_text("def work(rank):\n    return 7\n")
    for module in ("__main__", "no.such.module"):
        assert function_named(module, str(file), "work")(None) == 7


@pytest.mark.parametrize(
    ("module", "file", "name", "problem"),
    [
        ("math", "", "square_root", "no such function"),
        ("math", "", "pi", "no such function"),
        ("no.such.module", "", "work", "cannot import"),
        ("no.such.module", "/no/such/file.py", "work", "cannot import"),
    ],
)
def test_a_function_that_is_not_there_is_named(module: str, file: str, name: str, problem: str) -> None:
    with pytest.raises(BadValueError, match=problem):
        function_named(module, file, name)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_throttling_leaves_no_copy_of_a_file_open(pair: tuple[Rank, socket.socket]) -> None:
    rank, _ = pair

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for limit in (1e6, 2e6, 0.0):
        rank.throttle(limit)
    assert open_files() == before
