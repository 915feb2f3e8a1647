"""Traces of the profiler: read like json.load reads them, in chunks of any size; damage is named."""

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadTraceError, DataUnavailableError
from wavetank.files import head_of
from wavetank.workloads import datasets, kineto
from wavetank.workloads.kineto import (
    COPY,
    FILL,
    KERNEL,
    MARK,
    OTHER,
    RUNTIME,
    KernelDetail,
    looks_like_kineto,
    read_kernel_details,
    read_kineto,
)

FILES = (
    "alexnet_1gpu", "amd_mi250_minitoy", "cuda_event_sync_multi_stream", "gloo_world300_rank34_cpu",
    "world128_sampled_rank0",
)  # fmt: skip


def real(name):
    """Return the path of a real trace; skip where the data set is not here."""
    try:
        return datasets.find("kineto-traces", f"{name}.json.gz")
    except DataUnavailableError as error:
        pytest.skip(error.problem)


def event(**fields):
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 2, **fields}


def written(folder, content, name="trace.json"):
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def rows(path):
    """Return (name, category, start, end, stream, correlation, bytes) of complete events as json.load has them."""
    document = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    events = document["traceEvents"] if isinstance(document, dict) else document
    found = []
    for each in events:
        if each.get("ph") == "X":
            args = each.get("args", {})
            # Decimal text, so that nothing is rounded twice.
            begin, took = (
                round(float(f"{each[key]:.3f}") % 1 * 1000) + int(each[key] // 1) * 1000 for key in ("ts", "dur")
            )
            stream = args.get("stream", -1)
            found.append((
                each["name"], str(each.get("cat")), begin, begin + took, stream if type(stream) is int else -1,
                args.get("correlation", -1), args.get("bytes", -1),
            ))  # fmt: skip
    return found


def columns(trace):
    return list(
        zip(
            [trace.names[at] for at in trace.name], trace.start_ns.tolist(), trace.end_ns.tolist(),
            trace.stream.tolist(), trace.correlation.tolist(), trace.bytes_moved.tolist(), strict=True,
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_real_trace_is_read_like_json_reads_it(name):
    path = real(name)
    trace = read_kineto(path)
    assert columns(trace) == [(each[0], *each[2:]) for each in rows(path)]
    assert trace.left_out == {}
    kinds = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL, "cuda_runtime": RUNTIME, "user_annotation": MARK}
    for (_, category, *_rest), kind in zip(rows(path), trace.kind.tolist(), strict=True):
        assert kinds.get(category, kind) == kind


def test_ranks_and_steps_come_from_the_file():
    trace = read_kineto(real("world128_sampled_rank0"))
    assert (trace.rank, trace.world) == (0, 128)
    assert [number for number, _, _ in trace.steps] == [551, 552]
    assert trace.facts["distributedInfo"]["backend"] == "nccl"


TEXT = st.text(st.sampled_from('ab{}[],:"\\\n µ'), max_size=12)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(TEXT, st.integers(0, 2**41), st.integers(0, 999)), max_size=6),
    st.integers(1, 40),
    TEXT,
    st.booleans(),
    st.booleans(),
)
def test_chunks_of_any_size_give_the_same_events(tmp_path_factory, drawn, chunk, word, after, bare):
    events = [
        event(name=name, ts=ts + part / 1000, args={"deep": [{"traceEvents": [1, {"ph": "X"}]}], "t": name})
        for name, ts, part in drawn
    ]
    document = {"about": {"traceEvents": [], "word": word}, "word": "traceEvents", "traceEvents": events}
    if not after:
        document = {"traceEvents": events, **{key: document[key] for key in ("about", "word")}}
    path = written(tmp_path_factory.mktemp("trace"), events if bare else document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "_CHUNK_BYTES", chunk)
        trace = read_kineto(path)
    assert columns(trace) == [(each[0], *each[2:]) for each in rows(path)]
    if not bare:
        assert trace.facts["about"]["word"] == word


def test_three_decimals_of_a_clock_since_1970_stay_exact(tmp_path):
    text = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1735632360123456.789, "dur": 0.001}]}'
    trace = read_kineto(written(tmp_path, text))
    assert (trace.start_ns[0], trace.end_ns[0]) == (1_735_632_360_123_456_789, 1_735_632_360_123_456_790)


