from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from wavetank_toys.studies import ToyNoise

import wavetank
from wavetank import files
from wavetank.errors import BadFileError, BadValueError, RunFolderError, UnknownNameError, WavetankError
from wavetank.extras import install_command
from wavetank.ledger import catalog, claims
from wavetank.report.tables import main_table
from wavetank.run import comparison, runfolder
from wavetank.run.comparison import (
    Comparison,
    Interrupted,
    Silence,
    check_label,
    compare,
    keep_as_evidence,
    load,
    make_plan,
    resume,
    run_plan,
)
from wavetank.run.execute import FailedTrial
from wavetank.run.runfolder import Plan
from wavetank.study.records import Record, read_log, read_parquet
from wavetank.study.study import Measurements, Study


class Witness(Silence):
    """Writes down what it is told, and presses Ctrl-C after a number of trials."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.left: list[int] = []
        self.failures: list[str] = []
        self._stop_after = stop_after

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        self.begun.append((total, left, len(done)))

    def trial(self, records: Sequence[Record], left: int) -> None:
        self.left.append(left)
        if len(self.left) == self._stop_after:
            raise KeyboardInterrupt

    def failed(self, failure: FailedTrial) -> None:
        self.failures.append(failure.trial)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare("toy-noise", on="here", out=tmp_path_factory.mktemp("runs"))


def started(out: Path, **more: Any) -> tuple[Plan, Study, Path]:
    plan, study = make_plan("toy-noise", **more)
    return plan, study, runfolder.create(out, plan)


def test_a_comparison_is_records_rows_findings_and_a_folder(result: Comparison) -> None:
    assert len(result.records) == 2 * 4 * 4
    assert [(row.system, row.metric) for row in result.rows][:2] == [("toy-plain", "value_s"), ("toy-plain", "scatter")]
    assert [finding.verdict for finding in result.findings] == ["reached"]
    assert result.failures == ()
    assert {file.name for file in result.folder.iterdir()} == {
        "study.toml",
        "records.jsonl",
        "records.parquet",
        "run.json",
        "report.html",
    }
    assert str(result) == result.summary()
    assert "toy-shifted" in result.summary()
    assert result.answer is not None
    shown = result._repr_html_()
    assert shown.startswith(f"<p><strong>{result.answer.sentence}</strong></p>")
    assert all(f"<p>{caveat}</p>" in shown for caveat in result.answer.caveats)
    assert shown.endswith(main_table(result).as_html())


def test_the_repr_of_a_comparison_is_one_short_line(result: Comparison) -> None:
    assert (
        repr(result) == f"<Comparison toy-noise: 2 systems, 4 seeds, {len(result.records)} records in {result.folder}>"
    )
    failed = dataclasses.replace(result, failures=(FailedTrial("toy-plain#0", None, "boom"),))
    assert "1 failed" in repr(failed)


def test_the_summary_is_a_frame_with_ratios_to_the_baseline(result: Comparison) -> None:
    frame = result.summary_frame()
    assert len(frame) == len(result.rows)
    assert list(frame.columns[:3]) == ["system", "metric", "at"]
    row = frame[(frame.system == "toy-shifted") & (frame.metric == "value_s") & (frame["at"] == "{}")].iloc[0]
    assert (row.ratio, row.seeds, row.unit) == (pytest.approx(0.5), 4, "s")
    assert row.low <= row["median"] <= row.high
    assert result.answer is not None
    assert row.ratio == pytest.approx(result.answer.comparisons[0].found.centre)


def test_verdicts_are_those_of_claims_that_the_run_concerns(result: Comparison) -> None:
    assert result.verdicts == [finding for finding in result.findings if finding.verdict != "not run"]


def test_charts_are_drawn_one_by_one(result: Comparison, tmp_path: Path) -> None:
    forest = result.plot()
    assert forest.kind == "forest"
    assert "<svg" in forest._repr_html_()
    assert repr(forest).startswith("<Chart ")
    saved = forest.save(tmp_path / "forest.svg").read_text(encoding="utf-8")
    assert saved.startswith("<svg ")
    titles = [chart.title for chart in result.study.charts]
    drawn = [number for number in range(1, len(titles) + 1) if draws(result, number)]
    assert drawn
    for number in drawn:
        assert result.plot(number) == result.plot(titles[number - 1]) == result.plot(titles[number - 1].upper())
    for wrong in ("no such chart", 0, len(titles) + 1):
        with pytest.raises(BadValueError) as caught:
            result.plot(wrong)
        assert caught.value.allowed
    with pytest.raises(WavetankError, match="cannot be written"):
        forest.save(tmp_path / "no" / "such" / "folder.svg")


def draws(result: Comparison, number: int) -> bool:
    try:
        return bool(result.plot(number).panels)
    except BadValueError:
        return False


def test_nothing_to_compare_is_no_plot(result: Comparison) -> None:
    alone = dataclasses.replace(result)
    alone.__dict__["answer"] = None
    with pytest.raises(BadValueError, match="compares nothing with the baseline"):
        alone.plot()


def test_studies_and_words_are_looked_up_at_the_top() -> None:
    assert wavetank.studies()["toy-noise"] == catalog.study("toy-noise").asks
    assert {match.name for match in wavetank.search(catalog.study("toy-noise").asks)} & {"toy-noise"}
    assert wavetank.search("") == []
    assert wavetank.Interrupted is Interrupted
    assert wavetank.load is load


def test_a_lone_system_may_be_given_by_its_name() -> None:
    plan, _ = make_plan("toy-noise", systems="toy-shifted")
    assert plan.systems == ("toy-shifted",)


def test_the_package_offers_compare_at_its_top(tmp_path: Path) -> None:
    assert isinstance(wavetank.compare("toy-noise", seeds=1, on="here", out=tmp_path), wavetank.Comparison)
    with pytest.raises(AttributeError, match="no attribute 'comparison_of'"):
        wavetank.comparison_of  # noqa: B018
    assert dir(wavetank) == sorted(wavetank.__all__)


def test_records_come_in_the_plans_order_whatever_the_order_of_completion(tmp_path: Path, result: Comparison) -> None:
    parallel = compare("toy-noise", on="local:2", out=tmp_path)
    assert parallel.records == result.records
    assert (parallel.folder / "records.parquet").read_bytes() == (result.folder / "records.parquet").read_bytes()


def test_json_has_the_documented_keys_and_no_number_json_lacks(result: Comparison) -> None:
    shape = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert list(shape) == [
        "study", "answer", "settings", "records", "summary", "claims", "failures", "folder", "report",
    ]  # fmt: skip
    assert list(shape["answer"]) == [
        "sentence", "caveats", "metric", "baseline", "best", "replicates", "comparisons",
    ]  # fmt: skip
    (pair,) = shape["answer"]["comparisons"]
    assert pair == {
        "system": "toy-shifted", "versus": "toy-plain", "metric": "value_s", "case": "",
        "ratio": 0.5, "low": 0.5, "high": 0.5, "least": 0.5, "most": 0.5, "pairs": 4, "outcome": "better",
    }  # fmt: skip
    assert shape["settings"] == {"offset_s": 0.1, "mode": "calm", "parts": [1, 2], "cap": "auto", "remark": ""}
    assert list(shape["records"][0]) == ["system", "seed", "metric", "unit", "kind", "at", "value"]
    assert list(shape["summary"][0]) == [
        "system",
        "metric",
        "median",
        "low",
        "high",
        "least",
        "most",
        "seeds",
        "unit",
        "kind",
        "at",
    ]
    assert shape["report"] == str(result.folder / "report.html")


def test_the_answer_is_about_the_baseline_and_its_rivals(result: Comparison, tmp_path: Path) -> None:
    assert result.answer is not None
    assert result.answer.best == "toy-shifted"
    assert result.answer.sentence == "toy-shifted has 0.5 times the value of toy-plain."
    alone = compare("toy-noise", systems=["toy-plain"], seeds=1, on="here", out=tmp_path)
    assert (alone.answer, alone.as_json()["answer"]) == (None, None)


def test_a_study_without_a_primary_metric_has_no_answer(result: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavetank_toys.studies.ToyNoise.primary", "")
    without = Comparison(result.study, result.plan, result.records, result.about, (), result.folder)
    assert (without.answer, without.as_json()["answer"]) == (None, None)
    assert 'id="answer"' not in without.report(result.folder / "without.html").read_text()
    assert without.summary() == result.summary()
    (result.folder / "without.html").unlink()


def test_few_pairs_are_no_answer_and_say_how_to_get_one(tmp_path: Path) -> None:
    found = compare("toy-noise", seeds=2, on="here", out=tmp_path).answer
    assert found is not None
    assert (found.best, found.replicates) == ("", 2)
    assert found.sentence == "No answer yet on value: 2 of the 3 pairs needed (--seeds 6 gives intervals)."
    assert {pair["outcome"] for pair in found.as_json()["comparisons"]} == {"undecided"}


def test_records_become_frames(result: Comparison) -> None:
    frame, table = result.to_pandas(), result.to_arrow()
    assert len(frame) == table.num_rows == len(result.records)
    assert list(frame.columns) == table.column_names
    assert frame["at"].iloc[2] == '{"part":1}'


def test_a_missing_frame_library_says_how_to_install_it(result: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, convert in (("pandas", result.to_pandas), ("pyarrow", result.to_arrow), ("pandas", result.summary_frame)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            WavetankError, match=rf"needs the library '{name}'.*\n  next: {re.escape(install_command('pandas'))}"
        ):
            convert()


def test_a_run_reads_back_from_its_folder(result: Comparison) -> None:
    back = load(result.folder)
    assert (back.plan, back.records, back.about) == (result.plan, result.records, json.loads(json.dumps(result.about)))


def test_the_report_goes_where_it_is_asked_for(result: Comparison, tmp_path: Path) -> None:
    target = result.report(tmp_path / "page.html")
    assert target.read_text().startswith("<!")
    with pytest.raises(WavetankError) as caught:
        result.report(tmp_path / "gone" / "page.html")
    assert str(caught.value) == (
        f"The report cannot be written: No such file or directory.\n  where: {tmp_path / 'gone' / 'page.html'}"
    )


def test_progress_is_told_of_every_trial(tmp_path: Path) -> None:
    witness = Witness()
    found = compare("toy-noise", systems=["toy-plain", "toy-fragile"], on="here", out=tmp_path, progress=witness)
    assert witness.begun == [(8, 8, 0)]
    assert witness.failures == ["toy-fragile#0", "toy-fragile#3"] == [failure.trial for failure in found.failures]
    assert witness.left == [7, 5, 4, 3, 2, 1]


def test_ctrl_c_keeps_what_is_finished_and_resuming_runs_only_the_rest(tmp_path: Path) -> None:
    plan, study, folder = started(tmp_path)
    with pytest.raises(Interrupted) as caught:
        run_plan(plan, study, folder, on="here", progress=Witness(stop_after=3))
    assert (caught.value.folder, caught.value.finished, caught.value.total) == (folder, 3, 8)
    assert len(load(folder).records) == 12
    witness = Witness()
    resumed = resume(folder, on="here", progress=witness)
    assert witness.begun == [(8, 5, 12)]
    assert witness.left == [4, 3, 2, 1, 0]
    assert resumed.records == compare("toy-noise", on="here", out=tmp_path / "other").records


def test_ctrl_c_keeps_the_finished_cases_of_a_timing_study_and_resuming_runs_the_others(tmp_path: Path) -> None:
    plan, study = make_plan("toy-timing", seeds=1, settings={"rounds": 2})
    folder = runfolder.create(tmp_path, plan)
    with pytest.raises(Interrupted) as caught:
        run_plan(plan, study, folder, progress=Witness(stop_after=1))
    assert (caught.value.finished, caught.value.total) == (1, 2)
    kept = load(folder).records
    assert {record.at["case"] for record in kept} == {"100 numbers"}
    witness = Witness()
    resumed = resume(folder, progress=witness)
    assert witness.begun == [(2, 1, len(kept))]
    assert resumed.records[: len(kept)] == kept
    assert {record.at["case"] for record in resumed.records} == {"100 numbers", "1000 numbers"}


def processes_of(records: Sequence[Record]) -> dict[int, set[float]]:
    """Return the processes that ran each seed of a run with one round."""
    found: dict[int, set[float]] = {}
    for record in records:
        if record.metric == "process":
            found.setdefault(record.seed, set()).add(record.value)
    return found


def test_each_seed_of_a_timing_study_has_a_process_of_its_own_that_runs_all_its_cases(tmp_path: Path) -> None:
    found = compare("toy-timing", rounds=1, seeds=2, out=tmp_path)
    processes = processes_of(found.records)
    assert {seed: len(each) for seed, each in processes.items()} == {0: 1, 1: 1}
    assert len(set.union(*processes.values()) | {float(os.getpid())}) == 3
    assert {row.seeds for row in found.rows} == {2}
    assert json.loads((found.folder / "run.json").read_text())["rounds_per_replicate"] == 1


@pytest.mark.parametrize("given", [{"seeds": 2, "on": "here"}, {"seeds": 1}])
def test_a_timing_study_stays_in_this_process_where_one_is_enough_or_asked_for(tmp_path: Path, given: Any) -> None:
    found = compare("toy-timing", rounds=1, out=tmp_path, **given)
    assert set.union(*processes_of(found.records).values()) == {float(os.getpid())}


def test_rounds_of_one_process_are_one_figure_of_a_summary(tmp_path: Path) -> None:
    found = compare("toy-timing", rounds=3, seeds=2, sizes=(10,), on="here", out=tmp_path)
    assert {record.seed for record in found.records if record.metric == "time_s"} == {0, 1, 2, 3, 4, 5}
    assert {row.seeds for row in found.rows} == {2}
    assert found.answer is not None
    assert found.answer.replicates == 2
    assert json.loads((found.folder / "run.json").read_text())["rounds_per_replicate"] == 3


def test_ctrl_c_between_the_processes_of_a_timing_study_keeps_what_is_finished(tmp_path: Path) -> None:
    plan, study = make_plan("toy-timing", seeds=2, settings={"rounds": 1})
    folder = runfolder.create(tmp_path, plan)
    with pytest.raises(Interrupted) as caught:
        run_plan(plan, study, folder, progress=Witness(stop_after=3))
    assert (caught.value.finished, caught.value.total) == (3, 4)
    kept = load(folder).records
    witness = Witness()
    resumed = resume(folder, progress=witness)
    assert witness.begun == [(4, 1, len(kept))]
    assert {(record.seed, record.at.get("case")) for record in resumed.records if record.metric == "time_s"} == {
        (seed, case) for seed in (0, 1) for case in ("100 numbers", "1000 numbers")
    }


def test_figures_that_need_several_trials_are_concluded_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(self: Study, records: Sequence[Record]) -> list[Record]:
        return self.stamp("toy-plain", 0, Measurements({"time_s": float(len(records))}))

    monkeypatch.setattr("wavetank_toys.studies.ToyTiming.conclude", conclude, raising=False)
    found = compare("toy-timing", rounds=1, out=tmp_path, on="here")
    assert (found.records[-1].value, found.records[-1].at) == (len(found.records) - 1, {})
    assert load(found.folder).records == found.records
    assert resume(found.folder).records == found.records


def test_a_finished_run_resumes_to_itself(result: Comparison) -> None:
    assert resume(result.folder, on="here").records == result.records


def test_ctrl_c_while_parallel_trials_run_ends_their_processes(tmp_path: Path) -> None:
    plan, study, folder = started(tmp_path, systems=["toy-slow", "toy-plain"])
    with pytest.raises(Interrupted):
        run_plan(plan, study, folder, on="local:2", progress=Witness(stop_after=2))
    assert len(read_log(folder / "records.jsonl")) == 2


def test_a_process_that_is_killed_loses_at_most_the_trial_it_was_at(tmp_path: Path) -> None:
    plan, study, folder = started(
        tmp_path, systems=["toy-slow"], seeds=50, parameters={"toy-slow": {"wait_s": "50 ms"}}
    )
    code = (
        "import sys, pathlib; from wavetank.run.comparison import resume; resume(pathlib.Path(sys.argv[1]), on='here')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    log = folder / "records.jsonl"
    while not log.exists() or log.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = read_log(log)
    assert len(kept) >= 3
    shorter = Plan(**{**vars(plan), "seeds": tuple(range(len(kept) + 2))})
    witness = Witness()
    found = run_plan(shorter, study, folder, on="here", progress=witness)
    assert witness.begun[0][:2] == (len(kept) + 2, 2)
    expected = [study.run(trial, {"toy-slow": Fast()}) for trial in study.trials(["toy-slow"], shorter.seeds)]
    assert list(found.records) == [record for records in expected for record in records]


class Fast:
    """What the slow toy does, at once."""

    def change(self, draw: float, seed: int) -> float:
        return draw


def test_a_full_disk_ends_the_run_with_what_was_recorded_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, study, folder = started(tmp_path)
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RunFolderError, match=r"^A finished trial could not be recorded: No space left on device\."
    ) as caught:
        run_plan(plan, study, folder, on="here")
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f"--resume {folder}")
    monkeypatch.undo()
    assert len(read_log(folder / "records.jsonl")) >= 2
    assert len(resume(folder, on="here").records) == 32


def test_provenance_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, study, folder = started(tmp_path)
    write = files.write_atomic

    def full(path: Path, text: str) -> None:
        if path.name == "run.json":
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(comparison, "write_atomic", full)
    with pytest.raises(RunFolderError) as caught:
        run_plan(plan, study, folder, on="here")
    assert str(caught.value) == (
        "The run's provenance cannot be written: No space left on device.\n"
        f"  where: {folder / 'run.json'}\n"
        f"  next: the records are safe: make room, then repeat the command with --resume {folder}"
    )


def test_an_error_in_a_trial_names_the_trial_and_keeps_the_others(tmp_path: Path) -> None:
    plan, study, folder = started(
        tmp_path, systems=["toy-plain", "toy-fragile"], seeds=[1, 3], parameters={"toy-fragile": {"how": "bad-trace"}}
    )
    with pytest.raises(WavetankError) as caught:
        run_plan(plan, study, folder, on="here")
    assert str(caught.value) == "The toy's trace has no rows.\n  where: trial toy-fragile, seed 3\n  next: give it rows"
    assert [done.trial for done in read_log(folder / "records.jsonl")] == [
        "toy-plain#1",
        "toy-fragile#1",
        "toy-plain#3",
    ]


def test_an_error_in_a_timing_trial_names_its_case_not_every_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(self: Study, case: Any, system: str, result: object) -> None:
        raise BadValueError("This is not sorted.")

    monkeypatch.setattr("wavetank_toys.studies.ToyTiming.verify", verify, raising=False)
    with pytest.raises(BadValueError) as caught:
        compare("toy-timing", rounds=1, out=tmp_path, on="here")
    assert "where: trial 100 numbers, seed 0" in str(caught.value)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a system of the catalog needs that nobody meets."""

    def give(name: str, **changes: Any) -> None:
        entry = dataclasses.replace(catalog.system(name), **changes)
        found = catalog.system
        monkeypatch.setattr(catalog, "system", lambda asked: entry if asked == name else found(asked))

    return give


