"""Arrival times: one reading for the whole column, or a refusal with rows."""

import numpy as np
import pytest

from wavetank.errors import BadTraceError
from wavetank.workloads.arrival_times import (
    in_seconds,
    name_without_unit,
    read_dates,
    unit_of_numbers,
    zeros_among_dates,
)

PLACE = {"column": "ts", "where": "mine.csv", "asked_in": "options"}


def seconds(texts, time_unit=None):
    read = read_dates(texts, time_unit=time_unit, **PLACE)
    assert not read.missing.any()
    assert not read.unreadable.any()
    return in_seconds(read.values, "s").tolist(), read.described


def unit(values, column="ts"):
    values = np.asarray(values)
    return unit_of_numbers(values, np.arange(values.size), **{**PLACE, "column": column})


class TestDates:
    @pytest.mark.parametrize(
        "texts",
        [
            ["11/16/2023 18:15:46", "11/16/2023 18:15:48"],
            ["11/16/2023 6:15:46 PM", "11/16/2023 6:15:48 PM"],
            ["11/16/2023, 6:15:46 p.m.", "11/16/2023, 6:15:48 p.m."],
            ["11/16/2023 11:59:59 PM", "11/17/2023 12:00:01 AM"],
            ["11/16/2023 12:00:00 PM", "11/16/2023 12:00:02 PM"],
            ["11-16-2023T18:15:46.25", "11-16-2023T18:15:48.250"],
        ],
    )
    def test_of_the_united_states(self, texts):
        assert seconds(texts) == ([0.0, 2.0], "dates, month first")

    def test_with_the_day_first_where_a_day_is_after_the_twelfth(self):
        assert seconds(["01/02/2024 00:00", "13/02/2024 00:00"]) == ([0.0, 12 * 86400.0], "dates, day first")
        assert seconds(["01.02.2024 10:00:00", "01.03.2024 10:00:00"]) == ([0.0, 29 * 86400.0], "dates, day first")

    def test_one_later_row_decides_for_all(self):
        texts = ["02/03/2024 00:00:00"] * 50 + ["02/13/2024 00:00:00"]
        assert seconds(texts)[0][-1] == 10 * 86400.0

    def test_the_order_does_not_matter_within_one_day(self):
        assert seconds(["03/04/2024 10:00:00", "03/04/2024 10:00:07"])[0] == [0.0, 7.0]

    def test_an_order_that_matters_and_shows_nowhere_is_asked_for(self):
        texts = ["03/04/2024 10:00:00", "03/05/2024 10:00:00"]
        with pytest.raises(BadTraceError, match="cannot be distinguished") as caught:
            seconds(texts)
        assert caught.value.hint == "--time-unit mdy for month first, --time-unit dmy for day first"
        assert seconds(texts, "mdy")[0] == [0.0, 86400.0]
        assert seconds(texts, "dmy")[0] == [0.0, 30 * 86400.0]

    def test_both_orders_in_one_column_are_refused_with_the_rows(self):
        with pytest.raises(BadTraceError, match="mixed units") as caught:
            seconds(["03/13/2024 10:00:00", "03/14/2024 10:00:00", "15/03/2024 10:00:00"])
        assert "row 3" in caught.value.where

    def test_years_first_and_names_of_utc(self):
        assert seconds(["2023/11/16 18:15:46", "2023/11/16 18:15:47"])[0] == [0.0, 1.0]
        assert seconds(["2023-11-16 18:15:46 UTC", "2023-11-16 18:15:47,5 UTC"])[0] == [0.0, 1.5]

    def test_what_is_no_date_is_marked(self):
        texts = ["2024-01-01", "2024-02-31", "yesterday", None, " NULL ", "1/1/024"]
        read = read_dates(texts, time_unit=None, **PLACE)
        assert read.unreadable.tolist() == [False, True, True, False, False, True]
        assert read.missing.tolist() == [False, False, False, True, True, False]
        read = read_dates(["11/16/2023 13:15 PM", "02/30/2024", "11/16/2023"], time_unit=None, **PLACE)
        assert read.unreadable.tolist() == [True, True, False]


