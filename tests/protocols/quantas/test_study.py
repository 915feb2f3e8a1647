"""The study quantas in a tiny form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.quantas.study import QuantasStudy
from wavetank.study.study import Trial

TINY = QuantasStudy(
    rounds=200, servers=7, miners=6, chain_rounds=300, nodes=(16, 64), coalitions=(1, 4), leads=(1, 3),
    equivocators=(0, 1), crash_odds=(0.0, 0.05),
)  # fmt: skip
FAMILIES = {
    "data link": ("alternating-bit", "stable-data-link"),
    "consensus": ("quantas-raft", "raft", "quantas-pbft", "pbft"),
    "overlay": ("quantas-kademlia", "quantas-chord"),
    "chain": ("quantas-bitcoin", "quantas-ethereum"),
}


def measured(name: str, study: QuantasStudy = TINY) -> dict[tuple[Any, ...], float]:
    records = study.run(Trial(systems=(name,), seed=0), {name: catalog.system(name).build()})
    return {(record.metric, *record.at.values()): record.value for record in records}


@pytest.mark.parametrize(("family", "name"), [(key, name) for key, names in FAMILIES.items() for name in names])
def test_every_system_achieves_something_and_less_under_faults(family: str, name: str) -> None:
    found = measured(name)
    assert 0 < found["output_per_round", family] <= 1
    assert found["messages_per_output", family] >= 1
    assert 0 <= found["kept_under_faults", family] <= 1
    if family in ("consensus", "overlay"):
        assert found["latency_rounds", family] >= 1
    assert found.get(("violations",), 0) == 0


def test_links_are_tried_under_every_fault() -> None:
    found = measured("stable-data-link")
    assert found["utility", "none"] == pytest.approx(50, abs=0.5)
    assert all(found["utility", fault] < 50 for fault in ("drop", "delay", "reorder", "all"))


def test_shares_of_parasites_rise_with_their_power() -> None:
    found = measured("quantas-bitcoin")
    assert found["parasite_share", 0.167] < found["parasite_share", 0.5] < found["parasite_share", 0.667]
    assert found["parasite_excess", 0.667] == pytest.approx(found["parasite_share", 0.667] - 4 / 6)
    assert ("parasite_share", 3) in found


def test_hops_grow_with_the_overlay() -> None:
    for name in FAMILIES["overlay"]:
        found = measured(name)
        assert found["hops", 16] < found["hops", 64] < math.log2(64)


def test_sockets_and_rounds_agree() -> None:
    found = measured("quantas2")
    names = ("alternating-bit", "stable-data-link", "quantas-raft", "quantas-pbft")
    assert {name: found["same_outputs", name] for name in names} == dict.fromkeys(names, 1.0)
    assert all(found["socket_time_ratio", name] > 0 for name in names)


def test_a_file_takes_the_place_of_the_built_in_experiments(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    topology = {"type": "complete", "initialPeers": 4, "initialPeerType": "PBFTPeer"}
    faults = {"byzantine_count": 2}
    path.write_text(
        json.dumps(
            {
                "experiments": [
                    {"logFile": "a", "tests": 2, "rounds": 40, "topology": topology, "distribution": {"maxMsgsRec": 9}},
                    {"logFile": "b", "tests": 1, "rounds": 40, "topology": topology, "parameters": faults},
                ]
            }
        )
    )
    study = QuantasStudy(file=str(path))
    study.check()
    assert study.notes() == ("b: 2 faulty peers of 4; PBFTPeer tolerates 1.",)
    assert len(study.data()[str(path)]) == 64
    assert [trial.systems for trial in study.trials(catalog.built_in().plain_run("quantas"), [0])] == [("quantas2",)]
    found = measured("quantas2", study)
    assert found["figure", "a", "throughput"] == 13.0
    assert found["output_per_round", "a"] == pytest.approx(13 / 40)
    assert found["latency_rounds", "a"] == 3
    assert found["rounds_per_s", "b"] > 0


def test_without_sockets_the_simulator_as_such_sits_out() -> None:
    trials = QuantasStudy(concrete=False).trials(catalog.built_in().plain_run("quantas"), [0])
    assert ("quantas2",) not in [trial.systems for trial in trials]


def test_settings_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError):
        QuantasStudy(coalitions=(13,)).check()
    with pytest.raises(BadValueError):
        QuantasStudy(equivocators=(20,)).check()
    with pytest.raises(BadFileError):
        QuantasStudy(file=str(tmp_path / "none.json")).check()
    assert any("more than PBFT tolerates" in note for note in QuantasStudy().notes())
