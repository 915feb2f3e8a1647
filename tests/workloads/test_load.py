"""read_trace."""

import gzip
import json
import re

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import (
    BadFileError,
    BadTraceError,
    BadValueError,
    DataUnavailableError,
    UnknownNameError,
    WavetankError,
)
from wavetank.workloads import TRACES, RequestTrace, datasets, read_trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
JSON_ROW = {"timestamp": 0, "input_length": 1025, "output_length": 3}


@pytest.fixture
def write(tmp_path):
    """Write a file; names that end in .gz are compressed, lists of objects become JSON lines."""

    def to_file(name, content):
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        if isinstance(content, str):
            content = content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return to_file


@pytest.fixture
def parquet(tmp_path):
    """Write a Parquet file from columns by name: numpy arrays, or the text of an SQL expression over i = 0, 1, 2."""

    def to_file(**columns):
        path = tmp_path / "trace.parquet"
        with duckdb.connect(":memory:") as connection:
            text = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
            connection.sql(f"SELECT {text} FROM range(3) AS numbers(i)").write_parquet(str(path))
        return path

    return to_file


def need(name):
    """Skip the test when a real trace is not on this machine."""
    try:
        datasets.find(TRACES[name].dataset, TRACES[name].file)
    except DataUnavailableError as error:
        pytest.skip(error.problem)


def lists(trace):
    return (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())


