from __future__ import annotations

import csv
import gzip
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.platforms import RooflineStepTime, TableStepTime, model, step_ps
from wavetank.platforms.engine_overheads import EngineOverheads
from wavetank.platforms.links import Link

MODEL = replace(model("Llama-3.1-8B"), name="tiny", layers=2)
MOE_MODEL = replace(
    model("Qwen3-30B-A3B"), name="tiny-moe", layers=2, experts=4, experts_per_token=2, parameters=10**12
)
TOKENS = (1, 4, 16, 64)
CHUNKS, PROMPTS, DECODES, CONTEXTS = (16, 64), (0, 128, 512), (1, 4, 8), (16, 256, 1024)
LAYERS = {
    "embedding": 3.0, "layernorm": 2.0, "qkv_proj": 5.0, "rotary_emb": 1.0, "o_proj": 4.0, "gate_up_proj": 7.0,
    "act_fn": 1.5, "down_proj": 6.0, "final_layernorm": 2.5,
}  # fmt: skip
PER_LAYER_US = 2 * 2.0 + 5.0 + 1.0 + 4.0 + 7.0 + 1.5 + 6.0
PER_STEP_US = 3.0 + 2.5

Rows = list[tuple[object, ...]]


def prefill_us(chunk: float, prompt: float) -> float:
    return 5.0 + chunk * (prompt + chunk / 2) / 1000


def decode_us(decodes: float, context: float) -> float:
    return 4.0 + decodes * context / 500


def write_csv(file: Path, header: str, rows: Rows) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", newline="") as text:
        csv.writer(text).writerows([header.split(","), *rows])


def write_profile(folder: Path, layers: dict[str, float] = LAYERS, name: str = "tiny", degree: int = 1) -> Path:
    """A profile whose every layer costs its figure plus a hundredth of it a token, and whose mix costs a sixth more."""
    place = folder / "card" / name / f"tp{degree}"
    write_csv(
        place / "dense.csv.gz",
        "layer,tokens,time_us",
        [(layer, n, us * (1 + n / 100)) for layer, us in layers.items() for n in TOKENS],
    )
    write_csv(
        place / "per_sequence.csv.gz",
        "layer,sequences,time_us",
        [(layer, n, 10.0 + n) for layer in ("lm_head", "sampler") for n in (1, 8)],
    )
    attention: Rows = [(p, k, 0, 0, prefill_us(p, k)) for p, k in product(CHUNKS, PROMPTS)]
    attention += [(0, 0, n, c, decode_us(n, c)) for n, c in product(DECODES, CONTEXTS)]
    attention += [
        (p, k, n, c, 7 / 6 * (prefill_us(p, k) + decode_us(n, c)))
        for p, k, n, c in product(CHUNKS, PROMPTS, DECODES, CONTEXTS)
    ]
    write_csv(place / "attention.csv.gz", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path)
    return tmp_path


@pytest.fixture
def table(folder: Path) -> TableStepTime:
    return TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, overhead_s=1e-3)


def linear_us(tokens: float) -> float:
    return 1000.0 + (2 * PER_LAYER_US + PER_STEP_US) * (1 + tokens / 100)


@pytest.mark.parametrize(("n", "context"), list(product(DECODES, CONTEXTS)))
def test_measured_decode_batches_come_out_as_measured(table: TableStepTime, n: int, context: int) -> None:
    us = linear_us(n) + 2 * (10 + n) + 2 * decode_us(n, context)
    assert step_ps(table, n, n * context) == pytest.approx(us * 1e6, abs=2)


@pytest.mark.parametrize(("chunk", "prompt"), list(product(CHUNKS, PROMPTS)))
def test_measured_prompt_chunks_come_out_as_measured(table: TableStepTime, chunk: int, prompt: int) -> None:
    pairs = chunk * prompt + chunk * (chunk + 1) // 2
    us = linear_us(chunk) + 2 * 11 + 2 * prefill_us(chunk, prompt)
    assert step_ps(table, 0, 0, chunk, pairs) == pytest.approx(us * 1e6, abs=2)


@pytest.mark.parametrize(("chunk", "prompt", "n", "context"), list(product((16,), PROMPTS, DECODES[:2], CONTEXTS)))
def test_measured_mixed_batches_come_out_as_measured(
    table: TableStepTime, chunk: int, prompt: int, n: int, context: int
) -> None:
    pairs = chunk * prompt + chunk * (chunk + 1) // 2
    us = linear_us(n + chunk) + 2 * (11 + n) + 2 * 7 / 6 * (prefill_us(chunk, prompt) + decode_us(n, context))
    assert step_ps(table, n, n * context, chunk, pairs) == pytest.approx(us * 1e6, abs=2)


