"""Plans as files."""

import json
import tomllib

import pytest
from tests.serving.fleet.conftest import CHAT, LARGE, template

from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import FleetPlan, FleetProblem
from wavetank.serving.fleet.manifests import as_table, to_json, to_kubernetes, to_toml

ONE, SPLIT = template(CHAT, 4.0, ("H100-SXM", 2)), template(LARGE, 1.5, ("A10", 1), ("H100-SXM", 1))
PROBLEM = FleetProblem(
    demand_per_s={CHAT: 6.0, LARGE: 3.0},
    offers=(
        Offer(name="pair", device="H100-SXM", gpus=2, usd_per_hour=8.0),
        Offer(name="a10", device="A10", gpus=1, usd_per_hour=1.25),
    ),
    templates=(ONE, SPLIT),
)
PLAN = FleetPlan(instances={"pair": 3, "a10": 1}, replicas={ONE: 2, SPLIT: 1})


def test_toml_and_json_hold_the_same_plan():
    table = as_table(PLAN, PROBLEM)
    assert tomllib.loads(to_toml(table)) == json.loads(to_json(table)) == table
    assert table["usd_per_hour"] == 25.25
    assert [(row["model"], row["served_per_s"]) for row in table["demand"]] == [
        ("Llama-3.1-8B", 6.0), ("Llama-3.1-70B", 1.5)
    ]  # fmt: skip


def test_a_deployment_per_group_of_devices():
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifests in this test")
    documents = list(yaml.safe_load_all(to_kubernetes(as_table(PLAN, PROBLEM))))
    found = {
        (each["spec"]["template"]["spec"]["nodeSelector"]["wavetank/device"], each["spec"]["replicas"],
         each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        for each in documents
    }  # fmt: skip
    assert found == {("h100-sxm", 2, 2), ("a10", 1, 1), ("h100-sxm", 1, 1)}
    names = [each["metadata"]["name"] for each in documents]
    assert len(set(names)) == len(names)
    for each in documents:
        assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
        assert each["metadata"]["name"].replace("-", "").isalnum() and len(each["metadata"]["name"]) <= 63
