"""Diagnoses of element histories: planted jumps, decay and gaps, and figures that recompute."""

import numpy as np
import pytest
from tests.insight.orbits.made import elements, record, written

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadTraceError, BadValueError, UnknownNameError
from wavetank.insight.orbits.diagnose import LABELS, OrbitDiagnosis, OrbitSource


def file(folder, name="a.tle", days=None, number=7, **made):
    of = elements(**made)
    days = range(1, len(of) + 1) if days is None else days
    return written(folder, name, [
        record(number=number, epoch=f"24{day:03d}.50000000", motion=motion) for day, motion in
        zip(days, of.mean_motion.tolist(), strict=False)
    ])  # fmt: skip


def found(path, **settings):
    analyser = OrbitDiagnosis(**settings)
    diagnosis = analyser.diagnose(path)
    assert unsupported(diagnosis, analyser.source(path)) == []
    assert {each.label for each in diagnosis.findings} <= set(LABELS)
    return diagnosis, {each.label: each for each in diagnosis.findings}


def test_a_quiet_orbit_gets_no_finding(tmp_path):
    diagnosis, labels = found(file(tmp_path, noise_m=1.0, records=200))
    assert not labels and not diagnosis.too_little
    assert [each.value for each in diagnosis.facts][:2] == [1, 200]


def test_planted_jumps_are_counted_dated_and_sized(tmp_path):
    _, labels = found(file(tmp_path, jumps=[(50, 60.0), (120, -40.0)], noise_m=0.3))
    by_name = {each.name: each.value for each in labels["manoeuvres"].evidence}
    assert by_name["manoeuvres"] == 2 and by_name["largest_change_m"] == pytest.approx(60, abs=2)
    # Record 120 is of the 121st day.
    assert by_name["last_manoeuvre"] == "2024-04-30 12:00 UTC" and by_name["clear_share"] == 1.0
    assert "2 records" in labels["manoeuvres"].sentence(labels["manoeuvres"].says)


def test_a_sinking_orbit_is_decay(tmp_path):
    _, labels = found(file(tmp_path, sink_m=600.0, noise_m=1.0, height_km=400.0))
    assert labels["decay"].evidence[0].value == pytest.approx(600, rel=0.01) and labels["decay"].confidence == 1.0
    assert "decay" not in found(file(tmp_path, sink_m=600.0), sinking_m_per_day=700.0)[1]


def test_a_gap_is_reported_with_its_length(tmp_path):
    _, labels = found(file(tmp_path, days=[*range(1, 60), *range(75, 200)], noise_m=0.5))
    assert labels["gap"].evidence[0].value == 16


def test_short_histories_have_too_little_to_say(tmp_path):
    diagnosis, labels = found(file(tmp_path, records=3))
    assert not labels and len(diagnosis.too_little) == 2
    assert found(file(tmp_path, records=1))[0].too_little


def test_a_folder_holds_satellites_and_none_twice(tmp_path):
    file(tmp_path, "a.tle", number=7)
    file(tmp_path, "b.txt", number=8)
    (tmp_path / "notes.txt").write_text("no elements")
    assert OrbitSource(tmp_path).quantity("satellites") == 2
    file(tmp_path, "c.tle", number=8)
    with pytest.raises(BadTraceError):
        OrbitSource(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadTraceError):
        OrbitSource(tmp_path / "empty")


def test_many_satellites_are_cut_and_it_is_said(tmp_path):
    records = [record(number=at, epoch=f"24{day:03d}.50000000") for at in range(1, 45) for day in range(1, 5)]
    diagnosis, _ = found(written(tmp_path, "many.tle", records))
    assert any("of 44 satellites the first 40" in each for each in diagnosis.too_little)


def test_unknown_quantities_satellites_and_settings_are_refused(tmp_path):
    source = OrbitSource(file(tmp_path))
    with pytest.raises(UnknownNameError):
        source.quantity("height")
    with pytest.raises(BadTraceError):
        source.quantity("records", satellite=99)
    assert source.how("longest_gap_d").startswith("Longest time")
    with pytest.raises(BadValueError):
        OrbitDiagnosis(times=float("nan"))
    assert OrbitDiagnosis.takes(tmp_path, (tmp_path / "a.tle").read_bytes()) and not OrbitDiagnosis.takes(
        tmp_path, b"{}"
    )
    assert np.isfinite(source.quantity("altitude_km", satellite=7))


def test_records_left_out_are_those_of_all_files(tmp_path):
    for number, name in ((7, "a.tle"), (8, "b.tle")):
        path = file(tmp_path, name, number=number, records=40)
        path.write_text(path.read_text() + "1 cut\n")
    assert OrbitSource(tmp_path).quantity("left_out") == 2
