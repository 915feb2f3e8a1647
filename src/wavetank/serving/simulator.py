"""Run a request trace on a cluster behind a router, and account for it: one definition of every metric.

The work is done by :mod:`wavetank.serving.core`; this module checks what goes in and names what comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving import core
from wavetank.serving.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.interfaces import ActiveView, ArrivalRouter, PoolRouter, PoolView, WorkersView
from wavetank.serving.python_routers import compiled

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

PS_PER_S = 1_000_000_000_000
# 53 days, so that no sum of step times leaves 64 bits.
LONGEST_TRACE_S = 4.6e6
# The core counts a request's tokens in 32 bits.
LONGEST_REQUEST_TOKENS = 2**31 - 1
# Share of a trace's span at its start that no figure counts.
WARM_UP = 0.1


@dataclass(frozen=True, kw_only=True)
class ServingRun:
    """What happened to every request, and to the cluster.

    All arrays have shape (requests,) in order of arrival unless stated otherwise; times are seconds since the trace's
    zero.

    Attributes
    ----------
    arrival_s, first_token_s, finish_s : float64
        When it arrived, when its first token and its last token were out.
    prompt_tokens, output_tokens : int64
    worker : int32
        Where it ran (its decode worker, where the phases are split).
    preemptions : int32
        How often it had to give up its KV cache.
    matched_tokens : int32
        Prompt tokens that the worker's prefix cache had at the last admission.
    steps : int
        Steps, summed over workers or lockstep groups.
    decisions, refreshes : int
        How often the router decided and its view was refreshed.
    lock_s, work_s : float
        Time of all steps times workers, and the part of it in which a worker had work of its own.
    imbalance_tokens : float
        workers * largest - sum of the context tokens read a step, mean over the steps of a lockstep group; NaN for
        independent replicas.
    probe_s : float64, shape (probes,)
    probe_tokens : float64, shape (probes, workers)
        Context tokens of the decoding requests at the probe times.
    probe_running : int64, shape (probes, workers)
    """

    arrival_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    worker: NDArray[np.int32]
    preemptions: NDArray[np.int32]
    matched_tokens: NDArray[np.int32]
    steps: int
    decisions: int
    refreshes: int
    lock_s: float
    work_s: float
    imbalance_tokens: float
    probe_s: NDArray[np.float64]
    probe_tokens: NDArray[np.float64]
    probe_running: NDArray[np.int64]

    @cached_property
    def ttft_s(self) -> NDArray[np.float64]:
        """Time to first token: first token out minus arrival."""
        return self.first_token_s - self.arrival_s

    @cached_property
    def tpot_s(self) -> NDArray[np.float64]:
        """Time per output token after the first; NaN for requests of one token."""
        later = self.output_tokens - 1
        return np.where(later > 0, (self.finish_s - self.first_token_s) / np.maximum(later, 1), np.nan)

    @cached_property
    def e2e_s(self) -> NDArray[np.float64]:
        """Last token out minus arrival."""
        return self.finish_s - self.arrival_s

    @property
    def makespan_s(self) -> float:
        """First arrival to last token."""
        return float(self.finish_s.max() - self.arrival_s[0])

    def metrics(self, *, slo_ttft_s: float = 2.0, slo_tpot_s: float = 0.1) -> dict[str, float]:
        """Return the figures that studies compare, without the filling and the draining of the cluster.

        Parameters
        ----------
        slo_ttft_s, slo_tpot_s : float
            The service-level objective that goodput counts by: both must hold for a request.

        Returns
        -------
        dict
            Rates count what finished between the end of the warm-up and the last arrival, per second of it:
            ``throughput_tokens_per_s`` (output tokens), ``requests_per_s``, ``goodput_per_s`` (requests within the
            objective).  ``ttft_*``, ``tpot_*`` and ``e2e_*`` are quantiles and means, in s, of the requests that
            arrived in that time; ``idle_share`` (worker time without work of the worker's own: waiting at the barrier
            in a lockstep group, without requests for independent replicas) and ``imbalance_tokens`` are means over
            it.  ``preempted_share`` and ``prefix_hit_share`` count the whole run.
        """
        start, end = self.window_s
        finished = (self.finish_s >= start) & (self.finish_s <= end)
        arrived = self.arrival_s >= start if end > start and self.arrival_s[-1] > start else np.ones_like(finished)
        good = finished & (self.ttft_s <= slo_ttft_s) & ~(self.tpot_s > slo_tpot_s)
        found = {
            "throughput_tokens_per_s": float(self.output_tokens[finished].sum()) / (end - start),
            "requests_per_s": float(finished.sum()) / (end - start),
            "goodput_per_s": float(good.sum()) / (end - start),
            "idle_share": self.idle_share,
            "imbalance_tokens": self.imbalance_tokens,
            "preempted_share": float((self.preemptions > 0).mean()),
            "prefix_hit_share": float(self.matched_tokens.sum() / self.prompt_tokens.sum()),
        }
        for name, values in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            known = values[arrived & ~np.isnan(values)]
            found[f"{name}_mean_s"] = float(known.mean()) if known.size else math.nan
            for quantile in (50, 95, 99):
                found[f"{name}_p{quantile}_s"] = float(np.percentile(known, quantile)) if known.size else math.nan
        return found

    @cached_property
    def window_s(self) -> tuple[float, float]:
        """The time that figures are counted over: the end of the warm-up (a tenth of the trace) to the last arrival.

        A backlog that arrives at once has no such time; then it is the whole run.
        """
        first, last = float(self.arrival_s[0]), float(self.arrival_s[-1])
        start = first + WARM_UP * (last - first)
        if last - start <= 0 or not ((self.finish_s >= start) & (self.finish_s <= last)).any():
            return first, float(self.finish_s.max())
        return start, last

    @property
    def idle_share(self) -> float:
        """Share of worker time without work of the worker's own."""
        return 1.0 - self.work_s / self.lock_s if self.lock_s > 0 else math.nan


