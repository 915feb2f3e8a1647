"""What a live router sees of its backends: the simulator's view, filled from traffic and from the servers' metrics.

Every field means what it means in a simulation (:class:`wavetank.serving.routing.interface.WorkersView`): rows are as
old as their last refresh, and what was sent since is in the ``sent_`` fields and nowhere else.  A completion shows at
the next refresh, not before.

Where a field comes from:

========================  ==========================================  ==================================================
field                     a backend with metrics that are known       any other backend (own accounting)
========================  ==========================================  ==================================================
``kv_tokens``             usage * capacity, exact; estimated where    estimate: prompts and streamed events of the
                          the server does not report its usage        requests counted as running
                          (llama.cpp)
``kv_capacity_tokens``    exact where the server says, else as        as configured
                          configured
``running``, ``waiting``  exact                                       estimate: requests fill slots and KV cache in the
                                                                      order sent; one that streams runs
``slots``                 as configured                               as configured
``waiting_tokens``        estimate: prompts of the own requests that  estimate, as ``waiting``
                          were sent last
``sent_requests``         exact; a request sent while the metrics     exact
                          were on their way counts, though they may
                          hold it already
``sent_tokens``           estimate where prompts are text             estimate where prompts are text
``matched_tokens``        estimate, as in a simulation: what was      the same
                          sent, not what the server kept
``age_s``                 exact, from the moment the metrics came     exact
``identity``              a hash of the backend's URL: the same for   the same
                          every router and after every start
``speed``                 1: not known                                the same
``takes``                 0 while it drains, or is out for failed     the same
                          probes or requests
``serves``                from its list of models; 1 before that is   the same
                          known
``adapter_loaded``        estimate: own requests for the adapter      the same
                          were there at the refresh, or were sent
                          since
``cached_tokens``,        nan: the router reads no KV events          the same
``cached_total_tokens``
========================  ==========================================  ==================================================

Traffic that reaches a backend past this router shows only in the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.proxy.engine_metrics import EngineLoad
from wavetank.serving.routing.interface import NO_BLOCKS, ActiveView, idle_workers


class Asked(NamedTuple):
    """What a router is shown of a request beside its prompt, with the meanings of an arrival's fields.

    Fields are those of :class:`wavetank.serving.routing.interface.Arrival`, in its order.
    """

    expected_output_tokens: float = math.nan
    output_spread_tokens: float = math.nan
    max_tokens: float = math.nan
    deadline_s: float = math.inf  # on the clock of ``LiveRequest.arrived_s``
    model: int = -1
    adapter: int = -1
    session: int = -1
    tier: int = -1


NOTHING_ASKED = Asked()


class LiveRequest:
    """A request on its way through the router.

    Attributes
    ----------
    arrived_s : float
        On a monotonic clock.
    prompt_tokens : int
        Exact where the request carries token ids, else estimated.
    blocks : list of int
        Its prompt's prefix blocks; empty unless somebody wants them.
    block_tokens : float
        Tokens of a full block of this prompt: exact for token ids, else as estimated as the prompt is.
    asked : Asked
    model_name : str or None
        The model as backends list it; None where any will do.
    generated_tokens : int
        As far as they can be seen: the events of a stream.
    decoding : bool
        Whether a first token was seen.
    waited_steps : int
        Decisions since it came into the pool's window.
    place : float
        In the line of those that wait for a pool policy, where keys take turns.
    """

    __slots__ = (
        "arrived_s", "asked", "block_tokens", "blocks", "decoding", "generated_tokens", "model_name", "place",
        "prompt_tokens", "waited_steps",
    )  # fmt: skip

    def __init__(
        self,
        arrived_s: float,
        prompt_tokens: int,
        blocks: list[int],
        block_tokens: float = 1.0,
        asked: Asked = NOTHING_ASKED,
        model_name: str | None = None,
    ) -> None:
        self.arrived_s = arrived_s
        self.prompt_tokens = prompt_tokens
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.asked = asked
        self.model_name = model_name
        self.generated_tokens = 0
        self.decoding = False
        self.waited_steps = 0
        self.place = 0.0

    def block_ids(self) -> NDArray[np.int64]:
        """Return the prefix blocks as routers read them."""
        return np.array(self.blocks, np.int64) if self.blocks else NO_BLOCKS


class PrefixMemory:
    """Which prefix blocks were sent to one backend, and when; bounded, and forgotten after a while.

    Parameters
    ----------
    memory_s : float
        How long a block counts.
    most_blocks : int
        The blocks sent longest ago are dropped beyond it.
    """

    def __init__(self, memory_s: float, most_blocks: int) -> None:
        self._memory_s, self._most = memory_s, most_blocks
        self._sent_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._sent_s)

    def sent(self, blocks: Sequence[int], now_s: float) -> None:
        """Take note of blocks that were just sent."""
        sent_s = self._sent_s
        for block in blocks:
            sent_s.pop(block, None)
            sent_s[block] = now_s
        # In order of the last time sent: the oldest come first.
        oldest = now_s - self._memory_s
        while sent_s:
            first = next(iter(sent_s))
            if len(sent_s) <= self._most and sent_s[first] >= oldest:
                break
            del sent_s[first]

    def matched(self, blocks: Sequence[int], now_s: float) -> int:
        """Return how many leading blocks were sent within the memory."""
        oldest = now_s - self._memory_s
        count = 0
        for block in blocks:
            if self._sent_s.get(block, -np.inf) < oldest:
                break
            count += 1
        return count

    def clear(self) -> None:
        """Forget everything: the backend was started anew."""
        self._sent_s.clear()


class WorkerAccount:
    """What the router knows of one backend: its own requests there, and the last refresh.

    Parameters
    ----------
    slots : int
        Most requests that run at once.
    kv_capacity_tokens : float
        Until the backend says otherwise.
    prefixes : PrefixMemory
    now_s : float
    identity : int, optional
        The backend's own number; by default its row in the view.

    Attributes
    ----------
    kv_tokens, waiting_tokens, running, waiting, sent_requests, sent_tokens
        As in the view.
    refreshed_s : float
        On a monotonic clock.
    adapters : set of int
        Those of own requests that were there at the refresh, and of those that were sent since.
    """

    def __init__(
        self,
        slots: int,
        kv_capacity_tokens: float,
        prefixes: PrefixMemory,
        now_s: float = 0.0,
        identity: int | None = None,
    ) -> None:
        self.identity = identity
        self.adapters: set[int] = set()
        self.slots = slots
        self.kv_capacity_tokens = kv_capacity_tokens
        self.prefixes = prefixes
        # Sent, no token seen yet, in the order sent; and those that stream.
        self._silent: dict[LiveRequest, None] = {}
        self._decoding: dict[LiveRequest, None] = {}
        self._decoding_tokens = 0
        self._requests_in_all = 0
        self._tokens_in_all = 0
        self._mark = (0, 0)
        self.kv_tokens = 0.0
        self.running = 0
        self.waiting = 0
        self.waiting_tokens = 0.0
        self.sent_requests = 0
        self.sent_tokens = 0.0
        self.refreshed_s = now_s
        # Requests and tokens of other routers there, where the backend reports no load of its own.
        self.elsewhere = (0, 0)

    def load(self) -> tuple[int, int]:
        """Return own requests there, now, and their tokens as far as they are known."""
        silent = sum(request.prompt_tokens for request in self._silent)
        return self.in_flight, silent + self._decoding_tokens

    @property
    def in_flight(self) -> int:
        """Own requests sent and not done, now."""
        return len(self._silent) + len(self._decoding)

    def send(self, request: LiveRequest, now_s: float) -> None:
        """Take note of a request that goes to this backend."""
        self._silent[request] = None
        self._requests_in_all += 1
        self._tokens_in_all += request.prompt_tokens
        self.sent_requests += 1
        self.sent_tokens += request.prompt_tokens
        if request.asked.adapter >= 0:
            self.adapters.add(request.asked.adapter)
        if request.blocks:
            self.prefixes.sent(request.blocks, now_s)

    def generated(self, request: LiveRequest, tokens: int) -> None:
        """Take note of streamed tokens of a request."""
        if not request.decoding:
            if request not in self._silent:
                return
            del self._silent[request]
            request.decoding = True
            self._decoding[request] = None
            self._decoding_tokens += request.prompt_tokens
        request.generated_tokens += tokens
        self._decoding_tokens += tokens

    def done(self, request: LiveRequest) -> None:
        """Take note that a request has left this backend, however it ended; saying it twice does no harm."""
        if request in self._decoding:
            del self._decoding[request]
            self._decoding_tokens -= request.prompt_tokens + request.generated_tokens
            request.decoding = False
        else:
            self._silent.pop(request, None)

    def refresh(self, now_s: float) -> None:
        """Refresh from own accounting."""
        running, held = len(self._decoding), float(self._decoding_tokens)
        admitted = 0
        for request in self._silent:
            # First come first served, as the servers do: behind one that waits all wait.
            full = held + request.prompt_tokens > self.kv_capacity_tokens and running > 0
            if running >= self.slots or full:
                break
            running += 1
            admitted += 1
            held += request.prompt_tokens
        self.kv_tokens, self.running = held, running
        self.waiting = len(self._silent) - admitted
        self.waiting_tokens = float(sum(request.prompt_tokens for request in islice(self._silent, admitted, None)))
        requests, tokens = self.elsewhere
        if requests:
            # Which of them run, only their router could say: those that find room.
            run = min(requests, max(self.slots - running, 0))
            self.running += run
            self.waiting += requests - run
            self.kv_tokens += tokens * run / requests
            self.waiting_tokens += tokens * (requests - run) / requests
        self.sent_requests, self.sent_tokens = 0, 0.0
        self._note_adapters()
        self.refreshed_s = now_s

    def begin_look(self) -> None:
        """Take note that the backend's metrics are asked for now: what is sent from here on may not be in them."""
        self._mark = (self._requests_in_all, self._tokens_in_all)

    def refresh_from(self, load: EngineLoad, now_s: float) -> None:
        """Refresh from the backend's own metrics, asked for at :meth:`begin_look`."""
        if load.kv_capacity_tokens > 0:
            self.kv_capacity_tokens = load.kv_capacity_tokens
        mean = self._tokens_in_all / self._requests_in_all if self._requests_in_all else 0.0
        if math.isnan(load.kv_usage):
            begun = list(islice(self._silent, max(load.running - len(self._decoding), 0)))
            own = self._decoding_tokens + sum(request.prompt_tokens for request in begun)
            self.kv_tokens = own + mean * max(load.running - len(self._decoding) - len(begun), 0)
        else:
            self.kv_tokens = load.kv_usage * self.kv_capacity_tokens
        self.running, self.waiting = load.running, load.waiting
        sent = self._requests_in_all - self._mark[0]
        # Those sent after the look cannot be in it; of the others the newest are the ones that wait.
        before = list(self._silent)[: max(len(self._silent) - sent, 0)]
        newest = before[-load.waiting :] if load.waiting else []
        known = float(sum(request.prompt_tokens for request in newest))
        self.waiting_tokens = known + mean * (load.waiting - len(newest))
        self.sent_requests = sent
        self.sent_tokens = float(self._tokens_in_all - self._mark[1])
        self._note_adapters()
        self.refreshed_s = now_s

    def _note_adapters(self) -> None:
        if not self.adapters:
            return
        there = (request.asked.adapter for each in (self._silent, self._decoding) for request in each)
        self.adapters = {adapter for adapter in there if adapter >= 0}

    def decoding(self) -> list[LiveRequest]:
        """Return the requests that stream, the one that began last first."""
        return list(reversed(self._decoding))


