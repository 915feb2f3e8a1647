"""A process of a cluster, started without a launcher or with one that asks for too much."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from socket_protocols import PingPong

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live import control
from wavetank.live.cluster import ClusterSettings, endpoint_options
from wavetank.live.folder import read_manifest
from wavetank.live.node_process import NodeProcess, inner, parse_address, tally
from wavetank.live.values import codec_of
from wavetank.protocols.consensus.raft import Raft
from wavetank.sim.network import Network


def started(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wavetank.live.node_process"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_alone_it_says_who_starts_it() -> None:
    done = started()
    assert done.returncode == 3
    assert "WAVETANK_LAUNCHER" in done.stderr


def test_without_a_launcher_it_says_where_it_looked() -> None:
    done = started(WAVETANK_LAUNCHER="127.0.0.1:1", WAVETANK_TOKEN="ab" * 16, WAVETANK_PROCESS="x")
    assert done.returncode == 3
    assert "The launcher cannot be reached: Connection refused." in done.stderr
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("text", ["", "host", "host:", ":5", "host:port", "host:70000", "1.2.3.4:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="not an address"):
        parse_address(text, "--join")


def test_an_address_has_a_host_and_a_port() -> None:
    assert parse_address("127.0.0.1:80", "--join") == ("127.0.0.1", 80)
    assert parse_address("[::1]:80", "--join") == ("::1", 80)


class Launcher:
    """A connection to a launcher that has a few things to say."""

    def __init__(self, *words: control.Words) -> None:
        self.words = list(words)
        self.heard_words: list[control.Words] = []
        self.transport = self

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 0)

    async def heard(self, timeout_s: float | None = None) -> control.Words | None:
        return self.words.pop(0) if self.words else None

    def say(self, words: control.Words) -> None:
        self.heard_words.append(words)

    def close(self) -> None:
        pass


def assignment(module: str, **changes: Any) -> control.Assign:
    codec = codec_of(PingPong())
    fields = {
        "module": module,
        "algorithm": codec.encode(PingPong()),
        "network": codec.encode(Network.complete(2)),
        "faults": codec.encode(()),
        "run": "0123456789abcdef",
        "size": 2,
        "homes": [[0, 1]],
        "endpoints": [0],
        "incarnation": 0,
        "options": endpoint_options(ClusterSettings()),
        "folder": "",
        "ports": {},
        "sign": False,
        "certificate": [],
        "begun": False,
        "hosts": [],
    }
    return control.Assign(**{**fields, **changes})


def test_a_joined_host_imports_nothing_but_the_catalogs_protocols(play: Any, tmp_path: Path) -> None:
    launcher = Launcher(assignment("socket_protocols"))
    process = NodeProcess(launcher, control.Token.new(), joined_folder=tmp_path)
    with pytest.raises(BadValueError, match="catalog alone"):
        play(process.run())
    assert [type(words) for words in launcher.heard_words] == [control.Trouble]


@pytest.mark.parametrize(
    "run", ["", ".", "../../outside", "/tmp/x", "0123456789ABCDEF", "0123456789abcdef\n", "a" * 17]
)
def test_a_joined_host_writes_into_no_folder_that_the_launcher_names(play: Any, tmp_path: Path, run: str) -> None:
    launcher = Launcher(assignment("wavetank.protocols.consensus.raft", run=run))
    with pytest.raises(BadValueError, match="not a name of a run"):
        play(NodeProcess(launcher, control.Token.new(), joined_folder=tmp_path / "mine").run())
    assert [type(words) for words in launcher.heard_words] == [control.Trouble]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"round_s": -1.0}},
        {"options": {"frame_bytes": 2**40}},
        {"options": {"folder": "/"}},
        {"homes": [[0, 1, 2]]},
        {"endpoints": [4]},
    ],
    ids=str,
)
def test_what_no_honest_launcher_assigns_is_refused(play: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    launcher = Launcher(assignment("socket_protocols", folder=str(tmp_path), **changes))
    with pytest.raises(WavetankError):
        play(NodeProcess(launcher, control.Token.new()).run())
    assert [type(words) for words in launcher.heard_words] == [control.Trouble]


@pytest.mark.parametrize("words", [control.Ask(0, 1, b"\xc0"), control.Begin(0.0), control.Book({}, {}, {}, True)])
def test_words_before_the_assignment_are_an_error_with_a_reason(play: Any, words: control.Words) -> None:
    launcher = Launcher(words)
    with pytest.raises(WavetankError, match="before its run was described") as caught:
        play(NodeProcess(launcher, control.Token.new()).run())
    assert caught.value.given == type(words).__name__
    assert [type(each) for each in launcher.heard_words] == [control.Trouble]


@pytest.mark.parametrize(
    ("module", "says"), [("no_such_module", "cannot be imported here"), ("small_protocols", "hold no value")]
)
def test_an_assignment_that_cannot_be_done_is_reported_to_the_launcher(play: Any, module: str, says: str) -> None:
    launcher = Launcher(assignment(module))
    with pytest.raises(WavetankError, match=says):
        play(NodeProcess(launcher, control.Token.new()).run())
    assert says in launcher.heard_words[0].problem


def test_a_process_whose_launcher_is_gone_ends(play: Any, tmp_path: Path) -> None:
    launcher = Launcher(assignment("socket_protocols", folder=str(tmp_path)))
    assert play(NodeProcess(launcher, control.Token.new()).run()) is False
    assert type(launcher.heard_words[0]) is control.Listening
    assert play(NodeProcess(Launcher(), control.Token.new()).run()) is False


def test_a_process_tells_its_end(play: Any, tmp_path: Path) -> None:
    launcher = Launcher(
        assignment("socket_protocols", folder=str(tmp_path)), control.Begin(0.0), control.Ask(0, 1, b"\xc0"),
        control.Finish(),
    )  # fmt: skip
    assert play(NodeProcess(launcher, control.Token.new()).run()) is True
    assert [type(words) for words in launcher.heard_words][-2:] == [control.Tally, control.Ended]
    assert set(launcher.heard_words[-1].states) == {0, 1}


def raft_on_host(**changes: Any) -> control.Assign:
    codec = codec_of(Raft())
    fields = {"algorithm": codec.encode(Raft()), "sign": True, "hosts": ["alpha", "beta"]}
    spread = {"homes": [[0], [1]], "endpoints": [1]}
    return assignment(Raft.__module__, **{**fields, **spread, **changes})


def joined(play: Any, folder: Path, **changes: Any) -> bool:
    launcher = Launcher(raft_on_host(**changes), control.Begin(0.0), control.Finish())
    return play(NodeProcess(launcher, control.Token.new(), joined_folder=folder).run())


def test_a_joined_host_lists_the_files_of_its_nodes_before_they_begin(play: Any, tmp_path: Path) -> None:
    launcher = Launcher(raft_on_host())
    assert play(NodeProcess(launcher, control.Token.new(), joined_folder=tmp_path / "mine").run()) is False
    manifest = read_manifest(tmp_path / "mine" / "0123456789abcdef")
    assert manifest.files == ("node-1.key", "node-1.state")
    assert (manifest.run, manifest.nodes, manifest.hosts) == ("0123456789abcdef", 2, ("alpha", "beta"))
    assert manifest.protocol.endswith("raft:Raft")


@pytest.mark.parametrize("lost", ["node-1.state", "node-1.key", "all"])
def test_a_joined_host_without_what_its_nodes_saved_does_not_start_them(play: Any, tmp_path: Path, lost: str) -> None:
    mine = tmp_path / "mine"
    assert joined(play, mine) is True
    assert joined(play, mine, begun=True, incarnation=1) is True
    if lost == "all":
        shutil.rmtree(mine)
    else:
        (mine / "0123456789abcdef" / lost).unlink()
    with pytest.raises(BadFileError, match="lacks files") as caught:
        joined(play, mine, begun=True)
    assert "node-1" in caught.value.given
    assert not list(mine.glob("*/node-1.state")) or lost == "node-1.key"


@pytest.mark.parametrize(
    "changes", [{"endpoints": [0]}, {"hosts": ["beta", "alpha"]}, {"homes": [[1], [0]], "hosts": ["other", "beta"]}]
)
def test_a_joined_host_does_not_start_other_nodes_in_a_folder(
    play: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert joined(play, tmp_path) is True
    with pytest.raises(WavetankError, match=r"lacks files|other hosts"):
        joined(play, tmp_path, begun=True, **changes)


def test_counters_of_several_endpoints_add_up() -> None:
    class Counted:
        def __init__(self) -> None:
            self.hostile = {"garbage": 2}

        def counters(self) -> dict[str, int]:
            return {"sent": 3}

    assert tally([Counted(), Counted()]) == ({"sent": 6}, {"garbage": 4})


def test_the_algorithms_own_node_is_found_behind_its_faults() -> None:
    from wavetank.sim.faults import Crash, attach

    wrapped = attach(PingPong(), 0, 2, (Crash(members=(0,), at=5),))
    assert type(inner(wrapped)) is type(inner(PingPong().node(0, 2)))
