"""Study ``router-parity``: the same router, the same requests, once simulated and once for real.

One trace is simulated on a cluster of independent replicas.  Then it is sent, at its own times, through a launched
router to launched stand-in engines, one process each, that step at the pace of the simulation's step-time model.  Both
runs are accounted for by the same code.  Two things differ.  A simulation leaves out connections, JSON and event loops:
they cost wall time, so a time scale above 1 makes them small beside the engines' steps, as they are beside those of
large models.  And nobody knows where between two refreshes of the router's view the first request of the live run
falls; what hangs on that is found by simulating the trace at evenly spaced phases of the refresh.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.serving.routing.study import LLMRouting, saturation_per_s
from wavetank.serving.routing.traffic import Traffic
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.serving.proxy.fleet import Fleet, Policy
    from wavetank.serving.proxy.replay import Replay
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.serving.simulator.simulate import ServingRun
    from wavetank.workloads.requests import RequestTrace

FIGURES = ("mean", "p50", "p99")
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "e2e": "last token - arrival",
}
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
# What counts as parity.
PARITY = 0.05
# Pairs of small requests, one straight to an engine and one through the router.
PROBES = 32


def _metrics() -> tuple[Metric, ...]:
    made = []
    for name, says in LATENCIES.items():
        for figure in FIGURES:
            of = f"{says}, {figure} of requests"
            shown = (name, figure) in (("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("e2e", "mean"))
            made += [
                Metric(f"{name}_{figure}_ratio", "", "", "measured", f"live / simulated: {of}", shown),
                Metric(f"{name}_{figure}_live_s", "s", "", "measured", f"{of}, live: wall time / time scale", False),
                Metric(
                    f"{name}_{figure}_simulated_s", "s", "", "simulated",
                    f"{of}, simulated: median over the phases of the refresh; single phases at coordinate phase", False,
                ),
            ]  # fmt: skip
    tokens = "output tokens of requests finished between the warm-up and the last arrival, per second of it"
    return (
        *made,
        Metric("throughput_ratio", "", "", "measured", f"live / simulated: {tokens}"),
        Metric("throughput_live_tokens_per_s", "tokens/s", "", "measured", f"{tokens}, live", False),
        Metric(
            "throughput_simulated_tokens_per_s", "tokens/s", "", "simulated", f"{tokens}, simulated, as latencies",
            False,
        ),
        Metric(
            "unexplained", "", "lower", "measured",
            "how many of the ten ratios are off by more than 5 % although no phase of the refresh comes that near",
            words="unexplained ratios",
        ),
        Metric("sent_elsewhere_share", "", "lower", "counted",
               "requests that a launched router's adapter, run in the study's process, sends to another worker than "
               "the simulation, at the study's load in even and in bursty arrivals, on the views that were simulated"),
        Metric("views_differ_share", "", "lower", "counted",
               "decisions before which that adapter and the simulation present different views, pools or "
               "states to the router", False),
        Metric("contended_share", "", "", "counted",
               "decisions while requests wait: those in which routers can differ", False),
        Metric("decisions", "", "", "counted", "decisions compared", False),
        Metric("added_latency_s", "s", "lower", "measured",
               "wall time that the router adds to a request of one token on an idle engine: median with it - without"),
        Metric("late_s", "s", "lower", "measured", "wall time from a step's end to its tokens, mean over steps"),
        Metric("late_p99_s", "s", "lower", "measured", "wall time from a step's end to its tokens, a bound on the "
                                                       "99th percentile", False),
        Metric("sent_late_s", "s", "lower", "measured", "wall time by which requests were sent late, mean", False),
        Metric("cores", "", "lower", "measured", "processor time of engines, router and client / wall time", False),
        Metric("same_worker_share", "", "", "measured", "requests that went to the same worker as at phase 0", False),
        Metric("same_worker_simulated_share", "", "", "simulated",
               "requests that went to the same worker at phase 0 and at another one, mean over phases", False),
        Metric("ttft_gap_s", "s", "", "measured", "live - simulated quantile of the time to first token", False),
        Metric("e2e_gap_s", "s", "", "measured", "live - simulated quantile of the end-to-end time", False),
        Metric("requests", "", "", "counted", "requests of the trace, every one answered in full", False),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _CutRouting(LLMRouting):
    """The workload and the cluster of ``llm-routing`` with answers cut to a longest length."""

    longest_output_tokens: int = 0

    def split(self, seed: int, n: int = 0) -> tuple[RequestTrace, RequestTrace]:
        """Return past requests, and the requests to serve."""
        past, served = super().split(seed, n)
        return (self._cut(past), self._cut(served)) if self.longest_output_tokens else (past, served)

    def needed(self, trace: RequestTrace, load: float) -> int:
        """Return the trace's own length: what is served live takes as long as it lasts."""
        return len(trace)

    def _cut(self, trace: RequestTrace) -> RequestTrace:
        return dataclasses.replace(trace, output_tokens=np.minimum(trace.output_tokens, self.longest_output_tokens))


