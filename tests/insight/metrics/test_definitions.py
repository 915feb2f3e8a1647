"""Metrics: figures of brute force, of planted truth, and none where the card or the trace does not say."""

import json
import random

import numpy as np
import pytest

from wavetank.errors import DataUnavailableError, UnknownNameError
from wavetank.insight.metrics.cards import Card, card_of
from wavetank.insight.metrics.definitions import METRICS, figures, report
from wavetank.insight.metrics.interface import SHARED
from wavetank.insight.metrics.planted import OVERLAPS, planted
from wavetank.insight.traces.measures import TraceSource
from wavetank.workloads import datasets

CARD = {
    "version": 1,
    "workload": {
        "model": {
            "phase": "training", "moe": True, "precision": "bf16",
            "model_arch": {"num_params": 10**9, "num_params_active": 10**8, "num_params_embedding": 10**7,
                           "num_layers": 2, "num_heads": 4, "head_dim": 8}},
        "data": {"batch_size": 4, "seq_len": 512},
        "hardware": {"xpu_spec": {"type": "GPU", "model": "nvidia_a100", "total_count": 4, "peak_tflops": 100.0}},
    },
}  # fmt: skip


def kernel(name, start, took, lane=7, **more):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": took, "args": {"stream": lane}, **more}


def mark(name, start, took):
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": took}


def source(folder, *ranks):
    for number, events in enumerate(ranks):
        content = {"distributedInfo": {"rank": number, "world_size": len(ranks)}, "traceEvents": events}
        (folder / f"rank{number}.json").write_text(json.dumps(content))
    return TraceSource(folder)


def value(name, card, traces):
    return figures(card_of(card), traces, [name])[name].value


@pytest.mark.parametrize("percent", OVERLAPS)
def test_planted_shares_come_out(tmp_path, percent):
    made = planted(percent, 0)
    found = figures(Card(version=1), TraceSource(made.write(tmp_path / "a.json")), SHARED)
    for name in SHARED:
        assert found[name].value == pytest.approx(made.truth[name], abs=1e-12)
    assert found["compute_comm_overlap"].value == percent / 100


def test_order_of_events_and_a_shift_of_time_change_nothing(tmp_path):
    made = planted(50, 1)
    before = figures(Card(version=1), TraceSource(made.write(tmp_path / "a.json")))
    shifted = [{**each, "ts": each["ts"] + 1000} for each in made.events]
    random.Random(0).shuffle(shifted)
    after = figures(Card(version=1), TraceSource(made._replace(events=shifted).write(tmp_path / "b.json")))
    assert after == before


def test_every_metric_says_how_it_is_defined_and_gives_a_figure_or_a_reason(tmp_path):
    empty = source(tmp_path, [mark("ProfilerStep#0", 0, 10)])
    for name, found in figures(Card(version=1), empty).items():
        assert METRICS[name].__doc__
        assert found.value is None, name
        assert found.reason, name


def test_a_card_without_a_needed_field_gives_no_figure_and_says_which(tmp_path):
    traces = source(tmp_path, [kernel("gemm", 0, 5), mark("ProfilerStep#0", 0, 10), mark("ProfilerStep#1", 10, 10)])
    assert value("mfu", CARD, traces) is not None
    for path in (
        ("data", "batch_size"), ("data", "seq_len"), ("hardware", "xpu_spec", "total_count"),
        ("model", "model_arch", "num_params"), ("model", "phase"),
    ):  # fmt: skip
        card = json.loads(json.dumps(CARD))
        part = card["workload"]
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        found = figures(card_of(card), traces, ["mfu"])["mfu"]
        assert found.value is None
        assert path[-1] in found.reason
    without = json.loads(json.dumps(CARD))
    del without["workload"]["model"]["model_arch"]["num_params_active"]
    assert "num_params_active" in figures(card_of(without), traces, ["mfu"])["mfu"].reason
    without = json.loads(json.dumps(CARD))
    without["workload"]["hardware"]["xpu_spec"] |= {"model": "abacus", "peak_tflops": None}
    assert "peak_tflops" in figures(card_of(without), traces, ["mfu"])["mfu"].reason
    card = json.loads(json.dumps(CARD))
    del card["workload"]["model"]["moe"]
    assert "moe" in figures(card_of(card), traces, ["moe_fraction"])["moe_fraction"].reason


