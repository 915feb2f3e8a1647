"""Study ``agent-discovery``: three overlays, a registry and gossip as the directory of agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.directory import PURPOSES, Directory
from wavetank.protocols.overlays.live.library_peers import LibraryDirectory, loopback_workload
from wavetank.protocols.overlays.live.loopback import try_on_loopback
from wavetank.protocols.overlays.trial import Conditions, Found, try_directory
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

REGIMES = ("stationary", "start-at-once", "start-warmed", "churn", "continuum", "frontier", "loopback")


@dataclass(frozen=True, kw_only=True)
class AgentDiscovery(Study):
    """All overlays have the same identifiers, records, lookups, failures, periods, timeouts and redundancy; only
    routing and upkeep differ.  A registry and gossip bound them from below and above, libraries run the same keys on
    loopback.
    """

    name = "agent-discovery"
    baseline = "chord-directory"
    primary = "success"
    secondary = ("messages", "latency_p99_rounds", "control_messages")
    cases_by = "regime"
    metrics = (
        Metric("success", "", "higher",
               of="lookups that return the published endpoint, whose publisher is up for the whole run / "
                  "lookups that count", words="successful lookups"),
        Metric("messages", "1/(node round)", "lower", of="all messages sent / nodes / rounds"),
        Metric("control_messages", "1/(node round)", "lower",
               of="messages of join, stabilize and refresh / nodes / rounds"),
        Metric("hops", "nodes", "lower", of="nodes asked one after the other, mean over successful lookups"),
        Metric("latency_p50_rounds", "rounds", "lower", of="time from query to answer of successful lookups, median"),
        Metric("latency_p95_rounds", "rounds", "lower", of="time from query to answer of successful lookups, 95th "
                                                           "percentile", table=False),
        Metric("latency_p99_rounds", "rounds", "lower", of="time from query to answer of successful lookups, 99th "
                                                           "percentile", words="p99 latency"),
        Metric("first_success_rounds", "rounds", "lower",
               of="from the start of the run to a node's first success, median over nodes that asked", table=False),
        Metric("questions", "", "lower", of="queries per lookup, mean", table=False),
        Metric("bytes", "bytes/(node round)", "lower", "modelled",
               of="28 of headers and 8 per message, 26 per contact, 20 per key, the text of records / nodes / rounds"),
        Metric("messages_by_purpose", "1/(node round)", "lower", of="messages of one purpose / nodes / rounds",
               table=False),
        Metric("warm_up_success_ratio", "", "higher", of="success after a warm-up of log2 N rounds / without"),
        Metric("warm_up_latency_ratio", "", "lower", of="mean latency of successes after the warm-up / without"),
        Metric("warm_up_messages_ratio", "", "lower", of="messages of lookups, per lookup, after the warm-up / "
                                                         "without"),
        Metric("live_success", "", "higher", "measured", of="lookups over sockets that return the endpoint / lookups"),
        Metric("live_agreement", "", "higher", "measured",
               of="lookups over UDP whose endpoints are those of the simulation / lookups"),
        Metric("live_latency_p50_s", "s", "lower", "measured", of="seconds from query to answer, median",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("pareto", "Cost against latency", x="messages", y="latency_p95_rounds", log="x",
              says="Every point is a redundancy and a period; down and to the left is better."),
        Chart("bars", "Success", y="success", by="regime", says="Without churn, all overlays should be at 1."),
        Chart("bars", "Control traffic", y="control_messages", by="regime", log="y",
              says="The cost of upkeep before the first lookup."),
        Chart("bars", "Messages by purpose", y="messages_by_purpose", by="purpose", log="y",
              says="Kademlia's refresh is a whole lookup, Pastry's refresh a single query."),
        Chart("bars", "Tail latency", y="latency_p99_rounds", by="regime", says="Timeouts cause the tail."),
    )  # fmt: skip

    regimes: tuple[str, ...] = setting(
        tuple(name for name in REGIMES if name not in ("frontier", "loopback")),
        choices=REGIMES,
        says="Regimes that are tried",
    )
    nodes: int = setting(512, unit="nodes", low=8, high=65_536, says="Nodes in the stationary regime")
    small_nodes: int = setting(
        128,
        unit="nodes",
        low=8,
        high=65_536,
        says="Nodes in the regimes start-at-once, start-warmed, churn and continuum",
    )
    frontier_nodes: int = setting(256, unit="nodes", low=8, high=65_536, says="Nodes in the frontier regime")
    live_nodes: int = setting(64, unit="nodes", low=4, high=256, says="Nodes on loopback")
    keys: int = setting(256, low=1, high=100_000, says="Records, each under a key of its own")
    lookups: int = setting(1024, low=1, high=1_000_000, says="Most lookups in the stationary regime")
    rounds: float = setting(100.0, unit="rounds", low=70, high=100_000, says="Rounds per run")
    sessions: tuple[float, ...] = setting((10.0, 30.0, 100.0), unit="rounds", low=2, says="Mean up times under churn")
    absence: float = setting(10.0, unit="rounds", low=1, says="Mean down time under churn")
    redundancies: tuple[int, ...] = setting((8, 16, 24), low=2, high=64, says="Redundancies in the frontier regime")
    periods: tuple[float, ...] = setting((4.0, 10.0, 20.0), unit="rounds", low=1, says="Periods in the frontier regime")
    live_lookups: int = setting(64, low=1, high=10_000, says="Lookups on loopback")

    def check(self) -> None:
        """Refuse no regimes."""
        if not self.regimes:
            raise BadValueError("There is no regime to try.", allowed=REGIMES, where="regimes")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Stationary tables are exact at the start and kept up; a look at neighbours every 10 rounds, at a further "
            "part of the table every 20.  At the start: 2 and 1.  Under churn: 4 and 4.  All overlays alike.",
            "A start knows the nearest nodes and log2 N random ones; records are in place.  Without warm-up lookups "
            "fall into the first log2 N rounds, with it into the next.",
            f"Churn at {self.small_nodes} nodes, node 0 and so the registry included; lookups have 30 rounds.",
            "Continuum: 30 % of nodes in the cloud (1-5 ms), the others at the edge (20-60 ms a leg), 10 % with a link "
            "that is on for 60 and off for 10 rounds; a round is 125 ms.",
            "On loopback kademlia-library and libp2p-dht run their own protocols over their own transports; their "
            "times include their own periods and limits.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Try a directory in all regimes."""
        found = Measurements()
        if isinstance(system, LibraryDirectory):
            if "loopback" in self.regimes:
                workload = loopback_workload(self.live_nodes, self.live_lookups, seed)
                success, latency_s = system.try_out(self.live_nodes, workload)
                found.put("live_success", success, regime="loopback")
                found.put("live_latency_p50_s", latency_s, regime="loopback")
            return found
        tries = {
            "stationary": self._stationary,
            "churn": self._churn,
            "continuum": self._continuum,
            "frontier": self._frontier,
            "loopback": self._loopback,
        }
        for regime, call in tries.items():
            if regime in self.regimes:
                call(found, system, seed)
        if {"start-at-once", "start-warmed"} & set(self.regimes):
            self._start(found, system, seed)
        return found

    def _conditions(self, nodes: int, **others: Any) -> Conditions:
        settings = {"keys": self.keys, "lookups": min(self.lookups, nodes), "rounds": self.rounds, **others}
        return Conditions(nodes=nodes, **settings)

    def _stationary(self, found: Measurements, system: Directory, seed: int) -> None:
        conditions = self._conditions(self.nodes, lookups=self.lookups)
        result = try_directory(system, conditions, seed)
        _put(found, result, regime="stationary")
        for purpose in PURPOSES:
            found.put("messages_by_purpose", result.messages[purpose], purpose=purpose)

    def _start(self, found: Measurements, system: Directory, seed: int) -> None:
        quick = dataclasses.replace(system, stabilize_rounds=2.0, refresh_rounds=1.0)
        results = {}
        for regime, warm_up in (("start-at-once", False), ("start-warmed", True)):
            window = float((self.small_nodes - 1).bit_length())
            conditions = self._conditions(self.small_nodes, tables="cold", warm_up=warm_up, window_rounds=window)
            results[regime] = try_directory(quick, conditions, seed)
            if regime in self.regimes:
                _put(found, results[regime], regime=regime)
        cold, warm = results["start-at-once"], results["start-warmed"]
        if cold.latencies and warm.latencies:
            found.put("warm_up_success_ratio", warm.success / cold.success)
            # Gossip answers on the spot: nothing over nothing is no change.
            found.put("warm_up_latency_ratio", _ratio(_mean(warm.latencies), _mean(cold.latencies)))
            found.put("warm_up_messages_ratio", _ratio(warm.asked, cold.asked))

    def _churn(self, found: Measurements, system: Directory, seed: int) -> None:
        busy = dataclasses.replace(system, stabilize_rounds=4.0, refresh_rounds=4.0, deadline_rounds=30.0)
        for session in self.sessions:
            conditions = self._conditions(
                self.small_nodes, mean_session_rounds=session, mean_absence_rounds=self.absence
            )
            _put(found, try_directory(busy, conditions, seed), regime=f"churn-{session:g}")

    def _continuum(self, found: Measurements, system: Directory, seed: int) -> None:
        conditions = self._conditions(self.small_nodes, continuum=True)
        _put(found, try_directory(system, conditions, seed), regime="continuum")

    def _frontier(self, found: Measurements, system: Directory, seed: int) -> None:
        conditions = self._conditions(
            self.frontier_nodes,
            keys=min(self.keys, self.frontier_nodes),
            mean_session_rounds=100.0,
            mean_absence_rounds=self.absence,
        )
        for redundancy in self.redundancies:
            for period in self.periods:
                tuned = dataclasses.replace(
                    system,
                    redundancy=redundancy,
                    stabilize_rounds=period,
                    refresh_rounds=period,
                    deadline_rounds=30.0,
                )
                result = try_directory(tuned, conditions, seed)
                at: Mapping[str, float] = {"redundancy": redundancy, "period_rounds": period}
                found.put("messages", sum(result.messages.values()), **at)
                found.put("success", result.success, **at)
                if result.latencies:
                    found.put("latency_p95_rounds", result.latency(0.95), **at)

    def _loopback(self, found: Measurements, system: Directory, seed: int) -> None:
        workload = loopback_workload(self.live_nodes, self.live_lookups, seed)
        result = try_on_loopback(dataclasses.replace(system, salt=seed), self.live_nodes, workload, seed)
        found.put("live_success", result.success, regime="loopback")
        found.put("live_agreement", result.agreement, regime="loopback")
        found.put("live_latency_p50_s", result.latency_p50_s, regime="loopback")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ratio(one: float, other: float) -> float:
    return 1.0 if one == other else one / max(other, 1e-9)


def _put(found: Measurements, result: Found, **at: str) -> None:
    found.put("success", result.success, **at)
    found.put("messages", sum(result.messages.values()), **at)
    found.put("control_messages", result.control, **at)
    found.put("bytes", sum(result.bytes.values()), **at)
    found.put("questions", result.asked, **at)
    if result.latencies:
        found.put("hops", sum(result.hops) / len(result.hops), **at)
        found.put("first_success_rounds", result.first_success_rounds, **at)
        for quantile in (50, 95, 99):
            found.put(f"latency_p{quantile}_rounds", result.latency(quantile / 100), **at)
