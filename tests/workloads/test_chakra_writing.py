"""Traces that are made, and their JSON form, from which the same bytes come back."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workloads.test_chakra import SENDER, SIZE, node, stream

from wavetank.errors import BadTraceError, BadValueError, DataUnavailableError
from wavetank.workloads import datasets
from wavetank.workloads.chakra import duration_ns, read_trace_file, step_graph, trace_of
from wavetank.workloads.chakra_writing import as_et, as_json, made_node, made_trace

ATTRIBUTES = {"comm_size": 2**40, "is_cpu_op": False, "pg_name": "dp", "share": 0.5, "offset": -3}


def test_what_is_written_is_read_with_every_figure():
    trace = made_trace(
        [made_node(0, "mm", "compute", duration_ns=1_234_567),
         made_node(3, "sum", "collective", after=[0], data=[0, 0], attributes=ATTRIBUTES)]
    )  # fmt: skip
    first, second = trace_of(trace.content()).nodes
    assert (first.id, first.name, first.type, first.duration_us, duration_ns(first)) == (0, "mm", 4, 1234, 1_234_567)
    assert (second.id, second.ctrl_deps, second.data_deps) == (3, (0,), (0, 0))
    assert dict(second.attributes) == ATTRIBUTES
    assert trace.version == "0.0.4"


def test_a_duration_below_a_microsecond_does_not_vanish():
    trace = made_trace([made_node(0, "short", "compute", duration_ns=400)])
    assert step_graph([trace]).duration_ps.tolist() == [400_000]


def test_microseconds_that_were_changed_count_for_nanoseconds_that_were_not():
    trace = made_trace([made_node(0, "mm", "compute", duration_ns=1_500)]).with_durations({0: 7})
    assert step_graph([trace]).duration_ps.tolist() == [7_000_000]


@pytest.mark.parametrize(
    "call",
    [
        lambda: made_node(0, "n", "gemm"),
        lambda: made_node(-1, "n", "compute"),
        lambda: made_node(True, "n", "compute"),
        lambda: made_node(0, "n", "compute", duration_ns=2**63),
        lambda: made_node(0, "n", "compute", duration_ns=1.5),
        lambda: made_node(0, "n", "compute", after=[-2]),
        lambda: made_node(0, "n", "compute", attributes={"a": 2**64}),
        lambda: made_node(0, "n", "compute", attributes={"a": None}),
    ],
)
def test_figures_without_a_place_in_a_trace_are_refused(call):
    with pytest.raises(BadValueError):
        call()


def test_nodes_of_one_identity_are_refused():
    with pytest.raises(BadTraceError, match="one identity"):
        made_trace([made_node(1, "a", "compute"), made_node(1, "b", "compute")])


# Fields that no schema has: a varint, eight bytes, text that is none, a message.
UNKNOWN = b"\xf8\x06\x2a" + b"\xf9\x06" + bytes(range(8)) + b"\xfa\x06\x02\xff\xfe" + b"\xfa\x06\x02hi"


def test_json_gives_the_same_bytes_with_all_that_is_unknown():
    strange = b"\x52\x06\x0a\x01x\xf8\x06\x01"  # an attribute with a field that no version has
    content = stream(node(1, 4, b"\x38\x05", UNKNOWN), node(2, 5, b"\x2a\x01\x01", SIZE, strange, UNKNOWN))
    trace = trace_of(content)
    text = as_json(trace)
    assert as_et(text).content() == content
    # And through a program that reads and writes JSON in between.
    assert as_et(json.dumps(json.loads(text), indent=1)).content() == content


def test_the_json_form_is_the_dialect_that_other_readers_know(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(as_json(trace_of(SENDER)))
    read = read_trace_file(file)
    assert read.form == "workload_graph"
    for one, other in zip(read.nodes, trace_of(SENDER).nodes, strict=True):
        assert (one.id, one.name, one.type, one.data_deps, one.duration_us) == (
            other.id, other.name, other.type, other.data_deps, other.duration_us
        )  # fmt: skip
        assert other.attributes.items() <= one.attributes.items()


def test_a_runtime_can_be_changed_in_json_and_nothing_else():
    whole = json.loads(as_json(trace_of(SENDER)))
    whole["workload_graph"][0]["runtime"] = 99
    assert as_et(json.dumps(whole)).content() == trace_of(SENDER).with_durations({1: 99}).content()
    for key, value in (("Name", "other"), ("data_deps", [7]), ("Id", 8)):
        changed = json.loads(as_json(trace_of(SENDER)))
        changed["workload_graph"][0][key] = value
        with pytest.raises(BadTraceError, match="not those of its fields"):
            as_et(json.dumps(changed))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"head": [], "workload_graph": [{}]}',
        '{"head": 1}',
        '{"head": [[1, 2, {"hex": "zz"}]], "workload_graph": []}',
        "[" * 100_000,
    ],
)
def test_other_json_is_refused(text):
    with pytest.raises(BadTraceError):
        as_et(text)


def test_json_of_json_is_refused(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text('{"workload_graph": []}')
    with pytest.raises(BadValueError):
        as_json(read_trace_file(file))


NUMBER = st.integers(0, 2**63 - 1)


@given(
    name=st.text(max_size=20), number=NUMBER, took=NUMBER,
    attributes=st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.integers(-(2**63), 2**64 - 1), st.booleans(), st.text(max_size=8), st.floats(allow_nan=False)),
        max_size=4,
    ),
)  # fmt: skip
def test_any_node_survives_both_ways(name, number, took, attributes):
    attributes.pop("duration_nanos", None)
    trace = made_trace([made_node(number, name, "compute", duration_ns=took, attributes=attributes)])
    (found,) = trace_of(trace.content()).nodes
    assert (found.id, duration_ns(found)) == (number, took)
    kept = {key.encode("utf-8", "replace").decode(): value for key, value in attributes.items()}
    assert len(kept) < len(attributes) or all(
        found.attributes[key] == (value.encode("utf-8", "replace").decode() if isinstance(value, str) else value)
        or math.isinf(value)
        for key, value in kept.items()
    )
    assert as_et(as_json(trace)).content() == trace.content()


def test_recorded_traces_survive_both_ways():
    try:
        folder = datasets.find("chakra-et")
    except DataUnavailableError as error:
        pytest.skip(str(error))
    files = sorted(folder.rglob("*.et"))
    assert len(files) >= 56
    for file in files:
        assert as_et(as_json(read_trace_file(file))).content() == file.read_bytes()