def test_a_damaged_event_costs_its_neighbours_no_nanosecond(tmp_path):
    text = (
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1735632360123456.789, "dur": 0.001}, {"ph": "X", "args": 3}]}'
    )
    trace = read_kineto(written(tmp_path, text))
    assert (trace.start_ns[0], trace.end_ns[0]) == (1_735_632_360_123_456_789, 1_735_632_360_123_456_790)
    assert trace.left_out == {"not readable as an event": 1}


def test_times_of_hundreds_of_digits_are_out_of_range(tmp_path):
    huge = "1" + "0" * 400
    for other in ("10", "1735632360123456.789"):
        events = [
            f'{{"ph": "X", "name": "{name}", "ts": {ts}, "dur": {dur}}}'
            for name, ts, dur in (("a", huge, 1), ("b", f"-{huge}", 1), ("c", "1e308", 1), ("d", other, huge),
                                  ("e", other, "1e308"), ("f", other, 1))
        ]  # fmt: skip
        trace = read_kineto(written(tmp_path, f'{{"traceEvents": [{",".join(events)}]}}'.encode()))
        assert [trace.names[each] for each in trace.name] == ["f"]
        assert trace.left_out == {"with a time or a duration out of range": 5}


def test_what_is_no_event_is_counted_and_left_out(tmp_path):
    events = [
        event(),
        event(ts="soon"),
        event(name=None),
        {"ph": "X"},
        event(ts=1e300),
        event(dur=-1),
        event(args=3),
        {"ph": "M", "name": "process_name"},
        7,
        "text",
        None,
        [1],
    ]
    trace = read_kineto(written(tmp_path, {"traceEvents": events}))
    assert trace.start_ns.tolist() == [10_000]
    assert trace.left_out == {
        "not readable as an event": 2, "without a name or a time": 2, "with a time or a duration out of range": 2,
    }  # fmt: skip


def test_a_missing_figure_that_is_written_as_nan_costs_no_event(tmp_path):
    args = b'{"x": nan, "y": -inf}'
    text = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 2, "args": %s}]}' % args
    assert read_kineto(written(tmp_path, text)).kind.tolist() == [KERNEL]


def test_counts_that_fit_no_word_are_no_counts(tmp_path):
    trace = read_kineto(written(tmp_path, {"traceEvents": [event(args={"bytes": 1e300, "stream": "a"})]}))
    assert (trace.bytes_moved[0], trace.stream[0]) == (-1, -1)
    trace = read_kineto(written(tmp_path, {"traceEvents": [event(args={"correlation": 2**70})]}))
    assert trace.left_out == {"not readable as an event": 1}


def test_kernels_of_collectives_are_found_by_name_or_field(tmp_path):
    events = [
        event(name="ncclDevKernel_AllReduce(x)"),
        event(name="void gemm"),
        event(args={"Collective name": "x"}),
        event(cat="cpu_op", name="nccl:all_reduce"),
        event(name="void vllm::cross_device_reduce_1stage<x>"),
    ]
    trace = read_kineto(written(tmp_path, {"traceEvents": events}))
    assert trace.communicates.tolist() == [True, False, True, False, True]
    assert trace.kind[3] != OTHER


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "no list of events"), (b"{}", "no list of events"), (b'{"traceEvents": [{"ph": "X"', "ends in the middle"),
     (b'{"traceEvents": []}}', "closed that was not opened"), (b'{"traceEvents": [], x}', "is no JSON"),
     (b"hello", "no list of events"), (b'{"traceEvents": [{}], "a": "', "ends in the middle")],
)  # fmt: skip
def test_damage_is_named(tmp_path, content, problem):
    with pytest.raises(BadTraceError, match=problem):
        read_kineto(written(tmp_path, content))


def test_a_truncated_or_damaged_gzip_file_is_named(tmp_path):
    whole = gzip.compress(json.dumps({"traceEvents": [event()] * 200}).encode())
    for data in (whole[:-9], whole[:20] + b"\0\0\0" + whole[23:], b"\x1f\x8b"):
        (tmp_path / "x.json.gz").write_bytes(data)
        with pytest.raises(BadTraceError):
            read_kineto(tmp_path / "x.json.gz")
    with pytest.raises(BadTraceError):
        read_kineto(tmp_path / "missing.json")


