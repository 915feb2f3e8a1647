"""The study: what it asks of each system, what it counts, and settings that there are not."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures import study as module
from wavetank.serving.rank_failures.eep import PartialRecovery
from wavetank.serving.rank_failures.rivals import FullRestart, MaskOnly
from wavetank.serving.rank_failures.study import RankFailures
from wavetank.serving.rank_failures.trials import Outcome


def test_systems_meet_the_same_fault_and_have_their_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def fault(settings: dict[str, Any], **given: Any) -> Outcome:
        met.append((settings, given))
        return Outcome(kills=2, wrong=len(met), copied=4, pause_s=[0.5], whole_s=[0.75], answers=8)

    monkeypatch.setattr(module, "one_fault", fault)
    monkeypatch.setattr(module, "step_times", lambda *given, **named: {"table": 2.0, "constant": 1.5, "fixed": 1.0})
    study = RankFailures(tokens=9)
    (trial,) = study.trials(["a", "b", "c"], [3])
    records = study.run(trial, {"a": PartialRecovery(replicas=1), "b": FullRestart(), "c": MaskOnly()})
    found = {(each.system, each.metric): each.value for each in records}
    assert [(each["repair"], each["replicas"], each["host"]) for each, _ in met] == [
        ("experts", 1, True), ("restart", 2, False), ("nothing", 2, True),
    ]  # fmt: skip
    assert len({str(given) for _, given in met}) == 1 and met[0][1]["count"] == 9
    assert [found[name, "wrong_answers"] for name in "abc"] == [1, 2, 3]
    assert [found[name, "step_s"] for name in "abc"] == [2.0, 1.0, 2.0]
    assert (found["a", "pause_s"], found["a", "everybody_s"], found["a", "copied_experts"]) == (0.5, 0.75, 4)
    assert found["a", "modelled_pause_s"] < found["a", "modelled_downtime_s"] < found["b", "modelled_pause_s"]


def test_many_kills_are_a_setting_and_time_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "many_faults", lambda *given, **named: Outcome(kills=named["kills"] + 1))
    study = RankFailures(kills=500, rounds=0)
    records = study.run(study.trials(["a"], [0])[0], {"a": PartialRecovery()})
    found = {each.metric: each.value for each in records}
    assert (found["kills"], found["moved_tables"]) == (501, 0) and not {"pause_s", "step_s"} & set(found)


@pytest.mark.parametrize(
    "given", [{"failed": 4}, {"wide_failed": 32}, {"replicas": 5}, {"wide_ranks": 2, "replicas": 3}, {"failed": 9}]
)
def test_faults_that_nobody_survives_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        RankFailures(**given).check()


def test_assumed_times_are_settings_and_notes_say_so() -> None:
    wide = RankFailures(start_s=1.0, group_s=2.0, capture_s=3.0, disk_gb_per_s=4.0, timeout_s=0.5).wide()
    assert (wide.start_s, wide.group_s, wide.capture_s, wide.detect_s) == (1.0, 2.0, 3.0, 0.5)
    assert wide.rates.disk_bytes_per_s == 4 * 10**9
    assert any("assumed" in each for each in RankFailures().notes())
