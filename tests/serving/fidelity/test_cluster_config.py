from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError
from wavetank.platforms.links import Link
from wavetank.serving.fidelity.cluster_config import ClusterConfig, read_cluster_config

INSTANCE = {
    "model_name": "Qwen/Qwen3-30B-A3B", "hardware": "RTXPRO6000", "num_npus": 1, "tp_size": 1, "ep_size": 2,
    "npu_mem": {"mem_size": 96, "mem_bw": 1597, "mem_latency": 0, "mem_util": 0.8}, "dp_group": "A", "pd_type": None,
}  # fmt: skip
CONFIG = {
    "num_nodes": 1, "link_bw": 16, "link_latency": 20000,
    "nodes": [{"num_instances": 2, "cpu_mem": {"mem_size": 512}, "instances": [INSTANCE, INSTANCE]}],
}  # fmt: skip


def write(folder: Path, config: Any = CONFIG, **instance: Any) -> Path:
    """Write a cluster file whose instances have other values; one that is None is left out."""
    if isinstance(config, dict):
        config = copy.deepcopy(config)
        for node in config.get("nodes", []) if instance else []:
            node["instances"] = [
                {key: value for key, value in (each | instance).items() if value is not None}
                for each in node["instances"]
            ]
    file = folder / "cluster_config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return file


def test_the_link_is_what_a_collective_reaches_and_every_hop_takes_its_latency(tmp_path: Path) -> None:
    assert read_cluster_config(write(tmp_path)) == ClusterConfig(
        workers=2, expert_parallel=2, memory_share=0.8,
        link=Link(bytes_per_s=16 * 2**30, latency_s=2e-5, per_hop=True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("instance", "tensor", "pipeline", "experts"),
    [
        ({"num_npus": 4, "tp_size": 4}, 4, 1, 1),
        ({"num_npus": 4, "tp_size": None, "ep_size": 8}, 4, 1, 2),
        ({"num_npus": 4, "tp_size": None, "pp_size": 2, "ep_size": None}, 2, 2, 1),
        ({"num_npus": None, "tp_size": None, "ep_size": None}, 1, 1, 1),
    ],
)
def test_the_model_is_shared_as_the_instances_say(
    tmp_path: Path, instance: dict[str, Any], tensor: int, pipeline: int, experts: int
) -> None:
    found = read_cluster_config(write(tmp_path, **instance))
    assert (found.tensor_parallel, found.pipeline_parallel, found.expert_parallel) == (tensor, pipeline, experts)


def test_instances_of_all_nodes_count(tmp_path: Path) -> None:
    assert read_cluster_config(write(tmp_path, CONFIG | {"nodes": CONFIG["nodes"] * 3})).workers == 6


def test_of_several_links_the_slowest_counts(tmp_path: Path) -> None:
    link = read_cluster_config(write(tmp_path, CONFIG | {"link_bw": [900, 100], "link_latency": [0, 500]})).link
    assert link == Link(bytes_per_s=100 * 2**30, latency_s=5e-7, per_hop=True)


@pytest.mark.parametrize("absent", ["link_bw", "link_latency"])
def test_a_link_that_is_not_given_whole_is_not_known(tmp_path: Path, absent: str) -> None:
    assert read_cluster_config(write(tmp_path, {k: v for k, v in CONFIG.items() if k != absent})).link is None


def test_a_link_of_single_collectives_is_named_as_unread(tmp_path: Path) -> None:
    given = CONFIG | {"collective_links": {"all_gather": {"link_bw": 80}}}
    assert read_cluster_config(write(tmp_path, given)).unread == ("collective_links",)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "is an object"),
        (CONFIG | {"nodes": []}, "nodes is a list"),
        (CONFIG | {"nodes": {}}, "nodes is a list"),
        (CONFIG | {"nodes": [3]}, "nodes is a list"),
        (CONFIG | {"nodes": [{}]}, "instances is a list"),
        (CONFIG | {"link_bw": 0}, "link_bw is a bandwidth"),
        (CONFIG | {"link_bw": "16"}, "link_bw is a number"),
        (CONFIG | {"link_bw": True}, "link_bw is a number"),
        (CONFIG | {"link_latency": -1}, "link_latency is a number"),
        (CONFIG | {"link_bw": 16e9}, "link_bw is in GiB/s"),
        (CONFIG | {"link_bw": [16, 16e9]}, "link_bw is in GiB/s"),
        (CONFIG | {"link_latency": 2e-5}, "link_latency is in ns"),
        (CONFIG | {"link_latency": 2e13}, "link_latency is in ns"),
        (json.dumps(CONFIG).replace("20000", "NaN"), "link_latency is a number"),
        (json.dumps(CONFIG).replace("20000", "Infinity"), "link_latency is a number"),
    ],
)
def test_a_damaged_file_is_refused_with_the_key_at_fault(tmp_path: Path, config: Any, says: str) -> None:
    with pytest.raises(BadFileError, match=says) as caught:
        read_cluster_config(write(tmp_path, config))
    assert "cluster_config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("instance", "says"),
    [
        ({"tp_size": 0}, "tp_size is a whole number"),
        ({"tp_size": 1.5}, "tp_size is a whole number"),
        ({"ep_size": 10**9}, "ep_size is a whole number"),
        ({"pd_type": "prefill"}, "on devices of their own"),
        ({"npu_mem": {"mem_util": 1.5}}, "mem_util is a share"),
        ({"npu_mem": {"mem_util": [0.5, 0.5]}}, "mem_util is a share"),
    ],
)
def test_what_is_not_simulated_or_makes_no_sense_is_refused(
    tmp_path: Path, instance: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadFileError, match=says):
        read_cluster_config(write(tmp_path, **instance))


def test_unlike_instances_are_refused(tmp_path: Path) -> None:
    nodes = [{"instances": [INSTANCE, INSTANCE | {"hardware": "H100-SXM"}]}]
    with pytest.raises(BadFileError, match="must be alike") as caught:
        read_cluster_config(write(tmp_path, CONFIG | {"nodes": nodes}))
    assert "hardware" in str(caught.value)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="too large"):
        read_cluster_config(write(tmp_path, " " * (16 * 2**20 + 1)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot be read"):
        read_cluster_config(tmp_path / "cluster_config.json")
