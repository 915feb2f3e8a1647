"""Which column is which, and what is done about rows that cannot be used."""

import datetime

import pytest

from wavetank.errors import BadFileError, BadTraceError, BadValueError
from wavetank.workloads import read_trace, read_trace_and_facts
from wavetank.workloads.intake import choose_columns

PLACE = {"where": "mine.csv", "asked_in": "options"}


def lists(trace):
    return (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())


class TestColumns:
    @pytest.mark.parametrize(
        "names",
        [
            ("ts", "in", "out"),
            ("time", "input", "output"),
            ("start", "n_input", "n_output"),
            ("created_at", "prompt_len", "generated"),
            ("request_time", "num_prompt_tokens", "completion_tokens"),
            ("created", "usage.prompt_tokens", "usage.completion_tokens"),
            ("response.body.created", "response.body.usage.prompt_tokens", "response.body.usage.completion_tokens"),
            ("arrival_ms", "InputTokens", "Output Tokens"),
            ("timestampNs", "isl", "osl"),
            ("request.start_time_us", "input-len", "output-len"),
        ],
    )
    def test_families_of_names_are_known(self, names):
        chosen = choose_columns([*names, "user", "status", "latency_ms", "total_tokens"], {}, **PLACE)
        assert tuple(chosen.values()) == (*names, "user")

    def test_a_column_of_counts_comes_before_one_of_text(self):
        found = ["ts", "prompt", "response", "prompt_tokens", "usage.completion_tokens"]
        chosen = choose_columns(found, {}, **PLACE)
        assert (chosen["prompt_tokens"], chosen["output_tokens"]) == ("prompt_tokens", "usage.completion_tokens")

    def test_a_column_gives_one_field(self):
        chosen = choose_columns(["t", "in", "out", "ts"], {"prompt_tokens": "t"}, **PLACE)
        assert chosen == {"prompt_tokens": "t", "arrival_s": "ts", "output_tokens": "out"}

    def test_all_missing_columns_are_named_at_once_with_what_to_type(self):
        with pytest.raises(BadFileError) as caught:
            choose_columns(["when_it_came", "promt_tokens", "user"], {"output_tokens": "oot"}, **PLACE)
        error = caught.value
        assert error.problem == (
            "There is no column 'oot' for output_tokens. "
            "None of the columns is known to give arrival_s and prompt_tokens."
        )
        assert error.hint == (
            "say which ones do: --columns output_tokens=COLUMN,arrival_s=COLUMN,prompt_tokens=promt_tokens"
        )
        assert error.nearest == "promt_tokens"