@dataclass(frozen=True, kw_only=True)
class RouterParity(Traffic, Study):
    """The trace, the cluster and the router are the same twice: simulated, and as processes with real connections.  A
    ratio of 1 means that the simulation was exact.
    """

    name = "router-parity"
    by_name = True
    baseline = "vllm-default"
    primary = "unexplained"
    secondary = ("added_latency_s",)
    default_seeds = 3
    # Engines, router and client share this machine; two trials at once would measure each other.
    in_process = True
    metrics = _metrics()
    charts = (
        Chart("bars", "Time to first token: live / simulated", y="ttft_mean_ratio",
              says="1 is parity; values above 1 come from connections, the router's work and other choices of "
                   "workers."),
        Chart("bars", "End to end: live / simulated", y="e2e_mean_ratio", says="1 is parity."),
        Chart("distribution", "How much later a first token comes in the live run", y="ttft_gap_s", by="quantile",
              says="The middle is the cost of connections; the ends are few requests that met others elsewhere."),
    )  # fmt: skip

    requests: int = setting(
        200, unit="requests", says="Number of generated requests; of a trace: at most", low=20, high=10**6
    )
    arrivals: str = setting(
        "poisson", says="Arrival process of generated requests", choices=("poisson", "bursty", "diurnal")
    )
    load: float = setting(
        1.1, says="Arrival rate as a share of the saturation rate; 0: the trace's own times", low=0, high=10
    )
    longest_output_tokens: int = setting(
        500,
        unit="tokens",
        says="Longest answer, so that a trial ends soon; longer answers are cut; 0 cuts none",
        low=0,
        high=10**9,
    )
    time_scale: float = setting(2.0, says="Live seconds per simulated second", low=0.01, high=1000)
    workers: int = setting(4, unit="workers", says="Engines behind the router", low=1, high=64)
    device: str = setting("A100-SXM-80GB", says="Accelerator of a worker")
    model: str = setting("Llama-3.1-8B", says="Model that every worker serves")
    tensor_parallel: int = setting(1, says="Devices per worker", low=1, high=64)
    max_running: int = setting(32, unit="requests", says="Most requests in a worker's batch", low=1, high=100_000)
    max_batched_tokens: int = setting(2048, unit="tokens", says="Token budget of a step", low=1, high=10_000_000)
    kv_capacity_tokens: int = setting(
        0, unit="tokens", says="KV cache of a worker; 0 for the memory that the weights leave", low=0, high=10**11
    )
    prefix_caching: bool = setting(False, says="Whether workers keep prefixes for reuse")
    refresh_s: float = setting(
        0.1, unit="s", says="Time between two refreshes of the routers' view of the workers", low=0.001, high=600.0
    )
    phases: int = setting(16, says="Number of phases of the refresh that are simulated", low=1, high=1000)
    late_limit_s: float = setting(
        0.01, unit="s", says="Mean wall-time lateness of engines above which figures are refused", low=0.0, high=10.0
    )

    def check(self) -> None:
        """Build the cluster and read the trace once, so that mistakes show before any process is started."""
        from wavetank.serving.proxy.fleet import engine_words

        self.routing.check()
        engine_words(self.cluster, 0, self.time_scale)

    def assumed(self) -> str:
        """Return one sentence on the workload and the cluster that the figures are of."""
        return self.routing.assumed()

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        wall_s = self.served(0).span_s * self.time_scale
        return (
            *self.routing.notes_on_length(),
            f"Live times are wall times divided by the time scale of {self.time_scale:g}: a millisecond of connections "
            f"and event loops counts as {show(1e-3 / self.time_scale, 's')}. The arrivals of a trial take "
            f"{show(wall_s, 's')}.",
            f"Saturation rate of this cluster: {show(saturation_per_s(self.routing), 'requests/s')}.",
            f"Simulated figures are medians over {self.phases} phases of the refresh. Routers that act on small "
            "differences send most requests elsewhere at another phase; then p99 of few requests means little.",
        )

    @property
    def routing(self) -> LLMRouting:
        """The study ``llm-routing`` of the same cluster and trace: workload and saturation rate are its."""
        shared = {field.name for field in dataclasses.fields(_CutRouting)}
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name in shared}
        # A stand-in's command line names device and model, and means the roofline of their data sheets.
        return _CutRouting(**same, layout="replicas", loads=(), refreshes_s=(), calibrated=False)

    @property
    def cluster(self) -> Cluster:
        """The replicas."""
        cluster: Any = self.routing.cluster()
        return cluster

    def served(self, seed: int) -> RequestTrace:
        """Return the requests."""
        return self.routing.served(seed, self.load)

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run one trial; a launched router needs the system's name."""
        (name,) = trial.systems
        return self.stamp(name, trial.seed, self.live_and_simulated(name, built[name], trial.seed))

    def live_and_simulated(self, name: str, system: Any, seed: int) -> Measurements:
        """Serve the trace twice and compare."""
        from wavetank.serving.proxy.configuration import ReplayOptions
        from wavetank.serving.proxy.fleet import Policy, fleet, worker_name
        from wavetank.serving.simulator.simulate import simulate

        if getattr(system, "learns_lengths", False):
            system = system.fitted_to(self.routing.split(seed)[0])
        policy = Policy(name, {field.name: getattr(system, field.name) for field in dataclasses.fields(system)})
        trace = self.served(seed)
        simulated = [
            simulate(delayed(trace, self.refresh_s * phase / self.phases), self.cluster, system)
            for phase in range(self.phases)
        ]
        with fleet(self.cluster, policy, time_scale=self.time_scale, block_tokens=trace.block_tokens) as live:
            check_launched(live.policy(), name, system)
            start_s, start_cpu_s = time.monotonic(), live.cpu_s() + time.process_time()
            options = ReplayOptions(url=live.url, time_scale=self.time_scale, check=True)
            replayed = _replayed(trace, options)
            wall_s = time.monotonic() - start_s
            cores = (live.cpu_s() + time.process_time() - start_cpu_s) / wall_s
            _, late_s, late_p99_s = live.lateness()
            added_s = added_latency_s(live)
            fallbacks = live.fallbacks()
        if fallbacks:
            raise WavetankError(
                "The launched router did not decide by itself: the fewest-requests rule stood in for it.",
                given=f"{fallbacks} decisions of {len(trace)} requests",
                allowed="0",
                where=f"{name}, seed {seed}",
            )
        if replayed.failures:
            raise WavetankError(
                f"{sum(replayed.failures.values())} of {len(trace)} requests got no whole answer.",
                given=replayed.why_not(),
                where=f"{name}, seed {seed}",
            )
        if late_s > self.late_limit_s:
            raise WavetankError(
                "This machine is too busy for these settings: the engines cannot keep their times.",
                given=f"{show(late_s, 's')} late on average, {cores:.2f} of {os.cpu_count()} cores used",
                allowed=f"late_limit_s = {self.late_limit_s:g} s",
                where=f"{name}, seed {seed}",
                hint="a larger time_scale, fewer workers, or a quieter machine",
            )
        found = compared(replayed.run(), simulated)
        self.decide_twice(system, seed, found)
        names = [worker_name(number) for number in range(self.workers)]
        placed = np.array([names.index(outcome.worker) for outcome in replayed.outcomes])
        found.put("same_worker_share", _share(placed, simulated[0].worker))
        others = [_share(other.worker, simulated[0].worker) for other in simulated[1:]]
        found.put("same_worker_simulated_share", float(np.mean(others)) if others else math.nan)
        found.put("added_latency_s", added_s)
        found.put("late_s", late_s)
        found.put("late_p99_s", late_p99_s)
        found.put("sent_late_s", replayed.sending_late_s * self.time_scale)
        found.put("cores", cores)
        found.put("requests", len(trace))
        return found

    def decide_twice(self, system: Any, seed: int, found: Measurements) -> None:
        """Compare decisions, one by one, on the same views: simulated, and in a launched router's adapter.

        The adapter runs in this process.  That the launched router is this one is :func:`check_launched`'s to say.
        """
        from wavetank.serving.proxy.decision_parity import decision_parity

        both = [
            decision_parity(self.arriving(arrivals, seed), self.cluster, system, self.adapter)
            for arrivals in ("poisson", "bursty")
        ]
        decisions = sum(each.decisions for each in both)
        found.put("sent_elsewhere_share", sum(each.sent_elsewhere for each in both) / sum(e.requests for e in both))
        found.put("views_differ_share", sum(each.views_differ for each in both) / decisions)
        found.put("contended_share", sum(each.contended for each in both) / decisions)
        found.put("decisions", decisions)

    def arriving(self, arrivals: str, seed: int) -> RequestTrace:
        """Return the requests, generated ones with other arrivals."""
        return dataclasses.replace(self, arrivals=arrivals).served(seed)

    @property
    def adapter(self) -> Any:
        """What calls the router in a launched proxy."""
        from wavetank.serving.proxy.dispatcher import Dispatcher

        return Dispatcher


