"""Ingestion: order, duplicates and delays change nothing; what is no reading does not count."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.facility import ingest
from wavetank.insight.facility.ingest import Ingestion, Mean, Rules

START = 1_800_000_000
TOPIC = "site/rack1/s1/power"


def message(ts: float, value: float, unit: str = "W") -> str:
    return json.dumps({"ts": ts, "value": value, "unit": unit})


def taken(arrivals: list[tuple[float, str, str]], until_s: float, rules: Rules | None = None) -> list[Mean]:
    ingestion, found = Ingestion(rules), []
    for now_s, topic, payload in sorted(arrivals):
        found += ingestion.close(now_s)
        ingestion.take(topic, payload, now_s)
    return found + ingestion.close(until_s + 300)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_order_duplicates_and_delays_below_the_window_change_no_aggregate(seed: int) -> None:
    draws = random.Random(seed)
    sent = [(ts, f"a/b/s{server}/{metric}", draws.uniform(20, 30)) for server in range(3)
            for metric in ("power", "inlet") for ts in range(START, START + 600, 10)]  # fmt: skip
    unit = {"power": "W", "inlet": "C"}
    plain = [(float(ts), topic, message(ts, value, unit[topic[7:]])) for ts, topic, value in sent]
    mixed = []
    for ts, topic, payload in plain:
        for _ in range(draws.choice((1, 1, 2, 3))):
            mixed.append((ts + draws.uniform(0, 299), topic, payload))
    assert taken(plain, START + 600) == taken(mixed, START + 600)
    means = {(each.topic, each.minute): each.value for each in taken(mixed, START + 600) if "power" in each.topic}
    for (topic, minute), value in means.items():
        own = [v for ts, t, v in sent if t == topic and ts // 60 == minute]
        assert value == math.fsum(own) / len(own)
    assert len(means) == 3 * 10


def test_a_message_that_comes_after_the_window_is_late_and_changes_nothing() -> None:
    ingestion = Ingestion()
    assert ingestion.take(TOPIC, message(START, 200.0), START) == ingest.TAKEN
    assert ingestion.take(TOPIC, message(START + 1, 200.0), START + 359.0) == ingest.TAKEN
    assert ingestion.take(TOPIC, message(START + 2, 900.0), START + 360.0) == ingest.LATE
    assert ingestion.close(START + 359.9) == []
    assert ingestion.close(START + 360.0) == [Mean(TOPIC, START // 60, 200.0, 2)]
    assert ingestion.take(TOPIC, message(START + 3, 900.0), START + 340.0) == ingest.LATE
    assert ingestion.close(START + 900.0) == []


def test_what_is_held_has_a_limit_and_room_comes_back_when_minutes_are_closed() -> None:
    ingestion = Ingestion(Rules(held=3))
    said = [ingestion.take(f"a/b/s{each % 2}/power", message(START + each, 200.0), START + 4) for each in range(5)]
    assert said == [ingest.TAKEN] * 3 + [ingest.TOO_MANY] * 2
    assert sum(each.readings for each in ingestion.close(START + 360)) == 3
    for each in range(3):
        assert ingestion.take(TOPIC, message(START + 360 + each, 200.0), START + 370) == ingest.TAKEN


@pytest.mark.parametrize(
    ("topic", "payload", "verdict"),
    [
        (TOPIC, message(START, 6000.0), ingest.RANGE), (TOPIC, message(START, float("nan")), ingest.RANGE),
        (TOPIC, message(START, float("inf")), ingest.RANGE), (TOPIC, message(START + 61, 200.0), ingest.FUTURE),
        (TOPIC, message(float("inf"), 200.0), ingest.FUTURE), (TOPIC, message(float("nan"), 1.0), ingest.FUTURE),
        (TOPIC, message(-5, 200.0), ingest.MALFORMED), (TOPIC, message(START, 200.0, "kW"), ingest.MALFORMED),
        (TOPIC, '{"ts": 1, "value": true, "unit": "W"}', ingest.MALFORMED), (TOPIC, "[]", ingest.MALFORMED),
        (TOPIC, '{"ts": "now", "value": 3, "unit": "W"}', ingest.MALFORMED), (TOPIC, "no json", ingest.MALFORMED),
        (TOPIC, "[" * 900, ingest.MALFORMED), (TOPIC, message(START, 1.0) + " " * 1024, ingest.MALFORMED),
        (TOPIC, "3", ingest.MALFORMED), ("a/b/power", message(START, 200.0), ingest.MALFORMED),
        ("a/b/c/weight", message(START, 200.0), ingest.MALFORMED),
        ("a/b/\n/power", message(START, 2.0), ingest.MALFORMED),
        (TOPIC, b"\xff\xfe", ingest.MALFORMED), (TOPIC, '{"ts": 1e999, "value": 2, "unit": "W"}', ingest.FUTURE),
    ],
)  # fmt: skip
def test_what_is_no_reading_is_counted_and_leaves_nothing_behind(topic: str, payload: str, verdict: str) -> None:
    ingestion = Ingestion()
    assert ingestion.take(topic, payload, START) == verdict
    assert ingestion.counts == {ingest.TAKEN: 0, verdict: 1}
    assert ingestion.close(START + 10_000) == []


@settings(max_examples=300, deadline=None)
@given(payload=st.one_of(st.binary(max_size=80), st.text(max_size=80)), topic=st.text(max_size=40))
def test_any_message_has_a_verdict(payload: bytes | str, topic: str) -> None:
    ingestion = Ingestion()
    ingestion.take(topic, payload, START)
    assert sum(ingestion.counts.values()) == 1


def test_a_value_that_jumps_is_left_out_and_believed_when_it_stays() -> None:
    inlet = "a/b/s/inlet"
    values = [25.0, 25.1, 55.0, 25.0, 40.0, 40.0, 40.1]
    arrivals = [(float(START + 5 * at), inlet, message(START + 5 * at, value, "C")) for at, value in enumerate(values)]
    (found,) = taken(arrivals, START + 60)
    # 55 and the way back are jumps; so is 40, and what follows it is not.
    assert (found.value, found.readings) == (pytest.approx((25.0 + 25.1 + 40.0 + 40.1) / 4), 4)


def test_a_sensor_that_is_stuck_is_silent_from_its_31st_equal_reading_on() -> None:
    arrivals = [(float(START + 4 * at), TOPIC, message(START + 4 * at, 250.0)) for at in range(45)]
    found = taken(arrivals, START + 180)
    assert [each.readings for each in found] == [15, 15]
    moves = [(float(START + 4 * at), TOPIC, message(START + 4 * at, 250.0 + at % 2)) for at in range(45)]
    assert [each.readings for each in taken(moves, START + 180)] == [15, 15, 15]
    load = [(now, "a/b/s/load", message(now, 0.5, "")) for now, _, _ in arrivals]
    assert [each.readings for each in taken(load, START + 180)] == [15, 15, 15]


def test_topics_and_readings_of_a_minute_have_limits() -> None:
    ingestion = Ingestion(Rules(topics=2, per_minute=3))
    verdicts = [ingestion.take(f"a/b/s{at}/power", message(START, 1.0), START) for at in range(3)]
    assert verdicts == [ingest.TAKEN, ingest.TAKEN, ingest.TOO_MANY]
    verdicts = [ingestion.take("a/b/s0/power", message(START + at / 10, 1.0), START) for at in range(1, 4)]
    assert verdicts == [ingest.TAKEN, ingest.TAKEN, ingest.TOO_MANY]


def test_strange_rules_and_times_are_refused() -> None:
    with pytest.raises(BadValueError):
        Rules(late_s=-1)
    with pytest.raises(BadValueError, match="no time"):
        Ingestion().close(float("nan"))
