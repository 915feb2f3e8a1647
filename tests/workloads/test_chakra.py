"""Chakra traces: read, written back, made step graphs, and refused when damaged."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadTraceError, BadValueError, WavetankError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.sim.steps import COLLECTIVE, HOST, RECEIVE, SEND, DeadlockError
from wavetank.workloads import datasets
from wavetank.workloads.chakra import read_trace_file, step_graph
from wavetank.workloads.operations import UNPRICED

# Written out by hand: field number * 8 + wire type, then the value.
VERSION = b"\x0a\x050.0.4"


def attribute(name, slot, value):
    body = b"\x0a" + bytes([len(name)]) + name.encode() + slot + value
    return b"\x52" + bytes([len(body)]) + body


def node(identity, kind, *parts):
    return b"\x08" + bytes([identity]) + b"\x12\x01n" + b"\x18" + bytes([kind]) + b"".join(parts)


def stream(*messages):
    return b"".join(bytes([len(each)]) + each for each in (VERSION, *messages))


SIZE = attribute("comm_size", b"\x48", b"\x0a")
# Attributes 7 (int32) and 13 (uint64): the same names have had several types.
TO_1, FROM_0 = attribute("comm_dst", b"\x38", b"\x01"), attribute("comm_src", b"\x68", b"\x00")
WORK = node(1, 4, b"\x38\x05")
SENDER = stream(WORK, node(2, 5, b"\x2a\x01\x01", SIZE, TO_1))
RECEIVER = stream(node(7, 6, SIZE, FROM_0), node(8, 4, b"\x28\x07", b"\x38\x02"))


@pytest.fixture
def read(tmp_path):
    def reader(content, name="trace.et"):
        path = tmp_path / name
        path.write_bytes(content)
        return read_trace_file(path)

    return reader


def test_nodes_have_what_was_written(read):
    trace = read(SENDER)
    assert (trace.form, trace.version, len(trace.nodes)) == ("et", "0.0.4", 2)
    work, send = trace.nodes
    assert (work.id, work.name, work.type, work.duration_us, work.data_deps) == (1, "n", 4, 5, ())
    assert (send.type, send.data_deps, send.attributes) == (5, (1,), {"comm_size": 10, "comm_dst": 1})


def test_dependencies_are_read_packed_and_one_by_one(read):
    assert [each.data_deps for each in read(RECEIVER).nodes] == [(), (7,)]


@pytest.mark.parametrize(
    ("slot", "value", "expected"),
    [
        (b"\x48", b"\xff" * 9 + b"\x01", -1),
        (b"\x78", b"\x03", -2),
        (b"\xd8\x01", b"\x01", True),
        (b"\xea\x01", b"\x03abc", "abc"),
        (b"\x19", b"\x00\x00\x00\x00\x00\x00\xf8\x3f", 1.5),
        # A 32-bit field in the slot of 64 bits has no sign.
        (b"\xad\x01", b"\xfe\xff\xff\xff", 0xFFFFFFFE),
        (b"\xbd\x01", b"\xfe\xff\xff\xff", -2),
    ],
)
def test_attributes_of_every_type_have_their_value(read, slot, value, expected):
    assert read(stream(node(1, 4, attribute("x", slot, value)))).nodes[0].attributes["x"] == expected


def test_what_is_unknown_is_written_back_as_it_came(read):
    # Field 11, of a newer schema, and an attribute in a slot that there is not.
    content = stream(node(1, 4, b"\x5a\x02\x08\x01", attribute("new", b"\xaa\x02", b"\x01x")))
    assert read(content).content() == content


def test_a_message_over_a_fabric(read):
    graph = step_graph([read(SENDER), read(RECEIVER, "other.et")])
    assert graph.kind.tolist() == [0, SEND, RECEIVE, 0]
    assert graph.duration_ps.tolist() == [5_000_000, UNPRICED, UNPRICED, 2_000_000]
    fabric = Fabric(levels=(Level(name="node", size=2, alpha_s=1e-6, bytes_per_s=1e6),))
    assert fabric.priced(graph, flops_per_s=1.0).times().end_ps.tolist() == [
        5_000_000,
        16_000_000,
        16_000_000,
        18_000_000,
    ]


def test_a_changed_duration_changes_one_node_alone(read):
    trace = read(SENDER)
    assert trace.with_durations({1: 5}).content() == SENDER
    longer = trace.with_durations({1: 300})
    assert longer.nodes[0].duration_us == 300
    assert longer.content() == SENDER.replace(bytes([len(WORK)]) + WORK, b"\x0a\x08\x01\x12\x01n\x18\x04\x38\xac\x02")
    assert read(longer.content()).nodes[0].duration_us == 300
    assert read(trace.with_durations({1: 0, 2: 9}).content()).nodes[1].duration_us == 9
    for wrong in ({3: 1}, {1: -1}):
        with pytest.raises(BadValueError, match="of no nodes of the trace"):
            trace.with_durations(wrong)


CONVERTED = """{ "note": "[",  "workload_graph" : [
  {"Id": 4, "Name": "\u00e4dd {", "NodeType": 4, "ctrlDeps": [], "data_deps": [9], "runtime": 7, "is_cpu_op": false},
  {"Id": 9, "Name": "launch",   "NodeType": 4, "data_deps": [], "runtime": 2, "is_cpu_op": true} ],
 "ngpus": 1 }
