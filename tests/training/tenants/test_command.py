"""``wavetank launch tenants``: tasks learn, broken ones fail alone, and a run goes on from its checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.live.processes import python_module
from wavetank.training.tenants.confined import Confined


def test_tasks_are_trained_beside_broken_ones_and_found_again(call: Callable[..., Any], tmp_path: Path) -> None:
    words = ("launch", "tenants", "--tasks", "3", "--updates", "12", "--delay-s", "0", "--json")
    done = call(*words, "--broken", "1", "--checkpoints", str(tmp_path / "kept"))
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert sorted(each["task"] for each in found["tasks"]) == ["arithmetic-1", "bandit-0", "grid-2"]
    assert sum(each["last_reward"] - each["first_reward"] for each in found["tasks"]) > 0.3
    assert [each["task"] for each in found["failed"]] == ["broken-0"]
    assert found["changes_of_others"] == 0
    again = json.loads(call(*words, "--checkpoints", str(tmp_path / "kept")).out)
    assert {each["task"]: each["last_reward"] for each in again["tasks"]} == {
        each["task"]: each["last_reward"] for each in found["tasks"]
    }
    assert all(each["first_reward"] == each["last_reward"] for each in again["tasks"])


def test_tools_in_processes_of_their_own_learn_the_same(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("launch", "tenants", "--tasks", "1", "--updates", "2", "--delay-s", "0", "--broken", "1", "--json")
    here, started = json.loads(call(*words).out), []
    start = Confined.started

    async def counted(self: Confined) -> Any:
        started.append(self.memory_mb)
        return await start(self)

    monkeypatch.setattr(Confined, "started", counted)
    confined = json.loads(call(*words, "--memory-mb", "300").out)
    assert set(started) == {300}
    assert confined["tasks"][0]["last_reward"] == here["tasks"][0]["last_reward"]
    assert [each["task"] for each in confined["failed"]] == ["broken-0"]
    assert call(*words, "--memory-mb", "3").code == 3


def test_lines_name_the_tasks_and_what_failed(call: Callable[..., Any]) -> None:
    done = call("launch", "tenants", "--tasks", "1", "--updates", "1", "--delay-s", "0", "--broken", "1")
    assert done.code == 0
    assert "bandit-0" in done.out
    assert "1 updates in" in done.out
    assert "broken-0 failed: Too many updates in a row" in done.out
    assert "adapter: 0." in done.out


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ctrl_c_ends_all_and_keeps_what_was_done(tmp_path: Path, number: signal.Signals) -> None:
    kept = tmp_path / "kept"
    words = python_module("wavetank", "launch", "tenants", "--tasks", "2", "--updates", "10000", "--delay-s", "0.001",
                          "--checkpoints", str(kept))  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            stop = time.monotonic() + 120
            while len(list(kept.glob("*.json"))) < 2:
                assert time.monotonic() < stop
                time.sleep(0.05)
            child.send_signal(number)
            output, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130
    assert "Interrupted: what was done is in the folder of checkpoints." in output


def test_a_folder_that_cannot_be_made_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("launch", "tenants", "--checkpoints", str(tmp_path / "file" / "kept"))
    assert done.code == 3
    assert "--checkpoints" in done.err
