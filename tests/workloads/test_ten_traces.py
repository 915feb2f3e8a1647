"""Ten unlike files of one seed's requests: each is read as what it is, or refused with the next step."""

import csv
import gzip
import io
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadTraceError
from wavetank.workloads import RequestTrace, read_trace, read_trace_and_facts

N = 300
BEGIN = datetime(2024, 3, 11, 18, 15, 46, 250_000, tzinfo=UTC)


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(20)
    return RequestTrace(
        # Whole milliseconds, which every clock of the files can say.
        arrival_s=np.cumsum(rng.integers(1, 4000, N)) / 1000.0,
        prompt_tokens=rng.integers(1, 4000, N),
        output_tokens=rng.integers(1, 500, N),
    )


def moments(truth):
    return [BEGIN + timedelta(milliseconds=round(1000 * (time - truth.arrival_s[0]))) for time in truth.arrival_s]


def separated(names, *columns, delimiter=","):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([names, *zip(*columns, strict=True)])
    return text.getvalue()


def columns(truth):
    return truth.prompt_tokens.tolist(), truth.output_tokens.tolist()


def same(found, truth, *, rows=None, within_s=1e-6):
    """Compare a trace with rows of the truth, whose clock begins at the first of them where dates were read."""
    rows = np.arange(N) if rows is None else rows
    assert found.prompt_tokens.tolist() == truth.prompt_tokens[rows].tolist()
    assert found.output_tokens.tolist() == truth.output_tokens[rows].tolist()
    expected = truth.arrival_s[rows]
    np.testing.assert_allclose(found.arrival_s - found.arrival_s[0], expected - expected[0], atol=within_s)


def test_1_an_excel_sheet_of_the_united_states(tmp_path, truth):
    times = [
        f"{m.month}/{m.day}/{m.year} {m:%I:%M:%S}.{m.microsecond // 1000:03} {'AM' if m.hour < 12 else 'PM'}"
        for m in (moment + timedelta(days=5) for moment in moments(truth))
    ]
    path = tmp_path / "sheet.csv"
    path.write_bytes(b"\xef\xbb\xbf" + separated(["Time", "Input", "Output"], times, *columns(truth)).encode())
    trace, facts = read_trace_and_facts(path)
    same(trace, truth)
    assert facts.times == "dates, month first"


def test_2_a_sheet_of_semicolons_with_decimal_commas_in_latin_1(tmp_path, truth):
    times = [f"{time:.3f}".replace(".", ",") for time in truth.arrival_s]
    notes = ["été" if row == 7 else "" for row in range(N)]
    text = separated(["start", "n_input", "n_output", "note"], times, *columns(truth), notes, delimiter=";")
    (tmp_path / "sheet.txt").write_bytes(text.encode("latin-1"))
    trace, facts = read_trace_and_facts(tmp_path / "sheet.txt")
    same(trace, truth)
    assert facts.read_as == ("delimited by semicolons", "encoding Latin-1")


def test_3_tabs_in_utf_16_with_milliseconds_by_name(tmp_path, truth):
    times = [round(1000 * time) for time in truth.arrival_s]
    text = separated(["arrival_ms", "prompt_len", "generated"], times, *columns(truth), delimiter="\t")
    (tmp_path / "trace.tsv").write_bytes(text.encode("utf-16"))
    trace, facts = read_trace_and_facts(tmp_path / "trace.tsv")
    same(trace, truth)
    assert (facts.times, facts.notes, facts.read_as) == ("ms", (), ("encoding UTF-16",))