class TestArrivals:
    @pytest.mark.parametrize(
        ("names", "chosen"),
        [
            (("timestamp", "started_at"), "started_at"),
            (("end_time", "start_time", "timestamp"), "start_time"),
            (("timestamp", "created_at"), "timestamp"),
            (("time_local", "request_time"), "time_local"),
            (("request_time", "ts"), "ts"),
        ],
    )
    def test_what_begins_a_request_comes_before_what_logs_it_and_before_durations(self, names, chosen):
        assert choose_columns([*names, "in", "out"], {}, **PLACE)["arrival_s"] == chosen

    def test_other_columns_that_may_hold_arrivals_are_named(self):
        rows = [{"timestamp": i + 5, "start_time_ms": 1, "started_at": i, "in": 1 + i, "out": 1} for i in range(3)]
        trace, facts = read_trace_and_facts(rows, asked_in="study")
        assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0]
        assert facts.notes == (
            "Arrivals were read from 'started_at'; 'timestamp', 'start_time_ms' may hold them too: "
            '--set columns=arrival_s=timestamp (in Python columns={"arrival_s": "timestamp"}).',
        )
        assert read_trace_and_facts(rows, columns={"arrival_s": "timestamp"})[1].notes == ()

    def test_a_date_beside_a_time_of_day_belongs_to_it(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("date,time,in,out\n2024-03-15,23:59:59,1,1\n2024-03-16,00:00:01,2,1\n2024-03-16,,2,1\n")
        trace, facts = read_trace_and_facts(path, bad_rows="drop")
        assert trace.arrival_s.tolist() == [0.0, 2.0]
        assert (facts.dropped, facts.notes[0]) == ({"missing arrival": 1}, "Arrivals are 'date' and 'time' together.")
        path.write_text("date,time,in,out\n2024-03-15,5,1,1\n2024-03-16,7.5,2,1\n")
        assert read_trace(path).arrival_s.tolist() == [5.0, 7.5]

    def test_times_of_day_that_a_table_has_as_such_are_read(self):
        arrow = pytest.importorskip("pyarrow")
        times = [datetime.time(23, 59, 59), datetime.time(0, 0, 1), None]
        table = arrow.table({"time": times, "in": [1, 2, 3], "out": [1, 2, 3]})
        trace, facts = read_trace_and_facts(table, bad_rows="drop")
        assert (trace.arrival_s.tolist(), facts.times) == ([0.0, 2.0], "times of day")
        assert facts.dropped == {"missing arrival": 1}

    def test_dates_in_digits_alone_are_dates(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("ts,in,out\n20240315235959,1,1\n20240316000001,2,1\n,1,1\n")
        trace, facts = read_trace_and_facts(path, bad_rows="drop")
        assert (trace.arrival_s.tolist(), facts.times) == ([0.0, 2.0], "date-times")
        path.write_text("ts,in,out\n20240315235959250,1,1\n20240316000001500,2,1\n")
        assert read_trace(path).arrival_s.tolist() == [0.0, 2.25]
        rows = [{"ts": 20240315235959, "in": 1, "out": 1}, {"ts": 20240315236059, "in": 1, "out": 1}]
        # The second has sixty minutes: these are numbers.
        assert read_trace_and_facts(rows)[1].times == "Unix ms"

    @pytest.mark.parametrize(
        ("text", "times"),
        [
            ('ts,in,out\n"1,234.5",1,1\n"1,236",1,1\n', [1234.5, 1236.0]),
            ("ts;in;out\n1.234,5;1;1\n1.236;1;1\n", [1234.5, 1236.0]),
            ("ts;in;out\n0,234;1;1\n1,236;1;1\n", [0.234, 1.236]),
        ],
    )
    def test_numbers_with_thousands_and_decimals(self, tmp_path, text, times):
        (tmp_path / "t.csv").write_text(text)
        assert read_trace(tmp_path / "t.csv").arrival_s.tolist() == times


class TestThousands:
    @staticmethod
    def of(tmp_path, numbers, delimiter=";", times="0,5"):
        text = "".join(f'"{times}"{delimiter}"{number}"{delimiter}7\n' for number in numbers)
        (tmp_path / "t.csv").write_text(delimiter.join(("ts", "in", "out")) + "\n" + text, encoding="utf-8")
        return read_trace_and_facts(tmp_path / "t.csv", bad_rows="drop")

    @pytest.mark.parametrize(
        ("sign", "words"),
        [(",", "commas"), (".", "points"), ("'", "apostrophes"), ("\u2019", "apostrophes"), (" ", "spaces"),
         ("\u202f", "spaces")],
    )  # fmt: skip
    @pytest.mark.parametrize("delimiter", [";", ","])
    def test_are_read_and_said(self, tmp_path, sign, words, delimiter):
        numbers = [12, 1234, 999, 1_234_567, 2000, *range(5, 15)]
        written = [f"{number:,}".replace(",", sign) for number in numbers]
        trace, facts = self.of(tmp_path, [*written, "n/a"], delimiter, times="0.5")
        assert trace.prompt_tokens.tolist() == numbers
        assert facts.dropped == {"missing prompt length": 1}
        assert facts.notes == (f"Thousands in 'in' are separated by {words}.",)

    def test_decimals_are_no_thousands(self, tmp_path):
        assert self.of(tmp_path, ["812,0", "9,0"])[0].prompt_tokens.tolist() == [812, 9]
        trace, facts = self.of(tmp_path, ["1234.0", "812.0"])
        assert (trace.prompt_tokens.tolist(), facts.notes) == ([1234, 812], ())
        # Beside longer numbers without a point, a point is a decimal one.
        assert self.of(tmp_path, ["12345", "812.500"])[1].dropped == {"fractional prompt length": 1}

    def test_three_zeros_alone_are_thousands_where_another_column_has_decimal_commas(self, tmp_path):
        assert self.of(tmp_path, ["1.000", "3.000"])[0].prompt_tokens.tolist() == [1000, 3000]
        trace, facts = self.of(tmp_path, ["1.000", "3.000"], times="5")
        assert trace.prompt_tokens.tolist() == [1, 3]
        assert facts.notes == (
            "Numbers in 'in' have points and then three zeros: they were read as decimals, not as thousands.",
        )


class TestDoubts:
    def test_many_rows_left_out_come_with_the_first_of_the_commonest_reason(self):
        rows = [{"ts": i / 4, "in": value, "out": 1} for i, value in enumerate([5, 0, "many", "lots", 6])]
        _, facts = read_trace_and_facts(rows, bad_rows="drop")
        assert facts.notes == (
            "60% of the rows were left out, most often with non-numeric prompt length, first in row 3, where 'in' is "
            "'many'.",
        )
        rows = [{"ts": i, "in": None if i == 7 else 5, "out": 1} for i in range(11)]
        assert read_trace_and_facts(rows, bad_rows="drop")[1].notes == ()

    def test_several_models_are_one_traffic_to_a_study(self):
        rows = [{"ts": i, "in": 1, "out": 1, "model": model} for i, model in enumerate(["b", "a", None])]
        trace, facts = read_trace_and_facts(rows, bad_rows="drop", asked_in="study")
        assert (len(trace), facts.dropped) == (3, {})
        assert facts.notes == ("The rows name 2 models ('a', 'b'); all of them are read as one traffic.",)
        assert read_trace_and_facts(rows)[1].notes == ()

    def test_cached_tokens_that_are_not_read_are_said(self):
        def rows(cached):
            usage = [{"prompt_tokens": 10, "completion_tokens": 1, "details": {"cached_tokens": n}} for n in cached]
            return [{"created": i, "usage": each} for i, each in enumerate(usage)]

        (said,) = read_trace_and_facts(rows([8, None]))[1].notes
        assert said.startswith("Of the prompts' tokens, 40% are in 'usage.details.cached_tokens', which is not read: ")
        assert read_trace_and_facts(rows([0, 0]))[1].notes == ()


ROWS = [
    {"ts": 0, "in": 10, "out": 1},
    {"ts": 1, "in": 0, "out": 1},
    {"ts": 2, "in": 10, "out": -3},
    {"ts": 3, "in": None, "out": 5},
    {"ts": 4, "in": "many", "out": 5},
    {"ts": 5, "in": 1.5, "out": 5},
    {"ts": None, "in": 1, "out": 5},
    {"ts": -6, "in": 1, "out": 5},
    {"ts": 7, "in": "N/A", "out": 0},
    {"ts": 8, "in": 20, "out": 2},
]


def test_rows_of_a_large_file_stay_in_their_order(tmp_path):
    # Far more than one thread of the reader takes at a time; a join in its query would disorder them.
    with (tmp_path / "t.csv").open("w") as file:
        file.write("ts,in,out\n")
        file.writelines(f"{row},{1 + row % 999},7\n" for row in range(1_000_000))
    trace, facts = read_trace_and_facts(tmp_path / "t.csv", bad_rows="drop")
    assert facts.out_of_place == 0
    assert trace.prompt_tokens[-1] == 1 + 999_999 % 999


class TestBadRows:
    def test_the_first_is_named_with_the_count_of_all(self):
        with pytest.raises(BadTraceError) as caught:
            read_trace(ROWS)
        error = caught.value
        assert error.problem.startswith("A request has at least one token. In all, 8 of 10 rows cannot be used: ")
        assert (error.where, error.given) == ("the list of dicts, row 2, column 'in'", "0")
        assert "bad_rows='drop'" in error.hint

    def test_they_are_dropped_and_counted_by_reason(self):
        trace, facts = read_trace_and_facts(ROWS, bad_rows="drop")
        assert lists(trace) == ([0.0, 8.0], [10, 20], [1, 2])
        assert facts.rows_read == 10
        assert facts.dropped == {
            "missing prompt length": 2, "zero prompt length": 1, "negative output length": 1,
            "non-numeric prompt length": 1, "fractional prompt length": 1, "missing arrival": 1, "negative arrival": 1,
        }  # fmt: skip
        with pytest.warns(UserWarning, match="dropped 8 rows"):
            read_trace(ROWS, bad_rows="drop")

    def test_where_none_is_left_the_reasons_are_said(self):
        with pytest.raises(BadTraceError, match="None of the 1 rows can be used: 1 with zero prompt length") as caught:
            read_trace(ROWS[1:2], bad_rows="drop")
        assert '"prompt_tokens": "in"' in caught.value.hint
        assert (caught.value.given, caught.value.where) == ("0", "the list of dicts, row 1, column 'in'")

    def test_rows_are_numbered_as_in_the_source_after_others_were_dropped(self):
        rows = [{"ts": 0, "in": 0, "out": 1}, {"ts": 1, "in": 10, "out": 1, "hash_ids": [1, 2, 3]}]
        with pytest.raises(BadTraceError, match="more prefix blocks") as caught:
            read_trace(rows, bad_rows="drop")
        assert caught.value.where == "the list of dicts, row 2, column 'hash_ids'"

    def test_blocks_stay_with_their_rows(self):
        rows = [
            {"ts": 1, "in": 600, "out": 1, "hash_ids": [7, 8]},
            {"ts": 2, "in": 600, "out": 0, "hash_ids": [7, 9]},
            {"ts": 0, "in": 600, "out": 1, "hash_ids": [8]},
        ]
        trace, facts = read_trace_and_facts(rows, bad_rows="drop")
        assert (trace.block_ids.tolist(), trace.block_offsets.tolist()) == ([0, 1, 0], [0, 1, 3])
        assert facts.out_of_place == 1

    def test_times_of_zero_among_unix_times_are_missing(self):
        rows = [{"ts": ts, "in": 1, "out": 1} for ts in (1.7e9, 0, 1.7e9 + 5)]
        trace, facts = read_trace_and_facts(rows, bad_rows="drop")
        assert (trace.arrival_s.tolist(), facts.dropped) == ([0.0, 5.0], {"missing arrival": 1})

    def test_another_word_is_refused(self):
        with pytest.raises(BadValueError, match="bad rows"):
            read_trace(ROWS, bad_rows="repair")

    def test_sizes_of_blocks_must_agree(self):
        rows = [{"ts": 0, "in": 1, "out": 1, "block_tokens": size} for size in (16, 32)]
        with pytest.raises(BadTraceError, match="several sizes"):
            read_trace(rows)
        assert read_trace(rows[:1]).block_tokens == 16
