from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.extras import install_command
from wavetank.ledger import claims
from wavetank.run import comparison
from wavetank.run.runfolder import load_plan
from wavetank.study.records import read_log

Call = Callable[..., Any]


def folder_of(root: Path, study: str = "toy-noise") -> Path:
    (folder,) = (root / "runs" / study).iterdir()
    return folder


def test_off_a_terminal_lines_go_to_stderr_and_the_result_to_stdout(command: Call, tmp_path: Path) -> None:
    done = command("compare", "toy-noise")
    folder = folder_of(tmp_path).relative_to(tmp_path)
    assert done.returncode == 0
    first, *lines = done.stderr.splitlines()
    assert first == f"toy-noise: 8 trials; kept in {folder}"
    assert re.match(r"  1 of 8 trials, about \d+ s left: toy-(plain|shifted) seed 0: value_s ", lines[0])
    assert re.search(r"8 of 8 trials: toy-", done.stderr)
    assert done.stdout.startswith(
        "toy-shifted has 0.5 times the value of toy-plain.\n"
        "\n"
        "toy-noise: 2 systems, 4 seeds, all figures simulated\n"
    )
    assert "note: These are toys.\n" in done.stdout
    assert "\n1 claim: 1 reached\n  reached           halves the value\n" in done.stdout
    assert done.stdout.endswith(f"\nreport  {folder}/report.html\nagain   wavetank compare toy-noise\n")
    assert max(map(len, [*done.stdout.splitlines(), *done.stderr.splitlines()])) <= 80


def test_the_commands_that_bring_what_was_left_out_stand_below_the_result(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "extras_left_out", lambda study, chosen: ("torch", "kernel-peers"))
    done = call("compare", "toy-noise", "--seeds", "1", "--on", "here")
    lines = [f"install {install_command(extra)}" for extra in ("torch", "kernel-peers")]
    assert "\n\n{}\n{}\nreport  ".format(*lines) in done.out


def test_json_is_one_object_with_the_documented_keys_and_nothing_else(command: Call, tmp_path: Path) -> None:
    done = command("compare", "toy-noise", "--json", "--on", "here", "--seeds", "1,3")
    found = json.loads(done.stdout)
    assert list(found) == [
        "study",
        "answer",
        "settings",
        "records",
        "summary",
        "claims",
        "failures",
        "folder",
        "report",
    ]
    assert {record["seed"] for record in found["records"]} == {1, 3}
    assert found["answer"]["sentence"].startswith("No answer yet on value: 2 of the 3 pairs needed")
    assert (tmp_path / found["report"]).is_file()
    assert "of 4 trials" not in done.stdout
    assert "of 4 trials" in done.stderr


def test_settings_and_parameters_are_set_by_their_keys(call: Call, here: Path) -> None:
    told = call(
        "compare", "toy-noise", "--on", "here", "--set", "offset_s=100ms", "--set", "parts=2,3",
        "--set", "toy-shifted.share=0.25", "--set", "remark=a=b", "--systems", "toy-shifted, toy-plain",
    )  # fmt: skip
    assert told.code == 0
    plan = load_plan(folder_of(here) / "study.toml")
    assert plan.settings == {"offset_s": 0.1, "mode": "calm", "parts": [2, 3], "cap": "auto", "remark": "a=b"}
    assert plan.parameters == {"toy-shifted": {"share": 0.25}}
    assert plan.systems == ("toy-shifted", "toy-plain")


def test_the_printed_command_and_the_study_file_repeat_the_run(call: Call, here: Path) -> None:
    told = call(
        "compare", "toy-noise", "--on", "here", "--json", "--set", "remark=two words", "--seeds", "3,", "--out", "a"
    )
    first = json.loads(told.out)
    again = json.loads((here / first["folder"] / "run.json").read_text())["command"]
    verb, *arguments = shlex.split(again)
    assert verb == "wavetank"
    for words in (arguments, ["compare", f"{first['folder']}/study.toml"]):
        second = json.loads(call(*words, "--on", "here", "--json").out)
        for key in ("study", "answer", "settings", "records", "summary"):
            assert second[key] == first[key]
        # When a claim was judged is no part of its verdict.
        assert [{**row, "history": []} for row in second["claims"]] == [
            {**row, "history": []} for row in first["claims"]
        ]


