"""A cluster of processes: started, killed, stopped, revived, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_protocols import Flood
from socket_protocols import DurableCounter, Quitters, Talkers

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live import control, launcher, node_process
from wavetank.live import launcher as launcher_module
from wavetank.live.cluster import ClusterSettings, Outage, run_cluster
from wavetank.live.credentials import make_certificates
from wavetank.live.launcher import ProcessCluster
from wavetank.protocols.consensus.raft import Raft
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request

FAST = ClusterSettings(round_s=0.01)


def gone(pid: int) -> bool:
    """Whether a process is no more, or waits only to be buried."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(true: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(true())


@pytest.mark.parametrize("kind", [{}, {"tls": True, "sign": True}, {"transport": "udp"}], ids=str)
def test_processes_decide_what_rounds_decide(kind: dict[str, Any]) -> None:
    run = run_cluster(
        Flood(), 5, processes=2, round_s=0.02, duration_s=30, stop=lambda run: len(run.decisions) == 5, **kind
    )
    assert run.decisions == simulate(Flood(), size=5, until=20).decisions
    assert (run.violation, run.hostile, run.failures) == ("", {}, {})
    # The fields of the nodes came back with the decisions.
    assert [node.best for node in run.nodes] == [run.decisions[0, 0]] * 5


def test_a_killed_process_comes_back_with_what_its_nodes_saved(play: Any) -> None:
    async def answer(cluster: ProcessCluster) -> int:
        number = cluster.ask(1, "count")
        assert await cluster.until(lambda run: number in run.replies, 10)
        return cluster.run.replies[number].result[1]

    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 4, processes=2, settings=FAST) as cluster:
            before = [await answer(cluster) for _ in range(3)]
            pid = cluster.processes[1]
            await cluster.kill(1)
            assert gone(pid)
            await cluster.kill(1)
            await cluster.restart(1)
            after = [await answer(cluster) for _ in range(2)]
            assert (before, after) == ([1, 2, 3], [4, 5])
            run = await cluster.finish()
        assert run.restarts == 1
        assert set(run.hostile) <= {"truncated"}

    play(story())


def test_a_process_that_somebody_kills_is_started_again(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Talkers(), 2, processes=2, settings=FAST) as cluster:
            os.kill(cluster.processes[0], signal.SIGKILL)
            assert await cluster.until(lambda run: run.restarts == 1, 30)
            assert await cluster.until(lambda run: len(run.decisions) == 2, 30)

    play(story())


def test_a_process_that_ends_by_itself_ends_the_run_which_keeps_what_there_is(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Quitters(), 2, processes=2, settings=FAST) as cluster:
            with pytest.raises(WavetankError, match="process 1, code 7"):
                await cluster.play(duration_s=30)
            run = await cluster.finish()
        assert run.decisions == {(0, 0): "here", (1, 1): "here"}

    play(story())


def test_a_stopped_process_goes_on_where_it_was(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Talkers(), 2, processes=2, settings=FAST) as cluster:
            await cluster.stop(0)
            state = Path(f"/proc/{cluster.processes[0]}/stat")
            if state.exists():
                assert wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
            await cluster.resume(0)
            assert await cluster.until(lambda run: len(run.decisions) == 2, 30)
            run = await cluster.finish()
        assert (run.violation, run.restarts) == ("", 0)

    play(story())


def test_what_is_asked_of_a_stopped_process_does_not_pile_up(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "_UNSENT_BYTES", 2**16)

    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2) as cluster:
            await cluster.stop(1)
            for _ in range(400):
                cluster.ask(1, ("add", "x" * 2**14, 1))
            connection = cluster._process(1).connection
            assert connection is not None
            assert connection.unsent_bytes < 2**18
            assert cluster.run.unheard > 100
            await cluster.resume(1)
            number = cluster.ask(0, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)

    play(story())


