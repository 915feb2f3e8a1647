"""The study of ingestion: messages are as described, and speeds and shares are those of the definition."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from wavetank.errors import WavetankError
from wavetank.insight.facility import study_ingest
from wavetank.insight.facility.ingest import Mean
from wavetank.insight.facility.intakes import InOrder, LateWindow
from wavetank.insight.facility.study_ingest import FacilityIngest, wrong_share

STUDY = FacilityIngest(servers=(2, 20), messages=600)


def test_messages_come_at_least_once_and_less_than_five_minutes_late() -> None:
    sent, messages = STUDY.made(20, 3, 5)
    assert len(sent) == 20 * 3 * 3
    counts = Counter((each.topic, json.loads(each.payload)["ts"]) for each in messages)
    assert len(counts) == 20 * 3 * 18 and set(counts.values()) == {1, 2}
    late = [each.now_s - json.loads(each.payload)["ts"] for each in messages]
    assert min(late) >= 0 and 200 < max(late) < 300
    assert [each.now_s for each in messages] == sorted(each.now_s for each in messages)


def test_figures_are_messages_per_processor_time_and_wrong_means(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(study_ingest.time, "process_time", lambda: float(next(clock)))
    found = {(name, *at.values()): value for name, value, at in STUDY.measure(LateWindow(), 1).rows}
    for servers, minutes in ((2, 17), (20, 2)):
        assert found["messages_per_s", servers] == len(STUDY.made(servers, minutes, 1)[1]) / 2
        assert found["wrong_means", servers] == 0.0
    assert found["messages_per_s",] == found["messages_per_s", 20]
    assert found["slowdown",] == found["messages_per_s", 2] / found["messages_per_s", 20]
    monkeypatch.setattr(study_ingest.time, "process_time", lambda: 1.0)
    with pytest.raises(WavetankError, match="clock"):
        STUDY.measure(LateWindow(), 1)


def test_in_order_means_are_wrong_where_messages_come_late() -> None:
    found = {name: value for name, value, at in STUDY.measure(InOrder(), 1).rows if not at}
    assert found["wrong_means"] > 0.1


def test_missing_wrong_and_double_means_count_as_wrong() -> None:
    sent = {("a", 1): 2.0, ("a", 2): 3.0, ("b", 1): 4.0, ("b", 2): 5.0}
    given = [Mean("a", 1, 2.0, 1), Mean("a", 2, 3.1, 1), Mean("b", 1, 4.0, 1), Mean("b", 1, 4.0, 1)]
    assert wrong_share(given, sent) == 0.75
