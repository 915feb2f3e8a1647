"""Run a request trace on a cluster behind a router, and account for it: one definition of every metric.

The work is done by :mod:`wavetank.serving.simulator.core`; this module checks what goes in and names what comes out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import PS_PER_S, step_ps
from wavetank.serving.routing.interface import (
    ActiveView,
    ArrivalRouter,
    PoolRouter,
    PoolView,
    WorkersView,
    idle_workers,
    waiting_requests,
)
from wavetank.serving.routing.python_routers import compiled_policy
from wavetank.serving.simulator import core
from wavetank.serving.simulator.adapters import codes_of, share_with_a_slot
from wavetank.serving.simulator.asked import asked_of, serving_of
from wavetank.serving.simulator.changes import FINISHED, LOST, NOWHERE, REFUSED, changes_of
from wavetank.serving.simulator.changing_workers import (
    ENDED,
    ENDED_PS,
    REFUSED_CONNECTIONS,
    UP_COUNTED_PS,
    UP_PS,
    Fates,
    make_fates,
)
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reuse import PrefixReuse, ReuseRule, check_rule, no_units, units_of
from wavetank.serving.simulator.router_copies import states_of
from wavetank.serving.simulator.split_core import hand_over, nobody_waits, run_split
from wavetank.serving.simulator.tables import (
    BAD_PLACEMENT,
    BAD_WORKER,
    DECISIONS,
    LATE,
    LOADS,
    NEVER,
    REFRESHES,
    STUCK,
    UNFIT,
    Rules,
    Tables,
    found_columns,
    make_tables,
    reuse_rules,
)
from wavetank.sim.lent import words
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

# 53 days, so that no sum of step times leaves 64 bits.
LONGEST_TRACE_S = 4.6e6
MOST_PROBES = 1_000_000
# The year 5,138 in Unix time.
NO_DATE_S = 1e11
# A longer context than any engine serves; the core counts a request's tokens in 32 bits and their pairs in 64.
LONGEST_REQUEST_TOKENS = 100_000_000
# The core keeps a request's last step and its number in one whole number.
MOST_REQUESTS, MOST_STEPS = 2**31 - 1, 2**31 - 1
# Share of a trace's span at its start that no figure counts.
WARM_UP = 0.1


@dataclass(frozen=True, kw_only=True)
class ServingRun:
    """What happened to every request, and to the cluster.

    All arrays have shape (requests,) in order of arrival unless stated otherwise; times are seconds on the trace's own
    clock, be it Unix time.

    Attributes
    ----------
    arrival_s, first_token_s, finish_s : float64
        When it arrived, when its first token and its last token were out; NaN for what never was.
    prompt_tokens, output_tokens : int64
    worker : int32
        Where it ran last; -1 where it never ran.  Where the phases are split, prefill workers have the first numbers
        and decode workers the next ones, so that a request of one token has a prefill worker here and every other one a
        decode worker.
    preemptions : int32
        How often it had to give up its KV cache.
    matched_tokens : int32
        Prompt tokens that the worker's cache had at the last admission and that were reused as they are.
    steps, prefill_steps : int
        Steps, summed over workers or lockstep groups, and those of them in which a prompt was computed.
    decisions, refreshes : int
        How often the router decided and its view was refreshed.
    adapter_loads : int
        How often a worker loaded an adapter.
    lock_s, work_s, mixed_s : float
        Worker time of the counted window (:attr:`window_s`): all of it, which is workers times the window's length; the
        part in which a worker ran its own part of a step, neither without requests nor at a barrier (waiting for
        slower workers, or ``sync_s``); the part in steps that computed a prompt somewhere in the group.
    imbalance_tokens : float
        workers * largest - sum of the context tokens a step reads, mean over the steps of a lockstep group that start
        in the counted window; NaN for independent replicas.
    probe_s : float64, shape (probes,)
    probe_tokens : float64, shape (probes, workers)
        Context tokens of the decoding requests at the probe times.
    probe_running : int64, shape (probes, workers)
    outcome : int8
        Where workers change, how it ended, a place in :data:`~wavetank.serving.simulator.changes.OUTCOMES`: finished,
        refused at a full queue, lost in the middle of its stream, or failed without a token; else empty.
    sends : int32
        Where workers change, how many workers it was sent to that took it; else empty.
    refused_connections : int
        How often a request was sent to a worker that was gone or drained.
    ended_s : float
        When the last of the requests ended that did not finish; NaN where all did.
    up_s : float
        Worker time of the counted window in which the workers took requests; NaN where none changes.
    recomputed_tokens : int32
        Prompt tokens that were found then and computed again; empty where a policy of reuse does not do so.
    transferred_bytes : float64
        What came from other workers' caches then; empty where nothing does.
    held_back_s, transfer_s : float64, optional
        Where the phases are split: how long its KV cache waited on the prefill worker for room on a decode worker, and
        then for its transfer, the link's other transfers included; NaN for requests of one token.

    Notes
    -----
    Where the phases are split, worker time, imbalance and probes are those of the decode workers, and the window is the
    whole run's.
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
    prefill_steps: int
    decisions: int
    refreshes: int
    adapter_loads: int
    lock_s: float
    work_s: float
    mixed_s: float
    imbalance_tokens: float
    probe_s: NDArray[np.float64]
    probe_tokens: NDArray[np.float64]
    probe_running: NDArray[np.int64]
    outcome: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    sends: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    refused_connections: int = 0
    ended_s: float = math.nan
    up_s: float = math.nan
    recomputed_tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    transferred_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    held_back_s: NDArray[np.float64] | None = None
    transfer_s: NDArray[np.float64] | None = None

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

    @cached_property
    def computed_tokens(self) -> NDArray[np.int64]:
        """Prompt tokens that no cache had at the last admission; with those reused and recomputed, the prompt."""
        found = self.matched_tokens.astype(np.int64)
        return self.prompt_tokens - found - (self.recomputed_tokens if self.recomputed_tokens.size else 0)

    @property
    def makespan_s(self) -> float:
        """First arrival to last token."""
        return float(np.nanmax(self.finish_s) - self.arrival_s[0])

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
            arrived in that time; ``idle_share`` (of all worker time, the part without work of the worker's own),
            ``mixed_share`` (the part in steps that compute a prompt) and ``imbalance_tokens`` are means over it.
            ``preempted_share``, ``prefix_hit_share``, ``prefill_steps`` and ``refused_share`` count the whole run, and
            so do, where a policy of reuse finds more than prefixes, ``recomputed_share`` of prompt tokens and
            ``transferred_bytes`` per request.

            Where workers change (:attr:`Cluster.churn`), latencies are of the requests that finished, and there are
            shares of all requests of the run: ``availability`` (finished), ``lost_share``, ``failed_share``,
            ``retried_share`` (sent to more than one worker that took them) and ``recovered_share`` (retried and
            finished); ``refused_connections`` per request; ``up_share``, of all worker time in the window.
        """
        start, end = self.window_s
        served = self.worker >= 0
        finished = (self.finish_s >= start) & (self.finish_s <= end)
        arrived = self.arrival_s >= start if end > start and self.arrival_s[-1] > start else np.ones_like(finished)
        good = finished & (self.ttft_s <= slo_ttft_s) & ~(self.tpot_s > slo_tpot_s)
        found = {
            "throughput_tokens_per_s": float(self.output_tokens[finished].sum()) / (end - start),
            "requests_per_s": float(finished.sum()) / (end - start),
            "goodput_per_s": float(good.sum()) / (end - start),
            "idle_share": self.idle_share,
            "mixed_share": self.mixed_share,
            "imbalance_tokens": self.imbalance_tokens,
            "prefill_steps": float(self.prefill_steps),
            "preempted_share": float((self.preemptions > 0).mean()),
            "prefix_hit_share": float(self.matched_tokens.sum() / self.prompt_tokens[served].sum()),
            "refused_share": float(1 - served.mean()),
        }
        if self.recomputed_tokens.size:
            found["recomputed_share"] = float(self.recomputed_tokens.sum() / self.prompt_tokens[served].sum())
            found["transferred_bytes"] = float(self.transferred_bytes.mean())
        if self.outcome.size:
            found |= self._ends()
        for name, values in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            # Of a stream that broke off the first token is known.
            figures = mean_and_quantiles(values[arrived & ~np.isnan(self.finish_s)], (50, 95, 99))
            found |= {f"{name}_{figure}_s": value for figure, value in figures.items()}
        return found

    def _ends(self) -> dict[str, float]:
        """Return how the requests ended where workers change, in shares of them."""
        n = self.outcome.size
        finished, retried = self.outcome == FINISHED, self.sends > 1
        return {
            "refused_share": float((self.outcome == REFUSED).mean()),
            "availability": float(finished.mean()),
            "lost_share": float((self.outcome == LOST).mean()),
            "failed_share": float((self.outcome == NOWHERE).mean()),
            "retried_share": float(retried.mean()),
            "recovered_share": float((retried & finished).mean()),
            "refused_connections": self.refused_connections / n,
            "up_share": self.up_s / self.lock_s if self.lock_s > 0 else math.nan,
        }

    @cached_property
    def window_s(self) -> tuple[float, float]:
        """The time that figures are counted over: the end of the warm-up (a tenth of the trace) to the last arrival.

        A backlog that arrives at once has no such time, nor has a trace of which nothing finishes in it; then it is the
        whole run.  All figures count over the same window.
        """
        first, last = float(self.arrival_s[0]), float(self.arrival_s[-1])
        if not _has_window(self.arrival_s, self.finish_s):
            return first, float(np.nanmax([*self.finish_s, last, self.ended_s]))
        return first + WARM_UP * (last - first), last

    @property
    def idle_share(self) -> float:
        """Share of all worker time in the counted window without work of the worker's own."""
        return 1.0 - self.work_s / self.lock_s if self.lock_s > 0 else math.nan

    @property
    def mixed_share(self) -> float:
        """Share of all worker time in the counted window in steps that compute a prompt."""
        return self.mixed_s / self.lock_s if self.lock_s > 0 else math.nan


def mean_and_quantiles(values: NDArray[np.float64], percents: Sequence[int]) -> dict[str, float]:
    """Return ``mean``, ``p50``, ... of the values that are numbers; NaN where there are none.

    Parameters
    ----------
    values : float64 array
    percents : sequence of int
        Which quantiles, in per cent.
    """
    known = values[~np.isnan(values)]
    if not known.size:
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in percents)), math.nan)
    return {"mean": float(known.mean()), **{f"p{each}": float(np.percentile(known, each)) for each in percents}}


