from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadFileError, DataUnavailableError, UnknownNameError
from wavetank.platforms import FittedStepTime
from wavetank.platforms.links import Link
from wavetank.serving.fidelity.recorded_runs import (
    EngineSettings,
    latency_figures,
    read_recorded_run,
    recorded_runs,
)

SUMMARY = """Metric                           vLLM         Sim     Diff%
-----------------------------------------------------------
TTFT Mean                      7097.2      6815.7     -4.0%
TTFT Median                    9442.7      8633.9     -8.6%
TTFT P90                      16852.7     16119.1     -4.4%
TTFT P99                      19755.3     19356.6     -2.0%
TPOT Mean                        32.5        32.1     -1.0%
TPOT Median                      33.4        33.4     -0.0%
TPOT P99                         37.3        37.6     +0.6%
Latency Mean                  28200.7     27694.8     -1.8%
Latency Median                29615.6     29248.8     -1.2%
Latency P99                   37638.8     37027.3     -1.6%
"""
META = {
    "engine_kwargs": {
        "tensor_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": True, "max_num_seqs": 64,
        "max_num_batched_tokens": 1024,
    },
    "kv_cache": {"num_kv_tokens": 5000, "block_size": 32, "enable_prefix_caching": False},
    "resolved_config": {"scheduler_config": {"async_scheduling": False}},
}  # fmt: skip
UNIX, MONOTONIC = 1.7e9, 5000.0