def simulate(
    requests: RequestTrace,
    cluster: Cluster | DisaggregatedCluster,
    router: ArrivalRouter | PoolRouter,
    *,
    decode_router: ArrivalRouter | PoolRouter | None = None,
    expected_output_tokens: NDArray[np.float64] | None = None,
    probes: int = 0,
) -> ServingRun:
    """Serve a trace.

    Parameters
    ----------
    requests : RequestTrace
    cluster : Cluster or DisaggregatedCluster
    router : ArrivalRouter or PoolRouter
        Of all workers, or of the prefill workers.
    decode_router : ArrivalRouter or PoolRouter, optional
        Of the decode workers; ``router`` when absent.
    expected_output_tokens : float64 array (requests,), optional
        What a length predictor says; NaN (nobody predicts) by default.
    probes : int
        At how many evenly spaced times within the trace to look at the workers' loads.

    Returns
    -------
    ServingRun

    Raises
    ------
    BadValueError
        If a request cannot ever fit into a worker's KV cache, or the trace or its service takes too long.
    WavetankError
        If the router names a worker that does not exist, or never places what waits.
    """
    for given in (router, decode_router or router):
        if isinstance(given, type) or not isinstance(given, ArrivalRouter | PoolRouter):
            raise BadValueError(
                "This is no router.",
                given=given,
                allowed="an object with initial_state, parameters, and choose or place",
                hint="see wavetank.serving.interfaces, or wavetank list serving",
            )
    expected = np.full(len(requests), np.nan) if expected_output_tokens is None else expected_output_tokens
    expected = np.ascontiguousarray(expected, np.float64)
    if expected.shape != (len(requests),):
        raise BadValueError(
            "There must be one expected length a request.", given=expected.shape, allowed=f"({len(requests)},)"
        )
    if isinstance(cluster, DisaggregatedCluster):
        return _split(requests, cluster, router, decode_router or router, expected, probes)
    arrival_ps = np.round(requests.arrival_s * PS_PER_S).astype(np.int64)
    tables = _run(
        requests, cluster, router, arrival_ps, requests.output_tokens, expected, probes, first_ps=None, rows=None
    )
    return _collect(tables, requests, arrival_ps, tables.requests["first_ps"])