def test_a_system_whose_library_is_missing_is_left_out_and_told(tmp_path: Path, without: Callable[..., None]) -> None:
    without("toy-shifted", needs=("json", "no_such_library"), extra="toys", role="rival")
    found = compare("toy-noise", out=tmp_path, seeds=1, on="here")
    assert "toy-shifted" not in found.plan.systems and "toy-shifted" in catalog.everything().plain_run(ToyNoise.name)
    note = "Left out: toy-shifted needs the library 'no_such_library' (extra toys of its package)."
    assert note in found.notes
    assert note in load(found.folder).notes
    assert note in resume(found.folder).notes


@pytest.mark.parametrize(
    ("need", "told"),
    [
        ("no_such_library.part", "the library 'no_such_library.part'."),
        ("cuda", "a CUDA device."),
        (
            "program:no-such-proxy",
            "the program 'no-such-proxy', which is neither in .venv-peers/bin (make peers) nor on the search path.",
        ),
        ("data:lcma-schemes", "the data set 'lcma-schemes' (wavetank data fetch lcma-schemes)."),
    ],
)
def test_what_a_system_lacks_is_told_with_what_to_do(
    tmp_path: Path, without: Callable[..., None], need: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavetank.ledger.catalog._met", lambda need: False)
    without("toy-shifted", needs=(need,), role="rival")
    found = compare("toy-noise", out=tmp_path, seeds=1, on="here")
    assert f"Left out: toy-shifted needs {told}" in found.notes


def test_a_program_that_is_not_installed_may_be_named_by_the_setting_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "litellm" not in make_plan("proxy-speed", check=False)[0].systems
    assert "litellm" in make_plan("proxy-speed", settings={"litellm": "/opt/litellm"}, check=False)[0].systems


def test_a_run_names_the_extras_that_would_bring_what_was_left_out(
    without: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    met = {"package:mkl": False, "torch": False}
    monkeypatch.setattr("wavetank.ledger.catalog._met", lambda need: met.get(need, True))
    plan, study = make_plan("spmv", check=False)
    assert comparison.extras_left_out(study, plan.systems) == ("torch", "mkl")
    assert comparison._left_out(study, plan.systems) == [
        "Left out: torch-csr needs the library 'torch' (extra torch).",
        "Left out: mkl-inspector-executor needs the library 'mkl' (extra mkl).",
    ]
    # The user chose.
    assert comparison.extras_left_out(study, ["merbit"]) == ()
    # No library brings a device.
    without("torch-csr", needs=("cuda",))
    met["cuda"] = False
    assert comparison.extras_left_out(study, plan.systems) == ("mkl",)


def test_the_extra_of_another_package_is_not_one_of_this(without: Callable[..., None]) -> None:
    without("toy-shifted", needs=("no_such_library",), extra="torch", role="rival")
    plan, study = make_plan("toy-noise")
    assert comparison.extras_left_out(study, plan.systems) == ()


def test_a_system_that_the_user_names_is_not_left_out(without: Callable[..., None]) -> None:
    without("toy-shifted", needs=("no_such_library",), role="rival")
    plan, _ = make_plan("toy-noise", systems=["toy-plain", "toy-shifted"])
    assert plan.systems == ("toy-plain", "toy-shifted")


def test_what_the_study_is_about_is_not_left_out(without: Callable[..., None]) -> None:
    without("toy-shifted", needs=("no_such_library",), role="system")
    assert "toy-shifted" in make_plan("toy-noise")[0].systems


def test_who_names_the_systems_is_told_of_none_left_out(tmp_path: Path, without: Callable[..., None]) -> None:
    without("toy-shifted", needs=("no_such_library",), role="rival")
    found = compare("toy-noise", systems=["toy-plain", "toy-fragile"], out=tmp_path, seeds=[1], on="here")
    assert not [note for note in found.notes if "Left out" in note]


def test_a_run_in_which_everything_failed_is_still_a_run(tmp_path: Path) -> None:
    found = compare(
        "toy-noise", systems=["toy-fragile"], parameters={"toy-fragile": {"every": 1}}, on="here", out=tmp_path
    )
    assert len(found.failures) == 4
    assert found.records == ()
    assert found.as_json()["report"] is None
    assert read_parquet(found.folder / "records.parquet") == []
    assert "toy-fragile" in found.summary()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"systems": []},
            "No system was chosen.\n  allowed: toy-plain, toy-shifted, toy-fragile, toy-slow\n  where: study toy-noise",
        ),
        (
            {"systems": ["toy-plain"], "parameters": {"toy-shifted": {"share": 0.1}}},
            "A parameter was set for 'toy-shifted', which is not among the chosen systems.\n  allowed: toy-plain\n"
            "  where: --set",
        ),
        (
            {"parameters": {"toy-shifted": {"share": "150"}}},
            "The value is out of range.\n  given: 150\n  allowed: 0 to 1\n  where: system toy-shifted, share",
        ),
        (
            {"settings": {"cap": 0.05}},
            "The cap lies below the offset.\n  given: 0.05\n  where: study toy-noise, cap",
        ),
        ({"seeds": 0}, "The seeds must be one or more numbers from 0.\n  given: 0\n  where: --seeds"),
        ({"seeds": [-1]}, "The seeds must be one or more numbers from 0.\n  given: [-1]\n  where: --seeds"),
    ],
)
def test_what_cannot_be_run_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        make_plan("toy-noise", **options)
    assert str(caught.value) == message