def request(number: int, **more: Any) -> dict[str, Any]:
    """One that arrives in second ``number`` and queues 10 ms later (the fifth 2 ms)."""
    queued = MONOTONIC + number + (0.002 if number == 5 else 0.01)
    return {
        "request_id": f"bench-{number}", "input_toks": 100 + number, "output_toks": 5,
        "arrival_time": UNIX + number, "queued_ts": queued, "scheduled_ts": queued + 0.001,
        "first_token_ts": MONOTONIC + number + 1.002, "last_token_ts": MONOTONIC + number + 5.002, **more,
    }  # fmt: skip


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a recorded run and return its folder."""

    def make(
        rows: list[Any] | None = None,
        meta: Any = META,
        summary: str | None = None,
        model: str = "Llama-3.1-8B",
        config: Any = None,
    ) -> Path:
        folder = tmp_path / "runs" / "H100-SXM" / model
        folder.mkdir(parents=True, exist_ok=True)
        given = [request(number) for number in range(20)] if rows is None else rows
        lines = [row if isinstance(row, str) else json.dumps(row) for row in given]
        (folder / "requests.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        if meta is not None:
            (folder / "meta.json").write_text(meta if isinstance(meta, str) else json.dumps(meta))
        if config is not None:
            (folder / "cluster_config.json").write_text(json.dumps(config))
        if summary is not None:
            (folder / "reference_sim_summary.txt").write_text(summary)
        return folder

    return make


def test_arrivals_and_tokens_stand_on_one_clock(write: Write) -> None:
    run = read_recorded_run(write())
    assert run.requests.arrival_s.tolist() == pytest.approx(range(20), abs=1e-6)
    # The fifth request reached the engine fastest, in 2 ms: that much of every way is not counted.
    assert run.ttft_s == pytest.approx(np.full(20, 1.0), abs=1e-5)
    assert run.e2e_s == pytest.approx(np.full(20, 5.0), abs=1e-5)
    assert run.tpot_s == pytest.approx(np.full(20, 1.0), abs=1e-5)
    assert run.name == "H100-SXM Llama-3.1-8B"


def test_requests_out_of_order_are_put_in_order(write: Write) -> None:
    rows = [request(number) for number in range(20)]
    assert read_recorded_run(write(rows[::-1])).requests == read_recorded_run(write(rows)).requests


def test_the_engine_is_set_up_as_recorded(write: Write) -> None:
    run = read_recorded_run(write())
    assert run.engine == EngineSettings(
        workers=2, expert_parallel=2, max_running=64, max_batched_tokens=1024, kv_capacity_tokens=5000,
        block_tokens=32, prefix_caching=False, schedules_ahead=False,
    )  # fmt: skip
    cluster = run.cluster(FittedStepTime(overhead_s=0.01))
    assert (cluster.workers, cluster.group_size, cluster.kv_capacity_tokens) == (2, 2, 5000)
    assert (cluster.prefix_caching, cluster.kv_watermark) == (False, 0.0)


def cluster_config(instances: int = 2, **instance: Any) -> dict[str, Any]:
    each = {"num_npus": 1, "tp_size": 1, "pd_type": None, "npu_mem": {"mem_util": 0.7}, **instance}
    return {"link_bw": 16, "link_latency": 20000, "nodes": [{"instances": [each] * instances}]}


def test_the_cluster_file_gives_the_link_and_what_meta_leaves_open(write: Write) -> None:
    sharing = {"engine_kwargs": {"max_num_seqs": 64}}
    run = read_recorded_run(
        write(meta=sharing, model="Qwen3-30B-A3B", config=cluster_config(num_npus=2, tp_size=2, ep_size=4))
    )
    link = Link(bytes_per_s=16 * 2**30, latency_s=2e-5, per_hop=True)
    assert run.engine == EngineSettings(
        workers=2, tensor_parallel=2, expert_parallel=2, max_running=64, memory_share=0.7, link=link
    )
    assert (run.devices, run.tensor_parallel, run.assumed) == (4, 2, ())
    assert run.name == "H100-SXM Qwen3-30B-A3B, tensor parallel 2"


def test_less_memory_and_experts_that_are_not_shared_leave_a_smaller_cache(write: Write) -> None:
    def capacity(**instance: Any) -> int:
        run = read_recorded_run(
            write(meta={"engine_kwargs": {}}, model="Qwen3-30B-A3B", config=cluster_config(**instance))
        )
        return run.cluster(FittedStepTime(overhead_s=0.01)).kv_capacity_tokens

    shared = {"ep_size": 2, "npu_mem": {"mem_util": 0.9}}
    assert capacity(**shared) > capacity(**shared | {"ep_size": 1}) > 0
    assert capacity(**shared) > capacity(**shared | {"npu_mem": {"mem_util": 0.85}}) > 0


def test_meta_counts_before_the_cluster_file_and_the_difference_is_said(write: Write) -> None:
    run = read_recorded_run(write(config=cluster_config(instances=3, ep_size=3)))
    assert (run.engine.workers, run.engine.expert_parallel) == (2, 2)
    assert run.assumed == (
        "H100-SXM/Llama-3.1-8B: workers is 2 in meta.json and 3 in cluster_config.json; meta.json counts.",
        "H100-SXM/Llama-3.1-8B: expert_parallel is 2 in meta.json and 3 in cluster_config.json; meta.json counts.",
    )


def test_without_a_cluster_file_it_is_said_what_was_assumed_of_the_link(write: Write) -> None:
    assert read_recorded_run(write()).assumed == (
        "H100-SXM/Llama-3.1-8B has no cluster_config.json: its 2 devices were taken to have the link of their data "
        "sheet.",
    )
    (said,) = read_recorded_run(write(meta={})).assumed
    assert said.endswith("it ran on one device, as meta.json has it, so that no link counts.")
    silent = cluster_config(ep_size=2) | {"link_bw": None}
    (said,) = read_recorded_run(write(config=silent)).assumed
    assert "cluster_config.json without link_bw and link_latency: its 2 devices" in said
    (said,) = read_recorded_run(write(config=cluster_config(ep_size=2) | {"collective_links": {"x": 1}})).assumed
    assert "collective_links" in said


@pytest.mark.parametrize(
    "given",
    [
        {"meta": META | {"engine_kwargs": {"pipeline_parallel_size": 2}}},
        {"meta": {}, "config": cluster_config(instances=1, num_npus=2, pp_size=2)},
    ],
)
def test_a_pipeline_is_read_and_said_never_to_have_been_measured(write: Write, given: dict[str, Any]) -> None:
    run = read_recorded_run(write(**given))
    assert (run.engine.pipeline_parallel, run.engine.tensor_parallel) == (2, 1)
    assert run.name == "H100-SXM Llama-3.1-8B, pipeline of 2"
    assert run.devices == 2
    assert "never against a recorded run" in " ".join(run.assumed)
    # Every micro-batch has the engine's token budget, and two of them are under way in a round.
    cluster = run.cluster(FittedStepTime(overhead_s=0.01))
    assert cluster.max_batched_tokens == 2 * run.engine.max_batched_tokens


@pytest.mark.parametrize(("change", "says"), [
    ({"output_toks": 1}, "second token"),
    ({"last_token_ts": MONOTONIC + 30, "first_token_ts": MONOTONIC + 30}, "No time passes"),
    ({"input_toks": 10**8}, "whole numbers of tokens"),
    ({"input_toks": 6 * 10**6}, None),
    ({"arrival_time": 10**400}, "needs a number 'arrival_time'"),
])  # fmt: skip
def test_a_run_of_which_no_error_can_be_given_is_refused(
    write: Write, change: dict[str, Any], says: str | None
) -> None:
    folder = write([request(number, **change) for number in range(20)])
    if says is None:
        assert len(read_recorded_run(folder).requests) == 20
        return
    with pytest.raises(BadFileError, match=says):
        read_recorded_run(folder)


def test_a_published_figure_that_is_no_number_is_missed(write: Write) -> None:
    with pytest.raises(BadFileError, match="lacks figures"):
        read_recorded_run(write(summary=SUMMARY.replace("7097.2", "70.97.2")))


def test_prompts_that_fill_the_memory_are_refused(write: Write) -> None:
    with pytest.raises(BadFileError, match="too long together"):
        read_recorded_run(write([request(number, input_toks=10**7) for number in range(101)]))


@pytest.mark.parametrize("value", [10**30, 0, -1, "2", 2.0, True])
def test_settings_that_no_engine_has_are_refused(write: Write, value: object) -> None:
    for meta in ({"kv_cache": {"block_size": value}}, {"engine_kwargs": {"pipeline_parallel_size": value}}):
        with pytest.raises(BadFileError, match="whole number of at least 1"):
            read_recorded_run(write(meta=meta))


def test_a_damaged_cluster_file_is_refused(write: Write) -> None:
    with pytest.raises(BadFileError, match="nodes is a list"):
        read_recorded_run(write(config={"link_bw": 16}))


def test_what_the_record_does_not_say_is_as_vllm_has_it(write: Write) -> None:
    run = read_recorded_run(write(meta={"engine_kwargs": {"max_num_seqs": None}}))
    assert run.engine == EngineSettings()
    assert run.cluster(FittedStepTime(overhead_s=0.01)).kv_capacity_tokens > 400_000
    assert run.cluster(FittedStepTime(overhead_s=0.01)).prefix_caching
    assert not run.cluster(FittedStepTime(overhead_s=0.01), prefix_caching=False).prefix_caching


def test_every_prompt_has_prefix_blocks_of_its_own(write: Write) -> None:
    requests = read_recorded_run(write()).requests
    assert requests.block_tokens == 32
    assert len(set(requests.block_ids.tolist())) == requests.block_ids.size
    assert np.diff(requests.block_offsets).tolist() == [-(-n // 32) for n in range(100, 120)]


def test_a_published_prediction_is_read_in_seconds(write: Write) -> None:
    published = read_recorded_run(write(summary=SUMMARY)).published
    assert len(published) == 9
    assert published["ttft_p50"] == pytest.approx((9.4427, 8.6339))
    assert published["e2e_p99"] == pytest.approx((37.6388, 37.0273))
    assert read_recorded_run(write(model="Qwen3-32B")).published == {}


def test_a_short_summary_names_what_it_lacks(write: Write) -> None:
    with pytest.raises(BadFileError) as caught:
        read_recorded_run(write(summary=SUMMARY.replace("TPOT Mean", "TPOT Mode")))
    assert "tpot_mean" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "an object"),
        (request(1) | {"input_toks": None}, "'input_toks'"),
        (request(1) | {"input_toks": 0}, "whole numbers"),
        (request(1) | {"output_toks": 2.5}, "whole numbers"),
        (request(1) | {"output_toks": True}, "'output_toks'"),
        ({k: v for k, v in request(1).items() if k != "queued_ts"}, "'queued_ts'"),
        (request(1) | {"first_token_ts": MONOTONIC}, "out of order"),
        (json.dumps(request(1)).replace(str(UNIX + 1), "NaN"), "'arrival_time'"),
    ],
)
def test_a_bad_line_is_named(write: Write, row: Any, says: str) -> None:
    with pytest.raises(BadFileError, match=says) as caught:
        read_recorded_run(write([request(0), row, *map(request, range(2, 30))]))
    assert caught.value.where.endswith("line 2")


@pytest.mark.parametrize(
    ("scaled", "factor", "says"),
    [
        (("arrival_time",), 1e3, "the same unit"),
        (("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"), 1e9, "the same unit"),
        (("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"), 1e-3, "the same unit"),
        (("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"), 1e3, "not in seconds"),
    ],
)
def test_times_in_other_units_are_refused(write: Write, scaled: tuple[str, ...], factor: float, says: str) -> None:
    rows = [request(number) for number in range(30)]
    with pytest.raises(BadFileError, match=says):
        read_recorded_run(write([row | {name: row[name] * factor for name in scaled} for row in rows]))


def test_requests_that_come_at_once_have_no_unit_to_compare(write: Write) -> None:
    rows = [request(number) | {"arrival_time": UNIX} for number in range(30)]
    assert read_recorded_run(write(rows)).requests.arrival_s.max() == 0.0


def test_a_run_of_few_requests_is_too_short(write: Write) -> None:
    with pytest.raises(BadFileError, match="too short") as caught:
        read_recorded_run(write([request(number) for number in range(19)]))
    assert caught.value.given == "19 requests"


def test_a_cut_file_is_refused(write: Write) -> None:
    file = write() / "requests.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadFileError, match="cannot be read"):
        read_recorded_run(file.parent)


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (None, "lacks meta.json"),
        ("{", "cannot be read"),
        ("[]", "is an object"),
        ({"engine_kwargs": 3}, "engine_kwargs is an object"),
        ({"engine_kwargs": {"max_num_seqs": 0}}, "max_num_seqs is a whole number"),
        ({"engine_kwargs": {"data_parallel_size": "two"}}, "data_parallel_size is a whole number"),
    ],
)
def test_bad_settings_of_the_engine_are_refused(write: Write, meta: Any, says: str) -> None:
    with pytest.raises(BadFileError, match=says):
        read_recorded_run(write(meta=meta))


def test_a_folder_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="lacks"):
        read_recorded_run(tmp_path)
    with pytest.raises(BadFileError, match="no recorded run"):
        recorded_runs(tmp_path)
    with pytest.raises(BadFileError, match="no recorded run"):
        recorded_runs(tmp_path / "absent")


def test_a_model_is_known_by_the_beginning_of_its_folder(write: Write) -> None:
    assert read_recorded_run(write(model="Qwen3-30B-A3B-Instruct-2507")).model == "Qwen3-30B-A3B"
    with pytest.raises(UnknownNameError) as caught:
        read_recorded_run(write(model="Llama-3.1-9B"))
    assert caught.value.nearest == "Llama-3.1-8B"


def test_all_runs_of_a_folder_are_found(write: Write) -> None:
    write()
    folder = write(model="Qwen3-32B")
    assert [run.model for run in recorded_runs(folder.parents[1])] == ["Llama-3.1-8B", "Qwen3-32B"]


def test_without_the_data_set_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WAVETANK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataUnavailableError) as caught:
        recorded_runs()
    assert caught.value.hint == "wavetank data fetch vllm-layer-profiles"


def test_figures_are_those_of_all_requests(write: Write) -> None:
    run = read_recorded_run(write())
    figures = latency_figures(run.requests, run.first_token_s, run.first_token_s + np.arange(20.0))
    assert figures["tpot_mean"] == pytest.approx(np.arange(20).mean() / 4)
    assert figures["e2e_p50"] == pytest.approx(1 + 9.5, abs=1e-5)
    assert figures["throughput"] == pytest.approx(100 / (19 + 1 + 19), rel=1e-6)


def test_the_recorded_runs_are_those_that_the_source_describes() -> None:
    try:
        runs = recorded_runs()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")
    assert [run.name for run in runs] == [
        "RTX4090 Llama-3.1-8B", "RTXPRO6000 Llama-3.1-8B", "RTXPRO6000 Qwen3-30B-A3B",
    ]  # fmt: skip
    assert [len(run.requests) for run in runs] == [300, 300, 300]
    assert [run.engine.max_running for run in runs] == [256, 128, 128]
    assert [run.engine.expert_parallel for run in runs] == [1, 1, 2]
    assert [run.engine.link.bytes_per_s for run in runs if run.engine.link] == [16 * 2**30] * 3
    assert [run.assumed for run in runs] == [()] * 3
    for run in runs:
        # The source counts from the moment the scheduler saw a request, a part of a step later.
        assert 0 < run.ttft_s.mean() - run.published["ttft_mean"][0] < 0.05
        assert run.tpot_s.mean() == pytest.approx(run.published["tpot_mean"][0], rel=2e-3)
