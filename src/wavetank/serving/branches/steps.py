"""An engine that takes steps: prompts in chunks, every request's protected branch, and what the controller adds.

Requests are admitted in order of arrival while their KV cache fits, reserved up to their last token so that none is
ever given up.  A step computes a chunk of prompts and one token for every branch that runs; how long it takes is looked
up in the step-time table.  A parallel stage ends when its last branch has ended, and the next stage reads what all of
them wrote.  A branch that does not run keeps its tokens in the cache and goes on later: nothing is computed again.

What counts as a time to first token, a time per token or as within the objectives is
:class:`~wavetank.serving.simulator.simulate.ServingRun`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import StepTime
from wavetank.serving.branches.interface import (
    CHOOSE_SIGNATURE,
    STEP_TYPE,
    VIEW_TYPE,
    BranchController,
    StepView,
    compiled_controller,
)
from wavetank.serving.branches.predictor import LATEST, MIXED, predicted_s, refit
from wavetank.serving.branches.workload import BranchingRequests
from wavetank.serving.simulator.simulate import ServingRun
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# What serve() counts, and what it keeps of each step where it is asked to.
STEPS, PREFILL_STEPS, EXTRA_STEPS, EXTRA_TOKENS, OVER_SLACK, TOKENS, BUSY_S, STUCK, COUNTS = range(9)
LOG = ("start_s", "taken_s", "sequences", "context", "prefill", "plain_s", "predicted_s", "slack_s", "extra", "held")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What the requests are served by."""

    tpot_slo_s: float = setting(0.1, unit="s", says="Objective for the time per output token", low=1e-4, high=1e3)
    ttft_slo_s: float = setting(2.0, unit="s", says="Objective for the time to first token", low=1e-3, high=1e5)
    kv_tokens: int = setting(90_000, unit="tokens", says="KV cache", low=1, high=10**12)
    chunk_tokens: int = setting(128, unit="tokens", says="Prompt tokens of a step at most", low=1, high=1 << 20)
    max_requests: int = setting(128, unit="requests", says="Requests of a batch at most", low=1, high=1 << 16)
    max_sequences: int = setting(256, unit="sequences", says="Sequences of a step at most", low=1, high=1 << 20)
    refit_s: float = setting(600.0, unit="s", says="Time between refits of the predictor", low=1e-3, high=math.inf)
    shared_prefix: bool = setting(False, says="Whether a step reads the common prefix of a request's branches once")

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class BranchRun:
    """What happened.

    Attributes
    ----------
    serving : ServingRun
        Every request's times, by the definitions of the serving simulator.
    branch_steps : int64 array (branches, 2)
        Numbers of the steps in which each branch got its first and its last token; the first one's token comes with the
        last chunk of the prompt.
    log : mapping of str to float64 array (steps,)
        What was kept of each step, by :data:`LOG`; empty where it was not asked for.
    over_slack : int
        Steps in which the predicted lengthening by further branches was above what every request had left.
    extra_tokens : int
        Tokens of branches other than the protected ones.
    predictor : float64 array
        At the end.
    """

    serving: ServingRun
    branch_steps: Ints
    log: dict[str, Floats]
    over_slack: int
    extra_tokens: int
    predictor: Floats

    def figures(self, engine: Engine) -> dict[str, float]:
        """Return the figures that studies compare: ``goodput_tokens_per_s`` counts the output tokens of requests within
        both objectives that finish in the counted window, ``attainment`` the share within both of those that arrive.
        """
        run = self.serving
        start, end = run.window_s
        within = (run.ttft_s <= engine.ttft_slo_s) & ~(run.tpot_s > engine.tpot_slo_s)
        finished = (run.finish_s >= start) & (run.finish_s <= end)
        arrived = run.arrival_s >= start if end > start and run.arrival_s[-1] > start else np.ones_like(within)
        shared = run.metrics(slo_ttft_s=engine.ttft_slo_s, slo_tpot_s=engine.tpot_slo_s)
        return {
            "goodput_tokens_per_s": float(run.output_tokens[within & finished].sum()) / (end - start),
            "attainment": float(within[arrived].mean()),
            "throughput_tokens_per_s": shared["throughput_tokens_per_s"],
            "ttft_p99_s": shared["ttft_p99_s"],
            "tpot_p99_s": shared["tpot_p99_s"],
            "extra_share": self.extra_tokens / float(run.output_tokens.sum()),
        }