def test_a_system_that_takes_no_part_is_refused() -> None:
    with pytest.raises(BadValueError) as caught:
        make_plan("toy-timing", systems=["fractal-sort-full"])
    assert str(caught.value) == (
        "The system 'fractal-sort-full' is no system of 'toy-timing'.\n"
        "  allowed: toy-plain, toy-shifted, toy-fragile, toy-slow\n"
        "  where: --systems\n  next: it takes part in: sort-integers, sort-pairs"
    )


@pytest.mark.parametrize(
    ("study", "options", "nearest"),
    [
        ("toy-nose", {}, "toy-noise"),
        ("toy-noise", {"systems": ["toy-pain"]}, "toy-plain"),
        ("toy-noise", {"parameters": {"toy-shiftd": {}}}, "toy-shifted"),
    ],
)
def test_wrong_names_come_with_the_nearest(study: str, options: dict[str, Any], nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        make_plan(study, **options)
    assert caught.value.nearest == nearest


def test_a_wrong_place_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(BadValueError):
        compare("toy-noise", on="nowhere", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_counted_or_named_once_each() -> None:
    assert make_plan("toy-noise")[0].seeds == (0, 1, 2, 3)
    assert make_plan("toy-noise", seeds=2)[0].seeds == (0, 1)
    assert make_plan("toy-noise", seeds=[7, 3, 7])[0].seeds == (7, 3)


def test_a_study_file_repeats_a_run_and_options_change_it(tmp_path: Path) -> None:
    plan, _ = make_plan(
        "toy-noise",
        seeds=[5],
        settings={"offset_s": "20 ms"},
        parameters={"toy-shifted": {"share": 0.25, "label": "x"}},
    )
    path = tmp_path / "mine.toml"
    path.write_text(runfolder.dump_plan(plan))
    again, study = make_plan(str(path))
    assert again == plan
    assert study == ToyNoise(offset_s=0.02)
    changed, _ = make_plan(
        str(path), settings={"mode": "odd"}, parameters={"toy-shifted": {"share": 0.75}}, systems=["toy-shifted"]
    )
    assert changed.settings == {**plan.settings, "mode": "odd"}
    assert changed.parameters == {"toy-shifted": {"share": 0.75, "label": "x"}}
    assert (changed.systems, changed.seeds) == (("toy-shifted",), (5,))
    assert make_plan(str(path), seeds=[8, 9])[0].seeds == (8, 9)
    assert make_plan(str(path), seeds=3)[0].seeds == (0, 1, 2)
    narrowed, _ = make_plan(str(path), systems=["toy-plain"])
    assert narrowed.parameters == {}


def test_a_study_file_that_is_absent_is_told() -> None:
    with pytest.raises(BadFileError, match="cannot be read"):
        make_plan("gone/study.toml")


def test_evidence_is_what_the_ledger_reads(result: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    folder = keep_as_evidence(result, "2026-11.a")
    assert sorted(file.name for file in folder.iterdir()) == ["records.parquet", "run.json", "study.toml"]
    first = claims.ledger(["toy-shifted"])[0]
    assert (first.verdict, first.evidence) == ("reached", ("evidence/toy-noise/2026-11.a",))


def test_evidence_is_added_and_never_replaced(
    result: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    folders = [keep_as_evidence(result, "a") for _ in range(3)]
    assert [folder.name for folder in folders] == ["a", "a-2", "a-3"]
    for folder in folders:
        kept = json.loads((folder / "run.json").read_text())
        assert kept["records_sha256"] == hashlib.sha256((folder / "records.parquet").read_bytes()).hexdigest()
    first = claims.ledger(["toy-shifted"])[0]
    assert first.evidence == tuple(f"evidence/toy-noise/{folder.name}" for folder in folders)
    # The same seeds again are no further figures.
    assert (first.found.count, len(first.history)) == (4, 3)


@pytest.mark.parametrize("label", ["", "..", ".", "a/b", "-x", "a b", "é"])
def test_a_label_that_is_no_plain_name_is_refused(label: str) -> None:
    with pytest.raises(BadValueError, match=r"^A label is made of letters, digits, dots and hyphens\."):
        check_label(label)


def test_evidence_that_cannot_be_kept_is_told(
    result: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy-noise").write_text("a file")
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    with pytest.raises(RunFolderError, match=r"^The run cannot be kept as evidence: "):
        keep_as_evidence(result, "x")


def test_a_run_ends_its_trials_when_its_progress_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    def trials(*_: Any) -> Any:
        try:
            yield from original(*_)
        finally:
            closed.append(True)

    original = comparison.run_trials
    monkeypatch.setattr(comparison, "run_trials", trials)
    plan, study, folder = started(tmp_path)
    with contextlib.suppress(Interrupted):
        run_plan(plan, study, folder, on="here", progress=Witness(stop_after=1))
    assert closed == [True]


@pytest.mark.parametrize("seeds", [9_999_999_999, [0, 2**40], range(2_000_000)])
def test_more_seeds_than_anybody_can_run_are_refused_before_a_list_of_them_is_made(seeds: Any) -> None:
    with pytest.raises(BadValueError, match="too"):
        make_plan("toy-noise", seeds=seeds)


def test_a_study_file_with_too_many_seeds_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('format = 1\nstudy = "toy-noise"\nseeds = 9999999999\n')
    with pytest.raises(BadValueError, match="too many seeds"):
        make_plan(str(file))


@pytest.mark.parametrize(
    ("study", "setting"),
    [("matmul", "shapes"), ("spd-solve", "sizes"), ("stencil-machines", "sides"), ("spmv", "matrices")],
)
def test_a_study_without_a_case_is_refused_by_the_setting_that_has_none(study: str, setting: str) -> None:
    with pytest.raises(BadValueError, match=f"there is nothing to run.*\n.*\n  where: study {study}, {setting}"):
        comparison.make_plan(study, settings={setting: ""})
