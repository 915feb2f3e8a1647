"""Folders of weights: what is written is described, and what is damaged is refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.offload.weight_files import MANIFEST, identity_of, open_blocks, write_blocks

BLOCK = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array([True, False]),
    "c": np.zeros((0, 5), np.float16),
    "d": np.array(7, np.int64),
}


def test_written_blocks_are_found_again_with_their_checksums(tmp_path: Path) -> None:
    write_blocks(tmp_path, [BLOCK, {"a": np.ones(3, ">f8")}])
    first, second = open_blocks(tmp_path)
    assert [each.name for each in first.tensors if each.n_bytes] == ["a", "b", "d"]
    assert first.n_bytes == 48 + 2 + 8
    raw = first.path.read_bytes()
    for each in first.tensors:
        found = np.frombuffer(raw[each.start : each.start + each.n_bytes], each.dtype).reshape(each.shape)
        assert np.array_equal(found, BLOCK[each.name])
        assert each.crc32 >= 0
    (tensor,) = second.tensors
    found = np.frombuffer(second.path.read_bytes()[tensor.start :], tensor.dtype)
    assert found.dtype.byteorder in "=<"
    assert found.tolist() == [1, 1, 1]
    assert not list(tmp_path.glob("*.partial"))


def test_files_of_numpy_are_blocks_of_one_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
    (block,) = open_blocks(tmp_path)
    (tensor,) = block.tensors
    assert (tensor.shape, tensor.dtype, tensor.n_bytes, tensor.crc32) == ((2, 3), np.dtype(np.int32), 24, -1)
    for odd in (np.array([{}]), np.asfortranarray(np.ones((2, 3)))):
        np.save(tmp_path / "0.npy", odd, allow_pickle=True)
        with pytest.raises(BadFileError, match="row by row"):
            open_blocks(tmp_path)


def stored(header: Any, body: bytes = b"12345678", length: int | None = None) -> bytes:
    """Return the bytes of a safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(**changed: Any) -> dict[str, Any]:
    """Return a header with one tensor of eight bytes."""
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changed}


def test_bits_that_numpy_has_no_type_for_are_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(stored({"__metadata__": {"x": "y"}, **entry(dtype="BF16", shape=[4])}))
    (tensor,) = open_blocks(tmp_path)[0].tensors
    assert tensor.dtype == np.uint16


@pytest.mark.parametrize(
    "content",
    [
        b"", b"123", stored(b"{"), stored(b"[]"), stored({}, length=10**7), stored({}, length=2**63),
        stored({"t": 3}), stored(entry(dtype="F31")), stored(entry(shape=[3])), stored(entry(shape=[-2])),
        stored(entry(shape="2")), stored(entry(data_offsets=[8, 0])), stored(entry(data_offsets=[-8, 0])),
        stored(entry(data_offsets=[0])), stored(entry(data_offsets=[4, 12])), stored(entry(), body=b"1234567"),
        stored(b"[" * 100_000), b"\xff" * 64,
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(BadFileError) as found:
        open_blocks(tmp_path)
    assert found.value.where == str(tmp_path / "a.safetensors")


def test_folders_without_weights_and_damaged_checksums_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="no weights"):
        open_blocks(tmp_path)
    with pytest.raises(BadFileError, match="cannot be read"):
        open_blocks(tmp_path / "none")
    write_blocks(tmp_path, [BLOCK])
    whole = (tmp_path / MANIFEST).read_text()
    for text in ("", "[]", "{}", '{"crc32": 3}', '{"crc32": {"0000.safetensors": 3}}', "[" * 100_000):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(BadFileError, match="checksums"):
            open_blocks(tmp_path)
    (tmp_path / MANIFEST).write_text(whole.replace("0000", "0001"))
    with pytest.raises(BadFileError, match="same blocks"):
        open_blocks(tmp_path)
    (tmp_path / MANIFEST).write_text(whole.replace('"a"', '"z"'))
    with pytest.raises(BadFileError, match="other tensors"):
        open_blocks(tmp_path)


def test_a_file_that_is_another_one_is_noticed(tmp_path: Path) -> None:
    write_blocks(tmp_path, [BLOCK])
    (block,) = open_blocks(tmp_path)
    descriptor = os.open(block.path, os.O_RDONLY)
    try:
        block.check(descriptor)
        assert identity_of(os.fstat(descriptor)) == block.identity
        write_blocks(tmp_path, [BLOCK])
        with pytest.raises(BadFileError, match="changed"):
            block.check(descriptor)
        block.path.unlink()
        with pytest.raises(BadFileError, match="changed"):
            block.check(descriptor)
    finally:
        os.close(descriptor)


def test_only_numbers_are_written(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="no blocks"):
        write_blocks(tmp_path, [])
    with pytest.raises(BadValueError, match="numbers"):
        write_blocks(tmp_path, [{"a": np.array(["x"])}])
