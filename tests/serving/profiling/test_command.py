"""``wavetank launch profile``: what it prints, what it reuses, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wavetank.errors import WavetankError
from wavetank.serving.profiling.command import command, default_database
from wavetank.serving.profiling.database import OperationDatabase

torch = pytest.importorskip("torch", reason="torch is not installed")

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
}  # fmt: skip
SMALL = ("--max-tokens", "16", "--max-requests", "2", "--max-context", "32", "--threads", "1")


def run(folder: Path, *words: str, **change: Any) -> Result:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    given = ["--model", str(folder), "--database", str(folder / "operations.sqlite"), *SMALL, *words]
    return CliRunner().invoke(command, given, standalone_mode=False)


def test_a_profile_says_what_it_measured_and_the_next_one_what_it_reused(tmp_path: Path) -> None:
    dry = run(tmp_path, "--dry-run")
    assert dry.exception is None
    assert "points would be measured." in dry.output
    first = run(tmp_path, "-v")
    assert first.exception is None, first.exception
    assert "linear(float32[NUM_TOKS, 32], float32[64, 32])" in first.output
    assert "a step of 2 sequences at 8 tokens" in first.output
    with OperationDatabase(tmp_path / "operations.sqlite") as database:
        kept = database.totals()
        assert kept["models"] == 1
        assert kept["results"] > kept["signatures"] > 20
    # A calm machine reuses everything; on a busy one what was disturbed is measured again.
    again = run(tmp_path, "--dry-run", intermediate_size=80)
    assert "linear(float32[NUM_TOKS, 32], float32[160, 32])" in again.output


@pytest.mark.parametrize(
    ("words", "change", "problem"),
    [
        ((), {"model_type": "mamba"}, "architecture is not built"),
        ((), {"hidden_size": "many"}, "whole number"),
        (("--tensor-parallel", "3"), {}, "tensor_parallel"),
        (("--max-tokens", "1"), {}, "out of range"),
        (("--device", "cuda:77"), {}, "CUDA|device"),
        (("--device", "toaster"), {}, "device"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_is_written(
    words: tuple[str, ...], change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    result = run(tmp_path, *words, **change)
    assert isinstance(result.exception, WavetankError)
    assert result.exception.problem or result.exception.given
    assert re.search(problem, str(result.exception))
    assert not (tmp_path / "operations.sqlite").exists()


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"junk" * 999), lambda path: path.mkdir()])
def test_a_damaged_database_is_refused(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    spoil(tmp_path / "operations.sqlite")
    result = run(tmp_path)
    assert isinstance(result.exception, WavetankError)
    assert str(tmp_path / "operations.sqlite") in str(result.exception)


def test_an_unknown_model_gets_the_nearest_name_and_a_line_that_helps() -> None:
    result = CliRunner().invoke(command, ["--model", "Lama-3.1-8B"], standalone_mode=False)
    assert isinstance(result.exception, WavetankError)
    assert result.exception.nearest == "Llama-3.1-8B"
    assert "config.json" in str(result.exception.hint)


def test_operations_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_database() == tmp_path / "wavetank" / "profiles" / "operations.sqlite"


def test_parts_of_several_devices_are_measured_without_a_step_time(tmp_path: Path) -> None:
    result = run(tmp_path, "--tensor-parallel", "2", "--dry-run")
    assert result.exception is None
    assert "linear(float32[NUM_TOKS, 32], float32[32, 32])" in result.output
