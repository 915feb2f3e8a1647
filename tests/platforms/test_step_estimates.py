from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.platforms import FittedStepTime, device, model
from wavetank.platforms.step_estimates import DATA_SET, DEVICES, FILE, MODELS, read_step_estimates

HEAD = "system,model,backend,phase,tp,batch,context_tokens,latency_ms"
DECODE = "h100_sxm,meta-llama/Meta-Llama-3.1-8B,vllm,decode_step,1,4,1000,8.0"
PREFILL = "l40s,Qwen/Qwen3-32B,vllm,prefill,2,1,10,20.0"
OURS = FittedStepTime(overhead_s=1e-3, per_request_s=1e-3, per_context_token_s=1e-6, per_prefill_pair_s=1e-4)


@pytest.fixture
def write(tmp_path: Path):
    def make(*lines: str) -> Path:
        file = tmp_path / "estimates.csv.gz"
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
        return file

    return make


def test_estimates_are_read_with_our_names_and_in_seconds(write) -> None:
    decode, prefill = read_step_estimates(write(HEAD, DECODE, PREFILL))
    assert (decode.device, decode.model, decode.tensor_parallel, decode.batch) == ("H100-SXM", "Llama-3.1-8B", 1, 4)
    assert (decode.context_tokens, decode.seconds) == (1000, 0.008)
    assert (prefill.device, prefill.model, prefill.phase) == ("L40S", "Qwen3-32B", "prefill")


def test_the_ratio_is_ours_over_theirs_for_the_same_batch(write) -> None:
    decode, prefill = read_step_estimates(write(HEAD, DECODE, PREFILL))
    assert decode.ratio(OURS) == pytest.approx((1 + 4 + 4) / 8)
    assert prefill.ratio(OURS) == pytest.approx((1e-3 + 55 * 1e-4) / 0.02)


def test_devices_and_models_that_do_not_ship_are_left_out(write) -> None:
    assert read_step_estimates(write(HEAD, DECODE.replace("h100_sxm", "gb300"), DECODE.replace("8B", "9B"))) == ()
    assert [device(name).name for name in DEVICES.values()] == list(DEVICES.values())
    assert [model(name).name for name in MODELS.values()] == list(MODELS.values())


@pytest.mark.parametrize("wrong", [DECODE.replace("8.0", "-1"), DECODE.replace(",4,", ",four,"), DECODE[:-4]])
def test_a_line_that_is_no_estimate_is_named(write, wrong: str) -> None:
    with pytest.raises(BadFileError) as caught:
        read_step_estimates(write(HEAD, DECODE, wrong))
    assert caught.value.where.endswith("line 3")


def test_an_unknown_phase_is_refused(write) -> None:
    with pytest.raises(BadFileError):
        read_step_estimates(write(HEAD, DECODE.replace("decode_step", "encode")))


def test_missing_columns_are_named(write) -> None:
    with pytest.raises(BadFileError, match="latency_ms"):
        read_step_estimates(write(HEAD.replace("latency_ms", "ms"), DECODE))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(BadFileError):
        read_step_estimates(tmp_path / "x.csv.gz")
    with pytest.raises(BadFileError):
        read_step_estimates(tmp_path / "absent.csv.gz")


def test_without_the_data_set_the_error_says_where_it_was_looked_for(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WAVETANK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataUnavailableError):
        read_step_estimates()


def test_the_data_set_holds_estimates_for_every_shipped_device_it_names() -> None:
    from wavetank.workloads import datasets

    try:
        datasets.find(DATA_SET, FILE)
    except DataUnavailableError:
        pytest.skip(f"data set {DATA_SET} is not on this machine")
    estimates = read_step_estimates()
    assert {each.device for each in estimates} == set(DEVICES.values())
    assert len(estimates) == 360
