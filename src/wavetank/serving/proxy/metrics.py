"""The router's figures for Prometheus: names with units, labels that stay few.

Counters and histograms are written where things happen, through children that are looked up once; gauges are read when
somebody asks for the page, so that they cost a request nothing.

Source: the Prometheus naming guidelines; the histograms' bounds follow vLLM's, so that both pages share a dashboard.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from wavetank.errors import missing_extra

try:
    from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError:
    raise missing_extra("prometheus_client", "serving", needed_for="The router") from None

# One more series for each would double the page.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
              80.0, 160.0, 640.0)  # fmt: skip
_OVERHEAD_S = (5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_DECISION_S = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.005, 0.02, 0.1, 1.0)

# name, what it is; one sample a backend.
BACKEND_GAUGES = (
    ("backend_up", "1 while requests are routed to the backend."),
    ("backend_in_flight_requests", "Requests sent to the backend and not done."),
    ("backend_connections", "Open connections to the backend."),
    ("view_age_seconds", "Age of what the policy sees of the backend."),
    ("view_kv_tokens", "KV cache tokens in use, as the policy sees them."),
    ("view_kv_capacity_tokens", "KV cache of the backend, as the policy sees it."),
    ("view_running_requests", "Running requests, as the policy sees them."),
    ("view_waiting_requests", "Requests that wait at the backend, as the policy sees them."),
)

BackendRow = tuple[str, tuple[float, ...]]


class RouterMetrics:
    """The figures of one router.

    Parameters
    ----------
    policy : str
        Label of all request figures.
    """

    def __init__(self, policy: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.policy = policy
        self._requests = self._counter("requests", "Requests answered.", "policy", "backend", "status")
        self._retries = self._counter("retries", "Requests sent to another backend.", "backend", "reason")
        self._denied = self._counter("denied_retries", "Requests not sent again: the retry budget was spent.")
        self._cancels = self._counter("client_cancels", "Clients that left before their answer was complete.")
        self._fallbacks = self._counter("policy_fallbacks", "Decisions taken by the fewest-requests rule.", "kind")
        self._broken = self._counter("broken_streams", "Answers that broke off after their first byte.", "backend")
        self._bytes = self._counter("bytes", "Body bytes of requests (in) and answers (out).", "direction")
        self._recorded = self._counter("recorded_requests", "Requests written to the recording.")
        self._lost = self._counter("recording_lost_requests", "Requests that could not be recorded.")
        self._first = self._histogram(
            "time_to_first_token_seconds", "Request received to first byte of the answer's body.", _LATENCY_S, "backend"
        )
        self._whole = self._histogram(
            "request_duration_seconds", "Request received to end of answer.", _LATENCY_S, "backend"
        )
        self._added = self._histogram(
            "added_latency_seconds",
            "Time in the router: request received to sent, without the wait in a pool, and end of the backend's answer "
            "to end of the answer.",
            _OVERHEAD_S,
        )
        self._decision = self._histogram("decision_seconds", "One call of the policy.", _DECISION_S, "policy")
        self._pool_wait = self._histogram("pool_wait_seconds", "Wait in the router's pool.", _LATENCY_S)
        self.decided = self._decision.labels(policy).observe
        self.pool_waited = self._pool_wait.observe
        self.added = self._added.observe
        self.retry_denied = self._denied.inc
        self.cancelled = self._cancels.inc
        self.recorded = self._recorded.inc
        self.recording_lost = self._lost.inc
        self._bytes_in = self._bytes.labels("in").inc
        self._bytes_out = self._bytes.labels("out").inc
        self._answered: dict[tuple[str, int], Callable[[], None]] = {}
        self._observers: dict[str, tuple[Callable[[float], None], Callable[[float], None]]] = {}

    def set_policy(self, policy: str) -> None:
        """Count under another policy's name from now on."""
        if policy != self.policy:
            self.policy = policy
            self._answered.clear()
            self.decided = self._decision.labels(policy).observe

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"wavetank_router_{name}", says, labels, registry=self.registry)

    def _histogram(self, name: str, says: str, bounds: tuple[float, ...], *labels: str) -> _Histogram:
        made = _Histogram(f"wavetank_router_{name}", says, bounds, labels)
        self.registry.register(made)
        return made

    def answered(self, backend: str, status: int) -> None:
        """Count a request by how it was answered; ``backend`` is ``none`` where the router itself answered."""
        count = self._answered.get((backend, status))
        if count is None:
            child = self._requests.labels(self.policy, backend, str(status))
            count = self._answered[backend, status] = child.inc
        count()

    def served(self, backend: str, first_s: float, whole_s: float, request_bytes: int, answer_bytes: int) -> None:
        """Take in the times and sizes of a request that a backend answered."""
        observers = self._observers.get(backend)
        if observers is None:
            observers = (self._first.labels(backend).observe, self._whole.labels(backend).observe)
            self._observers[backend] = observers
        observers[0](first_s)
        observers[1](whole_s)
        self._bytes_in(request_bytes)
        self._bytes_out(answer_bytes)

    def forget(self, backend: str) -> None:
        """Let go of the figures of a backend that has left for good."""
        self._observers.pop(backend, None)
        self._answered = {key: count for key, count in self._answered.items() if key[0] != backend}
        for counter in (self._requests, self._retries, self._broken):
            counter.remove_by_labels({"backend": backend})
        for histogram in (self._first, self._whole):
            histogram.forget(backend)

    def retried(self, backend: str, reason: str) -> None:
        """Count a request that was sent to another backend."""
        self._retries.labels(backend, reason).inc()

    def broke_off(self, backend: str) -> None:
        """Count an answer that broke off after its first byte."""
        self._broken.labels(backend).inc()

    def fell_back(self, kind: str) -> None:
        """Count a decision that the policy did not take."""
        self._fallbacks.labels(kind).inc()

    def watch(self, backends: Callable[[], Iterable[BackendRow]], router: Callable[[], dict[str, float]]) -> None:
        """Read gauges from these functions whenever the page is asked for.

        Parameters
        ----------
        backends : callable
            Gives (backend, values in the order of :data:`BACKEND_GAUGES`).
        router : callable
            Gives name and value of gauges without labels.
        """
        self.registry.register(_Gauges(backends, router))

    def page(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return generate_latest(self.registry)


_ROUTER_GAUGES = {
    "in_flight_requests": "Requests received and not yet answered.",
    "pool_waiting_requests": "Requests that wait in the router's pool.",
    "bytes_per_token": "Bytes of prompt text per token, learned from the usage that backends report.",
    "connections": "Open connections of clients.",
    "draining": "1 while the router finishes what it has and takes nothing new.",
}


class _Counts:
    """How often each bucket of a histogram was hit."""

    __slots__ = ("_bounds", "hits", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.hits = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Take one value in."""
        self.hits[bisect_left(self._bounds, value)] += 1
        self.total += value


class _Histogram(Collector):
    """A histogram that is written by one thread alone: a request writes four of them, and locks would be most of it."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], labels: tuple[str, ...]) -> None:
        self._name, self._says, self._bounds, self._labels = name, says, bounds, labels
        self._children: dict[tuple[str, ...], _Counts] = {} if labels else {(): _Counts(bounds)}

    @property
    def observe(self) -> Callable[[float], None]:
        """What takes a value in, of a histogram without labels."""
        return self._children[()].observe

    def labels(self, *values: str) -> _Counts:
        """Return the counts of a label's value."""
        return self._children.setdefault(values, _Counts(self._bounds))

    def forget(self, value: str) -> None:
        """Let go of the counts of a label's value, of a histogram with one label."""
        self._children.pop((value,), None)

    def collect(self) -> Iterator[Any]:
        family = HistogramMetricFamily(self._name, self._says, labels=self._labels)
        edges = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, counts in self._children.items():
            buckets = list(zip(edges, map(float, accumulate(counts.hits)), strict=True))
            family.add_metric(values, buckets, counts.total)
        yield family


class _Gauges(Collector):
    def __init__(self, backends: Callable[[], Iterable[BackendRow]], router: Callable[[], dict[str, float]]) -> None:
        self._backends, self._router = backends, router

    def collect(self) -> Iterator[Any]:
        families = [
            GaugeMetricFamily(f"wavetank_router_{name}", says, labels=("backend",)) for name, says in BACKEND_GAUGES
        ]
        for backend, values in self._backends():
            for family, value in zip(families, values, strict=True):
                family.add_metric((backend,), value)
        yield from families
        for name, value in self._router().items():
            yield GaugeMetricFamily(f"wavetank_router_{name}", _ROUTER_GAUGES[name], value=value)
