"""RequestTrace.write: what is written is read back equal, and a file is whole or not there."""

import gzip
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads import RequestTrace, read_trace
from wavetank.workloads.trace_writing import WRITTEN_FORMATS

# Everything but zero bytes and halves of surrogate pairs, which no file of text holds.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@st.composite
def traces(draw):
    n = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.floats(0, 1e5, allow_subnormal=False), min_size=n, max_size=n))
    columns = {
        "arrival_s": np.cumsum(gaps),
        "prompt_tokens": draw(st.lists(st.integers(200, 10**7), min_size=n, max_size=n)),
        "output_tokens": draw(st.lists(st.integers(1, 2**52), min_size=n, max_size=n)),
        "block_tokens": draw(st.sampled_from([16, 512])),
    }
    for column in draw(st.sets(st.sampled_from(["model", "tier", "adapter"]))):
        names = draw(st.lists(NAMES, min_size=1, max_size=4))
        columns[f"{column}_names"] = tuple(names)
        columns[column] = draw(st.lists(st.integers(0, len(names) - 1), min_size=n, max_size=n))
    for column, values in (
        ("session", st.integers(-1, 4)),
        ("max_tokens", st.integers(0, 2**52)),
        ("deadline_s", st.just(math.nan) | st.floats(1e-9, 1e6)),
    ):
        if draw(st.booleans()):
            columns[column] = draw(st.lists(values, min_size=n, max_size=n))
    if draw(st.booleans()):
        lists = draw(st.lists(st.lists(st.integers(0, 9), max_size=1), min_size=n, max_size=n))
        columns["block_ids"] = np.array([each for held in lists for each in held], dtype=np.int64)
        columns["block_offsets"] = np.cumsum([0, *map(len, lists)])
    return RequestTrace(**columns)


@given(traces(), st.sampled_from(WRITTEN_FORMATS))
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_back_equal(tmp_path_factory, trace, ending):
    path = trace.write(tmp_path_factory.mktemp("written") / f"t{ending}")
    again = read_trace(path)
    assert again == trace
    assert again.checksum == trace.checksum
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", WRITTEN_FORMATS)
@pytest.mark.parametrize("name", ["\r", "\r\n", "a\rb", '\r"', '"', ",\r", '\n"\r,'])
def test_line_ends_and_quotes_inside_a_name_are_kept(tmp_path, name, ending):
    trace = RequestTrace(
        arrival_s=[0.0, 1.0], prompt_tokens=[10, 20], output_tokens=[1, 2], model=[0, 1], model_names=(name, "b")
    )
    assert read_trace(trace.write(tmp_path / f"t{ending}")) == trace


def test_equal_contents_are_equal_whatever_the_order_of_unused_names():
    common = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}
    one = RequestTrace(**common, model=[1, 0], model_names=("b", "a", "never"))
    other = RequestTrace(**common, model=[0, 1], model_names=("a", "b"))
    assert one == other
    assert one != RequestTrace(**common, model=[1, 0], model_names=("a", "b"))


TRACE = RequestTrace(arrival_s=[0.0, 1.5], prompt_tokens=[10, 20], output_tokens=[1, 2])


def test_a_csv_file_is_plain(tmp_path):
    path = TRACE.write(tmp_path / "new" / "folder" / "t.csv")
    assert path.read_text() == "arrival_s,prompt_tokens,output_tokens\n0.0,10,1\n1.5,20,2\n"


def test_equal_traces_give_equal_packed_files(tmp_path):
    one, other = TRACE.write(tmp_path / "a.jsonl.gz"), TRACE.write(tmp_path / "b.jsonl.gz")
    assert one.read_bytes() == other.read_bytes()
    assert gzip.decompress(one.read_bytes()).startswith(b'{"arrival_s":0.0,"prompt_tokens":10,"output_tokens":1}\n')


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(BadValueError) as caught:
        TRACE.write(tmp_path / "t.xlsx")
    assert ".parquet" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", WRITTEN_FORMATS)
def test_where_nothing_can_be_written_the_old_file_stays(tmp_path, ending):
    if os.geteuid() == 0:
        # Nothing is forbidden to root, but no folder can be a file.
        (tmp_path / "file").write_text("old")
        with pytest.raises(BadFileError, match="cannot be written"):
            TRACE.write(tmp_path / "file" / f"t{ending}")
        assert (tmp_path / "file").read_text() == "old"
        return
    path = tmp_path / f"t{ending}"
    path.write_text("old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(BadFileError, match="cannot be written"):
            TRACE.write(path)
        assert path.read_text() == "old"
    finally:
        tmp_path.chmod(0o700)


def test_an_error_while_writing_leaves_no_part(tmp_path, monkeypatch):
    path = TRACE.write(tmp_path / "t.csv")
    old = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadFileError, match="No space left"):
        TRACE.head(1).write(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]