def test_utilisation_is_the_formula(tmp_path):
    traces = source(tmp_path, [kernel("gemm", 0, 5), mark("ProfilerStep#0", 0, 9), mark("ProfilerStep#1", 10, 9)])
    flops = (6 * 9e7 + 12 * 2 * 4 * 8 * 512) * 4 * 512
    assert value("mfu", CARD, traces) == pytest.approx(flops / (10e-6 * 100e12 * 4))
    known = json.loads(json.dumps(CARD))
    del known["workload"]["hardware"]["xpu_spec"]["peak_tflops"]
    assert value("mfu", known, traces) == pytest.approx(flops / (10e-6 * 312e12 * 4))
    serving = json.loads(json.dumps(CARD))
    serving["workload"]["model"]["phase"] = "inference"
    assert value("mfu", serving, traces) is None


def test_steps_without_marks_are_divided_by_the_longest_gaps_and_flagged(tmp_path):
    events = [kernel("gemm", at, 3) for step in range(4) for at in (1000 * step, 1000 * step + 5)]
    traces = source(tmp_path, events)
    card = {"version": 1, "workload": {"model": {"iteration": 4}}}
    found = figures(card_of(card), traces, ["avg_step_time"])["avg_step_time"]
    assert found.value == pytest.approx(1e-3)
    assert "not marked" in found.reason
    assert value("avg_step_time", {"version": 1}, traces) is None
    assert value("avg_step_time", {"version": 1, "workload": {"model": {"iteration": 9}}}, traces) is None


def test_both_denominators_of_overlap(tmp_path):
    traces = source(tmp_path, [kernel("gemm", 0, 60), kernel("ncclDevKernel_AllReduce", 40, 60, 9)])
    found = figures(Card(version=1), traces)
    assert found["compute_comm_overlap"].value == pytest.approx(1 / 3)
    assert found["step_overlap"].value == pytest.approx(0.2)
    assert found["exposed_communication"].value == pytest.approx(0.4)
    assert found["communication_fraction"].value == pytest.approx(0.6)
    assert found["total_communication_time"].value == pytest.approx(60e-6)


