"""Analysers that live here: three ways to the same shares, one of them wrong by its nature."""

import gzip
import io
import json

import pytest

from wavetank.errors import BadTraceError
from wavetank.insight.metrics import analyser_process
from wavetank.insight.metrics.analyser_process import ANALYSERS, plainly, summed, toolkit
from wavetank.insight.metrics.planted import planted


@pytest.fixture
def file(tmp_path):
    return str(planted(50, 0).write(tmp_path / "a.json"))


def test_lists_and_arrays_give_the_planted_shares(file):
    truth = planted(50, 0).truth
    assert toolkit(file) == pytest.approx(truth, abs=1e-12)
    # Microseconds in floating point, since 1970: nanoseconds are rounded.
    assert plainly(file) == pytest.approx(truth, abs=1e-3)


def test_sums_of_durations_do_not_know_what_ran_at_once(file):
    truth, found = planted(50, 0).truth, summed(file)
    assert found["compute_fraction"] > truth["compute_fraction"]
    assert found["idle_fraction"] < truth["idle_fraction"] - 0.1


def test_a_trace_without_communication_has_no_overlap(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 5, "args": {"stream": 7}}
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    for analyser in ANALYSERS.values():
        assert analyser(str(path)) == {"idle_fraction": 0.0, "compute_fraction": 1.0}


def test_a_trace_without_a_device_has_no_shares(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": 1}]}')
    for analyser in (summed, plainly, toolkit):
        assert analyser(str(path)) == {}
    path.write_text("{")
    with pytest.raises(BadTraceError):
        toolkit(str(path))


def test_the_process_answers_for_each_file(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.json").write_text("{")
    question = {"files": [file, str(tmp_path / "bad.json")], "warm": file, "repeats": 2}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
    analyser_process.main("toolkit")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said[0]["shares"] == toolkit(file)
    assert len(said[0]["cpu_s"]) == 2
    assert said[1]["shares"] == {}
