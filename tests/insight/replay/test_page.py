"""The page of a diagnosis stands alone and shows the replay."""

from tests.insight.replay.test_checks import PLAN, program
from tests.insight.replay.test_diagnose import worker
from tests.insight.replay.test_reading import job

from wavetank.insight.replay.diagnose import ChakraDiagnosis


def test_the_replay_is_drawn_with_findings_and_nothing_from_outside(tmp_path):
    page = ChakraDiagnosis().diagnose(job(tmp_path, [worker(50_000), worker(90_000)])).page
    assert page.count("<svg") >= 1
    assert "late-rank" in page
    assert "rank 1" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    assert "class_" not in page


def test_traces_that_cannot_be_replayed_have_their_findings_without_a_picture(tmp_path):
    page = ChakraDiagnosis().diagnose(job(tmp_path, [program(PLAN)] * 3 + [program(PLAN[1:])])).page
    assert "mismatched-collective" in page
    assert "The replay" not in page


def test_names_are_escaped(tmp_path):
    from wavetank.workloads.chakra_writing import made_node, made_trace

    trace = made_trace([made_node(0, "<b>x", "compute", duration_ns=9), made_node(1, "y", "compute", duration_ns=3)])
    page = ChakraDiagnosis().diagnose(job(tmp_path, [trace])).page
    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page
