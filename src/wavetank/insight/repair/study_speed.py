"""Study ``blanket-speed``: what a posterior costs from a blanket, from the whole graph, and by pgmpy."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.diagnosis.outside import PYTHON, outside_python
from wavetank.insight.repair.inference import FullGraphInference, PgmpyInference, Question
from wavetank.insight.repair.networks import Floats, Network
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

SEEN = ("everything", "telemetry")
_NEAR = 12
_MOST_PARENTS = 3


def service_graph(seed: int, nodes: int) -> tuple[Network, tuple[int, ...]]:
    """Return a random network of a fleet, and which of its variables are faults.

    Every fifth variable is a fault, a root with two levels; others have three levels and one to three parents among
    the twelve variables before them, as services depend on what is near.

    Parameters
    ----------
    seed : int
    nodes : int
    """
    draws = stream(seed, "service graph", nodes)
    faults = tuple(range(0, nodes, 5))
    parents, tables = list[tuple[int, ...]](), list[Floats]()
    levels = [2 if node in faults else 3 for node in range(nodes)]
    for node in range(nodes):
        if node in faults:
            parents.append(())
            chance = float(draws.uniform(0.02, 0.2))
            tables.append(np.array([1 - chance, chance]))
            continue
        before = np.arange(max(0, node - _NEAR), node)
        many = int(draws.integers(1, _MOST_PARENTS + 1))
        of = tuple(sorted(int(each) for each in draws.permutation(before)[:many]))
        parents.append(of)
        tables.append(draws.dirichlet(np.ones(levels[node]), size=[levels[each] for each in of]))
    return Network(tuple(f"v{node}" for node in range(nodes)), tuple(parents), tuple(tables)), faults


def drawn_levels(network: Network, seed: int) -> list[int]:
    """Return one state of all variables, drawn from a network whose parents come before their children.

    Parameters
    ----------
    network : Network
    seed : int
    """
    draws = stream(seed, "levels", len(network.names))
    state: list[int] = []
    for node, of in enumerate(network.parents):
        chances = network.tables[node][tuple(state[each] for each in of)]
        state.append(int(draws.choice(len(chances), p=chances)))
    return state


@functools.lru_cache(maxsize=64)
def asked(seed: int, nodes: int, seen: str, count: int) -> tuple[Network, tuple[Question, ...], tuple[Floats, ...]]:
    """Return a network, questions, and their answers from the whole graph.

    Parameters
    ----------
    seed : int
    nodes : int
    seen : str
        Of ``SEEN``: all other variables, or all but faults.
    count : int
        Questions, each with telemetry of its own.
    """
    network, faults = service_graph(seed, nodes)
    questions = []
    for turn in range(count):
        node = faults[turn % len(faults)]
        state = drawn_levels(network, seed * 1000 + turn)
        hidden = {node} if seen == "everything" else set(faults)
        questions.append(Question(node, {each: state[each] for each in range(nodes) if each not in hidden}))
    return network, tuple(questions), tuple(FullGraphInference().answer(network, each) for each in questions)


@dataclass(frozen=True, kw_only=True)
class BlanketSpeed(Study):
    """Random causal graphs of 10 to 200 variables, a fifth of them faults.  Each system says how likely single faults
    are, once with everything else observed and once with telemetry alone, all faults hidden.  The blanket and the whole
    graph use the same code, on fewer or more tables.  What a blanket leaves out is measured beside what it saves.
    """

    name: ClassVar[str] = "blanket-speed"
    baseline: ClassVar[str] = "full-graph-inference"
    primary: ClassVar[str] = "latency_s"
    secondary: ClassVar[tuple[str, ...]] = ("posterior_gap",)
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    metrics = (
        Metric("latency_s", "s", "lower", "measured", "one posterior of one fault, telemetry alone, median over "
               "questions, geometric mean over sizes; at nodes and seen: of that size, observed like that",
               words="time of a posterior"),
        Metric("posterior_gap", "", "lower", "modelled", "largest difference of a probability from that of the whole "
               "graph, telemetry alone, over sizes; at seen: observed like that", words="difference of posteriors"),
        Metric("blanket_nodes", "", "", "counted", "variables in a fault's blanket, mean, by nodes", table=False),
    )  # fmt: skip
    charts = (
        Chart("sweep", "As the graph grows", y="latency_s", by="nodes", log="xy", says="A blanket does not grow."),
        Chart("pareto", "Time against fidelity", x="latency_s", y="posterior_gap",
              says="Down and to the left is better."),
    )

    sizes: tuple[int, ...] = setting((10, 25, 50, 100, 200), unit="nodes", says="Variables of the graphs", low=5,
                                     high=2000)  # fmt: skip
    questions: int = setting(10, says="Posteriors asked for, each size and way of observing", low=1, high=10_000)
    rounds: int = setting(3, says="How often each is asked; the least time counts", low=1, high=1000)
    peer_questions: int = setting(3, says="Of these, what pgmpy is asked, once each: it is slow", low=1, high=10_000)
    outside: str = setting("", says=PYTHON.format("pgmpy"))

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        if not outside_python(self.outside):
            return ("pgmpy is not here (make insight-peers): it is left out.",)
        return ("pgmpy is asked in one process, model and engine built before the clock starts.",)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Ask all questions of a seed."""
        found, cases = Measurements(), [(nodes, seen) for nodes in self.sizes for seen in SEEN]
        work = [asked(seed, nodes, seen, self.questions) for nodes, seen in cases]
        if isinstance(system, PgmpyInference):
            python = outside_python(self.outside)
            if not python:
                return found
            some = [(network, questions[: self.peer_questions]) for network, questions, _ in work]
            said = system.answers(python, some)
        else:
            said = [_timed(system, network, questions * self.rounds) for network, questions, _ in work]
        gaps, times = dict.fromkeys(SEEN, 0.0), []
        for (nodes, seen), (network, _, right), (answers, spent) in zip(cases, work, said, strict=True):
            # The least time of all rounds is that of a machine that does nothing else.
            took = float(np.median(np.array(spent).reshape(-1, min(len(spent), self.questions)).min(axis=0)))
            found.put("latency_s", took, nodes=nodes, seen=seen)
            times += [took] if seen == "telemetry" else []
            gap = max(float(np.abs(np.array(a) - b).max()) for a, b in zip(answers, right * self.rounds, strict=False))
            gaps[seen] = max(gaps[seen], gap)
            if seen == "everything":
                faults = service_graph(seed, nodes)[1]
                found.put("blanket_nodes", float(np.mean([len(network.blanket(each)) for each in faults])), nodes=nodes)
        for seen, gap in gaps.items():
            found.put("posterior_gap", gap, seen=seen)
        found.put("posterior_gap", gaps["telemetry"])
        found.put("latency_s", float(np.exp(np.mean(np.log(times)))))
        return found


def _timed(system: Any, network: Network, questions: tuple[Question, ...]) -> tuple[list[Any], list[float]]:
    answers, spent = [], []
    for question in questions:
        begin = time.perf_counter()
        answers.append(system.answer(network, question))
        spent.append(time.perf_counter() - begin)
    return answers, spent