def test_between_measurements_time_is_linear(table: TableStepTime) -> None:
    middle = (step_ps(table, 4, 4 * 256) + step_ps(table, 4, 4 * 1024)) / 2
    assert step_ps(table, 4, 4 * 640) == pytest.approx(middle, abs=2)


def test_below_the_smallest_measurement_the_smallest_is_used(table: TableStepTime) -> None:
    assert step_ps(table, 4, 0) == step_ps(table, 4, 4 * 16)


def test_beyond_the_largest_measurement_the_trend_goes_on(table: TableStepTime) -> None:
    us = linear_us(32) + 2 * (10 + 32) + 2 * decode_us(32, 4096)
    assert step_ps(table, 32, 32 * 4096) == pytest.approx(us * 1e6, rel=1e-9)


def test_a_chunk_beyond_the_largest_is_as_many_of_the_largest_with_the_same_pairs(table: TableStepTime) -> None:
    attention = step_ps(table, 0, 0, 256, 256 * 257 // 2) - (linear_us(256) + 2 * 11) * 1e6
    # Four chunks of 64 behind contexts of 0, 64, 128 and 192: 96 on average.
    assert attention == pytest.approx(4 * 2 * prefill_us(64, 96) * 1e6, rel=1e-6)


def test_several_short_prompts_cost_the_attention_of_one_with_their_pairs(table: TableStepTime) -> None:
    pairs = 64 * 65 // 2
    four = step_ps(table, 0, 0, 120, pairs) - linear_us(120) * 1e6
    one = step_ps(table, 0, 0, 64, pairs) - linear_us(64) * 1e6
    assert four == pytest.approx(one, abs=4)


def test_measured_context_is_declared_not_linear(table: TableStepTime) -> None:
    assert table.context_slope_ps == -1
    assert table.seconds(4, 4000) == step_ps(table, 4, 4000) / 10**12


@settings(max_examples=100, deadline=None)
@given(R=st.integers(0, 3000), C=st.integers(0, 10**8), P=st.integers(0, 10**5), S=st.integers(0, 10**10))
def test_any_batch_has_a_time_in_whole_picoseconds(
    R: int, C: int, P: int, S: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    if not folder.exists():
        write_profile(folder)
    step_time = TableStepTime.from_vllm_profiles("card", MODEL, folder=folder)
    ps = step_ps(step_time, R, C, P, S)
    assert isinstance(ps, int)
    assert ps >= 1
    assert ps == step_time.function(R, C, P, S, step_time.table)
    assert ps == step_time.function.py_func(R, C, P, S, step_time.table)  # type: ignore[attr-defined]


def test_pickles_and_compares_by_values(table: TableStepTime, folder: Path) -> None:
    again = pickle.loads(pickle.dumps(table))
    assert again == table
    assert hash(again) == hash(table)
    assert step_ps(again, 3, 300, 20, 500) == step_ps(table, 3, 300, 20, 500)
    assert TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, overhead_s=2e-3) != table
    assert len(repr(table)) < 200


def test_plain_csv_is_read_as_well(folder: Path, table: TableStepTime) -> None:
    for file in (folder / "card" / "tiny" / "tp1").glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, overhead_s=1e-3) == table


def test_the_folder_may_carry_a_longer_name_than_the_model(folder: Path, table: TableStepTime) -> None:
    (folder / "card" / "tiny").rename(folder / "card" / "tiny-Instruct-2507")
    assert TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, overhead_s=1e-3).values == table.values


def test_query_and_key_norms_count_where_they_were_profiled(tmp_path: Path, table: TableStepTime) -> None:
    write_profile(tmp_path / "more", LAYERS | {"qk_norm": 1.0})
    more = TableStepTime.from_vllm_profiles("card", MODEL, folder=tmp_path / "more", overhead_s=1e-3)
    assert step_ps(more, 4, 64) - step_ps(table, 4, 64) == pytest.approx(2 * 1.04e6, abs=2)


def test_what_was_not_measured_is_filled_in_from_its_neighbours(folder: Path, table: TableStepTime) -> None:
    file = folder / "card" / "tiny" / "tp1" / "attention.csv.gz"
    with gzip.open(file, "rt", newline="") as text:
        header, *rows = list(csv.reader(text))
    write_csv(file, ",".join(header), [tuple(row) for row in rows if row[:4] != ["16", "128", "4", "256"]])
    filled = TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, overhead_s=1e-3)
    batch = (4, 4 * 256, 16, 16 * 128 + 136)
    assert step_ps(filled, *batch) == pytest.approx(step_ps(table, *batch), abs=2)  # made linear in every count


