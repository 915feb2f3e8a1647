"""What a router is given, and what it refuses before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError
from wavetank.serving.proxy.configuration import (
    BackendSettings,
    RouterConfiguration,
    RouterSettings,
    live_policies,
    make_configuration,
)
from wavetank.serving.routing.balance_route import BalanceRoute

FILE = """
policy = "balance-route"
port = 9000
refresh_s = "50ms"
max_body_bytes = "2MiB"
backends = [
  "http://10.0.0.1:8000",
  { url = "http://10.0.0.2:8000", max_running = 64, kv_capacity_tokens = "100ktokens" },
]

[parameters]
horizon_steps = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "router.toml"
    path.write_text(FILE)
    return path


def made(**more: Any) -> RouterConfiguration:
    return make_configuration(**{"policy": "round-robin", "backends": ["http://127.0.0.1:1"], **more})


def test_a_file_says_everything(file: Path) -> None:
    found = make_configuration(file=file)
    assert (found.policy, found.settings.port, found.settings.refresh_s) == ("balance-route", 9000, 0.05)
    assert found.settings.max_body_bytes == 2 * 2**20
    assert found.backends == (
        BackendSettings(url="http://10.0.0.1:8000"),
        BackendSettings(url="http://10.0.0.2:8000", max_running=64, kv_capacity_tokens=100_000),
    )
    assert found.router() == BalanceRoute(horizon_steps=4)


def test_flags_win_over_the_file(file: Path) -> None:
    found = make_configuration(
        file=file,
        backends=["http://10.0.0.3:8000"],
        parameters={"horizon_steps": "8", "discount": "0.5"},
        settings={"refresh_s": "10ms"},
    )
    assert found.router() == BalanceRoute(horizon_steps=8, discount=0.5)
    assert [backend.url for backend in found.backends] == ["http://10.0.0.3:8000"]
    assert (found.settings.refresh_s, found.settings.port) == (0.01, 9000)


def test_another_policy_does_not_take_over_the_files_parameters(file: Path) -> None:
    assert make_configuration(file=file, policy="vllm-default").parameters == {}
    assert make_configuration(file=file, policy="balance-route").parameters == {"horizon_steps": 4}


@pytest.mark.parametrize(
    ("more", "nearest"),
    [
        ({"settings": {"refresh": "1s"}}, "refresh_s"),
        ({"policy": "ballance-route"}, "balance-route"),
        ({"parameters": {"seeds": 1}, "policy": "power-of-two"}, "seed"),
    ],
)
def test_a_wrong_name_is_reported_with_the_nearest(more: dict[str, Any], nearest: str) -> None:
    with pytest.raises(WavetankError) as caught:
        made(**more).router()
    assert caught.value.nearest == nearest
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "settings",
    [{"port": 70_000}, {"refresh_s": 0}, {"refresh_s": "soon"}, {"tries": 0}, {"log": "all"}, {"health_path": "x"},
     {"health_path": "/a\r\nX: 1"}, {"api_key_env": "A", "api_key_file": "b"}, {"metrics": "all"},
     {"max_running": 1.5}],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        made(settings=settings)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("policy = ", BadFileError),
        ("polcy = 'x'", UnknownNameError),
        ("policy = 7", BadValueError),
        ("backends = 'http://a:1'", BadValueError),
        ("backends = [{ url = 'http://a:1', slots = 3 }]", UnknownNameError),
        ("backends = [{ url = 'http://a:1', max_running = 0 }]", BadValueError),
        ("parameters = 3", BadValueError),
        ("[server]\nport = 1", UnknownNameError),
    ],
)
def test_a_wrong_file_is_reported_by_its_name(tmp_path: Path, text: str, kind: type[WavetankError]) -> None:
    path = tmp_path / "router.toml"
    path.write_text(text)
    with pytest.raises(kind) as caught:
        make_configuration(file=path)
    assert str(path) in (caught.value.where or "")


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(BadFileError, match="No such file"):
        make_configuration(file="nowhere.toml")


@pytest.mark.parametrize(
    "backends",
    [[], ["http://a:1", "http://a:1/"], ["http://127.0.0.1:8080"], ["a:1"]],
    ids=["none", "twice", "itself", "not the address"],
)
def test_wrong_backends_are_refused(backends: list[str]) -> None:
    with pytest.raises(BadValueError):
        made(backends=backends)


def test_no_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadValueError) as caught:
        make_configuration(backends=["http://a:1"])
    assert caught.value.allowed == tuple(live_policies())
    assert "balance-route" in live_policies()
    assert "balance-route-oracle" not in live_policies()


@pytest.mark.parametrize("policy", ["balance-route-oracle", "one-step-optimum", "serving-simulator"])
def test_what_cannot_decide_live_is_refused(policy: str) -> None:
    with pytest.raises(BadValueError):
        made(policy=policy).router()


def test_a_length_predictor_learns_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,30\n1,10,50\n")
    found = made(policy="balance-route", settings={"learn_from": str(path)})
    assert found.router() == BalanceRoute(mean_output_tokens=40.0)
    with pytest.raises(BadValueError, match="learns nothing"):
        made(settings={"learn_from": str(path)}).router()


def test_the_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    monkeypatch.setenv("ROUTER_KEY", "other")
    assert made().api_key() == ""
    assert made(settings={"api_key_file": str(path)}).api_key() == "secret"
    assert made(settings={"api_key_env": "ROUTER_KEY"}).api_key() == "other"
    for bad in ("", "a\nb", "a b", "\u00e4"):
        path.write_text(bad)
        with pytest.raises(BadValueError) as caught:
            made(settings={"api_key_file": str(path)}).api_key()
        assert not bad or bad not in str(caught.value)
    with pytest.raises(BadValueError):
        made(settings={"api_key_env": "NO_SUCH_VARIABLE"}).api_key()
    with pytest.raises(BadFileError):
        made(settings={"api_key_file": str(tmp_path / "none")}).api_key()


def test_every_setting_says_what_it_is_and_listens_on_loopback_by_default() -> None:
    import dataclasses

    for kind in (RouterSettings, BackendSettings):
        assert all(item.metadata["says"] for item in dataclasses.fields(kind))
    assert RouterSettings().host == "127.0.0.1"