def test_a_communication_free_trace_gains_nothing_by_bandwidth_and_a_pure_one_half(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    quiet = source(tmp_path / "a", [kernel("gemm", 0, 10), kernel("gemm", 15, 10), kernel("gemm", 3, 30, 9)])
    assert value("scale_up_bw_utility", {"version": 1}, quiet) == 0
    pure = source(tmp_path / "b", [kernel("ncclAllReduce", 10 * at, 10, 9) for at in range(5)])
    assert value("scale_up_bw_utility", {"version": 1}, pure) == pytest.approx(0.5)


def test_copies_and_experts(tmp_path):
    copies = {"cat": "gpu_memcpy", "name": "Memcpy HtoD"}
    events = [
        kernel("gemm", 0, 10), kernel("fused_moe_kernel", 10, 30),
        {**kernel("", 20, 40), **copies, "args": {"bytes": 4000}}, {**kernel("", 60, 20), **copies, "args": {}},
    ]  # fmt: skip
    found = figures(card_of(CARD), source(tmp_path, events))
    assert found["average_memory_bandwidth"].value == pytest.approx(4000 / 40e3)
    assert found["memory_transfer_overhead"].value == pytest.approx(0.5)
    assert found["moe_fraction"].value == pytest.approx(0.75)
    assert found["dominant_kernel_concentration"].value == pytest.approx(0.75)


def test_ranks_are_held_against_each_other(tmp_path):
    fast = [
        kernel("gemm", 0, 10),
        kernel("ncclAllReduce", 10, 30, 9),
        kernel("gemm", 40, 10),
        kernel("ncclX", 50, 10, 9),
    ]
    slow = [
        kernel("gemm", 0, 30),
        kernel("ncclAllReduce", 30, 10, 9),
        kernel("gemm", 40, 10),
        kernel("ncclX", 50, 10, 9),
    ]
    found = figures(Card(version=1), source(tmp_path, fast, slow))
    assert found["load_imbalance_ratio"].value == pytest.approx(40 / 30)
    # Before the first: 30 against 10; before the second: 10 each.
    assert found["straggler"].value == pytest.approx((30 + 10) / (20 + 10))
    assert found["least_communication_share"].value == pytest.approx((10 + 10) / 30)
    assert found["compute_fraction"].value == pytest.approx((20 / 60 + 40 / 60) / 2)


def test_the_straggler_is_that_of_counting_nanosecond_by_nanosecond(tmp_path):
    draws = np.random.default_rng(0)
    ranks, rows = [], []
    for _ in range(3):
        events, at, row = [], 0, []
        for turn in range(5):
            busy = np.zeros(100, bool)
            for _ in range(3):
                begin = int(draws.integers(0, 80))
                took = int(draws.integers(1, 20))
                busy[begin : begin + took] = True
                events.append(kernel("gemm", at + begin, took))
            row.append(busy.sum())
            events.append(kernel(f"nccl{turn}", at + 100, 7, 9))
            at += 107
        ranks.append(events)
        rows.append(row)
    before = np.array(rows)
    found = figures(Card(version=1), source(tmp_path, *ranks), ["straggler"])["straggler"].value
    assert found == pytest.approx(before.max(0).sum() / before.mean(0).sum())


def test_ranks_with_other_collectives_are_not_compared(tmp_path):
    traces = source(tmp_path, [kernel("ncclA", 0, 5, 9)], [kernel("ncclB", 0, 5, 9)])
    for name in ("straggler", "least_communication_share"):
        assert figures(Card(version=1), traces, [name])[name].value is None


def test_a_host_that_computes_is_measured_by_its_operators(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 60},
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 0, "dur": 1},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 40, "dur": 60},
    ]
    traces = source(tmp_path, events)
    card = {"version": 1, "workload": {"hardware": {"xpu_spec": {"type": "CPU"}}}}
    assert value("compute_comm_overlap", card, traces) == pytest.approx(1 / 3)
    assert value("compute_fraction", card, traces) == pytest.approx(0.6)
    assert value("compute_fraction", {"version": 1}, traces) is None


def test_marks_of_serving_give_times_of_tokens(tmp_path):
    events = [kernel("gemm", 0, 1), mark("prefill", 0, 100), mark("decode", 100, 10), mark("decode", 110, 30)]
    traces = source(tmp_path, events)
    card = {"version": 1, "workload": {"model": {"phase": "serving"}}}
    assert value("ttft", card, traces) == pytest.approx(100e-6)
    assert value("tpot", card, traces) == pytest.approx(20e-6)
    assert value("tpot", CARD, traces) is None


def test_a_report_has_one_checksum_for_one_trace(tmp_path):
    traces = source(tmp_path, [kernel("gemm", 0, 5), kernel("ncclA", 5, 5, 9)])
    again = TraceSource(tmp_path)
    assert report(card_of(CARD), traces) == report(card_of(CARD), again)
    other = json.loads(json.dumps(CARD))
    other["workload"]["data"]["batch_size"] = 5
    assert report(card_of(other), again)["sha256"] != report(card_of(CARD), again)["sha256"]


def test_kernels_that_take_no_time_give_reasons(tmp_path):
    traces = source(tmp_path, [kernel("gemm", 5, 0), kernel("ncclA", 5, 0, 9)])
    found = figures(card_of(CARD), traces)
    assert found.pop("total_communication_time").value == 0
    assert all(each.value is None and each.reason for each in found.values())


def test_an_unknown_metric_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="metric"):
        figures(Card(version=1), source(tmp_path, [kernel("gemm", 0, 5)]), ["mfuu"])


@pytest.mark.parametrize(("name", "overlap", "idle"), [
    ("world8_rank3_control", 0.4624, 0.1636), ("nccl_world2_rank0", 0.1561, 0.7616),
    ("world128_sampled_rank1", 0.1993, 0.5289),
])  # fmt: skip
def test_real_traces_have_the_shares_that_holistic_trace_analysis_gives(name, overlap, idle):
    """Figures of HolisticTraceAnalysis 0.5.0 with include_last_profiler_step and HTA_DISABLE_NS_ROUNDING=1."""
    try:
        path = datasets.find("kineto-traces", f"{name}.json.gz")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    found = figures(Card(version=1), TraceSource(path), SHARED)
    assert found["compute_comm_overlap"].value == pytest.approx(overlap, abs=6e-5)
    assert found["idle_fraction"].value == pytest.approx(idle, abs=6e-5)