@pytest.mark.parametrize(("mode", "code"), [("calm", 0), ("rough", 1), ("odd", 2)])
def test_check_makes_the_exit_code_speak_for_the_claims(call: Call, mode: str, code: int) -> None:
    options = ["compare", "toy-noise", "--on", "here", "--set", f"mode={mode}"]
    assert call(*options, "--check").code == code
    assert call(*options).code == 0


def test_check_without_a_claim_to_decide_is_satisfied(call: Call) -> None:
    assert call("compare", "toy-noise", "--on", "here", "--systems", "toy-plain", "--check").code == 0


def test_failed_trials_are_named_after_what_did_finish(call: Call, here: Path) -> None:
    told = call("compare", "toy-noise", "--systems", "toy-plain,toy-fragile", "--on", "here", "--check")
    folder = Path("runs") / "toy-noise" / folder_of(here).name
    assert told.code == 4
    assert "toy-plain (b)" in told.out
    assert "  toy-fragile#0 failed: ZeroDivisionError: the toy broke\n" in told.err
    assert told.err.endswith(
        "2 of 8 trials failed: toy-fragile#0, toy-fragile#3\n"
        "  cause: ZeroDivisionError: the toy broke\n"
        f"  where: {folder}/failures.log\n"
        f"  next: wavetank compare toy-noise --resume {folder} --on here\n"
    )
    log = (folder / "failures.log").read_text()
    assert log.startswith("trial toy-fragile#0\nTraceback (most recent call last):\n")
    assert log.count("ZeroDivisionError: the toy broke") == 2
    told = call("compare", "toy-noise", "--resume", str(folder), "--on", "here", "--trace")
    assert told.code == 4
    assert "toy-noise: 8 trials, 6 of them finished before; kept in" in told.err
    assert "Traceback (most recent call last):" in told.err


def test_a_trials_error_names_what_is_kept(call: Call, here: Path) -> None:
    told = call(
        "compare", "toy-noise", "--systems", "toy-plain,toy-fragile", "--on", "here", "--seeds", "1,3",
        "--set", "toy-fragile.how=bad-trace",
    )  # fmt: skip
    folder = Path("runs") / "toy-noise" / folder_of(here).name
    assert (told.code, told.out) == (3, "")
    assert told.err.endswith(
        "The toy's trace has no rows.\n  where: trial toy-fragile, seed 3\n  next: give it rows\n"
        f"  kept: 3 finished trials in {folder}\n  then: wavetank compare toy-noise --resume {folder} --on here\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No study was named.\n  allowed: a study's name or file\n  next: wavetank list --studies\n"),
        (
            ["toy-noise", "--set", "offset_s"],
            "This is not a setting.\n  given: offset_s\n  allowed: KEY=VALUE, as in refresh_s=100ms\n  where: --set\n",
        ),
        (
            ["toy-noise", "--set", "offset=1"],
            "There is no setting named 'offset'.\n  allowed: cap, mode, offset_s, parts, remark\n  nearest: offset_s\n"
            "  where: study toy-noise\n  next: wavetank show toy-noise\n",
        ),
        (
            ["toy-noise", "--set", "offset_s=3 Ms"],
            "'Ms' is not a unit that converts to 's'.\n  given: 3 Ms\n  allowed: ps, ns, us, ms, s, min, h, d\n"
            "  nearest: ms\n  where: study toy-noise, offset_s\n",
        ),
        (
            ["toy-noise", "--set", "offset_s=11"],
            "The value is out of range.\n  given: 11\n  allowed: 0 to 10 s\n  where: study toy-noise, offset_s\n",
        ),
        (
            ["toy-noise", "--set", "mode=ruogh"],
            "The value is not one of the allowed words.\n  given: ruogh\n  allowed: calm, rough, odd\n"
            "  nearest: rough\n  where: study toy-noise, mode\n",
        ),
        (
            ["toy-noise", "--set", "toy-shifted.shaer=1"],
            "There is no parameter named 'shaer'.\n  allowed: label, pause_s, share\n  nearest: share\n"
            "  where: system toy-shifted\n  next: wavetank show toy-shifted\n",
        ),
        (
            ["toy-noise", "--seeds", "five"],
            "The seeds must be a count or a list of numbers from 0.\n  given: five\n"
            "  allowed: 5 for the seeds 0 to 4, or 0,3,7\n  where: --seeds\n",
        ),
        (
            ["toy-noise", "--seeds", "0"],
            "The seeds must be one or more numbers from 0.\n  given: 0\n  where: --seeds\n",
        ),
        (
            ["toy-noise", "--on", "local:none"],
            "The number of local processes must be 1 or more.\n  given: local:none\n  where: --on\n",
        ),
        (
            ["toy-noise", "--evidence", "../x"],
            "A label is made of letters, digits, dots and hyphens.\n  given: ../x\n  where: --evidence\n",
        ),
        (["gone.toml"], "The study file cannot be read: No such file or directory.\n  where: gone.toml\n"),
        (
            ["toy-noise", "--resume"],
            "There is no run of 'toy-noise' to go on with.\n  where: runs/toy-noise\n"
            "  next: wavetank compare toy-noise\n",
        ),
        (
            ["toy-noise", "--resume", "gone"],
            "The study file cannot be read: No such file or directory.\n  where: gone/study.toml\n",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(call: Call, here: Path, arguments: list[str], message: str) -> None:
    assert call("compare", *arguments) == (3, "", message)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["toy-nois"], "toy-noise"),
        (["toy-noise", "--systems", "toy-plian"], "toy-plain"),
        (["toy-noise", "--set", "toy-shiftd.share=1"], "toy-shifted"),
    ],
)
def test_wrong_names_come_with_the_nearest(call: Call, arguments: list[str], nearest: str) -> None:
    told = call("compare", *arguments)
    assert told.code == 3
    assert f"\n  nearest: {nearest}\n" in told.err


