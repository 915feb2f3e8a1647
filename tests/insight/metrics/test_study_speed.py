"""The study of speed, with a process that is made up; and one real run of ours on the smallest trace."""

import gzip

import pytest

from wavetank.errors import DataUnavailableError, WavetankError
from wavetank.insight.metrics import study_speed
from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.interface import Answer
from wavetank.insight.metrics.planted import planted
from wavetank.insight.metrics.rivals import HolisticTraceAnalysis, PlainJson
from wavetank.insight.metrics.study_speed import TraceSpeed


@pytest.fixture
def trace(tmp_path, monkeypatch):
    made = planted(50, 0)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(made.write(tmp_path / "a.json").read_bytes()))
    monkeypatch.setattr(study_speed.datasets, "find", lambda *words: path)
    return made, (tmp_path / "a.json").stat().st_size


def said(monkeypatch, shares, cpu_s=(0.3, 0.1, 0.2)):
    asked = []

    def answers(system, files, **more):
        asked.append(more)
        return [Answer(shares, list(cpu_s), 1 << 20)]

    monkeypatch.setattr(study_speed, "answers", answers)
    return asked


def figures(system, **settings):
    return {name: value for name, value, _ in TraceSpeed(**settings).measure(system, 0).rows}


def test_the_median_counts_and_memory_is_held_against_the_unpacked_file(trace, monkeypatch):
    made, size = trace
    asked = said(monkeypatch, made.truth)
    found = figures(PlainJson(), repeats=7)
    assert found == pytest.approx({"cpu_s": 0.2, "peak_of_file": (1 << 20) / size, "mb_per_s": size / 1e6 / 0.2})
    assert asked[0]["repeats"] == 7


def test_a_fast_wrong_answer_ends_the_run(trace, monkeypatch):
    made, _ = trace
    said(monkeypatch, {**made.truth, "idle_fraction": made.truth["idle_fraction"] * 1.05})
    with pytest.raises(WavetankError, match="another idle_fraction"):
        figures(PlainJson())
    said(monkeypatch, {})
    with pytest.raises(WavetankError, match="another"):
        figures(PlainJson())


def test_ours_also_says_how_fast_the_replay_runs(trace, monkeypatch):
    said(monkeypatch, trace[0].truth)
    assert figures(CclBench())["nodes_per_s"] > 1000


def test_a_peer_that_is_not_here_has_no_figures(trace, monkeypatch):
    monkeypatch.setattr(study_speed, "outside_python", lambda named: "")
    assert figures(HolisticTraceAnalysis()) == {}
    assert "not here" in TraceSpeed().notes()[0]


def test_the_smallest_public_trace_is_read_in_a_process():
    try:
        TraceSpeed(trace="amd_mi250_minitoy").check()
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    found = figures(CclBench(), trace="amd_mi250_minitoy", repeats=1)
    assert 0 < found["cpu_s"] < 5
    assert TraceSpeed(trace="amd_mi250_minitoy").data()["kineto-traces"].startswith("7a4d")
