"""Adapters in files: exact, whole or refused, and named without tricks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.tenants.checkpoints import checkpoint_path, load_adapter, save_adapter
from wavetank.training.tenants.policy import Adapter, Weights, new_adapter


def adapter(seed=1):
    plain = new_adapter(seed)
    draws = np.random.default_rng(seed)
    parts = [Weights(*(draws.normal(size=each.shape) for each in plain.weights)) for _ in range(3)]
    return Adapter(version=7, weights=parts[0], mean=parts[1], square=parts[2])


def test_an_adapter_comes_back_to_the_last_bit(tmp_path):
    given = adapter()
    path = save_adapter(tmp_path, "mine", given)
    found = load_adapter(tmp_path, "mine")
    assert found.bytes() == given.bytes()
    assert path == checkpoint_path(tmp_path, "mine")
    assert load_adapter(tmp_path, "other") is None
    with pytest.raises(ValueError, match="read-only"):
        found.weights.a1[0, 0] = 1.0
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("place", [0, 10, 300, -2])
def test_one_changed_byte_is_noticed(tmp_path, place):
    path = save_adapter(tmp_path, "mine", adapter())
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadFileError, match="holds no adapter"):
        load_adapter(tmp_path, "mine")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", "[" * 100_000, '{"format": 3}', '{"sha256": {}}', "\xff", "{"]
)
def test_what_is_no_adapter_is_refused(tmp_path, text):
    checkpoint_path(tmp_path, "mine").write_text(text, encoding="latin-1")
    with pytest.raises(BadFileError):
        load_adapter(tmp_path, "mine")


@pytest.mark.parametrize("change", [
    {"version": -1}, {"version": 1.5}, {"version": True}, {"rank": 0}, {"rank": 5}, {"rank": 10**9}, {"task": "other"},
    {"weights": {}}, {"mean": 3}, {"format": "wavetank-adapter-2"},
])  # fmt: skip
def test_a_right_checksum_of_wrong_content_is_not_enough(tmp_path, change):
    from wavetank.training.tenants.checkpoints import _checksum

    path = save_adapter(tmp_path, "mine", adapter())
    content = json.loads(path.read_text())
    del content["sha256"]
    content.update(change)
    content["sha256"] = _checksum(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BadFileError):
        load_adapter(tmp_path, "mine")


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    given = adapter()
    given.weights.a1[3, 1] = np.inf
    save_adapter(tmp_path, "mine", given)
    with pytest.raises(BadFileError, match="a1 has other numbers"):
        load_adapter(tmp_path, "mine")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = save_adapter(tmp_path, "mine", adapter(1))
    old = path.read_bytes()
    with pytest.raises(BadFileError, match="cannot be written"):
        save_adapter(tmp_path / "nowhere", "mine", adapter(2))
    assert path.read_bytes() == old


@pytest.mark.parametrize("name", ["", "../mine", "a/b", "Mine", "a--b", "-a", "a" * 65, "a.b", "a\n"])
def test_names_that_are_no_files_are_refused(tmp_path, name):
    with pytest.raises(BadValueError, match="no name of a task"):
        save_adapter(tmp_path, name, adapter())
