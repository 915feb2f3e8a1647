"""What clients asked and what they were answered, over all runs of a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError
from wavetank.live.journal import Journal, Lanes, as_operation, operations_of


def test_requests_and_times_go_on_over_runs(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    first = Journal(path)
    assert (first.next_number, first.base_s) == (0, 0.0)
    first.asked(0, 0.5, "a", ("write", "x", 1))
    first.asked(1, 0.6, "b", ("read", "x"))
    first.answered(0, 0.7, True)
    first.close()
    second = Journal(path)
    assert second.next_number == 2
    assert second.base_s > 0.7
    second.asked(2, 0.1, "b", ("read", "x"))
    second.answered(2, 0.2, 1)
    second.close()
    one, never, other = tuple(operations_of(path))
    assert (one.process, one.action, one.key, one.value, one.returned) == ("a", "write", "x", 1, 0.7)
    # What was never answered may still take effect, so its client asks under another name from then on.
    assert (never.process, never.returned) == ("b", None)
    assert (other.process, other.result) == ("b/1", 1)
    assert one.returned < other.invoked < other.returned


def test_half_a_line_of_a_killed_launcher_is_cut_away(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    journal = Journal(path)
    for number in range(5):
        journal.asked(number, float(number), "a", ("read", "x"))
        journal.answered(number, number + 0.5, number)
    journal.close()
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == 10]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        journal = Journal(path)
        whole = sum(end <= size for end in ends)
        assert journal.next_number == (whole + 1) // 2
        assert len(path.read_bytes()) == ([0, *ends][whole])
        journal.close()
        assert len(list(operations_of(path))) == (whole + 1) // 2


def test_damage_in_the_middle_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    journal = Journal(path)
    journal.asked(0, 0.0, "a", ("read", "x"))
    journal.asked(1, 0.0, "a", ("read", "x"))
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"[" * 1000 + b"\n" + lines[1])
    with pytest.raises(BadFileError, match="damaged") as caught:
        Journal(path)
    assert caught.value.where == f"{path}, byte {len(lines[0])}"


def test_an_event_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    journal = Journal(path)
    journal.asked(0, 0.0, "a", ("read", "x"))
    assert len(list(operations_of(path))) == 1
    journal.close()


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot be opened"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("command", "operation"),
    [
        (("read", "x"), ("read", "x", None)),
        (("cas", "x", (1, 2)), ("cas", "x", (1, 2))),
        (17, ("command", "", 17)),
        (("enqueue", 4, 5), ("enqueue", "", [4, 5])),
    ],
)
def test_a_command_becomes_an_operation(command: Any, operation: tuple[str, str, Any]) -> None:
    assert as_operation(command) == operation


def test_a_full_disk_leaves_a_journal_that_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    """A file system that is nearly full takes a part of a line; a limit on files does the same."""
    script = """
import resource, signal, sys
from pathlib import Path
from wavetank.errors import BadFileError
from wavetank.live.journal import Journal
journal = Journal(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
for number in range(100):
    try:
        journal.asked(number, 1.0, "me", ("write", "key", "x" * 20))
    except BadFileError:
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.asked(number + 1, 2.0, "me", ("write", "key", "later"))
print(number)
"""
    path = tmp_path / "requests.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    whole = int(done.stdout)
    assert 0 < whole < 10
    assert [operation.value for operation in tuple(operations_of(path))] == ["x" * 20] * whole + ["later"]
    again = Journal(path)
    assert again.next_number == whole + 2
    again.close()


@pytest.mark.parametrize("value", ["\ud800", {(1, 2): "\ud800"}, ["\udfff"]])
def test_what_json_has_not_is_written_as_python_writes_it(tmp_path: Path, value: Any) -> None:
    journal = Journal(tmp_path / "requests.jsonl")
    journal.asked(0, 0.0, "\ud800", ("write\ud800", "\ud800", value))
    journal.answered(0, 1.0, value)
    journal.close()
    [operation] = operations_of(journal.path)
    assert (operation.process, operation.action, operation.key) == ("\\ud800", "write\\ud800", "\\ud800")
    assert operation.value == operation.result == ascii(value)


def test_clients_that_are_never_answered_do_not_slow_the_others_down() -> None:
    """Each takes a name of its own; looking through all of them for each request would take hours."""
    lanes = Lanes()
    names = [lanes.name("me", float(number), None) for number in range(50_000)]
    assert names[:2] == ["me", "me/1"]
    assert names[-1] == "me/49999"
    assert [lanes.name("me", 1e6, 1e6 + 1), lanes.name("me", 1e6 + 2, 1e6 + 3)] == ["me/50000"] * 2
    assert not any(len(each) > 1 for each in lanes._open.values())