def test_raft_goes_on_when_its_leader_is_killed() -> None:
    requests = [Request(at=20 + number, node=number % 3, command=("write", "x", number)) for number in range(150)]
    run = run_cluster(
        Raft(),
        3,
        processes=3,
        requests=requests,
        round_s=0.01,
        duration_s=20,
        retry_rounds=20,
        sticky=True,
        outages=[Outage(node=node, at_s=0.6 + 0.5 * node, for_s=0.2) for node in range(2)],
        stop=lambda run: len(run.replies) == 150 and run.restarts == 2,
    )
    assert run.violation == ""
    assert len(run.replies) == 150
    assert run.restarts == 2
    values = {value for (_, _), value in run.decisions.items()}
    assert {number for number, _ in values} == set(range(150))


def test_an_error_of_a_process_is_reported_in_the_launchers_words(play: Any, tmp_path: Path) -> None:
    run_cluster(DurableCounter(), 2, processes=2, duration_s=0.1, folder=tmp_path)
    (tmp_path / "node-0.state").write_bytes(b"x" * 50)

    async def story() -> None:
        cluster = ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST, folder=tmp_path, resume=True)
        async with cluster:
            await cluster.until(lambda run: False, 30)

    with pytest.raises(WavetankError) as caught:
        play(story())
    assert "no file of a node" in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["node-1.state", "requests.jsonl"])
def test_a_resumed_run_without_a_file_of_the_earlier_one_is_refused(tmp_path: Path, processes: int, name: str) -> None:
    words = {"processes": processes, "duration_s": 0.1, "folder": tmp_path}
    run_cluster(DurableCounter(), 2, **words)
    (tmp_path / name).rename(tmp_path / "aside")
    with pytest.raises(BadFileError, match="lacks files") as caught:
        run_cluster(DurableCounter(), 2, resume=True, **words)
    assert caught.value.given == name
    (tmp_path / "aside").rename(tmp_path / name)
    assert run_cluster(DurableCounter(), 2, resume=True, **words).runs == 2


def test_a_folder_that_another_run_uses_is_refused_and_left_as_it_is(play: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST, folder=tmp_path) as cluster:
            number = cluster.ask(0, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)
            before = (tmp_path / "node-0.state").read_bytes()
            for resume in (False, True):
                with pytest.raises(BadFileError, match=f"in use by pid {os.getpid()}"):
                    async with ProcessCluster(DurableCounter(), 2, processes=2, folder=tmp_path, resume=resume):
                        pass
            assert (tmp_path / "node-0.state").read_bytes() == before

    play(story())


def test_a_restart_is_not_lost_when_clients_ask_the_node_that_comes_back(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 3, processes=3, settings=FAST) as cluster:
            for times in range(1, 4):
                await asyncio.gather(cluster.kill(0), cluster.kill(1))
                coming = asyncio.gather(cluster.restart(0), cluster.restart(1))
                while not coming.done():
                    cluster.ask(0, "count")
                    cluster.ask(1, "count")
                    await asyncio.sleep(0)
                await coming
                assert cluster.run.restarts == 2 * times
            number = cluster.ask(0, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)
            run = await cluster.finish()
        assert run.troubles == []

    play(story())


def test_a_node_that_was_to_come_back_and_cannot_is_named_and_the_others_go_on(play: Any, tmp_path: Path) -> None:
    async def story() -> None:
        cluster = ProcessCluster(Raft(), 3, processes=3, settings=replace(FAST, retry_rounds=20), folder=tmp_path)
        async with cluster:
            assert await cluster.until(lambda run: (tmp_path / "node-0.state").exists(), 20)
            await cluster.kill(0)
            state = tmp_path / "node-0.state"
            state.write_bytes(b"w" + bytes(len(state.read_bytes())))
            await cluster.restart(0)
            number = cluster.ask(1, ("write", "x", 1))
            assert await cluster.until(lambda run: number in run.replies, 30)
            run = await cluster.finish()
        [trouble] = run.troubles
        assert "node 0 (process 0)" in trouble
        assert "no file of a node" in trouble

    play(story())


def test_a_process_that_dies_while_it_comes_back_is_started_once_more(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST) as cluster:
            await cluster.kill(0)
            assign = cluster._assign

            def killed_once(process: Any) -> None:
                monkeypatch.setattr(cluster, "_assign", assign)
                process.child.kill()

            monkeypatch.setattr(cluster, "_assign", killed_once)
            await cluster.restart(0)
            number = cluster.ask(0, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)
            assert (cluster.run.restarts, cluster.run.troubles) == (1, [])

    play(story())


