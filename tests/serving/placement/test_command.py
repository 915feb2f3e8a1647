"""``wavetank launch adapters``."""

import csv
import json

import pytest
from click.testing import CliRunner

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.serving.placement.command import command


@pytest.fixture
def adapters(tmp_path):
    def made(rate=0.2, count=12, rank=8):
        rows = "".join(f"a{i},{rank},{rate}\n" for i in range(count))
        (tmp_path / "adapters.csv").write_text("adapter,rank,rate_per_s\n" + rows)
        return str(tmp_path / "adapters.csv")

    return made


def run(*arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_every_adapter_stands_in_the_file_and_the_flags_fit(adapters, tmp_path):
    result = run(adapters(), "--out", str(tmp_path / "plan.csv"))
    assert result.return_value == 0, result.output
    with (tmp_path / "plan.csv").open() as file:
        assert sorted(row["adapter"] for row in csv.DictReader(file)) == sorted(f"a{i}" for i in range(12))
    assert "--max-lora-rank=8" in result.output and "keeps up" in result.output


def test_json_is_the_same_plan(adapters):
    plan = json.loads(run(adapters(), "--json").output)
    assert sum(len(gpu["adapters"]) for gpu in plan["gpus"]) == 12 and not plan["unplaced"]
    assert all(gpu["keeps_up"] and gpu["given_share"] >= 0.9 for gpu in plan["gpus"])


def test_adapters_without_a_gpu_end_with_1(adapters):
    result = run(adapters(rate=1.0, count=60), "--gpus", "1")
    assert result.return_value == 1 and "has no GPU" in result.output
    # Dealt over one GPU, all have a place and starve.
    result = run(adapters(rate=1.0, count=60), "--gpus", "1", "--planner", "dealt-in-turns")
    assert result.return_value == 1 and "does not keep up" in result.output


def test_what_is_there_is_kept_and_what_is_not_is_named(adapters, tmp_path):
    (tmp_path / "plan.csv").write_text("mine")
    result = run(adapters(), "--out", str(tmp_path / "plan.csv"))
    assert isinstance(result.exception, BadValueError) and (tmp_path / "plan.csv").read_text() == "mine"
    assert isinstance(run(str(tmp_path / "none.csv")).exception, BadFileError)
    assert isinstance(run(adapters(), "--model", "gpt-5").exception, UnknownNameError)
