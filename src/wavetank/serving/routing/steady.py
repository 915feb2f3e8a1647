"""What a cluster gives while it is full: a backlog, replayed until the rate is steady.

A rate that is read off the trace as it is depends on how long the trace is: a short one ends before its first requests
do.  Here the trace's requests are replayed, in another order every pass, at a rate that the cluster cannot keep up
with, until the cluster has been full for many mean service times.  The first quarter of the time is not counted, nor is
anything after the last arrival.  The rest is cut into batches, and the run is repeated with more requests until the
batches' means agree.

Source: the method of batch means, A. M. Law, "Simulation Modeling and Analysis", 5th edition, 2015, chapter 9.

Differs from the source:

1. The warm-up is a share of the run, so that it grows with every repetition; the halves of what is counted must agree,
   too.
2. The rate of requests is that of tokens over the mean answer of the whole trace, which varies less than a count.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.sim.rng import stream

if TYPE_CHECKING:
    from wavetank.serving.simulator.simulate import ServingRun
    from wavetank.workloads.requests import RequestTrace

TOLERANCE = 0.01
"""Half the 95 % interval of the batches' mean, relative to it, at which a rate counts as steady."""
HALVES = 0.02
"""By how much the two halves of what is counted may differ."""
OVERLOAD = 1.3
"""Arrivals of a backlog as a multiple of what the cluster can finish."""
RAISE = 4.0
"""By what the arrivals are multiplied where the cluster keeps up with them."""
BATCHES = 10
WARM_UP = 0.25
SERVICE_TIMES = 20
"""Length of a backlog's arrivals, in mean service times, that is tried first."""
LEAST_REQUESTS = 2_000
MOST_REQUESTS = 1_000_000
ROUNDS = 6
# Of Student's t with nine degrees of freedom, 97.5 %.
_T = 2.262
# A rate further from its tolerance than this after all rounds is refused.
_UNSTEADY = 0.05

Serve = Callable[["RequestTrace"], "ServingRun"]


@dataclass(frozen=True)
class SteadyRate:
    """What a full cluster gives.

    Attributes
    ----------
    tokens_per_s : float
        Output tokens given per second.
    requests_per_s : float
        The same in requests of the mean answer.
    error : float
        Half the 95 % interval of ``tokens_per_s``, relative to it.
    service_s : float
        Mean time from a request's admission to its last token, while the cluster is full.
    offered_per_s : float
        Arrivals of the backlog.
    run : ServingRun
    """

    tokens_per_s: float
    requests_per_s: float
    error: float
    service_s: float
    offered_per_s: float
    run: ServingRun


