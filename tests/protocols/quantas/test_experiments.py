"""Tests of QUANTAS's experiment files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, WavetankError
from wavetank.protocols.quantas.experiments import PEERS, read_experiments
from wavetank.workloads import datasets

BASE: dict[str, Any] = {
    "logFile": "one.txt",
    "threadCount": 4,
    "distribution": {"type": "uniform", "maxDelay": 1},
    "topology": {"type": "complete", "initialPeers": 6, "initialPeerType": "KademliaPeer"},
    "tests": 2,
    "rounds": 30,
}


def written(tmp_path: Path, **changes: Any) -> Path:
    """Write a file with one experiment; dots in a name lead into the objects of the experiment."""
    experiment = json.loads(json.dumps(BASE))
    for name, value in changes.items():
        *path, last = name.split("__")
        place = experiment
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    target = tmp_path / "input.json"
    target.write_text(json.dumps({"algorithms": ["KademliaPeer/KademliaPeer.cpp"], "experiments": [experiment]}))
    return target


def shipped() -> list[Path]:
    try:
        first = datasets.find("quantas-experiments", "RaftInput.json")
    except WavetankError:
        pytest.skip("the data set quantas-experiments is not here")
    return sorted(first.parent.glob("*.json"))


def test_every_shipped_file_is_read() -> None:
    found = {path.name: read_experiments(path) for path in shipped()}
    assert {name: len(each) for name, each in found.items()} == {
        "AltBitUtility.json": 4, "BitcoinParasiteSweep.json": 110, "BitcoinPeerInput.json": 1,
        "BitcoinSpeedTest.json": 1, "EthereumPeerInput.json": 1, "ExampleInput.json": 3, "KademliaPeerInput.json": 4,
        "LinearChordInput.json": 4, "PBFTInput.json": 1, "RaftInput.json": 4,
    }  # fmt: skip
    (speed,) = found["BitcoinSpeedTest.json"]
    assert (speed.size, speed.rounds, speed.tests, speed.parameters) == (300, 1000, 10, None)
    assert found["RaftInput.json"][0].rules.budget == 1
    assert found["PBFTInput.json"][0].rules.budget == 10


@pytest.mark.parametrize(
    "name", ["AltBitUtility", "ExampleInput", "KademliaPeerInput", "LinearChordInput", "PBFTInput", "RaftInput",
             "BitcoinPeerInput", "EthereumPeerInput", "BitcoinSpeedTest"],
)  # fmt: skip
def test_the_shipped_inputs_run_and_give_what_quantas_writes(name: str) -> None:
    (path,) = (path for path in shipped() if path.stem == name)
    for experiment in read_experiments(path):
        for seed in range(experiment.tests):
            _, figures = experiment.test(seed)
            assert all(isinstance(values, list) for values in json.loads(json.dumps(figures)).values())
            # QUANTAS's Bitcoin without parameters stands still.
            assert bool(figures) == (name != "BitcoinSpeedTest")


def test_the_example_with_a_list_of_links_gives_quantas_figures() -> None:
    path = next(path for path in shipped() if path.stem == "ExampleInput")
    _, second = read_experiments(path)[1].test(0)
    assert second["sentMessages"] == [3, 6, 9]
    assert second["finalMessageCount"] == [9]
    assert [(each["to"], each["from"], each["receivedRound"]) for each in second["receivedMessages"]] == [
        (1, 0, 2), (2, 0, 2), (2, 1, 2), (1, 0, 3), (2, 0, 3), (2, 1, 3),
    ]  # fmt: skip


def test_defaults_are_quantas_defaults(tmp_path: Path) -> None:
    (found,) = read_experiments(written(tmp_path, distribution={}))
    rules = found.rules
    assert (rules.delay, rules.least_delay, rules.most_delay, rules.budget) == ("uniform", 1, 1, 1)
    assert (rules.drop, rules.duplicate, rules.reorder, rules.queue) == (0, 0, 0, None)
    raft = written(tmp_path, topology__initialPeerType="RaftPeer")
    algorithm = read_experiments(raft)[0].setup(0).algorithm
    assert (algorithm.submit_rate, algorithm.timeout, algorithm.jitter) == (20, 100, 5)
    links = written(tmp_path, topology__initialPeerType="AltBitPeer", topology__initialPeers=2)
    assert read_experiments(links)[0].setup(0).algorithm.timeout == 30


@pytest.mark.parametrize(
    ("kind", "more", "links"),
    [
        ("star", {}, {0: (1, 2, 3, 4, 5), 3: (0,)}),
        ("chain", {}, {0: (1,), 3: (2, 4), 5: (4,)}),
        ("ring", {}, {0: (1, 5), 3: (2, 4)}),
        ("unidirectionalRing", {}, {0: (1,), 5: (0,)}),
        ("grid", {"height": 2, "width": 3}, {0: (1, 3), 4: (1, 3, 5)}),
        ("torus", {"height": 2, "width": 3}, {0: (1, 2, 3), 4: (1, 3, 5)}),
        ("torus", {"height": 6, "width": 1}, {0: (1, 5), 3: (2, 4)}),
        ("userList", {"list": {"0": [1, 2], "4": [0]}}, {0: (1, 2), 1: (), 4: (0,)}),
    ],
)
def test_topologies_link_who_they_should(
    kind: str, more: dict[str, Any], links: dict[int, tuple[int, ...]], tmp_path: Path
) -> None:
    changes = {f"topology__{name}": value for name, value in {"type": kind, **more}.items()}
    topology = read_experiments(written(tmp_path, **changes))[0].setup(0).topology
    assert {node: tuple(topology.peers(node)) for node in links} == links


def test_random_identifiers_move_places_and_faults_with_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, topology__type="star", topology__identifiers="random",
                   topology__initialPeerType="PBFTPeer", parameters__byzantine_count=1)  # fmt: skip
    (experiment,) = read_experiments(path)
    centres = set()
    for seed in range(20):
        setup = experiment.setup(seed)
        (centre,) = (node for node in range(6) if len(setup.topology.peers(node)) == 5)
        assert setup.faults[0].members == (centre,)
        centres.add(centre)
    assert len(centres) > 2


def test_the_concrete_names_of_peers_are_known() -> None:
    assert {"RaftPeer", "RaftPeerConcrete", "AltBitPeerConcrete", "ExamplePeer2"} <= set(PEERS)


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    path = written(tmp_path, topology__initialPeerType="RaftPeer", parameters__crash_odds=0.02,
                   parameters__crash_recovery_delay=5, rounds=200)  # fmt: skip
    (experiment,) = read_experiments(path)
    one, again, other = (experiment.test(seed)[1] for seed in (0, 0, 100))
    assert one == again != other


def test_the_log_of_a_run_does_not_depend_on_threads(tmp_path: Path) -> None:
    few, many = (written(tmp_path, threadCount=count) for count in (1, 2))
    assert read_experiments(few)[0].test(3)[1] == read_experiments(many)[0].test(3)[1]


@pytest.mark.parametrize(
    ("changes", "given", "nearest", "where"),
    [
        ({"topology__initialPeerType": "RaftPear"}, "RaftPear", "RaftPeer", "topology.initialPeerType"),
        ({"topology__type": "complet"}, "complet", "complete", "topology.type"),
        ({"distribution__type": "unifrom"}, "unifrom", "UNIFORM", "distribution.type"),
        ({"distribution__dropProbabilty": 0.1}, "dropProbabilty", "dropProbability", "distribution"),
        ({"round": 3}, "round", "rounds", "experiments[0]"),
        ({"parameters__submitRat": 3, "topology__initialPeerType": "BitcoinPeer"}, "submitRat", "submitRate",
         "parameters"),
        ({"parameters__anything": 3}, "anything", None, "parameters"),
        ({"distribution__dropProbability": 1.5}, "1.5", None, "distribution.dropProbability"),
        ({"distribution__maxDelay": 1, "distribution__minDelay": 3}, "1", None, "distribution.maxDelay"),
        ({"distribution__maxMsgsRec": 0}, "0", None, "distribution.maxMsgsRec"),
        ({"distribution": [1]}, "[1]", None, "distribution"),
        ({"rounds": "many"}, "many", None, "rounds"),
        ({"rounds": 0}, "0", None, "rounds"),
        ({"tests": True}, "True", None, "tests"),
        ({"topology__initialPeers": 0}, "0", None, "topology.initialPeers"),
        ({"topology__type": "grid", "topology__height": 3, "topology__width": 3}, "3 x 3", None, "topology.height"),
        ({"topology__type": "userList", "topology__list": {"9": []}}, "9", None, "topology.list"),
        ({"topology__type": "userList", "topology__list": {"0": [6]}}, "[6]", None, "topology.list.0"),
        ({"topology__initialPeerType": "PBFTPeer", "parameters__byzantine_count": 7}, "7", None,
         "parameters.byzantine_count"),
        ({"topology__initialPeerType": "BitcoinPeer", "parameters__mineRates": 3}, "3", None, "parameters.mineRates"),
        ({"topology__initialPeerType": "BitcoinPeer", "parameters__parasiteFault": {"leadTreshold": 3}}, "leadTreshold",
         "leadThreshold", "parameters.parasiteFault"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(
    changes: dict[str, Any], given: str, nearest: str | None, where: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFileError) as caught:
        read_experiments(written(tmp_path, **changes))
    assert given in str(caught.value.given)
    assert caught.value.nearest == nearest
    assert (caught.value.where or "").endswith(where)


def test_what_is_no_json_is_refused_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text('{\n  "experiments": [\n    {"rounds" 3}\n  ]\n}\n')
    with pytest.raises(BadFileError, match="line 3, column 15"):
        read_experiments(path)
    for text in (
        "[]",
        '{"experiments": []}',
        '{"experiment": [1]}',
        '{"algorithms": 3, "experiments": [1]}',
        "[" * 9999,
    ):
        path.write_text(text)
        with pytest.raises(BadFileError):
            read_experiments(path)
    with pytest.raises(BadFileError, match="cannot be read"):
        read_experiments(tmp_path / "none.json")


def test_more_faults_than_the_protocol_tolerates_are_allowed_but_said(tmp_path: Path) -> None:
    path = written(tmp_path, topology__initialPeerType="PBFTPeer", parameters__byzantine_count=3)
    (experiment,) = read_experiments(path)
    assert experiment.notes() == ("one.txt: 3 faulty peers of 6; PBFTPeer tolerates 0.",)
    experiment.test(0)
    path = written(tmp_path, topology__initialPeerType="RaftPeer", parameters__crash_count=3)
    assert "3 of 6 peers are down" in read_experiments(path)[0].notes()[0]
    path = written(tmp_path, topology__initialPeerType="EthereumPeer",
                   parameters={"mineRates": [9], "parasiteFault": {"count": 1}})  # fmt: skip
    assert "more than half" in read_experiments(path)[0].notes()[0]
    assert read_experiments(written(tmp_path))[0].notes() == ()
