"""Traces of requests for OpenTelemetry: a span per request, in the trace of the client, passed on to the backend.

Spans are handed to a queue and sent by a thread; a collector that is slow or away loses spans and holds nothing up.
Whatever goes wrong here is logged once and ends the tracing, never a request.  A span holds no text of a prompt or an
answer, no key and no query.

Source: W3C Trace Context (``traceparent``, ``tracestate``); OpenTelemetry's SDK, OTLP over HTTP and its semantic
conventions for HTTP servers.

Differs from the source:

1. Whether a trace is kept is decided by its id and ``trace_share`` alone: what a client says about it does not count.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from wavetank.errors import missing_extra
from wavetank.serving.proxy.client_connection import ClientRequest

log = logging.getLogger("wavetank.router")

_MOST_HEADER_BYTES = 512
_CLOSE_S = 3.0
NAMES = frozenset((b"traceparent", b"tracestate"))


class Tracing:
    """Begins a span for every request.

    Parameters
    ----------
    endpoint : str
        Where traces are sent, e.g. ``http://127.0.0.1:4318/v1/traces``.
    share : float
        Of the traces that are kept.
    policy : str
    exporter : object, optional
        Takes spans instead of the endpoint.

    Raises
    ------
    MissingExtraError
        If OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, share: float, policy: str, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
        except ImportError:
            raise missing_extra("opentelemetry", "tracing", needed_for="Tracing") from None
        self.policy = policy
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(share), resource=Resource.create({"service.name": "wavetank-router"})
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("wavetank.router")
        self._context = TraceContextTextMapPropagator()
        self._broken = False

    def begin(self, request: ClientRequest) -> RequestTrace | None:
        """Begin the span of a request; None where tracing has ended for a defect."""
        if self._broken:
            return None
        try:
            from opentelemetry.trace import SpanKind

            path = request.raw_path.partition("?")[0]
            span = self._tracer.start_span(
                f"{request.method} {path}",
                context=self._context.extract(_carrier(request)),
                kind=SpanKind.SERVER,
                attributes={
                    "http.request.method": request.method,
                    "url.path": path,
                    "wavetank.policy": self.policy,
                    "wavetank.request_id": request.request_id.decode("ascii"),
                },
            )
            return RequestTrace(self, span)
        except Exception:
            self.fail()
            return None

    def lines(self, span: Any) -> bytes:
        """Return the header lines that carry a span to a backend."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._context.inject(carrier, set_span_in_context(span))
        return "".join(f"{name}: {value}\r\n" for name, value in carrier.items()).encode("ascii")

    def fail(self) -> None:
        """End the tracing: a defect was met."""
        if not self._broken:
            self._broken = True
            log.exception("a defect of the tracing, which ends; requests go on")

    def flush(self) -> None:
        """Wait until what is in the queue has been sent."""
        self._provider.force_flush(5000)

    async def close(self) -> None:
        """Send what is in the queue, for a short time."""
        ended = threading.Event()

        def close() -> None:
            try:
                self._provider.shutdown()
            finally:
                ended.set()

        # A thread that nobody waits for at the end of the process, either.
        threading.Thread(target=close, daemon=True).start()
        for _ in range(int(_CLOSE_S / 0.02)):
            if ended.is_set():
                return
            await asyncio.sleep(0.02)
        log.warning("the last traces could not be sent")


class RequestTrace:
    """The span of one request.

    Parameters
    ----------
    tracing : Tracing
    span : Span
    """

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing, self._span = tracing, span
        self._backend, self._asked = "", 0

    @property
    def lines(self) -> bytes:
        """Header lines that carry it to a backend; empty where that fails."""
        try:
            return self._tracing.lines(self._span)
        except Exception:
            self._tracing.fail()
            return b""

    def note(self, **attributes: str | float) -> None:
        """Add attributes of the project's own."""
        try:
            for name, value in attributes.items():
                self._span.set_attribute(f"wavetank.{name}", value[:200] if isinstance(value, str) else value)
        except Exception:
            self._tracing.fail()

    def asks(self, backend: str, why: str = "") -> None:
        """Note that a backend is asked; ``why`` is what was wrong with the one before."""
        try:
            self._asked += 1
            self._backend = backend
            self._span.add_event("asks", {"wavetank.backend": backend, **({"wavetank.after": why} if why else {})})
        except Exception:
            self._tracing.fail()

    def first_byte(self) -> None:
        """Note that the first byte of an answer has come."""
        try:
            self._span.add_event("first byte")
        except Exception:
            self._tracing.fail()

    def end(self, status: int) -> None:
        """End the span; 499 for a client that left."""
        try:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("http.response.status_code", status)
            if self._backend:
                self._span.set_attribute("wavetank.backend", self._backend)
                self._span.set_attribute("wavetank.retries", self._asked - 1)
            if status >= 500:
                self._span.set_status(StatusCode.ERROR)
            self._span.end()
        except Exception:
            self._tracing.fail()


def _carrier(request: ClientRequest) -> dict[str, str]:
    """Return the trace that a client names, where it names one only."""
    found: dict[str, list[bytes]] = {}
    for name, value in request.raw_headers:
        if name.lower() in NAMES:
            found.setdefault(name.lower().decode(), []).append(value)
    if len(found.get("traceparent", ())) != 1:
        return {}
    whole = {name: b",".join(values) for name, values in found.items()}
    return {name: value.decode("latin-1") for name, value in whole.items() if len(value) <= _MOST_HEADER_BYTES}