class TestRealTraces:
    def test_azure_conversations(self):
        need("azure-conv-2023")
        trace = read_trace("azure-conv-2023")
        assert len(trace) == 14_176
        assert trace.name == "azure-conv-2023"
        assert (trace.arrival_s[0], trace.prompt_tokens[0], trace.output_tokens[0]) == (0.0, 374, 44)
        assert 2399 < trace.span_s < 2400
        assert trace.block_ids is None

    def test_azure_code(self):
        need("azure-code-2023")
        trace = read_trace("azure-code-2023")
        assert len(trace) == 7_491
        assert np.median(trace.output_tokens) == 13

    def test_mooncake_conversations_with_their_prefix_blocks(self):
        need("mooncake-conversation")
        trace = read_trace("mooncake-conversation")
        assert len(trace) == 12_031
        assert 3500 < trace.span_s < 3600
        np.testing.assert_array_equal(np.diff(trace.block_offsets), np.ceil(trace.prompt_tokens / 512))
        assert trace.block_ids[:15].tolist() == [*range(14), 0]
        assert trace.block_ids.max() + 1 == trace.n_blocks == np.unique(trace.block_ids).size

    def test_the_papers_name_is_the_same_trace(self):
        need("mooncake-fast25")
        assert read_trace("mooncake-fast25") == read_trace("mooncake-conversation")

    def test_every_named_trace_is_a_file_of_the_registry(self):
        for named in TRACES.values():
            assert named.file in [file.path for file in datasets.entry(named.dataset).files]

    def test_a_trace_that_is_not_here_says_how_to_get_it(self, monkeypatch, tmp_path):
        monkeypatch.delenv("WAVETANK_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(DataUnavailableError) as caught:
            read_trace("azure-conv-2023")
        assert caught.value.hint == "wavetank data fetch azure-llm-2023"


class TestFormats:
    @pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "T.CSV"])
    def test_csv(self, write, name):
        trace = read_trace(write(name, HEADER + "0.5,10,1\n2,20,2\n"))
        assert lists(trace) == ([0.5, 2.0], [10, 20], [1, 2])
        assert trace.name == name

    @pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.ndjson"])
    def test_json_lines(self, write, name):
        trace = read_trace(write(name, [JSON_ROW, {**JSON_ROW, "timestamp": 1500}]), time_unit="ms")
        assert lists(trace) == ([0.0, 1.5], [1025, 1025], [3, 3])

    def test_parquet(self, parquet):
        path = parquet(
            arrived_at="i / 2", num_prefill_tokens="(i + 1)::INTEGER", num_decode_tokens="3.0::DECIMAL(9, 1)"
        )
        assert lists(read_trace(path)) == ([0.0, 0.5, 1.0], [1, 2, 3], [3, 3, 3])

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    def test_delimiters(self, write, delimiter):
        text = (HEADER + "0,10,1\n").replace(",", delimiter)
        assert lists(read_trace(write("t.csv", text))) == ([0.0], [10], [1])

    def test_quotes_byte_order_mark_crlf_spaces_and_no_last_line_end(self, write):
        text = '\ufeff"arrival_s", prompt_tokens,output_tokens,note\r\n0,10,1,"a, ""b"""\r\n1, 20,2,'
        assert lists(read_trace(write("t.csv", text))) == ([0.0, 1.0], [10, 20], [1, 2])

    def test_names_with_the_signs_of_patterns(self, write):
        assert len(read_trace(write("a[1]*?.csv", HEADER + "0,1,1\n"))) == 1

    @given(
        st.lists(
            st.tuples(st.floats(0, 1e7), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=20
        ).map(sorted)
    )
    @settings(deadline=None, max_examples=20)
    def test_what_is_written_is_read(self, tmp_path_factory, requests):
        path = tmp_path_factory.mktemp("written") / "t.csv"
        path.write_text(HEADER + "".join(f"{time!r},{prompt},{output}\n" for time, prompt, output in requests))
        assert lists(read_trace(path)) == tuple(map(list, zip(*requests, strict=True)))


class TestColumns:
    @pytest.mark.parametrize(
        "header",
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "timestamp,input_length,output_length",
            "arrived_at,num_prefill_tokens,num_decode_tokens",
            "arrival_s,context_tokens,generated_tokens",
            "Timestamp,Request tokens,Response tokens",
        ],
    )
    def test_spellings_of_public_traces_are_known(self, write, header):
        assert lists(read_trace(write("t.csv", header + "\n0,10,1\n"))) == ([0.0], [10], [1])

    def test_the_callers_columns_come_first(self, write):
        path = write("t.csv", "timestamp,t,in,output_tokens\n9,1,10,2\n")
        trace = read_trace(path, columns={"arrival_s": "t", "prompt_tokens": "in"})
        assert lists(trace) == ([1.0], [10], [2])

    def test_column_names_are_never_read_as_sql(self, write, parquet):
        name = 'x"); DROP TABLE t; --'
        quoted = name.replace('"', '""')
        path = write("t.csv", f'"{quoted}",prompt_tokens,output_tokens\n1,2,3\n')
        assert lists(read_trace(path, columns={"arrival_s": name})) == ([1.0], [2], [3])
        for hard in (name, "trace.time.s", "'i'", "c1"):
            quoted = hard.replace('"', '""')
            path = parquet(prompt_tokens="2", output_tokens="3", **{f'"{quoted}"': "i"})
            assert read_trace(path, columns={"arrival_s": hard}).arrival_s.tolist() == [0.0, 1.0, 2.0]

    def test_adapters_become_codes_and_may_be_missing(self, write):
        trace = read_trace(
            write("a.csv", "arrival_s,prompt_tokens,output_tokens,lora\n0,1,1,sql\n1,1,1,\n2,1,1,chat\n")
        )
        assert [trace.adapter_names[code] for code in trace.adapter] == ["sql", "", "chat"]

    def test_models_and_tiers_become_codes(self, write):
        trace = read_trace(write("t.csv", "Tier,Model," + HEADER + "2,llama,0,1,1\n10,gpt,1,1,1\n2,llama,2,1,1\n"))
        assert [trace.model_names[code] for code in trace.model] == ["llama", "gpt", "llama"]
        assert [trace.tier_names[code] for code in trace.tier] == ["2", "10", "2"]

    def test_block_ids_from_every_format(self, write, parquet):
        rows = [{**JSON_ROW, "hash_ids": ids} for ids in ([7, 8, 9], [7], [], [7, 8, 5])]
        trace = read_trace(write("t.jsonl", rows))
        assert trace.block_ids.tolist() == [0, 1, 2, 0, 0, 1, 3]
        assert trace.block_offsets.tolist() == [0, 3, 4, 4, 7]
        text = "hash_ids," + HEADER + '"[7, 8]",0,513,1\n[],1,1,1\n,2,1,1\n"[7]",3,1,1\n'
        trace = read_trace(write("t.csv", text))
        assert (trace.block_ids.tolist(), trace.block_offsets.tolist()) == ([0, 1, 0], [0, 2, 2, 2, 3])
        path = parquet(timestamp="i", input_length="64", output_length="1", hash_ids="[i % 2, 5, -1]")
        trace = read_trace(path, block_tokens=16)
        assert trace.block_ids.tolist() == [0, 1, 2, 3, 1, 2, 0, 1, 2]
        assert trace.block_tokens == 16

    def test_block_ids_that_are_text_or_unsigned_stay_distinct(self, write, parquet):
        trace = read_trace(write("t.jsonl", [{**JSON_ROW, "hash_ids": ["b", "a", "b"]}]))
        assert trace.block_ids.tolist() == [0, 1, 0]
        ids = "[18446744073709551615::UBIGINT, 18446744073709551614::UBIGINT, i::UBIGINT]"
        trace = read_trace(parquet(timestamp="i", input_length="1025", output_length="1", hash_ids=ids))
        assert trace.block_ids.tolist() == [0, 1, 2, 0, 1, 3, 0, 1, 4]


