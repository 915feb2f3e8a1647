"""Workers that compute prompts one at a time, first come first served, and fetch rows from one another.

A prompt is sent to a worker when it arrives.  What it is to have from others is asked for at once, over links that
serve one transfer at a time, into a worker and out of one; all of a layer comes before the next layer, and a layer is
computed once it is there.  Time to first token is what the prompt waits, what its computation takes and what it stands
still for rows; nothing is decoded here.  Times are modelled: operations of the new tokens at 0.7 of a GPU's peak, at
least the reading of all weights, and half a millisecond.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.platforms.catalog import device, model
from wavetank.serving.reuse.interface import TASK, Cache, Prompt, Reuse, Served
from wavetank.serving.reuse.rcllm import Again, Pools, parts_of
from wavetank.serving.reuse.recommender import Shop
from wavetank.serving.routing.interface import Arrival, ArrivalRouter, WorkersView, idle_workers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Layers that are computed for all kept tokens, to see which of them differ.
LOOKED_AT = 2
_OVERHEAD_S, _REACHED = 5e-4, 0.7


class Node(NamedTuple):
    """What a prompt takes one worker.

    Attributes
    ----------
    token_s, pair_s : float
        Of a new token, and of one with another before it, in s.
    least_s : float
        Of a prompt with few new tokens, in s: its weights are read.
    row_bytes : float
        Kept of a token.
    layers : int
    """

    token_s: float
    pair_s: float
    least_s: float
    row_bytes: float
    layers: int

    def seconds(self, tokens: int, new: float) -> float:
        """Return what a prompt takes, as if the new tokens were its last.

        Parameters
        ----------
        tokens : int
            Of the prompt.
        new : float
            Of these, computed.
        """
        return _OVERHEAD_S + max(new * (self.token_s + self.pair_s * (tokens - new / 2)), self.least_s)


@cache
def node(gpu: str = "A100-SXM-80GB", language_model: str = "Llama-3.1-8B") -> Node:
    """Return a worker with the figures of the catalogs.

    Parameters
    ----------
    gpu, language_model : str
    """
    has, about = device(gpu), model(language_model)
    speed = _REACHED * has.bf16_flops_per_s
    return Node(
        2.0 * about.active_parameters / speed, about.prefill_flops_per_pair / speed,
        2.0 * about.parameters / (0.8 * has.hbm_bytes_per_s), float(about.kv_bytes_per_token), about.layers,
    )  # fmt: skip


class Job(NamedTuple):
    """What became of a prompt at its worker.

    Attributes
    ----------
    served : Served
    owners, fetched : int64 array (sources,)
        Workers that rows are fetched from, and tokens from each.
    partly : float
        Tokens' worth of computing beyond those that are counted.
    """

    served: Served
    owners: Ints
    fetched: Ints
    partly: float = 0.0


class Fleet(Protocol):
    """What the workers keep, and what they do with prompts."""

    def here(self, number: int) -> Floats:
        """Return how many tokens of a prompt each worker has.

        Parameters
        ----------
        number : int
            Of the prompt.
        """
        ...

    def there(self, number: int) -> float:
        """Return how many tokens of a prompt any worker could have without computing them.

        Parameters
        ----------
        number : int
        """
        ...

    def serve(self, number: int, worker: int) -> Job:
        """Serve a prompt.

        Parameters
        ----------
        number, worker : int
        """
        ...


_NONE = np.zeros(0, np.int64)


class PoolFleet:
    """Workers whose pools were filled before.

    Parameters
    ----------
    shop : Shop
    pools : Pools
    again : Again
    workers : int
    fetches : bool
        Whether a worker has parts from others, or computes what it does not keep itself.
    """

    def __init__(self, shop: Shop, pools: Pools, again: Again, workers: int, *, fetches: bool = True) -> None:
        self.shop, self.pools, self.again, self.workers = shop, pools, again, workers
        self.fetches = fetches
        self.requests = [*shop.learned, *shop.asked]
        self._lengths = np.array([len(each) for each in shop.items], np.int64) * shop.unit
        self._entries = np.repeat(np.array([len(each) for each in shop.titles], np.int64), 2)
        self._entries += np.tile([len(each) for each in shop.marks], len(shop.items))
        self._entries *= shop.unit
        self._known: dict[int, tuple[Floats, int, Ints]] = {}

    def _found(self, number: int) -> tuple[Floats, int, Ints]:
        """Return tokens at each worker, tokens anywhere, and those to be fetched from each, each item once."""
        if number not in self._known:
            request, items = self.requests[number], self.pools.items
            entries = request.history[self.pools.entries[request.history]]
            everywhere = request.candidates[items.everywhere[request.candidates]]
            placed = request.candidates[items.home[request.candidates] >= 0]
            always = int(self._entries[entries].sum() + self._lengths[everywhere].sum())
            always += len(self.shop.instructions) * self.shop.unit
            at = np.bincount(items.home[placed], self._lengths[placed], self.workers).astype(np.float64)
            once = np.unique(placed)
            moving = np.bincount(items.home[once], self._lengths[once], self.workers).astype(np.int64)
            self._known[number] = at + always, always + int(at.sum()), moving
        return self._known[number]

    def here(self, number: int) -> Floats:
        """Return how many tokens of a prompt each worker has.

        Parameters
        ----------
        number : int
        """
        return self._found(number)[0]

    def there(self, number: int) -> float:
        """Return how many tokens of a prompt are in any pool; 0 where nothing is fetched.

        Parameters
        ----------
        number : int
        """
        return float(self._found(number)[1]) if self.fetches else 0.0

    def serve(self, number: int, worker: int) -> Job:
        """Serve a prompt, with instructions computed again.

        Parameters
        ----------
        number, worker : int
        """
        request, items = self.requests[number], self.pools.items
        entries = request.history[self.pools.entries[request.history]]
        kept = items.everywhere | (items.home >= 0 if self.fetches else items.home == worker)
        texts = request.candidates[kept[request.candidates]]
        lengths = np.concatenate([self._entries[entries], self._lengths[texts]])
        lead = len(self.shop.instructions) * self.shop.unit
        whole = int(self._entries[request.history].sum() + self._lengths[request.candidates].sum())
        whole += lead + len(self.shop.task) * self.shop.unit
        again = lead + self.again.count(lengths)
        reused = lead + int(lengths.sum()) - again
        moving = self._found(number)[2]
        owners = np.flatnonzero(moving)
        owners = owners[owners != worker] if self.fetches else _NONE
        partly = LOOKED_AT / node().layers * reused if self.again.share else 0.0
        counts = Served(reused, again, whole - reused - again, reused)
        return Job(counts, owners, moving[owners], partly)


class CacheFleet:
    """Workers each with a cache of its own, which keeps what it served.

    Parameters
    ----------
    system : Reuse
    prompts : sequence of Prompt
    workers : int
    node_tokens : int
        Room of a worker; 0: no limit.
    unit : int
        Tokens of an id.
    prefixes : bool
        Whether parts count only behind all before them.
    """

    def __init__(
        self, system: Reuse, prompts: Sequence[Prompt], *, workers: int, node_tokens: int, unit: int, prefixes: bool
    ) -> None:
        self.prompts, self.unit, self.prefixes, self.room = prompts, unit, prefixes, node_tokens
        self.caches: list[Cache] = [
            system.cache(budget_tokens=node_tokens or None, unit=unit) for _ in range(workers)
        ]  # fmt: skip
        # What was sent to each worker, the least recently sent first, and at which workers each part is.
        self._sent: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(workers)]
        self._tokens, self._holders = [0] * workers, dict[int, int]()
        self._names = [_named(prompt, unit, prefixes) for prompt in prompts]

    def here(self, number: int) -> Floats:
        """Return how many tokens of a prompt were sent to each worker and should be there.

        Parameters
        ----------
        number : int
        """
        found = np.zeros(len(self.caches))
        for name, tokens in self._names[number]:
            holders = self._holders.get(name, 0)
            if self.prefixes and not holders:
                break
            while holders:
                lowest = holders & -holders
                found[lowest.bit_length() - 1] += tokens
                holders ^= lowest
        return found

    def there(self, number: int) -> float:
        """Return 0: nothing is fetched.

        Parameters
        ----------
        number : int
        """
        return 0.0

    def serve(self, number: int, worker: int) -> Job:
        """Serve a prompt and keep it.

        Parameters
        ----------
        number, worker : int
        """
        sent = self._sent[worker]
        for name, tokens in reversed(self._names[number]):
            if name not in sent:
                self._tokens[worker] += tokens
                self._holders[name] = self._holders.get(name, 0) | 1 << worker
            sent[name] = tokens
            sent.move_to_end(name)
        while self.room and self._tokens[worker] > self.room:
            name, tokens = sent.popitem(last=False)
            self._tokens[worker] -= tokens
            self._holders[name] &= ~(1 << worker)
        return Job(self.caches[worker].serve(self.prompts[number]), _NONE, _NONE)


def _named(prompt: Prompt, unit: int, prefixes: bool) -> list[tuple[int, int]]:
    """Return a name and the tokens of each part that can be kept: a guess of where it is, never what is served."""
    found, start, chain = [], 0, 0
    parts = parts_of(prompt)
    for end, kind in zip(parts.ends.tolist(), parts.kinds.tolist(), strict=True):
        if kind == TASK:
            break
        name = zlib.crc32(prompt.ids[start:end].tobytes()) << 32 | end - start
        chain = zlib.crc32(f"{chain} {name}".encode()) << 32 | chain & 0xFFFFFFFF
        found.append((chain if prefixes else name, (end - start) * unit))
        start = end
    return found


@dataclass(frozen=True, eq=False)
class Timeline:
    """What became of prompts, in the order in which they came.

    Parameters
    ----------
    ttft_s, queue_s, busy_s : float64 array (prompts,)
        To the first token; of it, until the computation began; and what a worker was occupied.
    workers : int64 array (prompts,)
    jobs : sequence of Job
    span_s : float
        From the first arrival to the last first token.
    """

    ttft_s: Floats
    queue_s: Floats
    busy_s: Floats
    workers: Ints
    jobs: Sequence[Job]
    span_s: float


def simulate(
    fleet: Fleet, router: ArrivalRouter | None, tokens: Sequence[int], times: Floats, *, workers: int,
    link_bytes_per_s: float,
) -> Timeline:  # fmt: skip
    """Serve prompts as they come.

    Parameters
    ----------
    fleet : Fleet
    router : ArrivalRouter, optional
        Sees what each worker has and has to do; in turns when it is left out.
    tokens : sequence of int
        Of each prompt.
    times : float64 array (prompts,)
        Of arrival, in s; they do not fall.
    workers : int
    link_bytes_per_s : float
        Into a worker, and out of it.
    """
    about, count = node(), len(times)
    free, into, out = np.zeros(workers), np.zeros(workers), np.zeros(workers)
    chosen, jobs = np.zeros(count, np.int64), []
    ttft, queue, busy = np.zeros(count), np.zeros(count), np.zeros(count)
    view = idle_workers(workers)
    state, parameters = (None, None) if router is None else (router.initial_state(workers), router.parameters())
    end = 0.0
    for number, time in enumerate(times.tolist()):
        if router is None or state is None or parameters is None:
            worker = number % workers
        else:
            seen = _seen(view, fleet, number, np.maximum(free - time, 0.0) / about.token_s)
            worker = int(router.choose(seen, Arrival(time, float(tokens[number]), 1.0), state, parameters))
        job = fleet.serve(number, worker)
        start = max(time, float(free[worker]))
        new = job.served.computed + job.served.recomputed + job.partly
        takes = about.seconds(tokens[number], new)
        done = start + takes
        if len(job.owners):
            first, last = _fetch(job, worker, time, about.row_bytes / link_bytes_per_s, into, out)
            layer = takes / about.layers
            done = max(done, first + (last - first) / about.layers + takes, last + layer)
        free[worker] = done
        chosen[number], ttft[number], queue[number], busy[number] = worker, done - time, start - time, done - start
        jobs.append(job)
        end = max(end, done)
    return Timeline(ttft, queue, busy, chosen, jobs, end - float(times[0]) if count else 0.0)


def _seen(view: WorkersView, fleet: Fleet, number: int, waiting: Floats) -> WorkersView:
    here = fleet.here(number)
    return view._replace(
        waiting_tokens=waiting, matched_tokens=here, cached_tokens=np.full(len(here), fleet.there(number))
    )


def _fetch(job: Job, worker: int, time: float, token_s: float, into: Floats, out: Floats) -> tuple[float, float]:
    """Return when the first rows begin to come and when the last ones are there; the idlest sources send first."""
    first, last = np.inf, time
    for place in np.argsort(out[job.owners], kind="stable").tolist():
        owner = int(job.owners[place])
        begin = max(time, float(into[worker]), float(out[owner]))
        last = begin + float(job.fetched[place]) * token_s
        into[worker] = out[owner] = last
        first = min(first, begin)
    return first, last
