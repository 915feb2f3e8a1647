"""The study of metrics, with answers that are made up: wrong shares, missing ones, a peer that is not here."""

from dataclasses import dataclass

import pytest

from wavetank.errors import WavetankError
from wavetank.insight.metrics import study
from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.interface import SHARED, Answer
from wavetank.insight.metrics.planted import OVERLAPS, planted
from wavetank.insight.metrics.rivals import HolisticTraceAnalysis
from wavetank.insight.metrics.study import TRACES, TraceMetrics, answers
from wavetank.live.processes import python_code


@dataclass(frozen=True)
class Says:
    text: str

    def command(self, outside):
        return python_code(self.text)


@dataclass(frozen=True)
class Scripted:
    """Gives the planted truth, off by so many points, for planted traces; shares of 0.5 for public ones."""

    off: float = 0.0
    without: str = ""

    def command(self, outside):
        return ["something"]


@pytest.fixture
def scripted(monkeypatch):
    def said(system, files, *, outside, warm=None, repeats=1):
        found = []
        for at, file in enumerate(files):
            truth = planted(OVERLAPS[at], 0).truth if "planted" in str(file) else dict.fromkeys(SHARED, 0.5)
            if isinstance(system, HolisticTraceAnalysis):
                truth = dict.fromkeys(SHARED, 0.4) | ({"idle_fraction": 0.0} if at else {})
            shares = {name: value + getattr(system, "off", 0.0) for name, value in truth.items()}
            shares.pop(getattr(system, "without", ""), None)
            found.append(Answer(shares, [0.1], 1))
        return found

    study._of_files.cache_clear()
    monkeypatch.setattr(study, "answers", said)
    monkeypatch.setattr(TraceMetrics, "_files", lambda self: tuple(__import__("pathlib").Path(each) for each in TRACES))
    yield
    study._of_files.cache_clear()


def figures(system, **settings):
    found = TraceMetrics(**settings).measure(system, 0).rows
    return {(name, *sorted(map(str, at.values()))): value for name, value, at in found}


def test_the_largest_error_counts_and_what_is_not_said_is_100_points_off(scripted):
    assert figures(Scripted())["error_points",] == 0
    assert figures(Scripted(0.01))["error_points",] == pytest.approx(1)
    found = figures(Scripted(0.01, "idle_fraction"))
    assert found["error_points",] == 100
    assert found["error_points", "50 %", "compute_fraction"] == pytest.approx(1)
    assert found["answered",] == 16


def test_public_traces_are_held_against_the_peer_where_it_is(scripted, monkeypatch):
    monkeypatch.setattr(study, "outside_python", lambda named: "")
    assert ("difference_percent",) not in figures(Scripted())
    monkeypatch.setattr(study, "outside_python", lambda named: "python")
    found = figures(Scripted())
    # 0.5 against 0.4, and against an idle share of 0, which hides nothing.
    assert found["difference_percent", TRACES[1], "compute_fraction"] == pytest.approx(25)
    assert found["difference_percent", TRACES[1], "idle_fraction"] == found["difference_percent",] == 1000
    assert ("difference_percent",) not in figures(HolisticTraceAnalysis())


def test_an_analyser_that_is_not_here_has_no_figures(monkeypatch):
    monkeypatch.setattr(study, "outside_python", lambda named: "")
    assert TraceMetrics().measure(HolisticTraceAnalysis(), 0).rows == []


def test_rows_are_figures_of_the_toolkit_alone(scripted, monkeypatch):
    monkeypatch.setattr(CclBench, "rows", lambda self: {"more_overlap_slower": 2.0})
    assert figures(CclBench())["more_overlap_slower",] == 2.0
    assert ("more_overlap_slower",) not in figures(Scripted())


def test_notes_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(study, "outside_python", lambda named: "")
    monkeypatch.setattr(TraceMetrics, "_files", lambda self: ())
    assert len(TraceMetrics().notes()) == 3


@pytest.mark.parametrize(("text", "says"), [
    ("print('[1]')", "of the form"), ("print('[]')", "for each trace"), ("print('{\"a\": 1}')", "of the form"),
    ("print('[{\"shares\": {\"a\": null}, \"cpu_s\": [], \"peak_bytes\": 0}]')", "of the form"),
])  # fmt: skip
def test_an_answer_of_another_form_is_named(tmp_path, text, says):
    with pytest.raises(WavetankError, match=says):
        answers(Says(text), [tmp_path / "a.json"], outside="")
