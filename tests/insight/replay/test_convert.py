"""Records of torch with a planted truth become traces whose replay takes what the records say."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.insight.replay.test_diagnose import mutated

from wavetank.errors import BadTraceError, DataUnavailableError, WavetankError
from wavetank.insight.replay import from_pytorch, simulate, step_span, validate
from wavetank.workloads import datasets
from wavetank.workloads.chakra import duration_ns


def event(name, begin, took, number=-1, *, thread=1, category="cpu_op", **details):
    return {"ph": "X", "name": name, "ts": begin, "dur": took, "tid": thread, "cat": category,
            "args": {"Record function id": number, **details}}  # fmt: skip


def host(folder, calls, name="host.json"):
    """What the observer writes: numbers, names and one tensor of so many bytes each."""
    nodes = [
        {"id": n, "name": name, "ctrl_deps": 1, "attrs": [{"name": "rf_id", "type": "uint64", "value": number}],
         "inputs": {"values": [[7, n, 0, size, 1, "cpu"]]}, "outputs": {"values": []}}
        for n, (name, number, size) in enumerate(calls)
    ]  # fmt: skip
    (folder / name).write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    return folder / name


def device(folder, events, name="device.json"):
    job = {"pg_config": [{"pg_name": "dp", "ranks": [0, 1]}]}
    (folder / name).write_text(json.dumps({"traceEvents": events, "distributedInfo": job}))
    return folder / name


# A step of 100 us: 10 us idle, a product, an all-reduce that runs beside the next product and is waited for.
STEP = [
    event("ProfilerStep#3", 1000, 100, 1, category="user_annotation"),
    event("aten::mm", 1010, 20, 2),
    event("aten::addmm", 1012, 5, 3),  # within the product
    event("c10d::allreduce_", 1030, 2, 4),
    event("gloo:all_reduce", 1031, 49, 5, thread=2, category="user_annotation"),
    event("aten::relu", 1035, 15, 6),
    event("aten::add_", 1090, 5, 7),
]
CALLS = [("aten::mm", 2, 64), ("c10d::allreduce_", 4, 4096), ("aten::relu", 6, 64), ("aten::add_", 7, 64)]


def test_calls_gaps_and_collectives_become_nodes_with_the_recorded_times(tmp_path):
    trace = from_pytorch(host(tmp_path, CALLS), device(tmp_path, STEP), step=3)
    shown = [(node.name, duration_ns(node)) for node in trace.nodes]
    assert shown == [
        ("between", 10_000), ("aten::mm", 20_000),
        # Cut where the all-reduce begins.
        ("c10d::allreduce_", 1_000), ("c10d::allreduce_", 1_000), ("between", 3_000), ("aten::relu", 15_000),
        # From 1050 to 1090 it waits until 1080 for the all-reduce, and is busy for 10 us.
        ("between", 10_000), ("aten::add_", 5_000), ("between", 5_000),
        ("gloo:all_reduce", 49_000),
    ]  # fmt: skip
    collective = trace.nodes[-1]
    assert collective.type == 7
    assert collective.ctrl_deps == (2,)
    assert collective.attributes == {"is_cpu_op": False, "comm_type": 0, "comm_size": 4096, "pg_name": "dp"}
    assert trace.nodes[6].ctrl_deps == (5, 9)


def test_the_replay_takes_what_was_recorded_and_shows_what_waits(tmp_path):
    trace = from_pytorch(host(tmp_path, CALLS), device(tmp_path, STEP), step=3)
    assert validate([trace]) == ()
    assert simulate([trace]).makespan_ps == 100_000_000
    late = [each | {"ts": each["ts"] + (8 if each["ts"] > 1009 else 0)} for each in STEP]
    late[0] = late[0] | {"dur": 108}
    other = from_pytorch(host(tmp_path, CALLS), device(tmp_path, late, "late.json"), step=3)
    timeline = simulate([trace, other])
    assert timeline.makespan_ps == 108_000_000
    assert timeline.waiting_ps.tolist() == [8_000_000, 0]


def test_a_rank_that_begins_later_does_so_in_the_replay(tmp_path):
    files = host(tmp_path, CALLS), device(tmp_path, STEP)
    assert step_span(files[1], 3) == (1_000_000, 1_100_000)
    assert simulate([from_pytorch(*files, step=3, since_ns=960_000)]).makespan_ps == 140_000_000
    for since in (1_000_001, -(10**13)):
        with pytest.raises(BadTraceError, match="begins with or before"):
            from_pytorch(*files, step=3, since_ns=since)


def test_collectives_that_share_a_network_take_from_the_end_of_the_one_before(tmp_path):
    events = [
        STEP[0], event("aten::mm", 1000, 10, 2), event("c10d::allreduce_", 1010, 1, 4),
        event("gloo:all_reduce", 1011, 30, 5, thread=2), event("c10d::_allgather_base_", 1012, 1, 8),
        event("gloo:all_gather", 1013, 48, 9, thread=3), event("aten::add_", 1061, 39, 10),
    ]  # fmt: skip
    calls = [("aten::mm", 2, 8), ("c10d::allreduce_", 4, 8), ("c10d::_allgather_base_", 8, 16)]
    trace = from_pytorch(host(tmp_path, calls), device(tmp_path, events), step=3)
    first, second = trace.nodes[-2:]
    assert (duration_ns(first), duration_ns(second)) == (30_000, 20_000)
    assert second.attributes["comm_type"] == 2
    assert first.id in second.ctrl_deps
    assert simulate([trace]).makespan_ps == 100_000_000


def test_kernels_wait_for_their_launch_their_stream_and_are_waited_for(tmp_path):
    events = [
        event("aten::mm", 0, 10, 1), event("cudaLaunchKernel", 5, 2, category="cuda_runtime", correlation=11),
        event("gemm", 12, 50, category="kernel", thread=7, stream=7, correlation=11),
        event("aten::relu", 10, 10, 2), event("cudaLaunchKernel", 15, 2, category="cuda_runtime", correlation=12),
        event("relu", 62, 8, category="kernel", thread=7, stream=7, correlation=12),
        event("aten::item", 20, 55, 3), event("aten::add", 75, 5, 4),
    ]  # fmt: skip
    calls = [("aten::mm", 1, 8), ("aten::relu", 2, 8), ("aten::item", 3, 8), ("aten::add", 4, 8)]
    trace = from_pytorch(host(tmp_path, calls), device(tmp_path, events))
    by_name = {node.name: node for node in trace.nodes}
    lag, gemm = next(node for node in trace.nodes if node.name == "lag"), by_name["gemm"]
    # The launch ends at 7, within the product, and the kernel begins at 12.
    launched = trace.nodes[lag.ctrl_deps[0]]
    assert (launched.name, duration_ns(launched), duration_ns(lag)) == ("aten::mm", 7_000, 5_000)
    assert gemm.ctrl_deps == (lag.id,)
    assert gemm.id in by_name["relu"].ctrl_deps
    # item waits for the last kernel, which ends at 70, and goes on for 5 us.
    assert by_name["relu"].id in by_name["aten::item"].ctrl_deps
    assert duration_ns(by_name["aten::item"]) == 5_000
    assert simulate([trace]).makespan_ps == 80_000_000


def test_a_stream_that_waits_for_another_and_a_thread_that_waits_for_another(tmp_path):
    events = [
        event("aten::mm", 0, 10, 1), event("cudaLaunchKernel", 2, 2, category="cuda_runtime", correlation=11),
        event("gemm", 10, 40, category="kernel", thread=7, stream=7, correlation=11),
        event("cudaLaunchKernel", 6, 2, category="cuda_runtime", correlation=12),
        event("copy", 55, 20, category="gpu_memcpy", thread=8, stream=8, correlation=12),
        event("aten::mul", 30, 20, 2, thread=2), event("aten::add", 60, 30, 3),
    ]  # fmt: skip
    calls = [("aten::mm", 1, 8), ("aten::mul", 2, 8), ("aten::add", 3, 8)]
    trace = from_pytorch(host(tmp_path, calls), device(tmp_path, events))
    by_name = {node.name: node for node in trace.nodes}
    before_copy = trace.nodes[by_name["copy"].ctrl_deps[0]]
    assert (before_copy.name, duration_ns(before_copy)) == ("lag", 5_000)
    assert by_name["gemm"].id in before_copy.ctrl_deps
    # Thread 2 began 20 us after the first call of thread 1, which waited for it, and went on 10 us later.
    waiting = trace.nodes[by_name["aten::add"].ctrl_deps[0]]
    assert (waiting.name, duration_ns(waiting)) == ("between", 10_000)
    assert by_name["aten::mul"].id in waiting.ctrl_deps
    assert simulate([trace]).makespan_ps == 90_000_000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    host_calls=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    kernels=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30), st.integers(0, 2)), max_size=8),
)  # fmt: skip
def test_every_replay_of_one_rank_takes_exactly_what_was_recorded(tmp_path, host_calls, kernels):
    events, calls, at, free = [], [], 0, {}
    for n, (gap, took, waits) in enumerate(host_calls, 1):
        at += gap
        name = "aten::item" if waits else "aten::mm"
        events.append(event(name, at, took, n))
        calls.append((name, n, 8))
        if n <= len(kernels):
            lag, length, stream = kernels[n - 1]
            begin = max(at + lag, free.get(stream, 0))
            free[stream] = begin + length
            events += [
                event("cudaLaunchKernel", at, 0.5, category="cuda_runtime", correlation=n),
                event(f"k{n}", max(begin, at + 1), length, category="kernel", stream=stream, correlation=n),
            ]  # fmt: skip
        at += took
    trace = from_pytorch(host(tmp_path, calls), device(tmp_path, events))
    first = min(each["ts"] for each in events)
    last = max(each["ts"] + each["dur"] for each in events)
    assert validate([trace]) == ()
    assert simulate([trace]).makespan_ps == (last - first) * 1_000_000


def test_collectives_of_nccl_have_what_the_profiler_says_of_them(tmp_path):
    fields = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 80, "dtype": "BFloat16",
              "Process Group Name": "tp"}  # fmt: skip
    events = [
        event("aten::mm", 0, 10, 1),
        event("ncclDevKernel_AllGather", 12, 5, category="kernel", stream=20, correlation=1, **fields),
    ]  # fmt: skip
    trace = from_pytorch(host(tmp_path, [("aten::mm", 1, 8)]), device(tmp_path, events))
    (found,) = [node for node in trace.nodes if node.type == 7]
    assert found.attributes == {"is_cpu_op": False, "stream": 20, "comm_type": 2, "comm_size": 160, "pg_name": "tp"}


@pytest.mark.parametrize(
    ("events", "step", "says"),
    [
        (STEP, 4, "not there once"),
        ([*STEP, STEP[0]], 3, "not there once"),
        ([STEP[0]], 3, "not of one process"),
        ([STEP[0], event("aten::other", 1010, 5, 2)], 3, "not of one process"),
        ([STEP[0]], None, "no call"),
        ([event("aten::mm", float("nan"), 5, 2)], None, "no profile"),
        ([event("aten::mm", 0, -5, 2)], None, "no profile"),
        ([{"ph": "X", "name": "aten::mm"}], None, "no profile"),
        (7, None, "no profile"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(tmp_path, events, step, says):
    with pytest.raises(BadTraceError, match=says):
        from_pytorch(host(tmp_path, CALLS), device(tmp_path, events), step=step)


def test_other_files_are_refused(tmp_path):
    files = host(tmp_path, CALLS), device(tmp_path, STEP)
    with pytest.raises(WavetankError):
        from_pytorch(files[1], files[1], step=3)
    with pytest.raises(BadTraceError, match="no profile"):
        from_pytorch(files[0], files[0], step=3)
    with pytest.raises(WavetankError):
        from_pytorch(files[0], tmp_path / "none.json", step=3)
    content = files[1].read_bytes()
    for cut in range(0, len(content), 97):
        files[1].write_bytes(content[:cut])
        with pytest.raises(BadTraceError):
            from_pytorch(*files, step=3)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("world128_sampled_rank0", 552),
        pytest.param("nccl_world2_rank0", 5, marks=pytest.mark.slow),
        pytest.param("world8_rank3_control", 1012, marks=pytest.mark.slow),
    ],
)
def test_recorded_profiles_of_gpus_are_replayed_within_a_hundredth(name, step):
    try:
        file = datasets.find("kineto-traces") / f"{name}.json.gz"
    except DataUnavailableError as error:
        pytest.skip(str(error))
    begin, end = step_span(file, step)
    trace = from_pytorch(None, file, step=step)
    assert len(trace.nodes) > 1000
    assert simulate([trace]).makespan_ps / 1000 == pytest.approx(end - begin, rel=0.01)


@pytest.mark.parametrize("which", [0, 1])
def test_damaged_records_are_refused_or_replayed_but_never_crash(tmp_path, which):
    files = host(tmp_path, CALLS), device(tmp_path, STEP)
    content, rng, outcomes = files[which].read_bytes(), random.Random(which), []
    for _ in range(400):
        files[which].write_bytes(mutated(content, rng))
        try:
            trace = from_pytorch(*files, step=3)
            simulate([trace])
            outcomes.append(True)
        except WavetankError:
            outcomes.append(False)
    assert len(set(outcomes)) == 2
