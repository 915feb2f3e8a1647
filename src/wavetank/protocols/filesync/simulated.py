"""One simulated run of an engine: devices, cuts and clocks of a scenario, and what the oracles say afterwards.

The engines run as events over links with delay and loss.  When people stop working the links heal, everything comes to
rest, and only then is counted what differs.

Source: the account follows :mod:`wavetank.protocols.filesync.oracles`; links are those of
:mod:`wavetank.sim.network`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.protocols.filesync.applications import Backup, Files, Look
from wavetank.protocols.filesync.device import Device, FileOperation, Notice, Wire
from wavetank.protocols.filesync.oracles import Damage, judge
from wavetank.protocols.filesync.tree import MemoryTree
from wavetank.protocols.filesync.workloads import Scenario
from wavetank.sim.events import simulate
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.node import Algorithm, Node
from wavetank.sim.simulation import Request, Run

DRAIN_ROUNDS = 400.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run gave.

    Parameters
    ----------
    damage : Damage
    operations : tuple of FileOperation
    notices : tuple of Notice
    looks : tuple of (float, int, mapping)
        Time, device and what a reader saw.
    at_end : dict
        Device to its files.
    bytes_sent, messages : int
        Over all links, both ways.
    refused : int
        Programs that stopped and said why.
    """

    damage: Damage
    operations: tuple[FileOperation, ...]
    notices: tuple[Notice, ...]
    looks: tuple[tuple[float, int, Files], ...]
    at_end: dict[int, Files]
    bytes_sent: int
    messages: int
    refused: int


def network_of(scenario: Scenario, seed: int, *, drop: float = 0.0, delay_rounds: float = 0.05) -> Network:
    """Return a star with the cloud in its middle and the scenario's cuts.

    Parameters
    ----------
    scenario : Scenario
    seed : int
    drop : float
        Probability that a message is lost.
    delay_rounds : float
        Least delay; delays are uniform up to four times that.
    """
    links = Links(
        delay="uniform-real",
        least_delay=delay_rounds,
        most_delay=4 * delay_rounds,
        drop=drop,
        partitions=scenario.partitions(seed),
    )
    return Network(topology=Topology.named("star", scenario.devices + 1), links=links)


def run_simulated(
    engine: Algorithm,
    scenario: Scenario,
    seed: int,
    *,
    drop: float = 0.0,
    delay_rounds: float = 0.05,
    disk_bytes: float = math.inf,
    requests: Sequence[Request] = (),
) -> Outcome:
    """Run an engine through a scenario.

    Parameters
    ----------
    engine : Algorithm
    scenario : Scenario
    seed : int
    drop, delay_rounds : float
        See :func:`network_of`.
    disk_bytes : float
        Room on each device.
    requests : sequence of Request
        Actions to take instead of the scenario's own.
    """
    clocks = scenario.clocks(seed)

    def equip(nodes: Sequence[Node]) -> None:
        for index, node in enumerate(nodes):
            if isinstance(node, Device):
                node.tree = MemoryTree(clocks[index], disk_bytes)

    asked = list(requests) or [
        Request(at=action.at, node=action.device, command=action.command) for action in scenario.actions(seed)
    ]
    end = max(scenario.rounds, *(request.at for request in asked)) if asked else scenario.rounds
    run = simulate(
        engine,
        network=network_of(scenario, seed, drop=drop, delay_rounds=delay_rounds),
        until=end + DRAIN_ROUNDS,
        life="events",
        seed=seed,
        requests=asked,
        setup=equip,
        # Its token's exchange is asked step by step by the explorer; here the oracles judge.
        invariant="at-the-end",
    )
    return outcome_of(run)


def outcome_of(run: Run) -> Outcome:
    """Return what the oracles say about a finished run."""
    devices = {index: node for index, node in enumerate(run.nodes) if isinstance(node, Device)}
    wires = [node for node in run.nodes if isinstance(node, Wire)]
    # Operations of one instant stay in the order in which the device did them.
    operations = tuple(
        sorted(
            (operation for device in devices.values() for operation in device.operations),
            key=lambda operation: operation.at,
        )
    )
    notices = tuple(sorted(notice for wire in wires for notice in wire.notices))
    at_end: dict[int, Files] = {index: device.files() for index, device in devices.items()}
    looks, backups = [], []
    for number, request in enumerate(run.requests):
        answer = run.replies.get(number)
        if answer is None or isinstance(answer.result, str):
            continue
        if isinstance(request.command, Look):
            looks.append((answer.at, answer.node, answer.result))
        elif isinstance(request.command, Backup):
            backups.append(answer.result)
    return Outcome(
        damage=judge(operations, notices, at_end, [files for _, _, files in looks], backups),
        operations=operations,
        notices=notices,
        looks=tuple(looks),
        at_end=at_end,
        bytes_sent=int(run.total("sent_bytes")),
        messages=len(run.recorded.get("sent_bytes", ())),
        refused=int(run.total("refused")),
    )
