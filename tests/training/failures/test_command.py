"""``wavetank launch trainer``: killed and stopped, by the command's own hand and by another's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.live.processes import python_module

pytest.importorskip("torch", reason="needs the library torch")


def test_a_replica_that_is_killed_and_one_that_is_stopped_leave_the_run_as_it_would_have_been(
    call: Callable[..., Any],
) -> None:
    words = ("--replicas", "3", "--steps", "4", "--step-s", "0", "--timeout", "3", "--microbatches", "7")
    done = call("launch", "trainer", *words, "--kill", "2@1", "--stop", "0@2", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["equal"] is True
    assert 0 <= found["difference"] <= 1e-10
    assert (found["steps"], found["replicas_left"]) == (4, 1)
    assert [each["replica"] for each in found["ended"]] == [2, 0]
    assert {each["why"] for each in found["ended"]} == {"SIGKILL"}
    assert len(found["recovery_s"]) == 2
    assert found["last_loss"] < found["first_loss"]


def test_a_run_that_nobody_survives_does_not_hold(call: Callable[..., Any]) -> None:
    done = call("launch", "trainer", "--replicas", "1", "--steps", "3", "--step-s", "0", "--kill", "0@1")
    assert done.code == 1
    assert "replica 0 died: SIGKILL" in done.out
    assert "No replica has finished" in done.out


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_survivors_of_a_kill_from_outside_go_on_until_they_are_interrupted_and_none_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = python_module("wavetank", "launch", "trainer", "--replicas", "2", "--steps", "100000", "--step-s", "0.05")
    output = tmp_path / "output"
    with output.open("wb") as opened, subprocess.Popen(words, stdout=opened, stderr=subprocess.STDOUT) as child:
        try:
            until(output, r"step +2/")
            pids = [int(each) for each in re.findall(r"is process (\d+)", output.read_text())]
            os.kill(pids[1], signal.SIGKILL)
            until(output, r"replica 1 died: SIGKILL(.*\n)+step.*replicas \[0\]\n(.*\n)*step.*replicas \[0\]\n")
            child.send_signal(number)
            assert child.wait(60) == 130
        finally:
            child.kill()
    assert "Interrupted: nothing is compared." in output.read_text()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def until(output: Path, pattern: str) -> None:
    stop = time.monotonic() + 240
    while not re.search(pattern, output.read_text()):
        assert time.monotonic() < stop, output.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("words", [("--kill", "3@1"), ("--kill", "0@40"), ("--stop", "0"), ("--stop", "-1@2")])
def test_what_names_no_replica_and_step_is_refused(call: Callable[..., Any], words: tuple[str, str]) -> None:
    done = call("launch", "trainer", *words)
    assert done.code == 3
    assert "REPLICA@STEP, replicas 0 to 2, steps 0 to 39" in done.err
    assert words[0] in done.err
