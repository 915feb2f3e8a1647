"""The page draws values, levels, shifts and cycles, and escapes what files say."""

import numpy as np
from tests.insight.series.test_diagnose import NOISE, PLANTED, written

from wavetank.insight.series import page
from wavetank.insight.series.diagnose import SeriesDiagnosis


def test_the_page_has_pictures_findings_and_how_figures_are_read(tmp_path):
    path = written(tmp_path, PLANTED["level-shift"], PLANTED["cycle"])
    path.write_text(path.read_text().replace("s0", "<script>x</script>", 1))
    shown = SeriesDiagnosis().diagnose(path).page
    assert shown.count("<svg") == 2
    assert shown.count('class="line-warm dashed"') == 1
    assert "7 days" in shown
    assert "<script>" not in shown
    assert "Level after / level before, less 1" in shown
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")


def test_of_many_series_the_first_are_drawn(tmp_path):
    shown = SeriesDiagnosis(most=14).diagnose(written(tmp_path, *[NOISE[:60]] * 14)).page
    assert shown.count("<svg") == 12
    assert "The first 12 of 14 series are drawn." in shown


def test_lines_break_at_gaps_and_keep_extremes():
    assert page._line(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, True])).count("M") == 2
    long = np.zeros(100_000)
    long[77_777] = 500.0
    drawn = page._line(long, np.ones(100_000, bool))
    assert " 500.0" in drawn
    assert drawn.count("M") == 1
    assert drawn.count("L") < 3000
    assert page._line(long, np.zeros(100_000, bool)) == ""
