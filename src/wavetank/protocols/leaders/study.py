"""Study ``leader-election``: self-stabilising leader election by anonymous agents, time against memory."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.cai_izumi_wada import CaiIzumiWada
from wavetank.protocols.leaders.interface import Election
from wavetank.protocols.leaders.tradeoff import TradeoffLeader
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study

# Agents for which the crossover is worked out from the fit.
_MODELLED_AGENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
_STARTS = ("all-leaders", "no-leader", "all-rank-1", "duplicate", "garbage")


@dataclass(frozen=True, kw_only=True)
class LeaderElectionStudy(Study):
    """All protocols start from the same kind of corrupted configuration and are held to one definition: a run has
    converged when the ranks are a permutation of 1..n and stay so; its time is that of the last change.
    """

    name = "leader-election"
    baseline = "burman-silent"
    primary = "parallel_time"
    secondary = ("state_bits", "record_bits")
    metrics = (
        Metric("parallel_time", "meetings/n", "lower",
               of="meetings / n until the output changed for the last time, from the start of the settings"),
        Metric("record_bits", "bit", "lower", "counted",
               of="memory of an agent: all fields of its record side by side, in whole bits; clock, timers and roster",
               words="memory per agent"),
        Metric("state_bits", "bit", "lower", "counted",
               of="log2 of the number of states: fields of different modes share their place, a roster is a set"),
        Metric("resets_after", "1/(n time)", "lower",
               of="reset triggers per n parallel time, from a right ranking with consistent records (false alarms)"),
        Metric("doubles_found", "", "higher",
               of="share of runs with one doubled rank in which one sweep of checks triggered a reset"),
        Metric("meetings_per_s", "1/s", "higher", "measured", of="simulated meetings per second on this machine"),
        Metric("roster_bits_of_paper", "bit", "", "modelled",
               of="2 rho log2(rho) + log2(n): the memory in the paper's first version, without its constant",
               table=False),
        Metric("ratio_of_paper", "", "", "modelled",
               of="log2(rho) / rho: the paper's time over linear time, without its constant", table=False),
        Metric("crossover_rho", "", "lower", "simulated",
               of="smallest rho of the sweep at which the median time is below that of burman-silent", table=False),
        Metric("crossover_rho_modelled", "", "lower", "modelled",
               of="rho at which (n / rho) (ln n + c) equals k n, with c and k from the medians of this run",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Time against memory", y="parallel_time", by="bits", log="xy",
              says="Every point is one value of rho; down and to the left is better."),
        Chart("pareto", "Time against memory, as the catalog builds them", x="record_bits", y="parallel_time", log="xy",
              says="The joined protocols form the Pareto front."),
        Chart("sweep", "Time against rho", y="parallel_time", by="rho", log="xy",
              says="A slope of -1 halves the time with every doubling; protocols without rho are level lines."),
        Chart("sweep", "Memory against rho", y="record_bits", by="rho", log="xy",
              says="Rosters grow with rho, the groups of the Austin style with its square."),
        Chart("sweep", "Doubled ranks found in one sweep", y="doubles_found", by="rho",
              says="The design asks for at least 1 - 1 / rho^3."),
        Chart("bars", "Time from every initial configuration", y="parallel_time", by="start", log="y",
              says="A doubled rank is found late by silent protocols: the doubles must meet."),
        Chart("bars", "Time with few agents", y="parallel_time", by="agents", log="y",
              says="The protocol with exponentially many states can be simulated only here."),
    )  # fmt: skip

    agents: int = setting(1024, unit="agents", says="Agents in the main comparison", low=16, high=100_000)
    start: str = setting("garbage", says="Initial configuration of the main comparison", choices=_STARTS)
    rhos: tuple[int, ...] = setting((2, 4, 8, 16, 32), says="Roster sizes that are swept", low=2, high=1024)
    starts: tuple[str, ...] = setting(_STARTS, says="Initial configurations that are also compared", choices=_STARTS)
    few_agents: int = setting(
        64, unit="agents", says="Agents of the comparison in which all protocols take part", low=16, high=256
    )
    watch: float = setting(10.0, says="Time for which a right ranking is observed divided by n", low=0, high=1e6)
    doubles: int = setting(40, unit="runs", says="Runs with one doubled rank, for every rho", low=0, high=100_000)
    double_agents: int = setting(
        128, unit="agents", says="Agents of the runs with one doubled rank", low=16, high=100_000
    )
    most_time: float = setting(100.0, says="Parallel time after which a run is given up divided by n", low=1, high=1e6)

    def check(self) -> None:
        """Refuse rosters that are larger than the population."""
        least = min(self.agents, self.double_agents if self.doubles else self.agents)
        if max(self.rhos, default=0) > least:
            raise BadValueError(
                "A roster cannot hold more names than there are agents.",
                given=max(self.rhos),
                allowed=f"2 to {least}",
                where="rhos",
            )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "A phase of ss-leader takes Theta(log n) time where the paper has Theta(log rho), and with recruits by "
            "coin its names cost log n bits more than the paper's: all of it is in the figures.",
            "ss-leader keeps a right ranking with high probability (resets_after); the other protocols never give one "
            "up, silent or not.",
            f"Silent protocols have converged when all have ranks; ss-leader when a sweep of checks has found nothing, "
            f"which its time does not count.  Runs are given up at {self.most_time:g} n time, those of cai-izumi-wada, "
            "which need n^2, are not.",
            "Constants of every protocol were tuned for its mean time from all-rank-1 at 1024 agents.",
            "burman-sublinear is simulated for few agents only; its memory is counted for all.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run a protocol from every start and along its knob."""
        found = Measurements()
        n = self.agents
        main = self._time(system, n, self.start, seed)
        found.put("parallel_time", main)
        memory = system.memory(n)
        found.put("record_bits", memory.record_bits)
        found.put("state_bits", memory.state_bits)
        found.put("parallel_time", main, bits=memory.record_bits)
        for rho in self.rhos:
            knobbed = _with_rho(system, rho)
            if knobbed is None:
                continue
            same = knobbed == system
            took = main if same else self._time(knobbed, n, self.start, seed)
            memory = knobbed.memory(n)
            found.put("parallel_time", took, rho=rho)
            if not same:
                found.put("parallel_time", took, bits=memory.record_bits)
            found.put("record_bits", memory.record_bits, rho=rho)
            found.put("state_bits", memory.state_bits, rho=rho)
            if isinstance(system, TradeoffLeader):
                found.put("roster_bits_of_paper", 2 * rho * math.log2(rho) + math.log2(n), rho=rho)
                found.put("ratio_of_paper", math.log2(rho) / rho, rho=rho)
                if self.doubles:
                    found.put("doubles_found", self._share_of_doubles_found(knobbed, seed), rho=rho)
        if isinstance(system, TradeoffLeader) and self.doubles:
            found.put("doubles_found", self._share_of_doubles_found(system, seed))
        for start in self.starts:
            found.put("parallel_time", self._time(system, n, start, seed), start=start)
        found.put("parallel_time", self._time(system, self.few_agents, self.start, seed), agents=self.few_agents)
        self._watch(found, system, seed)
        return found

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return from which rho on the rosters are faster than linear time, here and by the fit elsewhere."""
        by_rho: dict[tuple[str, float], list[float]] = defaultdict(list)
        for record in records:
            if record.metric == "parallel_time" and set(record.at) == {"rho"} and not math.isnan(record.value):
                by_rho[record.system, float(record.at["rho"])].append(record.value)
        medians = {key: statistics.median(values) for key, values in by_rho.items()}
        linear = next((value for (name, _), value in medians.items() if name == "burman-silent"), math.nan)
        concluded = []
        for name in ("ss-leader", "ss-leader-tokens"):
            mine = {rho: value for (system, rho), value in sorted(medians.items()) if system == name}
            if not mine or math.isnan(linear):
                continue
            found = Measurements()
            found.put("crossover_rho", next((rho for rho, value in mine.items() if value < linear), math.nan))
            beyond = statistics.median(value * rho / self.agents for rho, value in mine.items()) - math.log(self.agents)
            for n in _MODELLED_AGENTS:
                found.put("crossover_rho_modelled", (math.log(n) + beyond) / (linear / self.agents), agents=n)
            concluded += self.stamp(name, 0, found)
        return concluded

    def _time(self, system: Any, n: int, start: str, seed: int) -> float:
        """Return the parallel time to convergence; NaN where it cannot be simulated or does not converge."""
        if n > system.most_agents:
            return math.nan
        most_time = self.most_time * n * (n if isinstance(system, CaiIzumiWada) else 1)
        election: Election = system.elect(n, start, seed, most_time=most_time)
        return election.time

    def _share_of_doubles_found(self, system: TradeoffLeader, seed: int) -> float:
        first = seed * self.doubles
        return statistics.fmean(
            system.finds_double(self.double_agents, each) for each in range(first, first + self.doubles)
        )

    def _watch(self, found: Measurements, system: Any, seed: int) -> None:
        """Put false alarms and the speed of the simulation, from a right ranking that is left alone."""
        n = min(self.agents, system.most_agents)
        if n < self.agents:
            n = self.few_agents
        agents = system.begin(n, "correct", seed)
        # The first meetings load the compiled code.
        agents.advance(1.0)
        begin_s, began = time.perf_counter(), agents.time
        agents.advance(max(self.watch * n, 1.0))
        took_s, watched = time.perf_counter() - begin_s, agents.time - began
        found.put("resets_after", agents.triggers / (watched / n))
        found.put("meetings_per_s", watched * n / took_s)


def _with_rho(system: Any, rho: int) -> Any:
    """Return the system with that roster size, itself where it has none, None where it cannot be so large."""
    field = next((field for field in dataclasses.fields(system) if field.name == "rho"), None)
    if field is None:
        return system
    return dataclasses.replace(system, rho=rho) if rho <= field.metadata["high"] else None
