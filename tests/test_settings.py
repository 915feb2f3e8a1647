from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.settings import assigned, check_parameters, check_ranges, options, range_in_words, setting


@dataclass(frozen=True, kw_only=True)
class Everything:
    wait_s: float = setting(1.0, unit="s", low=0, high=60)
    workers: int = setting(4, unit="workers", low=1)
    mode: str = setting("calm", choices=("calm", "rough"))
    eager: bool = setting(False)
    sizes: tuple[int, ...] = setting((1,), low=1, high=9)
    names: tuple[str, ...] = setting(())
    limit: float | None = setting(None, unit="s")
    window: float | str = setting("auto", unit="s", choices=("auto", "off"), low=0)
    ratio: str | float = setting(0.5)
    bits: int = setting(16, unit="steps", choices=(8, 16, 32))
    shares: tuple[float, ...] = setting((0.5,), choices=(0.25, 0.5))
    depth: int | str = setting("auto", choices=("auto", 1, 2))
    reach: float = setting(math.inf, unit="s", low=0)
    title: str = ""
    anything: object = None


def read(name: str, value: Any) -> Any:
    return check_parameters(Everything, {name: value}, where="study s")[name]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("wait_s", "100ms", 0.1),
        ("wait_s", 3, 3.0),
        ("wait_s", np.float64(0.25), 0.25),
        ("workers", "8", 8),
        ("workers", "8 workers", 8),
        ("workers", 8.0, 8),
        ("workers", np.int64(8), 8),
        ("mode", " rough ", "rough"),
        ("eager", "Yes", True),
        ("eager", "0", False),
        ("eager", True, True),
        ("sizes", "1, 2,3", (1, 2, 3)),
        ("sizes", [4, 5], (4, 5)),
        ("sizes", 7, (7,)),
        ("names", "a, b", ("a", "b")),
        ("names", "", ()),
        ("limit", "none", None),
        ("limit", None, None),
        ("limit", "2 min", 120.0),
        ("window", "auto", "auto"),
        ("window", "5 ms", 0.005),
        ("window", 2, 2.0),
        ("ratio", 0.25, 0.25),
        ("bits", "32", 32),
        ("bits", "8 steps", 8),
        ("bits", np.int64(16), 16),
        ("shares", "0.25,0.5", (0.25, 0.5)),
        ("depth", "auto", "auto"),
        ("depth", "2", 2),
        ("reach", math.inf, math.inf),
        ("title", "none", "none"),
        ("anything", {"a": 1}, {"a": 1}),
    ],
)
def test_values_become_the_type_of_their_field(name: str, value: Any, expected: Any) -> None:
    found = read(name, value)
    assert found == expected
    assert type(found) is type(expected)


@given(st.floats(0, 60))
def test_every_allowed_number_survives_its_text(value: float) -> None:
    assert read("wait_s", repr(value)) == value


@given(st.lists(st.integers(1, 9)))
def test_every_allowed_list_survives_its_text(values: list[int]) -> None:
    assert read("sizes", ",".join(map(str, values))) == tuple(values)


@given(st.text())
def test_every_text_survives_but_for_outer_white_space(text: str) -> None:
    assert read("title", text) == text.strip()


