"""Study linearizability-speed."""

from __future__ import annotations

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.errors import BadValueError, DataUnavailableError, WavetankError
from wavetank.protocols.histories.study_speed import LinearizabilitySpeed
from wavetank.protocols.histories.wing_gong_lowe import WingGongLowe
from wavetank.study.study import Trial
from wavetank.workloads import datasets

GENERATED = ("generated-ok", "generated-bad")


def small(**settings):
    return LinearizabilitySpeed(cases_chosen=GENERATED, clients=8, operations=120, keys=4, rounds=1, **settings)


def test_systems_are_timed_on_the_same_histories():
    study = small()
    built = {"light-cone": HistoryCheck(), "wing-gong-lowe": WingGongLowe()}
    for trial in study.trials(tuple(built), [0]):
        records = study.run(trial, built)
        assert {record.system for record in records if record.metric == "time_s"} == set(built)
        assert all(record.value > 0 for record in records if record.metric == "time_s")


def test_a_wrong_verdict_takes_no_part():
    study = small()
    case = study.case("generated-bad", 0)
    with pytest.raises(WavetankError, match="wrong"):
        study.verify(case, "any", ["holds"])
    with pytest.raises(WavetankError, match="gave up"):
        study.verify(case, "any", ["undecided"])
    with pytest.raises(WavetankError, match="every history"):
        study.verify(case, "any", [])
    study.verify(case, "any", ["violated"])


def test_generated_cases_need_no_data_set(monkeypatch, tmp_path):
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small().check()
    assert small().data() == {}
    study = LinearizabilitySpeed()
    study.check()
    assert study.case_names(0) == GENERATED and study.data() == {}
    assert "etcd-logs, c10-ok, c10-bad, c50-ok, c50-bad" in study.notes()[0] and "data fetch" in study.notes()[0]
    with pytest.raises(DataUnavailableError):
        LinearizabilitySpeed(cases_chosen=("c10-ok", "etcd-logs")).check()


def test_no_case_at_all_is_refused():
    with pytest.raises(BadValueError, match="No histories"):
        LinearizabilitySpeed(cases_chosen=()).check()


def test_a_case_of_which_a_file_is_missing_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "consistency-histories" / "jepsen-etcd"
    folder.mkdir(parents=True)
    (folder / "expected.csv").write_text("file,linearizable\netcd_000.log,true\netcd_001.log,true\n")
    (folder / "etcd_000.log").write_text("INFO  jepsen.util - 0 :invoke :write 1\n")
    study = LinearizabilitySpeed(cases_chosen=("etcd-logs", "generated-ok"))
    assert study.case_names(0) == ("generated-ok",)
    (folder / "etcd_001.log").write_text("INFO  jepsen.util - 0 :invoke :write 1\n")
    assert study.case_names(0) == ("etcd-logs", "generated-ok") and study.data()


def test_a_system_that_gives_up_has_a_row_that_says_so():
    study = small()
    built = {"light-cone": HistoryCheck(), "wing-gong-lowe": WingGongLowe(steps_at_most=10)}
    records = study.run(Trial(systems=tuple(built), seed=0, case="generated-ok"), built)
    gave_up = {record.system: record.value for record in records if record.metric == "gave_up"}
    assert gave_up == {"light-cone": 0, "wing-gong-lowe": 1}
    assert {record.system for record in records if record.metric == "time_s"} == {"light-cone"}


RECORDED = ("etcd-logs", "c10-ok", "c10-bad", "c50-ok", "c50-bad")


@pytest.mark.parametrize("cases", [RECORDED[:3], RECORDED[3:]])
def test_recorded_cases_are_judged_right(cases):
    try:
        for name in cases:
            datasets.find("consistency-histories", f"kv-append/{name}.txt" if name != "etcd-logs" else None)
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    study = LinearizabilitySpeed(cases_chosen=cases, rounds=1)
    study.check()
    assert study.data()
    for name in study.case_names(0):
        case = study.case(name, 0)
        study.verify(case, "light-cone", study.prepared_call(HistoryCheck(), case)())
    trial = Trial(systems=("light-cone",), seed=0, case=cases[1])
    assert study.run(trial, {"light-cone": HistoryCheck()})
