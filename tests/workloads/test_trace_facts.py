"""What was read of a trace, in three lines."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.workloads.requests import RequestTrace
from wavetank.workloads.trace_facts import (
    TraceFacts,
    check_asked_in,
    doubts,
    hint_to_say,
    rows_in_words,
    span_in_words,
)

TRACE = RequestTrace(arrival_s=[0.0, 100.0, 400.0], prompt_tokens=[10, 20, 30], output_tokens=[1, 2, 9])


def test_three_lines_hold_rows_lengths_repairs_and_columns():
    facts = TraceFacts(
        name="mine.csv",
        trace=TRACE,
        rows_read=1203,
        dropped={"zero output length": 1199, "missing arrival": 1},
        out_of_place=2,
        columns={"arrival_s": "ts", "prompt_tokens": "in", "output_tokens": "out"},
        times="Unix ms",
        read_as=("delimited by semicolons",),
    )
    first, second, third = facts.lines()
    assert first == "Read mine.csv: 3 of 1,203 rows kept, over 6.67 min, 0.00500 requests/s"
    assert second == "prompts 20 tokens on average, p99 30; outputs 4 tokens on average, p99 9"
    assert third == (
        "dropped 1,200 rows (1,199 with zero output length, 1 with missing arrival); put in order 2 rows that were out "
        "of place; columns: arrival ts (Unix ms), prompt in, output out; delimited by semicolons"
    )


def test_a_trace_that_was_one_already_is_taken_as_it_is():
    one = TRACE.head(1)
    facts = TraceFacts(name="requests", trace=one, rows_read=1)
    assert facts.lines()[0] == "Read requests: 1 request all at one instant"
    assert facts.lines()[2] == "taken as it is"
    assert (facts.repairs, str(facts).count("\n")) == ((), 2)


@pytest.mark.parametrize(
    ("asked_in", "hint"),
    [
        ("python", 'columns={"arrival_s": "the time", "prompt_tokens": "in"}'),
        (
            "study",
            "--set 'columns=arrival_s=the time,prompt_tokens=in' "
            '(in Python columns={"arrival_s": "the time", "prompt_tokens": "in"})',
        ),
        ("options", "--columns 'arrival_s=the time,prompt_tokens=in'"),
    ],
)
def test_a_hint_is_in_the_syntax_of_its_place(asked_in, hint):
    assert hint_to_say(asked_in, "columns", {"arrival_s": "the time", "prompt_tokens": "in"}) == hint


def test_other_arguments_have_a_syntax_too():
    said = [hint_to_say(asked_in, "bad_rows", "drop") for asked_in in ("python", "study", "options")]
    assert said == ["bad_rows='drop'", "--set bad_rows=drop (in Python bad_rows='drop')", "--bad-rows drop"]


def test_a_place_without_a_syntax_is_refused():
    with pytest.raises(BadValueError, match="no such place"):
        check_asked_in("shell")


def test_counts_and_spans_are_in_words():
    assert rows_in_words({}) == ""
    assert [span_in_words(seconds) for seconds in (0.0, 90.0, 7199.0, 7200.0)] == ["0 s", "90 s", "120 min", "2 h"]


class TestDoubts:
    @staticmethod
    def of(given_s, plain=True, **columns):
        n = len(given_s)
        columns = {"prompt_tokens": np.arange(1, n + 1), "output_tokens": np.ones(n, dtype=int)} | columns
        trace = RequestTrace.sorted(arrival_s=given_s, **columns)
        return doubts(trace, np.asarray(given_s), column="request_time", plain=plain, asked_in="study")

    def test_arrivals_in_order_are_not_doubted(self):
        times = np.arange(100) * 0.5
        assert self.of(times) == self.of(times[::-1]) == self.of(times[:5][::-1]) == ()
        # A log in order of the requests' ends.
        assert self.of(times + np.random.default_rng(1).exponential(3, 100)) == ()

    def test_numbers_in_no_order_may_be_durations(self):
        times = np.random.default_rng(1).exponential(3, 200)
        (said,) = self.of(times)
        assert said.startswith("The numbers in 'request_time' are in no order, as durations would be; ")
        assert "--set columns=arrival_s=COLUMN" in said
        assert self.of(times, plain=False) == ()

    def test_rounded_arrivals_come_with_their_step(self):
        (said,) = self.of(np.repeat([0.0, 60.0, 180.0], 50))
        assert said.startswith("Arrivals are in steps of 60 s, 50.0 requests in each on average")
        (said,) = self.of(np.full(30, 1.71e9))
        assert said.startswith("All 30 requests have one arrival")
        assert self.of(np.full(5, 1.71e9)) == ()

    def test_rows_that_may_be_copies_are_counted(self):
        times = np.concatenate((np.arange(50.0), [49.0]))
        lengths = np.concatenate((np.arange(1, 51), [50]))
        (said,) = self.of(times, prompt_tokens=lengths)
        assert said == "1 row has arrival and lengths of another row and may be copies; they were kept."
        assert self.of(times) == ()
