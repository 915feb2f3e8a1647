"""Which files are the traces of a job, and of which rank."""

import gzip

import pytest
from tests.workloads.test_chakra import RECEIVER, SENDER

from wavetank.errors import BadFileError, BadTraceError, WavetankError
from wavetank.insight.replay import read_et, write_et
from wavetank.insight.replay.reading import files_of, looks_like_chakra
from wavetank.workloads.chakra import trace_of
from wavetank.workloads.chakra_writing import as_et, made_node, made_trace


def job(folder, traces, name="trace.{}.et"):
    folder.mkdir(exist_ok=True)
    for rank, trace in enumerate(traces):
        write_et(folder / name.format(rank), trace)
    return folder


def test_a_file_is_rank_0_and_a_folder_is_read_by_its_numbers(tmp_path):
    assert len(read_et(job(tmp_path, [trace_of(SENDER)]) / "trace.0.et")) == 1
    work = [made_trace([made_node(rank, "n", "compute", duration_ns=1000)]) for rank in range(11)]
    traces = read_et(job(tmp_path / "many", work))
    # In the order of numbers, not of names.
    assert [trace.nodes[0].id for trace in traces] == list(range(11))


def test_files_without_numbers_are_taken_by_name_and_others_are_left_out(tmp_path):
    for name, content in (("b.et", RECEIVER), ("a.et", SENDER), ("notes.txt", b"x"), ("settings.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    assert [file.name for file in files_of(tmp_path)] == ["a.et", "b.et"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["t.0.et", "t.2.et"], "0 to 2 without 1"),
        (["t.1.et"], "1 to 1 without 0"),
        (["t.0.et", "u.0.et"], "one of them twice"),
        (["t.0.et", "last.et"], "last.et"),
        (["t.0.et", "t.99999999999.et"], "2 files"),
    ],
)
def test_missing_ranks_are_named(tmp_path, names, says):
    for name in names:
        (tmp_path / name).write_bytes(SENDER)
    with pytest.raises(BadTraceError) as caught:
        read_et(tmp_path)
    assert says in str(caught.value)


def test_an_empty_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(BadTraceError, match="no Chakra trace"):
        read_et(tmp_path)
    with pytest.raises(WavetankError):
        read_et(tmp_path / "none.et")
    with pytest.raises(BadFileError):
        write_et(tmp_path / "no folder" / "trace.et", trace_of(SENDER))


def test_what_is_written_as_json_comes_back(tmp_path):
    write_et(tmp_path / "trace.json", trace_of(SENDER))
    assert as_et((tmp_path / "trace.json").read_text()).content() == SENDER
    (tmp_path / "trace.et.gz").write_bytes(gzip.compress(SENDER))
    assert read_et(tmp_path / "trace.et.gz")[0].content() == SENDER


@pytest.mark.parametrize(
    ("name", "head", "takes"),
    [
        ("a.et", SENDER, True),
        ("a.et", b"\xda\xd0\x01\x12\x1d\n\x06schem", True),
        ("a.et", b"", False),
        ("a.et", b"PK\x03\x04", False),
        ("a.json", b'{"workload_graph": []}', True),
        ("a.json", b'{"schema": "1.0", "nodes": [{"id": 1, "ctrl_deps": 0}]}', True),
        ("a.json", b'{"schemaVersion": 1, "traceEvents": [{"name": "nodes"}]}', False),
        ("a.json", b'[{"workload_graph": 1}]', False),
    ],
)
def test_a_trace_is_told_by_its_first_bytes(tmp_path, name, head, takes):
    assert looks_like_chakra(tmp_path / name, head) is takes
