"""What is read of the records of torch's observers."""

import json

import pytest

from wavetank.errors import BadTraceError
from wavetank.workloads.chakra import read_trace_file
from wavetank.workloads.host_calls import Span, calls_of, communicated, is_operation, spans_in, times_of

STEP = [
    Span(1, "step", 7, 0.0, 100.0),
    Span(2, "Optimizer.step", 7, 5.0, 90.0),
    Span(3, "aten::linear", 7, 10.0, 30.0),
    Span(4, "aten::addmm", 7, 12.0, 29.0),
    Span(5, "c10d::allreduce_", 7, 40.0, 45.0),
    Span(6, "gloo:all_reduce", 8, 41.0, 60.0),
    Span(7, "aten::add_", 7, 70.0, 80.0),
]


def node(number, name, rf_id, tensors):
    return {
        "id": number, "name": name, "ctrl_deps": 1, "inputs": {"values": tensors}, "outputs": {"values": []},
        "attrs": [{"name": "rf_id", "type": "uint64", "value": rf_id}],
    }  # fmt: skip


def trace(tmp_path, nodes):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schema": "1.1.1", "nodes": nodes}))
    return read_trace_file(file)


def test_what_counts_as_an_operation_and_as_communication():
    assert all(map(is_operation, ("aten::mm", "c10d::send", "_c10d_functional::all_reduce", "fsdp::chunk_cat")))
    for name in ("autograd::engine::evaluate_function: X", "torch::autograd::AccumulateGrad", "mark it: a::b",
                 "FSDP::root_post_backward_callback", "AddmmBackward0"):  # fmt: skip
        assert not is_operation(name)
    for name, kind in (("allreduce_", "all-reduce"), ("_allgather_base_", "all-gather"), ("send", "send"),
                       ("_reduce_scatter_base_", "reduce-scatter"), ("recv_", "receive"), ("barrier", "")):  # fmt: skip
        assert communicated(f"c10d::{name}") == kind
    assert communicated("gloo:allreduce") == ""


def test_a_call_has_the_tensors_of_all_that_happens_within_it(tmp_path):
    recorded = trace(tmp_path, [
        node(10, "aten::linear", 3, [[1, 100, 0, 4, 4, "cpu"]]),
        node(11, "aten::addmm", 4, [[2, 101, 0, 4, 4, "cpu"]]),
        node(12, "c10d::allreduce_", 5, [[[3, 102, 0, 6, 8, "cpu"]], 0]),
        node(13, "aten::mul", 7, [[4, 103, 0, 6, 8, "cpu"]]),
    ])  # fmt: skip
    calls = calls_of(recorded, STEP, "step")
    assert [call["name"] for call in calls] == ["aten::linear", "c10d::allreduce_", "aten::add_"]
    assert calls[0] == {"name": "aten::linear", "kind": "", "n_bytes": 0, "touches": [100, 101], "writes": []}
    assert (calls[1]["kind"], calls[1]["n_bytes"]) == ("all-reduce", 48)
    assert calls[1]["touches"] == calls[1]["writes"] == [102]
    # Its number is that of another function: both records are not of one step.
    assert calls[2]["touches"] == []


def test_times_are_those_of_the_calls_and_of_nothing_within_them():
    ((begin, end),) = times_of(STEP, "step", ["aten::linear", "c10d::allreduce_", "aten::add_"])
    assert begin == [0.0, 1e-5, 4e-5, 7e-5]
    assert end == [1e-4, 3e-5, 4.5e-5, 8e-5]


def test_other_calls_no_step_and_traces_of_another_form_are_refused(tmp_path):
    assert times_of(STEP, "step", ["aten::linear", "aten::add_"]) == []
    recorded = trace(tmp_path, [node(10, "aten::linear", 3, [])])
    with pytest.raises(BadTraceError, match="no step"):
        calls_of(recorded, STEP, "another step")
    with pytest.raises(BadTraceError, match="no step"):
        calls_of(recorded, STEP[:2], "step")
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"workload_graph": [{"Id": 1, "Name": "a", "NodeType": 4}]}))
    with pytest.raises(BadTraceError, match="host trace"):
        calls_of(read_trace_file(file), STEP, "step")


def test_spans_of_an_exported_trace_leave_out_what_has_no_length():
    text = json.dumps({"traceEvents": [
        {"ph": "X", "name": "aten::mm", "tid": 3, "ts": 5, "dur": 2, "args": {"Record function id": 9}},
        {"ph": "i", "name": "mark", "tid": 3, "ts": 5},
        {"ph": "X", "name": "python", "tid": 3, "ts": 6, "dur": 1},
    ]})  # fmt: skip
    assert spans_in(text) == [Span(9, "aten::mm", 3, 5, 7), Span(-1, "python", 3, 6, 7)]
