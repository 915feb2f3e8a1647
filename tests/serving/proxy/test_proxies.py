"""How the systems of the proxy studies are found and started."""

import json
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, WavetankError
from wavetank.live.processes import ChildProcess
from wavetank.serving.proxy.proxies import (
    DirectConnection,
    HAProxy,
    LiteLLMProxy,
    VLLMRouter,
    WavetankRouter,
    find_program,
    launched,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def empty_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    return tmp_path


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_is_found_as_given_then_beside_the_checkout_then_on_the_path(empty_path, monkeypatch):
    on_path = program(empty_path / "bin" / "litellm")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_program("litellm") == str(on_path)
    beside = program(empty_path / ".venv-peers" / "bin" / "litellm")
    assert find_program("litellm") == str(beside)
    given = program(empty_path / "mine")
    assert find_program("litellm", str(given)) == str(given)


@pytest.mark.parametrize(
    ("name", "get"), [("litellm", "make peers"), ("vllm-router", "make peers"), ("haproxy", "apt-get install haproxy")]
)
def test_a_program_that_is_not_there_is_reported_with_the_command_that_gets_it(empty_path, name, get):
    with pytest.raises(WavetankError) as caught:
        find_program(name)
    assert caught.value.problem == f"The system {name} is not installed."
    assert caught.value.hint.startswith(get)
    assert f"--set {name.replace('-', '_')}=PATH" in caught.value.hint


def test_a_program_that_is_given_and_is_none_is_reported(empty_path):
    with pytest.raises(BadFileError) as caught:
        find_program("litellm", "no/such/litellm")
    assert caught.value.given == "no/such/litellm"


@pytest.mark.parametrize("proxy", [WavetankRouter(), LiteLLMProxy(), VLLMRouter(), HAProxy()])
def test_every_proxy_gets_every_backend_and_loopback_alone(tmp_path, proxy):
    start = proxy.start(4001, [5001, 5002], tmp_path, "/bin/it")
    given = " ".join(start.words) + "".join(file.read_text() for file in tmp_path.iterdir())
    assert "4001" in given
    assert "127.0.0.1:5001" in given
    assert "127.0.0.1:5002" in given
    assert "0.0.0.0" not in given
    assert start.words[0] == (sys.executable if isinstance(proxy, WavetankRouter) else "/bin/it")


def test_litellm_gets_no_way_to_the_network_and_prices_for_every_model(tmp_path):
    start = LiteLLMProxy().start(4001, [5001, 5002], tmp_path, "litellm")
    (file,) = tmp_path.iterdir()
    assert file.read_text().count("input_cost_per_token") == 2
    assert start.environment["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


def test_the_policy_of_the_router_can_be_chosen(tmp_path):
    words = WavetankRouter(policy="balance-route").start(1, [2], tmp_path, "").words
    assert words[words.index("--policy") + 1] == "balance-route"


def test_a_router_is_started_answers_and_is_ended(tmp_path):
    null = [sys.executable, "-m", "wavetank.serving.proxy.null_backend"]
    with ChildProcess(null, name="null backend") as backend:
        ports = json.loads(backend.first_line())["ports"]
        with (
            launched(WavetankRouter(), ports, tmp_path) as (port, process),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as page,
        ):
            assert [each["id"] for each in json.load(page)["data"]] == ["null-model"]
        assert not process.running


def test_where_there_is_nothing_to_start_that_is_reported(tmp_path):
    with pytest.raises(WavetankError, match="no program to start"), launched(DirectConnection(), [1], tmp_path):
        pass


def test_the_versions_of_the_peers_are_those_that_the_catalog_names():
    pins = dict(line.split("==") for line in (ROOT / "constraints-peers.txt").read_text().splitlines() if "==" in line)
    entries = tomllib.loads((ROOT / "src" / "wavetank" / "serving" / "proxy" / "catalog.toml").read_text())
    for name in ("litellm", "vllm-router"):
        assert pins[name] in entries[name]["source"]["title"]
    assert ".venv-peers/" in (ROOT / ".gitignore").read_text().splitlines()
