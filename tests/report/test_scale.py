"""Units of whole columns and names that people read."""

from __future__ import annotations

import math

import pytest

from wavetank.report.scale import Scale, coordinate, label, labels, listed, scale_for, shortened
from wavetank.study.study import Metric
from wavetank.study.summary import Row


@pytest.mark.parametrize(
    ("unit", "values", "shown"),
    [
        ("s", [0.012, 0.2, 1.4], "ms"),
        ("s", [3.0, 4.0], "s"),
        ("s", [2e-6], "us"),
        ("s", [0.0, math.nan, math.inf], "s"),
        ("bytes", [4e9], "GB"),
        ("tokens", [4e6], "tokens"),
        ("tokens", [4e9], "×10⁹ tokens"),
        ("", [2e14, 1e12, 3e11], "×10¹²"),
        ("", [1e-9], ""),
    ],
)
def test_the_unit_suits_the_middle_value(unit: str, values: list[float], shown: str) -> None:
    assert scale_for(unit, values).unit == shown


def test_a_scale_converts_and_leaves_what_is_no_number() -> None:
    scale = Scale("s", "ms")
    assert scale.of(0.25) == 250
    assert scale.text(0.25) == "250"
    assert math.isinf(scale.of(math.inf))
    assert scale.text(math.nan) == "-"
    assert scale_for("tokens", [4e9]).text(4.2e9) == "4.20"


def test_an_interval_is_written_only_where_there_is_one() -> None:
    def row(low: float, high: float, seeds: int = 3) -> Row:
        return Row("a", "m", (low + high) / 2, low, high, "s", "simulated", seeds, low, high, {})

    scale = Scale("s", "s")
    assert scale.interval(row(1, 2)) == "1..2"
    assert scale.interval(row(1, 2), "–") == "1–2"
    assert scale.interval(row(-2, -1), "–") == "-2 to -1"
    assert scale.interval(row(1, 1)) == ""
    assert scale.interval(row(1, 2, seeds=1)) == ""
    assert scale.interval(row(math.nan, math.nan)) == ""


@pytest.mark.parametrize(
    ("name", "unit", "words"),
    [
        ("ttft_p99_s", "s", "ttft p99"),
        ("goodput_per_s", "requests/s", "goodput"),
        ("throughput_tokens_per_s", "tokens/s", "throughput"),
        ("decision_time", "s", "decision time"),
        ("idle_share", "", "idle share"),
        ("_s", "s", "s"),
    ],
)
def test_a_label_leaves_the_unit_out(name: str, unit: str, words: str) -> None:
    assert label(name, unit) == words


def test_two_metrics_never_share_a_label() -> None:
    metrics = [Metric("wait_s", "s"), Metric("wait_tokens", "tokens"), Metric("idle_share")]
    assert labels(metrics) == {"wait_s": "wait s", "wait_tokens": "wait tokens", "idle_share": "idle share"}


def test_coordinates_state_their_unit_in_their_name() -> None:
    assert coordinate("refresh_s") == ("refresh", "s")
    assert coordinate("rate_requests_per_s") == ("rate", "requests/s")
    assert coordinate("load") == ("load", "")


def test_words_for_people() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert shortened("short", 16) == "short"
    assert shortened("a-very-long-name-of-a-system", 16) == "a-very-lo…system"
