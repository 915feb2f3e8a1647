"""Study ``proxy-speed``: what a proxy in front of model servers costs."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wavetank.live.processes import python_module
from wavetank.serving.proxy.programs import ProxyPrograms
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial

if TYPE_CHECKING:
    from wavetank.live.processes import ChildProcess
    from wavetank.serving.proxy.load import Load, LoadResult

ONE, PACED, PLAIN, STREAMED, STREAMED_PACED = CASES = (
    "one client",
    "many clients paced",
    "many clients flat out",
    "streams flat out",
    "streams paced",
)
"""What is offered.

one client              plain requests, one at a time, answered at once
many clients paced      plain requests to backends that take long enough for the clients to offer ``paced_per_s``
many clients flat out   plain requests, answered at once
streams flat out        streams whose tokens the backends write one by one, as fast as they can
streams paced           streams with a token every ``gap_s``
"""


class _Running(NamedTuple):
    port: int
    process: ChildProcess | None


class _Seen(NamedTuple):
    result: LoadResult
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class ProxySpeed(ProxyPrograms, Study):
    """Every system runs on one core, load generator and null backends share the others, and all take turns in every
    round.  Each answer is checked token by token; only right ones count.  ``direct`` has no proxy: what load generator
    and backends can do by themselves.
    """

    name = "proxy-speed"
    baseline = "direct"
    primary = "requests_per_s"
    secondary = ("added_latency_p50_s", "cpu_per_request_s")
    cases_by = "case"
    in_process = True
    process_per_seed = True
    default_seeds = 3
    metrics = (
        Metric("requests_per_s", "requests/s", "higher", "measured", "plain requests answered right / time"),
        Metric("chunks_per_s", "tokens/s", "higher", "measured", "streamed tokens received in order / time"),
        Metric(
            "added_latency_p50_s", "s", "lower", "measured",
            "median of (last byte - request sent - time asked of the backend), minus that of direct in the same round",
            words="added latency",
        ),
        Metric(
            "added_latency_p99_s", "s", "lower", "measured",
            "99th percentile of (last byte - request sent - time asked of the backend), minus that of "
            "direct in the same round",
            table=False,
        ),
        Metric(
            "chunk_delay_p50_s", "s", "lower", "measured",
            "median of (token received - token sent by its backend)",
        ),
        Metric(
            "chunk_delay_p99_s", "s", "lower", "measured",
            "99th percentile of (token received - token sent by its backend)",
            table=False,
        ),
        Metric(
            "cpu_per_request_s", "s", "lower", "measured",
            "processor time of the proxy, in user and system mode, / requests answered right, including streams",
            words="processor time per request",
        ),
        Metric("resident_bytes", "bytes", "lower", "measured", "resident memory of the proxy after the case"),
        Metric(
            "throughput_ratio", "", "higher", "measured",
            "plain requests (streamed tokens) per second / those of LiteLLM in the same round",
            table=False,
        ),
        Metric(
            "latency_p50_s", "s", "lower", "measured",
            "median of (last byte - request sent - time asked of the backend)",
            table=False,
        ),
        Metric("latency_p99_s", "s", "lower", "measured", "99th percentile of the same", table=False),
        Metric("not_right", "requests", "lower", "counted", "requests without a right answer", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Requests and streams", y="requests_per_s", by="case", log="x",
              says="Longer is better; direct is the limit of the load generator."),
        Chart("bars", "Streamed tokens per second", y="chunks_per_s", by="case", log="x", says="Longer is better."),
        Chart("bars", "Latency that the proxy adds", y="added_latency_p50_s", by="case", log="x",
              says="Shorter is better; at full load the time is queueing, so the cases with one client and "
                   "with a pace show the proxies' own latency."),
    )  # fmt: skip

    rounds: int = setting(
        2, says="Rounds per start of the proxies; in each, all take turns on every case", low=1, high=1000
    )
    window_s: float = setting(0.5, unit="s", says="Time per proxy and case", low=0.05, high=600)
    clients: int = setting(64, says="Connections of the cases with several clients", low=1, high=10_000)
    backends: int = setting(4, says="Null backends behind each proxy", low=1, high=64)
    paced_per_s: float = setting(1250.0, unit="requests/s", says="Request rate of paced clients", low=1, high=1e6)
    stream_tokens: int = setting(32, unit="tokens", says="Tokens per stream", low=1, high=100_000)
    answer_tokens: int = setting(16, unit="tokens", says="Tokens per plain answer", low=1, high=100_000)
    gap_s: float = setting(0.005, unit="s", says="Time between the tokens of a paced stream", low=0.0001, high=10)
    prompt_bytes: int = setting(1000, unit="bytes", says="Size of a prompt", low=0, high=1_000_000)
    cases: tuple[str, ...] = setting(CASES, says="Cases of the offered load", choices=CASES)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        from wavetank.live.processes import split_cores

        own, others = split_cores()
        if not own:
            where = "This system cannot pin processes to cores: proxy, load generator and backends ran anywhere."
        elif own == others:
            where = "There is one core: proxy, load generator and backends shared it, so rates are too low."
        else:
            where = f"The proxy had core {min(own)} to itself, load generator and backends the other {len(others)}."
        return (
            where,
            "The proxies that are not being measured stay alive and idle on the same core.",
            f"Paced: the backends take {self.clients / self.paced_per_s * 1e3:.0f} ms on average, drawn, so that "
            f"{self.clients} clients offer {self.paced_per_s:g} requests/s, less while a window begins and ends; "
            "a proxy that cannot follow queues.",
        )

    @property
    def rounds_per_replicate(self) -> int:
        """The rounds that one set of started proxies served."""
        return self.rounds

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial per seed: all proxies take turns."""
        return [Trial(systems=tuple(systems), seed=seed) for seed in seeds]

    def load_of(self, case: str, seed: int) -> Load:
        """Return what is offered in a case."""
        from wavetank.serving.proxy.load import Load

        streamed = case in (STREAMED, STREAMED_PACED)
        tokens = self.stream_tokens if streamed else self.answer_tokens
        clients = 1 if case == ONE else self.clients
        return Load(
            clients=clients,
            duration_s=self.window_s,
            tokens=(tokens, tokens),
            streamed_share=float(streamed),
            delay_s=clients / self.paced_per_s if case == PACED else 0.0,
            gap_s=self.gap_s if case == STREAMED_PACED else 0.0,
            prompt_bytes=self.prompt_bytes,
            timeout_s=60.0,
            seed=seed,
        )

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Start all proxies, let them take turns, and end them."""
        from wavetank.live.processes import pinned, split_cores
        from wavetank.serving.proxy.load import offer

        own, others = split_cores()
        records: list[Record] = []
        with self._started(built, own, others) as running, pinned(others):
            # The first requests of a program load code, open connections and fill caches: plain ones, then streams.
            kinds = {case in (STREAMED, STREAMED_PACED): case for case in self.cases}
            for case in kinds.values():
                for system in running.values():
                    offer(system.port, self.load_of(case, trial.seed))
            for number in range(trial.seed * self.rounds, (trial.seed + 1) * self.rounds):
                for case in self.cases:
                    records += self._turn(case, number, running)
        return records

    @contextlib.contextmanager
    def _started(
        self, built: Mapping[str, Any], own: frozenset[int], others: frozenset[int]
    ) -> Iterator[dict[str, _Running]]:
        from wavetank.live.processes import ChildProcess
        from wavetank.serving.proxy.proxies import DirectConnection, find_program, launched

        # Before anything is started: whatever is not installed is said at once.
        programs = {
            name: find_program(proxy.program, self.program_of(proxy)) if proxy.program else ""
            for name, proxy in built.items()
        }
        null = python_module("wavetank.serving.proxy.null_backend", "--listeners", str(self.backends))
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proxy-speed-")))
            backend = stack.enter_context(ChildProcess(null, name="the null backend", cores=others))
            ports = json.loads(backend.first_line())["ports"]
            running = {}
            for name, proxy in built.items():
                if isinstance(proxy, DirectConnection):
                    running[name] = _Running(ports[0], None)
                else:
                    started = launched(proxy, ports, folder, cores=own, program=programs[name])
                    running[name] = _Running(*stack.enter_context(started))
            yield running

    def _turn(self, case: str, number: int, running: Mapping[str, _Running]) -> list[Record]:
        """Offer one case to every system; each round begins with another one."""
        from wavetank.serving.proxy.load import offer

        names = list(running)
        first = number % len(names)
        seen = {}
        for name in names[first:] + names[:first]:
            port, process = running[name]
            before_s = process.cpu_s() if process else 0.0
            result = offer(port, self.load_of(case, number))
            seen[name] = _Seen(result, (process.cpu_s() if process else 0.0) - before_s)
        records = []
        for name in names:
            found = self._found(case, name, seen)
            process = running[name].process
            if process is not None:
                found.put("resident_bytes", process.resident_bytes())
            found.rows = [(metric, value, {self.cases_by: case}) for metric, value, _ in found.rows]
            records += self.stamp(name, number, found)
        return records

    def _found(self, case: str, name: str, seen: Mapping[str, _Seen]) -> Measurements:
        result, cpu_s = seen[name]
        found = Measurements({"not_right": len(result.outcome) - result.right})
        if not result.right:
            return found
        direct = seen.get(self.baseline)
        peer = seen.get("litellm")
        streamed = case in (STREAMED, STREAMED_PACED)
        found.put("chunks_per_s" if streamed else "requests_per_s", _rate(result, streamed))
        if peer is not None and peer.result.right:
            found.put("throughput_ratio", _rate(result, streamed) / _rate(peer.result, streamed))
        if streamed:
            found.put("chunk_delay_p50_s", float(np.quantile(result.chunk_delay_s, 0.5)))
            found.put("chunk_delay_p99_s", float(np.quantile(result.chunk_delay_s, 0.99)))
        else:
            for quantile, word in ((0.5, "p50"), (0.99, "p99")):
                latency_s = float(np.quantile(result.overhead_s, quantile))
                found.put(f"latency_{word}_s", latency_s)
                if direct is not None and direct.result.right and name != self.baseline:
                    base_s = float(np.quantile(direct.result.overhead_s, quantile))
                    found.put(f"added_latency_{word}_s", latency_s - base_s)
        if name != self.baseline:
            found.put("cpu_per_request_s", cpu_s / result.right)
        return found


def _rate(result: LoadResult, streamed: bool) -> float:
    return result.chunks_per_s if streamed else result.requests_per_s
