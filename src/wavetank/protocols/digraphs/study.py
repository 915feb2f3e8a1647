"""Directed networks: how many allow consensus, and what a decision costs where they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.adversaries import ADVERSARIES, Adversary, attack
from wavetank.protocols.digraphs.approximate import ApproximateConsensus
from wavetank.protocols.digraphs.conditions import LARGEST, holds
from wavetank.protocols.digraphs.path_adversaries import PATH_ADVERSARIES
from wavetank.protocols.digraphs.routes import links_of
from wavetank.protocols.digraphs.signed_consensus import SignedConsensus
from wavetank.protocols.digraphs.unsigned import UnsignedConsensus
from wavetank.settings import setting
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.network import Network, Topology
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Run
from wavetank.study.study import Chart, Measurements, Metric, Study


@dataclass(frozen=True, kw_only=True)
class ByzantineDigraphs(Study):
    """Random networks are drawn at several densities, and those that meet each algorithm's condition are counted.  On
    ``tried`` networks per density the algorithm then runs: where its condition is met, once against every adversary
    that knows it; signed consensus also where its condition is missed, against an attack made for that network.

    All algorithms see the same networks and, on each of them, the same faulty nodes.  What these do differs between
    signed chains, unsigned messages and flooding, which meets nodes that are down, and with it the inputs, which are
    drawn in between.  An algorithm that no drawn network allows runs on a complete one.
    """

    name: ClassVar[str] = "byzantine-digraphs"
    baseline: ClassVar[str] = "unsigned-digraph-consensus"
    primary: ClassVar[str] = "solvable_share"
    secondary: ClassVar[tuple[str, ...]] = ("messages_per_decision", "rounds_per_decision")
    must_be_zero: ClassVar[tuple[str, ...]] = ("violations",)
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "solvable_share", "", "higher", "counted",
            "share of random digraphs that meet the system's condition, mean over the densities", table=True,
            words="solvable digraphs",
        ),
        Metric(
            "solvable_share_at_density", "", "higher", "counted",
            "share of random digraphs of one edge probability that meet the condition", table=False,
        ),
        Metric(
            "violations", "", "lower", "counted",
            "runs without agreement (to epsilon) or validity of correct nodes, on digraphs that meet the condition",
        ),
        Metric("runs", "", "", "counted", "runs against adversaries, on digraphs that meet the condition", table=False),
        Metric("messages_per_decision", "messages", "lower", "counted", "messages sent / decisions of correct nodes"),
        Metric("rounds_per_decision", "rounds", "lower", "counted", "round of the decision, mean over correct nodes"),
        Metric(
            "broken_share", "", "higher", "counted",
            "share of digraphs that miss the signed condition in which a run of the attack breaks the algorithm",
        ),
        Metric(
            "contraction", "", "lower", "counted",
            "range of the correct nodes' values after an asynchronous round / before, the worst of all runs",
        ),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "sweep",
            "Networks that allow consensus",
            y="solvable_share_at_density",
            by="density",
            says="The gap between the curves is the effect of signatures.",
        ),
        Chart(
            "bars",
            "Messages per decision",
            y="messages_per_decision",
            log="y",
            says="Messages per decision: the cost of consensus.",
        ),
    )

    size: int = setting(7, unit="nodes", low=2, high=12, says="Nodes per network")
    faults: int = setting(1, low=1, high=3, says="Byzantine nodes that the algorithms tolerate")
    densities: tuple[float, ...] = setting(
        (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), low=0.0, high=1.0, says="Probabilities of an edge"
    )
    graphs: int = setting(100, low=1, high=1_000_000, says="Networks per density")
    tried: int = setting(8, low=0, high=100_000, says="Networks per density on which runs are tried")

    def check(self) -> None:
        """Refuse more faults than nodes."""
        if self.faults >= self.size or self.size > LARGEST:
            raise BadValueError("Some nodes may be faulty, not all.", given=self.faults, allowed=f"< {self.size}")

    def notes(self) -> tuple[str, ...]:
        """Say what was counted."""
        return (
            "The signed condition was derived here; the text of the paper's was not at hand.",
            "Approximate consensus runs in rounds like the others, so that costs compare; it does not count on them.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Count networks, try runs."""
        found = Measurements()
        shares, runs, broken = [], Runs(), []
        for density in self.densities:
            met = tried = 0
            for graph, draws in self._graphs(density, seed):
                allowed = self._allows(system, graph)
                met += allowed
                if tried >= self.tried:
                    continue
                if allowed:
                    tried += 1
                    self._try(system, graph, draws, runs)
                elif type(system) is SignedConsensus:
                    tried += 1
                    broken.append(self._is_broken(system, graph))
            shares.append(met / self.graphs)
            found.put("solvable_share_at_density", met / self.graphs, density=density)
        found.put("solvable_share", sum(shares) / len(shares))
        if not runs.count:
            # Its networks are too rare to be drawn: a complete one stands for them.
            draws = Draws(stream_key(seed, "complete"))
            self._try(system, Topology.complete(self.size), draws, runs)
        found.put("violations", runs.violations)
        found.put("runs", runs.count)
        if runs.decisions:
            found.put("messages_per_decision", runs.messages / runs.decisions)
            found.put("rounds_per_decision", runs.rounds / runs.decisions)
        if runs.contraction:
            found.put("contraction", runs.contraction)
        if broken:
            found.put("broken_share", sum(broken) / len(broken))
        return found

    def _graphs(self, density: float, seed: int) -> Iterator[tuple[Topology, Draws]]:
        for number in range(self.graphs):
            key = stream_key(seed, "digraph", repr(density), number)
            yield (
                Topology.named("random", self.size, probability=density, directed=True, seed=key),
                Draws(stream_key(key, "run")),
            )

    def _allows(self, system: Any, graph: Topology) -> bool:
        if system.condition == "complete":
            everyone = all(len(graph.peers(node)) == self.size - 1 for node in range(self.size))
            return everyone and self.size > 2 * self.faults
        return holds(system.condition, graph, self.faults)

    def _try(self, system: Any, graph: Topology, draws: Draws, runs: Runs) -> None:
        members = tuple(draws.sample(range(self.size), self.faults))
        for adversary in _adversaries(system).values():
            faults = adversary(members, graph, draws)
            inputs = (draws.below(2),) if draws.chance(0.3) else tuple(draws.below(2) for _ in range(self.size))
            algorithm = replace(system, faults=self.faults, inputs=inputs)
            if isinstance(algorithm, UnsignedConsensus | ApproximateConsensus):
                algorithm = replace(algorithm, links=links_of(graph))
            if isinstance(algorithm, ApproximateConsensus):
                algorithm = replace(algorithm, inputs=tuple(algorithm.spread * each for each in inputs))
            until = algorithm.rounds(self.size) + 1
            run = simulate(algorithm, network=Network(topology=graph), until=until, seed=draws.bits(), faults=faults)
            correct = [key for key in run.decisions if key[0] not in members]
            runs.count += 1
            runs.violations += bool(run.violation) or len(correct) < self.size - self.faults
            runs.messages += run.sent
            runs.decisions += len(correct)
            runs.rounds += sum(run.decided_at[key] for key in correct)
            runs.contraction = max(runs.contraction, contraction(run))

    def _is_broken(self, system: SignedConsensus, graph: Topology) -> bool:
        for each in attack(graph, self.faults):
            algorithm = replace(system, faults=self.faults, inputs=each.inputs)
            until = algorithm.rounds(self.size) + 1
            run = simulate(algorithm, network=Network(topology=graph), until=until, faults=each.faults)
            if run.violation:
                return True
        return False


