"""Study ``llm-routing``: routers for data-parallel workers that serve a language model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.routing.adapter_traffic import AdapterTraffic
from wavetank.serving.routing.disturbances import Disturbances
from wavetank.serving.routing.steady import (
    MOST_REQUESTS,
    OVERLOAD,
    SteadyRate,
    backlog,
    repeated,
    service_time_s,
    steady_rate,
    tokens_out,
)
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show, stated

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
    from wavetank.serving.simulator.simulate import ServingRun
    from wavetank.workloads.requests import RequestTrace

# The tail is what users feel: a distribution without it would end where it becomes interesting.
QUANTILES = (*np.round(np.linspace(0.0, 0.95, 20), 2).tolist(), 0.98, 0.99, 0.995, 0.999, 1.0)
PROBES = 60
# A trace that is shorter than this many mean service times is served several times over: a tenth of it is warm-up, and
# what is counted then lasts for more than ten.
SERVICE_TIMES = 30
LEAST_SERVED = 1_000
# Beyond this many requests nothing is served several times over.
MOST_SERVED = 5_000_000
# What a simulation takes at most; the claim on the simulator's memory is of the same figure.
BYTES_PER_REQUEST = 600


@dataclass(frozen=True, kw_only=True)
class LLMRouting(Disturbances, AdapterTraffic, Study):
    """All routers serve the same requests on the same cluster and see its state through the same, ageing view.  The
    offered load is a share of the saturation rate, which the study finds first by draining a backlog.
    """

    name = "llm-routing"
    baseline = "vllm-default"
    primary = "capacity_tokens_per_s"
    secondary = ("ttft_p99_s", "tpot_p99_s", "goodput_per_s")
    metrics = (
        Metric(
            "capacity_tokens_per_s", "tokens/s", "higher",
            of="output tokens per second of a full cluster behind this router: the trace's requests "
               "replayed at 1.3 times the rate at which the cluster finishes them until ten batch means "
               "agree within 1 %, without warm-up and drain", words="capacity",
        ),
        Metric(
            "throughput_tokens_per_s", "tokens/s", "higher",
            of="output tokens between the warm-up (a tenth of the trace) and the last arrival, per second "
               "of that span, spread evenly between the first and the last token of a request; a trace "
               "shorter than 30 mean service times is served several times over", words="throughput",
        ),
        Metric(
            "imbalance_tokens", "tokens", "lower",
            of="workers * largest - sum of the context tokens a step reads; mean over the steps of a group, over "
            "evenly spaced times for independent replicas", words="imbalance",
        ),
        Metric(
            "idle_share", "", "lower",
            of="share of all worker time between the warm-up and the last arrival without work of the worker's own: "
            "without requests, or at a barrier",
        ),
        Metric("ttft_p50_s", "s", "lower", of="time to first token: first token out - arrival; median"),
        Metric("ttft_p99_s", "s", "lower", of="time to first token, 99th percentile", words="p99 time to first token"),
        Metric("tpot_p50_s", "s", "lower", of="(last token - first token) / (output tokens - 1); median of requests"),
        Metric("tpot_p99_s", "s", "lower", of="time per output token, 99th percentile of requests",
               words="p99 time per output token"),
        Metric("e2e_p99_s", "s", "lower", of="last token out - arrival, 99th percentile"),
        Metric(
            "goodput_per_s", "requests/s", "higher",
            of="requests within both objectives that finished in that time, per second", words="goodput",
        ),
        Metric(
            "decision_s", "s", "lower", "measured",
            of="one decision on this machine: 144 workers, 500 waiting for pool routers",
        ),
        Metric(
            "unserved_share", "", "lower",
            of="where workers change: requests that did not end with their last token (streams that broke off, refused "
            "or without a worker) / requests", words="share of requests lost",
        ),
        Metric(
            "resent_share", "", "lower",
            of="where workers change: requests sent to more than one worker that took them / requests", table=False,
        ),
        Metric("up_share", "", of="where workers change: share of all worker time in which they take requests",
               table=False),
        Metric("ttft_s", "s", "lower", of="time to first token at a quantile of the requests", table=False),
        Metric("preempted_share", "", "lower", of="requests that lost their KV cache at least once", table=False),
        Metric(
            "prefix_hit_share", "", "higher",
            of="prompt tokens found in a prefix cache / prompt tokens",
            table=False,
        ),
        Metric(
            "held_back_p99_s", "s", "lower",
            of="of a split: time for which a KV cache waited at its prefill worker for room on a decode worker, 99th "
            "percentile", table=False,
        ),
        Metric("busiest_share", "", "lower", of="requests of the worker that had most of them / requests", table=False),
        Metric(
            "mixed_share", "",
            of="share of all worker time, in the same span, in steps that compute a prompt somewhere in the group",
            table=False,
        ),
        Metric(
            "prefill_steps", "steps", of="steps that compute a prompt, over the whole run, per thousand requests",
            table=False,
        ),
        Metric(
            "adapter_loads", "adapters", "lower",
            of="where requests ask for adapters: loadings of an adapter by a worker per thousand requests, whole run",
            table=False,
        ),
        Metric(
            "capacity_error", "", of="half the 95 % interval of the capacity's batch means, relative to it", table=False
        ),
        Metric("service_times", "", of="span of the arrivals as served / mean service time", table=False),
        Metric("offered_per_s", "requests/s", of="arrival rate of the trace as served", table=False),
        Metric(
            "saturation_per_s", "requests/s",
            of="rate at which a full cluster finishes the seed's requests behind fewest-kv-tokens", table=False
        ),
        Metric("saturated", "", of="1 when the backlog still grew at the end of the trace", table=False),
    )  # fmt: skip
    charts = (
        Chart("pareto", "Capacity of the cluster against tail latency",
              x="capacity_tokens_per_s", y="ttft_p99_s", log="y",
              says="Down and to the right is better; the joined routers form the Pareto front."),
        Chart("bars", "Imbalance of the KV load", y="imbalance_tokens",
              says="Idle tokens per step: the tokens for which all workers together wait for the most loaded one."),
        Chart("sweep", "Tail latency as the load rises", y="ttft_p99_s", by="load", log="y",
              says="Load is a share of the saturation rate; beyond it, every router queues."),
        Chart("sweep", "Imbalance over the age of signals", y="imbalance_tokens", by="refresh_s",
              says="A router that needs fresh signals rises to the right."),
        Chart("bars", "Capacity over ages of signals, slots, experts and groups (with grid=true)",
              y="capacity_tokens_per_s", by="case",
              says="Where the bars of a case are level, routing gains nothing there."),
        Chart("distribution", "Time to first token of all requests", y="ttft_s", by="quantile", log="xy",
              says="Lower is better at every share of requests."),
        Chart("timeline", "Imbalance over the run", y="imbalance_tokens", by="time_s",
              says="Peaks are moments in which one worker holds far more context than the others."),
    )  # fmt: skip

    load: float = setting(
        0.9, says="Arrival rate as a share of the saturation rate; 0: the trace's own times", low=0, high=10
    )
    loads: tuple[float, ...] = setting((0.5, 0.7, 0.85, 1.0), says="Further loads that are swept", low=0.01, high=10)
    refreshes_s: tuple[float, ...] = setting(
        (0.0, 0.03, 0.3, 1.0), unit="s", says="Further ages of signals that are swept", low=0, high=600
    )
    grid: bool = setting(
        False,
        says="Whether capacity, tails and goodput are also measured over ages of signals, slots, shared "
        "experts and groups",
    )
    grid_refreshes_s: tuple[float, ...] = setting(
        (0.0, 0.1), unit="s", says="Ages of signals in the grid", low=0, high=600
    )
    grid_slots: tuple[int, ...] = setting(
        (64, 256), unit="requests", says="Values of max_running in the grid", low=1, high=10**5
    )
    grid_workers: tuple[int, ...] = setting(
        (16, 64, 144), unit="workers", says="Numbers of workers in the grid", low=1, high=10_000
    )
    layout: str = setting(
        "replicas",
        says="Layout of the workers: replicas: independent; group: one step barrier, as where experts are shared; "
        "decode-group: a barrier, prompts computed elsewhere; split: prefill and decode replicas",
        choices=("replicas", "group", "decode-group", "split"),
    )
    prefill_workers: int = setting(
        0, unit="workers", says="Workers of a split that compute prompts; 0: in proportion to the work of both phases",
        low=0, high=10_000,
    )  # fmt: skip
    link_bytes_per_s: float = setting(
        50e9, unit="bytes/s", says="Bandwidth with which a prefill worker hands KV caches over", low=1.0, high=1e15
    )
    transfer_latency_s: float = setting(
        1e-3, unit="s", says="Start-up time of handing a KV cache over", low=0.0, high=60.0
    )
    workers: int = setting(16, unit="workers", says="Number of data-parallel workers", low=1, high=10_000)
    device: str = setting("H200-SXM", says="Accelerator of a worker")
    devices: tuple[str, ...] = setting(
        (), says="Accelerators where they are mixed, with the workers of each: H100-SXM:8,A100-SXM-80GB:8"
    )
    model: str = setting("Qwen3-30B-A3B", says="Model that every worker serves")
    tensor_parallel: int = setting(1, says="Devices per worker", low=1, high=64)
    expert_parallel: int = setting(
        0,
        unit="workers",
        says="Workers that share the experts of a mixture; 1: every worker has all experts; 0: as many of a group's "
        "workers as divide its experts, and 1 for replicas",
        low=0,
        high=10_000,
    )
    calibrated: bool = setting(
        True,
        says="Whether step times are a roofline fitted to measured layers and recorded runs; else data sheets alone",
    )
    max_running: int = setting(256, unit="requests", says="Most requests in a worker's batch", low=1, high=100_000)
    max_batched_tokens: int = setting(2048, unit="tokens", says="Token budget of a step", low=1, high=10_000_000)
    kv_capacity_tokens: int = setting(
        0, unit="tokens", says="KV cache of a worker; 0 for the memory that the weights leave", low=0, high=10**11
    )
    prefix_caching: bool = setting(False, says="Whether workers keep prefixes for reuse")
    refresh_s: float = setting(
        0.1, unit="s", says="Time between two refreshes of the routers' view of the workers", low=0.0, high=600.0
    )
    routers: int = setting(
        1, says="Copies of the router, among which requests are dealt; each knows only what it sent itself",
        low=1, high=1_000,
    )  # fmt: skip
    sync_s: float = setting(
        0.001, unit="s", says="Time of the barrier and all-to-all per step of a group", low=0.0, high=1.0
    )
    slo_ttft_s: float = setting(
        2.0, unit="s", says="Objective of goodput for the time to first token", low=0.0, high=1e6
    )
    slo_tpot_s: float = setting(
        0.1, unit="s", says="Objective of goodput for the time per output token", low=0.0, high=1e6
    )

    decide_by: str = setting(
        "",
        says="Figure by which the answer ranks the routers; empty: capacity where workers wait for each other, and the "
        "tail of the time to first token of replicas, whose capacity no router changes; goodput of a split",
        choices=("", "capacity_tokens_per_s", "goodput_per_s", "ttft_p99_s"),
    )

    def decisive(self) -> tuple[str, ...]:
        """Return the figure that decides before the others."""
        first = self.decide_by or {"replicas": "ttft_p99_s", "split": "goodput_per_s"}.get(self.layout, self.primary)
        return tuple(dict.fromkeys((first, *super().decisive())))

    def check(self) -> None:
        """Read the trace and build the cluster once, so that mistakes show before any trial."""
        from wavetank.serving.simulator.simulate import check_that_all_fit

        cluster = self.cluster()
        served = self.split(0)[1]
        if len(served) < 20:
            raise BadValueError(
                "Too few requests are left to serve.",
                given=len(served),
                allowed="20 or more",
                where="requests, history",
                hint="a longer trace, a larger --set requests= or a smaller --set history=",
            )
        # By the row of the user's trace: what comes later is resampled, repeated and cut.
        generated = self.made
        behind = len(served) if generated else self.first_used() + min(len(self.read()), self.requests)
        first_row = 1 + behind - len(served)
        check_that_all_fit(served, cluster, first_row=first_row)
        if served.span_s == 0 and (self.load > 0 or self.loads):
            raise BadValueError(
                "All requests arrive at the same instant, so that they cannot be sent at another rate.",
                given=f"load={self.load:g}, loads={','.join(f'{load:g}' for load in self.loads)}",
                allowed="load=0 and no loads",
                where=f"trace {self.trace!r}",
                hint="--set load=0 serves them all at once, at the trace's own times",
            )
        if self.churn != "none" and self.layout != "replicas":
            raise BadValueError(
                "Workers come and go as replicas; where they wait for each other or hand prompts over, one that is "
                "gone takes all others with it.",
                given=f"churn={self.churn}, layout={self.layout}",
                allowed="layout=replicas",
                where="churn",
            )
        self._check_size("")
        for case, cell in self.cells().items():
            cell._check_size(case)
            # Caches differ from cell to cell: shared experts leave more room.
            check_that_all_fit(served, cell.cluster(), first_row=first_row)
        needed = self.needed(served, self.load)
        if needed > max(len(served), MOST_SERVED):
            raise BadValueError(
                "This trace is too short for this number of slots: figures would describe how slots fill.",
                given=f"{len(served):,} requests on {self.workers:,} workers of {self.max_running:,} slots",
                allowed=f"{needed:,} requests ({SERVICE_TIMES} mean service times); up to {MOST_SERVED:,} are made by "
                "serving the trace several times over",
                where="workers, max_running",
                hint="fewer workers, a smaller max_running or a longer trace",
            )

    def _check_size(self, case: str) -> None:
        """Refuse more slots than can be filled or held in memory, before anything is simulated.

        Of a cell of the grid, which ``case`` names, the length that its figures need is checked too: at most, by
        Little's law, as many requests as fill its slots :data:`SERVICE_TIMES` times.
        """
        from wavetank.machine.limits import require_memory

        slots = self.workers * self.max_running
        filling = math.ceil(max(self.load, 1.0 if case else 0.0) * SERVICE_TIMES * slots) if case else 4 * slots
        most = MOST_SERVED if case else MOST_REQUESTS
        where = f"grid_workers, grid_slots: {case}" if case else "workers, max_running"
        if filling > most:
            raise BadValueError(
                "There are more slots than requests can be made to fill.",
                given=f"{self.workers:,} workers of {self.max_running:,} slots: {filling:,} requests",
                allowed=f"{most:,} requests",
                where=where,
                hint="fewer workers or fewer slots",
            )
        require_memory(max(filling, 4 * slots) * BYTES_PER_REQUEST, f"A cluster of {slots:,} slots ({where})")

    def notes(self) -> tuple[str, ...]:
        """Return what was assumed of the trace and what qualifies the figures."""
        from wavetank.serving.fidelity.shipped_fit import shipped_fit

        said = [
            self.assumed(),
            shipped_fit().said_of_roofline(self.device, calibrated=self.calibrated),
            f"Saturation rate of this cluster: {show(saturation_per_s(self), 'requests/s')} "
            "(a backlog replayed behind fewest-kv-tokens until the rate is steady; of seed 0, others have their own).",
            "Routers with a length predictor learned from "
            + ("another generated trace" if self.made else f"the first {self.history:.0%} of the trace")
            + "; the other requests are served, so that predictions are out of sample.",
            *self.notes_on_length(),
            *self.notes_on_churn(),
            *self.notes_on_adapters(),
        ]
        if not self.prefix_caching and self.split(0)[1].block_ids is not None:
            said.append(
                "The requests have prefixes in common, but the workers keep none; engines do by default "
                "(--set prefix_caching=true)."
            )
        if self.load >= 1:
            said.append("The offered load is at or above saturation: latencies grow with the length of the trace.")
        if self.shared() > 1:
            said.append(
                f"The experts are shared by {self.shared()} workers whose batches are taken to be equal: a prompt on "
                "one of them costs as much as prompts on all of them at once, so that prompts hold such a group up too "
                "long."
            )
        if self.layout == "split":
            said.append(
                "A decode worker takes a KV cache when its slots and its cache have room; until then the prefill "
                "worker keeps it and has less room for new prompts. --systems aggregated,aggregated-small-chunks "
                "compares with the same workers as replicas that do both phases."
            )
        if self.layout in ("group", "decode-group") and self.shared() == 1:
            said.append(
                "Every worker of the group reads its own copy of the weights, though a barrier comes from experts that "
                "are shared: --set expert_parallel=0 with a mixture changes what routing gains."
            )
        return tuple(said)

    def assumed(self) -> str:
        """Return one sentence on the workload and the cluster that the figures are of."""
        own, served = self.split(0)[1], self.served(0, self.load)
        tokens = f"{own.prompt_tokens.mean():,.0f} prompt and {own.output_tokens.mean():,.0f} output tokens on average"
        speed = served.rate_per_s / own.rate_per_s if own.span_s > 0 else math.nan
        if self.made:
            kind = f"{self.lengths}, {self.arrivals}" if self.trace == "generated" else f"sessions of {self.trace}"
            kind = kind if self.case == "none" else f"the case {self.case}"
            what = f"{len(served):,} generated requests ({kind}), {tokens}"
        else:
            what = f"{len(own):,} requests of {self.trace} over {show(own.span_s, 's')}, {tokens}"
            if self.load > 0:
                what += f", sent {show(speed)} times as fast ({stated(self.load)} of the saturation rate)"
            what += self.learnt()
        layout = {
            "group": "in one group that steps together",
            "replicas": "as independent replicas",
            "decode-group": "in one group that steps together, prompts computed by as many others",
            "split": "",
        }[self.layout]
        if self.layout == "split":
            n = self.prefill_count()
            layout = (
                f"{n} for prompts and {self.workers - n} for answers, KV caches handed over at "
                f"{show(self.link_bytes_per_s, 'bytes/s')}"
            )
        sharing = f", {self.shared()} sharing the experts" if self.shared() > 1 else ""
        return (
            f"Assumed: {what}; {self.workers} workers of {self.tensor_parallel} x "
            f"{' or '.join(device for device, _ in self.each_device())} with {self.model}, "
            f"{layout}{sharing}, {self.max_running} slots each, routers see them every {self.refresh_s:g} s. "
            "Change with --set workers=, device=, model=, layout=, max_running=, load=."
        )

    def notes_on_length(self) -> tuple[str, ...]:
        """Return what was done about a trace that is short, and about times that may be of another unit."""
        said = [*self.notes_on_reading()]
        own, served = self.split(0)[1], self.served(0, self.load)
        if len(served) > len(own):
            rate = served.rate_per_s
            span_s, service_s = len(own) / rate, saturation(self).service_s
            done = "more were generated" if self.made else "they were served several times over"
            said.append(
                f"The {len(own):,} requests span {show(span_s, 's')} at this load, {span_s / service_s:.2g} mean "
                f"service times of {show(service_s, 's')}; {done}, {len(served):,} in all, so that figures are not "
                "of the cluster's filling."
            )
        elif own.span_s == 0:
            said.append("All requests arrive at once: figures of latency and throughput are of the whole run.")
        return tuple(said)

    def replayable(self, seed: int, n: int) -> RequestTrace:
        """Return what a backlog of ``n`` requests replays: as many generated ones, or the trace."""
        return self.split(seed, n)[1]

    def needed(self, trace: RequestTrace, load: float) -> int:
        """Return how many requests last for enough mean service times, at a share of the saturation rate."""
        full = saturation(self)
        rate_per_s = load * full.requests_per_s if load > 0 else trace.rate_per_s
        if math.isnan(rate_per_s):
            return len(trace)
        return max(LEAST_SERVED, math.ceil(rate_per_s * SERVICE_TIMES * full.service_s))

    def served(self, seed: int, load: float) -> RequestTrace:
        """Return the requests at ``load`` times the saturation rate, enough of them for the figures to be steady."""
        trace = self.split(seed)[1]
        needed = self.needed(trace, load)
        if needed > len(trace):
            trace = self.split(seed, needed)[1] if self.made else repeated(trace, -(-needed // len(trace)))
        return self.sent_at(trace, seed, load * saturation_per_s(self, seed)) if load > 0 else trace

    def cluster(self, refresh_s: float | None = None) -> Cluster | DisaggregatedCluster:
        """Return the cluster, optionally with signals of another age."""
        from wavetank.platforms.catalog import as_model
        from wavetank.serving.simulator.cluster import DisaggregatedCluster

        replicas = self.replicas(self.each_device(), self.shared(), refresh_s)
        if self.layout == "replicas":
            return replicas
        group = dataclasses.replace(replicas, group_size=self.workers, sync_s=self.sync_s)
        if self.layout == "group":
            return group
        prefill, decode = replicas, group
        if self.layout == "split":
            n = self.prefill_count()
            prefill, decode = (self.replicas(part, self.shared(), refresh_s) for part in _cut(self.each_device(), n))
        elif not self.expert_parallel:
            # Prompts are computed by replicas that wait for nobody: each has all experts.
            prefill = self.replicas(self.each_device(), 1, refresh_s)
        return DisaggregatedCluster(
            prefill=prefill,
            decode=decode,
            kv_bytes_per_token=as_model(self.model).kv_bytes_per_token,
            link_bytes_per_s=self.link_bytes_per_s,
            transfer_latency_s=self.transfer_latency_s,
        )

    def replicas(self, devices: list[tuple[str, int]], shared: int, refresh_s: float | None = None) -> Cluster:
        """Return independent workers.

        Parameters
        ----------
        devices : list of (str, int)
            Accelerators and the workers of each.
        shared : int
            Workers that share the experts.
        refresh_s : float, optional
            Age of the signals, where it is another one.
        """
        from wavetank.serving.simulator.cluster import Cluster

        return Cluster(
            workers=sum(workers for _, workers in devices),
            max_running=self.max_running,
            max_batched_tokens=self.max_batched_tokens,
            refresh_s=self.refresh_s if refresh_s is None else refresh_s,
            prefix_caching=self.prefix_caching,
            routers=self.routers,
            adapters=self.adapter_costs(),
            **self.engines(devices, shared),
        )

    def cluster_of(self, system: Any, refresh_s: float | None = None) -> Cluster | DisaggregatedCluster:
        """Return the cluster that serves behind a router: the same workers without a split, where it asks for that."""
        if self.layout != "split" or not getattr(system, "aggregates", False):
            return self.cluster(refresh_s)
        whole = self.replicas(self.each_device(), self.shared(), refresh_s)
        tokens = max(system.chunk_tokens or self.max_batched_tokens, self.max_running)
        return dataclasses.replace(whole, max_batched_tokens=tokens)

    def slots_of(self, system: Any) -> int:
        """Return how many requests can decode at once behind a router."""
        from wavetank.serving.simulator.cluster import DisaggregatedCluster

        cluster = self.cluster_of(system)
        return cluster.decode.slots if isinstance(cluster, DisaggregatedCluster) else cluster.slots

    def prefill_count(self) -> int:
        """Return how many workers of a split compute prompts.

        Raises
        ------
        BadValueError
            If that leaves none for answers.
        """
        if self.prefill_workers >= self.workers:
            raise BadValueError(
                "A split needs workers for prompts and workers for answers.",
                given=f"prefill_workers={self.prefill_workers} of {self.workers} workers",
                allowed=f"1 to {self.workers - 1}" if self.workers > 1 else "2 workers or more",
                where="prefill_workers, workers",
            )
        return self.prefill_workers or _prefill_count(self, self.version())

    @property
    def apart(self) -> bool:
        """Whether prompts and answers are computed by different workers."""
        return self.layout in ("decode-group", "split")

    def shared(self) -> int:
        """Return how many workers share the experts."""
        from wavetank.platforms.catalog import as_model

        experts = as_model(self.model).experts
        if self.expert_parallel or not experts or self.layout in ("replicas", "split"):
            return self.expert_parallel or 1
        return math.gcd(self.workers, experts)

    def engines(self, devices: list[tuple[str, int]], shared: int) -> dict[str, Any]:
        """Return what of a cluster follows from its devices, where ``shared`` workers share the experts."""
        from wavetank.platforms import RooflineStepTime, calibrated_roofline, kv_capacity_tokens
        from wavetank.serving.simulator.cluster import WorkerKind

        roofline = calibrated_roofline if self.calibrated else RooflineStepTime
        engines: list[dict[str, Any]] = [
            {
                "step_time": roofline(
                    device=device, model=self.model, tensor_parallel=self.tensor_parallel, expert_parallel=shared
                ),
                "kv_capacity_tokens": self.kv_capacity_tokens
                or kv_capacity_tokens(device, self.model, self.tensor_parallel, expert_parallel=shared),
            }
            for device, _ in devices
        ]
        if len(devices) == 1:
            return engines[0]
        kinds = [WorkerKind(workers=count, **engine) for (_, count), engine in zip(devices, engines, strict=True)]
        return {**engines[0], "kinds": tuple(kinds)}

    def each_device(self) -> list[tuple[str, int]]:
        """Return the accelerators with the workers of each.

        Raises
        ------
        BadValueError
            If ``devices`` has another form, or does not add up to the workers.
        """
        if not self.devices:
            return [(self.device, self.workers)]
        found = []
        for given in self.devices:
            device, _, count = given.rpartition(":")
            if not device or not (count.isascii() and count.isdigit()) or not 0 < int(count) <= self.workers:
                raise BadValueError(
                    "A mixed cluster names each device with its number of workers.", given=given,
                    allowed=f"DEVICE:NUMBER, as in H100-SXM:8, up to {self.workers} workers",
                    where="devices",
                )  # fmt: skip
            found.append((device, int(count)))
        if sum(count for _, count in found) != self.workers:
            raise BadValueError(
                "The devices do not add up to the workers.",
                given=f"{', '.join(self.devices)}: {sum(count for _, count in found)}",
                allowed=f"{self.workers} in all",
                where="devices",
                hint="--set workers= is the number of workers",
            )
        return found

    def serve(
        self, system: Any, requests: RequestTrace, refresh_s: float | None = None, *, seed: int | None = None
    ) -> ServingRun:
        """Run the requests behind a router, on workers that change where a seed of their failures is given."""
        from wavetank.serving.routing.baselines import FewestKVTokens
        from wavetank.serving.routing.interface import ArrivalRouter
        from wavetank.serving.routing.prefill_aware import LeastPrefill
        from wavetank.serving.simulator.cluster import DisaggregatedCluster
        from wavetank.serving.simulator.simulate import simulate

        cluster = self.cluster_of(system, refresh_s)
        expected = requests.output_tokens.astype(np.float64) if getattr(system, "knows_lengths", False) else None
        if isinstance(cluster, DisaggregatedCluster):
            # A router of its own, or itself, places the prompts of a split; a decode group is about the answers alone.
            prefill = getattr(system, "prefill_router", None)
            if prefill is None and self.layout == "split":
                prefill = system if isinstance(system, ArrivalRouter) else LeastPrefill()
            return simulate(
                requests, cluster, prefill or FewestKVTokens(), decode_router=system, expected_output_tokens=expected,
                probes=PROBES,
            )  # fmt: skip
        if seed is not None:
            changes = self.churn_over(self.workers, requests.span_s, seed)
            cluster = dataclasses.replace(cluster, churn=changes)
        return simulate(requests, cluster, system, expected_output_tokens=expected, probes=PROBES)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Serve the trace at the chosen load, then along the sweeps."""
        from wavetank.serving.routing.decision_time import decision_s

        past, _ = self.split(seed)
        if getattr(system, "learns_lengths", False):
            system = system.fitted_to(past)
        found = Measurements()
        requests = self.served(seed, self.load)
        run = self.serve(system, requests, seed=seed)
        figures = self.figures(run)
        for metric in self.metrics:
            if metric.name in figures:
                found.put(metric.name, _per_thousand(run) if metric.name == "prefill_steps" else figures[metric.name])
        if run.held_back_s is not None:
            found.put("held_back_p99_s", float(np.nanquantile(run.held_back_s, 0.99)))
        if run.outcome.size:
            found.put("unserved_share", 1.0 - figures["availability"])
            found.put("resent_share", figures["retried_share"])
            found.put("up_share", figures["up_share"])
        if self.adapter_costs() is not None:
            found.put("adapter_loads", 1000.0 * run.adapter_loads / run.arrival_s.size)
        found.put("busiest_share", float(np.bincount(run.worker[run.worker >= 0]).max()) / run.worker.size)
        full = self.capacity(system, seed)
        overloaded = self.figures(full.run)
        found.put("capacity_tokens_per_s", full.tokens_per_s)
        found.put("capacity_error", full.error)
        # Where capacity is measured: does a router lead because it batches prompts into fewer steps?
        found.put("mixed_share", overloaded["mixed_share"], load=OVERLOAD)
        found.put("prefill_steps", _per_thousand(full.run), load=OVERLOAD)
        found.put("service_times", requests.span_s / saturation(self).service_s)
        found.put("offered_per_s", requests.rate_per_s)
        found.put("saturation_per_s", saturation_per_s(self, seed))
        found.put("saturated", float(_backlog_grows(run)))
        found.put("decision_s", decision_s(system, workers=min(144, _most_workers(system))))
        for quantile in QUANTILES:
            found.put("ttft_s", float(np.nanquantile(run.ttft_s, quantile)), quantile=quantile)
        for time_s, value in zip(run.probe_s, _probed_imbalance(run), strict=True):
            found.put("imbalance_tokens", value, time_s=round(float(time_s), 3))
        for load in self.loads:
            swept = self.figures(self.serve(system, self.served(seed, load), seed=seed))
            for name in ("ttft_p99_s", "throughput_tokens_per_s", "goodput_per_s", "imbalance_tokens"):
                found.put(name, swept[name], load=load)
        for refresh_s in self.refreshes_s:
            swept = self.figures(self.serve(system, requests, refresh_s, seed=seed))
            for name in ("ttft_p99_s", "imbalance_tokens"):
                found.put(name, swept[name], refresh_s=refresh_s)
        for case, other in self.cells().items():
            run = other.serve(system, other.served(seed, self.load), seed=seed)
            there = other.figures(run)
            full = other.capacity(system, seed)
            found.put("capacity_tokens_per_s", full.tokens_per_s, case=case)
            for name in ("ttft_p99_s", "tpot_p99_s", "goodput_per_s", "idle_share"):
                found.put(name, there[name], case=case)
        return found

    def cells(self) -> dict[str, LLMRouting]:
        """Return the clusters of the sensitivity grid by name; none without ``grid``."""
        if not self.grid:
            return {}
        from wavetank.platforms.catalog import as_model

        # Experts are shared where the model has any, and as evenly as the group can.
        experts = as_model(self.model).experts
        found: dict[str, LLMRouting] = {}
        for workers, slots, refresh_s in itertools.product(self.grid_workers, self.grid_slots, self.grid_refreshes_s):
            age = f"{refresh_s:g} s old" if refresh_s else "fresh"
            shares = math.gcd(workers, experts) if experts and self.layout in ("group", "decode-group") else 1
            for sharing in sorted({1, shares}):
                kind = "full copies" if sharing == 1 else "shared experts"
                found[f"{workers} workers, {slots} slots, {age}, {kind}"] = dataclasses.replace(
                    self, grid=False, loads=(), refreshes_s=(), workers=workers, max_running=slots,
                    refresh_s=refresh_s, expert_parallel=sharing,
                    max_batched_tokens=max(self.max_batched_tokens, slots),
                )  # fmt: skip
        return found

    def capacity(self, system: Any, seed: int) -> SteadyRate:
        """Return what a full cluster gives behind a router."""
        full = saturation(self)
        return steady_rate(
            lambda n: self.replayable(seed, n),
            lambda requests: self.serve(system, requests),
            slots=self.slots_of(system),
            guess_per_s=full.requests_per_s,
            service_s=full.service_s,
            seed=seed,
            split=self.apart,
        )

    def figures(self, run: ServingRun) -> dict[str, float]:
        """Return a run's metrics, with the imbalance of independent replicas taken at the probes."""
        figures = run.metrics(slo_ttft_s=self.slo_ttft_s, slo_tpot_s=self.slo_tpot_s)
        start_s, end_s = run.window_s
        begun, ended = tokens_out(run, np.array([start_s, end_s]), split=run.held_back_s is not None)
        figures["throughput_tokens_per_s"] = float(ended - begun) / (end_s - start_s)
        if math.isnan(figures["imbalance_tokens"]) and run.probe_s.size:
            figures["imbalance_tokens"] = float(_probed_imbalance(run).mean())
        return figures