def _has_window(arrival_s: NDArray[np.float64], finish_s: NDArray[np.float64]) -> bool:
    """Say whether anything finishes between the end of the warm-up and the last arrival."""
    first, last = float(arrival_s[0]), float(arrival_s[-1])
    start = first + WARM_UP * (last - first)
    return last > start and bool(((finish_s >= start) & (finish_s <= last)).any())


def simulate(
    requests: RequestTrace,
    cluster: Cluster | DisaggregatedCluster,
    router: ArrivalRouter | PoolRouter,
    *,
    decode_router: ArrivalRouter | PoolRouter | None = None,
    expected_output_tokens: NDArray[np.float64] | None = None,
    output_spread_tokens: NDArray[np.float64] | None = None,
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
    output_spread_tokens : float64 array (requests,), optional
        How far it may be off: the standard deviation of its predictions; NaN (nobody says) by default.
    probes : int
        At how many evenly spaced times within the trace to look at the workers' loads, up to 1,000,000.

    Raises
    ------
    BadValueError
        If a request cannot ever fit into a worker's KV cache, a policy of reuse has units that are not the trace's,
        no worker has its model, workers change where the phases
        are split, the trace, its service or a
        prompt is too long to simulate, a worker could take more steps than can be counted,
        arrivals are beyond any date in seconds, or ``max_waiting`` is set where requests wait elsewhere than at the
        workers that they are sent to at arrival.
    WavetankError
        If the router names a worker that does not exist, takes no requests or has not the request's model, or never
        places what waits.
    """
    for given in (router, decode_router or router):
        if isinstance(given, type) or not isinstance(given, ArrivalRouter | PoolRouter):
            raise BadValueError(
                "This is not a router.",
                given=given,
                allowed="an object with initial_state, parameters, and choose or place",
                hint="see wavetank.serving.routing.interface, or wavetank list serving",
            )
    expected = _lengths(requests, expected_output_tokens, "expected_output_tokens")
    spread = _lengths(requests, output_spread_tokens, "output_spread_tokens")
    pools = (cluster.prefill, cluster.decode) if isinstance(cluster, DisaggregatedCluster) else (cluster,)
    zero_s = _zero_s(requests)
    if zero_s:
        run = simulate(
            dataclasses.replace(requests, arrival_s=requests.arrival_s - zero_s), cluster, router,
            decode_router=decode_router, expected_output_tokens=expected_output_tokens,
            output_spread_tokens=output_spread_tokens, probes=probes,
        )  # fmt: skip
        return dataclasses.replace(
            run, arrival_s=requests.arrival_s, first_token_s=run.first_token_s + zero_s,
            finish_s=run.finish_s + zero_s, probe_s=run.probe_s + zero_s, ended_s=run.ended_s + zero_s,
        )  # fmt: skip
    _check_run(requests, pools, (router, decode_router or router), probes)
    requests = requests.with_blocks_apart()
    asked = asked_of(requests, expected, spread)
    if isinstance(cluster, DisaggregatedCluster):
        return _split(requests, cluster, router, decode_router or router, asked, probes)
    arrival_ps = np.round(requests.arrival_s * PS_PER_S).astype(np.int64)
    fates = _fates(requests, cluster, arrival_ps)
    tables = _run(requests, cluster, router, arrival_ps, asked, probes, fates)
    rows = tables.requests
    return ServingRun(
        **_request_columns(requests, rows["first_ps"], rows["finish_ps"]),
        worker=rows["worker"].copy(),
        preemptions=rows["preemptions"].copy(),
        matched_tokens=rows["matched"].copy(),
        **found_columns(tables, cluster),
        **_totals(tables),
        **_worker_time(tables, arrival_ps, rows["finish_ps"], -1 if fates is None else int(fates.sums[ENDED_PS])),
        **_probed(tables),
        **({} if fates is None else _ended(fates, arrival_ps, rows["finish_ps"])),
    )


def _check_run(
    requests: RequestTrace, pools: Sequence[Cluster], routers: Sequence[ArrivalRouter | PoolRouter], probes: int
) -> None:
    """Refuse what cannot be simulated."""
    check_steps(requests, [part for pool in pools for part in pool.uniform])
    if not 0 <= probes <= MOST_PROBES:
        says = "The workers cannot be looked at so often."
        raise BadValueError(says, given=probes, allowed=f"0 to {MOST_PROBES:,}", where="probes")
    if any(pool.routers > 1 and isinstance(each, PoolRouter) for pool, each in zip(pools, routers, strict=False)):
        raise BadValueError(
            "A router that lets requests wait in its pool has no copies: each would wait for the same workers.",
            given=f"routers={max(pool.routers for pool in pools)} with a router that keeps a pool",
            allowed="routers=1, or a router that places requests at arrival",
            where="routers",
        )
    if any(
        pool.reuse is not None and pool.reuse.rule().fetch and isinstance(each, PoolRouter)
        for pool, each in zip(pools, routers, strict=False)
    ):
        raise BadValueError(
            "Units are fetched from other workers only where requests are sent to workers at arrival.",
            given="fetch with a router that keeps a pool",
            allowed="fetch=False, or a router that places requests at arrival",
            where="reuse",
        )
    if any(pool.max_waiting for pool in pools) and (len(pools) > 1 or isinstance(routers[0], PoolRouter)):
        raise BadValueError(
            "Workers refuse requests only where these are sent to them at arrival.",
            given=f"max_waiting with {'split phases' if len(pools) > 1 else 'a router that keeps a pool'}",
            allowed="max_waiting=0",
            where="max_waiting",
        )
    if len(pools) > 1 and any(pool.churn for pool in pools):
        raise BadValueError(
            "Failures and restarts are not simulated where prefill and decode are apart.",
            given="churn of a pool",
            allowed="churn of a Cluster",
            where="churn",
        )


def _fates(requests: RequestTrace, cluster: Cluster, arrival_ps: NDArray[np.int64]) -> Fates | None:
    """Return what a run needs in which workers change; None where none does."""
    if cluster.churn is None:
        return None
    first_ps, last_ps = int(arrival_ps[0]), int(arrival_ps[-1])
    served = codes_of(requests)[1] if cluster.adapters is not None else 0
    known = changes_of(cluster.churn, cluster, first_ps, last_ps)
    return make_fates(cluster.churn, cluster, known, len(requests), first_ps, served)


def _ended(fates: Fates, arrival_ps: NDArray[np.int64], finish_ps: NDArray[np.int64]) -> dict[str, Any]:
    """Return how requests ended, and for how long workers took requests."""
    counted = _has_window(arrival_ps / PS_PER_S, finish_ps / PS_PER_S)
    workers = fates.workers_each * int(fates.sums[UP_COUNTED_PS if counted else UP_PS])
    return {
        "outcome": fates.outcome,
        "sends": fates.sends,
        "refused_connections": int(fates.sums[REFUSED_CONNECTIONS]),
        "ended_s": int(fates.sums[ENDED_PS]) / PS_PER_S if fates.sums[ENDED] else math.nan,
        "up_s": workers / PS_PER_S,
    }


def _lengths(requests: RequestTrace, given: NDArray[np.float64] | None, where: str) -> NDArray[np.float64] | None:
    """Return what a length predictor says of every request; None where nobody predicts."""
    if given is None:
        return None
    lengths = np.ascontiguousarray(given, np.float64)
    if lengths.shape != (len(requests),):
        raise BadValueError(
            "There must be one expected length per request.", given=lengths.shape, allowed=f"({len(requests)},)",
            where=where,
        )  # fmt: skip
    wrong = np.flatnonzero((lengths < 0) | np.isinf(lengths))
    if wrong.size:
        raise BadValueError(
            "An expected length is a finite number of tokens, or NaN without a prediction.",
            given=float(lengths[wrong[0]]),
            allowed=">= 0",
            where=f"row {wrong[0] + 1}, {where}",
        )
    return lengths


def _zero_s(requests: RequestTrace) -> float:
    """Return what to count times from: 0, or the first arrival where the trace's clock is a calendar's.

    Raises
    ------
    BadValueError
        If the trace lasts longer than can be simulated.
    """
    first, last = float(requests.arrival_s[0]), float(requests.arrival_s[-1])
    if first >= NO_DATE_S:
        raise BadValueError(
            "The arrivals are no Unix time in seconds: they would be thousands of years ahead.",
            given=f"{first:g} s",
            allowed=f"below {NO_DATE_S:g} s",
            hint="are they in milli-, micro- or nanoseconds? RequestTrace takes seconds; read_trace detects the unit",
        )
    if last - first > LONGEST_TRACE_S:
        raise BadValueError(
            "The trace is too long.",
            given=f"{last - first:g} s",
            allowed=f"up to {LONGEST_TRACE_S:g} s",
            hint="are its arrivals in milliseconds? RequestTrace takes seconds; read_trace(..., time_unit='ms')",
        )
    # Whole seconds, so that no digit after the point is lost.
    return math.floor(first) if last > LONGEST_TRACE_S else 0.0


def check_steps(requests: RequestTrace, parts: Sequence[Cluster]) -> None:
    """Refuse a trace that could take a worker more steps than can be counted, before any is simulated.

    Raises
    ------
    BadValueError
        If both the trace's tokens and the longest time allow more than that.
    """
    if len(requests) > MOST_REQUESTS:
        raise BadValueError("The trace has too many requests.", given=len(requests), allowed=f"{MOST_REQUESTS:,}")
    for part in parts:
        # A step gives somebody a token or computes a chunk of somebody's prompt; preempted work is done again.
        chunks = -(-requests.prompt_tokens // (part.max_batched_tokens - part.max_running + 1))
        by_work = float(requests.output_tokens.sum()) + float(chunks.sum())
        # No step is shorter than one of a single request without context.
        shortest_ps = min(step_ps(part.step_time, 1, 0), step_ps(part.step_time, 0, 0, 1, 1))
        shortest_s = shortest_ps / PS_PER_S + part.sync_s
        by_time = 2 * LONGEST_TRACE_S / shortest_s
        if min(by_work, by_time) > MOST_STEPS:
            raise BadValueError(
                "The requests could take a worker more steps than can be counted.",
                given=f"{by_work:,.0f} tokens and chunks in steps of {show(shortest_s, 's')} or longer",
                allowed=f"{MOST_STEPS:,} steps",
                hint="check the unit of the step time and how old signals get (refresh_s), or serve fewer requests",
            )


def _counted_ps(arrival_ps: NDArray[np.int64]) -> tuple[int, int]:
    """Return the window without the filling of the cluster and without its draining after the last arrival."""
    first, last = int(arrival_ps[0]), int(arrival_ps[-1])
    return (first + round(WARM_UP * (last - first)), last) if last > first else (0, int(NEVER))


def _split(
    requests: RequestTrace,
    cluster: DisaggregatedCluster,
    router: ArrivalRouter | PoolRouter,
    decode_router: ArrivalRouter | PoolRouter,
    asked: NDArray[Any],
    probes: int,
) -> ServingRun:
    if isinstance(router, PoolRouter):
        raise BadValueError(
            "A router that keeps a pool cannot place the prompts of a cluster that is split by phase: prompts go to a "
            "prefill worker when they arrive.",
            given=repr(router),
            allowed="a router that places requests at arrival; decode_router may keep a pool",
            where="router",
        )
    arrival_ps = np.round(requests.arrival_s * PS_PER_S).astype(np.int64)
    counted_ps = _counted_ps(arrival_ps)
    check_that_all_fit(requests, cluster)
    before, prefill_rules = _tables(requests, cluster.prefill, router, 0, counted_ps)
    after, decode_rules = _tables(
        dataclasses.replace(requests, block_ids=None, block_offsets=None), cluster.decode, decode_router, probes,
        counted_ps, keeps_units=False,
    )  # fmt: skip
    prefill_rules = prefill_rules._replace(keeps=1)
    before.requests["arrival_ps"] = arrival_ps
    after.probe_ps[:] = _probe_ps(arrival_ps, probes)
    between = hand_over(len(requests), cluster.prefill.workers, cluster.decode.workers, after.lora.shape[1])
    between = between._replace(
        wire_ps=cluster.wire_ps(requests.prompt_tokens),
        latency_ps=round(cluster.transfer_latency_s * PS_PER_S),
        pooled=int(isinstance(decode_router, PoolRouter)),
    )
    view, decode_view = _view(cluster.prefill), _view(cluster.decode)
    lent = [words(each) for each in (before, prefill_rules, after, decode_rules, between, view, decode_view)]
    with (
        compiled_policy(router, view) as (choose, parameters),
        compiled_policy(decode_router, decode_view) as (decode, decode_parameters),
    ):
        pooled = isinstance(decode_router, PoolRouter)
        ended, who = run_split(
            *lent[:5],
            *(part.uniform[0].step_time.function for part in (cluster.prefill, cluster.decode)),
            choose, states_of(router, cluster.prefill), parameters, lent[5],
            choose if pooled else decode, states_of(decode_router, cluster.decode), decode_parameters, lent[6],
            decode if pooled else nobody_waits, *_pool_views(cluster.decode, decode_router), asked, after.probe_ps,
        )  # fmt: skip
    _refuse(*((decode_router, cluster.decode) if who else (router, cluster.prefill)), ended)
    _refuse_late(ended)
    handed = after.requests["finish_ps"] >= 0
    finish_ps = np.where(handed, after.requests["finish_ps"], before.requests["finish_ps"])
    first_s = before.requests["first_ps"] / PS_PER_S
    totals = _totals(before)
    return ServingRun(
        **_request_columns(requests, before.requests["first_ps"], finish_ps),
        worker=np.where(handed, cluster.prefill.workers + after.requests["worker"], before.requests["worker"]),
        preemptions=after.requests["preemptions"].copy(),
        matched_tokens=before.requests["matched"].copy(),
        **found_columns(before, cluster.prefill),
        held_back_s=np.where(handed, between.began_ps / PS_PER_S - first_s, np.nan),
        transfer_s=np.where(handed, (between.landed_ps - between.began_ps) / PS_PER_S, np.nan),
        **{name: totals[name] + more for name, more in _totals(after).items()},
        **_worker_time(after, arrival_ps, finish_ps),
        **_probed(after),
    )


def _probe_ps(arrival_ps: NDArray[np.int64], probes: int) -> NDArray[np.int64]:
    first, last = int(arrival_ps[0]), int(arrival_ps[-1])
    return first + (np.arange(probes, dtype=np.int64) + 1) * max((last - first) // (probes + 1), 1)


def _run(
    requests: RequestTrace,
    cluster: Cluster,
    router: ArrivalRouter | PoolRouter,
    arrival_ps: NDArray[np.int64],
    asked: NDArray[Any],
    probes: int,
    fates: Fates | None,
) -> Tables:
    """Run workers that do both phases; ``fates`` has what changes among them."""
    _check_sizes(requests.prompt_tokens, requests.output_tokens, cluster, np.arange(len(requests)) + 1)
    tables, rules = _tables(requests, cluster, router, probes, _counted_ps(arrival_ps))
    tables.requests["arrival_ps"] = arrival_ps
    tables.probe_ps[:] = _probe_ps(arrival_ps, probes)
    view = _view(cluster)
    states = states_of(router, cluster)
    step = cluster.uniform[0].step_time.function
    lent, view_words = [words(tables), words(rules)], words(view)
    run_pool, run_arrivals = core.run_pool, core.run_arrivals
    if fates is not None:
        from wavetank.serving.simulator import core_with_changes as changing

        run_pool, run_arrivals = changing.run_pool_with_changes, changing.run_arrivals_with_changes
        lent.append(words(fates))
    with compiled_policy(router, view) as (function, parameters):
        if isinstance(router, PoolRouter):
            ended = run_pool(
                *lent, step, function, states[0], parameters, view_words, *_pool_views(cluster, router), asked,
                tables.probe_ps,
            )  # fmt: skip
        else:
            ended = run_arrivals(*lent, step, function, states, parameters, view_words, asked, tables.probe_ps)
    _refuse(router, cluster, ended)
    finished = tables.requests["worker"] >= 0 if fates is None else fates.outcome == FINISHED
    _refuse_late(LATE if (tables.requests["finish_ps"] < arrival_ps)[finished].any() else ended)
    return tables


def _tables(
    requests: RequestTrace,
    cluster: Cluster,
    router: ArrivalRouter | PoolRouter,
    probes: int,
    counted_ps: tuple[int, int],
    *,
    keeps_units: bool = True,
) -> tuple[Tables, Rules]:
    """Return the tables and the rules of a pool of workers, for a counted window, without times of arrival.

    ``keeps_units``: whether they keep parts of prompts for reuse, if they are set so.
    """
    with_blocks = requests.block_ids is not None and bool(getattr(router, "reads_prefix", False))
    policy = cluster.reuse or (PrefixReuse() if cluster.prefix_caching and requests.block_ids is not None else None)
    units = rule = None
    if policy is not None and keeps_units:
        units, rule = units_of(policy, requests, cluster.workers), policy.rule()
        check_rule(rule, int(requests.prompt_tokens.max()))
    reads_events = units is not None and bool(getattr(router, "reads_events", False))
    adapter, served = codes_of(requests) if cluster.adapters is not None else (None, 0)
    rules = rules_of(
        cluster,
        block_tokens=requests.block_tokens if with_blocks else 0,
        caching=units is not None,
        probes=probes,
        served_adapters=served,
    )
    if units is not None and rule is not None:
        rules = rules._replace(events=int(reads_events), **reuse_rules(units, rule))
    rules = rules._replace(count_from_ps=counted_ps[0], count_until_ps=counted_ps[1])
    tables = make_tables(
        len(requests),
        rules,
        cluster.uniform,
        units=units,
        router_blocks=requests.n_blocks if with_blocks else 0,
        max_blocks=requests.block_ids.size if with_blocks and requests.block_ids is not None else 0,
        events=reads_events or bool(rules.fetches),
        router_adapters=served if getattr(router, "reads_adapters", False) else 0,
        serves=serving_of(requests, cluster),
    )
    tables.requests["prompt"] = requests.prompt_tokens
    tables.requests["output"] = requests.output_tokens
    if cluster.adapters is not None and adapter is not None and served:
        tables.asks["adapter"] = np.where(adapter < 0, served, adapter)
        tables.lines["load_ps"][:, :served] = cluster.adapters.loads_ps(served)
        tables.lines["first_ps"][:, :served] = cluster.adapters.firsts_ps(served)
    if with_blocks and requests.block_ids is not None and requests.block_offsets is not None:
        tables.block_ids[:] = requests.block_ids
        tables.block_offsets[:] = requests.block_offsets
    return tables, rules


def _refuse_late(ended: int) -> None:
    if ended == LATE:
        raise BadValueError(
            "The requests are not served in the longest time that can be simulated.",
            allowed=f"{LONGEST_TRACE_S:g} s",
            hint="check the unit of the step time and how old signals get (refresh_s), or serve fewer requests",
        )


def _refuse(router: ArrivalRouter | PoolRouter, cluster: Cluster, ended: int) -> None:
    """Name a router that decided what cannot be done."""
    if ended == STUCK:
        raise WavetankError(
            "The router places nothing although every worker is idle and requests wait.", given=repr(router)
        )
    if ended == UNFIT:
        raise WavetankError(
            "The router sent a request to a worker that takes no requests or has not the request's model.",
            given=repr(router),
            hint="go by takes and serves of the view (wavetank.serving.routing.interface.fits), or by a pool's serves",
        )
    if ended in (BAD_WORKER, BAD_PLACEMENT):
        raise WavetankError(
            "The router named a worker that does not exist."
            if ended == BAD_WORKER
            else "The router placed a request on a worker that does not exist.",
            given=repr(router),
            allowed=f"0 to {cluster.workers - 1}",
        )


def rules_of(cluster: Cluster, *, block_tokens: int, caching: bool, probes: int, served_adapters: int = 0) -> Rules:
    """Return the cluster's numbers in the units of the compiled core."""
    refresh_ps = round(cluster.refresh_s * PS_PER_S)
    adapters, overhead = cluster.adapters, cluster.scheduler_overhead
    overhead_ps = overhead.terms_ps(share_with_a_slot(adapters, served_adapters)) if overhead else (0, 0, 0)
    return Rules(
        workers=cluster.workers,
        routers=cluster.routers,
        group=cluster.group_size,
        slots=max(part.max_running for part in cluster.uniform),
        sync_ps=round(cluster.sync_s * PS_PER_S),
        refresh_ps=refresh_ps,
        block_tokens=block_tokens,
        caching=int(caching),
        events=0,
        **reuse_rules(no_units(0), ReuseRule()),
        keeps=0,
        window=cluster.pool_window,
        memory_ps=round(cluster.prefix_memory_s * PS_PER_S),
        probes=probes,
        count_from_ps=0,
        count_until_ps=int(NEVER),
        max_waiting=cluster.max_waiting,
        ahead=int(cluster.scheduled_ahead),
        adapters=served_adapters,
        adapter_slots=adapters.slots if adapters else 0,
        factor=adapters.millionths(1) - adapters.millionths_each if adapters else 0,
        factor_each=adapters.millionths_each if adapters else 0,
        each_ps=adapters.each_ps if adapters else 0,
        extended=int(served_adapters > 0 or overhead is not None),
        overhead=int(overhead is not None),
        overhead_ps=overhead_ps[0],
        overhead_running_ps=overhead_ps[1],
        overhead_waiting_ps=overhead_ps[2],
        overhead_arrival_ps=overhead.arrival_ps if overhead else 0,
    )


def check_that_all_fit(requests: RequestTrace, cluster: Cluster | DisaggregatedCluster, *, first_row: int = 1) -> None:
    """Refuse requests that no empty worker could serve, before any is simulated.

    Parameters
    ----------
    requests : RequestTrace
    cluster : Cluster or DisaggregatedCluster
    first_row : int
        Row of the first request in the trace that the user knows, where this is a part of it.

    Raises
    ------
    BadValueError
        If a request does not fit into a worker's KV cache even alone; it names the row.
    """
    rows = np.arange(len(requests)) + first_row
    if isinstance(cluster, DisaggregatedCluster):
        _check_sizes(requests.prompt_tokens, np.ones(len(requests), np.int64), cluster.prefill, rows)
        longer = requests.output_tokens > 1
        if longer.any():
            _check_sizes(requests.prompt_tokens[longer], requests.output_tokens[longer], cluster.decode, rows[longer])
    else:
        _check_sizes(requests.prompt_tokens, requests.output_tokens, cluster, rows)


def _check_sizes(
    prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64], cluster: Cluster, rows: NDArray[np.int64]
) -> None:
    # The keys of the last token are never computed: no step follows it.
    most = prompt_tokens + output_tokens - 1
    worst = int(most.argmax())
    asked = f"row {rows[worst]}: {prompt_tokens[worst]:,} prompt + {output_tokens[worst]:,} output tokens"
    if most[worst] >= LONGEST_REQUEST_TOKENS:
        raise BadValueError(
            "A request is too long to simulate.", given=asked, allowed=f"up to {LONGEST_REQUEST_TOKENS:,} tokens"
        )
    capacity = min(part.kv_capacity_tokens for part in cluster.uniform)
    if most[worst] > capacity:
        raise BadValueError(
            "A request does not fit into a worker's KV cache even alone.",
            given=f"{asked}, {'smallest ' if cluster.kinds else ''}cache of {capacity:,}",
            allowed=f"kv_capacity_tokens >= {int(most[worst]):,} (all tokens but the last, whose keys are never read)",
            where="kv_capacity_tokens",
            hint="give the workers more KV cache, or drop such requests from the trace",
        )


