"""Histories read from files: every gap kept, every group apart, and nothing guessed from a foreign file."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadTraceError, BadValueError, UnknownNameError, WavetankError
from wavetank.files import head_of
from wavetank.workloads import series
from wavetank.workloads.series import Series, looks_like_series, on_grid, read_series, regular

DAY = 86_400 * 10**9


def written(tmp_path, text, name="m.csv"):
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["m.csv", "m.csv.gz"])
def test_each_column_of_a_wide_file_is_a_series_with_its_gaps(tmp_path, name):
    path = written(tmp_path, "date,p50,p99\n2026-01-01,1,10\n2026-01-03,,30\n2026-01-02,2,nan\n", name)
    low, high = read_series(path)
    assert (low.name, high.name) == ("p50", "p99")
    assert low.time_ns.tolist() == [20454 * DAY, 20455 * DAY, 20456 * DAY]
    assert low.value[:2].tolist() == [1, 2]
    assert low.missing.tolist() == [False, False, True]
    assert high.missing.tolist() == [False, True, False]


def test_words_and_then_small_numbers_tell_the_groups_of_a_long_file(tmp_path):
    rows = [
        f"2026-01-{day:02},{run},{size},{day + size},free text {day}{run}{size}"
        for day in range(1, 13) for run in ("go", "java") for size in (128, 256)
    ]  # fmt: skip
    found = read_series(written(tmp_path, "\n".join(["date,runtime,memory_mb,ms,samples", *rows])))
    assert [each.name for each in found] == ["go 128", "go 256", "java 128", "java 256"]
    assert found[3].labels == {"runtime": "java", "memory_mb": "256"}
    assert found[1].value.tolist() == [day + 256 for day in range(1, 13)]


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [("time", "1700000000", 1_700_000_000 * 10**9), ("time", "1700000000.5", 1_700_000_000_500_000_000),
     ("time", "1700000000123", 1_700_000_000_123_000_000), ("ts", "1700000000123456789", 1_700_000_000_123_456_789),
     ("time_ms", "5", 5_000_000), ("time", "2023-11-14T22:13:20Z", 1_700_000_000 * 10**9),
     ("time", "2023-11-14T23:13:20+01:00", 1_700_000_000 * 10**9)],
)  # fmt: skip
def test_times_are_whole_nanoseconds(tmp_path, name, first, expected):
    (found,) = read_series(written(tmp_path, f"{name},v\n{first},1\n"))
    assert found.time_ns.tolist() == [expected]


def test_columns_can_be_said(tmp_path):
    path = written(tmp_path, "a,b,c,d\n1,2,x,3\n2,3,x,4\n1,2,y,5\n2,3,y,6\n")
    found = read_series(path, time="a", value=("d",), group=("c",))
    assert {each.name: each.value.tolist() for each in found} == {"x": [3, 4], "y": [5, 6]}
    with pytest.raises(UnknownNameError):
        read_series(path, time="z")
    with pytest.raises(BadFileError):
        read_series(path, time="a", value=("c",), group=("c",))


def test_parquet_is_read_as_csv_is(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "m[1].parquet"
    duckdb.sql(
        "SELECT DATE '2026-01-01' + i::INTEGER AS day, CASE WHEN i = 1 THEN NULL ELSE i END AS v FROM range(5) t(i)"
    ).write_parquet(str(path))
    (found,) = read_series(path)
    assert found.value[[0, 2, 3, 4]].tolist() == [0, 2, 3, 4]
    assert found.missing.tolist() == [False, True, False, False, False]
    assert looks_like_series(path, head_of(path))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadFileError):
        read_series(path)


@pytest.mark.parametrize(
    "text",
    ["", "date,v\n", "date\n2026-01-01\n", "a,b\nx,y\n", "date,v\n2026-01-01,word\n", "v,w\n1,2\n", "date,date\n1,2\n",
     'date,v\n"2026-01-01,1\n', "date,v\n2026-01-01,1,2,3\n2026-01-02\n"],
)  # fmt: skip
def test_what_is_no_history_is_refused(tmp_path, text):
    with pytest.raises(BadFileError):
        read_series(written(tmp_path, text))


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "m.csv.gz"
    path.write_bytes(gzip.compress(b"date,v\n2026-01-01,1\n" * 50)[:-12])
    with pytest.raises(BadFileError):
        read_series(path)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "m.csv"
    for content in (data, b"date,v\n2026-01-01,1\n" + data, b"time,a,b\n" + data):
        path.write_bytes(content)
        looks_like_series(path, content)
        try:
            found = read_series(path)
        except WavetankError:
            continue
        assert all((np.diff(each.time_ns) > 0).all() for each in found)
        assert all(np.isfinite(each.value[~each.missing]).all() for each in found)


def test_requests_and_tables_without_times_are_no_history(tmp_path):
    rng = np.random.default_rng(0)
    times = 1.7e9 + np.cumsum(rng.exponential(1.0, 300))
    requests = "timestamp,prompt,output\n" + "".join(f"{each:.6f},5,7\n" for each in times)
    assert not looks_like_series(tmp_path / "r.csv", requests.encode())
    topdown = "kernel,retiring,memory\n" + "".join(f"K{each},0.5,0.{each}\n" for each in range(10, 40))
    assert not looks_like_series(tmp_path / "t.csv", topdown.encode())
    assert not looks_like_series(tmp_path / "x.bin", b"\0\1,\n")
    daily = "date,v\n" + "".join(f"2026-01-{each:02},{each}\n" for each in range(1, 29) if each not in (5, 9))
    # The head may end inside a line.
    assert looks_like_series(tmp_path / "d.csv", daily.encode()[:-4])


def at(*times, value=None):
    value = np.arange(len(times), dtype=float) if value is None else np.array(value)
    return Series(name="s", time_ns=np.array(times, np.int64), value=value, missing=np.isnan(value), labels={})


def test_the_grid_keeps_gaps_and_shares_its_slots_by_the_median():
    found = on_grid(at(0, 10, 20, 50, 61, 69, 80, 90, value=[1, 2, 3, 6, 7, 9, 8, 4.0]), step_ns=10)
    assert found.missing.tolist() == [False, False, False, True, True, False, False, False, False, False]
    assert found.value[[0, 5, 6, 7]].tolist() == [1, 6, 7, 9]
    both = on_grid(at(0, 10, 20, 21, 22, value=[1, 2, 3, 30, 5.0]), step_ns=10)
    assert both.value.tolist() == [1, 2, 5]
    assert on_grid(at(0, 7, 14, 28)).step_ns == 7
    assert found.time_ns(5) == 50
    assert found.until(4).value.tolist()[:3] == [1, 2, 3]
    assert found.seen == 8


def test_a_grid_without_end_is_refused():
    with pytest.raises(BadTraceError):
        on_grid(at(0, 1, 2, 10**15))
    with pytest.raises(BadTraceError):
        on_grid(at(5))


def test_values_on_a_grid_need_no_times():
    found = regular([1.0, np.inf, 3.0])
    assert found.missing.tolist() == [False, True, False]
    assert np.isnan(found.value[1])
    for wrong in ({"values": [[1.0]]}, {"values": [1.0], "step_ns": 0}):
        with pytest.raises(BadValueError):
            regular(**wrong)


def test_the_longest_file_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(series, "LARGEST_BYTES", 10)
    with pytest.raises(BadFileError):
        read_series(written(tmp_path, "date,v\n2026-01-01,1\n"))
