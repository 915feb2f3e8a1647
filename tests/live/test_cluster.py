"""A cluster in one process: the life that tests and parity runs use."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small_protocols import Flood
from socket_protocols import DurableCounter, PingPong, Talkers

from wavetank.check.consistency.files import read_history, write_history
from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live.cluster import (
    ClusterSettings,
    InProcessCluster,
    Outage,
    excess_faults,
    new_cluster,
    run_cluster,
)
from wavetank.live.launcher import ProcessCluster
from wavetank.live.run import ClusterRun, exception_of
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, Equivocation
from wavetank.sim.history import Operation
from wavetank.sim.network import Network
from wavetank.sim.node import Snapshot
from wavetank.sim.simulation import Answer, Request, Run

KINDS = [
    {},
    {"endpoints": "node"},
    {"transport": "udp"},
    {"sign": True},
    {"tls": True, "endpoints": "node"},
    {"transport": "udp", "sign": True},
]


def decided(count: int) -> Any:
    return lambda run: len(run.decisions) >= count


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sockets_and_rounds_decide_the_same(kind: dict[str, Any]) -> None:
    algorithm = Flood()
    rounds = simulate(algorithm, size=6, until=20)
    sockets = run_cluster(algorithm, 6, round_s=0.02, stop=decided(6), **kind)
    assert sockets.decisions == rounds.decisions
    assert sockets.violation == algorithm.violation(rounds.snapshot()) == ""
    assert (sockets.hostile, sockets.failures, sockets.dropped) == ({}, {}, 0)


def test_a_run_has_the_names_of_a_simulated_run() -> None:
    # Real nodes are asked for their invariant at the end only, so nobody knows since when it was broken.
    names = set(Run.__dataclass_fields__) - {"under_way", "timers", "log", "algorithm", "violated_at"}
    assert names <= set(ClusterRun.__dataclass_fields__)
    run = run_cluster(DurableCounter(), 2, duration_s=0.1)
    assert isinstance(run.snapshot(), Snapshot)
    assert run.total("started at") == 0
    assert math.isclose(run.time, run.duration_s / 0.05)


def test_any_kind_of_value_crosses_the_wire_as_it_was() -> None:
    run = run_cluster(PingPong(balls=3), 4, stop=decided(2))
    # The ball's hop 0 ends at an odd node, hop 9, the last, at an even one.
    assert run.decisions == {(0, 0): ("a", (1, None)), (2, 0): ("a", (1, None))}
    assert run.contradictions == []


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_what_a_node_says_to_another_comes_in_its_order(transport: str) -> None:
    run = run_cluster(Talkers(), 4, round_s=0.005, transport=transport, endpoints="node", stop=decided(12))
    assert run.violation == ""
    assert run.sent > 4 * 3 * 50


def test_requests_are_asked_in_time_answered_once_and_become_a_history(tmp_path: Path) -> None:
    requests = [Request(at=number, node=number % 2, command=("add", "c", 1), client="me") for number in range(6)]
    run = run_cluster(DurableCounter(), 2, requests=requests, round_s=0.01, stop=lambda run: len(run.replies) == 6)
    assert [run.replies[number].result for number in range(6)] == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    assert all(isinstance(answer, Answer) and answer.node == number % 2 for number, answer in run.replies.items())
    assert all(run.invoked_s[number] >= number * 0.01 - 1e-3 for number in range(6))
    assert 0 < run.latency_s(0.5) <= run.latency_s(0.99)
    history = run.history()
    assert {operation.action for operation in history.operations} == {"add"}
    assert [operation.key for operation in history.operations] == ["c"] * 6
    write_history(tmp_path / "history.jsonl", history)
    assert len(read_history(tmp_path / "history.jsonl")) == 6


def test_a_client_that_asks_before_it_was_answered_counts_as_several() -> None:
    run = ClusterRun(size=1)
    times = [(0.0, 2.0), (1.0, 3.0), (2.5, None), (4.0, 5.0)]
    for number, (invoked, returned) in enumerate(times):
        run.requests.append(Request(at=0, node=0, command=["noop", number], client="me"))
        run.invoked_s[number] = invoked
        if returned is not None:
            run.returned_s[number] = returned
            run.replies[number] = Answer(0.0, 0, number)
    assert run.history().operations == (
        Operation(process="me", action="noop", value=0, result=0, invoked=0.0, returned=2.0),
        Operation(process="me/1", action="noop", value=1, result=1, invoked=1.0, returned=3.0),
        Operation(process="me", action="noop", value=2, invoked=2.5, returned=None),
        Operation(process="me/1", action="noop", value=3, result=3, invoked=4.0, returned=5.0),
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("read", "x"), ("read", "x", None)),
        (("cas", "x", (1, 2)), ("cas", "x", (1, 2))),
        (("transaction", [["read", "x", None]]), ("transaction", "", [["read", "x", None]])),
        (17, ("command", "", 17)),
        (("enqueue", 4, 5), ("enqueue", "", [4, 5])),
    ],
)
def test_a_command_becomes_an_operation(command: Any, expected: tuple[str, str, Any]) -> None:
    run = ClusterRun(size=1, requests=[Request(at=0, node=0, command=command)], invoked_s={0: 0.0})
    [operation] = run.history().operations
    assert (operation.action, operation.key, operation.value) == expected


def test_without_an_answer_there_is_no_latency() -> None:
    assert math.isnan(ClusterRun(size=1).latency_s(0.5))


def test_a_killed_node_comes_back_with_what_it_saved() -> None:
    requests = [Request(at=number, node=1, command="count") for number in range(1, 40)]
    run = run_cluster(
        DurableCounter(),
        2,
        requests=requests,
        round_s=0.01,
        duration_s=0.8,
        outages=[Outage(node=1, at_s=0.1, for_s=0.1)],
    )
    answers = [run.replies[number].result[1] for number in sorted(run.replies)]
    # It counts on where it was: what was asked meanwhile is lost, what was answered is not.
    assert answers == list(range(1, len(answers) + 1))
    assert run.restarts == 1
    [first, second] = [value for _, node, value in run.recorded["started at"] if node == 1]
    assert first == 0 < second <= len(answers)


def test_a_client_without_an_answer_asks_the_next_node() -> None:
    run = run_cluster(
        DurableCounter(),
        3,
        requests=[Request(at=5, node=0, command="count")],
        round_s=0.01,
        outages=[Outage(node=0, at_s=0.0, for_s=None)],
        retry_rounds=5,
        stop=lambda run: bool(run.replies),
    )
    assert (run.replies[0].node, run.retries) == (1, 1)


def test_sticky_clients_ask_the_node_that_answered_last() -> None:
    requests = [Request(at=5 * (number + 1), node=number, command="count") for number in range(3)]
    run = run_cluster(
        DurableCounter(), 3, requests=requests, round_s=0.01, sticky=True, stop=lambda run: len(run.replies) == 3
    )
    assert {answer.node for answer in run.replies.values()} == {0}


def test_faults_of_the_simulation_work_over_sockets() -> None:
    run = run_cluster(Flood(), 4, round_s=0.01, faults=(Crash(members=(0,), at=0), Equivocation(members=(3,))),
                      stop=decided(3))  # fmt: skip
    assert run.correct == {0, 1, 2}
    assert all(node != 0 for node, _ in run.decisions)


def test_the_code_of_a_node_that_raises_ends_the_run_with_its_trace() -> None:
    with pytest.raises(WavetankError, match=r"Node 1 ended with an exception: RuntimeError: this node was asked"):
        run_cluster(DurableCounter(), 2, requests=[Request(at=1, node=1, command="fail")], duration_s=1)


def test_two_decisions_of_one_node_in_one_instance_contradict(play: Any) -> None:
    async def story() -> ClusterRun:
        async with InProcessCluster(DurableCounter(), 2) as cluster:
            context = cluster.endpoints[0].nodes()[0].context
            for value in (1, 1, 2):
                context.decide(value, "slot")
            await cluster.until(decided(1), 5)
            return await cluster.finish()

    run = play(story())
    assert run.violation == "node 0 decided 1, then 2 in instance 'slot'"
    assert run.decisions == {(0, "slot"): 1}


def test_saved_state_stays_in_a_given_folder_and_is_gone_on_with_when_asked(tmp_path: Path) -> None:
    request = [Request(at=1, node=0, command="count")]

    def again(resume: bool, **other: Any) -> ClusterRun:
        return run_cluster(
            DurableCounter(),
            other.pop("size", 1),
            requests=request,
            round_s=0.01,
            folder=tmp_path,
            resume=resume,
            stop=lambda run: bool(run.replies),
            **other,
        )

    for count in (1, 2, 3):
        run = again(resume=count > 1)
        # Numbers of requests go on: a second request 0 would be taken for the first one again.
        assert run.replies[count - 1].result == (0, count)
        assert (run.first_number, run.runs) == (count - 1, count)
        operations = run.history().operations
        assert [each.result for each in operations] == [[0, number + 1] for number in range(count)]
        assert all(one.returned < other.invoked for one, other in pairwise(operations))
    with pytest.raises(BadValueError, match="earlier run saved") as caught:
        again(resume=False)
    assert "--resume" in caught.value.hint
    with pytest.raises(BadValueError, match="other nodes"):
        again(resume=True, size=2)
    (tmp_path / "node-0.state").write_bytes(b"x" * 50)
    with pytest.raises(BadFileError, match="no file of a node"):
        again(resume=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"transport": "tpc"}, "allowed words"),
        ({"round_s": 0}, "allowed"),
        ({"processes": 9}, "Every process has a node"),
        ({"tls": True, "transport": "udp"}, "not encrypted"),
        ({"network": Network.complete(3)}, "another size"),
        ({"faults": (Crash(members=(5,)),)}, "existing nodes"),
        ({"base_port": -1}, "allowed"),
        ({"base_port": 65_533, "endpoints": "node"}, "0 to 65532"),
    ],
)
def test_what_makes_no_sense_is_reported_before_anything_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValueError) as caught:
        run_cluster(PingPong(), 4, **options)
    assert says in str(caught.value)


def test_of_a_trace_the_whole_exception_is_reported_in_one_line() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\n    x\n'
    assert exception_of(f"{trace}KeyError: 5\n") == "KeyError: 5"
    assert exception_of(f"{trace}Wrong: No key.\n  given: 5\n  allowed: 6\n") == "Wrong: No key.; given: 5; allowed: 6"
    assert exception_of("") == ""


@pytest.mark.parametrize("given", [{"kind": "sleep"}, {"at_s": -1}, {"for_s": -1}, {"at_s": math.nan}])
def test_an_outage_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Outage(**{"node": 0, "at_s": 0, **given})


def test_a_request_to_nobody_is_refused(play: Any) -> None:
    async def story() -> None:
        async with InProcessCluster(PingPong(), 2) as cluster:
            with pytest.raises(BadValueError, match="no such node"):
                cluster.ask(2, "count")

    play(story())


def test_nodes_are_spread_over_endpoints_and_processes() -> None:
    assert ClusterSettings().homes(5, 2) == (((0, 2, 4), (1, 3)), ((0,), (1,)))
    assert ClusterSettings(transport="udp").homes(3, 2) == (((0,), (1,), (2,)), ((0, 2), (1,)))


def test_one_process_is_this_one() -> None:
    assert isinstance(new_cluster(PingPong(), 2), InProcessCluster)
    assert isinstance(new_cluster(PingPong(), 2, processes=2), ProcessCluster)


def test_more_faults_than_are_borne_are_said() -> None:
    assert excess_faults(DurableCounter(), 4, [1, 1, 2, 3]) == ""
    assert excess_faults(PingPong(), 4, [1, 1]).startswith("1 faulty nodes of 4 are more than the 0")


def test_nothing_is_left_behind(play: Any) -> None:
    async def story() -> Path:
        async with InProcessCluster(DurableCounter(), 2) as cluster:
            number = cluster.ask(0, "count")
            await cluster.until(lambda run: number in run.replies, 5)
            folder = cluster.folder
            assert (folder / "node-0.state").exists()
        return folder

    assert not play(story()).exists()
