"""Synchronisers of others, driven on two local directories as their users would.

Unison compares both directories with what it remembers of their last common state; what changed on both sides it
leaves alone and names.  Syncthing keeps version vectors and renames the loser of a clash.  Both run as they come from
the distribution, with settings that keep them on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wavetank.errors import MissingExtraError, WavetankError
from wavetank.live.processes import ChildProcess, free_ports
from wavetank.protocols.filesync.live.directory import add_notice
from wavetank.protocols.filesync.tree import PRIVATE
from wavetank.settings import setting

_TIMEOUT_S = 60.0
_KEY = "loopback-only"
# How Unison names what it leaves alone.
_SKIPPED = re.compile(r"^\s*skipped: (.+) \((.+)\)$", re.MULTILINE)


def program(name: str) -> str:
    """Return where a program is.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise MissingExtraError(f"The program {name!r} is not installed.", hint=f"apt-get install {name}")
    return found


@dataclass(frozen=True, kw_only=True)
class Unison:
    """Unison in batch mode; conflicts are left alone on both sides, and what it says about them is kept."""

    timeout_s: float = setting(60.0, unit="s", low=1, high=3600, says="Longest run; a longer one is an error")

    @contextlib.contextmanager
    def between(self, one: Path, other: Path) -> Iterator[Callable[[], None]]:
        """Yield a function that synchronises two directories."""
        unison = program("unison")
        with tempfile.TemporaryDirectory(prefix="wavetank-unison-") as home:
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": home, "UNISON": f"{home}/.unison"}
            words = [
                unison, str(one), str(other), "-batch", "-auto", "-ui", "text", "-terse", "-times",
                "-confirmbigdel=false", "-ignore", f"Name {PRIVATE}",
            ]  # fmt: skip

            def synchronise() -> None:
                try:
                    done = subprocess.run(words, env=environment, capture_output=True, timeout=self.timeout_s)
                except subprocess.TimeoutExpired as error:
                    raise WavetankError("Unison did not finish in time.", given=f"{self.timeout_s} s") from error
                # 1: something was skipped because of a conflict; 2: something could not be brought over and waits for
                # the next time.  Both are answers.
                if done.returncode not in (0, 1, 2):
                    raise WavetankError("Unison failed.", given=done.stderr.decode(errors="replace")[-500:])
                for path, why in _SKIPPED.findall((done.stdout + done.stderr).decode(errors="replace")):
                    # The notices of a peer are kept where the engines of this package keep theirs.
                    (one / PRIVATE).mkdir(exist_ok=True)
                    add_notice(one, path, why)

            yield synchronise


@dataclass(frozen=True, kw_only=True)
class Syncthing:
    """Two Syncthing processes that share a folder over loopback, and look for changes on request."""

    timeout_s: float = setting(
        60.0, unit="s", low=1, high=3600, says="Time for which the peer waits until the folders are equal"
    )

    @contextlib.contextmanager
    def between(self, one: Path, other: Path) -> Iterator[Callable[[], None]]:
        """Yield a function that synchronises two directories."""
        binary = program("syncthing")
        with tempfile.TemporaryDirectory(prefix="wavetank-syncthing-") as scratch, contextlib.ExitStack() as stack:
            homes = [Path(scratch) / "one", Path(scratch) / "other"]
            ports = free_ports(4)
            names = [_generated(binary, home) for home in homes]
            for place, folder in enumerate((one, other)):
                _configure(homes[place], folder, names, ports, place)
                stack.enter_context(_started(binary, homes[place]))
            for port in (ports[0], ports[2]):
                _wait(partial(_is_connected, port), self.timeout_s)

            def synchronise() -> None:
                # Twice: what the first look brings over the other side has to notice as well.
                for _ in range(2):
                    for place in (0, 1):
                        _ask(ports[2 * place], "db/scan?folder=shared", post=True)
                    _wait(
                        lambda: all(_is_complete(ports[2 * place], names[1 - place]) for place in (0, 1)),
                        self.timeout_s,
                    )

            yield synchronise


