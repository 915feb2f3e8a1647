"""``wavetank launch plan``."""

import json
import tomllib

import pytest
from click.testing import CliRunner

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.fleet.command import command

DEMAND = "model,requests_per_s,prompt_tokens,output_tokens,slo_tpot_s\nLlama-3.1-8B,30,300,20,0.05\n"
PRICES = "instance,device,gpus,usd_per_hour,available\nh,H100-SXM,1,4,{available}\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "demand.csv").write_text(DEMAND)

    def made(available=""):
        (tmp_path / "prices.csv").write_text(PRICES.format(available=available))
        return ["--demand", str(tmp_path / "demand.csv"), "--prices", str(tmp_path / "prices.csv")]

    return made


def run(arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_the_files_hold_the_plan_that_is_printed(files, tmp_path):
    out = tmp_path / "plan"
    result = run([*files(), "--out", str(out)])
    assert result.return_value == 0
    assert "USD per hour" in result.output and "Llama-3.1-8B" in result.output
    plan = tomllib.loads((out / "plan.toml").read_text())
    assert json.loads((out / "plan.json").read_text()) == plan
    assert sum(row["count"] * row["requests_per_s_each"] for row in plan["replicas"]) >= 30
    assert "kind: Deployment" in (out / "kubernetes.yaml").read_text()


def test_a_plan_that_is_there_is_not_written_over(files, tmp_path):
    out = tmp_path / "plan"
    out.mkdir()
    (out / "plan.toml").write_text("mine")
    result = run([*files(), "--out", str(out)])
    assert isinstance(result.exception, BadValueError)
    assert (out / "plan.toml").read_text() == "mine"


def test_what_cannot_be_served_is_said_and_ends_with_1(files, tmp_path):
    result = run(files(available=0))
    assert result.return_value == 1
    assert "only 0 are served" in " ".join(result.output.split())
    (tmp_path / "demand.csv").write_text("model,requests_per_s\nLlama-3.1-70B,1\n")
    result = run([*files(), "--json"])
    assert result.return_value == 1
    assert json.loads(result.output)["demand"][0]["served_per_s"] == 0


def test_a_missing_demand_is_an_error(files, tmp_path):
    arguments = files()
    (tmp_path / "demand.csv").unlink()
    assert isinstance(run(arguments).exception, BadFileError)
