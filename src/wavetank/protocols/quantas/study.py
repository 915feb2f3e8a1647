"""Study ``quantas``: distributed algorithms in rounds, with and without faults, as the paper on QUANTAS 2 has them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.consensus.pbft import PBFT
from wavetank.protocols.consensus.raft import Raft
from wavetank.protocols.quantas.alternating_bit import AlternatingBit
from wavetank.protocols.quantas.chains import Parasites, QuantasChain
from wavetank.protocols.quantas.experiments import Experiment, read_experiments
from wavetank.protocols.quantas.kademlia import QuantasKademlia
from wavetank.protocols.quantas.linear_chord import QuantasChord
from wavetank.protocols.quantas.pbft import QuantasPBFT, splitters
from wavetank.protocols.quantas.raft import QuantasRaft
from wavetank.protocols.quantas.rounds import Pauses, QuantasRounds
from wavetank.protocols.quantas.series import lookups
from wavetank.protocols.quantas.stable_data_link import StableDataLink
from wavetank.settings import setting
from wavetank.sim.events import simulate
from wavetank.sim.faults import Equivocation, Fault, RandomCrashes
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request, Run
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial

# Faults of the links between two nodes; the last ones together.
LINK_FAULTS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "drop": {"drop": 0.25},
    "delay": {"most_delay": 3},
    "duplicate": {"duplicate": 0.25},
    "reorder": {"most_delay": 3, "reorder": 0.5, "budget": 2},
    "all": {"most_delay": 3, "drop": 0.1, "duplicate": 0.1, "reorder": 0.25, "budget": 2},
}
_LINK_ROUNDS = 1000
_PER_ROUND = 10
_ASKED = 10**9


@dataclass(frozen=True, kw_only=True)
class QuantasStudy(Study):
    """Every algorithm runs as QUANTAS runs it, in rounds, over channels with QUANTAS's rules; the full Raft and PBFT
    run beside its variants.  With ``file``, the experiments of a QUANTAS file take the place of the built-in ones.
    """

    name = "quantas"
    baseline = "quantas-raft"
    primary = "output_per_round"
    secondary = ("latency_rounds", "kept_under_faults", "messages_per_output")
    metrics = (
        Metric("output_per_round", "1/round", "higher",
               of="messages acknowledged, requests confirmed (mean over nodes), lookups answered, or blocks on the "
                  "main chain / rounds"),
        Metric("messages_per_output", "messages", "lower", of="messages sent / outputs, those of the mean node"),
        Metric("latency_rounds", "rounds", "lower",
               of="mean rounds from start to end of an output, as counted by QUANTAS: a request from its "
                  "replication or proposal on, the full protocols from the client's question on; chains and "
                  "links: NaN", words="latency"),
        Metric("kept_under_faults", "", "higher",
               of="outputs under faults / outputs without: links that drop a quarter, f equivocators (PBFT), crashes "
                  "(Raft), overlays that lose a tenth, honest share of the main chain against half of the power",
                  words="output kept under faults"),
        Metric("violations", "runs", "lower", "counted",
               of="runs of the trial in which an invariant of the algorithm was broken", table=False),
        Metric("utility", "%", "higher", of="100 x messages acknowledged / messages sent, by fault of the links",
               table=False),
        Metric("parasite_share", "", "", of="share of the main chain that parasites mined", table=False),
        Metric("parasite_excess", "", "",
               of="parasite share less the coalition's share of the mining power", table=False),
        Metric("hops", "hops", "lower", of="mean hops of a lookup", table=False),
        Metric("same_outputs", "", "higher", "counted",
               of="share of the outputs of a simulated run without losses that are the same on sockets", table=False),
        Metric("socket_time_ratio", "", "lower", "measured",
               of="wall time on sockets / wall time of the simulation, to the same outputs", table=False),
        Metric("figure", "", "", of="with file: last value of each series of an experiment, mean over its tests",
               table=False),
        Metric("rounds_per_s", "rounds/s", "higher", "measured", of="with file: rounds simulated / wall time"),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Parasites", y="parasite_share", by="power",
              says="Shares rise with the coalition's power; the diagonal would be fair."),
        Chart("sweep", "Parasites that wait for a lead", y="parasite_share", by="lead",
              says="The higher the lead for which the coalition waits, the more blocks it publishes at once."),
        Chart("sweep", "Equivocators", y="output_per_round", by="equivocators",
              says="Every view led by an equivocator is lost."),
        Chart("sweep", "Crashes", y="output_per_round", by="crash_odds", says="Odds of a crash in every round."),
        Chart("bars", "Links under faults", y="utility", by="fault", says="Half of all messages are acknowledgements."),
        Chart("sweep", "Hops", y="hops", by="nodes", log="x", says="Half the logarithm of the number of nodes."),
    )  # fmt: skip
    default_seeds = 6
    cases_by = "experiment"

    rounds: int = setting(
        1000, unit="rounds", says="Rounds of the main runs of consensus and overlays", low=50, high=10**6
    )
    servers: int = setting(19, unit="nodes", says="Servers of Raft and PBFT", low=4, high=1000)
    miners: int = setting(12, unit="nodes", says="Miners of the chains", low=2, high=1000)
    chain_rounds: int = setting(2000, unit="rounds", says="Rounds per run of a chain", low=50, high=10**6)
    nodes: tuple[int, ...] = setting((16, 64, 256, 1024), unit="nodes", says="Nodes of the overlays", low=2, high=10**5)
    coalitions: tuple[int, ...] = setting(
        (1, 2, 3, 4, 5, 6, 7, 8), unit="nodes", says="Numbers of parasites that are swept", low=0
    )
    leads: tuple[int, ...] = setting(
        (1, 2, 4, 8), unit="blocks", says="Leads of a coalition of a quarter of the miners", low=1
    )
    lead: int = setting(4, unit="blocks", says="Lead in the other runs", low=1, high=10**6)
    equivocators: tuple[int, ...] = setting(
        (0, 1, 2, 4, 6, 8), unit="nodes", says="Numbers of equivocators among the servers", low=0
    )
    crash_odds: tuple[float, ...] = setting(
        (0.0, 0.005, 0.01, 0.02, 0.05), says="Odds of a crash per round", low=0.0, high=1.0
    )
    concrete: bool = setting(True, says="Whether quantas2 also runs on sockets on loopback")
    round_s: float = setting(0.01, unit="s", says="Duration of a round on sockets", low=0.001, high=10.0)
    file: str = setting("", says="QUANTAS experiment file to run instead; empty for the built-in experiments")

    def check(self) -> None:
        """Refuse a file that cannot be run and sweeps with more members than there are nodes."""
        if self.file:
            read_experiments(Path(self.file))
        for where, members, size in (
            ("coalitions", self.coalitions, self.miners),
            ("equivocators", self.equivocators, self.servers),
        ):
            if max(members, default=0) > size:
                raise BadValueError("There are fewer nodes.", given=max(members), allowed=f"0 to {size}",
                                    where=where)  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        if self.file:
            return tuple(note for experiment in read_experiments(Path(self.file)) for note in experiment.notes())
        tolerated = QuantasPBFT().max_faults(self.servers)
        return (
            "QUANTAS's leaders make requests of their own when clients have none, so its variants show capacity; the "
            "full Raft and PBFT serve one client's request every third round.",
            "The equivocators lead the first views; the full PBFT doubles its patience from view to view.",
            *(
                f"{count} equivocators among {self.servers} servers are more than PBFT tolerates ({tolerated})."
                for count in self.equivocators
                if count > tolerated
            ),
        )

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the file that is run."""
        if not self.file:
            return {}
        return {self.file: hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return the trials; a file is run by the simulator as such, whose peers it names."""
        if self.file:
            return super().trials([name for name in systems if name == "quantas2"], seeds)
        return super().trials([name for name in systems if name != "quantas2" or self.concrete], seeds)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run an algorithm without and with its faults."""
        found = Measurements()
        if isinstance(system, QuantasRounds):
            if self.file:
                for experiment in read_experiments(Path(self.file)):
                    _measure_experiment(found, experiment, seed)
            else:
                self._compare_with_sockets(found, system, seed)
        elif isinstance(system, AlternatingBit | StableDataLink):
            self._link(found, system, seed)
        elif isinstance(system, QuantasRaft):
            self._raft(found, system, seed)
        elif isinstance(system, QuantasPBFT):
            self._pbft(found, system, seed)
        elif isinstance(system, QuantasChain):
            self._chain(found, system, seed)
        elif isinstance(system, QuantasKademlia | QuantasChord):
            self._overlay(found, system, seed)
        else:
            self._full(found, system, seed)
        return found

    def _link(self, found: Measurements, system: Any, seed: int) -> None:
        outputs = {}
        for fault, rules in LINK_FAULTS.items():
            run = QuantasRounds(**rules).simulate(system, rounds=_LINK_ROUNDS, size=2, seed=seed)  # type: ignore[arg-type]
            outputs[fault] = sum(node == 0 for node, _ in run.decisions)
            found.put("utility", 100.0 * outputs[fault] / max(run.sent, 1), fault=fault)
            if fault == "none":
                _put_main(found, outputs[fault], run, _LINK_ROUNDS, math.nan, experiment="data link")
        found.put("kept_under_faults", outputs["drop"] / max(outputs["none"], 1), experiment="data link")

    def _raft(self, found: Measurements, system: QuantasRaft, seed: int) -> None:
        outputs = []
        patient = dataclasses.replace(system, timeout=20, jitter=10)
        for odds in self.crash_odds:
            pauses = Pauses(odds=odds, rounds=10)
            run = QuantasRounds().simulate(patient, rounds=self.rounds, size=self.servers, seed=seed, pauses=pauses)
            series = system.series(run, self.rounds)
            outputs.append(series["throughput"][-1])
            found.put("output_per_round", outputs[-1] / self.rounds, crash_odds=odds)
            if odds == 0:
                _put_main(found, outputs[-1], run, self.rounds, series["latency"][-1], experiment="consensus")
        if outputs and self.crash_odds[0] == 0:
            found.put("kept_under_faults", outputs[-1] / max(outputs[0], 1e-9), experiment="consensus")

    def _pbft(self, found: Measurements, system: QuantasPBFT, seed: int) -> None:
        rules = QuantasRounds(budget=_PER_ROUND)
        outputs, violations, tolerated = {}, 0, system.max_faults(self.servers)
        for count in sorted({0, tolerated, *self.equivocators}):
            faults = (splitters(range(count), range(self.servers)),) if count else ()
            run = rules.simulate(system, rounds=self.rounds, size=self.servers, seed=seed, faults=faults)
            series = system.series(run, self.rounds)
            outputs[count] = series["throughput"][-1]
            violations += count <= tolerated and bool(run.violation)
            found.put("output_per_round", outputs[count] / self.rounds, equivocators=count)
            if count == 0:
                _put_main(found, outputs[count], run, self.rounds, series["latency"][-1], experiment="consensus")
        found.put("kept_under_faults", outputs[tolerated] / max(outputs[0], 1e-9), experiment="consensus")
        found.put("violations", violations)

    def _full(self, found: Measurements, system: Raft | PBFT, seed: int) -> None:
        """Measure a full protocol that serves one client."""
        draws = Draws(stream_key(seed, "client"))
        # The first leader is elected meanwhile.
        begin = min(100, self.rounds // 2)
        asked = [
            Request(at=at, node=draws.below(self.servers), command=("write", "x", at))
            for at in range(begin, self.rounds, 3)
        ]
        everyone = tuple(range(self.servers))
        faults: tuple[Fault, ...] = (RandomCrashes(members=everyone, odds=max(*self.crash_odds, 1e-6), down_for=10.0),)
        if isinstance(system, PBFT):
            faults = (Equivocation(members=everyone[: system.max_faults(self.servers)]),)
        answered, violations = [], 0
        for each in ((), faults):
            run = simulate(system, size=self.servers, until=self.rounds, seed=seed, requests=asked, faults=each)
            answered.append(len(run.replies))
            violations += bool(run.violation)
            if not each:
                waits = [answer.at - asked[number].at for number, answer in run.replies.items()]
                latency = statistics.fmean(waits) if waits else math.nan
                _put_main(found, len(waits), run, self.rounds - begin, latency, experiment="consensus")
        found.put("kept_under_faults", answered[1] / max(answered[0], 1), experiment="consensus")
        found.put("violations", violations)

    def _overlay(self, found: Measurements, system: Any, seed: int) -> None:
        outputs = {}
        for place, size in enumerate(self.nodes):
            drawn = lookups(size, self.rounds, seed, elsewhere=isinstance(system, QuantasChord))
            asked = [Request(at=at, node=origin, command=target) for at, (origin, target) in enumerate(drawn, 1)]
            for drop in (0.0, 0.1) if place == 0 else (0.0,):
                rules = QuantasRounds(drop=drop)
                run = rules.simulate(system, rounds=self.rounds, size=size, seed=seed, requests=asked)
                hops = [hops for _, _, hops in run.recorded.get("lookup_hops", ())]
                waits = [waited for _, _, waited in run.recorded.get("lookup_rounds", ())]
                outputs[size, drop] = len(hops)
                if drop == 0:
                    found.put("hops", statistics.fmean(hops) if hops else math.nan, nodes=size)
                    if place == 0:
                        latency = statistics.fmean(waits) if waits else math.nan
                        _put_main(found, len(hops), run, self.rounds, latency, experiment="overlay")
        first = self.nodes[0]
        found.put("kept_under_faults", outputs[first, 0.1] / max(outputs[first, 0.0], 1), experiment="overlay")

    def _chain(self, found: Measurements, system: QuantasChain, seed: int) -> None:
        rare = dataclasses.replace(system, submit_rate=5, scaler=4 if system.rule == "longest" else 2)

        def run(count: int, lead: int) -> Run:
            faults = (Parasites(members=tuple(range(count)), lead=lead),) if count else ()
            return QuantasRounds(budget=_PER_ROUND).simulate(
                rare, rounds=self.chain_rounds, size=self.miners, seed=seed, faults=faults
            )

        honest = run(0, 1)
        length = rare.series(honest, self.chain_rounds)["dagLongestChainLength"][0]
        _put_main(found, length, honest, self.chain_rounds, math.nan, experiment="chain")
        half = self.miners // 2
        for count in sorted({half, *self.coalitions}):
            share = rare.parasite_share(run(count, self.lead))
            power = count / self.miners
            found.put("parasite_share", share, power=round(power, 3))
            found.put("parasite_excess", share - power, power=round(power, 3))
            if count == half:
                found.put("kept_under_faults", 1.0 - share, experiment="chain")
        for lead in self.leads:
            found.put("parasite_share", rare.parasite_share(run(self.miners // 4, lead)), lead=lead)

    def _compare_with_sockets(self, found: Measurements, rules: QuantasRounds, seed: int) -> None:
        """Run four algorithms without losses until some outputs are there, in rounds and on loopback."""
        from wavetank.live.cluster import run_cluster

        # Keys that no server makes for itself: an idle leader makes thousands a second on sockets.
        asked = [Request(at=5 * number + 1, node=number % 5, command=_ASKED + number) for number in range(8)]
        jobs: list[tuple[str, Any, int, list[Request], int]] = [
            ("alternating-bit", AlternatingBit(timeout=20), 2, [], 10),
            ("stable-data-link", StableDataLink(timeout=20), 2, [], 10),
            ("quantas-raft", QuantasRaft(submit_rate=0), 5, asked, 8 * 5),
            ("quantas-pbft", QuantasPBFT(patience=100), 4, [], 5 * 4),
        ]
        for name, algorithm, size, requests, wanted in jobs:
            outputs: Callable[[Any], dict[Any, Any]] = _outputs_of(name)

            def enough(run: Any, outputs: Any = outputs, wanted: int = wanted) -> bool:
                return len(outputs(run)) >= wanted

            begin_s = time.perf_counter()
            abstract = rules.simulate(algorithm, rounds=2000, size=size, seed=seed, requests=requests, stop=enough)
            middle_s = time.perf_counter()
            real = run_cluster(
                algorithm, size, requests=requests, duration_s=2000 * self.round_s, round_s=self.round_s, seed=seed,
                stop=enough,
            )  # fmt: skip
            end_s = time.perf_counter()
            one, other = outputs(abstract), outputs(real)
            same = sum(other.get(key) == value for key, value in one.items())
            found.put("same_outputs", same / max(len(one), 1), algorithm=name)
            found.put("socket_time_ratio", (end_s - middle_s) / (middle_s - begin_s), algorithm=name)


def _outputs_of(name: str) -> Callable[[Any], dict[Any, Any]]:
    """Return what to compare: the first decisions, or those about what clients asked."""

    def outputs(run: Any) -> dict[Any, Any]:
        if name == "quantas-raft":
            return {key: value for key, value in run.decisions.items() if key[1] >= _ASKED}
        if name == "quantas-pbft":
            # Rounds are in no decision: who submitted which request.
            return {key: value for key, value in run.decisions.items() if key[1] < 5}
        return {key: value for key, value in run.decisions.items() if key[1] <= 10}

    return outputs


def _put_main(found: Measurements, outputs: float, run: Run, rounds: int, latency: float, *, experiment: str) -> None:
    found.put("output_per_round", outputs / rounds, experiment=experiment)
    found.put("messages_per_output", run.sent / max(outputs, 1), experiment=experiment)
    if not math.isnan(latency):
        found.put("latency_rounds", latency, experiment=experiment)


def _measure_experiment(found: Measurements, experiment: Experiment, seed: int) -> None:
    """Run the tests of an experiment; what QUANTAS writes is there series by series, its last values and their mean."""
    begin_s = time.perf_counter()
    tests = [experiment.test(seed * experiment.tests + number) for number in range(experiment.tests)]
    took_s = time.perf_counter() - begin_s
    last: dict[str, float] = {}
    for name in sorted({name for _, figures in tests for name in figures}):
        values = [figures[name][-1] for _, figures in tests if figures.get(name)]
        if values and all(isinstance(value, int | float) for value in values):
            last[name] = statistics.fmean(values)
            found.put("figure", last[name], experiment=experiment.log_file, series=name)
    rounds = experiment.rounds
    for name, unit in (
        ("throughput", experiment.size if experiment.peer.startswith("StableDataLink") else 1),
        ("kademliaRequestsSatisfied", 1),
        ("linearChordRequestsSatisfied", 1),
        ("dagCommonRootHeight", 1),
    ):
        if name in last:
            outputs = last[name] * unit
            found.put("output_per_round", outputs / rounds, experiment=experiment.log_file)
            sent = statistics.fmean(run.sent for run, _ in tests)
            found.put("messages_per_output", sent / max(outputs, 1), experiment=experiment.log_file)
    for name in ("latency", "kademliaAverageLatency", "linearChordAverageLatency"):
        if name in last:
            found.put("latency_rounds", last[name], experiment=experiment.log_file)
    found.put("rounds_per_s", rounds * experiment.tests / took_s, experiment=experiment.log_file)
