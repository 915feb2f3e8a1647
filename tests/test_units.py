from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.units import convert, parse_quantity, show, stated, typed

TIMES = st.sampled_from(["ps", "ns", "us", "ms", "s", "min", "h", "d"])
SIZES = st.sampled_from(["bytes", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"])
NUMBERS = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


@given(NUMBERS, st.one_of(st.tuples(TIMES, TIMES), st.tuples(SIZES, SIZES)))
def test_a_conversion_there_and_back_gives_the_same_number(value: float, units: tuple[str, str]) -> None:
    there = convert(value, units[0], units[1])
    assert convert(there, units[1], units[0]) == pytest.approx(value, rel=1e-12, abs=1e-300)


@given(NUMBERS)
def test_a_bare_number_is_taken_as_it_is(value: float) -> None:
    assert parse_quantity(repr(value), "s") == value


@given(NUMBERS, TIMES, st.sampled_from(["", " ", "  "]))
def test_a_number_with_a_unit_is_converted(value: float, unit: str, space: str) -> None:
    assert parse_quantity(f" {value!r}{space}{unit} ", "s") == convert(value, unit, "s")


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("100ms", "s", 0.1),
        ("1_000 us", "s", 0.001),
        ("2 min", "s", 120.0),
        (".5 GiB", "bytes", 2.0**29),
        ("1e3 requests/min", "requests/s", 1000 / 60),
        ("-3", "", -3.0),
        ("3 ktokens", "tokens", 3000.0),
    ],
)
def test_known_quantities(text: str, unit: str, expected: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(expected, rel=1e-15)


def test_a_power_of_ten_does_not_round() -> None:
    assert [convert(value, "ms", "s") for value in (1, 100, 7)] == [0.001, 0.1, 0.007]


@given(st.text(max_size=8))
def test_any_text_is_a_finite_number_or_refused(text: str) -> None:
    try:
        assert math.isfinite(parse_quantity(text, "s"))
    except BadValueError as error:
        assert error.where is None


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        (
            "soon",
            "s",
            "This is not a number.\n  given: soon\n  allowed: a number, optionally with a unit (s)\n"
            "  where: study x, y",
        ),
        ("soon", "", "This is not a number.\n  given: soon\n  allowed: a plain number\n  where: study x, y"),
        ("1e999", "s", "This number is too large.\n  given: 1e999\n  where: study x, y"),
        (
            "3 Ms",
            "s",
            "'Ms' is not a unit that converts to 's'.\n  given: 3 Ms\n  allowed: ps, ns, us, ms, s, min, h, d\n"
            "  nearest: ms\n  where: study x, y",
        ),
        (
            "3 bytes",
            "workers",
            "'bytes' is not a unit that converts to 'workers'.\n  given: 3 bytes\n  allowed: workers\n"
            "  where: study x, y",
        ),
        (
            "3 ms",
            "",
            "This number has no unit, not 'ms'.\n  given: 3 ms\n  allowed: a plain number\n  where: study x, y",
        ),
    ],
)
def test_wrong_quantities_say_what_is_allowed(text: str, unit: str, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_quantity(text, unit, where="study x, y")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00213, "s", "2.13 ms"),
        (0.0, "s", "0 s"),
        (12, "", "12"),
        (1_250_000, "tokens/s", "1,250,000 tokens/s"),
        (3.0e9, "bytes", "3 GB"),
        (999.7e-6, "s", "1.00 ms"),
        (-0.25, "", "-0.250"),
        (math.nan, "s", "-"),
        (math.inf, "s", "inf"),
        (-math.inf, "", "-inf"),
        (1e20, "", "1e+20"),
        (1.5e-7, "joules", "1.5e-07 joules"),
    ],
)
def test_known_figures(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


@given(st.sampled_from(["s", "bytes"]), st.floats(min_value=1e-8, max_value=1e14))
def test_a_shown_figure_reads_back_to_three_digits(unit: str, value: float) -> None:
    assert parse_quantity(show(value, unit).replace(",", ""), unit) == pytest.approx(value, rel=0.0051)


def test_rates_of_arithmetic_have_prefixes() -> None:
    assert [show(value, "FLOP/s") for value in (2.62e9, 1.5e13, 9.9999e8, 12.0, 0.0)] == [
        "2.62 GFLOP/s",
        "15 TFLOP/s",
        "1.00 GFLOP/s",
        "12 FLOP/s",
        "0 FLOP/s",
    ]


def test_stated_numbers_keep_their_digits() -> None:
    assert [stated(value) for value in (0.62, 1_350_000.0, 1e-7, 3)] == ["0.62", "1,350,000", "1e-07", "3"]


def test_settings_are_written_as_they_are_typed() -> None:
    values = (None, True, 2.0, (1, 2.5, None), "text", 3, [], 1e6)
    assert [typed(value) for value in values] == ["none", "true", "2", "1,2.5,none", "text", "3", "", "1000000"]
    assert typed((1, 2.5), ", ") == "1, 2.5"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_typed_is_read_as_the_same_number(value: float) -> None:
    assert parse_quantity(typed(value), "") == value
    assert typed(np.float64(value)) == typed(value)