class TestYearsOfTwoDigits:
    def test_stand_last_where_they_change_least(self):
        assert seconds(["3/15/24 6:15:46 PM", "3/16/24 6:15:46 PM"]) == ([0.0, 86400.0], "dates, month first")
        assert seconds(["15.03.24 18:15:46", "16.03.24 18:15:46"]) == ([0.0, 86400.0], "dates, day first")
        # Within one day they may stand anywhere.
        assert seconds(["24/03/15 10:00:00", "24/03/15 10:00:07"])[0] == [0.0, 7.0]
        assert seconds(["12/30/23", "12/31/23", "01/01/24"])[0] == [0.0, 86400.0, 2 * 86400.0]

    @pytest.mark.parametrize("texts", [["24/03/15", "24/03/16"], ["23/03/15", "24/03/16"], ["23/03/15", "24/05/29"]])
    def test_that_may_stand_first_are_asked_for(self, texts):
        with pytest.raises(BadTraceError, match="two digits") as caught:
            seconds(texts)
        assert "--time-unit dmy for day first" in caught.value.hint
        assert "four digits" in caught.value.hint
        assert seconds(texts, "dmy")[1] == "dates, day first"

    def test_of_other_lengths_are_no_years(self):
        read = read_dates(["3/15/024", "3/15/2"], time_unit=None, **PLACE)
        assert read.unreadable.all()


class TestNamesOfMonths:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("15/Mar/2024:23:59:59 +0000", "16/Mar/2024:00:00:01 +0000"),
            ("Mar 15, 2024 @ 23:59:59.000", "Mar 16, 2024 @ 00:00:01.000"),
            ("Fri, 15 Mar 2024 23:59:59 GMT", "Sat, 16 Mar 2024 00:00:01 GMT"),
            ("15-MAR-2024 11:59:59 PM", "16-MAR-2024 12:00:01 AM"),
            ("March 15 2024, 23:59:59", "March 16 2024, 00:00:01"),
            ("15 Mar 2024 23:59:59 +0000", "15 Mar 2024 20:00:01 -0400"),
        ],
    )
    def test_are_read(self, first, second):
        assert seconds([first, second]) == ([0.0, 2.0], "dates with the month's name")

    def test_of_no_month_are_no_dates(self):
        read = read_dates(["15/Foo/2024:10:00:00", "31 Feb 2024", "15 Mar 2024"], time_unit=None, **PLACE)
        assert read.unreadable.tolist() == [True, True, False]


class TestZones:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("2024-03-15 18:15:46.5 +0000 UTC", "2024-03-15 18:15:48.5 +0000 UTC"),
            ("2024-03-15 18:15:46 CET", "2024-03-15 19:15:48 CEST"),
            ("2024-03-15 18:15:46 -0800", "2024-03-15 21:15:48 EST"),
            ("3/15/2024 6:15:46 PM PST", "3/15/2024 6:15:48 PM PST"),
            ("3/15/2024, 6:15:46\u202fPM", "3/15/2024, 6:15:48\u202fPM"),
        ],
    )
    def test_are_read(self, first, second):
        assert seconds([first, second])[0] == [0.0, 2.0]

    def test_of_unknown_names_are_not_guessed(self):
        assert read_dates(["2024-03-15 18:15:46 XYZ"], time_unit=None, **PLACE).unreadable.all()


class TestTimesOfDay:
    def test_count_from_the_first(self):
        assert seconds(["12:30:05.123", "12:30:07,123", "1:30:05 PM"][:2]) == ([0.0, 2.0], "times of day")
        assert seconds(["1:30:05 PM", "1:30:06 PM"])[0] == [0.0, 1.0]

    def test_pass_midnights_in_the_order_of_the_rows(self):
        texts = ["22:00:00", "23:59:59.5", "00:00:00.5", "23:59:59.9", "00:00:01", "23:00:00", "01:00:00"]
        read = read_dates(texts, time_unit=None, **PLACE)
        day = 86400.0
        assert in_seconds(read.values, "s").tolist() == [
            0.0, 7199.5, 7200.5, 7199.9, 7201.0, day + 3600.0, day + 10800.0,
        ]  # fmt: skip
        assert read.notes == ("The times of day in 'ts' have no date: they were read one after the other, 2 midnights "
                              "passed.",)  # fmt: skip

    def test_of_a_log_with_the_newest_row_first(self):
        assert seconds(["00:00:02", "00:00:01", "23:59:59", "23:59:58"])[0] == [4.0, 3.0, 1.0, 0.0]

    def test_over_a_day_in_no_order_are_refused(self):
        texts = [f"{hour:02}:00:00" for hour in np.random.default_rng(1).permutation(24)]
        with pytest.raises(BadTraceError, match="without a date, in no order") as caught:
            seconds(texts)
        assert "2023-11-16 18:15:46" in caught.value.hint

    def test_without_seconds_or_of_no_clock_are_not_read(self):
        read = read_dates(["12:30", "30:05.1", "25:00:00", "12:30:05"], time_unit=None, **PLACE)
        assert read.unreadable.tolist() == [True, True, True, False]


