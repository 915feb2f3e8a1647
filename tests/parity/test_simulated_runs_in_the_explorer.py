"""What a simulation did, the explorer has as a path: every step is one it offers, and leads to the same local state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from small_protocols import Flood

from wavetank.check.explore import Clock, Environment, SearchBudget, explore
from wavetank.check.explore.check import explorable
from wavetank.check.explore.parts import Action, Kind
from wavetank.check.explore.system import System
from wavetank.check.explore.values import canonical
from wavetank.ledger import catalog
from wavetank.protocols.filesync.applications import Put
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, Equivocation, Fault, RandomCrashes
from wavetank.sim.network import Network
from wavetank.sim.node import Node
from wavetank.sim.simulation import LogEntry, Request

ON_LINKS = ("drop", "duplicate")
ANYTHING = Environment(drops="unlimited", duplicates="unlimited")


class Recorder(list[LogEntry]):
    """A log that keeps, for each handler, the state in which it left its node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.nodes = nodes
        self.states: dict[int, Any] = {}
        self._open = -1

    def append(self, entry: LogEntry) -> None:
        if entry.kind not in ON_LINKS:
            self.close()
            self._open = len(self)
        super().append(entry)

    def close(self) -> None:
        """Keep the state after the last handler."""
        if self._open >= 0:
            self.states[self._open] = canonical(self.nodes[self[self._open].node])


def recorded(algorithm: Any, size: int, **keywords: Any) -> Recorder:
    """Simulate and return the log with the states."""
    found: list[Recorder] = []

    def watch(nodes: Sequence[Node]) -> None:
        run = nodes[0].context._run  # type: ignore[attr-defined]
        run.log = Recorder(run.nodes)
        found.append(run.log)

    simulate(algorithm, size=size, log=True, setup=watch, **keywords)
    found[0].close()
    return found[0]


def replayed(log: Recorder, system: System) -> dict[str, int]:
    """Take every step of a log in the explorer and compare; return how many of each kind there were."""
    row = system.initial
    clock = system.clock
    now, counts = 0, dict[str, int]()
    waiting: list[LogEntry] = []

    def take(action: Action) -> None:
        nonlocal row
        numbers = system.step(action)
        offered = system.actions(row)
        assert numbers in offered, f"{action} at {now}: offered are {[str(system.action(each)) for each in offered]}"
        row = system.after(row, numbers)
        counts[action.kind] = counts.get(action.kind, 0) + 1

    def on_links() -> None:
        # The oldest of equal messages: with a clock that is the one that may arrive.
        for each in waiting:
            take(Action(each.kind, each.node, each.sender, each.what, int(clock is not None)))
        waiting.clear()

    for at, entry in enumerate(log):
        if entry.kind in ON_LINKS:
            waiting.append(entry)
            continue
        if clock is None and entry.kind != "start":
            on_links()
        while clock is not None and now < entry.at:
            take(Action("tick", -1))
            now += 1
            on_links()
        if entry.kind == "message":
            take(Action("deliver", entry.node, entry.sender, entry.what, int(clock is not None)))
        elif entry.kind == "timer":
            take(Action("timer", entry.node, -1, entry.what))
        elif entry.kind == "request":
            take(Action("request", entry.node, -1, entry.sender))
        local = system.locals[row[entry.node]]
        assert canonical(local.node) == log.states[at], f"after {entry}"
        assert not local.broken
    return counts


def size_of(name: str) -> int:
    return {"alternating-bit": 2, "stable-data-link": 2}.get(name, 4)


def requests_of(name: str, algorithm: Any, size: int) -> list[Request]:
    if name in ("alternating-bit", "stable-data-link") or name.endswith("-consensus"):
        return []
    if "-sync" in name:
        # Node 0 is the cloud or a device like the others; files are written on two devices, and one twice.
        puts = [("a", b"one"), ("b", b"two"), ("a", b"three")]
        return [Request(at=2 + 9 * at, node=1 + at % 2, command=Put(*put)) for at, put in enumerate(puts)]
    if name in ("two-phase-commit", "dolev-strong", "crash-flooding", "quantas-bitcoin", "quantas-ethereum"):
        return []
    example = getattr(algorithm, "example_command", lambda number: ("write", "x", number))
    # After an election, where there is one.
    return [Request(at=45 + 3 * number, node=number % size, command=example(number)) for number in range(3)]