@pytest.mark.parametrize("moment", ["at once", "joined", "assigned"])
def test_overlapping_outages_of_one_process_start_one_child(play: Any, moment: str) -> None:
    pids: list[int] = []

    class Counted(ProcessCluster):
        async def _spawn(self, process: Any) -> None:
            await super()._spawn(process)
            pids.append(process.child.pid)

    async def story() -> None:
        # Nodes 0 and 2 share a process.
        async with Counted(DurableCounter(), 4, processes=2, settings=FAST) as cluster:
            process = cluster._processes[0]
            await cluster.kill(0)
            first = asyncio.ensure_future(cluster.restart(0))
            while (moment == "joined" and not process.joined.is_set()) or (
                moment == "assigned" and not process.assigned
            ):
                await asyncio.sleep(0)
            await asyncio.gather(first, cluster.restart(2), cluster.kill(2))
            number = cluster.ask(2, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)
            assert (len(pids), cluster.run.restarts, process.incarnation) == (3, 1, 1)
            run = await cluster.finish()
        assert run.troubles == []
        assert all(map(gone, pids))

    play(story())


def test_a_process_restarted_while_it_is_being_killed_is_not_forgotten(play: Any) -> None:
    pids: list[int] = []

    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST) as cluster:
            await asyncio.gather(cluster.kill(0), cluster.restart(0))
            pids.extend(cluster.processes)
            assert len(pids) == 2
        assert all(map(gone, pids))

    play(story())


def test_no_child_is_started_when_the_run_has_ended(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST) as cluster:
            await cluster.kill(0)
            await cluster.finish()
            await cluster.restart(0)
            assert len(cluster.processes) == 1

    play(story())


def test_a_child_that_says_nothing_more_but_does_not_end_holds_nobody_up(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_END_TIMEOUT_S", 0.5)

    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST) as cluster:
            pid = cluster.processes[0]
            os.kill(pid, signal.SIGSTOP)
            cluster._processes[0].connection.transport.abort()
            number = cluster.ask(1, "count")
            assert await cluster.until(lambda run: number in run.replies, 20)
            assert not gone(pid)
            assert await cluster.until(lambda run: run.restarts == 1, 30)
            assert gone(pid)

    play(story())


def test_a_child_that_is_late_takes_nobodys_place(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=FAST) as cluster:
            process = cluster._processes[0]
            here = process.connection
            late = control.ControlConnection()
            late.transport = here.transport
            # What proved itself is a child that was given up and has been replaced since.
            before = subprocess.Popen([sys.executable, "-c", ""])
            before.wait()

            async def proven(*_: Any) -> str:
                return process.name

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(control, "admit", proven)
                patch.setattr(late, "close", lambda: None)
                await cluster._admit_child(process, before, late)
            assert process.connection is here

    play(story())


def test_a_run_waits_for_a_node_that_is_just_coming_back(play: Any) -> None:
    run = run_cluster(
        DurableCounter(), 2, processes=2, round_s=0.01, duration_s=0.3, outages=[Outage(node=0, at_s=0.1, for_s=0.15)]
    )
    assert (run.restarts, run.troubles) == (1, [])