def check_launched(launched: Policy, name: str, system: Any) -> None:
    """Refuse a launched router that is not the simulated one.

    Parameters
    ----------
    launched : Policy
        What the launched router says it runs.
    name : str
        Of the system in the catalog.
    system : object
        The simulated router, a dataclass.

    Raises
    ------
    WavetankError
        If the names differ, or the routers that names and parameters stand for.
    """
    from wavetank.ledger import catalog

    # Through the catalog, so that what a file cannot say (None, a tuple) is compared as what it stands for.
    runs = catalog.system(launched.name).build(**launched.parameters)
    if launched.name != name or runs != system:
        raise WavetankError(
            "The launched router is not the one that was simulated.",
            given=f"{launched.name}: {runs!r}",
            allowed=f"{name}: {system!r}",
        )


def delayed(trace: RequestTrace, by_s: float) -> RequestTrace:
    """Return the same requests, all later.

    Parameters
    ----------
    trace : RequestTrace
    by_s : float
        By how much, s.
    """
    return dataclasses.replace(trace, arrival_s=trace.arrival_s + by_s)


def compared(live: ServingRun, simulated: Sequence[ServingRun]) -> Measurements:
    """Return the figures of a live run and of its simulations, and their ratios.

    Parameters
    ----------
    live : ServingRun
    simulated : sequence of ServingRun
        One per phase of the refresh.
    """
    found = Measurements()
    ours = live.metrics()
    theirs = [run.metrics() for run in simulated]
    unexplained = 0

    def put(key: str, ratio: str, measured: str, modelled: str) -> None:
        nonlocal unexplained
        values = np.array([figures[key] for figures in theirs])
        median = float(np.median(values))
        found.put(ratio, ours[key] / median)
        found.put(measured, ours[key])
        found.put(modelled, median)
        for number, value in enumerate(values.tolist()):
            found.put(modelled, value, phase=number / len(values))
        low, high = min(values.min(), median * (1 - PARITY)), max(values.max(), median * (1 + PARITY))
        unexplained += not low <= ours[key] <= high

    for name in LATENCIES:
        for figure in FIGURES:
            stem = f"{name}_{figure}"
            put(f"{stem}_s", f"{stem}_ratio", f"{stem}_live_s", f"{stem}_simulated_s")
        for quantile in QUANTILES if name != "tpot" else ():
            middle = np.median([np.quantile(getattr(run, f"{name}_s"), quantile) for run in simulated])
            gap_s = np.quantile(getattr(live, f"{name}_s"), quantile) - middle
            found.put(f"{name}_gap_s", float(gap_s), quantile=quantile)
    put(
        "throughput_tokens_per_s", "throughput_ratio", "throughput_live_tokens_per_s",
        "throughput_simulated_tokens_per_s",
    )  # fmt: skip
    found.put("unexplained", unexplained)
    return found


def _share(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]]) -> float:
    return float((one == other).mean())


def added_latency_s(live: Fleet) -> float:
    """Return how much wall time a router adds to a request of one token, by pairs with and without it.

    Parameters
    ----------
    live : Fleet
        With idle engines.
    """
    from wavetank.serving.proxy.fleet import Connection

    body = {"model": live.model, "prompt": [1, 2, 3], "max_tokens": 1}
    times: dict[str, list[float]] = {live.engine_urls[0]: [], live.url: []}
    connections = {url: Connection(url) for url in times}
    try:
        # The first pair opens connections and does not count.
        for number in range(PROBES + 1):
            for url, connection in connections.items():
                start_s = time.monotonic()
                connection.post("/v1/completions", body)
                if number:
                    times[url].append(time.monotonic() - start_s)
    finally:
        for connection in connections.values():
            connection.close()
    return statistics.median(times[live.url]) - statistics.median(times[live.engine_urls[0]])


def _replayed(trace: RequestTrace, options: Any) -> Replay:
    from wavetank.live.loops import fastest_loop
    from wavetank.serving.proxy.replay import replay

    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        found = runner.run(replay(trace, options))
    if found.interrupted:
        raise KeyboardInterrupt
    return found