NAMES = [entry.name for entry in catalog.everything() if explorable(entry) == ""]


def test_the_catalog_has_protocols_to_explore() -> None:
    assert len(NAMES) >= 30
    assert {"bilateral-sync", "causal-snapshot-sync", "quantas-pbft"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_in_rounds_is_a_path_of_the_explorer(name: str) -> None:
    entry = catalog.system(name)
    algorithm, size = entry.build(), size_of(name)
    requests = requests_of(name, algorithm, size)
    network = Network.complete(size, drop=0.05, duplicate=0.05)
    log = recorded(algorithm, size, network=network, until=70, seed=3, requests=requests)
    clock = Clock(horizon=200)
    system = System(algorithm, size, requests=requests, environment=ANYTHING, clock=clock, absolute=True, seed=3)
    counts = replayed(log, system)
    steps = sum(counts.get(kind, 0) for kind in ("deliver", "timer", "request"))
    assert steps == sum(each.kind in ("message", "timer", "request") for each in log) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_run_as_events_is_a_path_of_the_explorer_where_no_node_reads_the_time(name: str) -> None:
    entry = catalog.system(name)
    algorithm, size = entry.build(), size_of(name)
    requests = requests_of(name, algorithm, size)
    network = Network.complete(size, delay="exponential", mean_delay=1.5, drop=0.05, duplicate=0.05, reorder=0.1)
    log = recorded(algorithm, size, network=network, until=60, life="events", seed=5, requests=requests)
    system = System(algorithm, size, requests=requests, environment=ANYTHING, seed=5)
    try:
        replayed(log, system)
    except AssertionError:
        # A run may leave the explorer's paths only where a node read the time, and then the explorer knows it.
        assert system.timed or system.starts_timed
    else:
        assert any(each.kind == "message" for each in log) or name in ("central-registry",)


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_of_the_catalog_is_explored_with_and_without_a_clock(name: str) -> None:
    algorithm, size = catalog.system(name).build(), size_of(name)
    requests = requests_of(name, algorithm, size)[:1]
    budget = SearchBudget(states=400)
    stopped = explore(algorithm, size, requests=requests, budget=budget)
    system = stopped.system
    if system.timed or system.starts_timed:
        assert stopped.outcome == "undecided" or not stopped.counterexample.path.reads_time  # type: ignore[union-attr]
    timed = explore(algorithm, size, requests=requests, budget=budget, clock=Clock(requests="on-time", horizon=60))
    assert timed.outcome != "violated"
    assert "in all" not in timed.judgements[0].says
    assert timed.states > 1
    # Who was seen to read the time is given it.
    assert timed.system.absolute or not system.starts_timed


@pytest.mark.parametrize("name", ["raft", "pbft"])
@pytest.mark.parametrize("kind", ["crash", "crashes", "lies"])
def test_runs_with_faults_are_paths_of_the_explorer(name: str, kind: str) -> None:
    algorithm = catalog.system(name).build()
    faults: list[Fault] = {
        "crash": [Crash(members=(0,), at=50, down_for=30)],
        "crashes": [RandomCrashes(members=(1, 2), odds=0.02, down_for=5)],
        "lies": [Equivocation(members=(1,))],
    }[kind]
    requests = requests_of(name, algorithm, 4)
    log = recorded(algorithm, 4, until=120, life="events", seed=1, requests=requests, faults=faults)
    system = System(algorithm, 4, requests=requests, faults=faults, environment=ANYTHING, seed=1)
    counts = replayed(log, system)
    assert counts["deliver"] > 50
    assert kind == "lies" or counts["timer"] >= 2


def test_a_step_that_the_simulation_did_not_take_is_noticed() -> None:
    log = recorded(Flood(), 3, until=20)
    system = System(Flood(), 3)
    replayed(log, system)
    last = max(at for at, each in enumerate(log) if each.kind == "message")
    log.states[last] = ("something", "else")
    with pytest.raises(AssertionError):
        replayed(log, system)
    log[last] = LogEntry(log[last].at, log[last].node, "timer", "never set")
    with pytest.raises(AssertionError):
        replayed(log, System(Flood(), 3))
    assert Kind.TICK not in {event.kind for event in system.events}
