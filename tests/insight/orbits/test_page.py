"""The page of element histories: one offline document with a drawing per satellite and the evidence."""

import re

from tests.insight.orbits.made import record, written
from tests.insight.orbits.test_diagnose import file

from wavetank.insight.orbits.diagnose import OrbitDiagnosis


def test_the_page_shows_altitude_marks_and_evidence(tmp_path):
    page = OrbitDiagnosis().diagnose(file(tmp_path, jumps=[(50, 60.0), (120, -40.0)], noise_m=0.3)).page
    assert page.startswith("<!doctype html>") and "satellite 7" in page and "manoeuvres" in page
    assert page.count("<svg") == 1 and "2024-01-01" in page
    assert not re.search(r"(?:src|href)=.https?:", page)


def test_a_history_of_decades_is_drawn_over_the_whole_width(tmp_path):
    records = [record(epoch=f"{year:02d}001.00000000", motion=14.2 + 1e-4 * year) for year in range(50)]
    page = OrbitDiagnosis().diagnose(written(tmp_path, "long.tle", records)).page
    xs = [float(each) for each in re.findall(r"[ML](-?[\d.]+) ", re.search(r'd="(M[^"]*)"', page)[1])]
    assert len(xs) == 50 and xs == sorted(xs)
    assert (xs[0], xs[-1]) == (110.0, 1168.0)


def test_twelve_satellites_are_drawn_at_most(tmp_path):
    records = [record(number=at, epoch=f"24{day:03d}.50000000") for at in range(1, 15) for day in range(1, 3)]
    page = OrbitDiagnosis().diagnose(written(tmp_path, "many.tle", records)).page
    assert page.count("<svg") == 12 and "The first 12 of 14 are drawn." in page


def test_one_record_is_a_point(tmp_path):
    assert "<svg" in OrbitDiagnosis().diagnose(written(tmp_path, "one.tle", [record()])).page