def test_4_an_openai_style_log_out_of_order_with_failed_requests(tmp_path, truth):
    rng = np.random.default_rng(4)
    rows = []
    for row, (moment, prompt, output) in enumerate(zip(moments(truth), *columns(truth), strict=True)):
        log = {"id": f"cmpl-{row}", "created": moment.timestamp(), "model": "m", "messages": [{"content": "hi"}]}
        failed = row % 50 == 49
        usage = (
            None if failed else {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        )
        rows.append({**log, "status": 500 if failed else 200, "response": {"usage": usage}})
    order = np.arange(N)
    order[[10, 11]] = order[[11, 10]]
    order[100:104] = rng.permutation(order[100:104])
    text = "".join(json.dumps(rows[row]) + "\n" for row in order)
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    trace, facts = read_trace_and_facts(tmp_path / "log.jsonl.gz", bad_rows="drop")
    same(trace, truth, rows=np.flatnonzero(np.arange(N) % 50 != 49))
    assert facts.dropped == {"missing prompt length": 6}
    kept = [row for row in order if row % 50 != 49]
    assert facts.out_of_place == sum(row < max(kept[: place + 1]) for place, row in enumerate(kept)) > 0
    assert facts.columns["prompt_tokens"] == "response.usage.prompt_tokens"
    with pytest.raises(BadTraceError, match="6 of 300 rows cannot be used"):
        read_trace(tmp_path / "log.jsonl.gz")


def test_5_batch_outputs_in_one_array(tmp_path, truth):
    rows = [
        {"custom_id": str(row), "response": {"status_code": 200, "body": {"created": int(moment.timestamp()), "usage": {
            "input_tokens": prompt, "output_tokens": output, "input_tokens_details": {"cached_tokens": 0}}}}}
        for row, (moment, prompt, output) in enumerate(zip(moments(truth), *columns(truth), strict=True))
    ]  # fmt: skip
    (tmp_path / "batch.json").write_text(json.dumps(rows, indent=1))
    same(read_trace(tmp_path / "batch.json"), truth, within_s=1.0)


def test_6_parquet_with_unix_nanoseconds_and_decimals(tmp_path, truth):
    duckdb = pytest.importorskip("duckdb")
    base = 1_700_000_000 * 10**9
    table = {
        "timestampNs": base + (truth.arrival_s * 1000).round().astype(np.int64) * 10**6,
        "num_prompt_tokens": truth.prompt_tokens.astype(np.float64),
        "completion_tokens": truth.output_tokens.astype(np.int32),
    }
    with duckdb.connect(":memory:") as connection:
        connection.register("trace", table)
        connection.sql("SELECT * FROM trace").write_parquet(str(tmp_path / "t.parquet"))
    trace, facts = read_trace_and_facts(tmp_path / "t.parquet")
    same(trace, truth)
    assert (facts.times, facts.notes) == ("Unix ns", ())


def test_7_offsets_that_change_with_the_summer(tmp_path, truth):
    # Every other time is written on a clock one hour ahead.
    times = [
        (moment + timedelta(hours=row % 2)).strftime("%Y-%m-%dT%H:%M:%S.%f") + ("+01:00" if row % 2 else "Z")
        for row, moment in enumerate(moments(truth))
    ]
    path = tmp_path / "trace.csv"
    path.write_text(separated(["request_time", "tokens_in", "tokens_out"], times, *columns(truth)))
    trace, facts = read_trace_and_facts(path)
    same(trace, truth)
    assert facts.repairs == ()


def test_8_days_and_months_that_cannot_be_distinguished(tmp_path, truth):
    times = [(datetime(2024, 1, 2) + timedelta(days=row % 5)).strftime("%d/%m/%Y %H:%M:%S") for row in range(N)]
    path = tmp_path / "trace.csv"
    path.write_text(separated(["ts", "in", "out"], times, *columns(truth)))
    with pytest.raises(BadTraceError, match="cannot be distinguished") as caught:
        read_trace(path)
    assert "time_unit='dmy'" in caught.value.hint
    assert read_trace_and_facts(path, time_unit="dmy")[0].span_s == 4 * 86400.0


def test_9_seconds_up_to_a_change_of_the_logger_and_milliseconds_after(tmp_path, truth):
    stamps = [moment.timestamp() for moment in moments(truth)]
    times = [stamp if row < 200 else round(1000 * stamp) for row, stamp in enumerate(stamps)]
    path = tmp_path / "trace.csv"
    path.write_text(separated(["ts", "in", "out"], times, *columns(truth)))
    with pytest.raises(BadTraceError, match="mixed units: 200 in Unix s, 100 in Unix ms") as caught:
        read_trace(path, bad_rows="drop")
    assert "rows 201, 202, 203, 204, 205, ..." in caught.value.where
    assert "one unit" in caught.value.hint


def test_10_columns_that_nobody_knows(tmp_path, truth):
    path = tmp_path / "trace.csv"
    path.write_text(separated(["wann", "hinein", "heraus"], truth.arrival_s, *columns(truth)))
    with pytest.raises(BadFileError, match="arrival_s, prompt_tokens and output_tokens") as caught:
        read_trace(path)
    assert caught.value.hint == (
        'say which ones do: columns={"arrival_s": "COLUMN", "prompt_tokens": "COLUMN", "output_tokens": "COLUMN"}'
    )
    named = {"arrival_s": "wann", "prompt_tokens": "hinein", "output_tokens": "heraus"}
    assert read_trace(path, columns=named) == truth
