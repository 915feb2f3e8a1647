"""Diagnoses of frames and of recorder dumps: the right rank, and every figure recomputes."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from tests.insight.collectives.test_ccl_d import JOB
from tests.insight.collectives.test_recorder_window import written
from tests.workloads.test_flight_recorder import dump, entry

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadValueError
from wavetank.insight.collectives.diagnose import LABELS, FramesDiagnosis, RecorderDiagnosis, WindowSource
from wavetank.insight.collectives.frames_file import write_frames
from wavetank.insight.collectives.interface import FAULTS
from wavetank.insight.collectives.job_model import drawn_fault, simulated


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_frames_of_each_class_are_explained_and_recompute(tmp_path, fault):
    path = tmp_path / "job.jsonl"
    for seed in range(3):
        draws = np.random.default_rng([7, seed])
        planted = drawn_fault(JOB, fault, draws)
        write_frames(path, simulated(JOB, planted, draws, iterations=3 if fault.startswith("H") else 8))
        analyser = FramesDiagnosis()
        found = analyser.diagnose(path)
        assert unsupported(found, analyser.source(path)) == []
        if not fault:
            assert found.findings == ()
            continue
        (finding,) = found.findings
        assert finding.label == LABELS[fault] and str(planted.ranks[0]) in finding.where
        assert finding.sentence(finding.says).endswith((".", "ago."))
        assert "Ranks of the communicator" in found.page


def test_a_changed_file_no_longer_supports_the_diagnosis(tmp_path):
    path = tmp_path / "job.jsonl"
    draws = np.random.default_rng(0)
    write_frames(path, simulated(JOB, drawn_fault(JOB, "H2", draws), draws, iterations=2))
    found = FramesDiagnosis().diagnose(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[: len(lines) // 2]))
    assert unsupported(found, FramesDiagnosis().source(path))


def said(folder):
    analyser = RecorderDiagnosis()
    found = analyser.diagnose(folder)
    assert unsupported(found, analyser.source(folder)) == []
    return found


def three(last, ranks=(0, 1, 2)):
    """Return dumps of three ranks that have called one all-reduce, and then ``last`` of each rank."""
    return {rank: dump(entry(1), *last.get(rank, []), ranks="[0, 1, 2]") for rank in ranks}


def test_a_recorder_names_who_has_not_called(tmp_path):
    found = said(written(tmp_path, three({0: [entry(2, retired=False)], 2: [entry(2, retired=False)]})))
    (finding,) = found.findings
    assert (finding.label, finding.where) == ("not-entered", "rank 1")
    assert "was entered by 2 of 3 ranks; 1 did not come" in finding.sentence(finding.says)


@pytest.mark.parametrize("other", [{"input_sizes": [[4]]}, {"profiling_name": "gloo:broadcast"},
                                   {"input_dtypes": ["Half"]}])  # fmt: skip
def test_a_recorder_names_whose_call_does_not_fit_even_the_first_rank(tmp_path, other):
    calls = {rank: [entry(2, retired=False, **(other if rank == 0 else {}))] for rank in range(3)}
    (finding,) = said(written(tmp_path, three(calls))).findings
    assert (finding.label, finding.where) == ("other-call", "rank 0")


def test_a_rank_without_a_dump_is_named_and_shown_as_such(tmp_path):
    calls = {rank: [entry(2, retired=False)] for rank in range(2)}
    found = said(written(tmp_path, three(calls, ranks=(0, 1))))
    assert found.findings[0].where == "rank 2"
    assert {fact.name: fact.value for fact in found.facts}["without_dump"] == "2"


def test_where_all_have_called_or_one_dump_is_there_too_little_is_said(tmp_path):
    all_in = said(written(tmp_path, three({rank: [entry(2, retired=False)] for rank in range(3)})))
    assert all_in.findings == () and any("who stands still" in each for each in all_in.too_little)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "fr_0.json").write_text(json.dumps(dump(entry(1), ranks="[0]")))
    assert any("one rank" in each for each in said(tmp_path / "alone" / "fr_0.json").too_little)


def test_kinds_are_known_by_their_content():
    value = dump(entry())
    assert RecorderDiagnosis.takes(None, pickle.dumps(value, 2)) and not FramesDiagnosis.takes(None, b"{}")
    assert FramesDiagnosis.takes(None, b'{"format":"wavetank-collective-frames-1"}\n')


def test_quantities_that_there_are_not_are_refused(tmp_path):
    write_frames(tmp_path / "j.jsonl", simulated(JOB, drawn_fault(JOB, "H1", np.random.default_rng(1)),
                                                 np.random.default_rng(1), iterations=2))  # fmt: skip
    source = FramesDiagnosis().source(tmp_path / "j.jsonl")
    assert isinstance(source, WindowSource) and source.quantity("ranks") == JOB.ranks
    for name, of in (("strange", {}), ("posted", {"rank": 0, "comm": 0, "seq": 99})):
        with pytest.raises(BadValueError):
            source.quantity(name, **of)
