"""What a node saves survives."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.protocols.live.durable import DurableState
from wavetank.protocols.live.values import ValueCodec

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


def test_a_file_without_a_whole_header_is_new(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"wave")
    state = opened(path)
    assert (state.load("value"), state.torn_bytes) == (None, 4)
    state.close()


def test_damage_before_the_end_is_told_with_its_place(tmp_path: Path) -> None:
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
        (struct.pack(">8sHI", b"wavetank", 1, 4), "another node"),
    ],
)
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, header: bytes, says: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(header)
    with pytest.raises(BadFileError, match=says):
        opened(path)


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
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
    assert not path.with_suffix(".new").exists()
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
        "from wavetank.protocols.live.durable import DurableState\n"
        "from wavetank.protocols.live.values import ValueCodec\n"
        "state = DurableState(pathlib.Path(sys.argv[1]), 3, ValueCodec())\n"
        "for number in itertools.count():\n"
        "    state.save('value', (number, 'x' * (number % 5000)))\n"
        "    state.synchronise()\n"
        "    print(number, flush=True)\n"
    )
    path = tmp_path / "state"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    told = -1
    for line in process.stdout:
        told = int(line)
        if told >= 200:
            process.kill()
            break
    rest = process.stdout.read().split()
    process.wait()
    told = int(rest[-1]) if rest else told
    state = opened(path)
    number, text = state.load("value")
    assert told <= number <= told + 1
    assert text == "x" * (number % 5000)
    state.close()