def _generated(binary: str, home: Path) -> str:
    """Make keys and settings; return the device's name."""
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(home.parent)}
    for words in (["generate", "--home", str(home)], ["--home", str(home), "--device-id"]):
        done = subprocess.run([binary, *words], env=environment, capture_output=True, timeout=_TIMEOUT_S)
        if done.returncode:
            raise WavetankError("Syncthing could not be set up.", given=done.stderr.decode(errors="replace")[-500:])
    return done.stdout.decode().split()[-1]


def _configure(home: Path, folder: Path, names: list[str], ports: list[int], place: int) -> None:
    path = home / "config.xml"
    tree = ElementTree.parse(path)
    root = tree.getroot()
    for old in [*root.findall("folder"), *root.findall("device")]:
        root.remove(old)
    shared = ElementTree.SubElement(
        root, "folder", id="shared", label="shared", path=str(folder), type="sendreceive",
        rescanIntervalS="0", fsWatcherEnabled="false", ignorePerms="false", autoNormalize="true",
    )  # fmt: skip
    ElementTree.SubElement(shared, "maxConflicts").text = "-1"
    for other, name in enumerate(names):
        ElementTree.SubElement(shared, "device", id=name)
        device = ElementTree.SubElement(root, "device", id=name, name=f"device-{other + 1}", compression="never")
        ElementTree.SubElement(device, "address").text = f"tcp://127.0.0.1:{ports[2 * other + 1]}"
    gui = root.find("gui")
    options = root.find("options")
    if gui is None or options is None:
        raise WavetankError("Syncthing's settings have another form than expected.", where=str(path))
    gui.set("tls", "false")
    _set(gui, "address", f"127.0.0.1:{ports[2 * place]}")
    _set(gui, "apikey", _KEY)
    wanted = {
        "listenAddress": f"tcp://127.0.0.1:{ports[2 * place + 1]}", "globalAnnounceEnabled": "false",
        "localAnnounceEnabled": "false", "relaysEnabled": "false", "natEnabled": "false", "urAccepted": "-1",
        "startBrowser": "false", "autoUpgradeIntervalH": "0", "crashReportingEnabled": "false",
        "reconnectionIntervalS": "1",
    }  # fmt: skip
    for key, value in wanted.items():
        _set(options, key, value)
    tree.write(path)


def _set(parent: ElementTree.Element, key: str, value: str) -> None:
    for old in parent.findall(key)[1:]:
        parent.remove(old)
    found = parent.find(key)
    (ElementTree.SubElement(parent, key) if found is None else found).text = value


def _started(binary: str, home: Path) -> ChildProcess:
    environment = dict.fromkeys(os.environ.keys() - {"PATH"})
    environment |= {"HOME": str(home.parent), "STNORESTART": "1", "STNOUPGRADE": "1"}
    words = [binary, "serve", "--no-browser", "--no-restart", "--no-default-folder", "--home", str(home)]
    return ChildProcess(words, name="Syncthing", environment=environment)


def _ask(port: int, path: str, *, post: bool = False) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/rest/{path}", headers={"X-API-Key": _KEY}, method="POST" if post else "GET"
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
    return json.loads(text) if text else {}


def _is_connected(port: int) -> bool:
    answer = _ask(port, "system/connections") or {}
    return any(each.get("connected") for each in answer.get("connections", {}).values())


def _is_complete(port: int, other: str) -> bool:
    completion = _ask(port, f"db/completion?folder=shared&device={other}") or {}
    state = _ask(port, "db/status?folder=shared") or {}
    return completion.get("completion") == 100 and state.get("state") == "idle" and state.get("needTotalItems", 0) == 0


def _wait(true: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise WavetankError("Syncthing did not finish in time.", given=f"{timeout_s} s")
        time.sleep(0.05)
