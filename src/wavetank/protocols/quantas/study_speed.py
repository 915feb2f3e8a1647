"""Study ``quantas-speed``: how many rounds a second a simulator of distributed algorithms reaches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, WavetankError
from wavetank.protocols.quantas.experiments import read_experiments
from wavetank.protocols.quantas.rivals import QuantasProgram
from wavetank.settings import setting
from wavetank.study.study import Chart, Metric, Trial
from wavetank.study.timing import Case, Seconds, TimingStudy


def _experiment(
    peer: str, size: int, rounds: int, parameters: Mapping[str, Any], *, per_round: int = 1, tests: int = 1
) -> dict[str, Any]:
    return {
        "threadCount": 1,
        "distribution": {"type": "uniform", "maxDelay": 1, "maxMsgsRec": per_round},
        "topology": {"type": "complete", "initialPeers": size, "initialPeerType": peer},
        "parameters": dict(parameters),
        "tests": tests,
        "rounds": rounds,
    }


_CRASHES = {
    "crash_count": 5, "crash_recovery_round": 40, "crash_recovery_delay": 20, "crash_odds": 0.05,
    "submit_rate": 10, "timeout_spacing": 20, "timeout_jitter": 10,
}  # fmt: skip
_MINERS = {
    "submitRate": 10, "mineRate": 1, "mineScaler": 4, "mineRates": [3],
    "parasiteFault": {"leadThreshold": 3, "peerIndices": [0]},
}  # fmt: skip
# Experiments of QUANTAS's own inputs.  QUANTAS seeds itself anew in every run; where the work differs much from test to
# test, because servers crash and miners are lucky, several tests make up one measurement.
EXPERIMENTS: Mapping[str, dict[str, Any]] = {
    "kademlia-128": _experiment("KademliaPeer", 128, 500, {}),
    "chord-128": _experiment("LinearChordPeer", 128, 500, {}),
    "raft-20": _experiment("RaftPeer", 20, 1000, _CRASHES, tests=10),
    "raft-20-no-crashes": _experiment(
        "RaftPeer", 20, 1000, {"submit_rate": 20, "timeout_spacing": 20, "timeout_jitter": 5}
    ),
    "pbft-100": _experiment("PBFTPeer", 100, 50, {"byzantine_count": 0}, per_round=10),
    "bitcoin-10": _experiment("BitcoinPeer", 10, 2000, _MINERS, tests=3),
    "ethereum-10": _experiment("EthereumPeer", 10, 1000, {**_MINERS, "mineScaler": 2}, tests=3),
}


@dataclass(frozen=True, kw_only=True)
class QuantasSpeed(TimingStudy):
    """Both systems run the same experiments of QUANTAS's inputs on one core, one after the other in every round."""

    name = "quantas-speed"
    baseline = "quantas2"
    cases_by = "experiment"
    metrics = (
        Metric("rounds_per_s", "rounds/s", "higher", "measured", "rounds of all tests of the experiment / wall time"),
    )
    charts = (Chart("bars", "Rounds per second", y="rounds_per_s", by="experiment", log="x", says="Longer is faster."),)

    binaries: str = setting(
        "", says="Folder of QUANTAS's programs, one named after each peer; empty leaves the peers out"
    )
    experiments: tuple[str, ...] = setting(
        tuple(EXPERIMENTS), says="Experiments that are timed", choices=tuple(EXPERIMENTS)
    )

    def check(self) -> None:
        """Refuse a folder that is not there."""
        if self.binaries and not Path(self.binaries).is_dir():
            raise BadFileError("There is no folder of QUANTAS's programs.", given=self.binaries, where="binaries")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        if self.binaries:
            return ("The time of quantas-cpp includes the start of its process.",)
        return ("quantas-cpp is left out: build QUANTAS, one program a peer, and give --set binaries=FOLDER.",)

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial a seed and experiment, without programs that are not there."""
        here = [name for name in systems if name != "quantas-cpp" or self.binaries]
        return super().trials(here, seeds) if here else []

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the experiments."""
        return self.experiments

    def case(self, name: str, seed: int) -> Case:
        """Return an experiment and the seed."""
        return Case(name=name, data=(EXPERIMENTS[name], seed))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return a call that runs the experiment and returns the figures of its tests."""
        wanted, seed = case.data
        if isinstance(system, QuantasProgram):
            folder, peer = Path(self.binaries), wanted["topology"]["initialPeerType"]
            return lambda: system.run(folder, peer, wanted)["tests"]
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "experiment.json"
            path.write_text(json.dumps({"experiments": [wanted]}))
            (experiment,) = read_experiments(path)
        return lambda: [experiment.test(seed + number)[1] for number in range(experiment.tests)]

    def verify(self, case: Case, system: str, result: object) -> None:
        """Refuse a run in which nothing was achieved."""
        tests: Any = result
        wanted = ("throughput", "kademliaRequestsSatisfied", "linearChordRequestsSatisfied", "dagLongestChainLength")
        if not all(any(figures[name][-1] > 0 for name in wanted if name in figures) for figures in tests):
            raise WavetankError(f"The experiment {case.name!r} came to nothing.", given=system)

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return rounds per second."""
        wanted = EXPERIMENTS[case.name]
        return {"rounds_per_s": wanted["rounds"] * wanted["tests"] / times[name]}
