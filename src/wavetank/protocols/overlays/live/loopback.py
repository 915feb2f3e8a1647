"""The nodes that were simulated, over UDP on loopback, and whether they find the same.

Tables are not given here: every node joins through the first ones, publishes, and asks, as it would anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.live.cluster import run_cluster
from wavetank.protocols.overlays.directory import Directory, Outcome
from wavetank.protocols.overlays.live.library_peers import Record, figures
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request

_JOIN_ROUNDS = 100
_PUBLISH_ROUNDS = 40
_ASK_ROUNDS = 40


@dataclass(frozen=True, kw_only=True)
class LoopbackResult:
    """What lookups over sockets found.

    Parameters
    ----------
    success : float
        Lookups that return the endpoint / lookups.
    agreement : float
        Lookups whose endpoints are those of the simulation / lookups.
    latency_p50_s : float
        Median of the successful ones.
    """

    success: float
    agreement: float
    latency_p50_s: float


def requests_of(workload: Sequence[Record]) -> list[Request]:
    """Return publications and lookups in rounds, after time for all to join."""
    count = len(workload)
    publications = [
        Request(
            at=_JOIN_ROUNDS + place * _PUBLISH_ROUNDS / count,
            node=each.publisher,
            command=("publish", each.key, each.endpoint),
        )
        for place, each in enumerate(workload)
    ]
    start = _JOIN_ROUNDS + 2 * _PUBLISH_ROUNDS
    lookups = [
        Request(at=start + place * _ASK_ROUNDS / count, node=each.asker, command=("lookup", each.key))
        for place, each in enumerate(workload)
    ]
    return publications + lookups


def try_on_loopback(
    directory: Directory, nodes: int, workload: Sequence[Record], seed: int, *, round_s: float = 0.05
) -> LoopbackResult:
    """Run the same publications and lookups over UDP and in simulation.

    Parameters
    ----------
    directory : Directory
    nodes : int
        Sockets on this machine, all in this process.
    workload : sequence of Record
    seed : int
    round_s : float
        Seconds per round; a question is given up after four, so that a busy machine does not look like a dead node.
    """
    patient = dataclasses.replace(directory, timeout_rounds=4.0, stabilize_rounds=2.0, refresh_rounds=20.0)
    requests = requests_of(workload)
    rounds = requests[-1].at + patient.deadline_rounds
    simulated = simulate(patient, size=nodes, until=rounds, seed=seed, requests=requests)
    live = run_cluster(
        patient,
        nodes,
        requests=requests,
        duration_s=rounds * round_s,
        round_s=round_s,
        seed=seed,
        transport="udp",
        stop=lambda run: len(run.replies) == len(requests),
    )
    first = len(workload)
    agreed = 0
    latencies_s = []
    for place, each in enumerate(workload, first):
        over_udp, expected = live.replies.get(place), simulated.replies.get(place)
        outcome: Outcome | None = over_udp.result if over_udp else None
        if outcome is not None and each.endpoint in outcome.endpoints:
            latencies_s.append(live.latencies_s[place])
        agreed += outcome is not None and expected is not None and outcome.endpoints == expected.result.endpoints
    success, latency_p50_s = figures(latencies_s, first)
    return LoopbackResult(success=success, agreement=agreed / first, latency_p50_s=latency_p50_s)
