"""The study quantas-speed in a tiny form."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.errors import BadFileError, WavetankError
from wavetank.ledger import catalog
from wavetank.protocols.quantas.study_speed import EXPERIMENTS, QuantasSpeed
from wavetank.study.study import Trial

TINY = QuantasSpeed(rounds=1, experiments=("kademlia-128", "raft-20"))


def test_rounds_per_second_are_reported_for_every_experiment() -> None:
    records = []
    for case in TINY.case_names(0):
        trial = Trial(systems=("quantas2",), seed=0, case=case)
        records += TINY.run(trial, {"quantas2": catalog.system("quantas2").build()})
    speeds = {record.at["experiment"]: record.value for record in records if record.metric == "rounds_per_s"}
    times = {record.at["experiment"]: record.value for record in records if record.metric == "time_s"}
    assert {name: speed * times[name] for name, speed in speeds.items()} == pytest.approx(
        {name: EXPERIMENTS[name]["rounds"] * EXPERIMENTS[name]["tests"] for name in TINY.experiments}
    )


def test_quantas_itself_takes_part_when_its_programs_are_there(tmp_path: Path) -> None:
    systems = catalog.built_in().plain_run("quantas-speed")
    assert [trial.systems for trial in TINY.trials(systems, [0])] == [("quantas2",)] * 2
    assert "left out" in TINY.notes()[0]
    program = tmp_path / "KademliaPeer"
    program.write_text('#!/bin/sh\necho \'{"tests": [{"kademliaRequestsSatisfied": [490]}]}\' > result.txt\n')
    program.chmod(0o755)
    study = QuantasSpeed(rounds=1, experiments=("kademlia-128",), binaries=str(tmp_path))
    study.check()
    (trial,) = study.trials(catalog.built_in().plain_run("quantas-speed"), [0])
    records = study.run(trial, {name: catalog.system(name).build() for name in trial.systems})
    assert {record.system for record in records if record.metric == "rounds_per_s"} == {"quantas2", "quantas-cpp"}
    assert "start of its process" in study.notes()[0]


def test_a_run_that_came_to_nothing_takes_no_part() -> None:
    case = TINY.case("raft-20", 0)
    with pytest.raises(WavetankError, match="came to nothing"):
        TINY.verify(case, "quantas2", [{"throughput": [0.5]}, {"throughput": [0.0]}])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError):
        QuantasSpeed(binaries=str(tmp_path / "none")).check()
