"""What a node saves survives."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.live import durable
from wavetank.live.credentials import signing_key
from wavetank.live.durable import DurableState
from wavetank.live.values import ValueCodec

CODEC = ValueCodec()


def opened(path: Path, node: int = 3) -> DurableState:
    return DurableState(path, node, CODEC)


def written(path: Path, *values: object) -> list[int]:
    """Save values one by one; return the size of the file after each."""
    state, sizes = opened(path), []
    for value in values:
        state.save("value", value)
        state.synchronise()
        sizes.append(path.stat().st_size)
    state.close()
    return sizes


def test_what_was_synchronised_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.state"
    state = opened(path)
    assert state.save("term", 4)
    assert not state.save("log", ("a", (1, 2)))
    state.synchronise()
    state.save("term", 5)
    state.close()
    again = opened(path)
    assert again.load("term") == 4
    assert again.load("log") == ("a", (1, 2))
    assert again.load("nothing", "default") == "default"
    again.close()


def test_many_saves_are_one_write(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    for number in range(100):
        state.save("value", number)
    state.synchronise()
    state.synchronise()
    assert state.synchronised == 1
    state.close()


# Each example waits for the disk a dozen times.
@settings(max_examples=25)
@given(st.integers(0, 200), st.binary(max_size=20))
def test_a_torn_end_is_cut_off_and_nothing_before_it(cut: int, garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        sizes = written(path, *range(5))
        size = max(sizes[0], sizes[-1] - cut)
        os.truncate(path, size)
        state = opened(path)
        whole = sum(each <= size for each in sizes)
        assert state.load("value") == whole - 1
        assert state.torn_bytes == size - sizes[whole - 1]
        # It goes on from there, over whatever a crash in the middle of a write leaves.
        state.close()
        with path.open("ab") as file:
            file.write(garbage[:7])
        state = opened(path)
        state.save("value", "next")
        state.synchronise()
        state.close()
        state = opened(path)
        assert state.load("value") == "next"
        state.close()


def outcome(path: Path, data: bytes) -> tuple[object, int] | str:
    """What a node finds in a file of these bytes: its value and what was cut, or where the file is damaged."""
    path.with_name(f"{path.name}.torn").unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        state = opened(path)
    except BadFileError as error:
        assert path.read_bytes() == data, "what is damaged stays as it is"
        return error.where or ""
    state.close()
    assert path.read_bytes() == data[: len(data) - state.torn_bytes]
    # What was cut away is still there.
    torn = state.torn_path.read_bytes() if state.torn_path.exists() else b""
    assert torn == data[len(data) - state.torn_bytes :]
    return state.load("value"), state.torn_bytes


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files are written that no power cut has to survive."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(durable, "_synchronise", lambda file: None)


def test_every_truncation_restores_exactly_what_was_synchronised(tmp_path: Path, no_disk: None) -> None:
    path = tmp_path / "state"
    sizes = written(path, *range(20))
    data = path.read_bytes()
    header = sizes[0] - (sizes[1] - sizes[0])
    for size in range(len(data)):
        found = outcome(path, data[:size])
        if size < header:
            # A name only ever leads to a file with a whole header: no crash leaves this.
            assert isinstance(found, str), size
        else:
            whole = sum(each <= size for each in sizes)
            assert found == (whole - 1 if whole else None, size - ([header, *sizes][whole])), size


def test_no_flipped_bit_sets_a_node_back_without_a_word(tmp_path: Path, no_disk: None) -> None:
    path = tmp_path / "state"
    sizes = written(path, *range(20))
    data = path.read_bytes()
    raised = 0
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            found = outcome(path, bytes(flipped))
            if isinstance(found, str):
                raised += 1
                record = sum(each <= place for each in sizes)
                if place >= sizes[0]:
                    assert found == f"{path}, byte {sizes[record - 1]}"
            else:
                # Restored: exactly what came before the flipped record, and the rest is reported and kept.
                value, cut = found
                assert cut > 0
                assert place >= sizes[18]
                assert value == 18
    assert raised >= 8 * sizes[18]


@pytest.mark.parametrize("sector", [512, 4096])
def test_no_page_of_zeros_sets_a_node_back_without_a_word(tmp_path: Path, no_disk: None, sector: int) -> None:
    path = tmp_path / "state"
    sizes = written(path, *((number, "x" * 900) for number in range(20)))
    data = path.read_bytes()
    for start in range(0, len(data), sector):
        end = min(start + sector, len(data))
        found = outcome(path, data[:start] + bytes(end - start) + data[end:])
        if not isinstance(found, str):
            (number, _), cut = found
            # Nothing whole follows: what remains is exactly a synchronised prefix, and the loss is counted and kept.
            assert end == len(data)
            assert len(data) - cut == sizes[number]
    assert isinstance(outcome(path, data[: sizes[4]] + bytes(sizes[9] - sizes[4]) + data[sizes[9] :]), str)


def test_records_out_of_their_order_are_damage(tmp_path: Path, no_disk: None) -> None:
    path = tmp_path / "state"
    sizes = written(path, *range(6))
    data = path.read_bytes()
    records = [data[start:end] for start, end in pairwise(sizes)]
    for other in (
        [records[1], records[0], *records[2:]],
        [records[0], *records],
        records[1:],
        [*records, records[2]],
    ):
        assert isinstance(outcome(path, data[: sizes[0]] + b"".join(other)), str)
    # A record of another file of the same node is none of this one.
    stranger = tmp_path / "other"
    written(stranger, *range(6))
    theirs = stranger.read_bytes()[sizes[1] : sizes[2]]
    assert isinstance(outcome(path, data[: sizes[1]] + theirs + data[sizes[2] :]), str)


def test_a_short_file_of_somebody_else_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for content in (b"wave", b"", b"hello"):
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            opened(path)
        assert path.read_bytes() == content


def test_a_file_in_use_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    with pytest.raises(BadFileError, match="in use by") as caught:
        opened(tmp_path / "state")
    assert str(os.getpid()) in str(caught.value)
    # Also when it was replaced by a smaller one meanwhile.
    for number in range(200):
        state.save("value", bytes([number]) * 10_000)
        state.synchronise()
    with pytest.raises(BadFileError, match="in use by"):
        opened(tmp_path / "state")
    state.close()
    opened(tmp_path / "state").close()


def test_files_of_one_node_are_replaced_under_names_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "node-1.new").write_text("mine")
    state = opened(tmp_path / "node-1.state")
    for number in range(200):
        state.save("value", bytes([number]) * 10_000)
        state.synchronise()
    state.close()
    signing_key(tmp_path / "node-1.key")
    assert (tmp_path / "node-1.new").read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["node-1.key", "node-1.new", "node-1.state"]


def test_damage_before_the_end_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "state"
    sizes = written(path, "first", "second", "third")
    data = bytearray(path.read_bytes())
    data[sizes[1] - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadFileError, match="damaged") as caught:
        opened(path)
    assert caught.value.where == f"{path}, byte {sizes[0]}"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (struct.pack(">8sHI", b"somebody", 1, 3), "no file of a node"),
        (struct.pack(">8sHI", b"wavetank", 9, 3), "version"),
        (struct.pack(">8sHI", b"wavetank", 1, 3), "version"),
        (struct.pack(">8sHI", b"wavetank", 2, 4), "another node"),
    ],
)
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, header: bytes, says: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(header)
    with pytest.raises(BadFileError, match=says):
        opened(path)


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot open"):
        opened(tmp_path)


def test_a_file_that_is_mostly_outdated_shrinks_and_keeps_all_values(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = opened(path)
    state.save("kept", "for ever")
    for number in range(200):
        state.save("value", bytes([number]) * 10_000)
        state.synchronise()
    assert path.stat().st_size < 1_100_000
    state.close()
    again = opened(path)
    assert (again.load("kept"), again.load("value")) == ("for ever", bytes([199]) * 10_000)
    assert list(tmp_path.iterdir()) == [path]
    again.close()


def test_a_value_that_is_not_plain_or_too_large_is_refused(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    with pytest.raises(BadValueError):
        state.save("value", print)
    with pytest.raises(BadValueError, match="too large"):
        state.save("value", bytes(2**27 + 1))
    state.close()


def test_what_was_synchronised_survives_kill_9(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, itertools\n"
        "from wavetank.live.durable import DurableState\n"
        "from wavetank.live.values import ValueCodec\n"
        "state = DurableState(pathlib.Path(sys.argv[1]), 3, ValueCodec())\n"
        "for number in itertools.count():\n"
        "    state.save('value', (number, 'x' * (number % 5000)))\n"
        "    state.synchronise()\n"
        "    print(number, flush=True)\n"
    )
    path = tmp_path / "state"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 200:
            process.kill()
            break
    rest = process.stdout.read().split()
    process.wait()
    last = int(rest[-1]) if rest else last
    state = opened(path)
    number, text = state.load("value")
    assert last <= number <= last + 1
    assert text == "x" * (number % 5000)
    state.close()