class TestClock:
    def test_units(self, write):
        path = write("t.csv", HEADER + "100,1,1\n300,1,1\n")
        assert read_trace(path, time_unit="ms").arrival_s.tolist() == [0.1, 0.3]
        assert read_trace(path, time_unit="min").arrival_s.tolist() == [6000.0, 18000.0]

    def test_a_unit_of_another_kind_is_refused(self, write):
        with pytest.raises(BadValueError):
            read_trace(write("t.csv", HEADER + "0,1,1\n"), time_unit="tokens")

    def test_date_times_count_from_the_first_arrival(self, write, parquet):
        azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        text = azure + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
        assert read_trace(write("t.csv", text)).arrival_s.tolist() == [0.0, 4.314579]
        rows = [{**JSON_ROW, "timestamp": f"2024-01-01T00:00:0{second}Z"} for second in (1, 2)]
        assert read_trace(write("t.jsonl", rows)).arrival_s.tolist() == [0.0, 1.0]
        times = "TIMESTAMP '2024-01-01' + to_seconds(i)"
        path = parquet(timestamp=times, prompt_tokens="1", output_tokens="1")
        assert read_trace(path).arrival_s.tolist() == [0.0, 1.0, 2.0]

    def test_offsets_from_utc_count(self, write):
        text = HEADER + "2024-03-31T01:59:00+01:00,1,1\n2024-03-31T03:00:00+02:00,1,1\n2024-03-31T01:02:00,1,1\n"
        with pytest.warns(UserWarning, match="1 have no offset and were read as UTC"):
            assert read_trace(write("t.csv", text)).arrival_s.tolist() == [0.0, 60.0, 180.0]

    def test_unix_times_count_from_the_first_arrival(self, write):
        path = write("t.csv", HEADER + "1787267980.25,1,1\n1787267981.5,1,1\n")
        assert read_trace(path).arrival_s.tolist() == [0.0, 1.25]
        path = write("t.csv", HEADER + "1787267980250,1,1\n1787267981500,1,1\n")
        assert read_trace(path, time_unit="ms").arrival_s.tolist() == [0.0, 1.25]

    def test_other_starts_are_kept(self, write):
        assert read_trace(write("t.csv", HEADER + "3600,1,1\n")).arrival_s.tolist() == [3600.0]

    def test_requests_out_of_order_are_sorted_and_counted_or_refused(self, write):
        path = write("t.csv", HEADER + "5,1,1\n2,2,2\n5,3,3\n")
        with pytest.raises(BadTraceError, match="sort=True"):
            read_trace(path, sort=False)
        with pytest.warns(UserWarning, match="put in order 1 row that was out of place"):
            assert lists(read_trace(path)) == ([2.0, 5.0, 5.0], [2, 1, 3], [2, 1, 3])


