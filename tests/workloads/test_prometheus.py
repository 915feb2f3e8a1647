"""Prometheus: what its API and exporters say, with gaps and resets kept, and everything else refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadTraceError
from wavetank.workloads import prometheus
from wavetank.workloads.prometheus import (
    Series,
    increases,
    looks_like_range,
    on_grid,
    read_exposition,
    read_range,
    resets,
)

ROWS = [
    {"metric": {"__name__": "up", "instance": "b"}, "values": [[1700000000.781, "1"], [1700000030.781, "NaN"]]},
    {"metric": {"__name__": "x", "job": "j", "instance": "a"},
     "values": [[1700000000.781, "1e3"], [1700000060.781, "+Inf"], [1700000090, "-.5"]]},
]  # fmt: skip


def answer(rows=ROWS, **other) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}} | other).encode()


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "range.json"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_range_is_read_with_its_names_times_and_values(tmp_path: Path, packed: bool) -> None:
    content = gzip.compress(answer()) if packed else answer()
    up, x = read_range(written(tmp_path, content))
    assert (up.name, up.labels, up.label("instance"), up.label("no")) == ("up", (("instance", "b"),), "b", "")
    assert up.time_ns.tolist() == [1_700_000_000_781_000_000, 1_700_000_030_781_000_000]
    assert up.value[0] == 1 and math.isnan(up.value[1])
    assert x.labels == (("instance", "a"), ("job", "j")) and x.value.tolist() == [1000.0, math.inf, -0.5]
    assert looks_like_range(answer()) and not looks_like_range(b'{"traceEvents": []}') and not looks_like_range(b"")


def test_an_empty_result_has_no_series(tmp_path: Path) -> None:
    assert read_range(written(tmp_path, answer([]))) == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no answer"), (b"[]", "no answer"), (answer()[:-20], "no answer"), (b"\x1f\x8b\x08gar", "cannot be read"),
        (gzip.compress(answer())[:-9], "cannot be read"), (b'{"status":' + b"[" * 100_000, "no answer"),
        (b'{"status": "error", "error": "query timed out"}', "has failed"),
        (answer(data={"resultType": "vector", "result": []}), "no ranges"),
        (answer([{"metric": {}, "values": [[1, "1"], [1, "2"]]}]), "times of a series rise"),
        (answer([{"metric": {}, "values": [[2, "1"], [1, "2"]]}]), "times of a series rise"),
        (answer([{"metric": {}, "values": [[1, "one"]]}]), "no number"),
        (answer([{"metric": {}, "values": [[1, "1_0"]]}]), "no number"),
        (answer([{"metric": {}, "values": [[1e300, "1"]]}]), "no time"),
        (answer([{"metric": {}, "values": [[1, 1]]}]), "cannot be read"),
        (answer([{"metric": {"a": 1}, "values": []}]), "cannot be read"),
        (answer([{"values": []}]), "cannot be read"), (b"\xff\xfe{}", "no answer"),
    ],
)  # fmt: skip
def test_what_is_no_range_is_refused_with_the_reason(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(BadTraceError, match=says):
        read_range(written(tmp_path, content))


def test_bombs_and_missing_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", 3 << 20)
    with pytest.raises(BadTraceError, match="too large"):
        read_range(written(tmp_path, gzip.compress(b" " * (8 << 20))))
    with pytest.raises(BadTraceError, match="cannot be read"):
        read_range(tmp_path / "no.json")
    monkeypatch.setattr(prometheus, "MOST_SERIES", 1)
    with pytest.raises(BadTraceError, match="too many series"):
        read_range(written(tmp_path, answer()))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_damage_does_anything_but_refuse(tmp_path_factory, data) -> None:
    content = bytearray(answer())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = written(tmp_path_factory.mktemp("damage"), bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        for each in read_range(path):
            assert each.time_ns.size == each.value.size and (np.diff(each.time_ns) > 0).all()
    except BadTraceError:
        pass


def test_gaps_are_missing_on_the_grid_and_nothing_is_filled_in(tmp_path: Path) -> None:
    grid = on_grid(read_range(written(tmp_path, answer())), 30 * 10**9)
    assert grid.value.shape == (2, 4) and np.diff(grid.time_ns).tolist() == [30 * 10**9] * 3
    assert np.isnan(grid.value[0, 1:]).all() and np.isnan(grid.value[1, 1])
    assert grid.value[1, [0, 2, 3]].tolist() == [1000.0, math.inf, -0.5]


def test_the_step_is_the_most_frequent_distance() -> None:
    series = Series("a", (), np.array([0, 10, 20, 50, 60, 61]) * 10**9, np.arange(6.0))
    assert np.diff(on_grid([series]).time_ns)[0] == 10 * 10**9
    with pytest.raises(BadTraceError, match="two samples"):
        on_grid([Series("a", (), np.array([5]), np.array([1.0]))])
    with pytest.raises(BadTraceError, match="too many times"):
        on_grid([Series("a", (), np.array([0, 1, 10**18]), np.arange(3.0))])


def test_a_counter_that_falls_was_reset_and_gaps_say_nothing() -> None:
    values = np.array([5.0, 9.0, 2.0, math.nan, 7.0, 8.0])
    assert increases(values).tolist()[1:3] == [4.0, 2.0] and increases(values)[5] == 1.0
    assert np.isnan(increases(values)[[0, 3, 4]]).all()
    assert resets(values) == 1 and resets(np.array([3.0, math.nan, 1.0])) == 1
    assert np.isnan(increases(np.array([1.0]))).all()


TEXT = '''# HELP node_intr_total Interrupts.
# TYPE node_intr_total counter
node_intr_total 3.5e+07
# TYPE temp gauge
temp{gpu="0",host="a\\\\b \\"q\\" }x"} 61 1395066363000

lat_bucket{le="+Inf"} NaN
'''


def test_an_exporters_text_is_read_with_kinds_labels_and_escapes() -> None:
    intr, temp, bucket = read_exposition(TEXT)
    assert (intr.name, intr.labels, intr.value, intr.kind) == ("node_intr_total", (), 3.5e7, "counter")
    assert temp.labels == (("gpu", "0"), ("host", 'a\\b "q" }x')) and temp.value == 61 and temp.kind == "gauge"
    assert bucket.labels == (("le", "+Inf"),) and math.isnan(bucket.value) and bucket.kind == ""


@pytest.mark.parametrize(
    "line",
    ["1abc 3", "a{", 'a{b="c} 1', 'a{b="c"', 'a{b=c} 1', 'a{b="c" d="e"} 1', 'a{b="c",b="d"} 1', "a", "a b", "a 1 2 3",
     "a 1 x", "a 0x10", "a 1_000", "<html>", "a{} 1 1e3"],
)  # fmt: skip
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(BadTraceError) as caught:
        read_exposition("ok 1\n" + line + "\n", where="here")
    assert caught.value.where == "here, line 2"


def test_too_long_lines_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadTraceError, match="too long"):
        read_exposition('a{b="' + "c" * prometheus.MOST_LINE + '"} 1')
    monkeypatch.setattr(prometheus, "MOST_SERIES", 2)
    with pytest.raises(BadTraceError, match="too many"):
        read_exposition("a 1\n" * 3)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='ab1{}="\\,# \n.+eNaIf', max_size=80))
def test_no_text_does_anything_but_refuse(text: str) -> None:
    with contextlib.suppress(BadTraceError):
        assert all(each.name for each in read_exposition(text))


@pytest.mark.parametrize("at_s", [-1.0, 4.6e9, 9.7e9, 5e10, 1e300])
def test_a_time_that_nanoseconds_cannot_hold_is_refused(tmp_path: Path, at_s: float) -> None:
    rows = [{"metric": {}, "values": [[1.0, "0"], [2.0, "0"], [max(at_s, 3.0), "0"]]},
            {"metric": {}, "values": [[min(at_s, 0.0), "0"], [1.0, "0"]]}]  # fmt: skip
    with pytest.raises(BadTraceError, match="no time"):
        read_range(written(tmp_path, answer(rows)))
