"""Diagnoses of histories: planted faults are named with their times, and every figure recomputes."""

import numpy as np
import pytest

from wavetank.cli import diagnose as command
from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadFileError, BadValueError
from wavetank.files import head_of
from wavetank.insight.series import histories
from wavetank.insight.series.decisions import write_decisions
from wavetank.insight.series.diagnose import LABELS, SeriesDiagnosis
from wavetank.insight.series.interface import Decisions
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

DAY = np.arange(700)
NOISE = 100.0 * np.exp(0.02 * stream(0, "diagnose").standard_normal(700))


def written(tmp_path, *columns, name="m.csv"):
    path = tmp_path / name
    days = np.datetime64("2024-01-01") + np.arange(len(columns[0]))
    rows = [",".join(["" if each != each else repr(float(each)) for each in row]) for row in zip(*columns, strict=True)]
    head = ",".join(["date", *(f"s{at}" for at in range(len(columns)))])
    path.write_text("\n".join([head, *(f"{day},{row}" for day, row in zip(days, rows, strict=True))]) + "\n")
    return path


def found(path, **settings):
    analyser = SeriesDiagnosis(**settings)
    diagnosis = analyser.diagnose(path)
    assert unsupported(diagnosis, analyser.source(path)) == []
    return diagnosis


def test_noise_gets_no_finding(tmp_path):
    diagnosis = found(written(tmp_path, NOISE))
    assert (diagnosis.findings, diagnosis.too_little) == ((), ())
    assert {each.name: each.value for each in diagnosis.facts}["values"] == 700


PLANTED = {
    "level-shift": np.where(DAY < 400, 1.0, 1.3) * NOISE,
    "cycle": NOISE * np.exp(0.08 * np.sin(2 * np.pi * DAY / 7)),
    "intermittent-cycle": NOISE * np.exp(0.2 * np.sin(2 * np.pi * DAY / 7) * (DAY < 350)),
    "trend": NOISE * np.exp(0.4 * DAY / 700),
    "outliers": np.where(DAY % 50 == 3, 2.0, 1.0) * NOISE,
    "gaps": np.where((DAY > 300) & (DAY < 350), np.nan, NOISE),
}


@pytest.mark.parametrize("label", LABELS)
def test_a_planted_fault_is_named(tmp_path, label):
    diagnosis = found(written(tmp_path, PLANTED[label]))
    assert label in {each.label for each in diagnosis.findings}
    assert {each.where for each in diagnosis.findings} == {"s0"}
    assert len(diagnosis.findings) <= 2


def test_a_shift_has_its_date_and_its_size(tmp_path):
    (shift,) = found(written(tmp_path, PLANTED["level-shift"])).findings
    figures = {each.name: each.value for each in shift.evidence}
    assert figures["shift_at"] in ("2025-02-03", "2025-02-04", "2025-02-05")
    assert figures["shift_share"] == pytest.approx(0.3, abs=0.03)
    assert (shift.severity, shift.confidence) == ("warning", 1.0)
    assert not found(written(tmp_path, PLANTED["level-shift"]), shift=0.5).findings


def test_the_words_of_a_cycle_are_days(tmp_path):
    (cycle,) = found(written(tmp_path, PLANTED["cycle"])).findings
    assert "repeats every 7 days" in cycle.sentence(cycle.says)


def test_series_with_values_below_zero_are_judged_by_differences(tmp_path):
    diagnosis = found(written(tmp_path, PLANTED["level-shift"] - 100.0))
    (shift,) = [each for each in diagnosis.findings if each.label == "level-shift"]
    assert {each.name: each.value for each in shift.evidence}["shift"] == pytest.approx(30, abs=3)


def test_too_short_and_empty_series_are_told_apart_from_healthy_ones(tmp_path):
    short, none = NOISE[:40].copy(), np.full(40, np.nan)
    short[15:] = np.nan
    diagnosis = found(written(tmp_path, NOISE[:40], short, none))
    assert [each.split(":")[0] for each in diagnosis.too_little] == ["s1", "s2"]
    assert not diagnosis.findings or {each.where for each in diagnosis.findings} == {"s0"}
    alone = found(written(tmp_path, none))
    assert alone.too_little
    assert not alone.page
    assert command._exit_code([alone]) == 2


def test_series_are_chosen_by_words_and_by_number(tmp_path):
    path = written(tmp_path, NOISE[:60], NOISE[60:120], NOISE[120:180])
    assert {each.name: each.value for each in found(path, most=2).facts}["series_left_out"] == 1
    assert {each.of["series"] for each in found(path, match="s2").facts if each.of} == {"s2"}
    with pytest.raises(BadValueError):
        SeriesDiagnosis(match="nothing").diagnose(path)


def test_decisions_of_a_file_are_followed(tmp_path):
    path = written(tmp_path, PLANTED["level-shift"])
    write_decisions(tmp_path / "d.toml", {"s0": Decisions(periods=(7.0,), changes=())})
    diagnosis = found(path, decisions=str(tmp_path / "d.toml"))
    assert {each.name: each.value for each in diagnosis.facts}["shifts"] == 0
    assert {each.name: each.value for each in diagnosis.facts}["cycles"] == 1


def test_foreign_files_are_not_taken(tmp_path):
    (tmp_path / "a.csv").write_text("kernel,retiring\nA,0.1\nB,0.2\n")
    assert not SeriesDiagnosis.takes(tmp_path / "a.csv", head_of(tmp_path / "a.csv"))
    with pytest.raises(BadFileError):
        SeriesDiagnosis().diagnose(tmp_path / "a.csv")
    path = written(tmp_path, NOISE)
    assert SeriesDiagnosis.takes(path, head_of(path))


@pytest.mark.skipif(not histories.is_here(), reason="data set lambda-cold-starts is not here")
def test_the_real_file_says_when_a_platform_changed():
    path = datasets.find(histories.DATA, histories.FILE)
    diagnosis = found(path, match="python3.11 arm64 128 avg_cold_start_ms")
    shift = next(each for each in diagnosis.findings if each.label == "level-shift")
    assert {each.name: each.value for each in shift.evidence}["shift_at"] == "2024-03-20"
    assert {"gaps", "level-shift"} <= {each.label for each in diagnosis.findings}
    assert command._kind_of(path, "").name == "series"