def _view(cluster: Cluster) -> WorkersView:
    each = cluster.each_worker()
    return idle_workers(
        cluster.workers,
        kv_capacity_tokens=[part.kv_capacity_tokens for part in each],
        slots=[part.max_running for part in each],
        speed=cluster.speeds(),
    )


def _pool_views(cluster: Cluster, router: ArrivalRouter | PoolRouter) -> tuple[PoolView, ActiveView, NDArray[np.int64]]:
    n = cluster.pool_window
    m = cluster.slots if getattr(router, "reads_active", False) else 0
    return (
        waiting_requests(np.zeros(n), cluster.workers),
        ActiveView(np.zeros(m, np.int64), np.zeros(m), np.zeros(m), np.zeros(m)),
        np.zeros(n, np.int64),
    )


def _request_columns(
    requests: RequestTrace, first_ps: NDArray[np.int64], finish_ps: NDArray[np.int64]
) -> dict[str, Any]:
    first_s, finish_s = first_ps / PS_PER_S, finish_ps / PS_PER_S
    if finish_ps.min() < 0:
        # Refused, lost, or failed.
        first_s[first_ps < 0] = finish_s[finish_ps < 0] = np.nan
    return {
        "arrival_s": requests.arrival_s,
        "first_token_s": first_s,
        "finish_s": finish_s,
        "prompt_tokens": requests.prompt_tokens,
        "output_tokens": requests.output_tokens,
    }