@given(st.sampled_from(["wait_s", "workers", "mode", "eager", "sizes", "limit", "window"]), st.text(max_size=6))
def test_any_text_is_read_or_refused_with_its_place(name: str, text: str) -> None:
    try:
        read(name, text)
    except BadValueError as error:
        assert error.where == f"study s, {name}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "worker",
            1,
            "There is no setting named 'worker'.\n  allowed: anything, bits, depth, eager, limit, mode, names, ratio, "
            "reach, shares, sizes, title, wait_s, window, workers\n  nearest: workers\n  where: study s\n"
            "  next: wavetank show s",
        ),
        (
            "mode",
            "ruogh",
            "The value is not one of the allowed words.\n  given: ruogh\n  allowed: calm, rough\n  nearest: rough\n"
            "  where: study s, mode",
        ),
        (
            "bits",
            24,
            "The value is not one of the allowed numbers.\n  given: 24\n  allowed: 8, 16, 32\n  nearest: 32\n"
            "  where: study s, bits",
        ),
        (
            "bits",
            "3",
            "The value is not one of the allowed numbers.\n  given: 3\n  allowed: 8, 16, 32\n  nearest: 32\n"
            "  where: study s, bits",
        ),
        (
            "bits",
            "eight",
            "This is not a number.\n  given: eight\n  allowed: a number, optionally with a unit (steps)\n"
            "  where: study s, bits",
        ),
        (
            "shares",
            "0.25,0.3",
            "The value is not one of the allowed numbers.\n  given: 0.3\n  allowed: 0.25, 0.5\n  nearest: 0.5\n"
            "  where: study s, shares",
        ),
        (
            "depth",
            3,
            "The value is not one of the allowed numbers.\n  given: 3\n  allowed: auto, or 1, 2\n"
            "  where: study s, depth",
        ),
        ("limit", math.inf, "The value must be finite.\n  given: inf\n  where: study s, limit"),
        ("title", 3, "The value must be text.\n  given: 3\n  where: study s, title"),
        (
            "wait_s",
            "2 min",
            "The value is out of range.\n  given: 2 min\n  allowed: 0 to 60 s\n  where: study s, wait_s",
        ),
        (
            "wait_s",
            math.nan,
            "The value is out of range.\n  given: nan\n  allowed: 0 to 60 s\n  where: study s, wait_s",
        ),
        (
            "workers",
            "0",
            "The value is out of range.\n  given: 0\n  allowed: 1 workers or more\n  where: study s, workers",
        ),
        ("workers", "1.5", "The value must be a whole number.\n  given: 1.5\n  where: study s, workers"),
        ("workers", True, "The value must be a number.\n  given: True\n  where: study s, workers"),
        ("wait_s", [1], "The value must be a number.\n  given: [1]\n  where: study s, wait_s"),
        (
            "eager",
            "maybe",
            "The value must be true or false.\n  given: maybe\n  allowed: true, yes, 1, false, no, 0\n"
            "  where: study s, eager",
        ),
        ("sizes", "1,12", "The value is out of range.\n  given: 12\n  allowed: 1 to 9\n  where: study s, sizes"),
        (
            "window",
            "of",
            "This is not a number.\n  given: of\n  allowed: auto, off, or a number, optionally with a unit (s)\n"
            "  nearest: off\n  where: study s, window",
        ),
    ],
)
def test_wrong_values_say_what_is_allowed(name: str, value: Any, message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        check_parameters(Everything, {name: value}, where="study s", what="setting")
    assert str(caught.value) == message


def test_numbers_beyond_those_of_the_machine_are_refused() -> None:
    for name in ("limit", "workers"):
        with pytest.raises(BadValueError, match="too large"):
            read(name, 10**400)


def test_a_class_without_fields_says_that_it_has_none() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nothing:
        pass

    with pytest.raises(BadValueError) as caught:
        check_parameters(Nothing, {"x": 1}, where="system n")
    assert str(caught.value) == (
        "There is no parameter named 'x'.\n  allowed: system n has none\n  where: system n\n  next: wavetank show n"
    )


def test_intervals_in_words() -> None:
    assert range_in_words(-math.inf, 5, "s") == "5 s or less"
    assert range_in_words(0, math.inf) == "0 or more"
    assert range_in_words(0.001, 1_000_000) == "0.001 to 1000000"
    assert range_in_words(-math.inf, math.inf, "s") == ""


def test_choices_hold_for_truth_values_too():
    @dataclass(frozen=True, kw_only=True)
    class Narrow:
        exact: bool = setting(True, choices=(True,))

    for value in (True, "yes", 1):
        assert check_parameters(Narrow, {"exact": value}, where="study narrow") == {"exact": True}
    for value in (False, "no", 0):
        with pytest.raises(BadValueError, match="not one of the allowed values"):
            check_parameters(Narrow, {"exact": value}, where="study narrow")


@dataclass(frozen=True, kw_only=True)
class Launched:
    scale: float = setting(1.0, says="Scale of the times", low=0.5)
    most: int = setting(0, says="Most requests; 0: no limit", low=0, high=10)
    wide: bool = setting(False, says="Whether it is wide")
    way: str = setting("in", says="Direction", choices=("in", "out"))
    model: str = setting("", says="Model")
    wait_s: float = setting(2.0, unit="s", says="Wait")
    plain: int = -1


@pytest.mark.parametrize(("name", "value"), [("scale", 0.4), ("scale", math.nan), ("scale", math.inf), ("most", 11)])
def test_a_number_outside_its_declared_range_is_refused_by_the_name_of_its_field(name: str, value: float) -> None:
    check_ranges(Launched())
    with pytest.raises(BadValueError) as caught:
        check_ranges(Launched(**{name: value}))
    assert caught.value.where == name


def helped(*given: str, **how: Any) -> tuple[str, dict[str, Any]]:
    @click.command()
    @options(Launched, *how.pop("names", ("scale", "most", "wide", "way", "model", "wait_s")), **how)
    def command(**values: Any) -> None:
        found.update(values)

    found: dict[str, Any] = {}
    runner = CliRunner()
    done = runner.invoke(command, given)
    return (runner.invoke(command, ["--help"], terminal_width=120).output if not done.exit_code else done.output), found


def test_options_are_made_of_settings() -> None:
    text, values = helped("--most", "3", "--wide", "--way", "out")
    assert values == {"scale": 1.0, "most": 3, "wide": True, "way": "out", "model": "", "wait_s": 2.0}
    assert [line.split("  ")[1] for line in text.splitlines() if line.startswith("  --")] == [
        "--scale FLOAT", "--most INTEGER", "--wide", "--way [in|out]", "--model TEXT", "--wait-s FLOAT", "--help",
    ]  # fmt: skip
    assert "Scale of the times.  [default: 1.0]" in text
    assert "Most requests; 0: no limit.\n" in text
    assert "not one of 'in', 'out'" in helped("--way", "up")[0]


def test_options_pass_text_on_where_a_unit_may_be_given() -> None:
    text, values = helped("--wait-s", "100ms", typed=False)
    assert values == {"scale": None, "most": None, "wide": None, "way": None, "model": None, "wait_s": "100ms"}
    assert "--wait-s S" in text
    assert "--way in|out" in text
    assert "Wait  [2]" in text


def test_some_options_with_words_of_their_own() -> None:
    text, values = helped(names=("most",), wait_s="Longest wait")
    assert values == {"most": 0, "wait_s": 2.0}
    assert "Longest wait.  [default: 2.0]" in text


def test_pairs_are_split_at_their_first_equals_sign() -> None:
    assert assigned(["a=1", " b =x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for pair in ("a", "=1", " = 1"):
        with pytest.raises(BadValueError, match="This is not a setting") as caught:
            assigned(["a=1", pair], "b=2")
        assert (caught.value.given, caught.value.allowed) == (pair, "KEY=VALUE, as in b=2")
