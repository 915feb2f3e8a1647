"""Study ``reliable-broadcast``: what does a delivery cost in bytes and rounds, and does it survive Byzantine nodes?"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast.accounting import HASH_BYTES, SIGNATURE_BYTES
from wavetank.protocols.broadcast.trials import drawn, judged
from wavetank.settings import setting
from wavetank.sim.events import simulate
from wavetank.sim.rng import stream_key
from wavetank.sim.simulation import Request, Run
from wavetank.study.study import Chart, Measurements, Metric, Study

_PROPERTIES = ("agreement", "totality", "validity", "integrity", "invariants")
_SENDER = 0


@dataclass(frozen=True, kw_only=True)
class ReliableBroadcast(Study):
    """First a correct node broadcasts once a round, every message takes one round, and bytes, messages and rounds are
    counted.  Then runs are drawn in which floor((n - 1) / 3) nodes collude, delays have heavy tails and messages
    overtake each other; every property that is broken counts.  All systems see the same requests, faults and delays.
    """

    name = "reliable-broadcast"
    baseline = "hash-bracha"
    primary = "bytes_per_delivery"
    secondary = ("startup_rounds", "lag_rounds")
    must_be_zero = ("agreement_violations", "totality_violations")
    metrics = (
        Metric(
            "bytes_per_delivery",
            "bytes",
            "lower",
            "counted",
            "bytes that all nodes send in the whole stream / deliveries (broadcasts times nodes); MessagePack encoding "
            "with declared payloads and 64-byte signatures, frames left out",
        ),
        Metric(
            "slope_bytes",
            "bytes",
            "lower",
            "counted",
            "bytes that all nodes send for one more broadcast: those of the second half of the stream, per round",
            table=False,
        ),
        Metric(
            "slope_over_bound",
            "",
            "lower",
            "counted",
            "slope_bytes / (n M + c n (signature + hash)), c = log2 n rounded up, M the payload",
        ),
        Metric(
            "messages_per_delivery", "", "lower", "counted", "messages that all nodes send / deliveries", table=False
        ),
        Metric(
            "lone_rounds",
            "rounds",
            "lower",
            "counted",
            "message delays until all nodes have delivered a broadcast while no other is in flight: the first",
        ),
        Metric(
            "startup_rounds",
            "rounds",
            "lower",
            "counted",
            "message delays until all nodes have delivered the second broadcast, the first with others in flight",
            words="start-up time",
        ),
        Metric(
            "lag_rounds",
            "rounds",
            "lower",
            "counted",
            "message delays until all nodes have delivered a broadcast, median over the stream",
            words="lag",
        ),
        Metric(
            "agreement_violations",
            "",
            "lower",
            "counted",
            "adversarial runs in which two correct nodes deliver differently",
        ),
        Metric(
            "totality_violations",
            "",
            "lower",
            "counted",
            "adversarial runs in which a correct node never delivers a broadcast that another has delivered",
        ),
        Metric(
            "validity_violations",
            "",
            "lower",
            "counted",
            "adversarial runs in which a correct sender's broadcast is not delivered at every node",
            table=False,
        ),
        Metric(
            "other_violations",
            "",
            "lower",
            "counted",
            "adversarial runs in which a delivery differs from the broadcast, is repeated or is out of order",
            table=False,
        ),
        Metric("adversarial_runs", "", "", "counted", "runs of this trial", table=False),
    )
    charts = (
        Chart(
            "sweep",
            "Bytes per delivery",
            "bytes_per_delivery",
            by="nodes",
            log="xy",
            says="Echoes of all nodes to all nodes grow with n, committees with log n.",
        ),
        Chart(
            "sweep",
            "Start-up",
            "startup_rounds",
            by="nodes",
            log="x",
            says="The figure shows the price of amortizing in time.",
        ),
        Chart(
            "bars", "Runs without totality", "totality_violations", says="The figure shows the price of random samples."
        ),
    )
    default_seeds = 3

    nodes: tuple[int, ...] = setting(
        (31, 100), unit="nodes", says="Numbers of nodes of the fault-free streams", low=4, high=4096
    )
    payload_bytes: tuple[int, ...] = setting(
        (1024, 65_536, 1_048_576), unit="bytes", says="Declared sizes of a payload", low=1, high=2**31
    )
    broadcasts: int = setting(40, says="Broadcasts per stream, one per round", low=4, high=100_000)
    runs: int = setting(300, says="Adversarial runs per seed", low=0, high=10_000_000)
    fault_nodes: tuple[int, ...] = setting(
        (4, 5, 6, 7, 10), unit="nodes", says="Numbers of nodes of adversarial runs, one drawn for each", low=4, high=301
    )
    fault_broadcasts: int = setting(4, says="Broadcasts per sender in an adversarial run", low=1, high=1000)

    def check(self) -> None:
        """Refuse settings that measure nothing."""
        if not self.nodes and not self.runs:
            raise BadValueError("There is neither a stream nor an adversarial run.", given=(self.nodes, self.runs))
        if self.nodes and not self.payload_bytes:
            raise BadValueError("A stream has payloads.", given=self.payload_bytes, where="setting payload_bytes")
        if self.runs and not self.fault_nodes:
            raise BadValueError("Adversarial runs have a size.", given=self.fault_nodes, where="setting fault_nodes")

    def measure(self, system: Any, seed: int) -> Measurements:
        """Play the streams and the adversarial runs of one seed."""
        found = Measurements()
        for nodes in self.nodes:
            for payload in self.payload_bytes:
                self._stream(found, dataclasses.replace(system, payload_bytes=payload), nodes, payload, seed)
        if self.runs:
            self._adversarial(found, system, seed)
        return found

    def _stream(self, found: Measurements, system: Any, nodes: int, payload: int, seed: int) -> None:
        requests = [
            Request(at=float(number), node=_SENDER, command=("broadcast", number.to_bytes(4, "big")))
            for number in range(1, self.broadcasts + 1)
        ]
        run = simulate(system, size=nodes, until=self.broadcasts + 8.0 * nodes, seed=seed, requests=requests)
        at: dict[str, float | str] = {"nodes": nodes, "payload_bytes": payload}
        deliveries = len(run.decisions)
        found.put("bytes_per_delivery", run.total("bytes") / deliveries if deliveries else math.nan, **at)
        begin = self.broadcasts // 2
        steady = sum(value for time, _, value in run.recorded["bytes"] if begin < time <= self.broadcasts)
        slope = steady / (self.broadcasts - begin)
        signed = math.ceil(math.log2(nodes)) * (SIGNATURE_BYTES + HASH_BYTES)
        found.put("slope_bytes", slope, **at)
        found.put("slope_over_bound", slope / (nodes * (payload + signed)), **at)
        if payload == self.payload_bytes[0]:
            lags = [self._lag(run, number, nodes) for number in range(1, self.broadcasts + 1)]
            found.put("messages_per_delivery", run.sent / deliveries if deliveries else math.nan, nodes=nodes)
            found.put("lone_rounds", lags[0], nodes=nodes)
            found.put("startup_rounds", lags[1], nodes=nodes)
            found.put("lag_rounds", statistics.median(lags), nodes=nodes)

    def _lag(self, run: Run, number: int, nodes: int) -> float:
        """Return the message delays until all have delivered; infinite when one never does."""
        times = [run.decided_at.get((node, (_SENDER, number)), math.inf) for node in range(nodes)]
        return max(times) - number

    def _adversarial(self, found: Measurements, system: Any, seed: int) -> None:
        broken = dict.fromkeys(_PROPERTIES, 0)
        for number in range(self.runs):
            drawn_run = drawn(
                stream_key(seed, "reliable-broadcast", number),
                sizes=self.fault_nodes,
                broadcasts=self.fault_broadcasts,
            )
            for name, words in judged(system, drawn_run.play(system)).items():
                broken[name] += bool(words)
        found.put("agreement_violations", broken["agreement"])
        found.put("totality_violations", broken["totality"])
        found.put("validity_violations", broken["validity"])
        found.put("other_violations", broken["integrity"] + broken["invariants"])
        found.put("adversarial_runs", self.runs)