def _probed_imbalance(run: ServingRun) -> np.ndarray[Any, np.dtype[np.float64]]:
    loads = run.probe_tokens
    return loads.shape[1] * loads.max(axis=1, initial=0.0) - loads.sum(axis=1)


def _per_thousand(run: ServingRun) -> float:
    return 1000.0 * run.prefill_steps / run.arrival_s.size


def _backlog_grows(run: ServingRun) -> bool:
    """Say whether requests waited longer for their first token late in the trace than in its middle, beyond doubt."""
    fifth = max(run.ttft_s.size // 5, 1)
    late, middle = run.ttft_s[-fifth:], run.ttft_s[2 * fifth : 3 * fifth]
    # A backlog that grows evenly from the first request on makes the ratio 1.8, one that begins later a larger one.
    return bool(np.nanmedian(late) > 1.5 * np.nanmedian(middle) and np.nanmedian(late) > 1.0)


def _most_workers(system: Any) -> int:
    from wavetank.serving.routing.one_step_optimum import MOST_WORKERS, OneStepOptimum

    return MOST_WORKERS if isinstance(system, OneStepOptimum) else 144


def saturation_per_s(study: LLMRouting, seed: int = 0) -> float:
    """Return the requests per second that the study's cluster finishes while it is full, behind fewest-kv-tokens.

    Parameters
    ----------
    study : LLMRouting
        Its workload and its cluster count; its loads and its sweeps do not.
    seed : int
        Of the requests.
    """
    return saturation(study, seed).requests_per_s


def saturation(study: LLMRouting, seed: int = 0) -> SteadyRate:
    """Return what the full cluster gives of a seed's requests behind fewest-kv-tokens: the unit of loads."""
    # Loads, sweeps and how many requests are generated change nothing about it.
    requests = 1000 if study.made else study.requests
    alike = dataclasses.replace(
        study,
        load=0.0,
        loads=(),
        refreshes_s=(),
        requests=requests,
        decide_by="capacity_tokens_per_s",
        routers=1,
        churn="none",
    )
    return _saturation(alike, seed, study.version())


@lru_cache(maxsize=64)
def _saturation(study: LLMRouting, seed: int, version: tuple[str, int, int]) -> SteadyRate:
    from wavetank.serving.routing.baselines import FewestKVTokens

    slots = study.slots_of(None)
    # A first look: all slots filled at once, several times over.
    first = backlog(study.replayable(seed, 4 * slots), 4 * slots, math.inf, seed)
    run = study.serve(FewestKVTokens(), first)
    done = np.sort(run.finish_s)
    low, high = int(0.1 * done.size), max(int(0.8 * done.size), int(0.1 * done.size) + 1)
    guess_per_s = float((high - low) / (done[high] - done[low])) if done[high] > done[low] else 1.0 / float(done[high])
    return steady_rate(
        lambda n: study.replayable(seed, n),
        lambda requests: study.serve(FewestKVTokens(), requests),
        slots=slots,
        guess_per_s=guess_per_s,
        service_s=service_time_s(run, slots / guess_per_s),
        seed=seed,
        split=study.apart,
    )


@lru_cache(maxsize=64)
def _prefill_count(study: LLMRouting, version: tuple[str, int, int]) -> int:
    """Return the workers for prompts, in proportion to the time that a lone worker takes for each phase."""
    from wavetank.platforms.step_time import step_ps

    requests = study.split(0)[1]
    prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    part = study.replicas(study.each_device(), study.shared()).uniform[0]
    chunk = part.max_batched_tokens
    prefill_ps = prompt / chunk * step_ps(part.step_time, 0, 0, chunk, chunk * (chunk + 1) // 2)
    context = prompt + output / 2
    batch = max(min(part.max_running, int(part.kv_capacity_tokens / context)), 1)
    decode_ps = output / batch * step_ps(part.step_time, batch, int(batch * context))
    return min(max(round(study.workers * prefill_ps / (prefill_ps + decode_ps)), 1), study.workers - 1)


def _cut(devices: list[tuple[str, int]], first: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Cut devices, in their order, into those of the first workers and those of the others."""
    left, right = [], []
    for device, workers in devices:
        taken = min(workers, first)
        first -= taken
        left += [(device, taken)] if taken else []
        right += [(device, workers - taken)] if workers > taken else []
    return left, right
