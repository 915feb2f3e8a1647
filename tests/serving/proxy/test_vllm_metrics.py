"""Reading a vLLM server's metrics page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.vllm_metrics import EngineLoad, read_load

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
