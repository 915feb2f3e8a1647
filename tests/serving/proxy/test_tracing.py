"""Traces: in the client's trace, to the backend, with what was decided; and never in a request's way."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wavetank.serving.proxy.tracing import Tracing

CHAT = "/v1/chat/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@contextlib.asynccontextmanager
async def traced(live: Any, *servers: Any, exporter: Any = None, share: float = 1.0, **more: Any) -> AsyncIterator[Any]:
    """Start a router whose spans go to an exporter."""
    async with live.routing(*servers, **more) as router:
        router.tracing = router.proxy.tracing = Tracing("", share, "round-robin", exporter)
        yield router


def by_request(exporter: Any, router: Any) -> list[Any]:
    router.tracing.flush()
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_joins_the_clients_trace_and_goes_on_to_the_backend(live: Any, stream: bool) -> None:
    async def main() -> None:
        exporter = InMemorySpanExporter()
        async with live.backends(1) as [server], traced(live, server, exporter=exporter) as router:
            async with aiohttp.ClientSession(router.address) as client:
                headers = {"traceparent": GIVEN, "tracestate": "a=b", "X-Request-Id": "mine", "Authorization": "hush"}
                body = live.ask("confidential", stream=stream)
                async with client.post(CHAT + "?hush=hush", json=body, headers=headers) as answer:
                    await answer.read()
                async with client.get("/health"):
                    pass
            [span] = by_request(exporter, router)
            assert f"{span.context.trace_id:032x}" == TRACE
            assert f"{span.parent.span_id:016x}" == PARENT
            assert server.asked[0].header("traceparent") == f"00-{TRACE}-{span.context.span_id:016x}-01"
            assert server.asked[0].header("tracestate") == "a=b"
            found = dict(span.attributes)
            assert found.pop("wavetank.waited_s") == 0.0
            assert found == {
                "http.request.method": "POST", "url.path": CHAT, "http.response.status_code": 200,
                "wavetank.policy": "round-robin", "wavetank.request_id": "mine", "wavetank.model": "m",
                "wavetank.backend": router.backends[0].name, "wavetank.retries": 0,
            }  # fmt: skip
            assert [event.name for event in span.events] == ["asks", "first byte"]
            assert "hush" not in span.to_json()
            assert "confidential" not in span.to_json()

    live.run(main())


def test_retries_refusals_and_clients_that_leave_end_their_spans(live: Any) -> None:
    async def dies(backend: Any, asked: Any, writer: Any) -> None:
        writer.transport.abort()

    async def never(backend: Any, asked: Any, writer: Any) -> None:
        await asyncio.sleep(5.0)

    async def main() -> None:
        exporter = InMemorySpanExporter()
        more = {"exporter": exporter, "keep_alive_s": 0.0}
        async with live.backends(2) as servers, traced(live, *servers, **more) as router:
            servers[0].behaviour = dies
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask()) as answer:
                    assert answer.status == 200
                async with client.post(CHAT, data=b"{") as answer:
                    assert answer.status == 400
                for server in servers:
                    server.behaviour = never
                with pytest.raises(asyncio.TimeoutError):
                    async with client.post(CHAT, json=live.ask(), timeout=aiohttp.ClientTimeout(total=0.1)):
                        pass
                await live.until(lambda: router.proxy.in_flight == 0)
            spans = by_request(exporter, router)
            assert [span.attributes["http.response.status_code"] for span in spans] == [200, 400, 499]
            assert spans[0].attributes["wavetank.retries"] == 1
            assert [dict(event.attributes).get("wavetank.after") for event in spans[0].events] == [None, "died", None]
            assert "wavetank.backend" not in spans[1].attributes

    live.run(main())


@pytest.mark.parametrize(
    "given",
    ["", "00", "00-" + "0" * 32 + f"-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01",
     f"00-{TRACE.upper()}x-{PARENT}-01", "x" * 5000, f"00-{TRACE}-{PARENT}-01-more"],
)  # fmt: skip
def test_a_trace_that_is_none_begins_anew(live: Any, given: str) -> None:
    async def main() -> None:
        exporter = InMemorySpanExporter()
        async with live.backends(1) as [server], traced(live, server, exporter=exporter) as router:
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask(), headers={"traceparent": given}) as answer:
                    assert answer.status == 200
            [span] = by_request(exporter, router)
            assert span.parent is None
            found = server.asked[0].header("traceparent")
            assert found.startswith(f"00-{span.context.trace_id:032x}-")

    live.run(main())


def test_what_a_client_says_does_not_force_a_trace_to_be_kept(live: Any) -> None:
    async def main() -> None:
        exporter = InMemorySpanExporter()
        async with live.backends(1) as [server], traced(live, server, exporter=exporter, share=0.0) as router:
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask(), headers={"traceparent": GIVEN}) as answer:
                    assert answer.status == 200
            assert by_request(exporter, router) == []
            assert server.asked[0].header("traceparent").startswith(f"00-{TRACE}-")

    live.run(main())


def test_without_tracing_a_trace_is_passed_on_as_it_came(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask(), headers={"traceparent": GIVEN}):
                    pass
            assert server.asked[0].header("traceparent") == GIVEN

    live.run(main())


class Stuck(SpanExporter):
    """A collector that takes for ever."""

    def export(self, spans: Any) -> SpanExportResult:
        time.sleep(60.0)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


def test_a_collector_that_is_stuck_holds_nothing_up(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavetank.serving.proxy.tracing._CLOSE_S", 0.1)

    async def main() -> None:
        async with live.backends(1) as [server], traced(live, server, exporter=Stuck()) as router:
            async with aiohttp.ClientSession(router.address) as client:
                found = await asyncio.gather(*(client.post(CHAT, json=live.ask()) for _ in range(30)))
                assert {answer.status for answer in found} == {200}

    live.run(main())


@pytest.mark.parametrize("defect", ["begin", "lines", "event", "end"])
def test_a_defect_of_the_tracing_ends_the_tracing_and_no_request(
    live: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, defect: str
) -> None:
    from opentelemetry.sdk.trace import Span

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    async def main() -> None:
        async with live.backends(1) as [server], traced(live, server, exporter=InMemorySpanExporter()) as router:
            if defect == "begin":
                monkeypatch.setattr(router.tracing._tracer, "start_span", breaks)
            elif defect == "lines":
                monkeypatch.setattr(router.tracing, "lines", breaks)
            else:
                monkeypatch.setattr(Span, "add_event" if defect == "event" else "set_attribute", breaks)
            async with aiohttp.ClientSession(router.address) as client:
                for _ in range(3):
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 200
            assert caplog.text.count("a defect of the tracing") == 1

    live.run(main())
