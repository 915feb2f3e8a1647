from __future__ import annotations

import gzip
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wavetank.errors import BadFileError
from wavetank.files import read_bytes, read_text, unpacked, write_atomic


def test_what_no_file_can_take_the_place_of_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_atomic(pipe, "text")
        assert read.result(10) == "text"
    assert pipe.is_fifo()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_byte_that_is_no_text_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_bytes("skel\n\u00e4b".encode() + b"\xff")
    with pytest.raises(BadFileError, match="not UTF-8 text") as caught:
        read_text(path, largest_bytes=1000)
    assert caught.value.where == f"{path}, line 2, column 3"


def test_no_more_of_a_file_is_read_than_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadFileError, match="too large"):
        read_text(path, largest_bytes=1000)


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_small_file_is_read_whole_wherever_its_bytes_come_from(tmp_path: Path, size: int) -> None:
    path, pipe = tmp_path / "a", tmp_path / "pipe"
    path.write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to(path)
    assert read_bytes(path, largest_bytes=1000) == read_bytes(tmp_path / "link", largest_bytes=1000) == b"x" * size
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * size,))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer.start()
    writer.join()
    assert read_bytes(pipe, largest_bytes=1000) == b"x" * size
    os.close(reader)


def test_nothing_holds_the_reading_of_a_small_file_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Without a writer it is empty, as it is to cat when the last one has gone.
    assert read_bytes(pipe, largest_bytes=10) == b""
    writer = os.open(pipe, os.O_RDWR)
    with pytest.raises(BadFileError, match="The key cannot be read") as caught:
        read_bytes(pipe, largest_bytes=10, what="The key", wait_s=0.01)
    assert "nothing comes" in str(caught.value)
    os.close(writer)
    with pytest.raises(BadFileError, match="too large"):
        read_bytes(Path("/dev/zero"), largest_bytes=10_000)
    for path in (tmp_path, tmp_path / "none", Path("a\0b")):
        with pytest.raises(BadFileError, match="cannot be read"):
            read_bytes(path, largest_bytes=10)


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfskel\n")
    assert read_text(tmp_path / "a.txt", largest_bytes=9) == "skel\n"


def test_files_are_read_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("skel\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"skel\n"))
    for name in ("a.txt", "a.txt.gz"):
        assert read_text(tmp_path / name, largest_bytes=99) == "skel\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (gzip.compress(random.Random(0).randbytes(500), mtime=0)[:400], "cannot be read"),
        (b"\x1f\x8b\x08garbage", "cannot be read"),
        (b"ok\n\xff\xfe", "not UTF-8 text"),
        (gzip.compress(bytes(5000), mtime=0), "too large"),
    ],
    ids=["missing", "cut", "garbage", "binary", "bomb"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "model.txt.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadFileError, match=says) as caught:
        read_text(path, largest_bytes=1000)
    assert str(path) in str(caught.value.where)


def test_what_unpacks_to_more_than_is_allowed_is_refused_and_so_is_what_is_damaged():
    packed = gzip.compress(bytes(10_000))
    assert unpacked(packed, largest_bytes=10_000) == bytes(10_000)
    with pytest.raises(ValueError, match="more than 9999"):
        unpacked(packed, largest_bytes=9_999)
    with pytest.raises(EOFError):
        unpacked(packed[:-4], largest_bytes=10_000)
    with pytest.raises(OSError, match="gzip"):
        unpacked(b"plain", largest_bytes=10)