def _split(
    requests: RequestTrace,
    cluster: DisaggregatedCluster,
    router: ArrivalRouter | PoolRouter,
    decode_router: ArrivalRouter | PoolRouter,
    expected: NDArray[np.float64],
    probes: int,
) -> ServingRun:
    # Decode never holds prefill back, so the two pools run one after the other.
    arrival_ps = np.round(requests.arrival_s * PS_PER_S).astype(np.int64)
    ones = np.ones(len(requests), np.int64)
    before = _run(requests, cluster.prefill, router, arrival_ps, ones, expected, 0, first_ps=None, rows=None)
    first_ps = before.requests["first_ps"].copy()
    transfer_ps = np.round(
        (cluster.transfer_latency_s + cluster.transfer_s_per_token * requests.prompt_tokens) * PS_PER_S
    ).astype(np.int64)
    ready_ps = first_ps + transfer_ps
    longer = np.flatnonzero(requests.output_tokens > 1)
    rows = longer[np.argsort(ready_ps[longer], kind="stable")]
    finish_ps = first_ps.copy()
    worker = before.requests["worker"].copy()
    preemptions = before.requests["preemptions"].copy()
    if not rows.size:
        return _collect(before, requests, arrival_ps, first_ps)
    after = _run(
        requests, cluster.decode, decode_router, ready_ps[rows], requests.output_tokens[rows], expected[rows], probes,
        first_ps=first_ps[rows], rows=rows,
    )  # fmt: skip
    finish_ps[rows] = after.requests["finish_ps"]
    worker[rows] = after.requests["worker"]
    preemptions[rows] += after.requests["preemptions"]
    before.requests["finish_ps"] = finish_ps
    before.requests["worker"] = worker
    before.requests["preemptions"] = preemptions
    first, second = (
        _collect(part, requests, arrival_ps, first_ps, rows=r) for part, r in ((before, None), (after, rows))
    )
    return ServingRun(
        **{
            **{name: getattr(first, name) for name in _REQUEST_FIELDS},
            **{name: getattr(first, name) + getattr(second, name) for name in ("steps", "decisions", "refreshes")},
            **{name: getattr(second, name) for name in _DECODE_FIELDS},
        }
    )


_REQUEST_FIELDS = (
    "arrival_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens", "worker", "preemptions",
    "matched_tokens",
)  # fmt: skip
# Where the phases are split these are about the decode workers.
_DECODE_FIELDS = ("lock_s", "work_s", "imbalance_tokens", "probe_s", "probe_tokens", "probe_running")