def _totals(tables: Tables) -> dict[str, Any]:
    return {
        "steps": int(tables.domains["step"].sum()),
        "prefill_steps": int(tables.domains["prefill_steps"].sum()),
        "decisions": int(tables.counts[DECISIONS]),
        "refreshes": int(tables.counts[REFRESHES]),
        "adapter_loads": int(tables.counts[LOADS]),
    }


def _worker_time(
    tables: Tables, arrival_ps: NDArray[np.int64], finish_ps: NDArray[np.int64], ended_ps: int = -1
) -> dict[str, Any]:
    """Return the worker time of the counted window and the imbalance in it.

    ``ended_ps``: when the last request ended that did not finish.

    The window is that of the requests given, which may be those of the whole cluster where the tables are of a part.
    """
    domains = tables.domains
    if _has_window(arrival_ps / PS_PER_S, finish_ps / PS_PER_S):
        start, end = _counted_ps(arrival_ps)
        part, steps = "_counted", int(domains["steps_counted"].sum())
    else:
        start, end = int(arrival_ps[0]), max(int(finish_ps.max()), int(arrival_ps[-1]), ended_ps)
        part, steps = "", int(domains["step"].sum())
    grouped = tables.workers.size > domains.size
    return {
        "lock_s": tables.workers.size * (end - start) / PS_PER_S,
        "work_s": int(domains[f"work{part}_ps"].sum()) / PS_PER_S,
        "mixed_s": int(domains[f"mixed{part}_ps"].sum()) * (tables.workers.size // domains.size) / PS_PER_S,
        "imbalance_tokens": float(domains[f"imbalance{part}"].sum()) / steps if grouped and steps else math.nan,
    }


def _probed(tables: Tables) -> dict[str, Any]:
    return {
        "probe_s": tables.probe_ps / PS_PER_S,
        "probe_tokens": tables.probe_tokens,
        "probe_running": tables.probe_running,
    }
