"""Adversarial runs of a broadcast protocol, drawn from a seed, and what a run has to keep.

A run draws its size, its faulty nodes and their behaviour, the delays of its links, and what the scheduler favours.
When all is quiet, agreement, totality, validity and order are judged on the correct nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.protocols.broadcast.accounting import broken_totality, payload_of
from wavetank.protocols.broadcast.adversaries import ADVERSARIES, Favour
from wavetank.sim.events import simulate
from wavetank.sim.faults import Fault
from wavetank.sim.network import Network
from wavetank.sim.node import Algorithm, disagreement
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request, Run, Scheduler

# Long past the last timer and the slowest message of a run: of delays with heavy tails, one in some ten million exceeds
# 20,000 rounds.
UNTIL_ROUNDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a run is made of.

    Parameters
    ----------
    size : int
    seed : int
    network : Network
    faults : tuple of Fault
    scheduler : Scheduler or None
    requests : tuple of Request
    says : str
        The adversary's name.
    """

    size: int
    seed: int
    network: Network
    faults: tuple[Fault, ...]
    scheduler: Scheduler | None
    requests: tuple[Request, ...]
    says: str

    def play(self, algorithm: Algorithm) -> Run:
        """Run an algorithm in this setting, until all is quiet."""
        return simulate(
            algorithm,
            network=self.network,
            until=UNTIL_ROUNDS,
            life="events",
            seed=self.seed,
            requests=self.requests,
            faults=self.faults,
            scheduler=self.scheduler,
            # Deliveries cannot be taken back: what is broken stays broken.
            invariant="at-the-end",
        )


def drawn(seed: int, *, sizes: Sequence[int] = (4, 5, 6, 7), broadcasts: int = 4) -> Setting:
    """Return the setting of a seed.

    Parameters
    ----------
    seed : int
    sizes : sequence of int
        Sizes to choose from; floor((n - 1) / 3) nodes are faulty.
    broadcasts : int
        Of each sender; one sender is faulty, one may be any node.
    """
    draws = Draws(stream_key(seed, "broadcast trials"))
    size = draws.choice(sizes)
    members = tuple(sorted(draws.sample(range(size), (size - 1) // 3)))
    name = draws.choice(sorted(ADVERSARIES))
    delay = draws.choice(({"delay": "exponential", "least_delay": 0.1}, {"delay": "pareto", "least_delay": 0.3}))
    reorder = draws.choice((0.0, 0.3))
    parts = tuple(draws.below(2) for _ in range(size))
    scheduler = Favour(parts, draws.choice((3.0, 60.0))) if draws.chance(0.4) else None
    senders = [draws.choice(members)] if members else []
    senders += [draws.below(size)]
    pace = draws.choice((0.0, 1.0, 4.0))
    requests = [
        Request(at=1.0 + number * pace, node=node, command=("broadcast", f"{place} {number}".encode()))
        for place, node in enumerate(dict.fromkeys(senders))
        for number in range(broadcasts)
    ]
    return Setting(
        size=size,
        seed=seed,
        network=Network.complete(size, reorder=reorder, **delay),
        faults=tuple(ADVERSARIES[name](members, size, draws)) if members else (),
        scheduler=scheduler,
        requests=tuple(requests),
        says=name,
    )


def judged(algorithm: Algorithm, run: Run) -> dict[str, str]:
    """Return what is broken at the end of a run: property to words, "" for what holds.

    Returns
    -------
    dict
        ``agreement``, ``totality``, ``validity`` (a correct sender's broadcasts are delivered by all), ``integrity``
        (they are delivered as sent, once) and the algorithm's own ``invariants``.
    """
    snapshot = run.snapshot()
    validity = integrity = ""
    sent: dict[int, int] = {}
    for request in run.requests:
        if request.node not in run.correct:
            continue
        number = sent[request.node] = sent.get(request.node, 0) + 1
        for node in run.correct:
            found = run.decisions.get((node, (request.node, number)))
            if found is None:
                validity = f"node {node} never delivered broadcast {number} of correct node {request.node}"
            elif found != payload_of(request.command):
                integrity = f"node {node} delivered {found!r} as broadcast {number} of correct node {request.node}"
    own = [each for each in run.contradictions if int(each.split()[1]) in run.correct]
    return {
        "agreement": disagreement(snapshot),
        "totality": broken_totality(snapshot),
        "validity": validity,
        "integrity": integrity or (own[0] if own else ""),
        "invariants": algorithm.violation(snapshot),
    }