@pytest.mark.slow
def test_links_that_never_come_up_are_named(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    strangers = [*make_certificates(1), *make_certificates(1), *make_certificates(1)]
    monkeypatch.setattr(launcher, "make_certificates", lambda count: strangers)

    async def story() -> None:
        settings = ClusterSettings(round_s=0.01, tls=True)
        async with ProcessCluster(DurableCounter(), 2, processes=2, settings=settings) as cluster:
            run = await cluster.finish()
        [trouble] = run.troubles
        assert trouble.startswith("endpoints 0 and 1 were never connected")
        assert "certificate" in trouble

    play(story())


def test_a_port_in_use_is_reported(play: Any) -> None:
    async def story() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            with pytest.raises(BadValueError, match="port is in use"):
                async with ProcessCluster(Raft(), 2, hosts=["a", "b"], control_address=address):
                    pass
        # Below the ports that the system hands out, where no other program of this machine takes the second one.
        for port in range(21_000, 31_000, 2):
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                taken = socket.create_server(("127.0.0.1", port))
                break
        with taken:
            settings = ClusterSettings(base_port=port)
            with pytest.raises(BadValueError, match="port is in use") as caught:
                async with ProcessCluster(DurableCounter(), 2, processes=2, settings=settings):
                    pass
            assert caught.value.where == "process 0"

    play(story())


def test_an_algorithm_that_others_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableCounter, "__module__", "__main__")
    with pytest.raises(BadValueError, match="defined in the program"):
        ProcessCluster(DurableCounter(), 2, processes=2)


class Joined:
    """A host that joins, as `wavetank launch cluster --join` runs it."""

    def __init__(self, address: str, token: control.Token, name: str, folder: Path) -> None:
        environment = {
            **os.environ,
            node_process.ADDRESS_VARIABLE: address,
            node_process.TOKEN_VARIABLE: token.text,
            node_process.NAME_VARIABLE: name,
            node_process.FOLDER_VARIABLE: str(folder),
        }
        words = [sys.executable, "-m", node_process.__name__]
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def test_hosts_join_by_name_and_run_the_catalogs_protocols(play: Any, tmp_path: Path) -> None:
    hosts: list[Joined] = []

    def announce(address: str, token: control.Token) -> None:
        hosts.extend(Joined(address, token, name, tmp_path / name) for name in ("beta", "alpha", "gamma"))

    async def story() -> None:
        requests = [Request(at=30 + number, node=0, command=("write", "x", number)) for number in range(5)]
        settings = ClusterSettings(round_s=0.01, tls=True, sign=True)
        cluster = ProcessCluster(Raft(), 4, hosts=["alpha", "beta"], settings=settings, announce=announce)
        async with cluster:
            outages = [Outage(node=1, at_s=0.3, kind="stop", for_s=0.2)]
            await cluster.play(
                requests=requests, duration_s=30, outages=outages, stop=lambda run: len(run.replies) == 5
            )
            assert list((tmp_path / "alpha").glob("*/node-0.state"))
            with pytest.raises(BadValueError, match="stopped for a time"):
                await cluster.stop(1)
            # A host that was killed begins again when it has joined and its time has come.
            await cluster.kill(1)
            assert hosts[0].process.wait(10) == -signal.SIGKILL
            hosts.append(Joined(cluster_address(cluster), cluster._token, "beta", tmp_path / "beta"))
            await asyncio.wait_for(cluster._process(1).joined.wait(), 20)
            await cluster.restart(1)
            assert cluster.run.restarts == 1
            # One that is lost is waited for.
            hosts[3].process.kill()
            hosts.append(Joined(cluster_address(cluster), cluster._token, "beta", tmp_path / "beta"))
            assert await cluster.until(lambda run: run.restarts == 2, 30)
            run = await cluster.finish()
        assert run.violation == ""
        assert len(run.replies) == 5

    def cluster_address(cluster: ProcessCluster) -> str:
        return "{}:{}".format(*cluster._control_address)

    try:
        play(story())
        codes = [host.process.wait(20) for host in hosts]
    finally:
        for host in hosts:
            host.process.kill()
            host.process.wait()
    # Beta was killed twice, gamma was not asked for, the others ended in order.
    assert codes == [-signal.SIGKILL, 0, 3, -signal.SIGKILL, 0]
    assert "no free place" in hosts[2].process.stderr.read()


def test_hosts_that_do_not_come_are_named(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Raft(), 2, hosts=["near", "far"], join_timeout_s=0.2):
            pass

    with pytest.raises(WavetankError, match=r"near, far did not join within 0\.2 s"):
        play(story())


