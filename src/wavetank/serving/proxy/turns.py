"""Turns of keys: when more requests come than may be at the backends, keys take turns by their weights.

Start-time fair queueing: every key has a virtual time to which it was served; the key that is furthest behind comes
next, and one turn moves it on by 1 / weight.  A key that was away does not save turns up: it starts where the last turn
began.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.

Differs from the source:

1. A turn is one request, whatever its length.
2. Requests that leave before their turn cost nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque

from wavetank.serving.proxy.access import Client
from wavetank.serving.proxy.dispatcher import PoolFullError, PoolTimeoutError


class Turns:
    """Lets a number of requests through at once.

    Parameters
    ----------
    most : int
        Requests at the backends; 0: no limit.
    limit : int
        Most requests that wait.  Where more than half of it is taken, no key may have more of it than its share.
    wait_s : float
        Longest wait.
    """

    def __init__(self, most: int, limit: int, wait_s: float) -> None:
        self._most, self._limit, self._wait_s = most, limit, wait_s
        self._inside = 0
        self._now = 0.0
        self._queues: dict[Client, deque[asyncio.Future[None]]] = {}
        self.waiting = 0

    def configure(self, most: int, limit: int, wait_s: float) -> None:
        """Set other limits; more turns begin at once.

        Parameters
        ----------
        most : int
        limit : int
        wait_s : float
        """
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
        if self._full_for(client):
            raise PoolFullError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        client.waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
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

    def place_in_line(self, client: Client) -> float:
        """Return where a request stands among those that wait for a pool policy: the smallest number comes first."""
        start = self._start(client)
        client.served_to = start + 1.0 / client.weight
        return start

    def began(self, place: float) -> None:
        """Take note that a request that stood there was sent."""
        self._now = max(self._now, place)

    # ------------------------------------------------------------------------------------------------------------------

    def _full_for(self, client: Client) -> bool:
        if self.waiting >= self._limit:
            return True
        if 2 * self.waiting < self._limit:
            return False
        others = sum(each.weight for each in self._queues if each is not client)
        # A key that waits alone may have all of it.
        return client.waiting >= self._limit * client.weight / (client.weight + others)

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
