"""Study ``proxy-chaos``: what clients of a proxy see while other clients leave and its backends are killed."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.serving.proxy.programs import ProxyPrograms
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

if TYPE_CHECKING:
    from wavetank.live.processes import ChildProcess


@dataclass(frozen=True, kw_only=True)
class ProxyChaos(ProxyPrograms, Study):
    """Plain requests and streams go through the proxy; every token names its request and its place.  Some clients
    leave: at a random moment, just about the end of their answer, or at a drawn token; some stop reading a long stream
    and then leave or read on.  A request is right, or its client left, or it failed in a way that its client can
    distinguish from success (an error status, a stream that breaks off), or it is lost, doubled, crossed or hung.
    """

    name = "proxy-chaos"
    baseline = "wavetank-router"
    primary = "failed_cleanly"
    secondary = ("requests_per_s",)
    must_be_zero = ("lost", "hung", "doubled", "crossed")
    in_process = True
    default_seeds = 3
    metrics = (
        Metric("requests", "requests", "", "counted", "requests sent, plain and streamed"),
        Metric("left", "requests", "", "counted", "clients that left first; the tokens that they had received "
                                                  "were right"),
        Metric("right", "requests", "higher", "counted", "every token of the request, once, in order, and an end"),
        Metric(
            "failed_cleanly", "requests", "lower", "counted",
            "an HTTP error status, or an answer that visibly broke off after a right beginning",
            words="cleanly failed requests",
        ),
        Metric(
            "lost", "requests", "lower", "counted",
            "a connection closed without a status, or an answer that looks complete and lacks tokens",
        ),
        Metric("hung", "requests", "lower", "counted", "no end of the answer in timeout_s"),
        Metric("doubled", "requests", "lower", "counted", "a token or an answer that came twice"),
        Metric("crossed", "requests", "lower", "counted", "a token of another request, or text that is no token "
                                                          "at all"),
        Metric("kills", "kills", "", "counted", "backends killed while requests were in flight"),
        Metric("requests_per_s", "requests/s", "higher", "measured", "requests answered right / time"),
        Metric(
            "files_left_open", "files", "lower", "counted",
            "increase in open files and sockets of the proxy, from before the first request to two "
            "seconds after the last answer",
            table=False,
        ),
        Metric(
            "memory_growth_bytes", "bytes", "lower", "measured",
            "increase in resident memory of the proxy during the load",
            table=False,
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Requests that failed in a way that clients can detect", y="failed_cleanly",
              says="Shorter is better: requests that retries before the first token could not save."),
    )  # fmt: skip

    requests: int = setting(15_000, unit="requests", says="Requests per seed", low=1, high=100_000_000)
    clients: int = setting(64, says="Connections, each with one request at a time", low=1, high=10_000)
    backends: int = setting(4, says="Null backends, one process each", low=1, high=64)
    up_s: float = setting(1.0, unit="s", says="Mean lifetime of a backend", low=0.05, high=3600)
    down_s: float = setting(0.3, unit="s", says="Mean time for which a killed backend stays down", low=0.05, high=3600)
    streamed_share: float = setting(0.5, says="Share of requests that ask for a stream", low=0, high=1)
    most_tokens: int = setting(
        32, unit="tokens", says="Most tokens of an answer; the number is drawn from 1 to this", low=1, high=100_000
    )
    delay_s: float = setting(0.005, unit="s", says="Mean time before a backend begins to answer", low=0, high=60)
    gap_s: float = setting(0.001, unit="s", says="Time between the tokens of a stream", low=0, high=60)
    timeout_s: float = setting(
        20.0,
        unit="s",
        says="Time after which a request without the end of its answer counts as hanging",
        low=1,
        high=600,
    )
    leaving_share: float = setting(
        0.3, says="Share of requests whose client leaves before or at the end", low=0, high=1
    )
    slow_share: float = setting(
        0.002,
        says="Share of requests for 6 MB whose client stops reading, then leaves or continues to read",
        low=0,
        high=1,
    )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The seed draws requests and the times of the kills; which requests a kill meets depends on the machine, "
            "so counts differ from run to run.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Count what became of the requests."""
        from wavetank.serving.proxy.chaos import Chaos, endure
        from wavetank.serving.proxy.load import BROKEN, CROSSED, DOUBLED, FAILED, HUNG, LEFT, LOST, OUTCOMES, Load
        from wavetank.serving.proxy.proxies import launched

        @contextlib.contextmanager
        def start(ports: Sequence[int], cores: frozenset[int]) -> Iterator[tuple[int, ChildProcess]]:
            with (
                tempfile.TemporaryDirectory(prefix="proxy-chaos-") as folder,
                launched(system, ports, Path(folder), cores=cores, program=self.program_of(system)) as proxy,
            ):
                yield proxy

        found = endure(
            start,
            Chaos(backends=self.backends, up_s=self.up_s, down_s=self.down_s, seed=seed),
            Load(
                clients=self.clients,
                requests=self.requests,
                tokens=(1, self.most_tokens),
                streamed_share=self.streamed_share,
                delay_s=self.delay_s,
                gap_s=self.gap_s,
                timeout_s=self.timeout_s,
                leaving_share=self.leaving_share,
                slow_share=self.slow_share,
                seed=seed,
            ),
        )
        load = found.load
        for note in load.notes:
            # What was wrong about an answer cannot be had again: the counts alone would leave nothing to look at.
            if f": {OUTCOMES[FAILED]}, " not in note and f": {OUTCOMES[BROKEN]}, " not in note:
                warnings.warn(f"proxy-chaos, seed {seed}: {note}", stacklevel=2)
        return Measurements(
            {
                "requests": len(load.outcome),
                "left": load.count(LEFT),
                "right": load.right,
                "failed_cleanly": load.count(FAILED) + load.count(BROKEN),
                "lost": load.count(LOST),
                "hung": load.count(HUNG),
                "doubled": load.count(DOUBLED),
                "crossed": load.count(CROSSED),
                "kills": found.kills,
                "requests_per_s": load.requests_per_s,
                "files_left_open": found.open_files_after - found.open_files_before,
                "memory_growth_bytes": found.resident_bytes_after - found.resident_bytes_before,
            }
        )