class LiveView:
    """The view over the backends that can be routed to, kept in arrays that are changed in place.

    Parameters
    ----------
    accounts : sequence of WorkerAccount
        Worker ``i`` of the view is ``accounts[i]``.
    reads_active : bool
        Whether the table of decoding requests is filled.
    """

    def __init__(self, accounts: Sequence[WorkerAccount], *, reads_active: bool = False) -> None:
        n = len(accounts)
        self.accounts = tuple(accounts)
        self._reads_active = reads_active
        self._refreshed_s = np.zeros(n)
        self.workers = idle_workers(n)
        self._active: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = [
            (np.zeros(0, np.int64), np.zeros(0), np.zeros(0)) for _ in range(n)
        ]
        self.active = ActiveView(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
        for worker, account in enumerate(self.accounts):
            if account.identity is not None:
                self.workers.identity[worker] = account.identity
            self.copy_row(worker)

    def copy_row(self, worker: int) -> None:
        """Take over a row that was refreshed."""
        account, view = self.accounts[worker], self.workers
        view.kv_tokens[worker] = account.kv_tokens
        view.kv_capacity_tokens[worker] = account.kv_capacity_tokens
        view.running[worker] = account.running
        view.slots[worker] = account.slots
        view.waiting[worker] = account.waiting
        view.waiting_tokens[worker] = account.waiting_tokens
        view.sent_requests[worker] = account.sent_requests
        view.sent_tokens[worker] = account.sent_tokens
        self._refreshed_s[worker] = account.refreshed_s
        if self._reads_active:
            decoding = account.decoding()
            self._active[worker] = (
                np.full(len(decoding), worker, np.int64),
                np.array([request.prompt_tokens for request in decoding], np.float64),
                np.array([request.generated_tokens for request in decoding], np.float64),
            )
            columns = [np.concatenate(parts) for parts in zip(*self._active, strict=True)]
            self.active = ActiveView(columns[0], columns[1], columns[2], np.full(columns[0].size, np.nan))

    def sent(self, worker: int) -> None:
        """Take over what was sent since the refresh."""
        account = self.accounts[worker]
        self.workers.sent_requests[worker] = account.sent_requests
        self.workers.sent_tokens[worker] = account.sent_tokens

    def age(self, now_s: float) -> None:
        """Bring the rows' ages to ``now_s``."""
        np.subtract(now_s, self._refreshed_s, out=self.workers.age_s)

    def match(self, request: LiveRequest, now_s: float) -> None:
        """Fill in how many tokens of the prompt were sent to each worker before."""
        matched = self.workers.matched_tokens
        for worker, account in enumerate(self.accounts):
            blocks = account.prefixes.matched(request.blocks, now_s)
            matched[worker] = min(blocks * request.block_tokens, request.prompt_tokens)

    def note_adapter(self, adapter: int) -> None:
        """Fill in which workers have an adapter, as far as own requests show it."""
        loaded = self.workers.adapter_loaded
        for worker, account in enumerate(self.accounts):
            loaded[worker] = adapter in account.adapters
