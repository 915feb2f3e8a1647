"""What a launcher keeps of a run does not grow with the requests, and says the same as if it kept everything."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from socket_protocols import DurableCounter

from wavetank.live.cluster import Cluster, ClusterSettings
from wavetank.live.run import ClusterRun, Output
from wavetank.live.spill import SpillFile
from wavetank.sim.node import Node, disagreement
from wavetank.sim.simulation import Request

RECENT = 32


class Recorder(Cluster):
    """A cluster without nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(DurableCounter(), 3, folder=folder, settings=ClusterSettings(retry_rounds=1000.0))
        self.passed = 0

    async def _launch(self) -> None:
        self._epoch_s = time.monotonic()

    def _pass_on(self, node: int, number: int, command: Any) -> None:
        self.passed += 1

    async def _close(self) -> None:
        pass

    async def _collect(self) -> dict[int, Node]:
        return {}

    def _tallied(self) -> tuple[dict[str, int], dict[str, int]]:
        return {}, {}

    async def kill(self, node: int) -> None:
        pass

    async def restart(self, node: int) -> None:
        pass

    async def stop(self, node: int, for_s: float | None = None) -> None:
        pass

    async def resume(self, node: int) -> None:
        pass

    def live(self, count: int) -> None:
        for _ in range(count):
            number = self.ask(0, ("write", "key", "x" * 50), "me")
            row = [Output("decide", node, 1.0, ("slot", number), ("x", number)) for node in range(3)]
            row += [Output("decide", 2, 1.0, ("slot", number), "otherwise")]
            row += [Output("reply", node, 1.0, number, "done") for node in range(2)]
            self.take([*row, Output("record", 0, 1.0, "bytes", 2.0)])


def test_memory_does_not_grow_with_the_requests(play: Any, tmp_path: Path) -> None:
    async def story() -> tuple[list[int], Recorder]:
        async with Recorder(tmp_path / "out") as cluster:
            cluster.run.spill(SpillFile(lambda: tmp_path, cluster.codec), recent=RECENT)
            cluster.live(100)
            await asyncio.sleep(0)
            tracemalloc.start()
            try:
                sizes = []
                for count in (50, 450):
                    cluster.live(count)
                    # Timers that were cancelled go when the loop comes round.
                    await asyncio.sleep(0)
                    sizes.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
            assert not cluster._retry_handles
            await cluster.finish()
            return sizes, cluster

    sizes, cluster = play(story())
    run = cluster.run
    assert sizes[1] - sizes[0] < 100_000
    grown = (run.decisions, run.decided_at, run.replies, run.requests, run.invoked_s, run.returned_s, run.latencies_s)
    for each in (*grown, run.instances, run.recorded["bytes"]):
        assert len(each) in (600, 1800)
        assert each.in_memory <= 2 * RECENT
    assert len(run.contradictions) == 10
    assert run.decisions[1, ("slot", 0)] == ("x", 0)
    assert (run.replies[0].result, run.requests[0].command) == ("done", ("write", "key", "x" * 50))
    assert run.total("bytes") == 1200.0
    assert run.violation.startswith("node 2 decided ('x', 0), then 'otherwise'")
    assert len(list(run.operations())) == 600
    assert run.snapshot().replies[1] == "done"


def test_a_disagreement_among_the_oldest_decisions_is_seen(play: Any, tmp_path: Path) -> None:
    async def story() -> str:
        async with Recorder(tmp_path / "out") as cluster:
            cluster.run.spill(SpillFile(lambda: tmp_path, cluster.codec), recent=4)
            cluster.take([Output("decide", 0, 1.0, "slot", 1), Output("decide", 1, 1.0, "slot", 2)])
            cluster.take([Output("decide", 0, 1.0, number, number) for number in range(100)])
            return disagreement(cluster.run.snapshot())

    assert play(story()) == "nodes 0 and 1 decided 1 and 2 in instance 'slot'"


def test_a_node_that_contradicts_itself_for_ever_hides_no_other() -> None:
    run = ClusterRun(size=2)
    for value in range(1000):
        run.decided(1, "slot", value, 1.0)
    run.decided(0, "slot", 0, 1.0)
    run.decided(0, "slot", 1, 2.0)
    assert run.contradictions[-1] == "node 0 decided 0, then 1 in instance 'slot'"
    assert len(run.contradictions) == 11
    assert run.instances == {"slot": 2}


def test_requests_that_are_read_one_by_one_are_not_read_before_their_time(play: Any, tmp_path: Path) -> None:
    read = []

    def coming() -> Any:
        for number in range(1000):
            read.append(number)
            yield Request(at=0.0 if number < 3 else 1e6, node=number % 3, command=number)

    async def story() -> ClusterRun:
        async with Recorder(tmp_path / "out") as cluster:
            await cluster.play(requests=coming(), duration_s=0.1)
            return await cluster.finish()

    run = play(story())
    assert read == [0, 1, 2, 3]
    assert [run.requests[number].command for number in range(3)] == [0, 1, 2]
    assert len(run.invoked_s) == 3


def test_no_more_requests_than_a_limit_are_asked_again(
    play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavetank.live.cluster._MOST_RETRIED", 5)

    async def story() -> None:
        async with Recorder(tmp_path / "out") as cluster:
            numbers = [cluster.ask(0, "write") for _ in range(20)]
            assert list(cluster._retry_handles) == numbers[-5:]
            # A late answer of one that is not asked again counts all the same.
            cluster.take([Output("reply", 0, 1.0, numbers[0], "late")])
            assert cluster.run.replies[numbers[0]].result == "late"

    play(story())
