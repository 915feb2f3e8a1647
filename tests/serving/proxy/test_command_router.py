"""``wavetank launch router``: options, and mistakes that are reported before anything starts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.extras import install_command
from wavetank.serving.proxy import router as router_module
from wavetank.serving.proxy.configuration import RouterConfiguration, RouterSettings

BACKEND = "http://127.0.0.1:1"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[RouterConfiguration]:
    """Configurations that would have been run; nothing is."""
    found: list[RouterConfiguration] = []

    def run(
        configuration: RouterConfiguration, ready: Callable[[str], None], again: Callable[[], RouterConfiguration]
    ) -> bool:
        found.append(configuration)
        assert again() == configuration
        configuration.router()
        ready("http://127.0.0.1:8080")
        return configuration.settings.drain_s > 0

    monkeypatch.setattr(router_module, "run", run)
    return found


def test_one_line_says_where_it_listens(call: Callable[..., Any], launched: list[RouterConfiguration]) -> None:
    ended = call("launch", "router", "--policy", "vllm-default", "--backend", BACKEND, "--backend", "http://a:1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "router on http://127.0.0.1:8080, policy vllm-default, 2 backends\n"


def test_flags_parameters_and_a_file_come_together(
    call: Callable[..., Any], launched: list[RouterConfiguration], here: Path
) -> None:
    (here / "router.toml").write_text(f'policy = "balance-route"\nbackends = ["{BACKEND}"]\nport = 9000\ntries = 5\n')
    ended = call(
        "launch", "router", "--config", "router.toml", "--set", "horizon_steps=8", "--refresh-s", "20ms",
        "--port", "9001", "--record", "traffic.jsonl",
    )  # fmt: skip
    assert ended.code == 0
    [found] = launched
    assert found.router().horizon_steps == 8
    settings = found.settings
    assert (settings.port, settings.tries, settings.refresh_s, settings.record) == (9001, 5, 0.02, "traffic.jsonl")


def test_every_setting_is_a_flag_that_shows_its_default(call: Callable[..., Any]) -> None:
    text = " ".join(call("launch", "router", "--help").out.split())
    for item in dataclasses.fields(RouterSettings):
        assert f"--{item.name.replace('_', '-')} " in text
    assert "Time between two refreshes of the policy's view [0.1]" in text
    assert "Port on which the router listens; 0 for any free port [8080]" in text


def test_what_was_not_finished_gives_another_exit_code(
    call: Callable[..., Any], launched: list[RouterConfiguration]
) -> None:
    assert call("launch", "router", "--policy", "round-robin", "--backend", BACKEND, "--drain-s", "0").code == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "No policy was named."),
        (["--policy", "round-robin"], "No backend was named."),
        (["--policy", "round-robbin", "--backend", BACKEND], "nearest: round-robin"),
        (["--policy", "balance-route-oracle", "--backend", BACKEND], "only a simulation does"),
        (["--policy", "one-step-optimum", "--backend", BACKEND], "is for simulations only"),
        (["--policy", "round-robin", "--backend", "localhost"], "This is not the address of a backend."),
        (["--policy", "round-robin", "--backend", BACKEND, "--refresh", "1s"], "There is no option named '--refresh'."),
        (["--policy", "round-robin", "--backend", BACKEND, "--refresh-s", "1parsec"], "not a unit that converts"),
        (["--policy", "round-robin", "--backend", BACKEND, "--tries", "0"], "allowed: 1 to 100"),
        (["--policy", "power-of-two", "--backend", BACKEND, "--set", "seeds=1"], "nearest: seed"),
        (["--policy", "power-of-two", "--backend", BACKEND, "--set", "seed"], "This is not a setting"),
        (["--config", "missing.toml"], "The configuration cannot be read"),
        (["--policy", "round-robin", "--backend", BACKEND, "--record", "t.csv"], "a file of JSON lines."),
        (["--policy", "round-robin", "--backend", BACKEND, "--host", "no such host"], "no such address to listen on"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_before_any_start(call: Callable[..., Any], arguments: list[str], says: str) -> None:
    more = [] if "--port" in arguments or "--config" in arguments else ["--port", "0"]
    ended = call("launch", "router", *arguments, *more)
    assert (ended.code, ended.out) == (3, "")
    assert says in " ".join(ended.err.split())


@pytest.mark.parametrize("library", ["aiohttp", "uvloop", "prometheus_client"])
def test_a_missing_library_gives_the_command_that_installs_it(library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from wavetank.cli import run\n"
        f"sys.exit(run(['launch', 'router', '--policy', 'round-robin', '--port', '0', '--backend', {BACKEND!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert install_command("serving") in done.stderr
    assert repr(library) in done.stderr
