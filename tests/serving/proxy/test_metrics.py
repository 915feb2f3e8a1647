"""The metrics page."""

from __future__ import annotations

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from wavetank.serving.proxy.metrics import BACKEND_GAUGES, RouterMetrics


def families(metrics: RouterMetrics) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(metrics.page().decode())}


def test_what_happens_is_counted() -> None:
    metrics = RouterMetrics("vllm-default")
    metrics.answered("a:1", 200)
    metrics.answered("a:1", 200)
    metrics.answered("none", 429)
    metrics.served("a:1", 0.02, 0.5, 100, 2000)
    metrics.retried("a:1", "died")
    metrics.broke_off("a:1")
    metrics.fell_back("raised")
    metrics.decided(3e-6)
    metrics.added(1e-4)
    metrics.pool_waited(0.2)
    metrics.cancelled()
    metrics.recorded(2)
    metrics.recording_lost(1)
    read = metrics.registry.get_sample_value
    prefix = "wavetank_router_"
    assert read(prefix + "requests_total", {"policy": "vllm-default", "backend": "a:1", "status": "200"}) == 2
    assert read(prefix + "requests_total", {"policy": "vllm-default", "backend": "none", "status": "429"}) == 1
    assert read(prefix + "retries_total", {"backend": "a:1", "reason": "died"}) == 1
    assert read(prefix + "broken_streams_total", {"backend": "a:1"}) == 1
    assert read(prefix + "policy_fallbacks_total", {"kind": "raised"}) == 1
    assert read(prefix + "client_cancels_total") == 1
    assert read(prefix + "recorded_requests_total") == 2
    assert read(prefix + "recording_lost_requests_total") == 1
    assert read(prefix + "bytes_total", {"direction": "out"}) == 2000
    assert read(prefix + "time_to_first_token_seconds_sum", {"backend": "a:1"}) == 0.02
    assert read(prefix + "request_duration_seconds_count", {"backend": "a:1"}) == 1
    assert read(prefix + "decision_seconds_bucket", {"policy": "vllm-default", "le": "5e-06"}) == 1
    assert read(prefix + "added_latency_seconds_sum") == 1e-4
    assert read(prefix + "pool_wait_seconds_count") == 1


def test_gauges_are_read_when_the_page_is() -> None:
    metrics = RouterMetrics("round-robin")
    value = [1.0]
    metrics.watch(
        lambda: [("a:1", tuple(value * len(BACKEND_GAUGES)))], lambda: {"in_flight_requests": value[0], "draining": 0.0}
    )
    assert metrics.registry.get_sample_value("wavetank_router_view_kv_tokens", {"backend": "a:1"}) == 1
    value[0] = 5.0
    assert metrics.registry.get_sample_value("wavetank_router_view_kv_tokens", {"backend": "a:1"}) == 5
    assert metrics.registry.get_sample_value("wavetank_router_in_flight_requests") == 5


def test_names_carry_a_unit_and_the_page_parses() -> None:
    metrics = RouterMetrics("round-robin")
    metrics.watch(lambda: [("[::1]:8000", tuple(range(len(BACKEND_GAUGES))))], lambda: {"bytes_per_token": 4.0})
    found = families(metrics)
    units = r"(seconds|requests|tokens|bytes|connections|retries|cancels|streams|fallbacks|up|per_token)$"
    assert len(found) > 15
    for name, family in found.items():
        assert re.match(r"wavetank_router_[a-z_]+$", name)
        assert re.search(units, name), name
        assert family.documentation
    assert not any(name.endswith("_created") for name in found)


def test_two_routers_in_one_process_keep_their_own_figures() -> None:
    one, other = RouterMetrics("a"), RouterMetrics("b")
    one.cancelled()
    assert other.registry.get_sample_value("wavetank_router_client_cancels_total") == 0