def test_evidence_is_kept_under_its_label(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path / "evidence")
    told = call("compare", "toy-noise", "--on", "here", "--evidence", "first")
    assert told.code == 0
    assert told.err.endswith(f"Kept as evidence in {tmp_path}/evidence/toy-noise/first\n")
    assert "evidence/toy-noise/first" in call("claims", "toy-shifted").out


def test_a_run_with_failures_is_not_kept_as_evidence(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path / "evidence")
    assert call("compare", "toy-noise", "--on", "here", "--systems", "toy-fragile", "--evidence", "x").code == 4
    assert not (tmp_path / "evidence").exists()


SLOW = ["compare", "toy-noise", "--systems", "toy-slow,toy-plain", "--seeds", "40"]


@pytest.mark.parametrize("place", ["here", "local:2"])
def test_ctrl_c_names_what_is_kept_and_how_to_go_on(executable: str, tmp_path: Path, call: Call, place: str) -> None:
    process = subprocess.Popen(
        [executable, *SLOW, "--on", place],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = tmp_path / "runs" / "toy-noise"
    while not any(file.read_bytes().count(b"\n") >= 3 for file in logs.glob("*/records.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    folder = folder_of(tmp_path).relative_to(tmp_path)
    kept = len(read_log(tmp_path / folder / "records.jsonl"))
    assert (process.returncode, out) == (130, "")
    assert err.endswith(
        f"Interrupted: {kept} of 80 trials are safe in {folder}\n"
        f"  next: wavetank compare toy-noise --resume {folder} --on {place}\n"
    )
    assert "Traceback" not in err
    assert "Error" not in err
    assert "Warning" not in err


def processes_of_session(session: int) -> list[int]:
    """Return the processes that still run in a session, without those that ended and were not waited for."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, after = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, of_session = after.split()[:4]
        if int(of_session) == session and state not in "ZX":
            found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ctrl_c_ends_the_process_of_a_timing_study_and_resuming_goes_on(
    executable: str, tmp_path: Path, call: Call
) -> None:
    # A case of a hundred waits is interrupted while it runs, after one that was finished.
    words = ["compare", "toy-timing", "--systems", "toy-plain,toy-slow", "--set", "rounds=1", "--seeds", "2",
             "--set", "sizes=1,40", "--set", "toy-slow.wait_s=30ms"]  # fmt: skip
    process = subprocess.Popen(
        [executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    logs = tmp_path / "runs" / "toy-timing"
    while not any(file.read_bytes().count(b"\n") >= 1 for file in logs.glob("*/records.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    assert len(processes_of_session(process.pid)) > 1
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    folder = folder_of(tmp_path, "toy-timing").relative_to(tmp_path)
    assert (process.returncode, out) == (130, "")
    assert err.endswith(
        f"Interrupted: 1 of 4 trials are safe in {folder}\n  next: wavetank compare toy-timing --resume {folder}\n"
    )
    for word in ("Traceback", "Error", "Warning"):
        assert word not in err
    deadline = time.monotonic() + 20
    while processes_of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of_session(process.pid) == []
    told = call("compare", "--resume", str(folder))
    assert told.code == 0
    assert "toy-timing: 4 trials, 1 of them finished before; kept in" in told.err
    assert len(read_log(tmp_path / folder / "records.jsonl")) == 4


def test_ctrl_c_after_the_last_trial_names_what_is_kept_too(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wavetank.run.comparison.write_parquet", interrupt)
    told = call("compare", "toy-noise", "--on", "here")
    folder = Path("runs") / "toy-noise" / folder_of(here).name
    assert (told.code, told.out) == (130, "")
    assert told.err.endswith(
        f"Interrupted: 8 of 8 trials are safe in {folder}\n"
        f"  next: wavetank compare toy-noise --resume {folder} --on here\n"
    )


def interrupted(executable: str, root: Path) -> Path:
    """Leave a run of two trials out of eight behind."""
    subprocess.run([executable, "compare", "toy-noise", "--on", "here"], cwd=root, check=True, capture_output=True)
    folder = folder_of(root)
    log = folder / "records.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]) + b'{"trial":"cut o')
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["toy-noise", "--resume"],
        ["--resume", "toy-noise"],
        ["toy-noise", "--resume", "FOLDER"],
        ["--resume", "FOLDER"],
        ["FOLDER/study.toml", "--resume", "FOLDER"],
        ["toy-noise", "--resume", "--set", "offset_s=100ms", "--systems", "toy-plain,toy-shifted", "--seeds", "4"],
    ],
)
def test_resuming_runs_only_what_is_left(executable: str, call: Call, here: Path, arguments: list[str]) -> None:
    folder = interrupted(executable, here)
    words = [word.replace("FOLDER", str(folder)) for word in arguments]
    told = call("compare", *words, "--on", "here")
    assert told.code == 0
    assert told.err.startswith("toy-noise: 8 trials, 2 of them finished before; kept in ")
    assert len(read_log(folder / "records.jsonl")) == 8
    assert folder_of(here) == folder


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["toy-timing", "--resume", "FOLDER"], "The run is one of the study 'toy-noise', not of 'toy-timing'."),
        (
            ["toy-noise", "--resume", "--set", "offset_s=1"],
            "The options differ from those of the run to continue.",
        ),
        (["toy-noise", "--resume", "--seeds", "9"], "The options differ from those of the run to continue."),
        (["--resume"], "No study was named."),
    ],
)
def test_resuming_another_run_than_asked_for_is_refused(
    executable: str, call: Call, here: Path, arguments: list[str], problem: str
) -> None:
    folder = interrupted(executable, here)
    told = call("compare", *[word.replace("FOLDER", str(folder)) for word in arguments])
    assert told.code == 3
    assert told.err.startswith(problem)


def test_two_processes_cannot_go_on_with_one_run(executable: str, call: Call, here: Path) -> None:
    first = subprocess.Popen([executable, *SLOW, "--on", "here"], stderr=subprocess.PIPE, start_new_session=True)
    logs = here / "runs" / "toy-noise"
    while not any(file.read_bytes() for file in logs.glob("*/records.jsonl")):
        assert first.poll() is None
        time.sleep(0.02)
    told = call("compare", "toy-noise", "--resume")
    first.terminate()
    first.communicate(timeout=60)
    assert told.code == 3
    assert told.err.startswith("This run is still going on in another process.\n")


def test_on_a_terminal_a_table_fills_and_the_final_one_stays(terminal: Call) -> None:
    # Longer than the pause between two tables, so that every slow trial is seen to end.
    slow = ["--systems", "toy-plain,toy-slow", "--set", "toy-slow.wait_s=300ms"]
    shown = terminal("compare", "toy-noise", *slow, "--on", "here")
    assert shown.code == 0
    assert "0 of 8 trials; Ctrl-C keeps what is finished in" in shown.text
    states = [int(number) for number in re.findall(r"(\d) of 8 trials", shown.text)]
    assert states[0] == 0
    assert states[-1] == 8
    assert states == sorted(states)
    assert len(set(states)) > 3
    final = shown.text[shown.text.rindex("toy-noise: 2 systems, 4 seeds, all figures simulated") :]
    assert "toy-plain (baseline)" in final
    assert "report  runs/toy-noise/" in final
    # The command to repeat the run is for copying: never broken.
    assert max(len(line) for line in final.splitlines() if not line.startswith("again")) <= 80


def test_a_table_too_wide_for_the_terminal_becomes_blocks(terminal: Call) -> None:
    shown = terminal("compare", "toy-timing", "--set", "rounds=3", COLUMNS="60")
    assert shown.code == 0
    final = shown.text[shown.text.rindex("toy-timing: 2 systems") :]
    assert "toy-plain (b)" in final
    assert max(map(len, final.splitlines())) <= 60


def test_plain_means_plain_on_a_terminal_too(terminal: Call) -> None:
    shown = terminal("compare", "toy-noise", "--plain", "--on", "here", NO_COLOR="1")
    assert shown.code == 0
    assert "\x1b" not in shown.raw
    assert "toy-plain (b)" in shown.text


def test_json_on_a_terminal_is_still_one_object(terminal: Call) -> None:
    shown = terminal("compare", "toy-noise", "--json", "--on", "here", NO_COLOR="1")
    assert json.loads(shown.text[shown.text.index("{") :])["study"] == "toy-noise"


def test_ctrl_c_on_a_terminal_leaves_a_clean_screen(terminal: Call, tmp_path: Path) -> None:
    shown = terminal(*SLOW, "--on", "local:2", until=" of 80 trials,", times=3)
    assert shown.code == 130
    # The cursor is shown again.
    assert shown.raw.rindex("\x1b[?25h") > shown.raw.rindex("\x1b[?25l")
    tail = shown.text[shown.text.index("Interrupted: ") :]
    folder = folder_of(tmp_path).relative_to(tmp_path)
    assert tail.splitlines()[1] == f"  next: wavetank compare toy-noise --resume {folder} --on local:2"
    assert "Traceback" not in shown.text


OWN = """
class MyToy:
    def __init__(self, share=0.25):
        self.share = share

    def change(self, draw, seed):
        if seed == 2:
            raise RuntimeError("not this one")
        return draw * self.share
"""


def test_a_class_of_a_file_takes_part_and_its_failures_are_told_with_what_to_do(call: Call, here: Path) -> None:
    (here / "mine.py").write_text(OWN)
    words = ["compare", "toy-noise", "--policy", "mine.py:MyToy", "--set", "my-toy.share=0.125"]
    told = call(*words, "--on", "here")
    folder = Path("runs") / "toy-noise" / folder_of(here).name
    assert told.code == 4
    assert "toy-noise: 3 systems, 4 seeds" in told.out
    assert re.search(r"^my-toy +\S.* x0\.125", told.out, re.MULTILINE)
    assert told.out.endswith("again   wavetank compare toy-noise --set my-toy.share=0.125 --policy mine.py:MyToy\n")
    assert told.err.endswith(
        f"1 of 12 trials failed: my-toy#2\n  cause: RuntimeError: not this one\n  where: {folder}/failures.log\n"
        f"  next: wavetank compare toy-noise --policy mine.py:MyToy --resume {folder} --on here\n"
    )
    assert load_plan(here / folder / "study.toml").systems == ("toy-plain", "toy-shifted", "my-toy")
    again = call("compare", "toy-noise", "--policy", "mine.py:MyToy", "--resume", str(folder), "--on", "here")
    assert again.code == 4
    assert "11 of them finished before" in again.err


def test_a_class_that_was_not_given_has_no_parameters(call: Call, here: Path) -> None:
    told = call("compare", "toy-noise", "--set", "my-toy.share=0.125")
    assert told.code == 3
    assert "There is no system named 'my-toy'." in told.err


def test_a_file_without_the_class_leaves_no_run_behind(call: Call, here: Path) -> None:
    (here / "mine.py").write_text(OWN)
    told = call("compare", "toy-noise", "--policy", "mine.py:MyTo")
    assert (told.code, told.out) == (3, "")
    assert told.err == (
        "There is no class 'MyTo' in mine.py.\n  allowed: MyToy\n  nearest: MyToy\n  where: --policy mine.py:MyTo\n"
    )
    assert not (here / "runs").exists()
