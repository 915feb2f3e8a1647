"""Diagnoses of tables: planted causes are named, every line recomputes, and too little is said to be so."""

import dataclasses

import pytest
from tests.insight.kernels.test_source import BINDS, written

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.insight.kernels.diagnose import TopDownDiagnosis
from wavetank.workloads import datasets


def diagnosed(path, **settings):
    analyser = TopDownDiagnosis(**{"rounds": 20, **settings})
    diagnosis = analyser.diagnose(path)
    assert unsupported(diagnosis, analyser.source(path)) == []
    return diagnosis


def labels(diagnosis):
    return {
        each.where.removeprefix("kernel "): each.label for each in diagnosis.findings if each.label != "no-counterpart"
    }


def test_planted_causes_are_named(tmp_path):
    found = diagnosed(written(tmp_path))
    assert labels(found) == {
        "DRAM9": "memory-bound", "DRAM8": "memory-bound", "chain": "core-bound", "branchy": "bad-speculation",
        "calls": "frontend-bound", "busy": "retiring",
    }  # fmt: skip
    severities = {
        each.where.removeprefix("kernel "): each.severity for each in found.findings if each.severity == "warning"
    }
    assert set(severities) == set(BINDS) - {"busy"}
    says = {each.where: each.sentence(each.says) for each in found.findings}
    assert "Memory takes 80 %" in says["kernel DRAM9"]
    assert "DRAM8 most, clearly" in says["kernel DRAM9"]


def test_kernels_that_resemble_none_are_named_and_settings_move_what_counts(tmp_path):
    alone = {each.where for each in diagnosed(written(tmp_path)).findings if each.label == "no-counterpart"}
    assert alone == {"kernel chain", "kernel branchy", "kernel calls", "kernel busy"}
    assert not [each for each in diagnosed(written(tmp_path), threshold=0.0).findings if each.label == "no-counterpart"]
    assert not [each for each in diagnosed(written(tmp_path), grave=0.95).findings if each.severity == "warning"]
    for wrong in ({"grave": 1.5}, {"threshold": float("nan")}, {"rounds": 1}):
        with pytest.raises(BadValueError):
            TopDownDiagnosis(**wrong)


def test_an_ambiguous_set_is_said_to_be_one(tmp_path):
    found = diagnosed(written(tmp_path, {**BINDS, "DRAM7": BINDS["DRAM8"]}))
    (one,) = [each for each in found.findings if each.where == "kernel DRAM9"]
    assert "2 kernels may be its nearest" in one.sentence(one.says)


def test_too_little_is_said_to_be_so(tmp_path):
    once = diagnosed(written(tmp_path, runs=1))
    assert once.findings == ()
    assert len(once.too_little) == len(BINDS)
    assert once.page == ""
    single = diagnosed(written(tmp_path, {"one": BINDS["busy"]}))
    assert labels(single) == {"one": "retiring"}
    assert "no other kernel" in single.too_little[0]


def test_gaps_take_nothing_from_the_others(tmp_path):
    # One kernel has many runs, one nothing but zeros, and the only times are those of one that is not judged.
    rows = [f"many,{run},O3,,{BINDS['calls']}" for run in range(40)]
    rows += [f"zeros,{run},O3,,0,0,0,0,0,0,0,0,0" for run in range(4)]
    path = written(tmp_path, {name: BINDS[name] for name in ("DRAM9", "DRAM8")}, extra=rows)
    text = path.read_text().replace("O3,1000,", "O3,,").replace("O3,2000,", "O3,,")
    path.write_text(f"{text}\nonce,0,O3,5,{BINDS['busy']}")
    found = diagnosed(path)
    assert labels(found) == {"DRAM9": "memory-bound", "DRAM8": "memory-bound", "many": "frontend-bound"}
    assert set(found.too_little) == {
        "kernel once: 1 runs with all shares, 3 are needed.", "kernel zeros: its shares are zero.",
    }  # fmt: skip
    assert "covered_share" not in {each.name for each in found.facts}
    (one,) = [each for each in found.findings if each.where == "kernel DRAM9"]
    assert {each.name: each.value for each in one.evidence}["nearest"] == "DRAM8"


def test_a_figure_that_the_table_does_not_have_is_found_out(tmp_path):
    analyser, path = TopDownDiagnosis(rounds=20), written(tmp_path)
    diagnosis = analyser.diagnose(path)
    first = diagnosis.findings[0]
    wrong = dataclasses.replace(first.evidence[1], value=0.123)
    forged = dataclasses.replace(first, evidence=(first.evidence[0], wrong, *first.evidence[2:]))
    found = unsupported(dataclasses.replace(diagnosis, findings=(forged,)), analyser.source(path))
    assert len(found) == 1


def test_a_suite_can_be_named_and_foreign_tables_are_refused(tmp_path):
    code = written(tmp_path, {"mine": BINDS["DRAM9"]}, name="code.csv")
    (one,) = diagnosed(code, suite=str(written(tmp_path))).findings
    assert "DRAM9 most, clearly: similarity 1" in one.sentence(one.says)
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("kernel,retiring,core_bound\na,1,0\n")
    with pytest.raises(BadFileError, match="no column 'frontend_bound'"):
        TopDownDiagnosis().diagnose(foreign)


def test_tables_are_taken_by_their_header():
    assert TopDownDiagnosis.takes(None, b"run,kernel,topdown.retiring,topdown.core_bound\n")
    assert not TopDownDiagnosis.takes(None, b"time,value\n")


def test_the_real_table_is_explained():
    try:
        path = datasets.find("rajaperf-topdown", "cpu_topdown_gcc.csv.gz")
    except DataUnavailableError:
        pytest.skip("needs the data set rajaperf-topdown")
    found = diagnosed(path)
    named = labels(found)
    assert len(named) == 67
    assert named["Stream_TRIAD"] == "memory-bound"
    assert named["Apps_VOL3D"] == "retiring"
    (twin,) = [each for each in found.findings if each.where == "kernel Apps_LTIMES" and each.label == "retiring"]
    assert "Apps_LTIMES_NOVIEW most" in twin.sentence(twin.says)
    assert found.page.startswith("<!doctype html>")
