"""``wavetank launch watch`` against exporters on loopback: quiet, found, and refused."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.insight.cluster.exporters import exporter

from wavetank.sim.rng import stream


def shows(node: int, odd: int, after: int) -> Callable[[], str]:
    draws, count = stream(node, "exporter"), [0]

    def text() -> str:
        count[0] += 1
        extra = 40.0 if node == odd and count[0] > after else 0.0
        return f"# TYPE temp gauge\ntemp {60 + draws.normal() + extra}\nload1 {9 + draws.normal() + extra}\n"

    return text


def watched(call: Callable[..., Any], odd: int, *words: str) -> Any:
    with ExitStack() as stack:
        targets = [f"n{node}=" + stack.enter_context(exporter(shows(node, odd, 12))) for node in range(5)]
        given = [word for target in targets for word in ("--target", target)]
        return call("launch", "watch", *given, "--every-s", "0.05", "--learn", "8", "--rounds", "40", *words)


def test_an_odd_node_is_said_and_a_calm_fleet_is_quiet(call: Callable[..., Any]) -> None:
    found = watched(call, 3, "--threshold", "8", "--json")
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert found.code == 1 and [(each["node"], each["label"]) for each in lines] == [("n3", "odd")]
    calm = watched(call, 9, "--threshold", "30")
    assert calm.code == 0 and "silence means" in calm.out and len(calm.out.splitlines()) <= 2


def test_ctrl_c_does_not_wait_for_an_exporter_that_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        words = ("launch", "watch", "--target", address, "--timeout-s", "300")
        running = subprocess.Popen([sys.executable, "-m", "wavetank", *words], stdout=subprocess.PIPE, cwd=tmp_path)
        try:
            server.settimeout(60)
            taken, _ = server.accept()
            with taken:
                running.send_signal(signal.SIGINT)
                assert running.wait(20) == 130
        finally:
            running.kill()
            running.communicate()


def test_an_exporter_that_refuses_is_said_with_its_reason(call: Callable[..., Any]) -> None:
    with exporter(lambda: "a 1\n", status=404) as address:
        done = call("launch", "watch", "--target", f"n1={address}", "--every-s", "0.05", "--rounds", "4", "--json")
    said = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 1 and "status 404" in next(each["says"] for each in said if each["label"] == "silent")


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--target", "ftp://x"), "no address"), (("--target", "a=http://h", "--target", "a=http://i"), "one name"),
     (("--threshold", "low"), "threshold"), (("--learn", "1"), "learn")],
)  # fmt: skip
def test_wrong_words_are_refused(call: Callable[..., Any], words: tuple[str, ...], says: str) -> None:
    done = call("launch", "watch", *words, "--rounds", "1")
    assert done.code == 3 and says in done.err