class TestMixedUnits:
    def test_numbers_beside_dates(self):
        with pytest.raises(BadTraceError, match="2 ISO date-times, 1 numbers") as caught:
            seconds(["2024-01-01", "17.5", "2024-01-02"])
        assert caught.value.where == "mine.csv, row 2, column 'ts'"
        assert caught.value.given == "17.5"
        assert "--columns arrival_s=COLUMN" in caught.value.hint

    def test_iso_beside_other_dates(self):
        with pytest.raises(BadTraceError, match="mixed units"):
            seconds(["2024-01-01", "01/13/2024"])

    def test_unix_times_of_two_units(self):
        with pytest.raises(BadTraceError, match="3 in Unix s, 7 in Unix ms") as caught:
            unit([1.7e9, 1.7e9, 1.7e9] + [1.7e12] * 7)
        assert "rows 1, 2, 3" in caught.value.where

    def test_relative_times_of_any_size_are_not_mixed(self):
        for top in (1e6, 3.6e9, 3e12):
            assert unit(np.linspace(0.5, top, 1000))[0] == "s"


class TestUnits:
    @pytest.mark.parametrize(("name", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
    def test_unix_times_say_their_unit_themselves(self, name, factor):
        values = np.array([1_700_000_000, 1_700_000_060]) * factor
        found, described, _ = unit(values)
        assert (found, described) == (name, f"Unix {name}")
        assert in_seconds(values, found).tolist() == [0.0, 60.0]

    def test_a_name_says_the_unit_of_other_numbers(self):
        assert unit([0, 500, 1500], "arrival_ms") == ("ms", "ms", ())
        assert unit([0, 500, 1500], "arrival_s") == ("s", "s", ())
        assert unit([0, 500, 1500], "timestampUs")[0] == "us"

    def test_a_name_that_the_values_contradict_is_said(self):
        found, _, notes = unit([1.7e9, 1.7e9 + 1], "time_ms")
        assert found == "s"
        assert "names ms" in notes[0]

    def test_unix_times_come_with_their_first_date(self):
        assert unit([1_710_526_546_250])[2] == (
            "The column 'ts' begins at 1.711e+12 and was read as Unix time in ms, which is 2024-03-15 18:15 UTC.",
        )

    def test_units_in_parentheses_are_of_the_name(self):
        assert unit([0, 500, 1500], "Time (ms)") == ("ms", "ms", ())

    def test_days_of_a_spreadsheet_are_read_as_such(self):
        values = 45366.5 + np.arange(5) / 86400
        found, described, (said,) = unit(values)
        assert described == "serial days"
        assert "of which 45366.5 is 2024-03-15 12:00; --time-unit s reads it as seconds" in said
        np.testing.assert_allclose(in_seconds(values, found), np.arange(5), atol=1e-6)
        # As seconds these come at a usual rate.
        assert unit(45366.5 + np.arange(5) / 10)[0] == "s"

    def test_long_whole_gaps_are_asked_about(self):
        assert "median gap is 500 s; if it is in ms, give --time-unit ms." in unit([0, 500, 1000])[2][0]
        assert "median gap is 14 s" in unit([0, 14, 28])[2][0]
        assert "in ms or us, give --time-unit ms or --time-unit us" in unit([0, 14_000, 28_000])[2][0]
        assert unit([0, 0.5, 1000])[2] == unit([0, 1, 2])[2] == unit([])[2] == ()

    def test_names_are_split_at_signs_and_capitals(self):
        assert [name_without_unit(name)[1] for name in ("ts", "ms", "a.b_millis", "startNs", "in ms", "atoms")] == [
            "", "", "ms", "ns", "ms", "",
        ]  # fmt: skip

    def test_zeros_among_unix_times_were_never_taken(self):
        assert zeros_among_dates(np.array([0.0, 1.7e9, -1.0])).tolist() == [True, False, True]
        assert not zeros_among_dates(np.array([0.0, 5.0, 1.7e9])).any()
        assert not zeros_among_dates(np.array([0.0, 0.0])).any()
