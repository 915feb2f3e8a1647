from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wavetank import platforms
from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.platforms import device, devices, load_devices, load_models, model, models

A_DEVICE = """
[mine]
memory_bytes = 16_000_000_000
hbm_bytes_per_s = 5e11
bf16_flops_per_s = 1e14
tdp_w = 150
link_bytes_per_s = 1e10
network_bytes_per_s = 1e9
pcie_bytes_per_s = 1e10
link_latency_s = 1e-5
source = "made up"
"""


def counted_parameters(name: str) -> tuple[int, int]:
    """All and active parameters, norms included, counted from the shape alone."""
    m = model(name)
    norms = 2 * m.hidden
    if m.kv_rank:
        norms += m.query_rank + m.kv_rank
    elif name.startswith("Qwen3"):
        norms += 2 * m.head_dim  # query and key norms
    routing_bias = m.moe_layers * m.experts if name == "DeepSeek-V3" else 0
    expert_bias = 2 * m.expert_ffn + m.hidden if m.biases else 0
    layer_bias = (m.heads + 2 * m.kv_heads) * m.head_dim + m.hidden + m.heads + m.experts if m.biases else 0
    everything = (
        m.layers * (layer_bias + m.experts * expert_bias)
        + m.dense_parameters
        + m.expert_parameters
        + 2 * m.head_parameters  # embedding and head are not tied in any of the shipped models
        + m.layers * norms
        + m.hidden
        + routing_bias
    )
    idle = m.expert_parameters * (m.experts - m.experts_per_token) // m.experts if m.experts else 0
    idle += m.layers * (m.experts - m.experts_per_token) * expert_bias
    return everything, everything - idle


@pytest.mark.parametrize("name", models())
def test_parameters_of_every_model_follow_from_its_shape(name: str) -> None:
    assert (model(name).parameters, model(name).active_parameters) == counted_parameters(name)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("Llama-3.1-8B", 32 * 2 * 8 * 128 * 2),
        ("Llama-3.1-70B", 327_680),
        ("Llama-2-7B", 524_288),
        ("Qwen3-14B", 163_840),
        ("Qwen3-32B", 262_144),
        ("Qwen3-30B-A3B", 98_304),
        ("DeepSeek-V3", 61 * 576 * 2),
    ],
)
def test_kv_bytes_per_token_follow_from_the_shape(name: str, kv_bytes: int) -> None:
    assert model(name).kv_bytes_per_token == kv_bytes


def test_published_sizes_are_met() -> None:
    assert model("DeepSeek-V3").parameters == pytest.approx(671e9, rel=1e-3)
    assert model("DeepSeek-V3").active_parameters == pytest.approx(37e9, rel=0.02)
    assert model("GPT-OSS-120B").parameters == pytest.approx(116.83e9, rel=1e-4)
    assert model("Qwen3-30B-A3B").active_parameters == pytest.approx(3.3e9, rel=0.02)


def test_latent_attention_decodes_in_the_latent_space() -> None:
    m = model("DeepSeek-V3")
    assert m.prefill_flops_per_pair == 2 * 61 * 128 * (192 + 128)
    assert m.decode_flops_per_context_token == 2 * 61 * 128 * (576 + 512)
    assert model("Llama-3.1-8B").prefill_flops_per_pair == 4 * 32 * 32 * 128


@pytest.mark.parametrize("name", devices())
def test_every_device_is_cited_and_plausible(name: str) -> None:
    d = device(name)
    assert d.name == name
    assert d.source
    assert 100 < d.bf16_flops_per_s / d.hbm_bytes_per_s < 500  # operations a byte of this decade's accelerators
    assert d.pcie_bytes_per_s <= d.link_bytes_per_s < d.hbm_bytes_per_s


def test_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        device("H100SXM")
    assert caught.value.nearest == "H100-SXM"
    assert "load_devices" in str(caught.value)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        model("llama-3.1-8b")
    assert caught.value.nearest == "Llama-3.1-8B"


def test_entries_pickle_and_compare_by_value() -> None:
    assert pickle.loads(pickle.dumps(device("L4"))) == device("L4")
    assert pickle.loads(pickle.dumps(model("Qwen3-32B"))) == model("Qwen3-32B")
    assert replace(model("Qwen3-32B"), layers=63) != model("Qwen3-32B")


def test_reads_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(A_DEVICE)
    mine = load_devices(file)["mine"]
    assert mine.memory_bytes == 16_000_000_000
    assert mine.fp8_flops_per_s is None
    assert isinstance(mine.tdp_w, float)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tdp_w = 150\n", "", "Keys are missing: tdp_w"),
        ("tdp_w", "tpd_w", "tpd_w"),
        ("tdp_w = 150", 'tdp_w = "150 W"', "tdp_w has the wrong type"),
        ("tdp_w = 150", "tdp_w = true", "tdp_w has the wrong type"),
        ("16_000_000_000", "1.6e10", "memory_bytes has the wrong type"),
        ('"made up"', "3", "source has the wrong type"),
        ("[mine]", "[mine", "not TOML"),
        ("[mine]", "mine = 3\n[other]", "not a table"),
    ],
)
def test_a_broken_file_says_what_is_wrong_and_where(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(A_DEVICE.replace(old, new))
    with pytest.raises(BadFileError) as caught:
        load_devices(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(A_DEVICE.replace("tdp_w", "tpd_w"))
    with pytest.raises(BadFileError) as caught:
        load_devices(file)
    assert caught.value.nearest == "tdp_w"


def test_a_figure_out_of_range_says_where(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(A_DEVICE.replace("tdp_w = 150", "tdp_w = -1"))
    with pytest.raises(BadValueError, match="tdp_w") as caught:
        load_devices(file)
    assert caught.value.where == f"{file}, [mine]"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot be read"):
        load_models(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 0},
        {"rope_head_dim": -1},
        {"active_parameters": 10**12},
        {"experts": 8, "experts_per_token": 8, "expert_ffn": 4},
        {"experts": 8, "experts_per_token": 2},
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(BadValueError):
        replace(model("Llama-3.1-8B"), **change)


def test_importing_the_package_and_the_catalog_does_not_import_numba() -> None:
    code = "import sys, wavetank.platforms as p; p.device('L4'); p.kv_capacity_tokens; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_loads_and_no_other() -> None:
    assert all(getattr(platforms, name) is not None for name in dir(platforms))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = platforms.nonsense
