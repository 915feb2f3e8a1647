"""Histories: on disk and back, and everything that cannot be one."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wavetank.check.consistency.files import read_history, write_history
from wavetank.check.consistency.values import misfit
from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.sim.history import History, Operation

HEADER = '{"format":"wavetank-history","version":1}'
WRITE = '{"process":"1","action":"write","value":3,"invoked":0.1,"returned":0.2}'

values = st.none() | st.integers(-9, 9) | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)


@st.composite
def histories(draw):
    times = sorted(draw(st.lists(st.floats(0, 1e6), min_size=0, max_size=8, unique=True)))
    operations = tuple(
        Operation(
            process=f"p{number}", action=draw(st.sampled_from(["read", "write", "append"])),
            key=draw(st.text(max_size=3)), value=draw(values), result=draw(values), invoked=time,
            returned=draw(st.none() | st.just(time + 1)),
        )
        for number, time in enumerate(times)
    )  # fmt: skip
    return History(operations=operations, store=draw(st.sampled_from(["", "kv"])), initial=draw(values))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "h.jsonl"


def refused(path, text):
    path.write_text(text)
    with pytest.raises(BadFileError) as caught:
        read_history(path)
    return caught.value


@given(history=histories())
def test_a_history_survives_the_disk(tmp_path_factory, history):
    # What its own store cannot hold is refused by line instead.
    assume(misfit(history) is None)
    for name in ("h.jsonl", "h.jsonl.gz"):
        path = tmp_path_factory.mktemp("h") / name
        write_history(path, history)
        assert read_history(path) == history


def test_one_line_an_operation_after_a_header_with_a_version(path):
    first = Operation(process="1", action="write", key="x", value=1, invoked=0.0, returned=1.0)
    open_one = Operation(process="2", action="read", key="x", invoked=0.5)
    write_history(path, History(operations=(first, open_one)))
    lines = path.read_text().splitlines()
    assert json.loads(lines[0]) == {"format": "wavetank-history", "version": 1}
    assert len(lines) == 3
    assert "returned" not in json.loads(lines[2])


def test_compression_is_told_by_content(tmp_path):
    path = tmp_path / "odd-name.jsonl"
    path.write_bytes(gzip.compress(f"{HEADER}\n{WRITE}\n".encode()))
    assert len(read_history(path)) == 1


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('{"process":"1","action":"write","invoked":"soon"}', 33),
        ('{"process":"1","action":"write","value":}', 41),
        ('{"process":1,"action":"write","invoked":0}', 2),
        ("[1, 2]", 1),
        ('{"process":"1","action":"write","invoked":0,"colour":1}', 1),
    ],
)
def test_a_bad_line_is_named_with_line_and_column(path, line, column):
    error = refused(path, f"{HEADER}\n{WRITE}\n{line}\n")
    assert error.where == f"{path}, line 3, column {column}"
    assert error.hint


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        ('{"process":"1","action":"read","invoked":3,"returned":2}', "returned before"),
        ('{"process":"2","action":"read","invoked":0.0}', "order of their invocation"),
        ('{"process":"1","action":"read","invoked":0.15}', "while another was under way"),
    ],
)
def test_impossible_times_are_refused_where_they_stand(path, operation, says):
    error = refused(path, f"{HEADER}\n{WRITE}\n\n{operation}\n")
    assert says in error.problem
    assert "line 4" in error.where


def test_a_process_may_go_on_after_an_operation_that_never_came_back(path):
    path.write_text(f'{HEADER}\n{{"process":"1","action":"write","invoked":0}}\n{WRITE}\n')
    assert len(read_history(path)) == 2


def test_another_format_or_version_is_refused(path):
    assert "not a history" in refused(path, '{"format":"other","version":1}').problem
    assert refused(path, '{"format":"wavetank-history","version":9}').allowed == "1"


def test_nothing_and_noise_are_refused(path):
    assert "empty" in refused(path, " \n").problem
    assert "no format" in refused(path, "hello\n").problem
    path.write_bytes(b'{"format":\xff')
    with pytest.raises(BadFileError, match="UTF-8"):
        read_history(path)
    path.write_bytes(gzip.compress(b"x")[:-4])
    with pytest.raises(BadFileError, match="cannot be read"):
        read_history(path)
    with pytest.raises(BadFileError, match="cannot be read"):
        read_history(path.with_name("absent"))


def test_deep_nesting_is_refused_without_a_crash(path):
    error = refused(path, f'{HEADER}\n{{"process":"1","action":"w","invoked":0,"value":{"[" * 100_000}\n')
    assert "line 2" in error.where


def test_a_file_beyond_the_limit_is_refused(path, monkeypatch):
    monkeypatch.setattr("wavetank.check.consistency.files.LARGEST_BYTES", 10)
    assert "too large" in refused(path, f"{HEADER}\n").problem


def test_messages_join_operations_forwards(path):
    operations = (
        Operation(process="1", action="write", value=1, invoked=0.0, returned=1.0),
        Operation(process="2", action="read", result=1, invoked=2.0, returned=3.0),
    )
    kept = History(operations=operations, messages=((0, 1),))
    write_history(path, kept)
    assert read_history(path) == kept
    with pytest.raises(BadValueError, match="before it was sent"):
        History(operations=operations, messages=((1, 0),))
    with pytest.raises(BadValueError, match="not there"):
        History(operations=operations, messages=((0, 7),))


def test_a_value_without_a_json_form_is_not_written(path):
    history = History(operations=(Operation(process="1", action="write", value=object(), invoked=0.0),))
    with pytest.raises(BadFileError, match="no JSON form"):
        write_history(path, history)
    assert not path.exists()


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz"])
def test_operations_are_written_one_by_one_and_a_failure_leaves_the_file_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    under_way = []

    def coming(last: object) -> Iterator[Operation]:
        for number in range(5):
            # What is there before all is written is another file.
            under_way.append(path.exists())
            yield Operation(process="p", action="write", key="k", value=number, invoked=number, returned=number + 0.5)
        yield Operation(process="p", action="write", key="k", value=last, invoked=9.0, returned=9.5)

    write_history(path, History(operations=()), coming(5))
    assert not any(under_way)
    assert [operation.value for operation in read_history(path).operations] == [0, 1, 2, 3, 4, 5]
    before = path.read_bytes()
    with pytest.raises(BadFileError, match="no JSON form"):
        write_history(path, History(operations=()), coming(object()))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


_BAD = {
    "a swap of no pair": {"action": "cas", "value": 3},
    "no number": {"value": float("nan")},
    "infinite": {"result": float("inf"), "action": "read"},
    "a set": {"value": {1, 2}},
    "bytes": {"value": b"x"},
    "a map of numbers": {"value": [{1: 2}]},
    "half a character": {"value": "\ud800"},
    "deep": {"value": functools.reduce(lambda inner, _: [inner], range(100_000), 1)},
    "a number for a process": {"process": 3},
    "no key": {"key": None},
    "a torn transaction": {"action": "transaction", "value": [["read", "x"]]},
    "a count of text": {"action": "increment", "value": "x"},
    "a long line": {"value": "x" * 2**24},
    "times that are no floats": {"invoked": 2**60, "returned": 2**60 + 1},
}


@pytest.mark.parametrize("odd", _BAD.values(), ids=_BAD)
def test_what_could_not_be_read_again_is_not_written(path, odd):
    facts = {"process": "a", "action": "write", "invoked": 0.0, "returned": 1.0} | odd
    path.write_text("what was there")
    with pytest.raises(WavetankError):
        write_history(path, History(operations=(
            Operation(**facts),
        )))  # fmt: skip
    assert path.read_text() == "what was there"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("facts", [{"store": "nope"}, {"initial": {1}}, {"initial": float("nan")}, {"clock": "days"}])
def test_a_header_that_could_not_be_read_again_is_not_written(path, facts):
    operation = Operation(process="a", action="write", value=1, invoked=0.0, returned=1.0)
    with pytest.raises(WavetankError):
        write_history(path, History(operations=(operation,), **facts))
    assert not path.exists()


def test_a_history_larger_than_what_is_read_is_not_written(path, monkeypatch):
    monkeypatch.setattr("wavetank.check.consistency.files.LARGEST_BYTES", 100)
    with pytest.raises(BadFileError, match="too large"):
        write_history(
            path,
            History(operations=(Operation(process="a", action="write", value="x" * 100, invoked=0.0, returned=1.0),)),
        )
    assert not path.exists()


def test_a_full_disk_leaves_the_earlier_file(path, monkeypatch):
    path.write_text("what was there")

    def full(file, lines, *, packed):
        file.write_bytes(b"".join(lines)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wavetank.check.consistency.files._write_lines", full)
    with pytest.raises(BadFileError, match="No space left"):
        write_history(
            path, History(operations=(Operation(process="a", action="write", value=1, invoked=0.0, returned=1.0),))
        )
    assert path.read_text() == "what was there" and list(path.parent.iterdir()) == [path]
