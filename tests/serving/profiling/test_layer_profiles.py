"""Published layer profiles as a database: the step time is the one that reading them directly gives."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.platforms.catalog import model
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.profiling.database import OperationDatabase
from wavetank.serving.profiling.layer_profiles import (
    layer_operations,
    layer_step_time,
    read_layer_profiles,
    recorded_errors,
)

LAYERS = (
    "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj", "embedding",
    "final_layernorm",
)  # fmt: skip


def written(folder: Path, device: str = "GPU", name: str = "Llama-3.1-8B") -> Path:
    home = folder / device / name / "tp1"
    home.mkdir(parents=True)
    dense = [f"{layer},{n},{2.0 + n * (i + 1)}" for i, layer in enumerate(LAYERS) for n in (1, 8, 64)]
    (home / "dense.csv").write_text("layer,tokens,time_us\n" + "\n".join(dense) + "\n")
    rows = [f"{layer},{n},{50.0 + n}" for layer in ("lm_head", "sampler") for n in (1, 16)]
    (home / "per_sequence.csv").write_text("layer,sequences,time_us\n" + "\n".join(rows) + "\n")
    points = [(c, p, r, n) for c in (0, 16, 64) for p in (0, 32) for r in (0, 1, 8) for n in (0, 16, 64)]
    lines = [f"{c},{p},{r},{n},{5 + c + p + r * n}" for c, p, r, n in points if (c or not p) and bool(r) == bool(n)]
    with gzip.open(home / "attention.csv.gz", "wt") as file:
        file.write("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "\n".join(lines[1:]) + "\n")
    return home


def test_the_database_gives_what_reading_the_profile_gives(tmp_path: Path) -> None:
    written(tmp_path)
    ours = layer_step_time("GPU", "Llama-3.1-8B", folder=tmp_path)
    direct = TableStepTime.from_vllm_profiles("GPU", "Llama-3.1-8B", folder=tmp_path, overhead_s=0.0)
    for batch in ((1, 16), (8, 512), (4, 100), (0, 0, 64, 2080), (8, 128, 16, 136), (3, 50, 40, 2000)):
        assert ours.seconds(*batch) == pytest.approx(direct.seconds(*batch), rel=1e-9), batch


def test_models_of_equal_widths_share_their_layers_in_the_database(tmp_path: Path) -> None:
    written(tmp_path)
    with OperationDatabase(":memory:") as database:
        read_layer_profiles(database, "GPU", "Llama-3.1-8B", folder=tmp_path)
        before = database.totals()
        linked, _ = read_layer_profiles(database, "GPU", "Llama-3.1-8B", folder=tmp_path)
        assert database.totals() == before
        assert sum(linked.counts.values()) == 32 * 9 + 4
    one, other = layer_operations(model("Llama-3.1-70B")), layer_operations(model("Llama-2-70B"))
    differ = {name for name in one if one[name] != other[name]}
    assert differ == {"embedding", "lm_head", "sampler"}


def test_real_profiles_are_the_same_both_ways_and_predict_recorded_runs() -> None:
    try:
        errors = recorded_errors()
    except DataUnavailableError:
        pytest.skip("data set vllm-layer-profiles is absent")
    assert set(errors) == {"RTX4090 Llama-3.1-8B", "RTXPRO6000 Llama-3.1-8B"}
    assert all(0 < each < 0.25 for pair in errors.values() for each in pair)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda home: (home / "dense.csv").unlink(), "no dense.csv.gz"),
        (lambda home: (home / "dense.csv").write_text("layer,tokens\nqkv_proj,1\n"), "lacks a column"),
        (lambda home: (home / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,nan\n"), "not a time"),
        (lambda home: (home / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1.5,2\n"), "not a count"),
        (lambda home: (home / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,2\n"), "lacks a layer"),
        (lambda home: (home / "attention.csv.gz").write_bytes(b"\x1f\x8b broken"), "cannot be read"),
    ],
)
def test_a_damaged_profile_is_refused(spoil: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    spoil(written(tmp_path))
    with pytest.raises(BadFileError, match=problem):
        layer_step_time("GPU", "Llama-3.1-8B", folder=tmp_path)


def test_models_with_experts_are_left_to_their_own_reader(tmp_path: Path) -> None:
    with OperationDatabase(":memory:") as database, pytest.raises(BadValueError, match="experts"):
        read_layer_profiles(database, "GPU", "Qwen3-30B-A3B", folder=tmp_path)
