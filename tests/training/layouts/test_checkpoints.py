"""Checkpoints are read by element, and whatever is damaged, missing or strange is refused with its name."""

import hashlib
import json

import numpy as np
import pytest

from wavetank.errors import BadFileError
from wavetank.training.layouts.checkpoints import MANIFEST, Checkpoint, part_name, write_manifest, write_part
from wavetank.training.layouts.interface import Tensor

TENSORS = [Tensor("a", (6,), 2), Tensor("b", (4,))]
A, B = np.arange(6.0), np.array([-1, 2, 3, 4], np.int8)


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "kept"
    parts = written(target, [("weights", 0, 0, A[:4]), ("first", 1, 0, B)], [("weights", 0, 4, A[4:])])
    write_manifest(target, step=7, tensors=TENSORS, parts=parts, optimizer="Sgd")
    return target


def written(target, *pieces):
    """Write a part of each rank, and return sizes and digests by name."""
    found = [write_part(target, rank, each) for rank, each in enumerate(pieces)]
    return {part_name(rank, each[1]): each for rank, each in enumerate(found)}


def only(folder, rank):
    """Return the one file of a rank."""
    (path,) = folder.glob(f"rank-{rank}-*.part")
    return path


def test_any_elements_are_put_together_from_the_files(folder):
    kept = Checkpoint(folder, TENSORS, "Sgd")
    assert kept.step == 7
    for start, end in ((0, 6), (3, 5), (4, 6), (2, 2)):
        out = np.full(end - start, np.nan)
        kept.read("weights", 0, start, out)
        assert np.array_equal(out, A[start:end])
    out = np.zeros(2, np.int8)
    kept.read("first", 1, 1, out)
    assert out.tolist() == [2, 3]


def test_what_is_in_no_file_is_named(folder):
    with pytest.raises(BadFileError, match="lacks 'weights' of tensor 1"):
        Checkpoint(folder, TENSORS, "Sgd").read("weights", 1, 0, np.zeros(2))


@pytest.mark.parametrize("keep", [0, 5, 20, 100, -1])
def test_a_truncated_file_is_refused(folder, keep):
    path = only(folder, 0)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadFileError, match="truncated"):
        Checkpoint(folder, TENSORS, "Sgd")


def test_a_changed_byte_is_refused(folder):
    path = only(folder, 1)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(BadFileError, match="damaged"):
        Checkpoint(folder, TENSORS, "Sgd")


def test_a_missing_file_or_manifest_is_no_checkpoint(folder):
    only(folder, 1).unlink()
    with pytest.raises(BadFileError, match="cannot be read"):
        Checkpoint(folder, TENSORS, "Sgd")
    (folder / MANIFEST).unlink()
    with pytest.raises(BadFileError, match="cannot be read"):
        Checkpoint(folder, TENSORS, "Sgd")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "step": "x"}', '{"format": 1, "step": 1e999}', "[" * 10**5],
    ids=["empty", "open", "list", "null", "lacking", "no step", "endless step", "deep"],
)
def test_a_damaged_manifest_is_refused(folder, text):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(BadFileError, match="damaged"):
        Checkpoint(folder, TENSORS, "Sgd")


def test_another_format_optimiser_or_model_is_refused(folder):
    with pytest.raises(BadFileError, match="another optimiser"):
        Checkpoint(folder, TENSORS, "Muon")
    for other in (TENSORS[:1], [TENSORS[0], Tensor("b", (5,))], [Tensor("a", (6,), 3), TENSORS[1]]):
        with pytest.raises(BadFileError, match="another model"):
            Checkpoint(folder, other, "Sgd")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(BadFileError, match="another format"):
        Checkpoint(folder, TENSORS, "Sgd")


def test_a_manifest_leads_to_no_file_outside_of_its_folder(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"] = {"../../etc/passwd": [10, "00"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadFileError) as caught:
        Checkpoint(folder, TENSORS, "Sgd")
    assert str(folder / "passwd") in str(caught.value)


def test_numbers_of_another_type_are_refused(tmp_path):
    parts = written(tmp_path, [("weights", 0, 0, np.zeros(6, "<U1"))])
    write_manifest(tmp_path, step=0, tensors=TENSORS, parts=parts, optimizer="Sgd")
    with pytest.raises(BadFileError, match="another type"):
        Checkpoint(tmp_path, TENSORS, "Sgd")


def test_a_header_that_makes_no_sense_is_refused_even_with_its_digest(tmp_path):
    data = b"WTSHARD1" + (1000).to_bytes(8, "little") + b"[[1, 2]]"
    for content in (data, b"WTSHARD1", data + b"x" * 992):
        foreign(tmp_path, content)
        with pytest.raises(BadFileError, match="damaged"):
            Checkpoint(tmp_path, TENSORS, "Sgd")


def foreign(folder, content):
    """Write a checkpoint with the right digest of any content."""
    (folder / "odd").write_bytes(content)
    (folder / MANIFEST).unlink(missing_ok=True)
    parts = {"odd": (len(content), hashlib.sha256(content).hexdigest())}
    write_manifest(folder, step=0, tensors=TENSORS, parts=parts, optimizer="Sgd")


@pytest.mark.parametrize(
    "entry",
    [
        ["weights", 0, "0", 6, "<f8", 0], ["weights", 0, 0.0, 6, "<f8", 0], ["weights", 0, -1, 6, "<f8", 0],
        ["weights", 0, 0, -1, "<f8", 0], ["weights", 0, 0, 6, "<f8", -8], ["weights", 0, 0, 1 << 70, "<f8", 0],
        ["weights", 0, 0, 6, "<f8", 1 << 70],
    ],
)  # fmt: skip
def test_an_entry_of_a_foreign_writer_is_refused(tmp_path, entry):
    header = json.dumps([entry]).encode()
    foreign(tmp_path, b"WTSHARD1" + len(header).to_bytes(8, "little") + header + A.tobytes())
    with pytest.raises(BadFileError, match="damaged"):
        Checkpoint(tmp_path, TENSORS, "Sgd")


def test_elements_that_are_there_twice_do_not_stand_for_others(tmp_path):
    parts = written(tmp_path, [("weights", 0, 0, A[:3])], [("weights", 0, 0, A[:3])])
    write_manifest(tmp_path, step=0, tensors=TENSORS, parts=parts, optimizer="Sgd")
    with pytest.raises(BadFileError, match="twice"):
        Checkpoint(tmp_path, TENSORS, "Sgd").read("weights", 0, 0, np.zeros(6))


def test_bytes_are_not_read_as_weights(folder):
    with pytest.raises(BadFileError, match="in another type"):
        Checkpoint(folder, TENSORS, "Sgd").read("first", 1, 0, np.zeros(4))


def test_a_second_writer_neither_damages_nor_replaces_the_checkpoint_of_the_first(tmp_path):
    parts = written(tmp_path, [("weights", 0, 0, A)])
    other = written(tmp_path, [("weights", 0, 0, A + 1)])
    write_manifest(tmp_path, step=3, tensors=TENSORS, parts=parts, optimizer="Sgd")
    with pytest.raises(BadFileError, match="already"):
        write_manifest(tmp_path, step=4, tensors=TENSORS, parts=other, optimizer="Sgd")
    out = np.zeros(6)
    Checkpoint(tmp_path, TENSORS, "Sgd").read("weights", 0, 0, out)
    assert np.array_equal(out, A)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFileError, match="cannot be written"):
        write_part(tmp_path / "file", 0, [])
