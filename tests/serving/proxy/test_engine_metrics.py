"""Reading the metrics pages of vLLM, SGLang and llama.cpp."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.engine_metrics import EngineLoad, read_load

# Shortened from a server's page.
PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27500",x="None"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop"} 120.0
"""


SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 161.0
sglang:num_used_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 123859.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 442356.0
"""
# As a server prints it that was started with --metrics.
LLAMACPP = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 6
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""


def test_sglangs_page_gives_load_and_capacity() -> None:
    assert read_load(SGLANG) == EngineLoad(161, 5, 0.28, 442_356.0)
    # Without its constants, which older versions do not report.
    assert read_load(SGLANG[: SGLANG.index(b"sglang:max_total")]) == EngineLoad(161, 5, 0.28, 0.0)
    assert read_load(SGLANG.replace(b"sglang:token_usage", b"sglang:swa_token_usage")) is None


def test_ranks_of_one_engine_that_all_report_are_counted_once_and_engines_are_summed() -> None:
    shards = SGLANG + SGLANG.replace(b'tp_rank="0"', b'tp_rank="1"') + SGLANG.replace(b'pp_rank="0"', b'pp_rank="12"')
    assert read_load(shards) == read_load(SGLANG)
    replicas = SGLANG.replace(b"{", b'{dp_rank="0",') + SGLANG.replace(b"{", b'{dp_rank="1",')
    assert read_load(replicas) == EngineLoad(322, 10, 0.28, 884_712.0)


def test_llamacpps_page_gives_the_load_and_its_usage_where_it_is_reported() -> None:
    found = read_load(LLAMACPP)
    assert found is not None
    assert (found.running, found.waiting, found.kv_capacity_tokens) == (6, 2, 0.0)
    assert math.isnan(found.kv_usage)
    assert read_load(LLAMACPP + b"llamacpp:kv_cache_usage_ratio 0.5\n") == EngineLoad(6, 2, 0.5, 0.0)


@pytest.mark.parametrize("page", [SGLANG, LLAMACPP])
def test_a_page_that_lacks_its_queue_is_none(page: bytes) -> None:
    for name in (b"sglang:num_queue_reqs", b"llamacpp:requests_deferred"):
        page = page.replace(name, b"other:metric")
    assert read_load(page) is None


def test_a_page_gives_load_and_capacity() -> None:
    assert read_load(PAGE) == EngineLoad(running=7, waiting=3, kv_usage=0.25, kv_capacity_tokens=440_000.0)


def test_engines_are_summed_and_their_usage_averaged() -> None:
    other = PAGE.replace(b'engine="0"', b'engine="1"').replace(b" 0.25", b" 0.75")
    assert read_load(PAGE + other) == EngineLoad(14, 6, 0.5, 880_000.0)


def test_the_older_name_of_the_usage_is_known() -> None:
    assert read_load(PAGE.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")) == read_load(PAGE)


def test_labels_may_hold_anything_and_may_be_missing() -> None:
    odd = PAGE.replace(b"meta-llama/Llama-3.1-8B", b'a}b \\" 9.0 {c')
    assert read_load(odd) == read_load(PAGE)
    assert read_load(
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting\t2 1700000000\nvllm:kv_cache_usage_perc 0"
    ) == (EngineLoad(1, 2, 0.0, 0.0))


def test_a_page_without_the_figures_is_none_of_vllms() -> None:
    assert read_load(b"") is None
    assert read_load(b"<html>not found</html>") is None
    assert read_load(PAGE.replace(b"vllm:num_requests_waiting", b"other:num_requests_waiting")) is None
    # Longer names that begin alike are others.
    assert read_load(PAGE.replace(b"vllm:num_requests_waiting", b"vllm:num_requests_waiting_by_reason")) is None


def test_figures_that_cannot_be_are_left_out() -> None:
    for wrong in (b"nan", b"+Inf", b"-1.0", b"1e300", b"seven", b""):
        assert read_load(PAGE.replace(b"} 7.0", b"} " + wrong)) is None
    assert read_load(PAGE.replace(b"} 0.25", b"} 1.5")) == EngineLoad(7, 3, 1.0, 440_000.0)
    assert read_load(PAGE.replace(b'num_gpu_blocks="27500"', b'num_gpu_blocks="None"')) == EngineLoad(7, 3, 0.25, 0.0)


@given(page=st.binary(max_size=400), at=st.integers(0, len(PAGE)))
def test_any_bytes_are_read_without_an_error(page: bytes, at: int) -> None:
    found = read_load(PAGE[:at] + page + PAGE[at:])
    assert found is None or (found.running >= 0 and found.waiting >= 0 and 0.0 <= found.kv_usage <= 1.0)


@pytest.mark.parametrize(
    "page",
    [
        b"vllm:num_requests_running" * 300_000,
        b"vllm:num_requests_running 1\n" * 300_000,
        b'vllm:num_requests_running{a="' + b"vllm:num_requests_running" * 300_000,
        b"\nvllm:num_requests_running{" + b"," * 8_000_000 + b"} 1",
        b"\nvllm:num_requests_running" + b" " * 8_000_000,
    ],
    ids=["names in one line", "samples", "names in a label", "labels", "spaces"],
)
def test_the_longest_page_that_is_taken_costs_little(page: bytes) -> None:
    began = time.process_time()
    read_load(page + b"\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n")
    # What was quadratic took two minutes.
    assert time.process_time() - began < 2.0


def test_a_line_that_is_too_long_is_no_sample_and_hides_none() -> None:
    long = b'\nvllm:num_requests_running{a="' + b"x" * 9000 + b'"} 7\n'
    page = long + PAGE + long
    assert read_load(page) == read_load(PAGE)
    assert read_load(PAGE.rstrip(b"\n")) == read_load(PAGE)
