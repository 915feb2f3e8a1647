"""Configurations: the zoo, files of models, and everything wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError
from wavetank.platforms.catalog import model
from wavetank.serving.profiling.models import DecoderConfig, from_table, from_zoo, read_model, zoo

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


def test_the_zoo_has_twelve_models_whose_shapes_are_those_of_the_platforms() -> None:
    assert len(zoo()) == 12
    shared = ["Llama-3.1-8B", "Llama-3.1-70B", "Llama-2-7B", "Qwen3-32B"]
    for name in shared:
        ours, known = from_zoo(name), model(name)
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
            assert getattr(ours, field) == getattr(known, field), (name, field)
    assert from_zoo("Qwen3-30B-A3B").experts == model("Qwen3-30B-A3B").experts == 128


def test_a_model_is_read_from_its_file_or_its_folder_or_the_zoo(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(str(folder)) == read_model(str(folder / "config.json"))
    assert read_model(str(folder)).name == "my-model"
    assert read_model("Qwen3-8B").qk_norm
    assert read_model("Qwen2.5-7B").qkv_bias


def test_keys_that_may_be_left_out_have_their_usual_values() -> None:
    plain = from_table({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, "m", "f")
    assert (plain.kv_heads, plain.head_dim) == (4, 16)
    assert from_table({**LLAMA, "head_dim": 32, "rms_norm_eps": 1e-6}, "m", "f").epsilon == 1e-6


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "mamba"}, "architecture is not built"),
        ({"model_type": "lama"}, "architecture is not built"),
        ({"model_type": None}, "architecture is not built"),
        ({"hidden_size": "64"}, "not a positive whole number"),
        ({"hidden_size": True}, "not a positive whole number"),
        ({"hidden_size": -1}, "not a positive whole number"),
        ({"hidden_size": 1e3}, "not a positive whole number"),
        ({"hidden_size": 10**12}, "not a positive whole number"),
        ({"hidden_size": 65}, "no multiple of the heads"),
        ({"num_key_value_heads": 3}, "must divide"),
        ({"head_dim": 15}, "even head size"),
        ({"rms_norm_eps": 0}, "not a positive number"),
        ({"rms_norm_eps": "1e-5"}, "not a positive number"),
        ({"rope_theta": float("nan")}, "not a positive number"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"sliding_window": 4096, "model_type": "mistral"}, "sliding window"),
        ({"attention_bias": True}, "Biases"),
        ({"quantization_config": {}}, "Quantised"),
        ({"model_type": "mixtral"}, "lacks a key"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "one or more of the experts"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadFileError, match=problem):
        from_table({**LLAMA, **change}, "m", "config.json")


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(BadFileError, match="lacks a key") as caught:
        from_table({each: value for each, value in LLAMA.items() if each != key}, "m", "f")
    assert caught.value.given == key


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", "[" * 100_000])
def test_a_file_that_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadFileError):
        read_model(str(tmp_path / "config.json"))


def test_a_name_that_is_unknown_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_model("Llama-3.1-8")
    assert caught.value.nearest == "Llama-3.1-8B"
    for given in (str(tmp_path), str(tmp_path / "absent.json")):
        with pytest.raises(WavetankError):
            read_model(given)


def test_devices_must_divide_the_model() -> None:
    config = from_zoo("Qwen2.5-7B")
    config.check_parallel(4)
    for wrong in (3, 0, -1, True, 1.0, 8):
        with pytest.raises(BadValueError):
            config.check_parallel(wrong)  # type: ignore[arg-type]


def test_a_configuration_checks_itself() -> None:
    good: dict[str, Any] = {
        "name": "m", "layers": 1, "hidden": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "ffn": 8, "vocab": 9,
    }  # fmt: skip
    assert 1 not in DecoderConfig(**{**good, "layers": 3}).numbers[:1]
    for change in ({"layers": 0}, {"hidden": 1.5}, {"vocab": None}, {"epsilon": float("inf")}):
        with pytest.raises(BadValueError):
            DecoderConfig(**{**good, **change})
