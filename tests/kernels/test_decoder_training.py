"""Weights that are trained, made again alike, and kept."""

import dataclasses
import io
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels import decoder_training
from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, forward
from wavetank.kernels.decoder_training import library_text, loss_of, tokens_of, train, trained

torch = pytest.importorskip("torch")

TINY = DecoderConfig(
    layers=2, width=16, heads=2, head_width=4, attention="mla", latent=8, rotary=4, hidden=16,
    experts=4, expert_hidden=8
)  # fmt: skip
SHORT = {"length": 32, "batch": 4, "threads": 1}


def equal(one, other):
    return all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_training_lowers_the_loss_and_leaves_what_it_was_given():
    before, text = DecoderWeights.made(TINY, 0), b"for each in range(10): yield each\n" * 40
    held = {name: each.clone() for name, each in before.tensors.items()}
    after = train(before, text, 60, 0, **SHORT)
    tokens = tokens_of(text[:100])
    assert loss_of(before, tokens) > 4.0
    assert loss_of(after, tokens) < 2.5
    assert all(torch.equal(before.tensors[name], each) for name, each in held.items())
    assert not any(each.requires_grad for each in after.tensors.values())


def test_no_expert_is_left_without_tokens():
    after = train(DecoderWeights.made(TINY, 0), library_text(20_000), 60, 0, **SHORT)
    routing = forward(after, tokens_of(library_text(20_000)[:400]), np.arange(400)).routing[1]
    assert torch.bincount(routing.experts.flatten(), minlength=4).min() > 20


def test_equal_seeds_give_equal_weights_whatever_the_threads():
    before, text, threads = DecoderWeights.made(TINY, 0), library_text(5_000), torch.get_num_threads()
    one = train(before, text, 4, 7, **{**SHORT, "threads": 2})
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    try:
        assert equal(one, train(before, text, 4, 7, **{**SHORT, "threads": 2}))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert not equal(one, train(before, text, 4, 8, **SHORT))


def test_kept_weights_are_found_again_and_damaged_ones_made_again(tmp_path, monkeypatch):
    made = trained(TINY, steps=1, size=5_000, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(decoder_training, "train", None)
        assert equal(made, trained(TINY, steps=1, size=5_000, folder=tmp_path))
    entry = content.index(b"PK\x01\x02")
    # A header whose brackets do not close, a version and a cipher that no reader has, arrays of objects.
    bytes_at = ((content.index(b"descr") - 2, ord("(")), (entry + 6, 255), (entry + 8, 1))
    changed = [content[:at] + bytes([byte]) + content[at + 1 :] for at, byte in bytes_at]
    objects = io.BytesIO()
    np.savez(objects, **{name: np.array([None]) for name in made.tensors})
    for damaged in (
        content[: len(content) // 2], b"", b"PK\x03\x04 and nothing", *changed, objects.getvalue(),
    ):  # fmt: skip
        file.write_bytes(damaged)
        assert equal(made, trained(TINY, steps=1, size=5_000, folder=tmp_path))
        assert [each.name for each in tmp_path.iterdir()] == [file.name]
        assert file.read_bytes() == content
    for other in ({"steps": 2}, {"seed": 1}, {"size": 4_000}):
        trained(TINY, **{"steps": 1, "size": 5_000, "folder": tmp_path, **other})
    trained(dataclasses.replace(TINY, latent=9), steps=1, size=5_000, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


class Loud:
    """An object that makes a file when it is loaded."""

    def __init__(self, file):
        self._file = file

    def __reduce__(self):
        return pathlib.Path.touch, (self._file,)


def test_what_is_kept_is_never_run(tmp_path):
    made = trained(TINY, steps=0, size=5_000, folder=tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    np.savez(file, **{name: np.array([Loud(tmp_path / "ran")]) for name in made.tensors})
    assert equal(made, trained(TINY, steps=0, size=5_000, folder=tmp_path / "kept"))
    assert not (tmp_path / "ran").exists()
    # The file would have been made by a reader that takes objects.
    np.savez(file, one=np.array([Loud(tmp_path / "ran")]))
    with np.load(file, allow_pickle=True) as stored:
        stored["one"]
    assert (tmp_path / "ran").exists()


def test_a_folder_that_cannot_be_written_costs_only_the_time(tmp_path):
    (tmp_path / "file").write_text("")
    assert trained(TINY, steps=0, size=5_000, folder=tmp_path / "file" / "below").config == TINY


def test_the_text_is_python_and_the_same_each_time():
    text = library_text(3_000)
    assert len(text) == 3_000 and b"import" in text
    assert tokens_of(text).tolist() == list(text)
    assert tokens_of("é\ud800").tolist() == [195, 169, 237, 160, 128]


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [(b"short", {}, "nothing to train on"),
     (b"x" * 999, {"threads": 0}, "nothing to train on"),
     (b"x" * 99, {"length": 0}, "nothing to train on"),
     (b"x" * 9_999, {"length": 5_000}, "nothing to train on")],
)  # fmt: skip
def test_too_little_text_is_refused(text, more, says):
    with pytest.raises(BadValueError, match=says):
        train(DecoderWeights.made(TINY, 0), text, 1, 0, **more)


def test_a_vocabulary_without_all_bytes_is_refused():
    with pytest.raises(BadValueError, match="no tokens"):
        train(DecoderWeights.made(dataclasses.replace(TINY, vocabulary=255), 0), b"x" * 999, 1, 0)


def test_importing_the_decoder_imports_no_torch():
    code = "import sys, wavetank.kernels.decoder_training; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