def test_experts_are_looked_up_at_the_number_expected_to_be_touched(tmp_path: Path) -> None:
    dense = {layer: us for layer, us in LAYERS.items() if layer not in ("gate_up_proj", "act_fn", "down_proj")}
    place = write_profile(tmp_path, dense, "tiny-moe")
    write_csv(
        place / "moe.csv.gz",
        "tokens,activated_experts,time_us",
        [(n, e, 100.0 * e + n) for n in (1, 2, 64) for e in (2, 4) if e <= 2 * n],
    )
    step_time = TableStepTime.from_vllm_profiles("card", MOE_MODEL, folder=tmp_path, overhead_s=0.0)
    dense_us = 2 * (PER_LAYER_US - 14.5) + PER_STEP_US
    for n, touched in ((1, 2.0), (4, 4 * (1 - 0.5**4))):
        us = dense_us * (1 + n / 100) + 2 * (100 * touched + n) + 2 * (10 + n) + 2 * decode_us(n, 256)
        assert step_ps(step_time, n, n * 256) == pytest.approx(us * 1e6, abs=2)


def test_tensor_parallelism_adds_the_all_reduces_of_the_device(tmp_path: Path) -> None:
    write_profile(tmp_path)
    write_profile(tmp_path, degree=2)
    (tmp_path / "card").rename(tmp_path / "H100-SXM")
    one, two = (
        TableStepTime.from_vllm_profiles("H100-SXM", MODEL, degree, folder=tmp_path, link_efficiency=0.5)
        for degree in (1, 2)
    )
    link = 4.5e11 * 0.5
    all_reduce_s = (2 * 2 + 1) * (1e-5 + 2 * 4096 * 4 / link)
    logits_s = 1e-5 + 2 * 128256 / 2 * 4 / link
    assert step_ps(two, 4, 64) - step_ps(one, 4, 64) == pytest.approx((all_reduce_s + logits_s) * 1e12, abs=2)


def test_a_link_that_is_known_counts_in_place_of_the_data_sheets(tmp_path: Path) -> None:
    write_profile(tmp_path)
    write_profile(tmp_path, degree=2)

    def seconds(degree: int) -> float:
        link = Link(bytes_per_s=1e9, latency_s=2e-5, per_hop=True)
        # No device of this name ships: its link is not asked for.
        return TableStepTime.from_vllm_profiles("card", MODEL, degree, folder=tmp_path, link=link).seconds(4, 64)

    collectives_s = 5 * (2 * 2e-5 + 2 * 4096 * 4 / 1e9) + 2e-5 + 128256 * 4 / 1e9
    assert seconds(2) - seconds(1) == pytest.approx(collectives_s, rel=1e-6)


def test_tensor_parallelism_needs_a_device_whose_link_is_known(tmp_path: Path) -> None:
    write_profile(tmp_path, degree=2)
    with pytest.raises(UnknownNameError, match="card"):
        TableStepTime.from_vllm_profiles("card", MODEL, 2, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cart", MODEL), "nearest: card"),
        (("card", "Qwen3-32B"), "model 'Qwen3-32B'"),
        (("card", MODEL, 2), "tp2"),
    ],
)
def test_a_missing_profile_says_what_there_is(folder: Path, arguments: tuple[str, str], said: str) -> None:
    with pytest.raises(BadFileError) as caught:
        TableStepTime.from_vllm_profiles(*arguments, folder=folder)
    assert said in str(caught.value)
    assert caught.value.allowed is not None


def test_without_a_folder_the_data_set_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(tmp_path / "vllm-layer-profiles")
    write_vidur(tmp_path / "vidur-profiles")
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    assert TableStepTime.from_vllm_profiles("card", MODEL).source == "vllm-layer-profiles card/tiny/tp1"
    assert TableStepTime.from_vidur_profiles(ROOFLINE).source == "vidur-profiles h100/Some-Llama_mlp.csv.gz"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="card"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=tmp_path / "nowhere")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:40])


def not_gzip(file: Path) -> None:
    file.write_bytes(b"tokens,time_us\n")


def rewrite(text: str) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(gzip.compress(text.encode())) and None