def test_an_event_without_end_is_not_read_into_memory_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "_LONGEST_EVENT_BYTES", 1000)
    monkeypatch.setattr(kineto, "_CHUNK_BYTES", 100)
    with pytest.raises(BadTraceError, match="longer than any"):
        read_kineto(written(tmp_path, {"traceEvents": [event(name="x" * 2000)]}))
    monkeypatch.setattr(kineto, "_LONGEST_HEAD_BYTES", 1000)
    with pytest.raises(BadTraceError, match="too much outside"):
        read_kineto(written(tmp_path, {"a": "x" * 2000, "traceEvents": []}))


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_ends_in_a_trace_or_a_named_error(tmp_path, seed):
    draw = random.Random(seed)
    data = bytearray(json.dumps({"traceEvents": [event(name=f"k{i}", ts=i) for i in range(20)], "x": 1}).encode())
    for _ in range(draw.randrange(1, 6)):
        data[draw.randrange(len(data))] = draw.choice(b'{}[]",:\\\x00\xff9')
    try:
        trace = read_kineto(written(tmp_path, bytes(data)))
    except BadTraceError:
        return
    assert (trace.end_ns >= trace.start_ns).all()
    assert np.isin(trace.kind, range(7)).all()


def test_a_kind_is_shown_by_the_first_bytes(tmp_path):
    for name in ("trace.json", "trace.json.gz"):
        assert looks_like_kineto(head_of(written(tmp_path, {"traceEvents": [event()]}, name)))
    assert looks_like_kineto(b'[{"ph": "X"}]')
    assert not looks_like_kineto(b'{"status": "success", "data": {}}')
    assert not looks_like_kineto(b"time,value\n1,2\n")
    with pytest.raises(BadFileError):
        head_of(tmp_path)


def test_hostile_numbers_and_nesting_cost_one_event_or_one_field(tmp_path):
    nested = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    deep = b'{"ph":"X","cat":"kernel","name":"deep","ts":1,"dur":1,"args":' + nested + b"}"
    step = json.dumps(event(cat="user_annotation", name="ProfilerStep#" + "9" * 5000)).encode()
    far = json.dumps(event(name="far", args={"stream": 2**70})).encode()
    path = written(tmp_path, b'{"traceEvents": [' + b",".join([deep, step, far, json.dumps(event()).encode()]) + b"]}")
    trace = read_kineto(path)
    assert trace.names == ("ProfilerStep#" + "9" * 5000, "far", "gemm")
    assert trace.left_out == {"not readable as an event": 1}
    assert trace.stream.tolist() == [-1, -1, -1]
    assert trace.steps == []


def test_details_of_kernels_are_those_of_the_file():
    path = real("nccl_world2_rank0")
    events = [
        each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each.get("cat") == "kernel"
    ]
    found = read_kernel_details(path)
    assert [(each.name, each.took_ns) for each in found] == [
        (each["name"], round(each["dur"] * 1000)) for each in events
    ]
    assert [each.warps_per_unit for each in found] == [each["args"]["warps per SM"] for each in events]
    talks = [each for each in found if each.collective == "allreduce"]
    assert len(talks) == 15
    assert (talks[0].n_bytes, talks[0].ranks) == (4 * 6637568, 2)


@pytest.mark.parametrize("odd", ["many", -1, 2.5, True, [1], {"a": 1}, 10**300, None])
def test_odd_details_are_no_details_and_cost_no_kernel(tmp_path, odd):
    keys = ("warps per SM", "Collective name", "In msg nelems", "dtype", "Group size")
    bad = [event(name=f"k{at}", args={key: odd}) for at, key in enumerate(keys)]
    good = event(args={"dtype": "Half", "Out msg nelems": 3, "In msg nelems": odd, "Group size": 4})
    found = read_kernel_details(written(tmp_path, {"traceEvents": [*bad, good, event(cat="cpu_op"), event(dur=-1)]}))
    assert [each.name for each in found] == ["k0", "k1", "k2", "k3", "k4", "gemm"]
    warps = odd if odd == 2.5 else None
    assert found[:5] == tuple(
        KernelDetail(f"k{at}", 2000, warps if at == 0 else None, odd if at == 1 and odd == "many" else None, None, None)
        for at in range(5)
    )
    assert found[5] == KernelDetail("gemm", 2000, None, None, 6, 4)
