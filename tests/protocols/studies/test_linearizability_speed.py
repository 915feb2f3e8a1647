"""Study linearizability-speed."""

from __future__ import annotations

import pytest

from wavetank.errors import DataUnavailableError, WavetankError
from wavetank.protocols.consistency.check import HistoryCheck
from wavetank.protocols.consistency.wing_gong_lowe import WingGongLowe
from wavetank.protocols.studies.linearizability_speed import LinearizabilitySpeed
from wavetank.study import Trial
from wavetank.workloads import datasets

GENERATED = ("generated-ok", "generated-bad")


def small(**settings):
    return LinearizabilitySpeed(cases_chosen=GENERATED, clients=8, operations=120, keys=4, rounds=1, **settings)


def test_contenders_are_timed_on_the_same_histories():
    study = small()
    built = {"light-cone": HistoryCheck(), "wing-gong-lowe": WingGongLowe()}
    for trial in study.trials(tuple(built), [0]):
        records = study.run(trial, built)
        assert {record.system for record in records if record.metric == "time_s"} == set(built)
        assert all(record.value > 0 for record in records)


def test_a_wrong_verdict_is_no_contender():
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
    with pytest.raises(DataUnavailableError):
        LinearizabilitySpeed().check()


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
        study.verify(case, "light-cone", study.contender(HistoryCheck(), case)())
    trial = Trial(systems=("light-cone",), seed=0, case=cases[1])
    assert study.run(trial, {"light-cone": HistoryCheck()})