def backlog(trace: RequestTrace, n: int, rate_per_s: float, seed: int) -> RequestTrace:
    """Return ``n`` requests of a trace, replayed as often as that takes, at Poisson arrivals.

    Every pass has an order of its own; where requests have prefix blocks they keep the trace's, because reuse hangs on
    it.  A pass shares prefixes within itself alone: no prompt is found whole because it came before.

    Parameters
    ----------
    trace : RequestTrace
    n : int
    rate_per_s : float
        Infinite: all at once.
    seed : int
    """
    passes = -(-n // len(trace))
    whole = repeated(trace, passes)
    rows = np.arange(len(whole))
    if trace.block_ids is None:
        rows = np.concatenate(
            [number * len(trace) + stream(seed, "backlog", number).permutation(len(trace)) for number in range(passes)]
        )
    gaps_s = stream(seed, "backlog gaps").exponential(1.0, n)
    arrival_s = np.zeros(n) if math.isinf(rate_per_s) else np.cumsum(gaps_s) / rate_per_s
    return whole.chosen(rows[:n], arrival_s)


def repeated(trace: RequestTrace, passes: int) -> RequestTrace:
    """Return the trace several times over, with prefixes that are shared within a pass alone."""
    if passes == 1:
        return trace
    if trace.span_s > 0:
        whole = trace.replayed(passes)
    else:
        whole = trace.chosen(np.tile(np.arange(len(trace)), passes), np.zeros(passes * len(trace)))
        whole = whole.with_sessions_apart(np.repeat(np.arange(passes), len(trace)))
    if trace.block_ids is None:
        return whole
    ids = (np.arange(passes)[:, None] * trace.n_blocks + trace.block_ids).ravel()
    return dataclasses.replace(whole, block_ids=ids)


def steady_rate(
    trace: Callable[[int], RequestTrace],
    serve: Serve,
    *,
    slots: int,
    guess_per_s: float,
    service_s: float,
    seed: int,
    split: bool = False,
) -> SteadyRate:
    """Replay a backlog until the rate at which the cluster finishes it is steady.

    Parameters
    ----------
    trace : callable
        Gives the requests to replay, from how many are wanted; a trace has what it has, a generator makes as many.
    serve : callable
        Runs requests on the cluster.
    slots : int
        Requests that the cluster runs at once.
    guess_per_s, service_s : float
        About how many requests it finishes per second, and how long it works on one, to begin with.
    seed : int
    split : bool
        Whether prompts are computed elsewhere (:func:`tokens_out`).

    Raises
    ------
    WavetankError
        If the rate is not steady after all rounds.
    """
    offered_per_s = OVERLOAD * guess_per_s
    n = wanted = max(LEAST_REQUESTS, math.ceil(offered_per_s * SERVICE_TIMES * service_s))
    found, raised, why = None, False, "nothing was given in the counted time"
    for _ in range(ROUNDS):
        n = min(wanted, MOST_REQUESTS)
        source = trace(n)
        requests = backlog(source, n, offered_per_s, seed)
        run = serve(requests)
        means = _batch_means(run, split)
        tokens_per_s = float(means.mean())
        error = _T * float(means.std(ddof=1)) / math.sqrt(BATCHES) / tokens_per_s if tokens_per_s > 0 else math.inf
        drift = abs(float(means[: BATCHES // 2].mean() / means[BATCHES // 2 :].mean()) - 1) if means.all() else math.inf
        if tokens_per_s == 0:
            # Nothing was given in the counted time: what was taken for a service time is far too short.
            wanted, service_s = 4 * n, 4 * service_s
            continue
        requests_per_s = tokens_per_s / float(source.output_tokens.mean())
        service_s = service_time_s(run, slots / requests_per_s)
        found = SteadyRate(tokens_per_s, requests_per_s, error, service_s, offered_per_s, run)
        long_enough = float(run.arrival_s[-1] - run.arrival_s[0]) >= 0.7 * SERVICE_TIMES * service_s
        full = requests_per_s <= 0.9 * offered_per_s
        # Raised by far too much, a rate is lowered again: a capacity is of one overload.
        overloaded = raised and offered_per_s > 2 * OVERLOAD * requests_per_s
        if full and long_enough and not overloaded and error <= TOLERANCE and drift <= HALVES:
            return found
        if full:
            offered_per_s = OVERLOAD * requests_per_s if overloaded else max(offered_per_s, OVERLOAD * requests_per_s)
        else:
            # A cluster that keeps up says nothing of how much more it could.
            keeps_up = requests_per_s > 0.98 * offered_per_s
            offered_per_s = RAISE * offered_per_s if keeps_up else max(offered_per_s, OVERLOAD * requests_per_s)
        raised = not full or (raised and not overloaded)
        wanted = math.ceil(offered_per_s * SERVICE_TIMES * service_s) if not (full and long_enough) else 2 * n
        wanted = max(wanted, LEAST_REQUESTS, math.ceil(min((error / TOLERANCE) ** 2, 6.0) * n) if full else n)
        why = _refusal(full=full, long_enough=long_enough, error=error, drift=drift)
    if found is None or why:
        raise WavetankError(
            "The cluster's rate does not become steady, so it has no capacity to report.",
            given=f"{n:,} requests replayed: {why}",
            allowed=f"a full cluster for {0.7 * SERVICE_TIMES:g} mean service times, batches and halves within "
            f"{_UNSTEADY:.0%}",
            hint="answers of very unequal length need more slots, or a smaller longest answer",
        )
    return found


def _refusal(*, full: bool, long_enough: bool, error: float, drift: float) -> str:
    """Return why a rate is none of a full cluster after all rounds; empty where it is one."""
    if not full:
        return "the cluster still keeps up with what is offered, so it is not full"
    if not long_enough:
        return "the arrivals last for too few mean service times"
    if error > _UNSTEADY:
        return f"batches within {error:.1%} of each other"
    return f"halves {drift:.1%} apart" if drift > _UNSTEADY else ""


def tokens_out(run: ServingRun, until_s: NDArray[np.float64], *, split: bool = False) -> NDArray[np.float64]:
    """Return how many output tokens were out by each of some times.

    Tokens after a request's first are taken to come evenly.  Counted by the requests that finish instead, a rate would
    miss what those in progress got, and answers of very unequal length make that much of a short run.

    Parameters
    ----------
    run : ServingRun
    until_s : float64, shape (m,)
    split : bool
        Whether prompts are computed elsewhere.  Then a request may wait between its first token and the others; those
        are taken to come, just before its last, at the pace of the twentieth of the requests that is fastest.

    Returns
    -------
    float64, shape (m,)
    """
    # Of a stream that broke off, or never began, nothing counts.
    done = ~np.isnan(run.finish_s)
    first_s, finish_s, later = run.first_token_s[done], run.finish_s[done], run.output_tokens[done] - 1
    paces_s = run.tpot_s[done][later >= 8] if split else np.zeros(0)
    if paces_s.size:
        first_s = np.maximum(first_s, finish_s - later * float(np.quantile(paces_s, 0.05)))
    lasts_s = np.maximum(finish_s - first_s, 1e-15)
    out = [
        np.where(now_s >= first_s, 1.0 + later * np.minimum((now_s - first_s) / lasts_s, 1.0), 0.0).sum()
        for now_s in until_s
    ]
    return np.array(out)


def _batch_means(run: ServingRun, split: bool) -> NDArray[np.float64]:
    """Return the output tokens per second of each batch."""
    first, last = float(run.arrival_s[0]), float(run.arrival_s[-1])
    edges = np.linspace(first + WARM_UP * (last - first), last, BATCHES + 1)
    means: NDArray[np.float64] = np.diff(tokens_out(run, edges, split=split)) / (edges[1] - edges[0])
    return means


def service_time_s(run: ServingRun, most_s: float) -> float:
    """Return about how long a request is worked on: from its first token to its last, and the steps of its prompt.

    Parameters
    ----------
    run : ServingRun
        Of a full cluster.
    most_s : float
        What all slots together allow, by Little's law.
    """
    first, last = float(run.arrival_s[0]), float(run.arrival_s[-1])
    counted = (run.finish_s >= first + WARM_UP * (last - first)) & (run.finish_s <= max(last, first))
    if not counted.any():
        counted = np.ones_like(counted)
    decode_s = float((run.finish_s - run.first_token_s)[counted].mean())
    tokens = float(run.output_tokens[counted].mean())
    return min(decode_s * (tokens + 1) / max(tokens - 1, 1.0), most_s) if decode_s > 0 else most_s
