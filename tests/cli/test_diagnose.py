"""``wavetank diagnose``: kinds by content, exit codes, documents, pages, and figures that do not recompute."""

import json
from dataclasses import replace

import pytest
from tests.insight.traces.test_measures import PLANTED, job, kernel

from wavetank.insight.traces.diagnose import KinetoDiagnosis

FULL = [kernel(name, 20 * at, 20) for at, name in enumerate("abcdefgh")]


def test_findings_end_with_one_and_say_where(call, tmp_path):
    told = call("diagnose", str(job(tmp_path, PLANTED)))
    assert told.code == 1
    assert "rank.json  (kineto)" in told.out
    assert "warning: exposed-communication, rank 0 (confidence 0.500)" in told.out
    assert "idle_share (rank 0): 5 %" in told.out
    assert all(len(line) <= 80 for line in told.out.splitlines())


def test_nothing_found_ends_with_nought_and_too_little_with_two(call, tmp_path):
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 80 * i, "dur": 80} for i in (0, 1)
    ]
    talk = kernel("ncclAllReduce", 0, 20, 9)
    told = call("diagnose", str(job(tmp_path, [*FULL, *steps, talk])))
    assert (told.code, "nothing was found" in told.out) == (0, True)
    told = call("diagnose", str(job(tmp_path, [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": 1}])))
    assert (told.code, "could not be said: rank 0: The trace has no kernel" in told.out) == (2, True)


def test_the_document_has_findings_with_evidence(call, tmp_path):
    told = call("diagnose", "--json", str(job(tmp_path, PLANTED)))
    (one,) = json.loads(told.out)
    assert (one["subject"], one["kind"]) == ("rank.json", "kineto")
    finding = one["findings"][0]
    assert finding["says"].startswith("Rank 0 communicates without computing for 10 %")
    assert finding["evidence"][0] == {
        "name": "exposed_communication_share", "value": 0.1, "unit": "", "of": {"rank": 0}, "as_name": "",
        "how": "Length of communication kernels' union without that of other kernels / span",
    }  # fmt: skip
    assert told.code == 1


def test_a_page_is_written_of_one_file(call, tmp_path):
    page = tmp_path / "page.html"
    told = call("diagnose", str(job(tmp_path, PLANTED)), "--page", str(page))
    assert page.read_text().startswith("<!doctype html>")
    assert str(page) in told.err
    told = call("diagnose", "a.json", "b.json", "--page", str(page))
    assert (told.code, "one file or folder" in told.err) == (3, True)
    told = call("diagnose", str(job(tmp_path, PLANTED)), "--page", str(tmp_path / "no" / "page.html"))
    assert told.code == 3


def test_several_files_are_diagnosed_although_one_is_none(call, tmp_path):
    (tmp_path / "text.json").write_text("hello")
    told = call("diagnose", str(tmp_path / "text.json"), str(job(tmp_path, PLANTED)))
    assert told.code == 3
    assert "of no kind that can be explained" in told.err
    assert told.out.rstrip().endswith("2 files: 2 notes, 1 warning; 1 could not be read")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [([], "no file to diagnose"), (["missing.json"], "no such file or folder"),
     (["--kind", "kinteo", "x.json"], "no kind"), (["--set", "idel=1", "FILE"], "idel"),
     (["--set", "idle=9", "FILE"], "idle"), (["--settings", "--kind", "x"], "no kind")],
)  # fmt: skip
def test_wrong_words_are_named(call, tmp_path, arguments, problem):
    path = str(job(tmp_path, PLANTED))
    told = call("diagnose", *[path if word == "FILE" else word for word in arguments])
    assert told.code == 3
    assert problem in " ".join(told.err.split())


def test_settings_are_listed_and_used(call, tmp_path):
    told = call("diagnose", "--settings")
    assert "idle (by default 0.2): " in told.out
    told = call("diagnose", str(job(tmp_path, PLANTED)), "--set", "exposed=0.2", "--set", "one-kernel=0.9")
    assert "exposed-communication" not in told.out


def test_a_folder_is_one_subject(call, tmp_path):
    job(tmp_path, PLANTED, "a.json", rank=0)
    job(tmp_path, FULL, "b.json", rank=1)
    told = call("diagnose", str(tmp_path))
    assert "ranks: 2" in told.out
    assert "other_files" not in told.out
    (tmp_path / "0_settings.json").write_text('{"layers": 3}')
    told = call("diagnose", str(tmp_path))
    assert "ranks: 2" in told.out
    assert "other_files: 1" in told.out
    (tmp_path / "none").mkdir()
    told = call("diagnose", str(tmp_path / "none"))
    assert told.code == 3


def test_a_figure_that_does_not_recompute_is_never_shown(call, tmp_path, monkeypatch):
    plain = KinetoDiagnosis.diagnose

    def wrong(self, path):
        found = plain(self, path)
        return replace(found, facts=(replace(found.facts[0], value=7), *found.facts[1:]))

    monkeypatch.setattr(KinetoDiagnosis, "diagnose", wrong)
    told = call("diagnose", str(job(tmp_path, PLANTED)))
    assert told.code == 3
    assert "does not support" in told.err
    assert "ranks" not in told.out
