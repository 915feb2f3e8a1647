"""A cluster becomes processes with the same limits, and all of them end with the block that started them."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import free_port
from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime
from wavetank.serving.proxy import fleet as module
from wavetank.serving.proxy.command_engine import command as engine_command
from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.fleet import Connection, Fleet, Policy, engine_words, fleet, router_settings, worker_name
from wavetank.serving.simulator.cluster import Cluster

FITTED = FittedStepTime(overhead_s=1e-3, per_context_token_s=1.5e-9)


def parsed(words: list[str]) -> dict[str, Any]:
    """Return what the command line of an engine says, as its command reads it."""
    assert words[:6] == [sys.executable, "-P", "-m", "wavetank", "launch", "engine"]
    return dict(engine_command.make_context("engine", words[6:]).params)


def test_an_engine_has_the_limits_of_its_worker() -> None:
    cluster = Cluster(
        workers=2, step_time=FITTED, max_running=7, max_batched_tokens=99, kv_capacity_tokens=1234, kv_watermark=0.25,
        prefix_caching=True,
    )  # fmt: skip
    given = parsed(engine_words(cluster, 1, 2.5, block_tokens=64))
    for name in ("max_running", "max_batched_tokens", "kv_capacity_tokens", "kv_watermark", "prefix_caching"):
        assert given[name] == getattr(cluster, name)
    assert (given["time_scale"], given["block_tokens"], given["name"], given["port"]) == (2.5, 64, "worker-1", 0)


def test_an_engine_has_the_step_time_of_its_worker() -> None:
    from wavetank.serving.proxy.command_engine import cluster_of

    for step_time in (FITTED, RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", tensor_parallel=2)):
        cluster = Cluster(workers=1, step_time=step_time)
        assert cluster_of(parsed(engine_words(cluster, 0, 1.0))) == cluster


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 2, "group_size": 2},
        {"sync_s": 0.1},
        {"max_waiting": 3},
        {"models": (("a",),)},
        {"routers": 2},
        {"step_time": RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", overhead_s=1e-3)},
    ],
)
def test_what_no_engine_can_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError) as caught:
        engine_words(Cluster(**{"workers": 1, "step_time": FITTED, **wrong}), 0, 1.0)
    assert caught.value.allowed


def test_the_router_looks_as_often_as_the_simulated_one_on_the_stretched_clock(tmp_path: Path) -> None:
    cluster = Cluster(workers=2, step_time=FITTED, refresh_s=0.1, prefix_memory_s=50.0, max_running=9, pool_window=77)
    policy = Policy("balance-route", {"horizon_steps": 3, "alpha": None, "logistic": (-1.0, 0.5, 0.0)})
    settings = router_settings(cluster, 4.0, 64)
    words = module._configured(policy, settings, ("http://127.0.0.1:1", "http://127.0.0.1:2"), tmp_path)
    assert words[0] == "--config"
    tomllib.loads(Path(words[1]).read_text())
    found = make_configuration(file=words[1])
    assert (found.settings.refresh_s, found.settings.prefix_memory_s) == (0.4, 200.0)
    assert (found.settings.max_running, found.settings.pool_window, found.settings.block_tokens) == (9, 77, 64)
    router = found.router()
    assert (router.horizon_steps, router.alpha, tuple(router.logistic)) == (3, None, (-1.0, 0.5, 0.0))
    assert [backend.url for backend in found.backends] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_fleet_serves_reports_its_lateness_and_ends_with_its_block() -> None:
    with pytest.raises(KeyboardInterrupt), fleet(Cluster(workers=2, step_time=FITTED), Policy("round-robin")) as live:
        body = {"model": live.model, "prompt": [1, 2], "max_tokens": 3}
        connection = Connection(live.url)
        answers = [connection.post("/v1/completions", body) for _ in range(4)]
        connection.close()
        assert [answer.count(worker_name(i % 2).encode()) >= 1 for i, answer in enumerate(answers)] == [True] * 4
        steps, late_s, bound_s = live.lateness()
        assert (steps, live.model) == (12, "stand-in")
        assert late_s > 0
        assert bound_s >= 0.0005
        assert live.cpu_s() > 0
        pids = [process.pid for process in live.processes]
        assert all(map(running, pids))
        raise KeyboardInterrupt
    assert len(pids) == 3
    assert not any(map(running, pids))


def test_a_router_that_is_refused_says_why() -> None:
    with (
        pytest.raises(WavetankError, match="router") as caught,
        fleet(Cluster(workers=1, step_time=FITTED), Policy("no-such-router")),
    ):
        pass
    assert "no-such-router" in str(caught.value.given)


def test_lateness_adds_up_the_engines_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"""wavetank_engine_late_seconds_bucket{engine="0",le="0.001",model_name="m"} %d
wavetank_engine_late_seconds_bucket{engine="0",le="0.01",model_name="m"} %d
wavetank_engine_late_seconds_bucket{engine="0",le="+Inf",model_name="m"} %d
wavetank_engine_late_seconds_count{engine="0",model_name="m"} %d
wavetank_engine_late_seconds_sum{engine="0",model_name="m"} %f
"""
    pages = {"a": page % (90, 99, 100, 100, 0.3), "b": page % (98, 99, 100, 100, 0.1)}
    monkeypatch.setattr(module, "_page", lambda url, path: pages[url])
    live = Fleet("", ("a", "b"), "m", (), Path("router.toml"))
    assert live.lateness() == (200, pytest.approx(0.002), 0.01)


def test_a_process_that_does_not_answer_is_reported() -> None:
    connection = Connection(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(WavetankError, match="does not answer"):
        connection.get("/health")
    connection.close()


def test_every_part_of_a_cluster_is_said_or_refused() -> None:
    said = {"workers", "step_time", "max_running", "max_batched_tokens", "kv_capacity_tokens", "kv_watermark",
            "prefix_caching", "refresh_s", "prefix_memory_s", "pool_window"}  # fmt: skip
    refused = {"group_size", "sync_s", "adapters", "scheduler_overhead", "scheduled_ahead", "kinds", "max_waiting",
               "models", "routers", "churn", "reuse"}  # fmt: skip
    assert {field.name for field in dataclasses.fields(Cluster)} == said | refused