def _run(
    requests: RequestTrace,
    cluster: Cluster,
    router: ArrivalRouter | PoolRouter,
    arrival_ps: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    expected: NDArray[np.float64],
    probes: int,
    *,
    first_ps: NDArray[np.int64] | None,
    rows: NDArray[np.int64] | None,
) -> core.Tables:
    """Run one pool of workers; ``first_ps`` marks a decode pool, ``rows`` selects requests of the trace."""
    prompt_tokens = requests.prompt_tokens if rows is None else requests.prompt_tokens[rows]
    n = prompt_tokens.size
    _check(prompt_tokens, output_tokens, arrival_ps, cluster, rows)
    reads_prefix = bool(getattr(router, "reads_prefix", False))
    with_blocks = requests.block_ids is not None and rows is None and (reads_prefix or cluster.prefix_caching)
    caching = with_blocks and cluster.prefix_caching
    rules = rules_of(cluster, block_tokens=requests.block_tokens if with_blocks else 0, caching=caching, probes=probes)
    rules = rules._replace(prefilled=int(first_ps is not None))
    first, last = int(arrival_ps[0]), int(arrival_ps[-1])
    if last > first:
        # Without the filling of the cluster and without its draining after the last arrival.
        rules = rules._replace(count_from_ps=first + round(WARM_UP * (last - first)), count_until_ps=last)
    tables = core.make_tables(
        n,
        rules,
        cluster.step_time.table,
        blocks=requests.n_blocks if caching else 0,
        router_blocks=requests.n_blocks if with_blocks and reads_prefix else 0,
        max_blocks=requests.block_ids.size if with_blocks and requests.block_ids is not None else 0,
    )
    table = tables.requests
    table["arrival_ps"] = arrival_ps
    table["prompt"] = prompt_tokens
    table["output"] = output_tokens
    if first_ps is not None:
        table["first_ps"] = first_ps
        table["generated"] = 1
    if with_blocks and requests.block_ids is not None and requests.block_offsets is not None:
        tables.block_ids[:] = requests.block_ids
        tables.block_offsets[:] = requests.block_offsets
    probe_ps = first + (np.arange(probes, dtype=np.int64) + 1) * max((last - first) // (probes + 1), 1)
    view = _view(cluster)
    state = np.ascontiguousarray(router.initial_state(cluster.workers), np.float64).copy()
    step = cluster.step_time.function
    with compiled(router, view) as (function, parameters):
        if isinstance(router, PoolRouter):
            ended = core.run_pool(
                tables,
                rules,
                step,
                function,
                state,
                parameters,
                view,
                *_pool_views(cluster, router),
                expected,
                probe_ps,
            )
        else:
            ended = core.run_arrivals(tables, rules, step, function, state, parameters, view, expected, probe_ps)
    if ended == core.STUCK:
        raise WavetankError(
            "The router places nothing although every worker is idle and requests wait.", given=repr(router)
        )
    if ended in (core.BAD_WORKER, core.BAD_PLACEMENT):
        raise WavetankError(
            "The router named a worker that does not exist."
            if ended == core.BAD_WORKER
            else "The router placed a request on a worker that does not exist.",
            given=repr(router),
            allowed=f"0 to {cluster.workers - 1}",
        )
    if ended == core.LATE or (table["finish_ps"] < arrival_ps).any():
        raise BadValueError(
            "The requests are not served in the longest time that can be simulated.",
            allowed=f"{LONGEST_TRACE_S:g} s",
            hint="check the unit of the step time, or serve fewer requests",
        )
    tables.probe_ps[:] = probe_ps
    return tables


def rules_of(cluster: Cluster, *, block_tokens: int, caching: bool, probes: int) -> core.Rules:
    """Return the cluster's numbers in the units of the compiled core."""
    refresh_ps = round(cluster.refresh_s * PS_PER_S)
    return core.Rules(
        workers=cluster.workers,
        group=cluster.group_size,
        slots=cluster.max_running,
        budget=cluster.max_batched_tokens,
        capacity=cluster.kv_capacity_tokens,
        admit_below=math.floor(cluster.kv_capacity_tokens * (1 - cluster.kv_watermark)),
        sync_ps=round(cluster.sync_s * PS_PER_S),
        slope_ps=cluster.step_time.context_slope_ps,
        refresh_ps=refresh_ps,
        block_tokens=block_tokens,
        caching=int(caching),
        prefilled=0,
        window=cluster.pool_window,
        memory_ps=round(cluster.prefix_memory_s * PS_PER_S),
        probes=probes,
        count_from_ps=0,
        count_until_ps=int(core.NEVER),
    )


def _check(
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    arrival_ps: NDArray[np.int64],
    cluster: Cluster,
    rows: NDArray[np.int64] | None,
) -> None:
    most = prompt_tokens + output_tokens
    worst = int(most.argmax())
    number = worst if rows is None else int(rows[worst])
    if most[worst] > LONGEST_REQUEST_TOKENS:
        raise BadValueError(
            "A request is too long to simulate.",
            given=f"request {number}: {prompt_tokens[worst]:,} prompt + {output_tokens[worst]:,} output tokens",
            allowed=f"up to {LONGEST_REQUEST_TOKENS:,} tokens",
        )
    if most[worst] > cluster.kv_capacity_tokens:
        raise BadValueError(
            "A request does not fit into a worker's KV cache even alone.",
            given=f"request {number}: {prompt_tokens[worst]:,} prompt + {output_tokens[worst]:,} output tokens, "
            f"cache of {cluster.kv_capacity_tokens:,}",
            allowed=f"kv_capacity_tokens >= {int(most[worst]):,}",
            where="kv_capacity_tokens",
            hint="give the workers more KV cache, or drop such requests from the trace",
        )
    if arrival_ps[-1] > LONGEST_TRACE_S * PS_PER_S:
        raise BadValueError(
            "The trace is too long.", given=f"{arrival_ps[-1] / PS_PER_S:g} s", allowed=f"up to {LONGEST_TRACE_S:g} s"
        )


def _view(cluster: Cluster) -> WorkersView:
    w = cluster.workers
    return WorkersView(
        kv_tokens=np.zeros(w),
        kv_capacity_tokens=np.full(w, float(cluster.kv_capacity_tokens)),
        running=np.zeros(w, np.int64),
        slots=np.full(w, cluster.max_running, np.int64),
        waiting=np.zeros(w, np.int64),
        waiting_tokens=np.zeros(w),
        sent_requests=np.zeros(w, np.int64),
        sent_tokens=np.zeros(w),
        matched_tokens=np.zeros(w),
        age_s=np.zeros(w),
    )


def _pool_views(cluster: Cluster, router: PoolRouter) -> tuple[PoolView, ActiveView, NDArray[np.int64]]:
    n = cluster.pool_window
    m = cluster.workers * cluster.max_running if getattr(router, "reads_active", False) else 0
    return (
        PoolView(np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.zeros(n)),
        ActiveView(np.zeros(m, np.int64), np.zeros(m), np.zeros(m), np.zeros(m)),
        np.zeros(n, np.int64),
    )


def _collect(
    tables: core.Tables,
    requests: RequestTrace,
    arrival_ps: NDArray[np.int64],
    first_ps: NDArray[np.int64],
    *,
    rows: NDArray[np.int64] | None = None,
) -> ServingRun:
    """Turn the tables of one pool into a run; ``rows``: the tables hold only these requests of the trace."""
    table, domains = tables.requests, tables.domains
    grouped = tables.workers.size > domains.size
    if grouped:
        lock_ps, work_ps = int(domains["lock_ps"].sum()), int(domains["work_ps"].sum())
    else:
        arrived = table["arrival_ps"]
        first, last, end = int(arrived[0]), int(arrived[-1]), int(table["finish_ps"].max())
        counted_ps = last - (first + round(WARM_UP * (last - first))) if last > first else end - first
        lock_ps = counted_ps * domains.size
        work_ps = int(tables.workers["busy_ps"].sum())
    counted = int(domains["imbalance_steps"].sum())
    return ServingRun(
        arrival_s=requests.arrival_s if rows is None else requests.arrival_s[rows],
        first_token_s=(first_ps if rows is None else first_ps[rows]) / PS_PER_S,
        finish_s=table["finish_ps"] / PS_PER_S,
        prompt_tokens=requests.prompt_tokens if rows is None else requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens if rows is None else requests.output_tokens[rows],
        worker=table["worker"].copy(),
        preemptions=table["preemptions"].copy(),
        matched_tokens=table["matched"].copy(),
        steps=int(domains["step"].sum()),
        decisions=int(tables.counts[core.DECISIONS]),
        refreshes=int(tables.counts[core.REFRESHES]),
        lock_s=lock_ps / PS_PER_S,
        work_s=work_ps / PS_PER_S,
        imbalance_tokens=float(domains["imbalance"].sum()) / counted if grouped and counted else math.nan,
        probe_s=tables.probe_ps / PS_PER_S,
        probe_tokens=tables.probe_tokens,
        probe_running=tables.probe_running,
    )