@pytest.mark.parametrize("stem", ["dense", "per_sequence", "attention"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "lacks"),
        (cut, "cannot be read"),
        (not_gzip, "cannot be read"),
        (rewrite(""), "Columns are missing"),
        (rewrite("layer,time_us\n"), "Columns are missing"),
        (rewrite("layer,tokens,sequences,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"), "Too few"),
        (rewrite("layer,tokens,sequences,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\na,1\n"), "line 2"),
        (
            rewrite("layer,tokens,sequences,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\na,1,1,1,1,1,1,x\n"),
            "line 2",
        ),
        (
            rewrite("layer,tokens,sequences,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\na,1,1,1,1,1,1,-3\n"),
            "line 2",
        ),
    ],
)
def test_a_damaged_profile_says_what_is_wrong_and_where(
    folder: Path, stem: str, damage: Callable[[Path], None], said: str
) -> None:
    damage(folder / "card" / "tiny" / "tp1" / f"{stem}.csv.gz")
    with pytest.raises(BadFileError) as caught:
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder)
    assert said in str(caught.value)
    assert "tp1" in str(caught.value)


def test_a_layer_that_was_not_profiled_is_named(tmp_path: Path) -> None:
    write_profile(tmp_path, {layer: us for layer, us in LAYERS.items() if layer != "o_proj"})
    with pytest.raises(BadFileError, match="o_proj"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=tmp_path)


def test_experts_without_a_profile_of_experts_are_refused(tmp_path: Path) -> None:
    place = write_profile(tmp_path, name="tiny-moe")
    with pytest.raises(BadFileError, match=r"moe\.csv\.gz"):
        TableStepTime.from_vllm_profiles("card", MOE_MODEL, folder=tmp_path)
    write_csv(place / "moe.csv.gz", "tokens,activated_experts,time_us", [(1, 2, 3.0)])
    with pytest.raises(BadFileError, match="Too few"):
        TableStepTime.from_vllm_profiles("card", MOE_MODEL, folder=tmp_path)


@pytest.mark.parametrize("change", [{"overhead_s": -1.0}, {"link_efficiency": 0.0}, {"tensor_parallel": 5}])
def test_parameters_out_of_range_are_refused_by_name(folder: Path, change: dict[str, float]) -> None:
    with pytest.raises(BadValueError, match=next(iter(change))):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, **change)  # type: ignore[arg-type]


def test_layout_and_slope_go_together(table: TableStepTime) -> None:
    with pytest.raises(BadValueError, match="layout"):
        replace(table, layout="some-layers")  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match="context_slope_ps"):
        replace(table, context_slope_ps=0)


# Vidur's profiles

OPERATORS = (
    "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
ROOFLINE = RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", overhead_s=0.0)
VIDUR_HEADER = ",".join(
    ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "num_tokens", "num_tensor_parallel_workers"]
    + [f"time_stats.{op}.median" for op in OPERATORS]
)


def write_vidur(folder: Path, name: str = "Some-Llama", vocab: int = 128256, ms: float = 0.01) -> None:
    rows: Rows = [
        (32, 8, 4096, 14336, vocab, n, 1, *(ms * (1 + n / 100) for _ in OPERATORS)) for n in TOKENS for _ in range(2)
    ]
    write_csv(folder / "h100" / f"{name}_mlp.csv.gz", VIDUR_HEADER, rows)


