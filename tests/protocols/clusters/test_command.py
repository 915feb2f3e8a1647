"""``wavetank launch cluster``: a protocol as real processes, from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from socket_protocols import DurableCounter, Quitters

from wavetank.check.consistency.files import read_history
from wavetank.protocols.clusters import command as launch_cluster
from wavetank.protocols.consensus.raft import Raft
from wavetank.sim.events import simulate

Command = Callable[..., "subprocess.CompletedProcess[str]"]
# They write figures down, as QUANTAS does, and answer nobody.
RECORD_ONLY = {
    "quantas-bitcoin",
    "quantas-chord",
    "quantas-ethereum",
    "quantas-kademlia",
    "quantas-pbft",
    "quantas-raft",
}
SHORT = ("launch", "cluster", "--protocol", "raft", "--round-s", "10ms", "--duration", "2")


def test_a_run_ends_in_a_table_and_a_history(command: Command, tmp_path: Path) -> None:
    done = command(
        *SHORT, "--nodes", "3", "--requests", "30", "--duration", "2s", "--kill", "0@0.9:0.2", "--stop", "1@1:100ms",
        "--history", "history.jsonl", "--out", "kept", "--set", "election_rounds=15",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^(\w[\w ]*?)  +(.+)$", done.stdout, re.MULTILINE))
    assert re.search(r"^raft, 3 nodes, 2\.\d\d s$", done.stdout, re.MULTILINE)
    assert rows["invariants"] == "none broken"
    assert rows["restarts"] == "1"
    assert rows["requests"].startswith("30 made, 30 answered")
    assert re.fullmatch(r"p50 \S+ \S*s, p99 \S+ \S*s", rows["latency"])
    assert len(read_history(tmp_path / "history.jsonl")) == 30
    assert (tmp_path / "kept" / "node-2.state").exists()
    assert "more than" in done.stderr


def test_the_result_as_json(command: Command) -> None:
    done = command(*SHORT, "--nodes", "4", "--processes", "2", "--sign", "--tls", "--json", "--duration", "0.5")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["protocol"], found["nodes"], found["violation"], found["latency_p50_s"]) == ("raft", 4, "", None)
    assert found["messages_delivered"] > 0
    assert (found["failures"], found["hostile"], found["restarts"], found["note"]) == ({}, {}, 0, "")


def test_a_broken_invariant_is_an_exit_code(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Raft, "violation", lambda algorithm, snapshot: f"all {len(snapshot.nodes)} disagree")
    shown = call(*SHORT, "--nodes", "2", "--duration", "0.1")
    assert shown.code == 1
    assert "\ninvariants       all 2 disagree\n" in shown.out


def test_a_run_without_a_message_is_not_called_sound(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cluster, "_algorithm", lambda name, pairs: DurableCounter())
    shown = call(*SHORT, "--nodes", "2", "--duration", "0.1")
    assert "\ninvariants       not judged: no message was delivered\n" in shown.out
    assert "none broken" not in shown.out


def test_a_second_is_a_line_on_a_terminal_and_ctrl_c_ends_in_a_table(terminal: Callable[..., Any]) -> None:
    screen = terminal(*SHORT, "--nodes", "3", "--duration", "60", "--requests", "600", until="messages/s", times=2)
    assert screen.code == 130
    assert screen.text.count("messages/s") >= 2
    assert "invariants" in screen.text


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_a_signal_ends_it_in_order_while_it_waits_for_hosts(executable: str, which: signal.Signals) -> None:
    words = [executable, *SHORT, "--nodes", "2", "--hosts", "a,b"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("on a: WAVETANK_TOKEN=")
        process.send_signal(which)
        assert process.wait(20) == 130
        assert "Interrupted." in process.stderr.read()


@pytest.mark.slow
def test_hosts_join_with_the_line_that_is_printed(executable: str, tmp_path: Path) -> None:
    # The length of the run is for a busy machine: the process that is killed must be back before it ends.
    words = [executable, *SHORT, "--nodes", "3", "--hosts", "a,b", "--kill", "1@0.3:0.1", "--duration", "15"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        joined = []
        for _ in range(2):
            token, line = launcher.stdout.readline().split(": WAVETANK_TOKEN=")[1].split(" wavetank ")
            environment = {**os.environ, "WAVETANK_TOKEN": token}
            joined.append(
                subprocess.Popen(
                    [executable, *line.split()], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
                )
            )
        # Who lists the processes of the machine sees no token.
        for process in (*joined, launcher):
            assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        out = launcher.stdout.read()
        assert launcher.wait(300) == 0, launcher.stderr.read()
        assert [each.wait(300) for each in joined] == [0, 0]
        assert [each.communicate()[0] for each in joined] == ["The launcher has finished.\n"] * 2
    # The process on b was killed there and started again by who joined.
    assert re.search(r"^restarts +1$", out, re.MULTILINE)
    assert "none broken" in out


def test_a_wrong_token_and_an_unreachable_launcher_are_reported(
    executable: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 16)
    token.chmod(0o600)
    monkeypatch.delenv("WAVETANK_TOKEN", raising=False)
    words = [executable, *SHORT, "--nodes", "2", "--hosts", "a", "--join-timeout", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        address = launcher.stdout.readline().split()[7]
        wrong = command("launch", "cluster", "--join", address, "--token-file", str(token), "--name", "a")
        launcher.send_signal(signal.SIGINT)
        launcher.wait(20)
    assert (wrong.returncode, "The token is wrong." in wrong.stderr) == (3, True)
    nobody = command("launch", "cluster", "--join", address, "--token-file", str(token))
    assert (nobody.returncode, "The launcher cannot be reached: Connection refused." in nobody.stderr) == (3, True)
    token.chmod(0o644)
    open_to_all = command("launch", "cluster", "--join", address, "--token-file", str(token))
    assert (open_to_all.returncode, "Others can read the file" in open_to_all.stderr) == (3, True)


def test_a_used_folder_is_refused_and_resumed_when_asked_and_its_history_holds(
    command: Command, tmp_path: Path
) -> None:
    words = (*SHORT, "--nodes", "3", "--requests", "20", "--duration", "1.5", "--out", "kept")
    first = command(*words, "--history", "first.jsonl")
    assert first.returncode == 0, first.stderr
    refused = command(*words)
    assert (refused.returncode, "--resume" in refused.stderr) == (3, True)
    other = command(*words, "--resume", "--set", "election_rounds=15")
    assert (other.returncode, "other parameters" in other.stderr) == (3, True)
    second = command(*words, "--resume", "--history", "second.jsonl")
    assert second.returncode == 0, second.stderr
    assert "run 2 of this folder" in second.stdout
    history = read_history(tmp_path / "second.jsonl")
    assert len(history) == 40
    written = [each.value for each in history.operations if each.action == "write"]
    assert len(set(written)) == len(written)
    checked = command("check", "second.jsonl")
    assert checked.returncode == 0, checked.stdout
    assert "violated" not in checked.stdout


def test_two_launches_on_one_folder_at_once_leave_one_and_a_reason(executable: str, tmp_path: Path) -> None:
    words = [executable, *SHORT, "--nodes", "3", "--requests", "20", "--out", str(tmp_path / "kept")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=60) for each in both]
    assert sorted(each.returncode for each in both) == [0, 3]
    [lost] = [err for each, (_, err) in zip(both, said, strict=True) if each.returncode]
    [winner] = [each.pid for each in both if not each.returncode]
    assert f"in use by pid {winner}" in lost


def test_a_node_that_did_not_come_back_is_named_and_is_an_exit_code(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from wavetank.live.launcher import ProcessCluster

    restart = ProcessCluster.restart

    async def damaged(self: Any, node: int) -> None:
        state = tmp_path / "kept" / f"node-{node}.state"
        state.write_bytes(b"x" + state.read_bytes()[1:])
        await restart(self, node)

    monkeypatch.setattr(ProcessCluster, "restart", damaged)
    words = (*SHORT, "--nodes", "3", "--requests", "20", "--kill", "1@1:0.1", "--out", str(tmp_path / "kept"))
    shown = call(*words)
    assert shown.code == 1
    assert "node 1 (process 1) did not go on" in shown.err
    assert "20 made, 20 answered" in shown.out


@pytest.mark.parametrize(("listen", "noted"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
def test_listening_for_all_without_encryption_is_noted(call: Callable[..., Any], listen: str, noted: bool) -> None:
    shown = call(*SHORT, "--nodes", "2", "--hosts", "a", "--listen", listen, "--join-timeout", "0.1")
    assert shown.code == 3
    assert ("what the launcher and its hosts say" in shown.err) == noted


def test_a_folder_that_cannot_be_made_is_reported(call: Callable[..., Any]) -> None:
    shown = call(*SHORT, "--nodes", "2", "--out", "/proc/x")
    assert shown.code == 3
    assert "cannot be used" in shown.err
    assert "/proc/x" in shown.err


def test_what_a_killed_launcher_left_is_swept(executable: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [executable, *SHORT, "--nodes", "2", "--sign", "--duration", "60"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        for _ in range(1000):
            if list(tmp_path.glob("wavetank-cluster-*/node-*.key")):
                break
            time.sleep(0.02)
        launcher.kill()
    left = list(tmp_path.glob("wavetank-cluster-*"))
    assert len(left) == 1
    # Its children end with it, and one at a time lets go.
    time.sleep(0.5)
    again = [executable, *SHORT, "--nodes", "2", "--duration", "0.1"]
    assert subprocess.run(again, env=environment, capture_output=True, timeout=60, check=False).returncode == 0
    assert not left[0].exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Which protocol?"),
        (("--protocol", "raftt"), "nearest: raft"),
        (("--protocol", "vllm-default"), "has no nodes that could be launched"),
        (("--protocol", "raft", "--set", "election_round=3"), "nearest: election_rounds"),
        (("--protocol", "raft", "--set", "election_rounds"), "not a setting"),
        (("--protocol", "raft", "--kill", "9@1"), "nodes 0 to 3"),
        (("--protocol", "raft", "--kill", "1at2"), "NODE@SECONDS"),
        (("--protocol", "raft", "--kill", "0@3.95:0.1", "--duration", "4"), "not over when the run ends"),
        (("--protocol", "raft", "--stop", "0@9.5"), "0@9.5:1"),
        (("--protocol", "raft", "--kill", "0@10:never"), "not over when the run ends"),
        (("--protocol", "raft", "--history", "h.json"), "allowed: .jsonl, .jsonl.gz"),
        (("--protocol", "raft", "--stop", "1@x"), "not a number"),
        (("--protocol", "raft", "--fault", "omision@1"), "nearest: omission"),
        (("--protocol", "raft", "--fault", "omission@7"), "omission@N"),
        (("--protocol", "raft", "--fault", "selective-relay@1"), "needs more than its members"),
        (("--protocol", "raft", "--duration", "-1"), "not a duration"),
        (("--protocol", "raft", "--round-s", "0"), "round_s"),
        (("--protocol", "raft", "--transport", "udp", "--tls"), "not encrypted"),
        (("--protocol", "raft", "--tls-files", "a,b"), "three files"),
        (("--protocol", "raft", "--tls-files", "a,b,c"), "cannot be read"),
        (("--protocol", "raft", "--processes", "9"), "Every process has a node"),
        (("--protocol", "raft", "--base-port", "65535"), "no port for each of 4 endpoints"),
        (("--protocol", "raft", "--listen", "7000"), "HOST:PORT"),
        (("--protocol", "raft", "--history", "no/such/folder.jsonl"), "no such folder"),
        (("--protocol", "raft", "--hosts", "a,a"), "name of its own"),
        (("--join", "127.0.0.1:1"), "token that the launcher printed"),
        (("--join", "127.0.0.1"), "HOST:PORT"),
        (("--join", "127.0.0.1:1", "--token-file", "no such file"), "cannot be read"),
        (("--join", "127.0.0.1:1", "--token", "ab" * 16), "no option named"),
        (("--protocol", "raft", "--resume"), "Only a folder that was named"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_reported_before_anything_starts(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.delenv("WAVETANK_TOKEN", raising=False)
    shown = call("launch", "cluster", *words)
    assert shown.code == 3
    assert says in " ".join(shown.err.split())
    assert shown.out == ""


def test_a_process_that_is_lost_takes_nothing_away(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cluster, "_algorithm", lambda name, pairs: Quitters())
    shown = call(*SHORT, "--nodes", "2", "--duration", "30")
    assert shown.code == 3
    assert "\ndecisions        2 in 2 instances\n" in shown.out
    assert "A process of the cluster ended. process 1, code 7." in shown.err


def test_a_protocol_without_requests_is_asked_nothing_and_says_so(call: Callable[..., Any]) -> None:
    shown = call(*SHORT[:3], "two-phase-commit", "--nodes", "2", "--duration", "0.2", "--requests", "3")
    assert shown.code == 0
    assert "two-phase-commit takes no requests" in shown.err
    assert "requests" not in shown.out


def test_every_protocol_that_takes_requests_has_an_example_that_it_takes() -> None:
    for name in launch_cluster._protocols():
        algorithm = launch_cluster._algorithm(name, ())
        if not launch_cluster._takes_requests(algorithm, 4):
            continue
        requests = list(launch_cluster._requests(algorithm, 8, 4, 40.0, 0))
        run = simulate(algorithm, size=4, until=60, requests=requests)
        assert run.replies or name in RECORD_ONLY, name


def test_a_launcher_that_is_gone_is_reported_to_who_joined(executable: str, tmp_path: Path) -> None:
    words = [executable, *SHORT, "--nodes", "1", "--hosts", "a", "--duration", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        token, line = launcher.stdout.readline().split(": WAVETANK_TOKEN=")[1].split(" wavetank ")
        with subprocess.Popen(
            [executable, *line.split(), "--out", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "WAVETANK_TOKEN": token},
        ) as joined:
            deadline = time.monotonic() + 30
            # It has begun when its node has saved something.
            while not list(tmp_path.glob("*/node-0.state")) and time.monotonic() < deadline:
                time.sleep(0.02)
            launcher.kill()
            assert joined.wait(20) == 3
            assert "The launcher ended" in joined.stderr.read()


def test_a_port_in_use_is_reported(call: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words in (("--listen", f"127.0.0.1:{port}", "--hosts", "a"), ("--base-port", str(port))):
            shown = call(*SHORT, "--nodes", "2", *words)
            assert shown.code == 3
            assert "The port is in use." in shown.err


def test_hosts_that_do_not_come_are_named(call: Callable[..., Any]) -> None:
    shown = call(*SHORT, "--nodes", "2", "--hosts", "a,b", "--join-timeout", "100ms")
    assert shown.code == 3
    assert "a, b did not join within 0.1 s." in shown.err


def test_more_faults_than_the_protocol_tolerates_are_allowed_but_said(call: Callable[..., Any]) -> None:
    shown = call(*SHORT, "--nodes", "3", "--duration", "0.3", "--fault", "omission@1,2")
    assert shown.code == 0
    assert "2 faulty nodes of 3 are more than the 1" in " ".join(shown.err.split())