def collective(name, took, n_elements, ranks=4, **more):
    about = {"Collective name": name, "In msg nelems": n_elements, "dtype": "Float", "Group size": ranks, **more}
    return kernel(f"nccl{name}", 0, took, args={"stream": 1, **about})


@pytest.mark.parametrize(
    ("name", "factor"),
    [("allreduce", 1.5), ("_allgather_base", 0.75), ("reduce_scatter_tensor_coalesced", 0.75), ("all_to_allv", 0.75),
     ("broadcast", 1.0), ("all_gather_into_tensor_out", 0.75), ("all_to_all_single", 0.75), ("reduce", 1.0)],
)  # fmt: skip
def test_bus_bandwidth_is_what_a_ring_carries_over_a_link(tmp_path, name, factor):
    # 4 MB in 10 us are 400 bytes a nanosecond.
    one = collective(name, 10, 1_000_000)
    assert value("bus_bandwidth", CARD, source(tmp_path, [one])) == pytest.approx(400.0 * factor)


def test_bus_bandwidth_adds_bytes_and_times_and_leaves_out_what_is_not_known(tmp_path):
    ranks = [
        [collective("allreduce", 10, 1_000_000), collective("allreduce", 30, 0), collective("wait", 50, 9)],
        [collective("allreduce", 20, 1_000_000), kernel("ncclX", 0, 99), collective("allreduce", 9, 9, dtype="odd")],
    ]
    traces = source(tmp_path, *ranks)
    expected = 2 * 4e6 * 1.5 / (60 * 1000)
    assert value("bus_bandwidth", CARD, traces) == pytest.approx(expected)
    hardware = {"network_topo": {"bandwidth_gbps": [100.0, 800.0]}, "xpu_spec": {"total_count": 2, "count_per_node": 8}}
    card = {"version": 1, "workload": {"hardware": hardware}}
    assert value("bus_bandwidth_utilisation", card, traces) == pytest.approx(expected * 8 / 800.0)
    hardware["xpu_spec"]["count_per_node"] = 1
    assert value("bus_bandwidth_utilisation", card, traces) == pytest.approx(expected * 8 / 100.0)
    hardware["xpu_spec"]["count_per_node"] = 8
    hardware["network_topo"]["bandwidth_gbps"] = [100.0]
    assert value("bus_bandwidth_utilisation", card, traces) is None
    alone = source(tmp_path, [kernel("gemm", 0, 5)], [kernel("gemm", 0, 5)])
    assert value("bus_bandwidth", CARD, alone) is None
    for each in alone.traces.values():
        each.path.unlink()
    assert "no longer there" in figures(card_of(CARD), alone, ["bus_bandwidth"])["bus_bandwidth"].reason


def test_sm_coverage_is_the_share_of_threads_by_duration(tmp_path):
    device = {"maxThreadsPerMultiprocessor": 2048, "warpSize": 32}
    events = [
        kernel("small", 0, 30, args={"stream": 1, "warps per SM": 16.0}),
        kernel("large", 40, 10, args={"stream": 1, "warps per SM": 640.0}),
        kernel("unknown", 60, 1000),
        collective("allreduce", 500, 9, **{"warps per SM": 1.0}),
        kernel("ncclDev", 2000, 500, args={"stream": 1, "warps per SM": 1.0}),
    ]
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    assert value("mean_sm_coverage", CARD, TraceSource(path)) == pytest.approx((30 * 0.25 + 10 * 1.0) / 40)
    for odd in ([], [{}], [{"maxThreadsPerMultiprocessor": 0}], [{"maxThreadsPerMultiprocessor": "many"}], 7, [7]):
        path.write_text(json.dumps({"deviceProperties": odd, "traceEvents": events}))
        assert value("mean_sm_coverage", CARD, TraceSource(path)) is None