def test_a_host_speaks_for_its_own_nodes_alone(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Talkers(), 2, processes=2, settings=FAST) as cluster:
            process = cluster._processes[0]
            here = ("127.0.0.1", 7000)
            for addresses, keys in (({0: here, 1: here}, {}), ({0: here}, {1: b"k" * 32}), ({}, {})):
                with pytest.raises(WavetankError, match="nodes of other processes"):
                    cluster._know(process, control.Listening(addresses, keys))
            assert cluster._addresses[1] != here
            assert 1 not in cluster._public_keys
            # What it reports of others is not heard.
            encode = cluster.codec.encode
            lies = [("decide", 1, 0.0, encode("lie"), encode(1)), ("decide", 0, 0.0, encode("own"), encode(2))]
            liar = control.ControlConnection()
            for words in (control.Outputs(lies), control.Failed(1, "lie")):
                liar._frames.put_nowait(control._encoder.encode(words))
            liar._frames.put_nowait(None)
            await cluster._listen(process, liar)
            assert cluster.run.decisions[0, "own"] == 2
            assert (1, "lie") not in cluster.run.decisions
            assert cluster.run.failures == {}

    play(story())


def test_strangers_at_the_control_port_keep_no_host_away(play: Any, tmp_path: Path) -> None:
    hosts: list[Joined] = []
    silent: list[Any] = []

    async def story() -> None:
        cluster = ProcessCluster(Raft(), 2, hosts=["alpha"], settings=FAST, announce=lambda *given: None)
        begun = asyncio.ensure_future(cluster.__aenter__())
        try:
            while cluster._server is None:
                await asyncio.sleep(0.01)
            address = cluster._control_address
            most = cluster._strangers.most
            for _ in range(2 * most):
                silent.append(await asyncio.open_connection(*address))
            # A challenge for each; the oldest had to go.
            assert all([await asyncio.wait_for(reading.read(1), 10) for reading, _ in silent[most:]])
            assert len(cluster._strangers) == most
            hosts.append(Joined("{}:{}".format(*address), cluster._token, "alpha", tmp_path / "alpha"))
            await asyncio.wait_for(begun, 30)
            assert len(cluster._strangers) >= most - 1
            await cluster.finish()
        finally:
            await cluster.__aexit__(None, None, None)

    try:
        play(story())
        assert hosts[0].process.wait(20) == 0
    finally:
        for host in hosts:
            host.process.kill()
            host.process.wait()


def test_children_are_reached_through_no_port(play: Any) -> None:
    async def story() -> None:
        async with ProcessCluster(Talkers(), 2, processes=2, settings=FAST) as cluster:
            assert cluster._server is None
            # No launcher's address is in their environment either.
            for pid in cluster.processes:
                environment = Path(f"/proc/{pid}/environ")
                if environment.exists():
                    assert b"WAVETANK_LAUNCHER=" not in environment.read_bytes()

    play(story())


def test_who_listens_everywhere_is_announced_under_the_name_of_the_machine(play: Any) -> None:
    announced: list[str] = []

    async def story() -> None:
        cluster = ProcessCluster(
            Raft(),
            1,
            hosts=["a"],
            control_address=("0.0.0.0", 0),
            join_timeout_s=0.1,
            announce=lambda address, token: announced.append(address),
        )
        async with cluster:
            pass

    with pytest.raises(WavetankError, match="did not join"):
        play(story())
    assert announced[0].rpartition(":")[0] == socket.gethostname()


def test_two_hosts_of_one_name_are_refused() -> None:
    with pytest.raises(BadValueError, match="name of its own"):
        ProcessCluster(Raft(), 2, hosts=["a", "a"])


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_processes_do_not_outlive_their_launcher(which: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import asyncio\n"
        "from socket_protocols import Talkers\n"
        "from wavetank.live.launcher import ProcessCluster\n"
        "async def story():\n"
        "    async with ProcessCluster(Talkers(), 2, processes=2) as cluster:\n"
        "        await cluster.stop(1)\n"
        "        print(*cluster.processes, flush=True)\n"
        "        await cluster.until(lambda run: False, 60)\n"
        "asyncio.run(story())\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(which)
        process.wait(20)
        assert wait_until(lambda: all(map(gone, pids)))
    assert process.returncode != 0
