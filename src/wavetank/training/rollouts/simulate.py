"""Serving and rollouts on the same and on other GPUs, step by step of every instance: one accounting for all systems.

An *instance* is a GPU, or the few that share a model.  It works in steps: a step of serving decodes a token for every
request and reads prompts in chunks; a step of rollouts does so for the turns of agents.  On a shared instance the two
take turns, and the governor decides before each step whose it is.  A step that has begun ends, so that a request waits
for one step of rollouts at least where it comes too late to be seen.

* Requests are assigned to their instances beforehand, alike for all systems.
* A turn is placed by the router when its environment has answered.  Its prefix stays in the cache of its instance until
  another turn needs the room, the least recently used one first.
* The trainer learns from a batch as soon as all of its trajectories have ended; then new weights travel, and every
  instance begins with them when they have arrived.  With a staleness of k, trajectories of k further batches may begin.
* Serving that comes near to the end of a shared pool halves what rollouts may hold of it, until the next weights; what
  is over that goes elsewhere and is computed again there.

Times are whole picoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError, GaveUpError
from wavetank.sim.rng import stream_key
from wavetank.training.rollouts.core import COUNTERS, FAR, MOST_STEPS, ONES, OVER, Given, State, run
from wavetank.training.rollouts.interface import GOVERNORS, NONE, PS, ROUTERS, Arrangement, Ints, Rates
from wavetank.workloads.trajectories import Trajectories


class Load(NamedTuple):
    """Requests of users, by instance and in order of arrival.

    Attributes
    ----------
    first : int64 array (instances + 1,)
        Instance g has the requests ``first[g]`` to ``first[g + 1] - 1``.
    arrival_ps, prompt_tokens, output_tokens : int64 array (requests,)
    """

    first: Ints
    arrival_ps: Ints
    prompt_tokens: Ints
    output_tokens: Ints


class Spot(NamedTuple):
    """When spot instances are there, one row each.

    Attributes
    ----------
    up_ps, down_ps : int64 array (instances, times)
        Ascending; the end of a row is filled with ``FAR``.
    """

    up_ps: Ints
    down_ps: Ints


class Batches(NamedTuple):
    """The trajectories of all steps, one after the other.

    Attributes
    ----------
    trajectories : Trajectories
    ends : int64 array (steps,)
        How many trajectories the batches up to each one have.
    """

    trajectories: Trajectories
    ends: Ints


class Run(NamedTuple):
    """What happened.

    Attributes
    ----------
    first_ps, last_ps, gap_ps : int64 array (requests,)
        When a request had its first and its last token, ``FAR`` where it had none; its longest gap between two tokens.
    rollouts_ps, learnt_ps : int64 array (steps,)
        When the trajectories of a batch had ended, and when the trainer was done with it.
    began_version, learnt_version : int64 array (trajectories,)
        Weights with which a trajectory began, and those that learnt from it; -1 where it did not come to that.
    begin_ps, end_ps : int64 array (turns,)
        When a turn was placed for the first time, and when its last token was written.
    counters : int64 array
        By the names of this module.
    most_pool_bytes : int64 array (shared instances,)
        The most that keys and values of both models took.
    """

    first_ps: Ints
    last_ps: Ints
    gap_ps: Ints
    rollouts_ps: Ints
    learnt_ps: Ints
    began_version: Ints
    learnt_version: Ints
    begin_ps: Ints
    end_ps: Ints
    counters: Ints
    most_pool_bytes: Ints


def simulate(
    arrangement: Arrangement,
    rates: Rates,
    load: Load,
    *,
    batches: Batches | None = None,
    own: int = 0,
    spot: Spot | None = None,
    seed: int = 0,
) -> Run:
    """Run steps of reinforcement learning beside serving, or serving alone.

    Parameters
    ----------
    arrangement : Arrangement
    rates : Rates
    load : Load
        Of the shared instances; those of an arrangement without a governor are left out.
    batches : Batches, optional
        None: serving alone, all of it.
    own : int
        Dedicated instances that everybody has.
    spot : Spot, optional
        When the arrangement's spot instances are there, one row or more each.
    seed : int
        Of the router's draws.

    Returns
    -------
    Run

    Raises
    ------
    BadValueError
        If there are no instances for the trajectories, or a request or a turn fits into no cache.
    GaveUpError
        If it takes more steps than a simulation may have.
    """
    governor = GOVERNORS[arrangement.governor]
    serving = batches is None or governor != NONE
    count = load.first.size - 1 if serving else 0
    if batches is None:
        arrangement, own = Arrangement(), 0
        governor = NONE
    own += arrangement.more_gpus
    if arrangement.spot_gpus and (spot is None or spot.up_ps.shape[0] < arrangement.spot_gpus):
        raise BadValueError("It is not known when spot instances are there.", given=spot and spot.up_ps.shape[0],
                            allowed=f"{arrangement.spot_gpus} rows", where="spot")  # fmt: skip
    if batches is not None and own < 1:
        raise BadValueError("Rollouts need an instance of their own.", given=own, allowed="1 or more", where="own")
    none = np.zeros((0, 1), dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    up, down = (spot.up_ps, spot.down_ps) if spot is not None and arrangement.spot_gpus else (none, none)
    work = None if batches is None else batches.trajectories
    ends = empty if batches is None else np.ascontiguousarray(batches.ends, dtype=np.int64)
    if work is not None and (not ends.size or ends[-1] != len(work) or (np.diff(ends, prepend=0) < 1).any()):
        raise BadValueError("The batches are not those of the trajectories.", given=ends.tolist(),
                            allowed=f"ascending, up to {len(work)}", where="ends")  # fmt: skip
    requests = load.arrival_ps.size if serving else 0
    if requests:
        longest = int((load.prompt_tokens + load.output_tokens).max()) * rates.serving_kv_bytes
        if longest > rates.shared_pool_bytes:
            raise BadValueError("A request fits into no cache.", given=f"{longest} bytes",
                                allowed=f"at most {rates.shared_pool_bytes}", where="load")  # fmt: skip
    if work is not None:
        contexts = work.context_tokens(rates.answer_tokens) + work.turn_tokens
        longest = int(contexts.max()) * rates.rollout_kv_bytes
        if longest > rates.own_pool_bytes:
            raise BadValueError("A turn fits into no cache.", given=f"{longest} bytes",
                                allowed=f"at most {rates.own_pool_bytes}", where="trajectories")  # fmt: skip
    p = Given(
        own=own, spot=arrangement.spot_gpus, shared=count, governor=governor, router=ROUTERS[arrangement.router],
        staleness=arrangement.staleness, kv=rates.rollout_kv_bytes, serving_kv=rates.serving_kv_bytes,
        shared_pool=rates.shared_pool_bytes, own_pool=rates.own_pool_bytes, own_cap=rates.own_cap,
        guest_cap=rates.guest_cap, own_chunk=rates.own_chunk, guest_chunk=rates.guest_chunk,
        serving_chunk=rates.serving_chunk, serving_cap=rates.serving_cap, answer=rates.answer_tokens,
        ttft_ps=float(rates.ttft_s * PS * (1 - arrangement.margin)),
        tpot_ps=float(rates.tpot_s * PS * (1 - arrangement.margin)), shorter=1 / (1 + rates.wrong),
        headroom=float(rates.headroom), stall_ps=round(rates.stall_s * PS),
        own_sync_ps=round(rates.inner_sync_s * PS), guest_sync_ps=round(rates.sync_s(arrangement.format) * PS),
        serving_table=rates.serving_table, rollout_table=rates.rollout_table, first=load.first if serving else empty,
        arrival=load.arrival_ps, prompt=load.prompt_tokens, output=load.output_tokens, up=up, down=down,
        first_turn=_own(empty if work is None else work.first_turn),
        start=_own(empty if work is None else work.prompt_tokens),
        tokens=_own(empty if work is None else work.turn_tokens),
        delay=empty if work is None else np.rint(work.delay_s * PS).astype(np.int64), ends=ends,
        train_ps=_train_ps(rates, batches),
    )  # fmt: skip
    instances = own + arrangement.spot_gpus + count
    s = _state(instances, count, requests, ends, arrangement.spot_gpus, rates, seed)
    far = [np.full(requests, FAR) for _ in range(2)]
    steps = [np.full(ends.size, FAR) for _ in range(2)]
    trajectories = [np.full(s.turn.size, -1, dtype=np.int64) for _ in range(2)]
    turns = [np.full(p.tokens.size, -1, dtype=np.int64) for _ in range(2)]
    gaps = np.zeros(requests, dtype=np.int64)
    if run(p, s, far[0], far[1], gaps, steps[0], steps[1], trajectories[0], trajectories[1], turns[0], turns[1]) < 0:
        raise GaveUpError(f"The run takes more than {MOST_STEPS} steps.", hint="fewer steps, trajectories or instances")
    return Run(
        first_ps=far[0], last_ps=far[1], gap_ps=gaps, rollouts_ps=steps[0], learnt_ps=steps[1],
        began_version=trajectories[0], learnt_version=trajectories[1], begin_ps=turns[0], end_ps=turns[1],
        counters=s.counters, most_pool_bytes=s.most_kv,
    )  # fmt: skip


def _own(array: Ints) -> Ints:
    # Compiled code has one version for arrays that may be written to, and would be compiled again for others.
    return array.copy()


def _train_ps(rates: Rates, batches: Batches | None) -> Ints:
    if batches is None:
        return np.zeros(0, dtype=np.int64)
    work = batches.trajectories
    whole = work.prompt_tokens + work.written_tokens + rates.answer_tokens * (work.turns - 1)
    tokens = np.add.reduceat(whole, np.concatenate(([0], batches.ends[:-1])))
    return np.array([round(rates.train_s(int(each)) * PS) for each in tokens], dtype=np.int64)


def _state(instances: int, shared: int, requests: int, ends: Ints, spot: int, rates: Rates, seed: int) -> State:
    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    cap = max(rates.own_cap, rates.guest_cap)
    trajectories = int(ends[-1]) if ends.size else 0
    one = zeros(ONES)
    one[OVER] = FAR
    return State(
        free_at=zeros(instances), began_at=zeros(instances), action=zeros(instances), ready_at=zeros(instances),
        there=zeros(instances), guests=zeros(instances), slots=zeros(instances, cap), guest_kv=zeros(instances),
        idle_kv=zeros(instances), budget=zeros(instances), flush=zeros(instances),
        open_at=np.full(instances, -FAR), progress_at=zeros(instances), last_action=zeros(instances),
        serving_kv=zeros(shared), most_kv=zeros(shared), arrived=zeros(shared), admitted=zeros(shared),
        running=zeros(shared), batch=zeros(shared, rates.serving_cap), unread=zeros(requests),
        context_r=zeros(requests), unwritten=zeros(requests), last_token=zeros(requests), part_r=zeros(requests),
        status=zeros(trajectories), turn=zeros(trajectories), context=zeros(trajectories), left=zeros(trajectories),
        unread_t=zeros(trajectories), cached=zeros(trajectories), known=zeros(trajectories), held=zeros(trajectories),
        home=np.full(trajectories, -1, dtype=np.int64), used=zeros(trajectories), part=zeros(trajectories),
        ready=zeros(trajectories + 1), heap_at=zeros(trajectories + 1), heap_of=zeros(trajectories + 1), one=one,
        draws=np.array([float(stream_key(seed, "rollout router") >> 12), 0.0]), counters=zeros(COUNTERS),
        missing=np.diff(ends, prepend=0), spot_next=zeros(spot),
    )  # fmt: skip