def simulate_branches(
    requests: BranchingRequests,
    engine: Engine,
    step_time: StepTime,
    controller: BranchController,
    predictor: Floats,
    *,
    noise: Floats | None = None,
    log: bool = False,
) -> BranchRun:
    """Serve requests whose stages may have several branches.

    Parameters
    ----------
    requests : BranchingRequests
    engine : Engine
    step_time : StepTime
        How long steps take.
    controller : BranchController
    predictor : float64 array
        What is known of step times beforehand: :func:`wavetank.serving.branches.predictor.profiled`.
    noise : float64 array, optional
        Factors on the times of steps, taken in turn; none by default.
    log : bool
        Whether to keep what every step was.

    Raises
    ------
    BadValueError
        If a request does not fit into the KV cache, or the factors are not positive.
    WavetankError
        If the controller names no candidate, or more than the batch takes.
    """
    needed = requests.trace.prompt_tokens + requests.trace.output_tokens
    if needed.max() > engine.kv_tokens:
        raise BadValueError(
            "A request does not fit into the KV cache.", given=f"{int(needed.max())} tokens",
            allowed=f"{engine.kv_tokens} tokens", where=f"request {int(needed.argmax()) + 1}",
            hint="take more devices or a larger kv_tokens, or drop such requests",
        )  # fmt: skip
    factors = np.ones(1) if noise is None else np.ascontiguousarray(noise, np.float64)
    if not (factors.size and np.isfinite(factors).all() and (factors > 0).all()):
        raise BadValueError("Factors on step times are positive numbers.", given=float(factors.min(initial=math.nan)))
    n, branches = len(requests.trace), requests.lengths.size
    first_s, finish_s = np.full(n, np.nan), np.full(n, np.nan)
    branch_steps = np.full((branches, 2), -1, np.int64)
    # A step that gives no token computes a whole chunk, so that there are no more of them than this.
    most = int(requests.trace.output_tokens.sum() + (-(-requests.trace.prompt_tokens // engine.chunk_tokens)).sum()) + 1
    kept = np.zeros((most if log else 0, len(LOG)))
    counts = np.zeros(COUNTS)
    learned = predictor.copy()
    rules = np.array([
        engine.tpot_slo_s, engine.ttft_slo_s, engine.chunk_tokens, engine.kv_tokens, engine.max_requests,
        engine.max_sequences, engine.refit_s, getattr(controller, "knows_lengths", False),
        getattr(controller, "admission", 0.0) * engine.tpot_slo_s, requests.branch_tokens, engine.shared_prefix,
    ])  # fmt: skip
    columns = (
        requests.trace.arrival_s, requests.trace.prompt_tokens, requests.stage_offsets, requests.branch_offsets,
        requests.lengths,
    )  # fmt: skip
    with compiled_controller(controller) as (choose, parameters):
        _serve(
            *columns, factors, step_time.function, step_time.table, step_time.context_slope_ps, choose,
            np.zeros(8), parameters, learned, rules, first_s, finish_s, branch_steps, kept, counts,
        )  # fmt: skip
    if counts[STUCK]:
        raise WavetankError(
            f"The controller {type(controller).__name__} admitted what it could not.",
            hint="set admitted[i] to 1 for at most view.room candidates and to nothing else, and return their number",
        )
    unknown = np.zeros(n, np.int32)
    serving = ServingRun(
        arrival_s=requests.trace.arrival_s, first_token_s=first_s, finish_s=finish_s,
        prompt_tokens=requests.trace.prompt_tokens, output_tokens=requests.trace.output_tokens, worker=unknown,
        preemptions=unknown, matched_tokens=unknown, steps=int(counts[STEPS]), prefill_steps=int(counts[PREFILL_STEPS]),
        decisions=int(counts[STEPS]), refreshes=0, adapter_loads=0, lock_s=float(counts[BUSY_S]),
        work_s=float(counts[BUSY_S]), mixed_s=math.nan, imbalance_tokens=math.nan, probe_s=np.zeros(0),
        probe_tokens=np.zeros((0, 1)), probe_running=np.zeros((0, 1), np.int64),
    )  # fmt: skip
    return BranchRun(
        serving=serving, branch_steps=branch_steps, over_slack=int(counts[OVER_SLACK]),
        log=dict(zip(LOG, kept[: int(counts[STEPS])].T, strict=True)) if log else {},
        extra_tokens=int(counts[EXTRA_TOKENS]), predictor=learned,
    )  # fmt: skip


@njit(inline="always")
def _unfinished(length: Ints, done: Ints, begin: int, end: int) -> int:
    """Return the first branch of a stage that has not ended."""
    for b in range(begin, end):
        if done[b] < length[b]:
            return b
    return -1


_FLOATS, _INTS = types.float64[::1], types.int64[::1]
# Columns of requests come out of traces that nobody may write to.
_FIXED, _FIXED_INTS = types.Array(types.float64, 1, "C", True), types.Array(types.int64, 1, "C", True)
_SERVE = types.void(
    _FIXED, _FIXED_INTS, _FIXED_INTS, _FIXED_INTS, _FIXED_INTS, _FLOATS, STEP_TYPE, _FLOATS, types.int64,
    types.FunctionType(CHOOSE_SIGNATURE), _FLOATS, _FLOATS, _FLOATS, _FLOATS, _FLOATS, _FLOATS,
    types.int64[:, ::1], types.float64[:, ::1], _FLOATS,
)  # fmt: skip


@compiled(_SERVE, nogil=True, at_first_call=True)
def _serve(  # type: ignore[no-untyped-def]
    arrival_s, prompt, stage_offsets, branch_offsets, length, noise, step, table, slope, choose, state, parameters,
    predictor, rules, first_s, finish_s, branch_steps, log, counts,
):  # fmt: skip
    tpot, ttft, refit_s, admission_s, mean = rules[0], rules[1], rules[6], rules[8], rules[9]
    chunk, kv, most_requests, most_sequences = int(rules[2]), int(rules[3]), int(rules[4]), int(rules[5])
    knows, shared = rules[7] > 0.0, rules[10] > 0.0
    n = arrival_s.size
    widest = 1
    for s in range(branch_offsets.size - 1):
        widest = max(widest, branch_offsets[s + 1] - branch_offsets[s])
    stage, base, need = stage_offsets[:-1].copy(), prompt.copy(), prompt.copy()
    emitted, prefilled = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for r in range(n):
        for b in range(branch_offsets[stage_offsets[r]], branch_offsets[stage_offsets[r + 1]]):
            need[r] += length[b]
    done = np.zeros(length.size, np.int64)
    last_s = arrival_s.copy()
    width_before = np.zeros(n, np.int64)
    running = np.zeros(most_requests, np.int64)
    taken, protected = np.zeros(most_requests, np.int64), np.zeros(most_requests, np.int64)
    due, last, left_steps = np.zeros(most_requests), np.zeros(most_requests), np.zeros(most_requests)
    widths, protected_left = np.zeros(most_requests, np.int64), np.zeros(most_requests)
    room_for = most_requests * widest
    of, which = np.zeros(room_for, np.int64), np.zeros(room_for, np.int64)
    context, left = np.zeros(room_for), np.zeros(room_for)
    admitted = np.zeros(room_for, np.int64)
    latest = np.zeros((2, LATEST, 4))
    kept = np.zeros(2, np.int64)
    next_refit = refit_s
    head = arrived = finished = live = 0
    reserved = held = 0
    ended, ended_tokens = 1.0, mean
    now = arrival_s[0]
    number = 0

    while finished < n:
        while arrived < n and arrival_s[arrived] <= now:
            arrived += 1
        while head < arrived and live < most_requests and reserved + need[head] <= kv:
            if admission_s > 0.0 and live > 0:
                # The step that all branches would make together with the new request's first token.
                rows, tokens = 1, prompt[head]
                for j in range(live):
                    r = running[j]
                    for b in range(branch_offsets[stage[r]], branch_offsets[stage[r] + 1]):
                        if done[b] < length[b]:
                            rows += 1
                            tokens += base[r] + done[b]
                if predicted_s(predictor, rows, tokens, 0) > admission_s:
                    break
            running[live] = head
            reserved += need[head]
            live += 1
            head += 1
        if live == 0:
            now = max(now, arrival_s[head])
            continue

        # What the step has without the controller, and what could be added.
        P = S = R = C = candidates = 0
        ahead = 0
        for j in range(live):
            r = running[j]
            last[j] = last_s[r]
            widths[j] = width_before[r]
            taken[j] = 0
            protected[j] = -1
            if prefilled[r] < prompt[r]:
                missing = prompt[r] - prefilled[r]
                take = min(chunk - P, missing)
                S += take * prefilled[r] + take * (take + 1) // 2
                P += take
                taken[j] = take
                ahead += missing
                due[j] = arrival_s[r] + ttft
                left_steps[j] = (ahead + chunk - 1) // chunk
                protected_left[j] = 0.0
                continue
            first = branch_offsets[stage[r]]
            end = branch_offsets[stage[r] + 1]
            own = _unfinished(length, done, first, end)
            protected[j] = own
            R += 1
            C += base[r] + done[own]
            due[j] = first_s[r] + emitted[r] * tpot
            left_steps[j] = 1.0
            expected = ended_tokens / ended
            protected_left[j] = length[own] - done[own] if knows else max(expected - done[own], 1.0)
            for b in range(own + 1, end):
                if done[b] < length[b]:
                    of[candidates] = j
                    which[candidates] = b
                    context[candidates] = done[b] if shared else base[r] + done[b]
                    left[candidates] = length[b] - done[b] if knows else max(expected - done[b], 1.0)
                    admitted[candidates] = 0
                    candidates += 1

        plain = predicted_s(predictor, R, C, P)
        count = 0
        if candidates > 0:
            view = StepView(
                now, tpot, number, R, C, P, S, max(most_sequences - R, 0), due[:live], last[:live], left_steps[:live],
                widths[:live], protected_left[:live], of[:candidates], context[:candidates], left[:candidates],
            )  # fmt: skip
            count = choose(view, step, table, predictor, state, parameters, admitted[:candidates])
            seen = 0
            for i in range(candidates):
                if admitted[i] == 1:
                    seen += 1
                elif admitted[i] != 0:
                    seen = -candidates
            if seen != count or count > max(most_sequences - R, 0):
                counts[STUCK] = 1.0
                return
        rows, tokens = R + count, float(C)
        for i in range(candidates):
            if admitted[i] == 1:
                tokens += context[i]
        slack = np.inf
        for j in range(live):
            slack = min(slack, (due[j] - now - plain * left_steps[j]) / left_steps[j])
        predicted = predicted_s(predictor, rows, tokens, P)
        if count > 0 and predicted - plain > max(slack, 0.0) + 1e-12:
            counts[OVER_SLACK] += 1.0
        if slope < 0:
            ps = step(rows, int(tokens), P, S, table)
        else:
            ps = step(rows, 0, P, S, table) + slope * int(tokens)
        took = ps / 1e12 * noise[number % noise.size]
        if log.shape[0] > 0:
            log[number, 0], log[number, 1], log[number, 2], log[number, 3] = now, took, rows, tokens
            log[number, 4], log[number, 5], log[number, 6], log[number, 7] = P, plain, predicted, slack
            log[number, 8], log[number, 9] = count, held
        now += took

        # What the latest steps say of step times.
        kind = 1 if P > 0 else 0
        place = kept[kind] % LATEST
        latest[kind, place, 0], latest[kind, place, 1] = rows, tokens
        latest[kind, place, 2], latest[kind, place, 3] = P, took
        kept[kind] += 1
        if now - arrival_s[0] >= next_refit:
            refit(predictor, 0, latest[0], min(kept[0], LATEST))
            refit(predictor, MIXED, latest[1], min(kept[1], LATEST))
            next_refit = now - arrival_s[0] + refit_s

        # Every branch that ran has one token more.
        for j in range(live):
            width_before[running[j]] = 1
        for i in range(candidates):
            if admitted[i] == 1:
                b, r = which[i], running[of[i]]
                if done[b] == 0:
                    branch_steps[b, 0] = number
                done[b] += 1
                if done[b] == length[b]:
                    branch_steps[b, 1] = number
                emitted[r] += 1
                width_before[r] += 1
        for j in range(live):
            r = running[j]
            prefilled[r] += taken[j]
            held += taken[j]
            b = protected[j]
            if b < 0:
                if prefilled[r] < prompt[r]:
                    continue
                # The last chunk of a prompt gives the first token.
                first_s[r] = now
                b = branch_offsets[stage[r]]
            if done[b] == 0:
                branch_steps[b, 0] = number
            done[b] += 1
            if done[b] == length[b]:
                branch_steps[b, 1] = number
            emitted[r] += 1
            last_s[r] = now
        held += rows
        staying = 0
        for j in range(live):
            r = running[j]
            if protected[j] < 0 and prefilled[r] == prompt[r]:
                held += 1
            first, end = branch_offsets[stage[r]], branch_offsets[stage[r] + 1]
            if prefilled[r] == prompt[r] and _unfinished(length, done, first, end) < 0:
                for b in range(first, end):
                    base[r] += length[b]
                    if end - first > 1:
                        ended += 1.0
                        ended_tokens += length[b]
                stage[r] += 1
                width_before[r] = 0
                if stage[r] == stage_offsets[r + 1]:
                    finish_s[r] = now
                    reserved -= need[r]
                    held -= need[r]
                    finished += 1
                    continue
            running[staying] = r
            staying += 1
        live = staying
        counts[STEPS] += 1.0
        counts[BUSY_S] += took
        counts[PREFILL_STEPS] += P > 0
        counts[EXTRA_STEPS] += count > 0
        counts[EXTRA_TOKENS] += count
        number += 1


@compiled(types.int64(types.FunctionType(CHOOSE_SIGNATURE), VIEW_TYPE, STEP_TYPE, *[_FLOATS] * 4, _INTS, types.int64))
def _repeat(choose, view, step, table, predictor, state, parameters, admitted, times):  # type: ignore[no-untyped-def]
    count = 0
    for _ in range(times):
        admitted[:] = 0
        count += choose(view, step, table, predictor, state, parameters, admitted)
    return count


def repeated(controller: BranchController, view: StepView, step_time: StepTime, predictor: Floats, times: int) -> int:
    """Let a controller decide many times from compiled code, as the engine calls it, and return how many it admitted.

    Parameters
    ----------
    controller : BranchController
    view : StepView
    step_time : StepTime
    predictor : float64 array
    times : int
    """
    with compiled_controller(controller) as (choose, parameters):
        admitted = np.zeros(view.request.size, np.int64)
        function, table = step_time.function, step_time.table
        return int(_repeat(choose, view, function, table, predictor.copy(), np.zeros(8), parameters, admitted, times))