def _adversaries(system: Any) -> Mapping[str, Adversary]:
    if isinstance(system, SignedConsensus):
        return ADVERSARIES
    if isinstance(system, UnsignedConsensus | ApproximateConsensus):
        return PATH_ADVERSARIES
    return {"silent": lambda members, graph, draws: [Crash(members=members)]}


def contraction(run: Run) -> float:
    """Return the worst ratio of the range of the correct nodes' values after a round and before it.

    Parameters
    ----------
    run : Run
        In which each node recorded its ``value`` whenever it began a round.

    Returns
    -------
    float
        0 when no round began with different values.
    """
    values: dict[int, list[float]] = {}
    for _, node, value in run.recorded.get("value", ()):
        if node in run.correct:
            values.setdefault(node, []).append(value)
    ranges = [max(each) - min(each) for each in zip(*values.values(), strict=False)]
    return max((after / before for before, after in pairwise(ranges) if before), default=0.0)


@dataclass
class Runs:
    """Sums over runs.

    Attributes
    ----------
    count, violations, messages, decisions : int
    rounds : float
        Sum of the rounds of all decisions.
    contraction : float
        The worst of all rounds of approximate consensus; 0 when there was none.
    """

    count: int = 0
    violations: int = 0
    messages: int = 0
    decisions: int = 0
    rounds: float = 0.0
    contraction: float = 0.0