"""


def test_converted_json_is_read_and_written_back_with_its_layout(read):
    trace = read(CONVERTED.encode(), "trace.json")
    assert [(each.id, each.data_deps, each.duration_us) for each in trace.nodes] == [(4, (9,), 7), (9, (), 2)]
    assert trace.content() == CONVERTED.encode()
    graph = step_graph([trace])
    # The launch comes first, whatever its number.
    assert graph.kind.tolist() == [HOST, 0]
    assert graph.times().end_ps.tolist() == [2_000_000, 9_000_000]
    changed = trace.with_durations({9: 3}).content().decode()
    assert changed == CONVERTED.replace('"launch",   "NodeType"', '"launch", "NodeType"').replace(
        '"runtime": 2', '"runtime": 3'
    )


def test_a_host_trace_is_read_and_is_no_step_graph(read):
    host = {
        "schema": "1.0.2-chakra.0.0.4",
        "nodes": [{"id": 2, "name": "call", "ctrl_deps": 1, "attrs": [{"name": "tid", "type": "uint64", "value": 3}]}],
        "finish_ts": 5,
    }
    content = json.dumps(host, indent=1).encode()
    trace = read(gzip.compress(content), "host.json.gz")
    assert (trace.version, trace.nodes[0].ctrl_deps, trace.nodes[0].attributes) == (host["schema"], (1,), {"tid": 3})
    assert trace.content() == content
    with pytest.raises(BadTraceError, match="no step graph"):
        step_graph([trace])
    with pytest.raises(BadValueError, match="of no nodes"):
        trace.with_durations({2: 1})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (SENDER[:-1], "cut off"),
        (b"\xff" * 12, "cut off or too long"),
        (stream(b"\x0b\x01"), "no type that protobuf has"),
        (stream(b"\x08\x81\x00"), "cannot be written back"),
        (stream(b"\x0a\x01x"), "no number where one belongs"),
        (stream(node(1, 4), node(1, 4)), "one identity"),
    ],
)
def test_damaged_streams_are_refused(read, content, says):
    with pytest.raises(BadFileError, match=says):
        read(content)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"nodes": 3}', b'{"nodes": [{"id": 1}]}', b"\xff", b'{"a": 1']
)
def test_json_of_other_forms_is_refused(read, content):
    with pytest.raises(BadFileError, match="no JSON of a form"):
        read(content, "trace.json")


def test_files_that_cannot_be_read_are_refused(read, tmp_path):
    with pytest.raises(BadFileError, match="cannot be read"):
        read_trace_file(tmp_path / "none.et")
    with pytest.raises(BadFileError, match="cannot be read"):
        read(b"no gzip", "trace.et.gz")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(SENDER)), st.integers(0, 8))
def test_damage_is_refused_or_survives_but_never_escapes(tmp_path_factory, noise, place, removed):
    path = tmp_path_factory.mktemp("noise") / "trace.et"
    for content in (noise, SENDER[:place] + noise[:3] + SENDER[place + removed :]):
        path.write_bytes(content)
        try:
            trace = read_trace_file(path)
            step_graph([trace, trace])
        except WavetankError:
            continue
        assert trace.content() == content


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([node(1, 4, b"\x28\x09")], "Node 1 .n. depends on a node that is not in the trace"),
        ([node(1, 4, b"\x28\x02"), node(2, 4, b"\x28\x01")], "wait for each other in a cycle, node 1"),
        ([node(1, 0)], "Node 1 .n. is of no type"),
        ([node(1, 5, SIZE)], "for a rank without a trace"),
        ([node(1, 7)], "neither a size nor a duration"),
        ([node(1, 7, SIZE, attribute("comm_type", b"\x48", b"\x0c"))], "is of no collective"),
        ([node(1, 7, attribute("comm_size", b"\xea\x01", b"\x01x"))], "comm_size of node 1 .n. is no whole number"),
    ],
)
def test_traces_that_make_no_sense_are_refused_by_node(read, messages, says):
    with pytest.raises(BadTraceError, match=says):
        step_graph([read(stream(*messages))])


def test_collectives_of_a_process_group_belong_together(read):
    named = attribute("pg_name", b"\xea\x01", b"\x01a")
    traces = [read(stream(node(1, 7, SIZE), node(2, 7, SIZE, *([named] if rank else [])))) for rank in range(3)]
    graph = step_graph(traces)
    assert (graph.kind == COLLECTIVE).all()
    assert set(graph.groups) == {(0, 1, 2), (1, 2)}


def recorded():
    try:
        return datasets.find("chakra-et")
    except WavetankError:
        pytest.skip("the data set chakra-et is not here")


def test_recorded_traces_are_written_back_byte_for_byte():
    folder, read = recorded(), 0
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".et" or ("chakra" in path.name and ".json" in path.name):
            content = path.read_bytes()
            assert read_trace_file(path).content() == (gzip.decompress(content) if path.suffix == ".gz" else content)
            read += 1
    assert read >= 50


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_recorded_micro_benchmarks_take_what_the_alpha_beta_formula_says(ranks, collective):
    name = collective.replace("-", "_")
    folder = recorded() / "micro" / name / f"{ranks}npus_1MB"
    graph = step_graph([read_trace_file(folder / f"{name}.{rank}.et") for rank in range(ranks)])
    fabric = Fabric(levels=(Level(name="ring", size=ranks, alpha_s=500e-9, bytes_per_s=50e9),))
    rounds = (ranks - 1) * (2 if collective == "all-reduce" else 1)
    expected_s = rounds * (500e-9 + 2**20 / ranks / 50e9)
    assert fabric.priced(graph, flops_per_s=1.0).times().makespan_ps == pytest.approx(expected_s * 1e12, abs=rounds)


def test_the_recorded_ring_of_sends_takes_as_long_as_the_native_all_reduce_and_its_sums():
    folder = recorded() / "custom_ring_allreduce_8npus_1MB"
    traces = [read_trace_file(folder / f"custom_allreduce.{rank}.et") for rank in range(8)]
    fabric = Fabric(levels=(Level(name="ring", size=8, alpha_s=500e-9, bytes_per_s=50e9),))
    native = fabric.collective_ps("all-reduce", range(8), 2**20)
    # Seven sums of 7 us each are on its way.
    assert fabric.priced(step_graph(traces), flops_per_s=1.0).times().makespan_ps == native + 7 * 7_000_000
    free = [each.with_durations(dict.fromkeys((n.id for n in each.nodes if n.duration_us), 0)) for each in traces]
    assert fabric.priced(step_graph(free), flops_per_s=1.0).times().makespan_ps == native


def test_a_recorded_step_becomes_a_graph_with_every_node():
    trace = read_trace_file(recorded() / "chakra.0.json.gz")
    graph = step_graph([trace])
    assert len(graph) == len(trace.nodes) == 3664
    times = graph.times()
    # No stream can be faster than its work, nor the step slower than all work in a row.
    assert graph.duration_ps[graph.kind == HOST].sum() <= times.makespan_ps <= graph.duration_ps.sum()


MOST = b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(
    "part",
    [
        attribute("x", b"\x1a", b"\x01a"), attribute("x", b"\x1d", b"abcd"), attribute("x", b"\x29", b"abcdefgh"),
        b"\x29" + bytes(8), b"\x38" + b"\xff" * 9 + b"\x7f",
    ],
)  # fmt: skip
def test_values_of_another_wire_type_or_of_more_than_64_bits_are_refused(read, part):
    with pytest.raises(BadFileError, match=r"not the size of its type|no number where one|cut off or too long"):
        read(stream(node(1, 4, part)))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (node(1, 4, b"\x38" + MOST), "Node 1 .n. has no duration that can be"),
        (node(1, 7, attribute("comm_size", b"\x68", MOST)), "comm_size of node 1 .n. is no whole number that can be"),
        (node(1, 6, SIZE, FROM_0, attribute("comm_tag", b"\x68", MOST)), "comm_tag of node 1"),
        (node(1, 7, SIZE, attribute("comm_type", b"\x48", MOST)), "Node 1 .n. is of no collective"),
        (node(1, 4, attribute("num_ops", b"\xea\x01", b"\x03abc")), "num_ops of node 1 .n. is no number"),
        (node(1, 4, attribute("num_ops", b"\x48", MOST)), "num_ops of node 1 .n. is no number"),
    ],
)
def test_figures_without_a_place_in_a_step_graph_are_refused_by_node(read, message, says):
    with pytest.raises(BadTraceError, match=says):
        step_graph([read(stream(message))])


def converted(**more):
    return json.dumps({"workload_graph": [{"Id": 1, "Name": "a", "NodeType": 4, "runtime": 3} | more]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        converted(Id=float("inf")), converted(Id=1.5), converted(runtime=2.5), converted(runtime=True),
        converted(data_deps=[0.5]), b"[" * 200_000, b'{"nodes": [], "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"nodes": "]"}', b'{"nodes": [], "nodes": [{"id": 1, "name": "a", "attrs": []}], "nodes": []}',
    ],
)  # fmt: skip
def test_json_that_is_deep_or_has_no_whole_numbers_is_refused(read, content):
    with pytest.raises(BadFileError, match="no JSON of a form"):
        read(content, "trace.json")


@pytest.mark.parametrize("more", [{"num_ops": [1]}, {"num_ops": 10**400}, {"runtime": -5}, {"runtime": 10**30}])
def test_json_figures_that_no_node_has_are_refused(read, more):
    with pytest.raises(BadTraceError, match=r"Node 1 .a. has no duration|num_ops of node 1 .a. is no number"):
        step_graph([read(converted(**more), "trace.json")])


def test_every_damaged_byte_of_a_compressed_trace_is_refused_or_survives(read):
    content = gzip.compress(CONVERTED.encode(), mtime=0)
    refused = 0
    for place in range(len(content)):
        for name, damaged in (
            ("cut.json.gz", content[:place]),
            ("flip.json.gz", content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]),
        ):
            try:
                assert read(damaged, name).content() == CONVERTED.encode()
            except BadFileError:
                refused += 1
    # All that are cut off, and most others: a few bytes of the head mean nothing.
    assert refused > 1.8 * len(content)


def test_every_byte_of_a_stream_can_be_any_other(read):
    for place in range(len(SENDER)):
        for byte in (0x00, 0x1A, 0x1D, 0x29, 0x2A, 0x7F, 0x80, 0xFF):
            damaged = SENDER[:place] + bytes([byte]) + SENDER[place + 1 :]
            try:
                trace = read(damaged)
                assert trace.content() == damaged
                step_graph([trace, trace])
            except WavetankError:
                continue


@pytest.mark.parametrize("duration_us", [2.5, 2**64, True, "5", None])
def test_durations_that_cannot_be_written_are_refused(read, duration_us):
    with pytest.raises(BadValueError, match="of no nodes of the trace"):
        read(SENDER).with_durations({1: duration_us})
    longest = read(SENDER).with_durations({1: 2**64 - 1})
    assert read(longest.content()).nodes[0].duration_us == 2**64 - 1


def test_half_of_a_surrogate_pair_stays_an_escape(read):
    content = converted().replace(b'"a"', rb'"\ud800\u00e4"')
    changed = read(content, "trace.json").with_durations({1: 5}).content()
    assert rb'"\ud800' in changed
    assert read(changed, "again.json").nodes[0].name == "\ud800\u00e4"


def test_a_rank_whose_trace_lost_the_collective_of_all_is_waited_for(read):
    whole, cut = read(stream(WORK, node(2, 7, SIZE, b"\x38\x05"))), read(stream(WORK))
    with pytest.raises(DeadlockError, match="waits for rank 1, which calls no such"):
        step_graph([whole, cut]).times()
    # A group with a name has those that call it.
    named = attribute("pg_name", b"\xea\x01", b"\x01a")
    assert step_graph([read(stream(node(2, 7, SIZE, named))), cut]).groups == ((0,),)
