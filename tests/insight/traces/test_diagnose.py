"""Findings of planted faults, silence where nothing is wrong, and diagnoses whose every line recomputes."""

from dataclasses import replace

import pytest
from tests.insight.traces.test_measures import PLANTED, call, job, kernel, ranks, step

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadTraceError, BadValueError, DataUnavailableError
from wavetank.insight.traces.diagnose import LABELS, KinetoDiagnosis
from wavetank.workloads import datasets

FULL = [kernel(name, 20 * at, 20) for at, name in enumerate("abcdefgh")]


def found(folder, events, name="rank.json", **settings):
    analyser, path = KinetoDiagnosis(**settings), job(folder, events, name)
    diagnosis = analyser.diagnose(path)
    assert unsupported(diagnosis, analyser.source(path)) == []
    return {each.label: each for each in diagnosis.findings}


def test_a_device_that_always_computes_gets_no_finding(tmp_path):
    assert found(tmp_path, FULL) == {}


@pytest.mark.parametrize(
    ("label", "events"),
    [
        ("idle-device", [*FULL, kernel("i", 300, 20)]),
        ("exposed-communication", [*FULL, kernel("ncclAllReduce", 160, 40, 9)]),
        ("exposed-copies", [*FULL, {**kernel("Memcpy", 160, 20, 9), "cat": "gpu_memcpy"}]),
        ("short-kernels", [kernel(f"k{at}", 5 * at, 5) for at in range(40)]),
        ("one-kernel", [*FULL, kernel("a", 160, 100)]),
        ("host-bound", [kernel("a", 0, 100, correlation=1), kernel("b", 200, 100, correlation=2),
                        kernel("c", 0, 300, 9), kernel("d", 500, 1, correlation=3), call(1, -9, 1), call(2, 150, 50),
                        call(3, 450, 40)]),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named_with_its_rank(tmp_path, label, events):
    named = found(tmp_path, events)
    assert label in named
    assert named[label].where == "rank 0"
    assert label in LABELS
    assert not [each for each in found(tmp_path, FULL) if each == label]


def test_a_rank_that_comes_last_is_named(tmp_path):
    path = ranks(tmp_path, [(90, 90, 90), (10, 10, 10), (90, 90, 5)])
    analyser = KinetoDiagnosis()
    diagnosis = analyser.diagnose(path)
    (late,) = [each for each in diagnosis.findings if each.label == "late-rank"]
    assert late.where == "rank 1"
    assert late.confidence == pytest.approx(2 / 3)
    assert unsupported(diagnosis, analyser.source(path)) == []
    assert not [each for each in KinetoDiagnosis(waiting=0.9).diagnose(path).findings if each.label == "late-rank"]


def test_settings_move_what_is_reported(tmp_path):
    events = [*FULL, kernel("i", 170, 20)]
    assert "idle-device" not in found(tmp_path, events)
    assert "idle-device" in found(tmp_path, events, idle=0.01)
    with pytest.raises(BadValueError):
        KinetoDiagnosis(idle=1.5)
    with pytest.raises(BadValueError):
        KinetoDiagnosis(exposed=float("nan"))


def test_confidence_is_the_share_of_steps_in_which_it_holds(tmp_path):
    # Two steps of 100: the first computes throughout, the second half of the time.
    events = [
        kernel("a", 0, 50),
        kernel("b", 50, 50),
        kernel("c", 100, 50),
        kernel("d", 199, 1),
        step(1, 0, 100),
        step(2, 100, 100),
    ]
    assert found(tmp_path, events)["idle-device"].confidence == 0.5


def test_too_little_is_said(tmp_path):
    diagnosis = KinetoDiagnosis().diagnose(
        job(tmp_path, [{"ph": "X", "cat": "cpu_op", "name": "add", "ts": 0, "dur": 1}])
    )
    assert diagnosis.findings == ()
    assert diagnosis.page == ""
    assert diagnosis.too_little == ("rank 0: The trace has no kernel or copy of a device.",)
    one = KinetoDiagnosis().diagnose(job(tmp_path, FULL, "full.json"))
    assert "rank 0: The trace has fewer than two marked steps." in one.too_little


def test_events_that_were_left_out_are_a_fact(tmp_path):
    facts = KinetoDiagnosis().diagnose(job(tmp_path, [*PLANTED, {"ph": "X"}])).facts
    assert [each.value for each in facts if each.name == "left_out"] == [1]


def test_a_name_with_braces_or_digits_stays_what_it_is(tmp_path):
    events = [kernel("void f<float, 4>{}", 0, 100), kernel("g", 100, 10)]
    (one,) = [each for each in KinetoDiagnosis().diagnose(job(tmp_path, events)).findings if each.label == "one-kernel"]
    assert one.sentence(one.says).endswith("void f<float, 4>{}.")


def test_a_figure_that_was_changed_is_noticed(tmp_path):
    analyser, path = KinetoDiagnosis(), job(tmp_path, PLANTED)
    diagnosis = analyser.diagnose(path)
    first, *rest = diagnosis.facts
    assert unsupported(replace(diagnosis, facts=(replace(first, value=2), *rest)), analyser.source(path))


def test_a_damaged_file_is_an_error(tmp_path):
    (tmp_path / "x.json").write_text('{"traceEvents": [')
    with pytest.raises(BadTraceError):
        KinetoDiagnosis().diagnose(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("name", "fraction", "overlap", "with_copies"),
    [("world8_rank3_control", 0.4429, 0.4624, 0.4707), ("nccl_world2_rank0", 0.3020, 0.1561, 0.1640)],
)
def test_a_real_trace_has_the_shares_that_intervals_give(name, fraction, overlap, with_copies):
    try:
        path = datasets.find("kineto-traces", f"{name}.json.gz")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    analyser = KinetoDiagnosis()
    diagnosis, source = analyser.diagnose(path), analyser.source(path)
    assert unsupported(diagnosis, source) == []
    (rank,) = source.traces
    assert source.quantity("communication_share", rank=rank) == pytest.approx(fraction, abs=5e-5)
    assert source.quantity("hidden_communication_share", rank=rank) == pytest.approx(overlap, abs=5e-5)
    assert source.quantity("hidden_by_any_share", rank=rank) == pytest.approx(with_copies, abs=5e-5)


def test_ranks_without_a_trace_and_jobs_of_different_sizes_are_said(tmp_path):
    for number in (0, 2):
        job(tmp_path, FULL, f"{number}.json", rank=number, world_size=4)
    analyser = KinetoDiagnosis()
    diagnosis = analyser.diagnose(tmp_path)
    assert {each.name: each.value for each in diagnosis.facts}["missing_ranks"] == 2
    assert any("have no trace" in each for each in diagnosis.too_little)
    assert unsupported(diagnosis, analyser.source(tmp_path)) == []
    job(tmp_path, FULL, "3.json", rank=3, world_size=8)
    assert any("different sizes" in each for each in analyser.diagnose(tmp_path).too_little)
    whole = tmp_path / "whole"
    whole.mkdir()
    for number in (0, 1):
        job(whole, FULL, f"{number}.json", rank=number, world_size=2)
    diagnosis = analyser.diagnose(whole)
    assert "missing_ranks" not in {each.name for each in diagnosis.facts}
    assert not any("have no trace" in each for each in diagnosis.too_little)
