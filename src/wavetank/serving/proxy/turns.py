"""Turns of keys: when more requests come than may be at the backends, keys take turns by their weights.

Start-time fair queueing: every key has a virtual time to which it was served; the key that is furthest behind comes
next, and one turn moves it on by 1 / weight.  A key that was away does not save turns up: it starts where the last turn
began.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996; who gives way in a full queue: McKenney,
"Stochastic Fairness Queueing", INFOCOM 1990.

Differs from the source:

1. A turn is one request, whatever its length.
2. Requests that leave before their turn cost nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from wavetank.serving.proxy.access import Client
from wavetank.serving.proxy.dispatcher import PoolFullError, PoolTimeoutError
from wavetank.serving.proxy.view import LiveRequest


class Turns:
    """Lets a number of requests through at once.

    Parameters
    ----------
    most : int
        Requests at the backends; 0: no limit.
    limit : int
        Most requests that wait.  Where more than half of it is taken, no key may have more of it than its share; where
        all of it is, the newest request of the largest crowd for its weight gives way to one of another key.
    wait_s : float
        Longest wait.
    """

    def __init__(self, most: int, limit: int, wait_s: float) -> None:
        self._most, self._limit, self._wait_s = most, limit, wait_s
        self._inside = 0
        self._now = 0.0
        self._queues: dict[Client, deque[asyncio.Future[None]]] = {}
        # Requests that stand in the line of a pool policy, and what ends the wait of one.
        self._lines: dict[Client, dict[LiveRequest, None]] = {}
        self._in_line = 0
        self.push_out: Callable[[LiveRequest], None] = lambda request: None
        self.waiting = 0

    def configure(self, most: int, limit: int, wait_s: float) -> None:
        """Set other limits; more turns begin at once."""
        self._most, self._limit, self._wait_s = most, limit, wait_s
        self._begin()

    @property
    def open(self) -> bool:
        """Whether nobody ever waits here."""
        return not self._most

    async def enter(self, client: Client) -> None:
        """Wait for a turn; :meth:`leave` must follow.

        Raises
        ------
        PoolFullError
            If too many wait already, or too many of this key.
        PoolTimeoutError
            If the turn does not come in time.
        """
        if self._inside < self._most and not self.waiting:
            self._inside += 1
            self._count(client)
            return
        if 2 * self.waiting >= self._limit:
            victim = self._gives_way(client, {each: each.waiting for each in self._queues})
            if victim is not None:
                queue = self._queues[victim]
                pushed = queue.pop()
                self._left(victim, queue)
                if not pushed.done():
                    pushed.set_exception(PoolFullError())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        client.waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # Its turn had just begun.
                self.leave()
            else:
                self._give_up(client, turn)
            if isinstance(error, TimeoutError):
                raise PoolTimeoutError from None
            raise

    def leave(self) -> None:
        """End a turn."""
        self._inside -= 1
        self._begin()

    def step_in(self, client: Client, request: LiveRequest) -> None:
        """Give a request its place among those that wait for a pool policy: the smallest number comes first.

        :meth:`began` or :meth:`step_out` must follow.

        Raises
        ------
        PoolFullError
            If too many of this key wait already.
        """
        if 2 * self._in_line >= self._limit:
            victim = self._gives_way(client, {each: len(requests) for each, requests in self._lines.items()})
            if victim is not None:
                pushed = next(reversed(self._lines[victim]))
                self.step_out(victim, pushed)
                self.push_out(pushed)
        request.place = self._start(client)
        client.served_to = request.place + 1.0 / client.weight
        self._lines.setdefault(client, {})[request] = None
        self._in_line += 1

    def began(self, client: Client, request: LiveRequest) -> None:
        """Take note that a request that stood in line was sent."""
        if self._out_of_line(client, request):
            self._now = max(self._now, request.place)

    def step_out(self, client: Client, request: LiveRequest) -> None:
        """Take note that a request is done; one that was never sent had no turn."""
        if self._out_of_line(client, request):
            client.served_to -= 1.0 / client.weight

    def _out_of_line(self, client: Client, request: LiveRequest) -> bool:
        line = self._lines.get(client)
        if line is None or request not in line:
            return False
        del line[request]
        self._in_line -= 1
        if not line:
            del self._lines[client]
        return True

    # ------------------------------------------------------------------------------------------------------------------

    def _gives_way(self, client: Client, waiting: Mapping[Client, int]) -> Client | None:
        """Return whose newest request must make room for one more of a key's; None where there is room.

        Raises
        ------
        PoolFullError
            If the key itself has its share, or more.
        """
        own = waiting.get(client, 0)
        # A key that waits alone may have all of it, until another one comes.
        others = sum(each.weight for each in waiting if each is not client)
        if own >= self._limit * client.weight / (client.weight + others):
            raise PoolFullError
        if sum(waiting.values()) < self._limit:
            return None
        victim = max(waiting, key=lambda each: waiting[each] / each.weight, default=client)
        if victim is client:
            raise PoolFullError
        return victim

    def _give_up(self, client: Client, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self._left(client, queue)

    def _left(self, client: Client, queue: deque[asyncio.Future[None]]) -> None:
        self.waiting -= 1
        client.waiting -= 1
        if not queue:
            del self._queues[client]

    def _begin(self) -> None:
        while self._queues and (not self._most or self._inside < self._most):
            client = min(self._queues, key=self._start)
            queue = self._queues[client]
            turn = queue.popleft()
            self._left(client, queue)
            if turn.done():
                continue
            self._inside += 1
            self._count(client)
            turn.set_result(None)

    def _start(self, client: Client) -> float:
        return max(client.served_to, self._now)

    def _count(self, client: Client) -> None:
        start = self._start(client)
        self._now = start
        client.served_to = start + 1.0 / client.weight