def test_linear_layers_come_from_the_profile_and_the_rest_from_the_roofline(tmp_path: Path) -> None:
    write_vidur(tmp_path)
    step_time = TableStepTime.from_vidur_profiles(ROOFLINE, folder=tmp_path)
    head_s = 2 * 128256 * 4096 / (3.35e12 * 0.8)
    write_s = 131_072 / (3.35e12 * 0.8)
    for n in (1, 16, 40):
        linear_s = (1 + 32 * 9) * 1e-5 * (1 + n / 100)
        assert step_time.seconds(n, 0) == pytest.approx(linear_s + head_s + n * write_s, rel=1e-9)
    pairs = step_time.seconds(0, 0, 16, 10**6) - step_time.seconds(0, 0, 16, 0)
    assert pairs == pytest.approx(4 * 32 * 4096 * 10**6 / (9.89e14 * 0.7), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(R=st.integers(0, 3000), C=st.integers(0, 10**8), P=st.integers(0, 10**5), S=st.integers(0, 10**10))
def test_context_stays_linear_with_the_slope_of_the_roofline(
    R: int, C: int, P: int, S: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "vidur"
    if not folder.exists():
        write_vidur(folder)
    step_time = TableStepTime.from_vidur_profiles(ROOFLINE, folder=folder)
    assert step_time.context_slope_ps == ROOFLINE.context_slope_ps
    without = step_time.function(R, 0, P, S, step_time.table)
    assert without >= 1
    assert step_ps(step_time, R, C, P, S) == without + step_time.context_slope_ps * C
    assert step_time.function(R, C, P, S, step_time.table) == without + step_time.context_slope_ps * C
    assert step_time.function.py_func(R, C, P, S, step_time.table) == step_ps(step_time, R, C, P, S)  # type: ignore[attr-defined]


def test_a_profile_with_the_models_own_vocabulary_is_preferred(tmp_path: Path) -> None:
    write_vidur(tmp_path, "Another", vocab=32000, ms=5.0)
    write_vidur(tmp_path, "Own")
    assert TableStepTime.from_vidur_profiles(ROOFLINE, folder=tmp_path).source.endswith("Own_mlp.csv.gz")


def test_a_shape_nobody_profiled_is_refused_with_what_there_is(tmp_path: Path) -> None:
    write_vidur(tmp_path)
    with pytest.raises(BadFileError, match="Qwen3-32B") as caught:
        TableStepTime.from_vidur_profiles(RooflineStepTime(device="H100-SXM", model="Qwen3-32B"), folder=tmp_path)
    assert caught.value.allowed == ("Some-Llama",)


def test_a_device_or_parallelism_nobody_profiled_is_refused(tmp_path: Path) -> None:
    write_vidur(tmp_path)
    with pytest.raises(BadFileError, match="a100"):
        TableStepTime.from_vidur_profiles(replace(ROOFLINE, device="A100-SXM-80GB"), folder=tmp_path)
    with pytest.raises(BadFileError, match="tensor_parallel=2"):
        TableStepTime.from_vidur_profiles(replace(ROOFLINE, tensor_parallel=2), folder=tmp_path)


# The real data sets


def data_set(name: str) -> Path:
    folder = Path(os.environ.get("WAVETANK_DATA", "")) / name
    if not (folder / "SOURCE.md").is_file():
        pytest.skip(f"data set {name} is not on this machine")
    return folder


def test_every_measured_attention_of_a_real_profile_is_reproduced() -> None:
    folder = data_set("vllm-layer-profiles")
    step_time = TableStepTime.from_vllm_profiles("RTXPRO6000", "Llama-3.1-8B", folder=folder)
    with gzip.open(folder / "RTXPRO6000/Llama-3.1-8B/tp1/attention.csv.gz", "rt") as text:
        rows = [tuple(map(float, row.values())) for row in csv.DictReader(text)]
    seen: dict[tuple[int, int], set[int]] = {}
    for chunk, prompt, n, context, us in rows[::7]:
        P, R = int(chunk), int(n)
        S = int(chunk * prompt + chunk * (chunk + 1) / 2)
        rest = step_ps(step_time, R, int(n * context), P, S) - us * 1e6 * 32
        seen.setdefault((R, P), set()).add(round(rest / 10))
    # What is left over depends on the numbers of tokens and rows alone.
    assert all(max(rest) - min(rest) <= 1 for rest in seen.values())


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-32B"])
def test_measured_layers_are_near_predictions_of_another_tool(name: str) -> None:
    # Another tool, another vLLM, the same card: a factor of two would mean a layer counted twice or left out.
    profiles = data_set("vllm-layer-profiles")
    with gzip.open(data_set("gpu-specs-and-estimates") / "step_estimates.csv.gz", "rt") as text:
        rows = [
            row
            for row in csv.DictReader(text)
            if row["system"] == "rtx_pro_6000_server" and row["model"].endswith(name) and row["tp"] == "1"
        ]
    assert len(rows) == 6
    step_time = TableStepTime.from_vllm_profiles("RTXPRO6000", name, folder=profiles)
    for row in rows:
        n, tokens = int(row["batch"]), int(row["context_tokens"])
        if row["phase"] == "decode_step":
            seconds = step_time.seconds(n, n * tokens)
        else:
            seconds = step_time.seconds(0, 0, n * tokens, n * tokens * (tokens + 1) // 2)
        assert 0.5 < seconds * 1e3 / float(row["latency_ms"]) < 2


def test_measured_layers_add_up_to_the_steps_of_a_real_run() -> None:
    # Seconds 13 and 14 of the profile's own end-to-end run have no arrivals: 128 sequences, 4,800 tokens/s.
    step_time = TableStepTime.from_vllm_profiles("RTXPRO6000", "Llama-3.1-8B", folder=data_set("vllm-layer-profiles"))
    assert step_time.seconds(128, 128 * 1068) == pytest.approx(128 / 4800, rel=0.1)


@pytest.mark.parametrize(
    ("device", "name"), list(product(("A100-SXM-80GB", "H100-SXM"), ("Llama-3.1-70B", "Llama-2-7B")))
)
def test_vidurs_layers_are_near_the_roofline(device: str, name: str) -> None:
    folder = data_set("vidur-profiles")
    roofline = RooflineStepTime(device=device, model=name)
    step_time = TableStepTime.from_vidur_profiles(roofline, folder=folder)
    for batch in ((16, 32_768), (256, 256 * 2048), (0, 0, 512, 512 * 513 // 2), (0, 0, 4096, 4096 * 4097 // 2)):
        assert 0.6 < step_time.seconds(*batch) / roofline.seconds(*batch) < 1.7


def test_every_profile_on_this_machine_can_be_read() -> None:
    folder = data_set("vllm-layer-profiles")
    ratios = []
    for hardware, name, degree in (
        ("RTX4090", "Llama-3.1-8B", 1), ("RTXPRO6000", "Llama-3.1-8B", 2), ("RTXPRO6000", "Qwen3-32B", 1),
        ("RTXPRO6000", "Qwen3-32B", 2), ("RTXPRO6000", "Qwen3-30B-A3B", 1),
    ):  # fmt: skip
        measured = TableStepTime.from_vllm_profiles(hardware, name, degree, folder=folder)
        modelled = RooflineStepTime(device=hardware, model=name, tensor_parallel=degree)
        ratios += [measured.seconds(n, n * 1024) / modelled.seconds(n, n * 1024) for n in (1, 32, 128)]
    assert min(ratios) > 0.7
    assert max(ratios) < 1.4
    assert np.isfinite(ratios).all()


EXPERT_US = {1: 10.0, 2: 18.0, 4: 30.0}


@pytest.fixture
def shared(tmp_path: Path) -> Callable[..., TableStepTime]:
    """Two layers of four experts, two a token, on a card with a link."""
    place = write_profile(tmp_path, {k: v for k, v in LAYERS.items() if "proj" not in k or k[0] in "qo"}, "tiny-moe")
    write_csv(
        place / "moe.csv.gz",
        "tokens,activated_experts,time_us",
        [(n, touched, us + n / 10) for n in TOKENS for touched, us in EXPERT_US.items()],
    )
    (tmp_path / "card").rename(tmp_path / "RTXPRO6000")

    def read(expert_parallel: int, **more: float) -> TableStepTime:
        given = {"overhead_s": 0.0, "collective_latency_s": 0.0, "link_efficiency": 1.0} | more
        return TableStepTime.from_vllm_profiles(
            "RTXPRO6000", MOE_MODEL, folder=tmp_path, expert_parallel=expert_parallel, **given
        )

    return read


def test_engines_that_share_experts_each_touch_their_part(shared: Callable[..., TableStepTime]) -> None:
    # 64 tokens of each of two engines touch all experts: two on each engine instead of four.
    saved_us = 2 * (EXPERT_US[4] - EXPERT_US[2])
    sent = 2 * 2 * 64 * 2 * MOE_MODEL.hidden / 6.4e10
    alone, both = shared(1), shared(2)
    assert alone.seconds(64, 6400) - both.seconds(64, 6400) == pytest.approx(saved_us * 1e-6 - sent, rel=1e-6)


def test_experts_profiled_on_one_device_are_divided_among_those_of_an_engine(
    shared: Callable[..., TableStepTime], tmp_path: Path
) -> None:
    layers = {k: v for k, v in LAYERS.items() if "proj" not in k or k[0] in "qo"}
    (tmp_path / "RTXPRO6000").rename(tmp_path / "card")
    write_profile(tmp_path, layers, "tiny-moe", degree=2)
    (tmp_path / "card").rename(tmp_path / "RTXPRO6000")
    free = Link(bytes_per_s=1e30, latency_s=0.0)
    one, two = (
        TableStepTime.from_vllm_profiles("RTXPRO6000", MOE_MODEL, degree, folder=tmp_path, overhead_s=0.0, link=free)
        for degree in (1, 2)
    )
    # 64 tokens touch all four experts: each of two devices has two of them, and the pairs of 32 tokens.
    saved_us = 2 * (EXPERT_US[4] + 6.4 - EXPERT_US[2] - 3.2)
    assert one.seconds(64, 6400) - two.seconds(64, 6400) == pytest.approx(saved_us * 1e-6, rel=1e-6)


def test_engines_are_padded_to_each_other_up_to_the_largest_captured_graph(
    shared: Callable[..., TableStepTime],
) -> None:
    padded, plain = shared(2).with_overheads(EngineOverheads(graph_sizes=(1, 8, 32))), shared(2)

    def saved_s(decodes: int, prompt: int) -> float:
        batch = (decodes, 100 * decodes, prompt, prompt * (prompt + 1) // 2)
        return plain.seconds(*batch) - padded.seconds(*batch)

    # 64 tokens fit no graph: the other engine decodes 4 sequences, so that each of them gets 34 on average.
    assert saved_s(4, 60) == pytest.approx(2 * (64 - 34) / 10 * 1e-6, rel=1e-6)
    assert saved_s(40, 0) == pytest.approx(0.0, abs=1e-11)
    # 32 fit one, and then the other computes as many, whatever they are.
    assert saved_s(4, 28) == pytest.approx(0.0, abs=1e-11)


def test_experts_of_one_engine_alone_meet_all_of_its_tokens(shared: Callable[..., TableStepTime]) -> None:
    padded = shared(1).with_overheads(EngineOverheads(graph_sizes=(1, 8, 32)))
    assert padded.seconds(4, 400, 60, 1830) == pytest.approx(shared(1).seconds(4, 400, 60, 1830), rel=1e-9)
    assert padded.seconds(5, 500) > shared(1).seconds(5, 500)


def test_collectives_of_shared_experts_start_twice_a_layer(shared: Callable[..., TableStepTime]) -> None:
    late = shared(2, collective_latency_s=1e-3).seconds(4, 400) - shared(2).seconds(4, 400)
    assert late == pytest.approx(2 * MOE_MODEL.layers * 1e-3)
    assert shared(1, collective_latency_s=1e-3) == shared(1)


@pytest.mark.parametrize("workers", [0, -2, 3, 8, True])
def test_experts_must_divide_among_the_engines(shared: Callable[..., TableStepTime], workers: int) -> None:
    with pytest.raises(BadValueError):
        shared(workers)


def test_a_dense_model_has_no_experts_to_share(folder: Path) -> None:
    with pytest.raises(BadValueError, match="0 experts"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, expert_parallel=2)


BATCHES = [(1, 16, 0, 0), (4, 1024, 0, 0), (0, 0, 16, 136), (4, 1024, 16, 136), (8, 800, 64, 2080)]


@pytest.mark.parametrize(("n", "context", "chunk", "pairs"), BATCHES)
def test_overheads_add_a_time_a_step_and_a_time_a_sequence(
    table: TableStepTime, n: int, context: int, chunk: int, pairs: int
) -> None:
    more = table.with_overheads(EngineOverheads(step_s=2e-3, sequence_s=3e-5))
    rows = n + (chunk > 0)
    added = step_ps(more, n, context, chunk, pairs) - step_ps(table, n, context, chunk, pairs)
    assert added == pytest.approx((2e-3 + rows * 3e-5) * 1e12, abs=2)


def test_a_batch_is_padded_to_the_next_captured_graph_in_its_linear_layers_alone(table: TableStepTime) -> None:
    more = table.with_overheads(EngineOverheads(graph_sizes=(1, 8, 32)))
    added = step_ps(more, 4, 1024) - step_ps(table, 4, 1024)
    assert added == pytest.approx((linear_us(8) - linear_us(4)) * 1e6, abs=2)
    mixed = step_ps(more, 4, 1024, 16, 136) - step_ps(table, 4, 1024, 16, 136)
    assert mixed == pytest.approx((linear_us(32) - linear_us(20)) * 1e6, abs=2)
    for batch in ((8, 2048, 0, 0), (0, 0, 64, 2080), (40, 4000, 0, 0)):
        assert step_ps(more, *batch) == pytest.approx(step_ps(table, *batch), abs=2)


def test_no_overheads_change_nothing(table: TableStepTime) -> None:
    assert table.with_overheads(EngineOverheads()) == table


def test_a_profile_without_attention_takes_no_overheads() -> None:
    bare = TableStepTime(source="mine", layout="linear-layers", values=(0.0,), context_slope_ps=0)
    with pytest.raises(BadValueError, match="every layer"):
        bare.with_overheads(EngineOverheads(step_s=1e-3))


SPREAD = "pc,n,nb,kvs,kv_big,t_mean_us,t_skew_us"


def write_spread(folder: Path, rows: Rows) -> None:
    write_csv(folder / "card" / "tiny" / "tp1" / "skew.csv.gz", SPREAD, rows)


def spread_rows(chunk: int, longer: dict[int, float]) -> Rows:
    """Half of n sequences have three times the context of the others, a variation of one half."""
    return [(chunk, n, n // 2, 100, 300, 50.0, 50.0 * (1 + factor / 2)) for n, factor in longer.items()]


def test_unequal_contexts_lengthen_attention_by_what_was_measured(folder: Path) -> None:
    write_spread(folder, spread_rows(0, {2: 0.0, 4: 0.2, 8: 0.1}) + spread_rows(16, {4: 0.4, 8: 0.4}))

    def read(variation: float) -> TableStepTime:
        return TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, context_variation=variation)

    even, uneven = read(0.0), read(0.6)
    decodes = step_ps(uneven, 4, 1024) - step_ps(even, 4, 1024)
    assert decodes == pytest.approx(0.6 * 0.2 * 2 * decode_us(4, 256) * 1e6, abs=4)
    mixed = step_ps(uneven, 4, 1024, 16, 136) - step_ps(even, 4, 1024, 16, 136)
    assert mixed == pytest.approx(0.6 * 0.4 * 2 * 7 / 6 * (prefill_us(16, 0) + decode_us(4, 256)) * 1e6, abs=4)
    for alone in ((1, 256, 0, 0), (0, 0, 16, 136)):
        assert step_ps(uneven, *alone) == pytest.approx(step_ps(even, *alone), abs=2)


def test_noise_of_nearly_equal_contexts_and_gains_are_not_taken_over(folder: Path) -> None:
    nearly: Rows = [(0, 4, 2, 100, 110, 50.0, 500.0)]
    write_spread(folder, nearly + spread_rows(0, {4: -0.2, 8: -0.2}) + spread_rows(16, {4: -0.1}))
    plain = TableStepTime.from_vllm_profiles("card", MODEL, folder=folder)
    assert TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, context_variation=0.5) == plain


def test_without_measurements_of_unequal_contexts_they_are_refused(folder: Path) -> None:
    with pytest.raises(BadFileError, match=r"lacks skew\.csv\.gz"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, context_variation=0.5)
    write_spread(folder, spread_rows(0, {4: 0.1}))
    with pytest.raises(BadFileError, match="unequal contexts"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, context_variation=0.5)
    with pytest.raises(BadValueError, match="context_variation"):
        TableStepTime.from_vllm_profiles("card", MODEL, folder=folder, context_variation=-0.1)


class TestProbes:
    """Whole steps as they were measured at an engine."""

    DECODE: ClassVar = {(n, c): 1e-3 * n + 1e-6 * n * c for n in (1, 4, 16) for c in (64, 512)}
    PREFILL: ClassVar = {(p, o): 1e-3 + 2e-5 * p + 1e-8 * p * o for p in (8, 64, 512) for o in (0, 500)}

    def made(self, **changed: Any) -> TableStepTime:
        return TableStepTime.from_probes(
            "an engine", **{"decode_s": self.DECODE, "prefill_s": self.PREFILL, "shared_s": 1e-3, **changed}
        )

    def test_what_was_measured_comes_out(self) -> None:
        step = self.made()
        for (n, context), seconds in self.DECODE.items():
            assert step.seconds(n, n * context) == pytest.approx(seconds, abs=1e-12)
        for (chunk, before), seconds in self.PREFILL.items():
            pairs = chunk * before + chunk * (chunk + 1) // 2
            assert step.seconds(0, 0, chunk, pairs) == pytest.approx(seconds, abs=1e-12)

    def test_a_step_that_does_both_shares_what_was_measured_as_shared(self) -> None:
        alone = self.DECODE[4, 64] + self.PREFILL[64, 0]
        pairs = 64 * 65 // 2
        for shared in (0.0, 1e-3):
            assert self.made(shared_s=shared).seconds(4, 256, 64, pairs) == pytest.approx(alone - shared, abs=1e-12)
        # Never shorter than the longer of the two.
        longer = max(self.DECODE[4, 64], self.PREFILL[64, 0])
        assert self.made(shared_s=1.0).seconds(4, 256, 64, pairs) == pytest.approx(longer, abs=1e-12)

    def test_more_work_never_takes_less_time(self) -> None:
        noisy = {**self.DECODE, (4, 64): 0.5e-3, (16, 512): 1e-3}
        step = self.made(decode_s=noisy)
        assert step.seconds(1, 64) <= step.seconds(4, 256) <= step.seconds(4, 2048) <= step.seconds(16, 16 * 512)

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"decode_s": {(1, 64): 1e-3, (4, 64): 2e-3}}, "Too few"),
            ({"prefill_s": {}}, "Too few"),
            ({"prefill_s": {(1, 0): 1e-3, (2, 1): math.nan}}, "takes time"),
            ({"decode_s": {(1, 0): 1e-3, (2, 1): 0.0}}, "takes time"),
            ({"shared_s": -1.0}, "shared_s"),
        ],
    )
    def test_what_cannot_be_is_refused(self, changed: dict[str, Any], says: str) -> None:
        with pytest.raises(BadValueError, match=says):
            self.made(**changed)
