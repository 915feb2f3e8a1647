from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wavetank.ledger import catalog
from wavetank.run import provenance
from wavetank.run.comparison import make_plan


def test_a_run_says_where_its_figures_come_from() -> None:
    plan, study = make_plan("toy-noise", seeds=2)
    about = provenance.of_run(plan, study, "local")
    assert list(about) == [
        "format", "study", "settings", "systems", "parameters", "seeds", "rounds_per_replicate", "command", "started",
        "on", "commit", "code", "own", "versions", "programs", "environment", "machine", "data",
    ]  # fmt: skip
    assert about["rounds_per_replicate"] == 1
    assert about["seeds"] == [0, 1]


def test_rounds_of_a_timing_study_make_one_replicate() -> None:
    plan, study = make_plan("toy-timing", settings={"rounds": 4})
    assert provenance.of_run(plan, study, "here")["rounds_per_replicate"] == 4


def test_the_machine_names_what_decides_measured_figures() -> None:
    found = provenance.machine()
    assert set(found) >= {"processor", "features", "model", "cores", "memory_bytes", "system", "kernel", "load"}
    assert found["cores"] >= 1


def test_the_widest_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"model name": "P", "flags": "sse avx2 avx512f", "vendor_id": "V", "cpu family": "25", "model": "17"}
    monkeypatch.setattr(provenance, "_processor", lambda: facts)
    assert provenance.machine()["features"] == ["AVX-512"]
    assert provenance.machine()["model"] == "V 25 17"
    monkeypatch.setattr(provenance, "_processor", lambda: {**facts, "flags": "sse"})
    assert provenance.machine()["features"] == []


def test_a_system_without_proc_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert provenance._processor() == {}


def test_libraries_that_are_there_have_their_version() -> None:
    found = provenance.versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in found


def test_variables_that_change_libraries_are_kept_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(provenance.environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("MY_SECRET_TOKEN", "x")
    assert provenance.environment() == {"OMP_NUM_THREADS": "3", "OPENBLAS_CORETYPE": "Haswell"}


def test_programs_name_their_version_and_one_that_hangs_or_is_missing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "git"
    good.write_text("#!/bin/sh\necho good 1.2\necho more\n")
    broken = tmp_path / "gcc"
    broken.write_text("#!/no/such/interpreter\n")
    for path in (good, broken):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.programs() == {"git": "good 1.2"}


def test_the_code_is_that_of_the_problems_folders() -> None:
    found = provenance.code_of("llm-routing", ["vllm-default", "balance-route"])
    assert set(found) == {"serving/routing"}
    assert provenance.code_of("toy-noise", ["toy-plain"]) == {}
    assert catalog.study("llm-routing").room == "serving/routing"


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    assert provenance.commit() == ""
