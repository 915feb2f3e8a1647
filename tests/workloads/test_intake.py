"""Which column is which, and what is done about rows that cannot be used."""

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
        assert tuple(chosen.values()) == names

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
