"""The page draws what intervals hold, names what is not drawn, and escapes what files say."""

import numpy as np
import pytest
from tests.insight.traces.test_measures import PLANTED, job, kernel, ranks

from wavetank.insight.traces import page
from wavetank.insight.traces.diagnose import KinetoDiagnosis
from wavetank.insight.traces.measures import TraceSource


def test_columns_are_filled_by_the_share_that_intervals_take(tmp_path):
    rank = TraceSource(job(tmp_path, PLANTED)).rank(0)
    filled = page._filled(rank.computation, rank)
    assert filled.sum() / filled.size == pytest.approx(160 / 200, abs=1e-5)
    assert (filled[:100] == 1).all()
    assert ((filled >= 0) & (filled <= 1)).all()
    assert (page._filled(TraceSource(job(tmp_path, [kernel("a", 0, 9)])).rank(0).copies, rank) == 0).all()


def test_a_span_of_few_nanoseconds_is_drawn(tmp_path):
    rank = TraceSource(job(tmp_path, [kernel("a", 0, 0.003)])).rank(0)
    assert np.nan_to_num(page._filled(rank.kernels, rank)).max() == 1


def test_the_page_has_the_timeline_the_findings_and_how_figures_are_read(tmp_path):
    diagnosis = KinetoDiagnosis().diagnose(job(tmp_path, [*PLANTED, kernel("<script>x</script>", 200, 900)]))
    assert "<svg" in diagnosis.page
    assert "exposed-copies" not in diagnosis.page
    assert "one-kernel, rank 0" in diagnosis.page
    assert "Union of communication kernels / union of all kernels" in diagnosis.page
    assert "<script>" not in diagnosis.page
    assert "http" not in diagnosis.page.replace("http://www.w3.org/2000/svg", "")


def test_of_many_ranks_the_first_are_drawn(tmp_path):
    shown = KinetoDiagnosis().diagnose(ranks(tmp_path, [(5,)] * 9)).page
    assert "The first 8 of 9 ranks are drawn." in shown
    assert "No " not in shown.split("</svg>")[0]


def test_nothing_found_is_said(tmp_path):
    events = [kernel(name, 20 * at, 20) for at, name in enumerate("abcdefgh")]
    assert "Nothing was found." in KinetoDiagnosis().diagnose(job(tmp_path, events)).page
