"""Files and tables in every form that users have them in."""

import gzip
import json
import os

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadTraceError
from wavetank.workloads import read_trace, read_trace_and_facts
from wavetank.workloads import trace_sources as sources

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
PLAIN = ([0.0, 1.5], [10, 20], [1, 2])


def lists(trace):
    return (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())


@pytest.fixture
def write(tmp_path):
    def to_file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


class TestText:
    @pytest.mark.parametrize(
        ("name", "delimiter", "said"),
        [
            ("t.tsv", "\t", ()),
            ("t.txt", "\t", ()),
            ("t.tab", "\t", ()),
            ("t.txt", ";", ("delimited by semicolons",)),
            ("t.tsv", ",", ("delimited by commas",)),
            ("t.csv", "|", ("delimited by bars",)),
        ],
    )
    def test_delimiters_are_detected_and_said_where_the_name_says_another(self, write, name, delimiter, said):
        text = (HEADER + "0,10,1\n1.5,20,2\n").replace(",", delimiter)
        trace, facts = read_trace_and_facts(write(name, text))
        assert (lists(trace), facts.read_as) == (PLAIN, said)

    @pytest.mark.parametrize(
        ("codec", "said"),
        [
            ("utf-8", ()),
            ("utf-8-sig", ()),
            ("utf-16", ("encoding UTF-16",)),
            ("utf-16-le", ("encoding UTF-16",)),
            ("utf-16-be", ("encoding UTF-16",)),
            ("utf-32", ("encoding UTF-32",)),
            ("latin-1", ("encoding Latin-1",)),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("form", ["csv", "jsonl"])
    def test_encodings_are_detected_and_said(self, write, codec, said, packed, form):
        text = "model," + HEADER + "é,0,10,1\nç,1.5,20,2\n"
        if form == "jsonl":
            rows = [("é", 0, 10, 1), ("ç", 1.5, 20, 2)]
            names = ("model", "arrival_s", "prompt_tokens", "output_tokens")
            text = "".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
        data = text.encode(codec)
        path = write(f"t.{form}.gz", gzip.compress(data)) if packed else write(f"t.{form}", data)
        trace, facts = read_trace_and_facts(path)
        assert (lists(trace), trace.model_names, facts.read_as) == (PLAIN, ("ç", "é"), said)

    def test_a_byte_that_is_not_utf8_far_behind_the_head_is_found(self, write):
        text = "note," + HEADER + "plain,0,1,1\n" * 200_000
        trace, facts = read_trace_and_facts(write("t.csv", text.encode() + "café,0,1,1\n".encode("latin-1")))
        assert (len(trace), facts.read_as) == (200_001, ("encoding Latin-1",))

    def test_gzip_is_detected_without_its_ending(self, write):
        trace, facts = read_trace_and_facts(write("t.csv", gzip.compress((HEADER + "0,10,1\n1.5,20,2\n").encode())))
        assert (lists(trace), facts.read_as) == (PLAIN, ("gzipped",))

    def test_times_with_a_decimal_comma(self, write):
        text = "arrival_s;prompt_tokens;output_tokens\n0;10;1\n1,5;20;2\n"
        assert lists(read_trace(write("t.csv", text))) == PLAIN

    def test_a_file_without_a_header_is_said_to_have_none(self, write):
        for first in ("0.5,10,1\n", "2023-11-16 18:15:46,10,1\n"):
            with pytest.raises(BadFileError, match="no header line") as caught:
                read_trace(write("t.csv", first + "1.5,20,2\n"))
            assert "arrival_s,prompt_tokens,output_tokens" in caught.value.hint

    def test_lines_of_another_length_are_counted_where_bad_rows_are_dropped(self, write):
        path = write("t.csv", HEADER + "0,10,1\n7,8\n1.5,20,2\n1,2,3,4\n2,3")
        trace, facts = read_trace_and_facts(path, bad_rows="drop")
        assert lists(trace) == PLAIN
        assert (facts.dropped, facts.rows_read) == ({"a form that cannot be read": 3}, 5)


class TestSpaces:
    def test_columns_between_runs_of_spaces_are_read(self, write):
        text = "  arrival_s  prompt_tokens output_tokens\n     0.0     10     1  \n     1.5     20     2\n"
        trace, facts = read_trace_and_facts(write("t.txt", text.encode("utf-16")))
        assert (lists(trace), facts.read_as) == (PLAIN, ("delimited by spaces", "encoding UTF-16"))

    def test_values_with_spaces_are_quoted(self, write):
        text = 'ts in out\n"2024-03-11 18:15:46" 10 1\n"2024-03-11 18:15:47.5" 20 2\n'
        assert lists(read_trace(write("t.csv", gzip.compress(text.encode())))) == PLAIN

    def test_a_row_with_more_values_than_names_is_refused_with_the_next_step(self, write):
        with pytest.raises(BadFileError, match="the first row has 4 values for 3 names") as caught:
            read_trace(write("t.txt", "timestamp in out\n2024-03-11 18:15:46 10 1\n"))
        assert caught.value.given == "2024-03-11 18:15:46 10 1"
        assert "quotation marks" in caught.value.hint

    def test_a_title_above_a_header_is_not_taken_for_columns(self, write):
        with pytest.raises(BadFileError, match="None of the columns is known") as caught:
            read_trace(write("t.csv", "Report of March\n" + HEADER + "0,10,1\n"))
        assert "'Report of March'" in caught.value.allowed

    @pytest.mark.parametrize(
        ("header", "first", "second"), [("\r", "\r", "\r"), ("\r\n", "\n", "\n"), ("\n", "\r", "\r\n")]
    )
    def test_line_ends_of_any_kind_are_read(self, write, header, first, second):
        text = HEADER.replace("\n", header) + f"0,10,1{first}1.5,20,2{second}"
        assert lists(read_trace(write("t.csv", text))) == PLAIN

    def test_line_ends_that_change_far_behind_the_head_are_said_to(self, write):
        path = write("t.csv", HEADER + "0,10,1\n" * 200_000 + "1,20,2\r\n" * 10)
        with pytest.raises(BadFileError, match="its lines end in several ways") as caught:
            read_trace(path, bad_rows="drop")
        assert caught.value.hint.startswith("cat t.csv | tr -d '\\r' > clean.csv")


class TestHead:
    ROWS = "0,10,1\n1.5,20,2\n"

    @pytest.mark.parametrize(
        ("before", "line"),
        [("sep=,\r\n", 2), ('"sep=,"\n', 2), ("SEP=,\n", 2), ('# "as is\n\n# of a gateway, 1.2\n', 4), ("\n,,\n", 3)],
    )
    def test_what_stands_before_the_header_is_passed_over_and_said(self, write, before, line):
        trace, facts = read_trace_and_facts(write("t.csv", "\ufeff" + before + HEADER + self.ROWS))
        assert (lists(trace), facts.read_as) == (PLAIN, (f"columns named in line {line}",))

    def test_the_line_for_excel_names_the_delimiter(self, write):
        text = "sep=;\nin;out;a,b,c;ts\n10;1;x,y;0\n20;2;z;1,5\n"
        assert lists(read_trace(write("t.csv", text))) == PLAIN

    def test_a_comment_above_numbers_names_the_columns(self, write):
        trace, facts = read_trace_and_facts(write("t.csv", "# hello\n# arrival_s,in,out\n" + self.ROWS))
        assert (lists(trace), facts.read_as) == (PLAIN, ("columns named in line 2",))

    def test_rows_are_numbered_from_the_header(self, write):
        with pytest.raises(BadTraceError) as caught:
            read_trace(write("t.csv", "sep=,\n" + HEADER + "0,10,1\n1,x,1\n"))
        assert "row 2, column 'prompt_tokens'" in caught.value.where
        with pytest.raises(BadFileError) as caught:
            read_trace(write("t.csv", "sep=,\n\n" + HEADER + "0,10,1\n1,1\n"))
        assert caught.value.where.endswith("t.csv, line 5")

    def test_columns_without_a_name_are_passed_over(self, write):
        text = HEADER.replace("\n", ",,\n") + "0,10,1,,\n1.5,20,2,,\n"
        assert lists(read_trace(write("t.csv", text))) == PLAIN

    def test_nothing_but_delimiters_is_no_header(self, write):
        with pytest.raises(BadFileError, match="no header line"):
            read_trace(write("t.csv", ",,\n,,\n"))


class TestJson:
    def test_lines_that_are_no_objects_are_counted_where_bad_rows_are_dropped(self, write):
        good = [{"ts": 0, "in": 10, "out": 1}, {"ts": 1.5, "in": 20, "out": 2}]
        text = json.dumps(good[0]) + '\n{"ts": 1, "in\n[1, 2]\n17\n' + json.dumps(good[1]) + '\n{"ts": 2'
        trace, facts = read_trace_and_facts(write("t.jsonl", text), bad_rows="drop")
        assert lists(trace) == PLAIN
        assert facts.dropped == {"a form that cannot be read": 4}
        with pytest.raises(BadFileError) as caught:
            read_trace(write("t.jsonl", text))
        assert caught.value.where.endswith("t.jsonl, line 2")
        assert "bad_rows='drop'" in caught.value.hint

    def test_an_array_of_objects_is_read_from_a_json_file_and_refused_with_a_way_out_elsewhere(self, write):
        text = json.dumps([{"ts": 0, "in": 10, "out": 1}, {"ts": 1.5, "in": 20, "out": 2}])
        assert lists(read_trace(write("t.json", text))) == PLAIN
        with pytest.raises(BadFileError) as caught:
            read_trace(write("t.jsonl", text))
        assert "jq -c" in caught.value.hint

    def test_fields_are_found_however_deep_and_whatever_their_names(self, write):
        rows = [
            {"a/b": {"t~s": 0}, "r": {"usage": None}},
            {"a/b": {"t~s": 1, "": 3}, "r": {"usage": {"prompt_tokens": 5, "completion_tokens": 6}}},
        ]
        path = write("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        trace, _ = read_trace_and_facts(path, columns={"arrival_s": "a/b.t~s"}, bad_rows="drop")
        assert lists(trace) == ([1.0], [5], [6])


class TestTables:
    ROWS = ({"ts": 1700000000, "in": 10, "out": 1}, {"ts": 1700000001.5, "in": 20, "out": 2})

    def test_a_list_of_dicts(self):
        trace, facts = read_trace_and_facts([dict(row) for row in self.ROWS])
        assert (lists(trace), facts.name) == (PLAIN, "list of dicts")
        assert lists(read_trace([{**row, "in": np.int64(row["in"])} for row in self.ROWS])) == PLAIN
        with pytest.raises(BadFileError, match="row 2"):
            read_trace([self.ROWS[0], 17])
        with pytest.raises(BadFileError):
            read_trace([])

    def test_tables_of_pandas_polars_and_arrow(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(list(self.ROWS))
        found = [read_trace(frame)]
        arrow = pytest.importorskip("pyarrow")
        found.append(read_trace(arrow.Table.from_pandas(frame)))
        polars = pytest.importorskip("polars")
        found.append(read_trace(polars.DataFrame(list(self.ROWS), infer_schema_length=None)))
        assert [lists(trace) for trace in found] == [PLAIN] * 3
        assert len({trace.checksum for trace in found}) == 1

    def test_a_frame_with_moments_missing_values_and_dicts(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(
            {
                "created_at": pandas.to_datetime([0, 1.5, 3.0], unit="s", utc=True),
                "usage": [{"prompt_tokens": n, "completion_tokens": n // 10} for n in (10, 20, 30)],
                "model": ["a", "b", None],
            }
        )
        trace, facts = read_trace_and_facts(frame, bad_rows="drop")
        assert lists(trace) == ([0.0, 1.5, 3.0], [10, 20, 30], [1, 2, 3])
        assert (facts.dropped, facts.name) == ({}, "DataFrame")
        # A request without the name of a model is a request.
        assert [trace.model_names[code] for code in trace.model] == ["a", "b", ""]
        missing = frame.assign(created_at=[*frame["created_at"][:2], None])
        with pytest.raises(BadTraceError, match="missing") as caught:
            read_trace(missing)
        assert caught.value.where == "the DataFrame, row 3, column 'created_at'"
        spans = frame.assign(created_at=pandas.to_timedelta([0, 1.5, 3.0], unit="s"), model="a")
        assert read_trace(spans).arrival_s.tolist() == [0.0, 1.5, 3.0]

    def test_what_is_no_table_is_refused(self):
        for source in (17, None, {"ts": [1]}, object()):
            with pytest.raises(BadFileError, match="nothing that a trace is read from"):
                read_trace(source)


class TestRefusals:
    def test_a_file_over_the_limit_is_refused_with_its_size_and_a_way_out(self, tmp_path):
        path = tmp_path / "big.csv"
        with path.open("wb") as file:
            file.truncate(sources.LARGEST_TEXT_BYTES + 2**30)
        with pytest.raises(BadFileError, match="too large") as caught:
            read_trace(path)
        assert (caught.value.given, caught.value.hint.partition(",")[0]) == (
            "33.0 GiB",
            "head big.csv -n 1000001 > part.csv",
        )

    def test_too_many_rows_are_refused_with_their_number(self, write, monkeypatch):
        monkeypatch.setattr("wavetank.workloads.intake.MOST_ROWS", 10)
        with pytest.raises(BadFileError, match="too many rows") as caught:
            read_trace(write("t.csv", HEADER + "0,1,1\n" * 12))
        assert (caught.value.given, caught.value.allowed) == ("12", "up to 10")

    @pytest.mark.parametrize(
        ("name", "hint"), [("t.xlsx", "save the sheet as CSV"), ("t.zip", "unzip"), ("t.csv.zst", "zstd -d")]
    )
    def test_other_formats_come_with_a_way_out(self, write, name, hint):
        with pytest.raises(BadFileError) as caught:
            read_trace(write(name, "x"))
        assert hint in caught.value.hint

    def test_a_folder_names_the_files_in_it(self, tmp_path, write):
        write("a.csv", HEADER)
        with pytest.raises(BadFileError) as caught:
            read_trace(tmp_path)
        assert caught.value.hint == "name a file of it: a.csv"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_a_pipe_is_refused_and_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.csv")
        with pytest.raises(BadFileError, match="a pipe or a device"):
            read_trace(tmp_path / "pipe.csv")
