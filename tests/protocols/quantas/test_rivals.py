"""Tests of running QUANTAS's own programs, with a script in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.protocols.quantas.rivals import QuantasProgram

EXPERIMENT = {"tests": 1, "rounds": 1}


def program(folder: Path, script: str) -> None:
    path = folder / "RaftPeer.exe"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_gets_the_experiment_and_its_result_is_read(tmp_path: Path) -> None:
    program(tmp_path, """grep -q '"rounds": 1' "$1" && echo '{"RunTime": 1, "tests": [{"x": [1]}]}' > result.txt""")
    assert QuantasProgram().run(tmp_path, "RaftPeer", EXPERIMENT)["tests"] == [{"x": [1]}]


def test_a_program_that_is_missing_fails_hangs_or_writes_nonsense_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="no program"):
        QuantasProgram().run(tmp_path, "RaftPeer", EXPERIMENT)
    for script, said in (
        ("exit 3", "did not finish"),
        ("exit 0", "did not finish"),
        ("echo hello > result.txt", "wrote no result"),
        ("echo '[]' > result.txt", "another form"),
    ):
        program(tmp_path, script)
        with pytest.raises(WavetankError, match=said):
            QuantasProgram().run(tmp_path, "RaftPeer", EXPERIMENT)
    program(tmp_path, "exec sleep 60")
    with pytest.raises(WavetankError, match="did not finish"):
        QuantasProgram(limit_s=0.2).run(tmp_path, "RaftPeer", EXPERIMENT)


def test_a_limit_is_a_time() -> None:
    with pytest.raises(BadValueError):
        QuantasProgram(limit_s=0.0)