class TestBadFiles:
    def expect(self, kind, source, *parts, **arguments):
        with pytest.raises(kind) as caught:
            read_trace(source, **arguments)
        assert type(caught.value) is kind
        for part in parts:
            assert part in str(caught.value)
        return caught.value

    def test_a_missing_file_shows_the_nearest_one(self, write, tmp_path):
        write("requests.csv", HEADER + "0,1,1\n")
        error = self.expect(BadFileError, tmp_path / "request.csv", "no such file")
        assert error.nearest == "requests.csv"

    def test_a_missing_folder_is_named(self, tmp_path):
        self.expect(BadFileError, tmp_path / "no" / "t.csv", "no such folder", str(tmp_path / "no"))

    def test_a_folder_is_no_trace(self, tmp_path):
        self.expect(BadFileError, tmp_path, "folder")

    def test_an_unknown_name_shows_the_nearest(self):
        assert self.expect(UnknownNameError, "azure-conv").nearest == "azure-conv-2023"

    def test_an_unknown_format_shows_the_known_ones(self, write):
        self.expect(BadFileError, write("t.xlsx", "x"), ".csv.gz", ".parquet")

    def test_a_missing_column_shows_those_found_and_the_way_to_name_one(self, write):
        path = write("t.csv", "arrival_s,promt_tokens,output_tokens\n0,1,1\n")
        error = self.expect(BadFileError, path, "'arrival_s', 'promt_tokens'", 'columns={"prompt_tokens"')
        assert error.nearest == "promt_tokens"
        path = write("t.jsonl", [{"timestamp": 0, "output_length": 1}])
        self.expect(BadFileError, path, "prompt_tokens", "'timestamp', 'output_length'")

    def test_a_column_of_the_caller_that_is_not_there(self, write):
        path = write("t.csv", HEADER + "0,1,1\n")
        error = self.expect(BadFileError, path, "'promt_tokens'", columns={"prompt_tokens": "promt_tokens"})
        assert error.nearest == "prompt_tokens"

    def test_a_field_that_does_not_exist(self, write):
        path = write("t.csv", HEADER + "0,1,1\n")
        assert self.expect(UnknownNameError, path, columns={"prompt_token": "x"}).nearest == "prompt_tokens"

    def test_two_columns_of_one_name(self, write):
        self.expect(BadFileError, write("t.csv", "Model,model," + HEADER + "a,b,0,1,1\n"), "one name", "given: model")

    def test_a_word_among_numbers_is_named_with_its_row(self, write):
        rows = "0,1,1\n" * 30_000
        path = write("t.csv", HEADER + rows + "1,x,1\n")
        self.expect(BadTraceError, path, "row 30001, column 'prompt_tokens'", "given: x")
        rows = [JSON_ROW, {**JSON_ROW, "input_length": "x"}]
        self.expect(BadTraceError, write("t.jsonl", rows), "row 2, column 'input_length'", "x")

    def test_a_value_of_the_wrong_kind_is_named_with_its_row(self, write, parquet):
        rows = [{**JSON_ROW, "input_length": {"a": 1}}]
        self.expect(BadFileError, write("t.jsonl", rows), "known to give prompt_tokens", "'input_length.a'")
        for value in (True, [1]):
            rows = [{**JSON_ROW, "input_length": value}]
            self.expect(BadTraceError, write("t.jsonl", rows), "not a number", "row 1, column 'input_length'")
        path = parquet(arrival_s="i", prompt_tokens="CASE WHEN i = 1 THEN 'many' ELSE '1' END", output_tokens="1")
        self.expect(BadTraceError, path, "many", "row 2, column 'prompt_tokens'")

    def test_a_wrong_date_is_named_with_its_row(self, write):
        path = write("t.csv", HEADER + "2024-01-01,1,1\nyesterday,1,1\n")
        self.expect(BadTraceError, path, "yesterday", "row 2, column 'arrival_s'", "ISO")

    @pytest.mark.parametrize("row", ["1,2", "1,2,3,4"])
    def test_a_line_of_another_length_is_named_not_skipped(self, write, row):
        self.expect(BadFileError, write("t.csv", HEADER + f"0,1,1\n{row}\n3,4,5\n"), "line 3")

    def test_a_missing_value_is_named_with_its_row(self, write):
        self.expect(BadTraceError, write("t.csv", HEADER + "0,1,1\n1,,1\n"), "row 2, column 'prompt_tokens'")
        path = write("t.jsonl", [JSON_ROW, {"timestamp": 1, "input_length": 1}])
        self.expect(BadTraceError, path, "row 2, column 'output_length'")

    def test_content_without_sense_is_named_by_the_files_own_column(self, write):
        path = write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n1,1,0\n")
        self.expect(BadTraceError, path, "t.csv, row 2, column 'GeneratedTokens'")
        self.expect(BadTraceError, write("t.csv", HEADER + "0,1.5,1\n"), "row 1, column 'prompt_tokens'", "1.5")
        self.expect(BadTraceError, write("t.csv", HEADER + "nan,1,1\n"), "row 1, column 'arrival_s'", "nan")
        self.expect(BadTraceError, write("t.csv", HEADER + "0,inf,1\n"), "row 1, column 'prompt_tokens'", "inf")

    def test_files_without_requests(self, write):
        self.expect(BadFileError, write("t.csv", ""), "no header line")
        self.expect(BadTraceError, write("t.csv", HEADER), "at least one request")
        self.expect(BadFileError, write("t.jsonl", ""), "one JSON object per line")

    def test_json_that_is_not_one_object_a_line(self, write):
        self.expect(BadFileError, write("t.jsonl", json.dumps([JSON_ROW, JSON_ROW])), "one JSON object per line")
        good = json.dumps(JSON_ROW)
        self.expect(BadFileError, write("t.jsonl", f"{good}\n{good[:-1]}\n{good}\n"), "line 2")

    def test_broken_blocks_are_named_with_their_row(self, write):
        path = write("t.jsonl", [JSON_ROW, {**JSON_ROW, "hash_ids": [1, None]}])
        self.expect(BadTraceError, path, "row 2, column 'hash_ids'")
        path = write("t.jsonl", [{**JSON_ROW, "hash_ids": [1, 2, 3, 4]}])
        self.expect(BadTraceError, path, "row 1, column 'hash_ids'", "1025 tokens")
        self.expect(BadFileError, write("t.jsonl", [{**JSON_ROW, "hash_ids": "abc"}]), "one list per row")

    def test_damaged_files(self, write, parquet, tmp_path):
        whole = gzip.compress((HEADER + "0,1,1\n" * 200_000).encode())
        flipped = whole[:20] + bytes(255 - byte for byte in whole[20:40]) + whole[40:]
        for content in (whole[: len(whole) // 2], flipped, b"no gzip at all"):
            for name in ("t.csv.gz", "t.jsonl.gz"):
                (tmp_path / name).write_bytes(content)
                self.expect(BadFileError, tmp_path / name, "cannot be read")
        (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 1000)[:-20])
        self.expect(BadFileError, tmp_path / "t.jsonl.gz", "cannot be read")
        self.expect(BadFileError, write("t.csv", b"\xff\xfe\x00"), "cannot be read")
        self.expect(BadFileError, write("t.csv", b"arrival_s\0\1\2,in"), "zero bytes")
        whole = parquet(arrival_s="i", prompt_tokens="1", output_tokens="1").read_bytes()
        for content in (b"", whole[:4], whole[:-9], b"not Parquet at all"):
            self.expect(BadFileError, write("t.parquet", content), "cannot be read")

    @given(st.binary(max_size=200), st.sampled_from(["t.csv", "t.jsonl", "t.parquet", "t.csv.gz"]))
    @settings(deadline=None, max_examples=60)
    def test_any_bytes_give_a_trace_or_an_error_with_the_files_name(self, tmp_path_factory, content, name):
        path = tmp_path_factory.mktemp("bytes") / name
        path.write_bytes(content)
        try:
            assert isinstance(read_trace(path), RequestTrace)
        except WavetankError as error:
            assert re.search(re.escape(str(path)), str(error))


class TestRecordings:
    """What ``wavetank launch router --record`` writes; its writer is tested in
    tests/serving/proxy/test_recording.py."""

    ROWS = (
        '{"wavetank_recording":1,"arrival_s":1700000002.5,"prompt_tokens":20,"output_tokens":3,"model":"m",'
        '"block_ids":[5,6],"block_tokens":16}\n'
        '{"wavetank_recording":1,"arrival_s":1700000001.0,"prompt_tokens":10,"output_tokens":4,"model":"m",'
        '"block_ids":[5],"block_tokens":16}\n'
    )

    def test_they_are_put_in_order_and_bring_their_block_size(self, write):
        trace = read_trace(write("r.jsonl", self.ROWS))
        assert lists(trace) == ([0.0, 1.5], [10, 20], [4, 3])
        assert (trace.block_tokens, trace.block_ids.tolist()) == (16, [0, 0, 1])
        assert read_trace(write("r.jsonl.gz", self.ROWS)) == trace
        assert read_trace(write("r.jsonl", self.ROWS), block_tokens=8).block_tokens == 8

    def test_a_torn_last_line_is_left_out_there_and_nowhere_else(self, write):
        whole = read_trace(write("r.jsonl", self.ROWS))
        assert read_trace(write("r.jsonl", self.ROWS + self.ROWS[:50])) == whole
        with pytest.raises(BadFileError, match="cannot be read"):
            read_trace(write("t.jsonl", json.dumps(JSON_ROW) + '\n{"timestamp": 1, "inp'))
        # A line in the middle is not torn but damaged.
        with pytest.raises(BadFileError) as caught:
            read_trace(write("r.jsonl", self.ROWS[:50] + "\n" + self.ROWS))
        assert "line 1" in caught.value.where

    def test_another_version_is_refused(self, write):
        with pytest.raises(BadFileError, match="another version") as caught:
            read_trace(write("r.jsonl", self.ROWS.replace('recording":1', 'recording":2')))
        assert (caught.value.allowed, caught.value.where.rpartition(", ")[2]) == ("1", "line 1")


@pytest.mark.parametrize("lines", [0, 1])
def test_a_line_nested_too_deeply_is_refused(tmp_path, lines):
    path = tmp_path / "deep.jsonl"
    good = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n'
    path.write_text(good * lines + '{"arrival_s": ' + "[" * 100_000 + "\n")
    with pytest.raises(BadFileError):
        read_trace(path)
